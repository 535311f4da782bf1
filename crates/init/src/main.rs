//! The node program: init, machined, apid, trustd, the dashboard and the installer in one file.
//!
//! Which one it is comes from the name it was called by, or from its first argument: `ichor init` and a link
//! named `init` do the same. PID 1 without a better name is init.

mod early;
mod guard;
mod initramfs;
mod layers;
mod pid1;
mod static_nodes;
mod stop;

use std::process::ExitCode;

fn main() -> ExitCode {
    if initramfs::is_stage() {
        return initramfs::run();
    }
    let mut args = std::env::args();
    let called = args.next().unwrap_or_default();
    let name = called.rsplit('/').next().unwrap_or_default();
    let (name, rest) = match name {
        "ichor" => (args.next().unwrap_or_default(), args.collect()),
        other => (other.to_owned(), args.collect::<Vec<_>>()),
    };
    match name.as_str() {
        "init" => pid1::main(&rest),
        "machined" => ichor_machined::main(&rest),
        "apid" => ichor_apid::main(&rest),
        "trustd" => ichor_trustd::main(&rest),
        "dashboard" => ichor_dashboard::console::main(&rest),
        "installer" => ichor_installer::main(&rest),
        "poweroff" | "shutdown" => ask_pid1(rustix::process::Signal::TERM),
        "reboot" => ask_pid1(rustix::process::Signal::INT),
        _ if std::process::id() == 1 => pid1::main(&rest),
        other => {
            eprintln!(
                "ichor: {other:?} is none of init, machined, apid, trustd, dashboard, installer, poweroff, reboot; call one of these"
            );
            ExitCode::from(2)
        }
    }
}

/// PID 1 hands the wish on to machined, which ends the machine in order.
fn ask_pid1(signal: rustix::process::Signal) -> ExitCode {
    match rustix::process::kill_process(rustix::process::Pid::INIT, signal) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ichor: signal PID 1: {error}");
            ExitCode::FAILURE
        }
    }
}
