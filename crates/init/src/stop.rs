//! The end of a machine: kill what is left, write everything out, unmount, `reboot(2)`. Every step has a deadline: a
//! disk or a driver that hangs delays the end, and does not prevent it.

use std::process::ExitCode;
use std::time::Duration;

use ichor_sys::bounded::{self, Ended};
use ichor_sys::supervisor::RebootCommand;
use ichor_sys::{namespace, power, signal};

use crate::pid1::say;

const SIGKILL: i32 = 9;
/// How long killed processes may take to go.
const REAP_WAIT: Duration = Duration::from_secs(5);
/// How long writing everything out may take.
const SYNC_WAIT: Duration = Duration::from_secs(30);
/// How long one disk may take to be unmounted.
const UNMOUNT_WAIT: Duration = Duration::from_secs(10);
/// How long all disks may take to be unmounted.
const UNMOUNT_ALL_WAIT: Duration = Duration::from_secs(30);
/// How long writing out what unmounting left may take.
const LAST_SYNC_WAIT: Duration = Duration::from_secs(10);
/// How long a console may take to show what was written to it: why a machine went down is lost with the machine otherwise.
const CONSOLE_WAIT: Duration = Duration::from_secs(5);
/// How long `reboot(2)` may take, in which the kernel waits for drivers, before it is forced.
const REBOOT_WAIT: Duration = Duration::from_secs(30);
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
    let mut forcing = None;
    if first && !contained {
        step("sync", SYNC_WAIT, power::sync);
        step("unmount of disks", UNMOUNT_ALL_WAIT, unmount_disks);
        step("last sync", LAST_SYNC_WAIT, power::sync);
        step("console", CONSOLE_WAIT, || {
            // Without a console there is nothing to wait for.
            let _ = rustix::termios::tcdrain(std::io::stderr());
        });
        forcing = force_after(REBOOT_WAIT, command);
    }
    if first && let Err(error) = power::reboot(command) {
        say(&["reboot: ", &error.to_string()]);
        if let Some(pid) = forcing {
            let _ = signal::send(pid, SIGKILL);
        }
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

/// One step of the end, in a child.
fn step(what: &str, limit: Duration, work: impl FnOnce()) {
    match bounded::run(limit, work) {
        Ended::Done => {}
        Ended::Late => say(&[what, " did not finish in time; continuing"]),
        Ended::NotStarted(error) => say(&[what, " skipped, no child process: ", &error.to_string()]),
    }
}

fn unmount_disks() {
    let late = |target: &std::path::Path| {
        say(&["unmount of ", &target.to_string_lossy(), " did not finish in time; continuing"]);
    };
    power::unmount_each(&power::disk_mounts(), UNMOUNT_WAIT, power::unmount_disk, late);
}

/// A child that ends the machine the hard way when `reboot(2)` has not done so by then.
fn force_after(limit: Duration, command: RebootCommand) -> Option<i32> {
    let started = namespace::fork(|| {
        std::thread::sleep(limit);
        say(&["reboot did not finish in time; forcing it"]);
        match power::force(command) {
            Ok(()) => 0,
            Err(_) => 1,
        }
    });
    started.map_err(|error| say(&["reboot cannot be forced, no child process: ", &error.to_string()])).ok()
}
