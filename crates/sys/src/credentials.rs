//! What a process may do: capabilities, privileges, user, limits.

use std::ffi::CStr;
use std::io;

/// A set of capabilities as a bit mask, bit n for capability number n.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Capabilities(u64);

impl Capabilities {
    /// None at all.
    pub const NONE: Self = Self(0);
    /// Whatever the kernel has.
    pub const ALL: Self = Self(u64::MAX);
    /// `CAP_NET_BIND_SERVICE`.
    pub const NET_BIND_SERVICE: Self = Self(1 << 10);
    /// `CAP_NET_ADMIN`.
    pub const NET_ADMIN: Self = Self(1 << 12);
    /// `CAP_NET_RAW`.
    pub const NET_RAW: Self = Self(1 << 13);
    /// `CAP_SYS_MODULE`.
    pub const SYS_MODULE: Self = Self(1 << 16);
    /// `CAP_SYS_ADMIN`.
    pub const SYS_ADMIN: Self = Self(1 << 21);
    /// `CAP_SYS_BOOT`.
    pub const SYS_BOOT: Self = Self(1 << 22);
    /// `CAP_SYS_RESOURCE`.
    pub const SYS_RESOURCE: Self = Self(1 << 24);
    /// `CAP_SYS_TIME`.
    pub const SYS_TIME: Self = Self(1 << 25);

    /// From a mask as in `/proc/<pid>/status`.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The mask.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Both sets together.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This set without the other.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether all of `other` is in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Takes every capability outside `keep` from the bounding set of this thread, for good.
pub fn limit_bounding_set(keep: Capabilities) -> io::Result<()> {
    for number in 0..64_u64 {
        if keep.0 & (1 << number) != 0 {
            continue;
        }
        // SAFETY: PR_CAPBSET_DROP takes a number and touches no memory.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, number, 0, 0, 0) } != 0 {
            let error = io::Error::last_os_error();
            // The first number the kernel does not know ends the list.
            return match error.raw_os_error() {
                Some(libc::EINVAL) => Ok(()),
                _ => Err(error),
            };
        }
    }
    Ok(())
}

/// Sets permitted and effective capabilities of this thread to `keep` (as far as it has them), inheritable to none.
pub fn limit_effective(keep: Capabilities) -> io::Result<()> {
    let have = permitted()?;
    let (low, high) = ((have & keep.0) as u32, ((have & keep.0) >> 32) as u32);
    let header = CapHeader { version: CAP_VERSION_3, pid: 0 };
    let data = [
        CapData { effective: low, permitted: low, inheritable: 0 },
        CapData { effective: high, permitted: high, inheritable: 0 },
    ];
    // SAFETY: both pointers are to live values of the layout that version 3 has.
    match unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The permitted capabilities of this thread.
pub fn permitted() -> io::Result<u64> {
    let mut header = CapHeader { version: CAP_VERSION_3, pid: 0 };
    let mut data = [CapData::default(); 2];
    // SAFETY: both pointers are to live, writable values of the layout that version 3 has.
    let done = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) };
    match done {
        0 => Ok(u64::from(data[0].permitted) | u64::from(data[1].permitted) << 32),
        _ => Err(io::Error::last_os_error()),
    }
}

const CAP_VERSION_3: u32 = 0x2008_0522;

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Never gain privileges by exec again; inherited by children.
pub fn set_no_new_privs() -> io::Result<()> {
    Ok(rustix::thread::set_no_new_privs(true)?)
}

/// Changes group, then user, of this thread and drops all supplementary groups.
///
/// Of this thread alone: meant for a child between fork and exec, or a program with one thread.
pub fn set_user(uid: u32, gid: u32) -> io::Result<()> {
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}

/// Raises the limit of open files as far as allowed: both to `wanted`, else soft to hard.
pub fn raise_nofile(wanted: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let both = Rlimit { current: Some(wanted), maximum: Some(wanted) };
    if setrlimit(Resource::Nofile, both).is_ok() {
        return;
    }
    let have = getrlimit(Resource::Nofile);
    let soft = have.maximum.map_or(wanted, |hard| hard.min(wanted));
    // Best effort by contract: without CAP_SYS_RESOURCE the hard limit stays.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(soft), maximum: have.maximum });
}

/// Sets the `oom_score_adj` of this process; where a lower value is forbidden, it stays.
pub fn set_oom_score_adj(value: i32) -> io::Result<()> {
    let mut text = [0_u8; 12];
    crate::text::write_number(&mut text, i64::from(value), |digits| {
        write_file(c"/proc/self/oom_score_adj", digits)
    })
}

/// Writes a short value to an existing file, without allocating.
pub(crate) fn write_file(path: &CStr, value: &[u8]) -> io::Result<()> {
    use rustix::fs::{Mode, OFlags};
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, value)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_capabilities_are_plain_masks() {
        let both = Capabilities::NET_ADMIN.union(Capabilities::SYS_BOOT);
        assert!(both.contains(Capabilities::SYS_BOOT));
        assert_eq!(both.without(Capabilities::SYS_BOOT), Capabilities::NET_ADMIN);
        assert_eq!(both.bits(), (1 << 12) | (1 << 22));
    }

    #[test]
    fn own_capabilities_can_be_read() {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("CapPrm:\t")).unwrap();
        assert_eq!(permitted().unwrap(), u64::from_str_radix(line, 16).unwrap());
    }
}
