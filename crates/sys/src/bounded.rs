//! Work that may never return, such as a call about a disk that hangs, with a deadline: it runs in a child.
//!
//! A thread in such a call cannot be stopped, not even by SIGKILL. The child stays behind; the caller goes on.

use std::io;
use std::time::Duration;

use crate::{host, namespace, signal};

/// How often the child is looked after.
const STEP: Duration = Duration::from_millis(10);

/// What became of the work.
#[derive(Debug)]
pub enum Ended {
    /// It is done.
    Done,
    /// It was not done within its time, and is left behind.
    Late,
    /// There is no child to do it in.
    NotStarted(io::Error),
}

/// Runs `work` in a child of this process, for at most `limit`. Only for a program with one thread.
pub fn run(limit: Duration, work: impl FnOnce()) -> Ended {
    let started = namespace::fork(|| {
        work();
        0
    });
    let pid = match started {
        Ok(pid) => pid,
        Err(error) => return Ended::NotStarted(error),
    };
    let deadline = host::uptime() + limit;
    loop {
        match signal::has_ended(pid) {
            Ok(false) => {}
            // Somebody else waited for it.
            Ok(true) | Err(_) => return Ended::Done,
        }
        if host::uptime() >= deadline {
            let _ = signal::send(pid, libc::SIGKILL);
            return Ended::Late;
        }
        std::thread::sleep(STEP);
    }
}
