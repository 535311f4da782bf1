//! `list` and `read`: files on machines.

use std::io::{Write as _, stdout};

use ichor_client::{NodeError, sort};
use ichor_wire::machine::list_request::Type;
use ichor_wire::machine::{FileInfo, ListRequest, ReadRequest};
use jiff::Timestamp;

use crate::explain;
use crate::failure::Failure;
use crate::parse::Call;
use crate::print;
use crate::session::{Session, StreamErrors, block_on};
use crate::table::{Args, Command, Complete, Flag, Group};
use crate::tabs::Table;
use crate::text;

/// `list`.
pub static LIST: Command = Command {
    name: "list",
    aliases: &["ls"],
    group: Group::Machines,
    about: "List a directory",
    examples: &["ls -l /etc", "ls --recurse --type f /system/state"],
    args: Args::between("[path]", 0, 1),
    flags: &[
        Flag::switch("long", "show mode, owner, size and time").short('l'),
        Flag::switch("humanize", "show sizes and times for people").short('H'),
        Flag::switch("recurse", "list everything below").short('r'),
        Flag::int32("depth", "1", "list this many levels").short('d'),
        Flag::list("type", "only files (f), directories (d), links (l, L)")
            .short('t')
            .complete(Complete::Words(&["f", "d", "l", "L"])),
    ],
    run: Some(list),
    ..Command::EMPTY
};

/// `read`.
pub static READ: Command = Command {
    name: "read",
    aliases: &["cat"],
    group: Group::Machines,
    about: "Print a file",
    examples: &["read /etc/os-release"],
    args: Args::between("<path>", 1, 1),
    run: Some(read),
    ..Command::EMPTY
};

fn list(call: &Call) -> Result<(), Failure> {
    if call.on("recurse") && call.given("depth") {
        return Err(Failure::new("only one of the flags --recurse and --depth can be used at once"));
    }
    let letters = call.list("type");
    let types = letters.iter().flat_map(|text| text.chars()).map(file_type).collect::<Result<Vec<_>, _>>()?;
    let depth = i32::try_from(call.int("depth")).unwrap_or(1);
    let request = ListRequest {
        root: if call.args.is_empty() { "/".to_owned() } else { call.arg(0).to_owned() },
        recurse: call.on("recurse") || depth > 1,
        recursion_depth: if call.on("recurse") { 0 } else { depth },
        types,
        report_xattrs: call.on("long"),
    };
    let (connection, long, humanize) = (call.connection(), call.on("long"), call.on("humanize"));
    block_on(async {
        let session = Session::open(&connection).await?;
        let stream = session.all().machine().list(request).await;
        let mut stream =
            stream.map_err(|status| explain::status("error fetching the list", &status))?.into_inner();
        let mut errors = StreamErrors::default();
        let mut entries = Vec::new();
        loop {
            match stream.message().await {
                Ok(Some(message)) => match sort(message, &session.label) {
                    Ok((node, info)) if info.error.is_empty() => entries.push((node, info)),
                    Ok((node, info)) => errors.push(NodeError {
                        node,
                        text: format!("error reading file {}: {}", info.name, info.error),
                        code: None,
                    }),
                    Err(error) => errors.push(error),
                },
                Ok(None) => break,
                Err(status) => {
                    errors.broken(&session.label, &status);
                    break;
                }
            }
        }
        print(&table_text(&entries, long, humanize, Timestamp::now()))?;
        errors.finish()
    })
}

fn file_type(letter: char) -> Result<i32, Failure> {
    Ok(match letter {
        'f' => Type::Regular,
        'd' => Type::Directory,
        'l' | 'L' => Type::Symlink,
        other => {
            return Err(Failure::new(format!("invalid file type: {other}")).hint("use f, d, l or L"));
        }
    }
    .into())
}

/// The table: names of several machines, or everything about each file.
pub fn table_text(entries: &[(String, FileInfo)], long: bool, humanize: bool, now: Timestamp) -> String {
    if !long {
        let mut table = Table::with_header(["NODE", "NAME"]);
        for (node, info) in entries {
            table.row([node.clone(), info.relative_name.clone()]);
        }
        return table.take();
    }
    let mut table = Table::with_header(["NODE", "MODE", "UID", "GID", "SIZE(B)", "LASTMOD", "LABEL", "NAME"]);
    for (node, info) in entries {
        let size = u64::try_from(info.size).unwrap_or_default();
        let modified = Timestamp::from_second(info.modified).unwrap_or_default();
        let link = if info.link.is_empty() { String::new() } else { format!(" -> {}", info.link) };
        table.row([
            node.clone(),
            text::file_mode(info.mode),
            info.uid.to_string(),
            info.gid.to_string(),
            if humanize { text::bytes(size) } else { size.to_string() },
            if humanize { text::relative(modified, now) } else { text::file_time(modified, now) },
            label(info),
            format!("{}{link}", info.relative_name),
        ]);
    }
    table.take()
}

fn label(info: &FileInfo) -> String {
    let xattr = info.xattrs.iter().find(|xattr| xattr.name == "security.selinux");
    let data = xattr.map(|xattr| xattr.data.as_slice()).unwrap_or_default();
    String::from_utf8_lossy(data).trim_matches(['\0', '\n']).to_owned()
}

fn read(call: &Call) -> Result<(), Failure> {
    let request = ReadRequest { path: call.arg(0).to_owned() };
    let connection = call.connection();
    block_on(async {
        let session = Session::open(&connection).await?;
        let client = session.only()?;
        let doing = "error reading";
        let stream = client.machine().read(request).await;
        let mut stream = stream.map_err(|status| explain::status(doing, &status))?.into_inner();
        let mut out = stdout();
        while let Some(message) = stream.message().await.map_err(|status| explain::status(doing, &status))? {
            let (_, data) = sort(message, &session.label)
                .map_err(|error| explain::nodes(doing, std::slice::from_ref(&error)))?;
            out.write_all(&data.bytes)?;
        }
        out.flush()?;
        Ok(())
    })
}
