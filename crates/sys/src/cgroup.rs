//! Control groups, on both kinds of hierarchy: one unified tree (v2) or a tree per controller (v1).

use std::ffi::CStr;
use std::io;

use crate::text::PathBuffer;

/// Puts the calling process into `group` below `root`, making the directories; does not allocate.
pub(crate) fn join(root: &CStr, group: &[u8]) -> io::Result<()> {
    let (root, mode) = (root.to_bytes(), rustix::fs::Mode::from_raw_mode(0o755));
    let ends = group.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    for end in ends.map(|(at, _)| at).chain([group.len()]) {
        let path = PathBuffer::new(&[root, b"/", &group[..end]])?;
        match rustix::fs::mkdir(path.as_c_str(), mode) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let procs = PathBuffer::new(&[root, b"/", group, b"/cgroup.procs"])?;
    crate::credentials::write_file(procs.as_c_str(), b"0")
}
