//! Starts one child. Between fork and exec nothing allocates and nothing takes a lock.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

use super::wire::{Frame, STRINGS_MAX, SpawnNumbers, Stage, Strings, flags};
use super::{root, view};
use crate::confine::{self, Filter};
use crate::credentials::{self, Capabilities};
use crate::fdpass::Fds;
use crate::text::write_number;

/// How long a child may take from fork to exec before its parent goes on without knowing.
const EXEC_WAIT: Duration = Duration::from_secs(2);
/// Room for output that nobody reads for a while.
const PIPE_BYTES: usize = 256 * 1024;
/// From this number on descriptors are parked while the child's own are placed.
const SCRATCH_FD: RawFd = 64;

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// How far it came.
    pub stage: Stage,
    /// The kernel's number for the reason.
    pub errno: i32,
}

impl Failure {
    pub(crate) fn new(stage: Stage, error: &io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Self { stage, errno }
    }

    /// The reason as an I/O error.
    pub fn source(&self) -> io::Error {
        io::Error::from_raw_os_error(self.errno)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.stage.as_str(), self.source())
    }
}

impl std::error::Error for Failure {}

/// A child that was started.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) pid: i32,
    pub(crate) pidfd: OwnedFd,
    pub(crate) output: OwnedFd,
}

/// A spawn request with its strings found.
pub(crate) struct Plan<'a> {
    numbers: SpawnNumbers,
    flags: u16,
    path: &'a CStr,
    cgroup: &'a CStr,
    args: [*const libc::c_char; STRINGS_MAX + 1],
    env: [*const libc::c_char; STRINGS_MAX + 1],
    masked: [Option<&'a CStr>; STRINGS_MAX],
    view: [Option<&'a CStr>; STRINGS_MAX],
    root: [Option<&'a CStr>; STRINGS_MAX],
    fds: &'a Fds,
    cgroup_roots: &'a [CString],
}

impl<'a> Plan<'a> {
    /// Reads the request; `None` when strings are missing or too many.
    pub(crate) fn new(
        frame: &Frame,
        tail: &'a [u8],
        fds: &'a Fds,
        cgroup_roots: &'a [CString],
    ) -> Option<Self> {
        let numbers = SpawnNumbers::from_words(&frame.words);
        let mut strings = Strings(tail);
        let mut plan = Self {
            numbers,
            flags: frame.flags,
            path: strings.next()?,
            cgroup: strings.next()?,
            args: [std::ptr::null(); STRINGS_MAX + 1],
            env: [std::ptr::null(); STRINGS_MAX + 1],
            masked: [None; STRINGS_MAX],
            view: [None; STRINGS_MAX],
            root: [None; STRINGS_MAX],
            fds,
            cgroup_roots,
        };
        let counts = [numbers.args, numbers.env, numbers.masked, numbers.view, numbers.root].map(usize::from);
        if counts.into_iter().any(|count| count > STRINGS_MAX) {
            return None;
        }
        for slot in &mut plan.args[..counts[0]] {
            *slot = strings.next()?.as_ptr();
        }
        for slot in &mut plan.env[..counts[1]] {
            *slot = strings.next()?.as_ptr();
        }
        for slot in &mut plan.masked[..counts[2]] {
            *slot = Some(strings.next()?);
        }
        for slot in &mut plan.view[..counts[3]] {
            *slot = Some(strings.next()?);
        }
        for slot in &mut plan.root[..counts[4]] {
            *slot = Some(strings.next()?);
        }
        // A path out of the tree could join any cgroup.
        let strange = plan.cgroup.to_bytes().windows(2).any(|pair| pair == b"..");
        (!strange).then_some(plan)
    }

    /// Forks and execs; returns once exec has happened, failed, or [`EXEC_WAIT`] is over.
    pub(crate) fn start(&self) -> Result<Started, Failure> {
        let fork = |error: io::Error| Failure::new(Stage::Fork, &error);
        let (output, output_in) = pipe().map_err(fork)?;
        let (report, report_in) = pipe().map_err(fork)?;
        // Without room for more the pipe keeps its usual 64 KiB.
        let _ = rustix::pipe::fcntl_setpipe_size(&output, PIPE_BYTES);
        // SAFETY: the child runs `child`, which only makes system calls and ends in exec or _exit.
        let pid = unsafe { libc::fork() };
        if pid < 0 {
            return Err(fork(io::Error::last_os_error()));
        }
        if pid == 0 {
            // Its number may be given to a passed descriptor; a copy higher up stays.
            let report = duplicate_high(report_in.as_fd()).unwrap_or(-1);
            let failure = match self.child(output_in.as_fd()) {
                Ok(never) => match never {},
                Err(failure) => failure,
            };
            let mut bytes = [0; 8];
            bytes[..4].copy_from_slice(&(failure.stage as u32).to_le_bytes());
            bytes[4..].copy_from_slice(&failure.errno.to_le_bytes());
            // SAFETY: writes from a live array, then ends the child at once, as exec did not.
            unsafe {
                libc::write(report, bytes.as_ptr().cast(), bytes.len());
                libc::_exit(127)
            }
        }
        drop((output_in, report_in));
        let started = self.outcome(pid, &report).and_then(|()| self.follow_into_cgroup(pid)).and_then(|()| {
            // SAFETY: takes two numbers; the pid is our own unreaped child, so it cannot be another's.
            let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
            match RawFd::try_from(fd) {
                // SAFETY: the kernel just made this descriptor for us.
                Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
                _ => Err(fork(io::Error::last_os_error())),
            }
        });
        match started {
            Ok(pidfd) => Ok(Started { pid, pidfd, output }),
            Err(failure) => {
                // It has called _exit, or must not run unwatched.
                // SAFETY: signals and waits for our own child.
                unsafe {
                    libc::kill(pid, libc::SIGKILL);
                    libc::waitpid(pid, std::ptr::null_mut(), 0);
                }
                Err(failure)
            }
        }
    }

    fn outcome(&self, pid: i32, report: &OwnedFd) -> Result<(), Failure> {
        debug_assert!(pid > 0);
        let failed = |error: io::Error| Failure::new(Stage::Fork, &error);
        if !crate::poll::readable(report, EXEC_WAIT).map_err(failed)? {
            return Ok(());
        }
        let mut bytes = [0; 8];
        match rustix::io::read(report, &mut bytes) {
            // The pipe closed without a word: exec has happened.
            Ok(0) => Ok(()),
            Ok(8) => {
                let stage = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                let errno = i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
                let stage = Stage::parse(u64::from(stage));
                Err(Failure { stage, errno })
            }
            Ok(_) => Err(Failure { stage: Stage::Fork, errno: libc::EPROTO }),
            Err(error) => Err(failed(error.into())),
        }
    }

    fn child(&self, output: BorrowedFd<'_>) -> Result<Never, Failure> {
        let at = |stage: Stage| move |error: io::Error| Failure::new(stage, &error);
        crate::signal::reset();
        // SAFETY: plain system calls on this process.
        unsafe {
            libc::setsid();
            libc::umask(0o022);
        }
        self.place_descriptors(output).map_err(at(Stage::Descriptors))?;
        if !self.is_daemon() {
            self.join_cgroup(b"0").map_err(at(Stage::Cgroup))?;
        }
        let numbers = &self.numbers;
        // Best effort, as on a machine without CAP_SYS_RESOURCE none of these may be raised.
        if numbers.oom_score_adj != 0 {
            let _ = credentials::set_oom_score_adj(numbers.oom_score_adj);
        }
        if numbers.nice != 0 {
            let _ = rustix::process::setpriority_process(None, numbers.nice);
        }
        if numbers.nofile != 0 {
            credentials::raise_nofile(numbers.nofile);
        }
        self.make_mount_view().map_err(at(Stage::Mounts))?;
        let keep = Capabilities::from_bits(numbers.capabilities);
        let credentials = || -> io::Result<()> {
            credentials::limit_bounding_set(keep)?;
            credentials::set_user(numbers.uid, numbers.gid)?;
            if numbers.uid == 0 && keep != Capabilities::ALL {
                credentials::limit_effective(keep)?;
            }
            if self.flags & flags::NO_NEW_PRIVS != 0 {
                credentials::set_no_new_privs()?;
            }
            rustix::process::chdir(c"/")?;
            Ok(())
        };
        credentials().map_err(at(Stage::Credentials))?;
        // Of several the strictest.
        let filter = match self.flags & (flags::SEALED | flags::DAEMON | flags::FILTER) {
            0 => Filter::None,
            flags::FILTER => Filter::Service,
            asked if asked & flags::SEALED != 0 => Filter::Sealed,
            _ => Filter::Daemon,
        };
        confine::install(filter).map_err(at(Stage::Seccomp))?;
        // SAFETY: path and lists are zero-terminated and live in the request, which outlives the call.
        unsafe { libc::execve(self.path.as_ptr(), self.args.as_ptr(), self.env.as_ptr()) };
        Err(at(Stage::Exec)(io::Error::last_os_error()))
    }

    /// 0 from nowhere, 1 and 2 into the pipe, the passed ones from 3 on; all others close on exec.
    fn place_descriptors(&self, output: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: `to` is a number we give away in a process about to exec.
        let place = |from: RawFd, to: RawFd| check(|| unsafe { libc::dup2(from, to) });
        let null = rustix::fs::open(
            c"/dev/null",
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )
        // Its number may be given to another descriptor below, so nothing may close it by dropping.
        .map(IntoRawFd::into_raw_fd);
        // First up and out of the way, so that no target number is also a source.
        let output = duplicate_high(output)?;
        let mut sources = [-1; crate::fdpass::FDS_MAX];
        for (slot, fd) in sources.iter_mut().zip(self.fds.iter()) {
            *slot = duplicate_high(fd)?;
        }
        // Without a /dev/null yet, standard input is an end of a pipe that cannot be read.
        let input = match null {
            // SAFETY: the descriptor was just opened and stays open until exec.
            Ok(fd) => duplicate_high(unsafe { BorrowedFd::borrow_raw(fd) })?,
            Err(_) => output,
        };
        place(input, 0)?;
        if self.flags & flags::INHERIT_OUTPUT == 0 {
            place(output, 1)?;
            place(output, 2)?;
        }
        let mut next = 3;
        for source in sources.into_iter().filter(|fd| *fd >= 0) {
            place(source, next)?;
            next += 1;
        }
        // SAFETY: marks numbers; nothing is closed before exec.
        let marked =
            unsafe { libc::syscall(libc::SYS_close_range, next, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        if marked != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Daemons of ours. They start no processes, so nothing of them can be left outside of their group.
    fn is_daemon(&self) -> bool {
        self.flags & flags::DAEMON != 0
    }

    /// Puts a daemon into its group while it starts: the kernel takes ten milliseconds for that, and a machine that
    /// boots would wait for them.
    fn follow_into_cgroup(&self, pid: i32) -> Result<(), Failure> {
        if !self.is_daemon() {
            return Ok(());
        }
        let joined = write_number(&mut [0; 12], i64::from(pid), |text| self.join_cgroup(text));
        match joined {
            // It has ended already, and is reaped like all others.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            done => done.map_err(|error| Failure::new(Stage::Cgroup, &error)),
        }
    }

    fn join_cgroup(&self, pid: &[u8]) -> io::Result<()> {
        let group = self.cgroup.to_bytes();
        if group.is_empty() {
            return Ok(());
        }
        for root in self.cgroup_roots {
            crate::cgroup::join(root, group, pid)?;
        }
        Ok(())
    }

    fn make_mount_view(&self) -> io::Result<()> {
        use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
        let contained = self.root[0].is_some();
        let any = contained
            || self.masked[0].is_some()
            || self.view[0].is_some()
            || self.flags & flags::PRIVATE_MOUNTS != 0;
        if !any {
            return Ok(());
        }
        // SAFETY: the child has one thread and shares nothing but memory copied by fork.
        check(|| unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
        if contained {
            return root::enter(self.root.iter().map_while(|part| *part));
        }
        mount_change(c"/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        for path in self.masked.iter().map_while(|path| *path) {
            match mount(c"none", path, c"tmpfs", flags, c"size=4k,mode=0755") {
                Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match self.view[0] {
            Some(_) => view::enter(self.path, self.view.iter().map_while(|part| *part)),
            None => Ok(()),
        }
    }
}

enum Never {}

fn duplicate_high(fd: BorrowedFd<'_>) -> io::Result<RawFd> {
    // SAFETY: duplicates a live descriptor.
    check(|| unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, SCRATCH_FD) })
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

fn check(call: impl FnOnce() -> i32) -> io::Result<i32> {
    match call() {
        -1 => Err(io::Error::last_os_error()),
        done => Ok(done),
    }
}
