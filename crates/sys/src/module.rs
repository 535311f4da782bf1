//! Kernel modules: which are loaded, and loading one with all it needs.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::path::Path;

/// Modules one module may pull in; the deepest chains of real kernels have about twenty.
const CHAIN_MAX: usize = 256;

/// A module of the running kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Its name.
    pub name: String,
    /// Bytes of memory.
    pub size: i64,
    /// Who holds it, -1 when it cannot be unloaded.
    pub references: i64,
    /// The modules that use it.
    pub users: Vec<String>,
    /// `Live`, `Loading` or `Unloading`.
    pub state: String,
    /// Where it is, or zeroes for who may not know.
    pub address: String,
}

/// Loads the module in `file`. One that is loaded already is no error.
pub fn load(file: &Path) -> io::Result<()> {
    load_with(file, "")
}

/// Loads the module in `file` with parameters, as in `a=1 b=2`. One that is loaded already is no error and keeps
/// the parameters it has.
pub fn load_with(file: &Path, parameters: &str) -> io::Result<()> {
    /// The kernel unpacks the file itself.
    const COMPRESSED: i32 = 4;
    let module = File::open(file)?;
    let parameters = CString::new(parameters).map_err(io::Error::other)?;
    let packed = file.extension().is_some_and(|ending| ending != "ko");
    match rustix::system::finit_module(&module, &parameters, if packed { COMPRESSED } else { 0 }) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Loads a module by name, everything it needs first. `folder` is the kernel's folder of modules.
pub fn load_by_name(folder: &Path, name: &str, parameters: &str) -> io::Result<()> {
    let list = |file: &str| match std::fs::read_to_string(folder.join(file)) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    };
    match chain(&list("modules.dep")?, name) {
        Some((module, needed)) => {
            for file in needed {
                load(&folder.join(file))?;
            }
            load_with(&folder.join(module), parameters)
        }
        None if list("modules.builtin")?.lines().any(|path| same(file_name(path), name)) => Ok(()),
        None => Err(io::Error::new(io::ErrorKind::NotFound, format!("this kernel has no module {name}"))),
    }
}

/// The file of a module and the files to load before it, in order, from the text of `modules.dep`.
pub fn chain<'a>(dependencies: &'a str, name: &str) -> Option<(&'a str, Vec<&'a str>)> {
    dependencies.lines().find_map(|line| {
        let (module, needed) = line.split_once(':')?;
        if !same(file_name(module), name) {
            return None;
        }
        // The list is in the order of unloading.
        let mut needed: Vec<&str> = needed.split_ascii_whitespace().take(CHAIN_MAX).collect();
        needed.reverse();
        Some((module, needed))
    })
}

/// The module's name in `kernel/fs/fat/vfat.ko.xz`.
fn file_name(path: &str) -> &str {
    let base = path.rsplit('/').next().unwrap_or(path);
    base.split('.').next().unwrap_or(base)
}

/// Dashes and underscores are the same in names of modules.
fn same(a: &str, b: &str) -> bool {
    let plain = |c: u8| if c == b'-' { b'_' } else { c };
    a.len() == b.len() && a.bytes().map(plain).eq(b.bytes().map(plain))
}

/// Parses the text of `/proc/modules`; lines that make no sense are left out.
pub fn parse(text: &str) -> Vec<Loaded> {
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        Some(Loaded {
            name: words.next()?.to_owned(),
            size: words.next()?.parse().ok()?,
            references: words.next()?.parse().unwrap_or(-1),
            users: {
                let users = words.next()?.split(',').filter(|user| !user.is_empty() && *user != "-");
                users.map(str::to_owned).collect()
            },
            state: words.next()?.to_owned(),
            address: words.next()?.to_owned(),
        })
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPENDENCIES: &str = "kernel/lib/crc.ko.xz:\n\
        kernel/fs/nls/nls_cp437.ko: kernel/lib/crc.ko.xz\n\
        kernel/fs/fat/vfat.ko: kernel/fs/fat/fat.ko kernel/lib/crc.ko.xz\n\
        kernel/net/br-netfilter.ko: kernel/net/bridge.ko\n";

    #[test]
    fn what_a_module_needs_comes_first_and_deepest_first() {
        let (module, needed) = chain(DEPENDENCIES, "vfat").unwrap();
        assert_eq!(module, "kernel/fs/fat/vfat.ko");
        assert_eq!(needed, ["kernel/lib/crc.ko.xz", "kernel/fs/fat/fat.ko"]);
        assert_eq!(chain(DEPENDENCIES, "br_netfilter").unwrap().1, ["kernel/net/bridge.ko"]);
        assert_eq!(chain(DEPENDENCIES, "crc").unwrap(), ("kernel/lib/crc.ko.xz", vec![]));
        assert_eq!(chain(DEPENDENCIES, "fat"), None);
    }

    #[test]
    fn a_built_in_module_is_loaded_and_an_unknown_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("modules.builtin"), "kernel/drivers/net/loop-back.ko\n").unwrap();
        load_by_name(folder.path(), "loop_back", "").unwrap();
        let error = load_by_name(folder.path(), "nothing", "").unwrap_err();
        assert_eq!(error.to_string(), "this kernel has no module nothing");
    }

    #[test]
    fn the_table_of_modules_is_read() {
        let text = "vfat 24576 1 - Live 0x0000000000000000\n\
                    fat 94208 1 vfat,msdos, Live 0xffffffffc0a0b000 (E)\n\
                    pinned 1 - - Loading 0x0\nodd line\n";
        let modules = parse(text);
        assert_eq!(modules.len(), 3);
        assert_eq!(modules[1].users, ["vfat", "msdos"]);
        assert_eq!((modules[1].size, modules[1].references), (94208, 1));
        assert_eq!((modules[2].references, modules[2].state.as_str()), (-1, "Loading"));
        assert!(modules[0].users.is_empty());
    }
}
