//! The dashboard on the console of a machine: a process of its own, locked in like the other daemons.
//!
//! It is shown on the second virtual terminal of a machine that has a screen; the kernel's messages stay on the first
//! (Alt-F1, Alt-F2). `talos.dashboard.console=ttyS0` has it on that terminal instead, which nothing is switched for, and
//! `talos.dashboard.disabled=1` nowhere. A sandbox has no console.

use std::io;
use std::sync::Arc;

use tracing::warn;

use ichor_sys::cgroup::Limits;
use ichor_sys::terminal;
use ichor_types::Cmdline;

use crate::daemons::{self, DASHBOARD_UID, MIB};
use crate::node::Host;
use crate::platform::Mode;
use crate::services::spec::Hook;
use crate::services::{ProcessSpec, Run, ServiceSpec};

/// The service.
pub const DASHBOARD: &str = "dashboard";

/// The virtual terminals of the kernel's messages and of the dashboard.
const KERNEL: u8 = 1;
const OWN: u8 = 2;

const GROUP: &str = "system/dashboard";
const LIMITS: Limits = Limits {
    memory_min: None,
    memory_low: None,
    memory_max: Some(196 * MIB),
    swap_max: None,
    millicores: Some(200),
    millicores_max: None,
    pids_max: Some(64),
};

/// Where it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// On the screen.
    Screen,
    /// On this terminal.
    Terminal(String),
}

impl Place {
    fn device(&self) -> String {
        match self {
            Self::Screen => format!("/dev/tty{OWN}"),
            Self::Terminal(name) => format!("/dev/{name}"),
        }
    }
}

/// Where a machine with a kernel of its own shows the dashboard, if it has a screen.
fn place(cmdline: &Cmdline, mode: Mode) -> Option<Place> {
    const ARGUMENT: &str = "talos.dashboard.console";
    let is_machine = matches!(mode, Mode::Metal | Mode::Cloud);
    if !is_machine || cmdline.flag("talos.dashboard.disabled") {
        return None;
    }
    Some(match cmdline.first(ARGUMENT) {
        Some(name) if name.starts_with("tty") && !name.contains('/') => Place::Terminal(name.to_owned()),
        Some(name) => {
            warn!("{ARGUMENT}={name} names no terminal such as ttyS0; the dashboard is on the screen");
            Place::Screen
        }
        None => Place::Screen,
    })
}

/// Whether this machine would show the dashboard, had it a screen.
pub fn is_wanted(host: &Host) -> bool {
    ichor_sys::power::in_first_pid_namespace() && place(&host.cmdline, host.platform.mode).is_some()
}

/// Whether this machine shows the dashboard. Drivers of screens may have come since its start.
pub fn is_shown(host: &Host) -> bool {
    let place = || place(&host.cmdline, host.platform.mode);
    is_wanted(host) && place().is_some_and(|place| place != Place::Screen || terminal::has_screen())
}

/// The service. `program` is the multi-call binary.
pub fn service(program: &str, host: &Host) -> ServiceSpec {
    let place = place(&host.cmdline, host.platform.mode).unwrap_or(Place::Screen);
    let view = vec![format!("r{}", host.paths.run.join(DASHBOARD).display())];
    let mut process = ProcessSpec {
        oom_score_adj: -400,
        nice: 10,
        terminal: Some(place.device()),
        ..daemons::daemon(program, DASHBOARD, DASHBOARD_UID, view)
    };
    process.args.push(format!("--socket={}", host.paths.console_socket().display()));
    if let Some(url) = host.cmdline.first("talos.config") {
        process.args.push(format!("--config-url={url}"));
    }
    let on_screen = place == Place::Screen;
    ServiceSpec {
        depends: vec!["machined".to_owned()],
        pre: Some(prepare(on_screen)),
        post: on_screen.then(|| -> Hook { Arc::new(|| Box::pin(std::future::ready(leave_screen()))) }),
        ..ServiceSpec::new(DASHBOARD, Run::Process(process))
    }
}

fn prepare(on_screen: bool) -> Hook {
    let group = daemons::own_group(GROUP, LIMITS);
    Arc::new(move || {
        let group = group();
        Box::pin(async move {
            group.await?;
            if on_screen {
                told(
                    "keep the kernel's messages on their terminal",
                    terminal::keep_kernel_messages_on(KERNEL),
                );
                told("switch to the dashboard", terminal::show(OWN));
            }
            Ok(())
        })
    })
}

/// What the kernel says at the end of a machine is for whoever looks at its screen.
fn leave_screen() -> Result<(), String> {
    told("switch to the kernel's messages", terminal::show(KERNEL));
    Ok(())
}

/// A dashboard that nobody sees is no reason to go without one.
fn told(what: &str, done: io::Result<()>) {
    if let Err(error) = done {
        warn!(%error, "{what}");
    }
}

#[cfg(test)]
mod tests {
    use crate::node::Paths;
    use crate::platform::Platform;

    use super::*;

    fn host(cmdline: &str) -> Host {
        Host {
            platform: Platform { name: "metal".to_owned(), mode: Mode::Metal },
            cmdline: Cmdline::parse(cmdline),
            paths: Paths::default(),
            own_kernel_log: true,
        }
    }

    #[test]
    fn the_kernel_is_told_where_it_is_shown() {
        let device = |text: &str, mode| place(&Cmdline::parse(text), mode).map(|place| place.device());
        assert_eq!(device("quiet", Mode::Metal).as_deref(), Some("/dev/tty2"));
        assert_eq!(device("quiet", Mode::Cloud).as_deref(), Some("/dev/tty2"));
        assert_eq!(device("quiet", Mode::Container), None);
        assert_eq!(device("quiet", Mode::MetalAgent), None);
        assert_eq!(device("talos.dashboard.disabled=1", Mode::Metal), None);
        assert_eq!(device("talos.dashboard.disabled=perhaps", Mode::Metal).as_deref(), Some("/dev/tty2"));
        assert_eq!(device("talos.dashboard.console=ttyS0", Mode::Metal).as_deref(), Some("/dev/ttyS0"));
        for name in ["../tty1", "tty/../sda", "sda"] {
            let text = format!("talos.dashboard.console={name}");
            assert_eq!(device(&text, Mode::Metal).as_deref(), Some("/dev/tty2"), "{name}");
        }
    }

    #[test]
    fn the_process_has_a_terminal_a_socket_and_nothing_else() {
        let spec = service("/usr/bin/ichor", &host("talos.config=https://a/?c=${code}"));
        let Run::Process(process) = &spec.run else { panic!("a process") };
        assert_eq!(
            process.args,
            ["dashboard", "--socket=/system/run/dashboard/machine.sock", "--config-url=https://a/?c=${code}"]
        );
        assert_eq!(process.view, ["r/system/run/dashboard"]);
        assert_eq!((process.uid, process.privileged), (DASHBOARD_UID, false));
        assert_eq!(process.terminal.as_deref(), Some("/dev/tty2"));
        assert!(spec.post.is_some(), "the screen is given back");
        let serial = service("/usr/bin/ichor", &host("talos.dashboard.console=ttyS0"));
        assert!(serial.post.is_none(), "nothing was switched");
    }
}
