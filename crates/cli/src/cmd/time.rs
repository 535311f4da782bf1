//! `time`: the clocks of machines beside a time server's.

use ichor_wire::time::{Time, TimeRequest};

use crate::failure::Failure;
use crate::parse::Call;
use crate::print;
use crate::session::{Session, block_on};
use crate::table::{Args, Command, Flag, Group};
use crate::tabs::Table;
use crate::text;

/// The command.
pub static TIME: Command = Command {
    name: "time",
    args: Args::between("[--check server]", 0, 0),
    group: Group::Machines,
    about: "Compare the clocks of machines with a time server",
    examples: &["time", "time --check pool.ntp.org"],
    flags: &[Flag::text("check", "ask this time server instead of the configured one")],
    run: Some(run),
    ..Command::EMPTY
};

fn run(call: &Call) -> Result<(), Failure> {
    let (connection, check) = (call.connection(), call.some_text("check"));
    block_on(async {
        let session = Session::open(&connection).await?;
        let mut time = session.all().time();
        let reply = match check {
            Some(server) => session.ask(time.time_check(TimeRequest { server: server.to_owned() })).await,
            None => session.ask(time.time(())).await,
        };
        let replies =
            session.gather("error fetching time", reply.map(|reply| reply.into_inner().messages))?;
        print(&table_text(&replies))
    })
}

/// The table.
pub fn table_text(replies: &[(String, Time)]) -> String {
    let mut table = Table::with_header(["NODE", "NTP-SERVER", "NODE-TIME", "NTP-SERVER-TIME"]);
    for (node, time) in replies {
        let show = |time: &Option<prost_types::Timestamp>| {
            text::timestamp(time.as_ref()).map(text::go_time).unwrap_or_default()
        };
        table.row([node.clone(), time.server.clone(), show(&time.localtime), show(&time.remotetime)]);
    }
    table.take()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn clocks_stand_side_by_side() {
        let at = |seconds: i64, nanos: i32| Some(prost_types::Timestamp { seconds, nanos });
        let time = Time {
            metadata: None,
            server: "pool.ntp.org".into(),
            localtime: at(1_735_689_600, 250_000_000),
            remotetime: at(1_735_689_600, 0),
        };
        expect![[r#"
            NODE       NTP-SERVER     NODE-TIME                          NTP-SERVER-TIME
            10.5.0.2   pool.ntp.org   2025-01-01 00:00:00.25 +0000 UTC   2025-01-01 00:00:00 +0000 UTC
        "#]]
        .assert_eq(&table_text(&[("10.5.0.2".to_owned(), time)]));
    }
}
