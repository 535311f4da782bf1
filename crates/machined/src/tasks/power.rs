//! Tasks that end the machine.

use std::time::Duration;

use ichor_cosi::State;
use ichor_resource::runtime::MachineResetSignal;
use ichor_sys::supervisor::RebootCommand;
use ichor_types::Cmdline;
use ichor_wire::machine;

use super::failed;
use crate::node::Journal;
use crate::sequencer::TaskError;
use crate::supervisor::Supervisor;

/// The last logs and events get this long to reach receivers that take them.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// `reboot(2)` commands, as events and clients spell them.
fn number(command: RebootCommand) -> u32 {
    match command {
        RebootCommand::Restart => 0x0123_4567,
        RebootCommand::PowerOff => 0x4321_fedc,
        RebootCommand::Halt => 0xcdef_0123,
        RebootCommand::Kexec => 0x4558_4543,
    }
}

/// How a shutdown ends.
pub(super) fn shutdown_command(cmdline: &Cmdline) -> RebootCommand {
    match cmdline.first("talos.shutdown") {
        Some("halt") => RebootCommand::Halt,
        _ => RebootCommand::PowerOff,
    }
}

/// Announces the end in an event, gives receivers time to get it, and has init end the machine.
pub(super) async fn end(
    journal: Journal,
    supervisor: Supervisor,
    actor: &str,
    command: RebootCommand,
) -> Result<(), TaskError> {
    let number = number(command);
    journal.events.publish_as(actor, machine::RestartEvent { cmd: i64::from(number) });
    journal.shipping.settled(DRAIN_MAX).await;
    supervisor.reboot(command);
    Err(TaskError::Reboot(number))
}

/// Announces a reset that is about to happen.
pub(super) async fn signal_reset(state: State) -> Result<(), TaskError> {
    state.modify::<MachineResetSignal>("runtime", "machine", "", |_| {}).map(drop).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shutdown_halts_where_the_command_line_asks_for_it() {
        let of = |text: &str| shutdown_command(&Cmdline::parse(text));
        assert_eq!(number(of("talos.shutdown=halt")), 0xcdef_0123);
        assert_eq!(number(of("talos.shutdown=poweroff")), 0x4321_fedc);
        assert_eq!(number(of("quiet")), 0x4321_fedc);
    }
}
