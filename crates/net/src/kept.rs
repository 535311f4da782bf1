//! What a DHCP client knows, kept in a file so that a restart of this program does not lose the lease.
//!
//! A file holds the time of the grant, by a clock that counts from boot and sleeps for nobody, and the server's
//! answer as it came. It belongs on a file system that does not outlive a boot.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Answers are datagrams; a longer file is not ours.
const LENGTH_MAX: usize = 8 + 65_536;

fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, nanos) = (u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0));
    Duration::new(seconds, nanos)
}

/// Keeps an answer that came just now.
pub(crate) fn save(path: &Path, answer: &[u8]) {
    let millis = u64::try_from(since_boot().as_millis()).unwrap_or(0);
    let bytes = [&millis.to_be_bytes()[..], answer].concat();
    let written = path
        .parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| ichor_sys::file::replace(path, &bytes, 0o600));
    if let Err(error) = written {
        tracing::debug!(path = %path.display(), %error, "lease not kept");
    }
}

/// The answer that was kept and its age.
pub(crate) fn load(path: &Path) -> Option<(Duration, Vec<u8>)> {
    let bytes = fs::read(path).ok().filter(|bytes| bytes.len() <= LENGTH_MAX)?;
    let (head, answer) = bytes.split_first_chunk::<8>()?;
    let age = since_boot().checked_sub(Duration::from_millis(u64::from_be_bytes(*head)))?;
    Some((age, answer.to_vec()))
}

/// Forgets.
pub(crate) fn forget(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::debug!(path = %path.display(), %error, "lease not forgotten");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_comes_back_with_its_age() {
        let path = std::env::temp_dir().join(format!("ichor-kept-{}/eth0", std::process::id()));
        assert_eq!(load(&path), None);
        save(&path, b"answer");
        let (age, answer) = load(&path).unwrap();
        assert_eq!(answer, b"answer");
        assert!(age < Duration::from_secs(60), "{age:?}");
        fs::write(&path, b"short").unwrap();
        assert_eq!(load(&path), None);
        // A file of an earlier boot is from the future.
        fs::write(&path, [&u64::MAX.to_be_bytes()[..], b"x"].concat()).unwrap();
        assert_eq!(load(&path), None);
        forget(&path);
        forget(&path);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
