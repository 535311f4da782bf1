//! The dashboard as init starts it: locked in, with a terminal and nothing else. Needs root, as every node has it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use ichor_sys::confine::Filter;
use ichor_sys::credentials::Capabilities;
use ichor_sys::supervisor::{Child, Client, Event, SpawnRequest, local};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

const WAIT: Duration = Duration::from_secs(60);

/// What a person has before them.
struct Person {
    terminal: File,
    seen: String,
}

impl Person {
    /// Types, and waits until this is shown.
    fn types(&mut self, keys: &[u8], shown: &str) {
        self.seen.clear();
        self.terminal.write_all(keys).unwrap();
        let deadline = Instant::now() + WAIT;
        while !self.seen.contains(shown) {
            assert!(Instant::now() < deadline, "no {shown:?} in {:?}", self.seen);
            let mut fds = [PollFd::new(&self.terminal, PollFlags::IN)];
            if poll(&mut fds, Some(&Timespec { tv_sec: 1, tv_nsec: 0 })).unwrap() > 0 {
                let mut buffer = [0; 4096];
                let len = self.terminal.read(&mut buffer).unwrap();
                self.seen.push_str(&String::from_utf8_lossy(&buffer[..len]));
            }
        }
    }

    fn resizes(&self, columns: u16) {
        let size = Winsize { ws_col: columns, ws_row: 24, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.terminal, size).unwrap();
    }
}

fn terminal() -> (Person, OwnedFd) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let terminal = ichor_sys::terminal::open_raw(Path::new(&name)).unwrap();
    (Person { terminal: File::from(master), seen: String::new() }, terminal)
}

fn start(client: &Client, sockets: &Path, terminal: &OwnedFd) -> Child {
    let args = ["dashboard", "--socket=/run/dashboard/machine.sock", "--config-url=https://a/?c=${code}"];
    let request = SpawnRequest {
        args: args.map(str::to_owned).to_vec(),
        uid: 52,
        gid: 52,
        capabilities: Capabilities::NONE,
        nice: 10,
        no_new_privs: true,
        filter: Filter::Daemon,
        view: vec![format!("r{}:/run/dashboard", sockets.display())],
        ..SpawnRequest::new("dashboard", env!("CARGO_BIN_EXE_ichor"))
    };
    client.spawn(&request, &[terminal.as_fd()]).unwrap();
    match client.recv_timeout(WAIT).unwrap().expect("an answer in time") {
        Event::Spawned { child, .. } => child,
        other => panic!("not started: {other:?}"),
    }
}

#[test]
fn locked_in_it_draws_takes_keys_and_leaves_on_a_signal() {
    assert!(rustix::process::geteuid().is_root(), "needs root, like every node");
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let (mut person, terminal) = terminal();
    person.resizes(80);
    let client = local::start().unwrap();
    let child = start(&client, dir.path(), &terminal);
    drop(terminal);
    person.types(b"", "URL]");
    person.types(b"\x1b[[B", "COMMAND");
    person.types(b"\x1b[[D", "TEMPLATE");
    // Nobody leaves a console. The field takes what is typed, and the machine that would keep it does not answer.
    person.types(b"q\x03eab-1\r", "saved:");
    person.resizes(100);
    person.types(b"\x1b\x1b[[A", "Kernel");
    client.signal(child.id, 15).unwrap();
    person.types(b"", "\x1b[?25h");
    let status = loop {
        match client.recv_timeout(WAIT).unwrap().expect("an end in time") {
            Event::Exited { status, .. } => break status,
            Event::Done { .. } => {}
            other => panic!("not ended: {other:?}"),
        }
    };
    let mut output = String::new();
    File::from(child.output.unwrap()).read_to_string(&mut output).unwrap();
    assert!(status.success() && output.is_empty(), "{status}: {output}");
}

#[test]
fn without_a_terminal_it_says_so() {
    let out = std::process::Command::new(env!("CARGO_BIN_EXE_ichor")).arg("dashboard").output().unwrap();
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && text.contains("machined starts it with one"), "{text}");
}
