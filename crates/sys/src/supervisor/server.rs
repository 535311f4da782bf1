//! init's end of the socket: the table of children and what machined may ask about it.
//!
//! The table has a fixed size and nothing here allocates after [`Server::new`]. The caller owns the loop: it polls
//! [`Server::socket`] for [`Server::interest`], calls [`Server::ready`], and hands over every reaped child.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;

use super::exec::{Failure, Plan};
use super::wire::{ChildId, Frame, GuardNotice, Kind, MESSAGE_MAX, Name, PowerRequest, RebootCommand, Stage};
use super::{CHILDREN_MAX, KEPT_MAX};
use crate::fdpass::{self, Fds};

/// What the loop has to do after [`Server::ready`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing.
    Continue,
    /// machined has closed its end or spoke nonsense; the connection is gone.
    Disconnected,
    /// End the machine.
    Reboot(RebootCommand),
    /// Heed a notice to the guard, then [`Server::confirm`] it.
    Guard {
        /// What machined says.
        notice: GuardNotice,
        /// The request.
        seq: u32,
    },
}

#[derive(Debug)]
struct Slot {
    id: ChildId,
    name: Name,
    pid: i32,
    started: u64,
    status: Option<i32>,
    /// Whether this connection has been told of the exit.
    reported: bool,
    output: OwnedFd,
    pidfd: OwnedFd,
}

#[derive(Debug)]
struct Kept {
    name: Name,
    fd: OwnedFd,
}

/// Children, kept descriptors, and the connection to machined.
#[derive(Debug)]
pub struct Server {
    slots: [Option<Slot>; CHILDREN_MAX],
    kept: [Option<Kept>; KEPT_MAX],
    socket: Option<OwnedFd>,
    buffer: [u8; MESSAGE_MAX],
    cgroup_roots: Vec<CString>,
    generation: u32,
    booted: u64,
    last_id: u64,
    /// The answer that did not fit into the socket yet, with the child whose descriptors go along; no request
    /// is read before it is out.
    pending: Option<(Frame, Option<usize>)>,
    /// How far the list in progress has come, and for which request.
    listing: Option<(usize, u32)>,
    power: Option<PowerRequest>,
}

impl Server {
    /// An empty table. `cgroup_roots` are the mounted hierarchies a child joins, one for v2, several for v1.
    pub fn new(cgroup_roots: Vec<CString>) -> Box<Self> {
        Box::new(Self {
            slots: [const { None }; CHILDREN_MAX],
            kept: [const { None }; KEPT_MAX],
            socket: None,
            buffer: [0; MESSAGE_MAX],
            cgroup_roots,
            generation: 0,
            booted: boot_clock_ns(),
            last_id: 0,
            pending: None,
            listing: None,
            power: None,
        })
    }

    /// Replaces the hierarchies that children join, once they are mounted.
    pub fn set_cgroup_roots(&mut self, roots: Vec<CString>) {
        self.cgroup_roots = roots;
    }

    /// Takes the connection to a newly started machined.
    pub fn connect(&mut self, socket: OwnedFd) {
        self.disconnect();
        self.generation = self.generation.saturating_add(1);
        self.socket = Some(socket);
    }

    /// Forgets the connection; children and kept descriptors stay, exits will be told again.
    pub fn disconnect(&mut self) {
        self.socket = None;
        self.pending = None;
        self.listing = None;
        for slot in self.slots.iter_mut().flatten() {
            slot.reported = false;
        }
    }

    /// The connection, while there is one.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// How many times machined was connected.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// What to poll the connection for.
    pub fn interest(&self) -> PollFlags {
        let speaks = self.pending.is_some() || self.listing.is_some() || self.has_news();
        match (self.pending.is_some() || self.listing.is_some(), speaks) {
            // A peer that does not read gets no further request served.
            (true, _) => PollFlags::OUT,
            (false, true) => PollFlags::IN | PollFlags::OUT,
            (false, false) => PollFlags::IN,
        }
    }

    /// Does what the connection is ready for; at most one request each time.
    pub fn ready(&mut self) -> Outcome {
        match self.step() {
            Ok(outcome) => outcome,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Outcome::Continue,
            Err(_) => {
                self.disconnect();
                Outcome::Disconnected
            }
        }
    }

    /// Records the exit of a reaped process; `false` when it is none of the services.
    pub fn child_exited(&mut self, pid: i32, status: i32) -> bool {
        let known = self.slots.iter_mut().flatten().find(|slot| slot.pid == pid && slot.status.is_none());
        match known {
            Some(slot) => {
                slot.status = Some(status);
                true
            }
            None => false,
        }
    }

    /// Records that every running child was killed and reaped elsewhere.
    pub fn all_killed(&mut self) {
        for slot in self.slots.iter_mut().flatten() {
            // The raw wait status of a process ended by SIGKILL is the signal's number.
            slot.status.get_or_insert(libc::SIGKILL);
        }
    }

    /// Tells machined of a wish from outside; kept until there is one to tell.
    pub fn power_requested(&mut self, request: PowerRequest) {
        self.power = Some(request);
    }

    /// Answers a request that the loop has carried out.
    pub fn confirm(&mut self, seq: u32) {
        // What does not fit into the socket now is kept and sent later.
        let _ = self.answer(Frame::new(Kind::Done, seq));
    }

    /// Process ids of the services that run.
    pub fn running(&self) -> impl Iterator<Item = i32> {
        self.slots.iter().flatten().filter(|slot| slot.status.is_none()).map(|slot| slot.pid)
    }

    fn has_news(&self) -> bool {
        let untold = |slot: &Slot| slot.status.is_some() && !slot.reported;
        self.power.is_some() || self.slots.iter().flatten().any(untold)
    }

    fn step(&mut self) -> io::Result<Outcome> {
        if let Some((frame, child)) = self.pending {
            match child {
                Some(at) => self.send_slot(frame.kind, frame.seq, at)?,
                None => self.send(&frame, &[])?,
            }
            self.pending = None;
        }
        while self.listing.is_some() {
            self.list_step()?;
        }
        self.tell_news()?;
        let Some(socket) = &self.socket else {
            return Ok(Outcome::Disconnected);
        };
        let Some((len, fds)) = fdpass::receive(socket, &mut self.buffer)? else {
            return Ok(Outcome::Continue);
        };
        // The buffer is lent out while the request is served, and nothing else uses it meanwhile.
        let Some((frame, tail)) = Frame::decode(&self.buffer[..len]) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        if frame.kind == Kind::Spawn {
            let frame = Frame { flags: frame.flags & !super::wire::flags::INHERIT_OUTPUT, ..frame };
            let started = Plan::new(&frame, tail, &fds, &self.cgroup_roots)
                .ok_or(libc::EINVAL)
                .and_then(|plan| self.free_slot(&frame.name).map(|at| (plan, at)))
                .map_err(|errno| Failure { stage: Stage::Request, errno })
                .and_then(|(plan, at)| plan.start().map(|started| (started, at)));
            return self.spawned(&frame, started).map(|()| Outcome::Continue);
        }
        self.serve(&frame, fds)
    }

    fn serve(&mut self, frame: &Frame, mut fds: Fds) -> io::Result<Outcome> {
        let result = match frame.kind {
            Kind::Hello => {
                let mut answer = Frame::new(Kind::Welcome, frame.seq);
                answer.words[0] = u64::from(self.generation);
                answer.words[1] = self.booted;
                self.answer(answer)?;
                return Ok(Outcome::Continue);
            }
            Kind::List => {
                self.listing = Some((0, frame.seq));
                while self.listing.is_some() {
                    self.list_step()?;
                }
                return Ok(Outcome::Continue);
            }
            Kind::Signal => self.signal(ChildId(frame.words[0]), frame.words[1]),
            Kind::Release => self.release(ChildId(frame.words[0])),
            Kind::Keep => self.keep(frame.name, fds.take(0)),
            Kind::Drop => {
                let named = |kept: &Kept| kept.name == frame.name;
                let place = |kept: &&mut Option<Kept>| kept.as_ref().is_some_and(named);
                match self.kept.iter_mut().find(place) {
                    Some(kept) => {
                        *kept = None;
                        Ok(())
                    }
                    None => Err(libc::ENOENT),
                }
            }
            Kind::Reboot => {
                return match RebootCommand::parse(frame.words[0]) {
                    Some(command) => {
                        self.answer(Frame::new(Kind::Done, frame.seq))?;
                        Ok(Outcome::Reboot(command))
                    }
                    None => self.fail(frame.seq, Stage::Request, libc::EINVAL).map(|()| Outcome::Continue),
                };
            }
            Kind::Guard => match GuardNotice::parse(frame.words[0]) {
                Some(notice) => return Ok(Outcome::Guard { notice, seq: frame.seq }),
                None => Err(libc::EINVAL),
            },
            Kind::Spawn
            | Kind::Welcome
            | Kind::Spawned
            | Kind::Child
            | Kind::Kept
            | Kind::Done
            | Kind::Failed
            | Kind::Exited
            | Kind::Power => return Err(io::ErrorKind::InvalidData.into()),
        };
        match result {
            Ok(()) => self.answer(Frame::new(Kind::Done, frame.seq))?,
            Err(errno) => self.fail(frame.seq, Stage::Request, errno)?,
        }
        Ok(Outcome::Continue)
    }

    fn free_slot(&self, name: &Name) -> Result<usize, i32> {
        if name.is_empty() {
            return Err(libc::EINVAL);
        }
        if self.slots.iter().flatten().any(|slot| slot.name == *name) {
            return Err(libc::EEXIST);
        }
        let free = self.slots.iter().position(Option::is_none);
        free.ok_or(libc::EAGAIN)
    }

    fn spawned(
        &mut self,
        request: &Frame,
        started: Result<(super::exec::Started, usize), Failure>,
    ) -> io::Result<()> {
        let (started, at) = match started {
            Ok(started) => started,
            Err(failure) => return self.fail(request.seq, failure.stage, failure.errno),
        };
        self.last_id += 1;
        self.slots[at] = Some(Slot {
            id: ChildId(self.last_id),
            name: request.name,
            pid: started.pid,
            started: boot_clock_ns(),
            status: None,
            reported: false,
            output: started.output,
            pidfd: started.pidfd,
        });
        let sent = self.send_slot(Kind::Spawned, request.seq, at);
        if sent.is_err() {
            self.pending = Some((Frame::new(Kind::Spawned, request.seq), Some(at)));
        }
        sent
    }

    fn signal(&self, id: ChildId, signal: u64) -> Result<(), i32> {
        let found = self.slots.iter().flatten().find(|slot| slot.id == id);
        let slot = found.ok_or(libc::ESRCH)?;
        let signal = i32::try_from(signal)
            .ok()
            .and_then(rustix::process::Signal::from_named_raw)
            .ok_or(libc::EINVAL)?;
        rustix::process::pidfd_send_signal(&slot.pidfd, signal).map_err(|error| error.raw_os_error())
    }

    fn release(&mut self, id: ChildId) -> Result<(), i32> {
        let place = self
            .slots
            .iter_mut()
            .find(|slot| slot.as_ref().is_some_and(|slot| slot.id == id))
            .ok_or(libc::ESRCH)?;
        if place.as_ref().is_some_and(|slot| slot.status.is_none()) {
            return Err(libc::EBUSY);
        }
        *place = None;
        Ok(())
    }

    fn keep(&mut self, name: Name, fd: Option<OwnedFd>) -> Result<(), i32> {
        let fd = fd.ok_or(libc::EBADF)?;
        let same = |kept: &Option<Kept>| kept.as_ref().is_some_and(|kept| kept.name == name);
        let place = self.kept.iter().position(same);
        let free = || self.kept.iter().position(Option::is_none);
        let at = place.or_else(free).ok_or(libc::ENOSPC)?;
        self.kept[at] = Some(Kept { name, fd });
        Ok(())
    }

    fn list_step(&mut self) -> io::Result<()> {
        let Some((at, seq)) = self.listing else {
            return Ok(());
        };
        if at < CHILDREN_MAX {
            if self.slots[at].is_some() {
                self.send_slot(Kind::Child, seq, at)?;
            }
        } else if at < CHILDREN_MAX + KEPT_MAX {
            if let Some(kept) = &self.kept[at - CHILDREN_MAX] {
                let mut frame = Frame::new(Kind::Kept, seq);
                frame.name = kept.name;
                self.send(&frame, &[kept.fd.as_fd()])?;
            }
        } else {
            self.send(&Frame::new(Kind::Done, seq), &[])?;
            self.listing = None;
            return Ok(());
        }
        self.listing = Some((at + 1, seq));
        Ok(())
    }

    fn tell_news(&mut self) -> io::Result<()> {
        for at in 0..CHILDREN_MAX {
            let Some(slot) = &self.slots[at] else { continue };
            if slot.status.is_none() || slot.reported {
                continue;
            }
            self.send(&slot_frame(Kind::Exited, 0, slot), &[])?;
            if let Some(slot) = &mut self.slots[at] {
                slot.reported = true;
            }
        }
        if let Some(request) = self.power {
            let mut frame = Frame::new(Kind::Power, 0);
            frame.words[0] = request as u64;
            self.send(&frame, &[])?;
            self.power = None;
        }
        Ok(())
    }

    fn send_slot(&self, kind: Kind, seq: u32, at: usize) -> io::Result<()> {
        let Some(slot) = &self.slots[at] else {
            return Ok(());
        };
        let fds = [slot.output.as_fd(), slot.pidfd.as_fd()];
        self.send(&slot_frame(kind, seq, slot), &fds)
    }

    fn fail(&mut self, seq: u32, stage: Stage, errno: i32) -> io::Result<()> {
        let mut frame = Frame::new(Kind::Failed, seq);
        frame.words[0] = stage as u64;
        frame.words[1] = u64::from(errno.cast_unsigned());
        self.answer(frame)
    }

    fn answer(&mut self, frame: Frame) -> io::Result<()> {
        let sent = self.send(&frame, &[]);
        if sent.is_err() {
            self.pending = Some((frame, None));
        }
        sent
    }

    fn send(&self, frame: &Frame, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        fdpass::send(socket, &[&frame.encode()], fds)
    }
}

fn slot_frame(kind: Kind, seq: u32, slot: &Slot) -> Frame {
    let mut frame = Frame::new(kind, seq);
    frame.name = slot.name;
    frame.words[0] = slot.id.0;
    frame.words[1] = u64::from(slot.pid.cast_unsigned());
    frame.words[2] = u64::from(slot.status.is_some());
    frame.words[3] = u64::from(slot.status.unwrap_or(0).cast_unsigned());
    frame.words[4] = slot.started;
    frame
}

/// Nanoseconds since boot, suspended time included.
pub(crate) fn boot_clock_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec)
        .unwrap_or(0)
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}
