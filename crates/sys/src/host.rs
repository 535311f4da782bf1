//! Facts about the machine and its kernel.

use std::io;
use std::time::Duration;

/// What `uname` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uname {
    /// `Linux`.
    pub system: String,
    /// Host name.
    pub node: String,
    /// Kernel release.
    pub release: String,
    /// Kernel build.
    pub version: String,
    /// `x86_64`, `aarch64`, …
    pub machine: String,
}

/// Asks the kernel for its names.
pub fn uname() -> Uname {
    let names = rustix::system::uname();
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    Uname {
        system: text(names.sysname()),
        node: text(names.nodename()),
        release: text(names.release()),
        version: text(names.version()),
        machine: text(names.machine()),
    }
}

/// The kernel's random id of this boot.
pub fn boot_id() -> io::Result<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(text.trim().to_owned())
}

/// The kernel command line.
pub fn command_line() -> io::Result<String> {
    let text = std::fs::read_to_string("/proc/cmdline")?;
    Ok(text.trim_end_matches(['\n', '\0']).to_owned())
}

/// Sets the host name.
pub fn set_hostname(name: &str) -> io::Result<()> {
    Ok(rustix::system::sethostname(name.as_bytes())?)
}

/// Sets the NIS domain name, which `uname` shows as the domain.
pub fn set_domainname(name: &str) -> io::Result<()> {
    Ok(rustix::system::setdomainname(name.as_bytes())?)
}

/// Time since boot, suspended time included.
pub fn uptime() -> Duration {
    Duration::from_nanos(crate::supervisor::server::boot_clock_ns())
}

/// Processors this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_who_it_is() {
        assert_eq!(uname().system, "Linux");
        assert_eq!(boot_id().unwrap().len(), 36);
        assert!(uptime() > Duration::ZERO);
    }
}
