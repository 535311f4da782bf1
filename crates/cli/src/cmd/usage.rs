//! `usage`: how much space files and directories take.

use ichor_client::NodeError;
use ichor_wire::machine::{DiskUsageInfo, DiskUsageRequest};

use crate::failure::Failure;
use crate::parse::Call;
use crate::print;
use crate::session::{Session, StreamErrors, block_on};
use crate::table::{Args, Command, Flag, Group};
use crate::tabs::Table;
use crate::text;

/// The command.
pub static USAGE: Command = Command {
    name: "usage",
    aliases: &["du"],
    group: Group::Machines,
    about: "Show how much space files and directories take",
    examples: &["usage /var", "du -a -d 2 -H /system"],
    args: Args::between("[path1] [path2] ... [pathN]", 0, usize::MAX),
    flags: &[
        Flag::switch("humanize", "show sizes for people").short('H'),
        Flag::switch("all", "count files too, not only directories").short('a'),
        Flag::int("threshold", "0", "leave out what is smaller; when negative, what is larger").short('t'),
        Flag::int32("depth", "0", "show this many levels").short('d'),
    ],
    run: Some(run),
    ..Command::EMPTY
};

fn run(call: &Call) -> Result<(), Failure> {
    // The original shows one level unless told otherwise, whatever its help says; scripts count on that.
    let depth = if call.given("depth") { call.int("depth") } else { 1 };
    let request = DiskUsageRequest {
        recursion_depth: i32::try_from(depth).unwrap_or(i32::MAX).saturating_add(1),
        all: call.on("all"),
        threshold: call.int("threshold"),
        paths: if call.args.is_empty() { vec!["/".to_owned()] } else { call.args.clone() },
    };
    let (connection, humanize) = (call.connection(), call.on("humanize"));
    block_on(async {
        let session = Session::open(&connection).await?;
        let stream = session.all().machine().disk_usage(request).await;
        let mut errors = StreamErrors::default();
        let mut bad = Vec::new();
        let mut entries = Vec::new();
        let take = |node: String, info: DiskUsageInfo| {
            if info.error.is_empty() {
                entries.push((node, info));
            } else {
                bad.push(NodeError { node, text: info.error, code: None });
            }
            Ok(())
        };
        session.read("error fetching disk usage", stream, take, &mut errors).await?;
        print(&table_text(&entries, humanize))?;
        bad.into_iter().for_each(|error| errors.push(error));
        errors.finish()
    })
}

/// The table; nothing at all without entries.
pub fn table_text(entries: &[(String, DiskUsageInfo)], humanize: bool) -> String {
    if entries.is_empty() {
        return String::new();
    }
    let mut table = Table::with_header(["NODE", "SIZE", "NAME"]);
    for (node, info) in entries {
        let size = match humanize {
            true => text::bytes(u64::try_from(info.size).unwrap_or_default()),
            false => info.size.to_string(),
        };
        table.row([node.clone(), size, info.relative_name.clone()]);
    }
    table.take()
}
