//! machined's end of the socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::exec::Failure;
use super::wire::{
    self, ChildId, FRAME_LEN, Frame, GuardNotice, Kind, Name, PowerRequest, RebootCommand, STRINGS_MAX,
    SpawnNumbers, Stage, TAIL_MAX,
};
use crate::confine::Filter;
use crate::fdpass::{self, Fds};

/// Joins an answer to its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seq(pub u32);

/// A service to start.
#[derive(Clone, Debug)]
pub struct SpawnRequest {
    /// Service id; one running child per name.
    pub name: String,
    /// The executable.
    pub path: String,
    /// Arguments, the name of the program first.
    pub args: Vec<String>,
    /// The whole environment, `KEY=value`.
    pub env: Vec<String>,
    /// User.
    pub uid: u32,
    /// Group; supplementary groups are dropped.
    pub gid: u32,
    /// Group below the cgroup root, as `system/apid`; made when missing.
    pub cgroup: Option<String>,
    /// Capabilities that stay in the bounding set (and, for root, effective).
    pub capabilities: crate::credentials::Capabilities,
    /// `oom_score_adj`, best effort.
    pub oom_score_adj: i32,
    /// Niceness, best effort.
    pub nice: i32,
    /// Limit of open files, best effort; 0 leaves it.
    pub nofile: u64,
    /// Never gain privileges by exec.
    pub no_new_privs: bool,
    /// Which system calls it may make. [`Filter::Manager`] is for machined to take on itself.
    pub filter: Filter,
    /// Run in a mount namespace of its own.
    pub private_mounts: bool,
    /// Directories the child sees empty; implies its own mount namespace.
    pub masked: Vec<String>,
    /// A root of its own, read-only, with its program, its own part of `/proc` and these: `r` or `w` (for what it may
    /// write to), the path, and, where it is to appear elsewhere, `:` and that path. What is missing is left out.
    /// Nothing stands for the whole root.
    pub view: Vec<String>,
    /// The root of a container, where the path of the program is then looked for: a directory, the options of an
    /// overlay with names relative to it (or `bind:` and a directory that is the root), and then pairs of what of the
    /// machine it sees and where. The first of a pair begins with `r` (to read), `w` (to write), or `R` and `W`: with
    /// all that is mounted below, and later mounts seen on both sides, or `s` and `S`: the same, with later mounts seen
    /// on neither. What is missing is left out. `ro:` before the options makes a root that cannot be written to.
    pub root: Vec<String>,
}

impl SpawnRequest {
    /// A root process with all capabilities, no environment and the program's name as the only argument.
    pub fn new(name: impl Into<String>, path: impl Into<String>) -> Self {
        let (name, path) = (name.into(), path.into());
        Self {
            args: vec![name.clone()],
            name,
            path,
            env: Vec::new(),
            uid: 0,
            gid: 0,
            cgroup: None,
            capabilities: crate::credentials::Capabilities::ALL,
            oom_score_adj: 0,
            nice: 0,
            nofile: 0,
            no_new_privs: false,
            filter: Filter::None,
            private_mounts: false,
            masked: Vec::new(),
            view: Vec::new(),
            root: Vec::new(),
        }
    }

    pub(super) fn encode(&self, seq: Seq) -> io::Result<(Frame, Vec<u8>)> {
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
        let count = |len: usize| match u16::try_from(len) {
            Ok(count) if len <= STRINGS_MAX => Ok(count),
            _ => Err(invalid("too many strings in a spawn request")),
        };
        let mut frame = Frame::new(Kind::Spawn, seq.0);
        frame.name = Name::new(&self.name)
            .filter(|name| !name.is_empty())
            .ok_or_else(|| invalid("service name is empty or too long"))?;
        for (set, flag) in [
            (self.no_new_privs, wire::flags::NO_NEW_PRIVS),
            (self.filter == Filter::Service, wire::flags::FILTER),
            (self.filter == Filter::Daemon, wire::flags::DAEMON),
            (self.filter == Filter::Sealed, wire::flags::SEALED),
            (self.private_mounts, wire::flags::PRIVATE_MOUNTS),
        ] {
            frame.flags |= if set { flag } else { 0 };
        }
        frame.words = SpawnNumbers {
            uid: self.uid,
            gid: self.gid,
            capabilities: self.capabilities.bits(),
            oom_score_adj: self.oom_score_adj,
            nice: self.nice,
            nofile: self.nofile,
            args: count(self.args.len())?,
            env: count(self.env.len())?,
            masked: count(self.masked.len())?,
            view: count(self.view.len())?,
            root: count(self.root.len())?,
        }
        .to_words();
        let mut tail = Vec::with_capacity(1024);
        [&self.path, self.cgroup.as_ref().unwrap_or(&String::new())]
            .into_iter()
            .chain(&self.args)
            .chain(&self.env)
            .chain(&self.masked)
            .chain(&self.view)
            .chain(&self.root)
            .try_for_each(|text| {
                if text.contains('\0') {
                    return Err(invalid("zero byte in a spawn request"));
                }
                tail.extend_from_slice(text.as_bytes());
                tail.push(0);
                Ok(())
            })?;
        if tail.len() > TAIL_MAX {
            return Err(invalid("arguments and environment are too long"));
        }
        Ok((frame, tail))
    }
}

/// Whether a child runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildState {
    /// It does.
    Running,
    /// It has exited and waits to be released.
    Exited(ExitStatus),
}

/// A child as init knows it.
#[derive(Debug)]
pub struct Child {
    /// Its number.
    pub id: ChildId,
    /// Service id.
    pub name: String,
    /// Process id.
    pub pid: i32,
    /// Running or not.
    pub state: ChildState,
    /// When it was started, on the boot clock.
    pub started: Duration,
    /// Reading end of its output; init keeps another, so closing this one loses nothing.
    pub output: Option<OwnedFd>,
    /// Readable when it has exited.
    pub pidfd: Option<OwnedFd>,
}

/// What init says.
#[derive(Debug)]
pub enum Event {
    /// Answer to [`Client::hello`].
    Welcome {
        /// The request.
        seq: Seq,
        /// How many times machined was started since boot, this one included.
        generation: u32,
        /// When init started, on the boot clock.
        started: Duration,
    },
    /// Answer to [`Client::spawn`].
    Spawned {
        /// The request.
        seq: Seq,
        /// The child, running.
        child: Child,
    },
    /// One child of the answer to [`Client::list`].
    Child {
        /// The request.
        seq: Seq,
        /// The child.
        child: Child,
    },
    /// One kept descriptor of the answer to [`Client::list`].
    Kept {
        /// The request.
        seq: Seq,
        /// The name it was kept under.
        name: String,
        /// Another handle on it.
        fd: OwnedFd,
    },
    /// The request is done; ends a list.
    Done {
        /// The request.
        seq: Seq,
    },
    /// The request failed.
    Failed {
        /// The request.
        seq: Seq,
        /// Why.
        failure: Failure,
    },
    /// A child has exited. Its place is held until [`Client::release`].
    Exited {
        /// Its number.
        id: ChildId,
        /// Service id.
        name: String,
        /// Process id it had.
        pid: i32,
        /// How it ended.
        status: ExitStatus,
    },
    /// Somebody outside the API asked the machine to stop.
    Power(PowerRequest),
}

/// The connection to init. All calls are non-blocking; wait for readability with the descriptor.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    seq: AtomicU32,
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Client {
    fn as_raw_fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }
}

impl Client {
    /// A client on an open socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, seq: AtomicU32::new(1) }
    }

    /// The socket that init left at [`super::SOCKET_FD`]. Call once, early in `main`.
    ///
    /// # Errors
    /// `NotConnected` when machined was not started by init.
    pub fn inherited() -> io::Result<Self> {
        let fd = super::SOCKET_FD;
        // SAFETY: only looks at the number; the borrow ends before anything could close it.
        let probe = unsafe { BorrowedFd::borrow_raw(fd) };
        let ours = rustix::net::sockopt::socket_type(probe)
            .is_ok_and(|kind| kind == rustix::net::SocketType::SEQPACKET);
        if !ours {
            return Err(io::Error::new(
                io::ErrorKind::NotConnected,
                "no socket to init; machined has to be started by init",
            ));
        }
        // SAFETY: init put the descriptor there for us and nothing else in this process owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self::new(socket))
    }

    /// Asks for generation and boot time; answered by [`Event::Welcome`].
    pub fn hello(&self) -> io::Result<Seq> {
        self.request(Frame::new(Kind::Hello, 0))
    }

    /// Asks for all children and kept descriptors; [`Event::Done`] ends the list.
    pub fn list(&self) -> io::Result<Seq> {
        self.request(Frame::new(Kind::List, 0))
    }

    /// Starts a service; answered by [`Event::Spawned`] or [`Event::Failed`]. Descriptors in `fds` become
    /// 3, 4, … of the child.
    ///
    /// # Errors
    /// `InvalidInput` when the request does not fit its bounds, `WouldBlock` when init is behind.
    pub fn spawn(&self, request: &SpawnRequest, fds: &[BorrowedFd<'_>]) -> io::Result<Seq> {
        let seq = self.next_seq();
        let (frame, tail) = request.encode(seq)?;
        fdpass::send(&self.socket, &[&frame.encode(), &tail], fds)?;
        Ok(seq)
    }

    /// Sends a signal to a running child.
    pub fn signal(&self, id: ChildId, signal: i32) -> io::Result<Seq> {
        let mut frame = Frame::new(Kind::Signal, 0);
        frame.words[0] = id.0;
        frame.words[1] = u64::from(signal.cast_unsigned());
        self.request(frame)
    }

    /// Gives up an exited child: its status and its output are known.
    pub fn release(&self, id: ChildId) -> io::Result<Seq> {
        let mut frame = Frame::new(Kind::Release, 0);
        frame.words[0] = id.0;
        self.request(frame)
    }

    /// Has init hold a descriptor under a name, over the death of machined. A second one replaces the first.
    pub fn keep(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<Seq> {
        let seq = self.next_seq();
        let mut frame = Frame::new(Kind::Keep, seq.0);
        frame.name = Name::new(name).ok_or(io::ErrorKind::InvalidInput)?;
        fdpass::send(&self.socket, &[&frame.encode()], &[fd])?;
        Ok(seq)
    }

    /// Has init close a kept descriptor.
    pub fn drop_kept(&self, name: &str) -> io::Result<Seq> {
        let mut frame = Frame::new(Kind::Drop, 0);
        frame.name = Name::new(name).ok_or(io::ErrorKind::InvalidInput)?;
        self.request(frame)
    }

    /// Ends the machine: init kills what is left, syncs, unmounts and calls `reboot(2)`.
    pub fn reboot(&self, command: RebootCommand) -> io::Result<Seq> {
        let mut frame = Frame::new(Kind::Reboot, 0);
        frame.words[0] = command as u64;
        self.request(frame)
    }

    /// Tells the guard how this system does; answered by [`Event::Done`].
    pub fn guard(&self, notice: GuardNotice) -> io::Result<Seq> {
        let mut frame = Frame::new(Kind::Guard, 0);
        frame.words[0] = notice as u64;
        self.request(frame)
    }

    /// The next event, `None` when there is none yet.
    ///
    /// # Errors
    /// `ConnectionAborted` when init is gone, `InvalidData` for a message that makes no sense.
    pub fn try_recv(&self) -> io::Result<Option<Event>> {
        let mut buffer = [0; FRAME_LEN];
        match fdpass::receive(&self.socket, &mut buffer)? {
            None => Ok(None),
            Some((0, _)) => Err(io::ErrorKind::ConnectionAborted.into()),
            Some((len, fds)) => Frame::decode(&buffer[..len])
                .and_then(|(frame, _)| event(&frame, fds))
                .map(Some)
                .ok_or_else(|| io::ErrorKind::InvalidData.into()),
        }
    }

    /// The next event, waiting for it at most `timeout`. For programs without a reactor, and tests.
    pub fn recv_timeout(&self, timeout: Duration) -> io::Result<Option<Event>> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(event) = self.try_recv()? {
                return Ok(Some(event));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            crate::poll::readable(&self.socket, left)?;
        }
    }

    fn next_seq(&self) -> Seq {
        // 0 marks events that answer nothing.
        Seq(self.seq.fetch_add(1, Ordering::Relaxed).max(1))
    }

    fn request(&self, mut frame: Frame) -> io::Result<Seq> {
        let seq = self.next_seq();
        frame.seq = seq.0;
        fdpass::send(&self.socket, &[&frame.encode()], &[])?;
        Ok(seq)
    }
}

fn event(frame: &Frame, mut fds: Fds) -> Option<Event> {
    let seq = Seq(frame.seq);
    let words = &frame.words;
    let name = || frame.name.as_str().to_owned();
    let pid = (words[1] as u32).cast_signed();
    let status = ExitStatus::from_raw((words[3] as u32).cast_signed());
    let child = |fds: &mut Fds| Child {
        id: ChildId(words[0]),
        name: name(),
        pid,
        state: match words[2] {
            0 => ChildState::Running,
            _ => ChildState::Exited(status),
        },
        started: Duration::from_nanos(words[4]),
        output: fds.take(0),
        pidfd: fds.take(1),
    };
    Some(match frame.kind {
        Kind::Welcome => Event::Welcome {
            seq,
            generation: u32::try_from(words[0]).unwrap_or(u32::MAX),
            started: Duration::from_nanos(words[1]),
        },
        Kind::Spawned => Event::Spawned { seq, child: child(&mut fds) },
        Kind::Child => Event::Child { seq, child: child(&mut fds) },
        Kind::Kept => Event::Kept { seq, name: name(), fd: fds.take(0)? },
        Kind::Done => Event::Done { seq },
        Kind::Failed => Event::Failed {
            seq,
            failure: Failure { stage: Stage::parse(words[0]), errno: (words[1] as u32).cast_signed() },
        },
        Kind::Exited => Event::Exited { id: ChildId(words[0]), name: name(), pid, status },
        Kind::Power => Event::Power(PowerRequest::parse(words[0])?),
        Kind::Hello
        | Kind::List
        | Kind::Spawn
        | Kind::Signal
        | Kind::Release
        | Kind::Keep
        | Kind::Drop
        | Kind::Reboot
        | Kind::Guard => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_out_of_bounds_is_refused_before_it_is_sent() {
        let check = |change: fn(&mut SpawnRequest)| {
            let mut request = SpawnRequest::new("x", "/bin/x");
            change(&mut request);
            request.encode(Seq(1)).unwrap_err().to_string()
        };
        assert_eq!(check(|r| r.name.clear()), "service name is empty or too long");
        assert_eq!(
            check(|r| r.args = vec![String::new(); STRINGS_MAX + 1]),
            "too many strings in a spawn request"
        );
        assert_eq!(check(|r| r.env.push("a\0b".to_owned())), "zero byte in a spawn request");
        assert_eq!(check(|r| r.args.push("y".repeat(TAIL_MAX))), "arguments and environment are too long");
    }
}
