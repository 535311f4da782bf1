//! The kernel's idea of this machine's name.

use std::io;

/// Longest name the kernel keeps, of either kind.
const KERNEL_MAX: usize = 64;

/// Host and domain name of the calling thread's UTS namespace.
pub fn get() -> (String, String) {
    let name = rustix::system::uname();
    let domain = name.domainname().to_string_lossy().into_owned();
    let domain = if domain == "(none)" { String::new() } else { domain };
    (name.nodename().to_string_lossy().into_owned(), domain)
}

/// Sets host and domain name. Writes only what differs. A domain that is longer than the kernel keeps is legal,
/// and just not told to it.
pub fn set(hostname: &str, domain: &str) -> io::Result<()> {
    let (old_hostname, old_domain) = get();
    if hostname != old_hostname {
        rustix::system::sethostname(hostname.as_bytes())?;
    }
    if domain != old_domain && domain.len() <= KERNEL_MAX {
        rustix::system::setdomainname(domain.as_bytes())?;
    }
    Ok(())
}
