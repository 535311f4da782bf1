//! The server in a thread of the calling process, for tests and for running machined by hand.
//!
//! It waits for its own children only, so it may live beside other code that starts processes.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::PollFd;

use super::{Client, Outcome, Server};

/// How late an exit may be noticed.
const REAP_EVERY: Duration = Duration::from_millis(10);

/// Starts the server; it ends, and kills its children, when the client is dropped or asks for a reboot.
pub fn start() -> io::Result<Client> {
    let (ours, theirs) = crate::fdpass::pair()?;
    std::thread::Builder::new().name("supervisor".to_owned()).spawn(move || serve(theirs))?;
    Ok(Client::new(ours))
}

fn serve(socket: OwnedFd) {
    let mut server = Server::new(Vec::new());
    server.connect(socket);
    while let Some(socket) = server.socket() {
        let mut fds = [PollFd::from_borrowed_fd(socket, server.interest())];
        let ready = crate::poll::wait(&mut fds, Some(REAP_EVERY)).unwrap_or(0);
        reap(&mut server);
        let outcome = if ready > 0 { server.ready() } else { Outcome::Continue };
        match outcome {
            Outcome::Continue => {}
            Outcome::Guard { seq, .. } => server.confirm(seq),
            Outcome::Disconnected | Outcome::Reboot(_) => break,
        }
    }
    let left: Vec<i32> = server.running().collect();
    for pid in left {
        // SAFETY: signals and waits for our own unreaped child.
        unsafe {
            libc::kill(pid, libc::SIGKILL);
            libc::waitpid(pid, std::ptr::null_mut(), 0);
        }
    }
}

fn reap(server: &mut Server) {
    let running: Vec<i32> = server.running().collect();
    for pid in running {
        let mut status = 0;
        // SAFETY: waits for our own child without blocking; `status` is a live integer.
        if unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } == pid {
            server.child_exited(pid, status);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::process::ExitStatusExt;

    use super::super::{Child, ChildState, Event, GuardNotice, Seq, SpawnRequest, Stage};
    use super::*;

    const WAIT: Duration = Duration::from_secs(10);

    fn next(client: &Client) -> Event {
        client.recv_timeout(WAIT).unwrap().expect("an event in time")
    }

    fn shell(name: &str, script: &str) -> SpawnRequest {
        SpawnRequest {
            args: ["sh", "-c", script].map(str::to_owned).to_vec(),
            env: vec!["GREETING=hello".to_owned()],
            ..SpawnRequest::new(name, "/bin/sh")
        }
    }

    fn spawned(client: &Client, request: &SpawnRequest) -> Child {
        let sent = client.spawn(request, &[]).unwrap();
        match next(client) {
            Event::Spawned { seq, child } if seq == sent => child,
            other => panic!("not spawned: {other:?}"),
        }
    }

    fn listed(client: &Client) -> Vec<(String, ChildState)> {
        let sent = client.list().unwrap();
        let mut children = Vec::new();
        loop {
            match next(client) {
                Event::Child { seq, child } if seq == sent => {
                    children.push((child.name, child.state));
                }
                Event::Done { seq } if seq == sent => return children,
                other => panic!("not part of a list: {other:?}"),
            }
        }
    }

    fn failure(client: &Client, sent: Seq) -> (Stage, i32) {
        match next(client) {
            Event::Failed { seq, failure } if seq == sent => (failure.stage, failure.errno),
            other => panic!("not failed: {other:?}"),
        }
    }

    #[test]
    fn output_and_exit_status_reach_the_client() {
        let client = start().unwrap();
        let child = spawned(&client, &shell("greeter", "echo $GREETING; exit 3"));
        let mut text = String::new();
        let mut output = File::from(child.output.unwrap());
        match next(&client) {
            Event::Exited { id, status, .. } => {
                assert_eq!((id, status.code()), (child.id, Some(3)));
            }
            other => panic!("{other:?}"),
        }
        // The server holds no writing end, so the pipe ends with the child.
        output.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello\n");
    }

    #[test]
    fn an_exited_child_stays_listed_until_released() {
        let client = start().unwrap();
        let child = spawned(&client, &shell("brief", "exit 0"));
        assert!(matches!(next(&client), Event::Exited { .. }));
        let exited = ChildState::Exited(std::process::ExitStatus::from_raw(0));
        assert_eq!(listed(&client), [("brief".to_owned(), exited)]);
        let again = client.spawn(&shell("brief", "exit 0"), &[]).unwrap();
        assert_eq!(failure(&client, again), (Stage::Request, libc::EEXIST));
        client.release(child.id).unwrap();
        assert!(matches!(next(&client), Event::Done { .. }));
        assert_eq!(listed(&client), []);
    }

    #[test]
    fn a_signal_ends_a_child_and_a_running_one_cannot_be_released() {
        let client = start().unwrap();
        let child = spawned(&client, &shell("sleeper", "exec sleep 60"));
        let early = client.release(child.id).unwrap();
        assert_eq!(failure(&client, early), (Stage::Request, libc::EBUSY));
        client.signal(child.id, libc::SIGTERM).unwrap();
        assert!(matches!(next(&client), Event::Done { .. }));
        match next(&client) {
            Event::Exited { status, .. } => assert_eq!(status.signal(), Some(libc::SIGTERM)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_cannot_start_says_why() {
        let client = start().unwrap();
        let sent = client.spawn(&SpawnRequest::new("nothing", "/does/not/exist"), &[]).unwrap();
        assert_eq!(failure(&client, sent), (Stage::Exec, libc::ENOENT));
        assert_eq!(listed(&client), []);
    }

    #[test]
    fn passed_descriptors_start_at_three() {
        let client = start().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let request = shell("writer", "echo from three >&3");
        client.spawn(&request, &[writer.as_fd()]).unwrap();
        drop(writer);
        assert!(matches!(next(&client), Event::Spawned { .. }));
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "from three\n");
    }

    #[test]
    fn a_kept_descriptor_comes_back_with_the_list() {
        let client = start().unwrap();
        let file = tempfile::tempfile().unwrap();
        client.keep("ring", file.as_fd()).unwrap();
        assert!(matches!(next(&client), Event::Done { .. }));
        client.list().unwrap();
        match next(&client) {
            Event::Kept { name, fd, .. } => {
                assert_eq!(name, "ring");
                assert_eq!(rustix::fs::fstat(fd).unwrap().st_ino, rustix::fs::fstat(&file).unwrap().st_ino);
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(next(&client), Event::Done { .. }));
        client.drop_kept("ring").unwrap();
        assert!(matches!(next(&client), Event::Done { .. }));
        assert_eq!(listed(&client), []);
    }

    #[test]
    fn a_notice_to_the_guard_is_confirmed_and_an_unknown_one_refused() {
        let client = start().unwrap();
        for notice in [GuardNotice::Progress, GuardNotice::Yield, GuardNotice::Decided] {
            let sent = client.guard(notice).unwrap();
            assert!(matches!(next(&client), Event::Done { seq } if seq == sent), "{notice:?}");
        }
        let mut frame = super::super::wire::Frame::new(super::super::wire::Kind::Guard, 9);
        frame.words[0] = 4;
        crate::fdpass::send(&client, &[&frame.encode()], &[]).unwrap();
        assert_eq!(failure(&client, Seq(9)), (Stage::Request, libc::EINVAL));
    }

    #[test]
    fn the_child_is_confined_as_asked() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let client = start().unwrap();
        let request = SpawnRequest {
            uid: 50,
            gid: 50,
            capabilities: crate::credentials::Capabilities::NONE,
            no_new_privs: true,
            filter: crate::confine::Filter::Service,
            nofile: 128,
            masked: vec!["/root".to_owned()],
            ..shell(
                "confined",
                "grep -E '^(Uid|Gid|Groups|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; \
                 ulimit -n; ls /root | wc -l; ls /proc/self/fd | wc -l",
            )
        };
        let child = spawned(&client, &request);
        assert!(matches!(next(&client), Event::Exited { .. }));
        let mut text = String::new();
        File::from(child.output.unwrap()).read_to_string(&mut text).unwrap();
        // Four descriptors: the standard ones and the directory `ls` reads.
        expect_test::expect![[r"
            Uid:	50	50	50	50
            Gid:	50	50	50	50
            Groups:	 
            CapBnd:	0000000000000000
            NoNewPrivs:	1
            Seccomp:	2
            128
            0
            4
        "]]
        .assert_eq(&text);
    }
}
