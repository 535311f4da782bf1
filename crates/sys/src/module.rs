//! Kernel modules.

use std::fs::File;
use std::io;
use std::path::Path;

/// Loads the module in `file`. One that is loaded already is no error.
pub fn load(file: &Path) -> io::Result<()> {
    let module = File::open(file)?;
    match rustix::system::finit_module(&module, c"", 0) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
