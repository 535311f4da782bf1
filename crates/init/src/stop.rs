//! The end of a machine: kill what is left, write everything out, unmount, `reboot(2)`.

use std::process::ExitCode;
use std::time::Duration;

use ichor_sys::supervisor::RebootCommand;
use ichor_sys::{power, signal};

use crate::pid1::say;

const SIGKILL: i32 = 9;
/// How long killed processes may take to go.
const REAP_WAIT: Duration = Duration::from_secs(5);
/// How long writing everything out may take.
const SYNC_WAIT: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(10);

/// Ends the machine. Returns only where `reboot(2)` is not ours to call: the exit code then says what was asked,
/// as the signal of a contained reboot would (128 + SIGHUP or SIGINT).
pub(crate) fn end(command: RebootCommand, others: impl Iterator<Item = i32>) -> Option<ExitCode> {
    say(&[match command {
        RebootCommand::Restart => "restarting",
        RebootCommand::PowerOff => "powering off",
        RebootCommand::Halt => "halting",
        RebootCommand::Kexec => "starting the next kernel",
    }]);
    let first = std::process::id() == 1;
    if first {
        // -1: everything this PID 1 can see, itself excepted.
        let _ = signal::send(-1, SIGKILL);
    } else {
        for pid in others.filter(|pid| *pid > 0) {
            let _ = signal::send(pid, SIGKILL);
        }
    }
    reap(REAP_WAIT);
    let contained = !power::in_first_pid_namespace();
    if first && !contained {
        bounded_sync();
        power::unmount_disks();
        bounded_sync();
    }
    if first && let Err(error) = power::reboot(command) {
        say(&["reboot: ", &error.to_string()]);
        if !contained {
            // The kernel refuses; a PID 1 that ends would be a panic. The loop goes on and machined is started again.
            return None;
        }
    }
    Some(ExitCode::from(match command {
        RebootCommand::Restart | RebootCommand::Kexec => 129,
        RebootCommand::PowerOff | RebootCommand::Halt => 130,
    }))
}

fn reap(limit: Duration) {
    let deadline = ichor_sys::host::uptime() + limit;
    while ichor_sys::host::uptime() < deadline {
        match rustix::process::wait(rustix::process::WaitOptions::NOHANG) {
            Err(rustix::io::Errno::CHILD) => return,
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => std::thread::sleep(STEP),
        }
    }
}

/// A disk that hangs must not keep the machine from rebooting.
fn bounded_sync() {
    let Ok(pid) = ichor_sys::namespace::fork(|| {
        power::sync();
        0
    }) else {
        return;
    };
    let deadline = ichor_sys::host::uptime() + SYNC_WAIT;
    while ichor_sys::host::uptime() < deadline {
        if signal::reap_any().is_some_and(|(reaped, _)| reaped == pid) {
            return;
        }
        std::thread::sleep(STEP);
    }
    say(&["writing everything out takes too long; going on"]);
}
