//! The loop of PID 1: start machined, start what it asks for, reap, and never end.
//!
//! One thread. After [`main`] has set things up nothing here allocates, and a panic, should one happen, costs one
//! turn of the loop.

use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

use ichor_sys::credentials::Capabilities;
use ichor_sys::signal::{self, Signals};
use ichor_sys::supervisor::{Launcher, Outcome, PowerRequest, RebootCommand, Server, SpawnRequest};
use rustix::event::{PollFd, PollFlags};

use crate::guard::{Guard, Limits};
use crate::{early, static_nodes, stop};

/// A machined that dies while starting is started again after a wait that doubles up to this.
const RESTART_WAIT_MAX: Duration = Duration::from_millis(500);
/// The wait for one that dies often but starts well; and the first of the doubling ones.
const RESTART_WAIT_MIN: Duration = Duration::from_millis(20);
/// Until here its death is one of starting.
const STARTED_AFTER: Duration = Duration::from_millis(100);
/// A machined that lived this long was well: its successor starts at once.
const HEALTHY_AFTER: Duration = Duration::from_secs(1);
/// Requests served before the loop looks at signals again.
const BURST: usize = 32;
/// A second wish to stop after this long means that machined does not listen.
const IMPATIENCE: Duration = Duration::from_secs(1);

const SIGNALS: [i32; 5] = [SIGCHLD, SIGTERM, SIGINT, SIGPWR, SIGHUP];
const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGPIPE: i32 = 13;
const SIGTERM: i32 = 15;
const SIGCHLD: i32 = 17;
const SIGPWR: i32 = 30;
const SIGKILL: i32 = 9;

/// What machined does without: the end of the machine, security modules, alarms, leases, accounting.
const LEFT_TO_INIT: Capabilities = Capabilities::from_bits(
    Capabilities::SYS_BOOT.bits()
        // CAP_SYS_PACCT, CAP_LEASE, CAP_MAC_OVERRIDE, CAP_MAC_ADMIN, CAP_WAKE_ALARM, CAP_BLOCK_SUSPEND
        | 1 << 20 | 1 << 28 | 1 << 32 | 1 << 33 | 1 << 35 | 1 << 36,
);

/// Sets the machine up and runs the loop. `--machined PATH [ARG…]` starts another program in machined's place, and `--guarded`
/// before it guards it, with brief limits; for tests, where this is not PID 1.
pub(crate) fn main(args: &[String]) -> ExitCode {
    signal::ignore(SIGPIPE);
    let first = std::process::id() == 1;
    let (guarded, args) = match args {
        [flag, rest @ ..] if flag == "--guarded" && !first => (true, rest),
        args => (false, args),
    };
    let mut guard = match guarded {
        true => Guard::with(Limits::brief(), ichor_sys::host::uptime()),
        false => Guard::none(),
    };
    let mut cgroup_roots = Vec::new();
    if first {
        early::mount_filesystems(&mut |text| say(&[text]));
        if ichor_sys::power::in_first_pid_namespace() {
            guard = Guard::begin(ichor_sys::host::uptime());
        }
        ichor_sys::overlays::mount_missing(&mut |text| say(&[text]));
        early::share_mounts(&mut |text| say(&[text]));
        if let Some(cgroups) = early::set_up_cgroups(&mut |text| say(&[text])) {
            cgroup_roots = cgroups.c_roots();
        }
        if ichor_sys::power::in_first_pid_namespace() {
            let _ = ichor_sys::power::hand_over_ctrl_alt_del();
            static_nodes::make(std::path::Path::new("/dev"), &mut |text| say(&[text]));
        }
    } else if let Err(error) = signal::become_subreaper() {
        say(&["cannot adopt orphans: ", error.kind().to_string().as_str()]);
    }
    // Only one who is not the machine's init may fail here; PID 1 waits for better times.
    let launcher = match machined(args) {
        Ok(launcher) => launcher,
        Err(error) => {
            say(&["cannot start machined: ", &error.to_string()]);
            return give_up(first);
        }
    };
    let signals = match Signals::collect(&SIGNALS) {
        Ok(signals) => signals,
        Err(error) => {
            say(&["cannot collect signals: ", &error.to_string()]);
            return give_up(first);
        }
    };
    let mut init = Init {
        server: Server::new(cgroup_roots),
        launcher,
        signals,
        machined: Machined::default(),
        stop_asked: None,
        acpi: (first && ichor_sys::power::in_first_pid_namespace())
            .then(|| ichor_sys::acpi::Events::open().ok())
            .flatten(),
        guard,
    };
    // What the set-up used is not needed again.
    ichor_sys::memory::trim();
    loop {
        let turn = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| init.turn()));
        match turn {
            Ok(None) => {}
            Ok(Some(command)) => {
                init.guard.ending(command);
                let others = init.server.running().chain([init.machined.pid]);
                if let Some(code) = stop::end(command, others) {
                    return code;
                }
                init.begin_again();
            }
            Err(_) => {
                say(&["a turn of the loop panicked; going on"]);
                std::thread::sleep(RESTART_WAIT_MAX);
            }
        }
    }
}

fn give_up(first: bool) -> ExitCode {
    while first && ichor_sys::power::in_first_pid_namespace() {
        std::thread::sleep(Duration::from_secs(60));
    }
    ExitCode::FAILURE
}

/// machined is this same file under another name, unless the arguments say otherwise.
fn machined(args: &[String]) -> std::io::Result<Launcher> {
    let mut request = match args {
        [flag, path, rest @ ..] if flag == "--machined" => SpawnRequest {
            args: std::iter::once(path).chain(rest).cloned().collect(),
            ..SpawnRequest::new("machined", path.clone())
        },
        // By this link its name among the processes is its own.
        _ => SpawnRequest::new("machined", "/usr/bin/machined"),
    };
    if request.path == "/usr/bin/machined" && !std::path::Path::new(&request.path).exists() {
        request.path = std::env::current_exe()?.to_string_lossy().into_owned();
    }
    // The environment given to PID 1 comes from the kernel command line, or from a provider.
    request.env = std::env::vars()
        .filter(|(key, _)| key != "PATH")
        .chain([("PATH".to_owned(), "/usr/bin:/usr/local/sbin:/usr/local/bin:/opt/cni/bin".to_owned())])
        .map(|(key, value)| format!("{key}={value}"))
        .take(32)
        .collect();
    // init ends the machine and starts programs; nobody here has a use for the rest.
    request.capabilities = Capabilities::ALL.without(LEFT_TO_INIT);
    request.no_new_privs = true;
    request.oom_score_adj = -999;
    request.nofile = 1 << 20;
    Launcher::new(&request)
}

#[derive(Default)]
struct Machined {
    /// 0 while it does not run.
    pid: i32,
    started: Duration,
    restart_at: Duration,
    wait: Duration,
}

struct Init {
    server: Box<Server>,
    launcher: Launcher,
    signals: Signals,
    machined: Machined,
    stop_asked: Option<(PowerRequest, Duration)>,
    acpi: Option<ichor_sys::acpi::Events>,
    guard: Guard,
}

impl Init {
    /// One turn: start machined if it is due, wait for something, deal with it.
    fn turn(&mut self) -> Option<RebootCommand> {
        let now = ichor_sys::host::uptime();
        if self.machined.pid == 0 && now >= self.machined.restart_at {
            self.start_machined(now);
        }
        let start = (self.machined.pid == 0).then(|| self.machined.restart_at.saturating_sub(now));
        self.wait(start.into_iter().chain(self.guard.timeout(now)).min());
        let asked = self.serve();
        let pressed = self.acpi.as_ref().is_some_and(ichor_sys::acpi::Events::power_button_pressed);
        let forced = if pressed { self.stop_wish(PowerRequest::Shutdown) } else { None };
        self.take_signals().or(asked).or(forced).or_else(|| self.guarded())
    }

    /// Ends a machine that may be on trial and hangs: as somebody asked for it, else by a restart.
    fn guarded(&mut self) -> Option<RebootCommand> {
        self.guard.look(ichor_sys::host::uptime()).then_some(match self.stop_asked {
            Some((PowerRequest::Shutdown, _)) => RebootCommand::PowerOff,
            Some((PowerRequest::Reboot, _)) | None => RebootCommand::Restart,
        })
    }

    fn wait(&self, timeout: Option<Duration>) {
        let signals = || PollFd::new(&self.signals, PollFlags::IN);
        let mut fds = [signals(), signals(), signals()];
        let mut count = 1;
        if let Some(socket) = self.server.socket() {
            fds[count] = PollFd::from_borrowed_fd(socket, self.server.interest());
            count += 1;
        }
        if let Some(acpi) = &self.acpi {
            fds[count] = PollFd::new(acpi, PollFlags::IN);
            count += 1;
        }
        // An error here is one turn without waiting; the next will do.
        let _ = ichor_sys::poll::wait(&mut fds[..count], timeout);
    }

    fn serve(&mut self) -> Option<RebootCommand> {
        for _ in 0..BURST {
            let socket = self.server.socket()?;
            let mut fds = [PollFd::from_borrowed_fd(socket, self.server.interest())];
            if ichor_sys::poll::wait(&mut fds, Some(Duration::ZERO)).unwrap_or(0) == 0 {
                return None;
            }
            match self.server.ready() {
                Outcome::Continue => {}
                Outcome::Reboot(command) => return Some(command),
                Outcome::Guard { notice, seq } => {
                    self.guard.heed(notice);
                    self.server.confirm(seq);
                }
                Outcome::Disconnected => {
                    // Without its socket it is of no use; a new one starts when this one is reaped.
                    if self.machined.pid > 0 {
                        let _ = signal::send(self.machined.pid, SIGKILL);
                    }
                    return None;
                }
            }
        }
        None
    }

    fn take_signals(&mut self) -> Option<RebootCommand> {
        let mut command = None;
        while let Some(number) = self.signals.try_next() {
            command = command.or(match number {
                SIGTERM | SIGPWR => self.stop_wish(PowerRequest::Shutdown),
                SIGINT => self.stop_wish(PowerRequest::Reboot),
                _ => None,
            });
        }
        // Whatever signal came or was merged: look for children every time.
        while let Some((pid, status)) = signal::reap_any() {
            if pid == self.machined.pid {
                self.machined_died();
            } else {
                self.server.child_exited(pid, status);
            }
        }
        command
    }

    /// machined is told; when it is not there, or was told before and did nothing, the machine stops at once.
    fn stop_wish(&mut self, wish: PowerRequest) -> Option<RebootCommand> {
        let now = ichor_sys::host::uptime();
        let impatient = self.stop_asked.is_some_and(|(_, since)| now.saturating_sub(since) > IMPATIENCE);
        if impatient || self.machined.wait >= RESTART_WAIT_MAX {
            return Some(match wish {
                PowerRequest::Shutdown => RebootCommand::PowerOff,
                PowerRequest::Reboot => RebootCommand::Restart,
            });
        }
        if self.stop_asked.is_none() {
            self.stop_asked = Some((wish, now));
        }
        self.server.power_requested(wish);
        None
    }

    fn start_machined(&mut self, now: Duration) {
        match self.launcher.start() {
            Ok((pid, socket)) => {
                self.machined.pid = pid;
                self.machined.started = now;
                self.server.connect(socket);
                // A new machined has not been told yet.
                if let Some((wish, _)) = self.stop_asked {
                    self.server.power_requested(wish);
                }
            }
            Err(failure) => {
                say(&["machined did not start at stage ", failure.stage.as_str()]);
                self.machined.wait = RESTART_WAIT_MAX;
                self.machined.restart_at = now + RESTART_WAIT_MAX;
            }
        }
    }

    /// After a stop that the kernel refused: everything was killed and reaped, so start as after a boot.
    fn begin_again(&mut self) {
        self.stop_asked = None;
        self.machined = Machined::default();
        self.server.disconnect();
        self.server.all_killed();
    }

    fn machined_died(&mut self) {
        let now = ichor_sys::host::uptime();
        say(&["machined has ended; starting it again, its services stay"]);
        self.server.disconnect();
        let machined = &mut self.machined;
        machined.wait = restart_wait(machined.wait, now.saturating_sub(machined.started));
        machined.pid = 0;
        machined.restart_at = now + machined.wait;
    }
}

/// How long to wait before the next start, after the last wait and the life that followed it.
fn restart_wait(last: Duration, lived: Duration) -> Duration {
    if lived >= HEALTHY_AFTER {
        Duration::ZERO
    } else if lived >= STARTED_AFTER {
        RESTART_WAIT_MIN
    } else {
        (last * 2).clamp(RESTART_WAIT_MIN, RESTART_WAIT_MAX)
    }
}

/// One line on the console, without allocating.
pub(crate) fn say(parts: &[&str]) {
    let mut line = [0; 256];
    let mut len = 0;
    for part in ["[init] "].iter().chain(parts).chain(&["\n"]) {
        let room = (line.len() - len).min(part.len());
        line[len..len + room].copy_from_slice(&part.as_bytes()[..room]);
        len += room;
    }
    // A console that cannot be written to is nothing init can mend.
    let _ = rustix::io::write(std::io::stderr().as_fd(), &line[..len]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_grows_only_for_deaths_at_the_start() {
        let ms = Duration::from_millis;
        assert_eq!(restart_wait(ms(0), ms(60_000)), ms(0));
        assert_eq!(restart_wait(ms(500), ms(1000)), ms(0));
        assert_eq!(restart_wait(ms(500), ms(100)), ms(20));
        let mut wait = ms(0);
        let mut waits = Vec::new();
        for _ in 0..8 {
            wait = restart_wait(wait, ms(1));
            waits.push(wait.as_millis());
        }
        assert_eq!(waits, [20, 40, 80, 160, 320, 500, 500, 500]);
    }
}
