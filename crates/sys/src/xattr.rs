//! Extended attributes of files.

use std::io;
use std::path::Path;

/// The kernel's limit for the list of names, and for one value.
const LEN_MAX: usize = 64 * 1024;

/// Names and values of a file's extended attributes, links not followed.
pub fn list(path: &Path) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut names = vec![0; LEN_MAX];
    let len = rustix::fs::llistxattr(path, &mut names[..])?;
    names.truncate(len);
    let mut found = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; LEN_MAX];
        // One that vanished or may not be read is left out.
        if let Ok(len) = rustix::fs::lgetxattr(path, name, &mut value[..]) {
            value.truncate(len);
            value.shrink_to_fit();
            found.push((String::from_utf8_lossy(name).into_owned(), value));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_an_error() {
        assert_eq!(list(Path::new("/no/such/file")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_plain_file_has_a_list() {
        assert!(list(Path::new("/proc")).is_ok_and(|found| found.len() < 64));
    }
}
