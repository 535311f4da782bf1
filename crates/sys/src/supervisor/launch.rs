//! How init starts machined: prepared once, so that a restart needs no memory.

use std::io;
use std::os::fd::OwnedFd;

use super::client::{Seq, SpawnRequest};
use super::exec::{Failure, Plan};
use super::wire::{Frame, flags};
use crate::fdpass::{self, Fds};

/// A prepared start of machined.
#[derive(Debug)]
pub struct Launcher {
    frame: Frame,
    tail: Vec<u8>,
}

impl Launcher {
    /// Prepares the start. The child gets init's own output, not a pipe.
    ///
    /// # Errors
    /// `InvalidInput` when arguments or environment are out of bounds.
    pub fn new(request: &SpawnRequest) -> io::Result<Self> {
        let (mut frame, tail) = request.encode(Seq(0))?;
        frame.flags |= flags::INHERIT_OUTPUT;
        Ok(Self { frame, tail })
    }

    /// Starts machined with a new socket at [`super::SOCKET_FD`]. Returns its pid and init's end.
    pub fn start(&self) -> Result<(i32, OwnedFd), Failure> {
        let failed = |error: io::Error| Failure::new(super::Stage::Fork, &error);
        let (ours, theirs) = fdpass::pair().map_err(failed)?;
        let fds = Fds::one(theirs);
        let plan = Plan::new(&self.frame, &self.tail, &fds, &[])
            .ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        let started = plan.start()?;
        Ok((started.pid, ours))
    }
}
