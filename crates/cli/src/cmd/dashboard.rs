//! `dashboard`: machines on the whole screen, live.

use std::time::Duration;

use crate::dashboard;
use crate::failure::Failure;
use crate::parse::Call;
use crate::session::{Session, block_on};
use crate::table::{Command, Flag, Group};

/// Counters are asked for no more often.
const INTERVAL_MIN: Duration = Duration::from_millis(500);

/// The command.
pub static DASHBOARD: Command = Command {
    name: "dashboard",
    group: Group::Machines,
    about: "Watch machines on the whole screen",
    long: "Shows machines live: F1 summary, F2 monitor, F3 network configuration, F4 logs (Tab: next log).\n\n\
           Left/h and Right/l change the machine; j/k, Down/Up, Ctrl-D/U, Ctrl-F/B and PgDn/PgUp scroll; Ctrl-Z pauses;\n\
           q or Ctrl-C leaves.",
    examples: &["dashboard", "dashboard -n 10.5.0.2,10.5.0.3 -d 1s"],
    flags: &[
        Flag::duration("update-interval", "3s", "time between looks at counters").short('d'),
        Flag::switch("insecure", "watch a machine that waits for its configuration").short('i'),
    ],
    run: Some(run),
    ..Command::EMPTY
};

fn run(call: &Call) -> Result<(), Failure> {
    let (connection, insecure) = (call.connection(), call.on("insecure"));
    let interval = call.duration("update-interval").max(INTERVAL_MIN);
    block_on(async {
        let session = Session::open_either(&connection, insecure).await?;
        dashboard::run(&session, interval).await
    })
}
