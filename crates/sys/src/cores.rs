//! The cores that a thread may run on.

use std::io;

use rustix::process::{Pid, getpid};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Some of the machine's cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores(CpuSet);

impl Cores {
    /// Those that the first thread of this process may run on.
    ///
    /// # Errors
    ///
    /// When the machine has more cores than the kernel can tell of here.
    pub fn of_process() -> io::Result<Self> {
        Ok(Self(sched_getaffinity(Some(getpid()))?))
    }

    /// The one that this thread runs on at the moment.
    pub fn current() -> Self {
        let mut one = CpuSet::new();
        let core = sched_getcpu();
        if core < CpuSet::MAX_CPU {
            one.set(core);
        }
        Self(one)
    }

    /// Whether there is a choice.
    pub fn are_many(&self) -> bool {
        self.0.count() > 1
    }

    /// From now on this thread, and those that it starts, run on these.
    ///
    /// # Errors
    ///
    /// When the kernel offers none of them to this process.
    pub fn take(&self) -> io::Result<()> {
        Ok(sched_setaffinity(None, &self.0)?)
    }

    /// The same for the first thread of another process.
    ///
    /// # Errors
    ///
    /// When there is no such process, or it belongs to somebody else.
    pub fn give(&self, pid: i32) -> io::Result<()> {
        let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(sched_setaffinity(Some(pid), &self.0)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_stays_on_one_core_until_it_gets_all_back() {
        let all = Cores::of_process().unwrap();
        std::thread::spawn(move || {
            let here = Cores::current();
            here.take().unwrap();
            assert_eq!(Cores(sched_getaffinity(None).unwrap()), here);
            assert!(!here.are_many());
            assert_eq!(Cores::of_process().unwrap(), all, "the first thread is free");
            all.take().unwrap();
            assert_eq!(Cores(sched_getaffinity(None).unwrap()), all);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn nobody_is_moved_without_a_process() {
        let all = Cores::of_process().unwrap();
        assert!(all.give(0).is_err());
        assert!(all.give(i32::MAX).is_err());
        all.give(getpid().as_raw_nonzero().get()).unwrap();
    }
}
