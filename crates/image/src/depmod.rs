//! The tables by which a kernel's modules are found: what needs what, which device wants which.
//!
//! `modules.dep`, `modules.alias`, `modules.softdep`, `modules.devname` and `modules.builtin` as text, and the same as tries
//! (`.bin`), which is what libkmod, and through it the device manager and `modprobe`, looks names up in.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Error, elf};

/// What a module says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// Its name, with underscores.
    pub name: String,
    /// Its file below the folder of the release.
    pub path: String,
    pub(crate) depends: Vec<String>,
    aliases: Vec<String>,
    soft: Vec<String>,
}

impl Module {
    /// Reads a module; `path` is below the folder of the release, as in `kernel/fs/fat/vfat.ko`.
    pub fn read(path: &str, bytes: &[u8]) -> Result<Self, Error> {
        let name = name_of(path);
        let mut module = Self { name, path: path.to_owned(), ..Self::default() };
        for (key, value) in elf::modinfo(bytes)
            .map_err(|error| Error::bad(format!("kernel module {path}"), error.to_string()))?
        {
            match key.as_str() {
                "depends" => {
                    let names = value.split(',').filter(|name| !name.is_empty());
                    module.depends.extend(names.map(|name| name.replace('-', "_")));
                }
                "alias" => module.aliases.push(value),
                "softdep" => module.soft.push(value),
                _ => {}
            }
        }
        Ok(module)
    }
}

/// The name of the module in this file.
fn name_of(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split('.').next().unwrap_or(file).replace('-', "_")
}

/// Dashes are underscores in names, but not inside of brackets.
fn normalized(alias: &str) -> String {
    let mut inside = false;
    let plain = |c: char| {
        match c {
            '[' => inside = true,
            ']' => inside = false,
            _ => {}
        }
        if c == '-' && !inside { '_' } else { c }
    };
    alias.chars().map(plain).collect()
}

/// The tables of these modules, by file name. `order` is the text of `modules.order`, which decides between modules that
/// want the same device; `builtin` that of `modules.builtin`.
pub fn tables(modules: &[Module], order: &str, builtin: &str) -> Result<BTreeMap<String, Vec<u8>>, Error> {
    let by_name: BTreeMap<&str, &Module> =
        modules.iter().map(|module| (module.name.as_str(), module)).collect();
    let places: BTreeMap<String, u32> = order.lines().map(name_of).zip(0..).collect();
    let place = |module: &Module| places.get(&module.name).copied().unwrap_or(u32::MAX);
    let mut sorted: Vec<&Module> = by_name.values().copied().collect();
    sorted.sort_by_key(|module| (place(module), module.name.clone()));

    let mut texts: BTreeMap<&str, String> = BTreeMap::new();
    let (mut dep, mut alias, mut built) = (Trie::default(), Trie::default(), Trie::default());
    for (number, module) in (0..).zip(&sorted) {
        let mut needed = Vec::new();
        visit(&module.name, &by_name, &mut BTreeSet::new(), &mut needed)?;
        // In the order of unloading, without the module itself.
        needed.pop();
        let needed: Vec<&str> =
            needed.iter().rev().map(|name| by_name[name.as_str()].path.as_str()).collect();
        let line = [&[&*format!("{}:", module.path)], needed.as_slice()].concat().join(" ");
        *texts.entry("modules.dep").or_default() += &format!("{line}\n");
        dep.insert(&module.name, line, number);
        for name in &module.aliases {
            *texts.entry("modules.alias").or_default() += &format!("alias {name} {}\n", module.name);
            alias.insert(&normalized(name), module.name.clone(), number);
        }
        if let Some(line) = device_node(module) {
            *texts.entry("modules.devname").or_default() += &format!("{line}\n");
        }
        for soft in &module.soft {
            *texts.entry("modules.softdep").or_default() += &format!("softdep {} {soft}\n", module.name);
        }
    }
    for path in builtin.lines() {
        built.insert(&name_of(path), String::new(), 0);
    }
    let mut files: BTreeMap<String, Vec<u8>> =
        texts.into_iter().map(|(name, text)| (name.to_owned(), text.into_bytes())).collect();
    files.insert("modules.order".to_owned(), order.as_bytes().to_vec());
    files.insert("modules.builtin".to_owned(), builtin.as_bytes().to_vec());
    // libkmod loads all of its tables or none; nothing here is looked up by symbol.
    let empty = Trie::default();
    for (name, trie) in [
        ("modules.dep.bin", &dep),
        ("modules.alias.bin", &alias),
        ("modules.builtin.bin", &built),
        ("modules.builtin.alias.bin", &empty),
        ("modules.symbols.bin", &empty),
    ] {
        files.insert(name.to_owned(), trie.write());
    }
    Ok(files)
}

/// The device node by which a module is loaded when it is first used, as in `tun net/tun c10:200`.
fn device_node(module: &Module) -> Option<String> {
    let with = |prefix: &str| module.aliases.iter().find_map(|alias| alias.strip_prefix(prefix));
    let name = with("devname:")?;
    let (kind, number) = match with("char-major-") {
        Some(number) => ('c', number),
        None => ('b', with("block-major-")?),
    };
    let (major, minor) = number.split_once('-')?;
    Some(format!(
        "{} {name} {kind}{}:{}",
        module.name,
        major.parse::<u32>().ok()?,
        minor.parse::<u32>().ok()?
    ))
}

/// `name` and all it needs, each after what it needs.
fn visit(
    name: &str,
    modules: &BTreeMap<&str, &Module>,
    seen: &mut BTreeSet<String>,
    order: &mut Vec<String>,
) -> Result<(), Error> {
    if !seen.insert(name.to_owned()) {
        return Ok(());
    }
    let missing =
        || Error::bad(format!("kernel module {name}"), "another module needs it, and it is not there");
    let module = modules.get(name).ok_or_else(missing)?;
    for need in &module.depends {
        visit(need, modules, seen, order)?;
    }
    order.push(name.to_owned());
    Ok(())
}

/// Keys with values, to be looked up by libkmod.
#[derive(Default)]
struct Trie {
    keys: BTreeMap<Vec<u8>, Vec<(u32, String)>>,
}

impl Trie {
    const MAGIC: u32 = 0xb007_f457;
    const VERSION: u32 = 0x0002_0001;
    const PREFIX: u32 = 0x8000_0000;
    const VALUES: u32 = 0x4000_0000;
    const CHILDREN: u32 = 0x2000_0000;

    fn insert(&mut self, key: &str, value: String, priority: u32) {
        self.keys.entry(key.as_bytes().to_vec()).or_default().push((priority, value));
    }

    fn write(&self) -> Vec<u8> {
        let mut out = vec![0; 12];
        let all: Vec<Entry<'_>> = self.keys.iter().map(|(key, values)| (&key[..], &values[..])).collect();
        let root = write_node(&all, &mut out);
        for (at, word) in [(0, Self::MAGIC), (4, Self::VERSION), (8, root)] {
            out[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        out
    }
}

type Entry<'a> = (&'a [u8], &'a [(u32, String)]);

/// Writes the node of these sorted keys, its children first; returns where it is, with what it has.
fn write_node(keys: &[Entry<'_>], out: &mut Vec<u8>) -> u32 {
    let prefix = match keys {
        [] => 0,
        [first, .., last] => first.0.iter().zip(last.0).take_while(|(a, b)| a == b).count(),
        [only] => only.0.len(),
    };
    let (here, below) = match keys.first() {
        Some((key, values)) if key.len() == prefix => (*values, &keys[1..]),
        _ => (&[][..], keys),
    };
    // Children by the byte behind the prefix, which they do not repeat.
    let mut children: BTreeMap<u8, u32> = BTreeMap::new();
    for group in below.chunk_by(|a, b| a.0[prefix] == b.0[prefix]) {
        let cut: Vec<Entry<'_>> = group.iter().map(|(key, values)| (&key[prefix + 1..], *values)).collect();
        children.insert(group[0].0[prefix], write_node(&cut, out));
    }
    let mut place = u32::try_from(out.len()).unwrap_or(u32::MAX);
    if prefix > 0 {
        place |= Trie::PREFIX;
        out.extend_from_slice(&keys[0].0[..prefix]);
        out.push(0);
    }
    if let (Some((first, _)), Some((last, _))) = (children.first_key_value(), children.last_key_value()) {
        place |= Trie::CHILDREN;
        out.extend([*first, *last]);
        for byte in *first..=*last {
            out.extend(children.get(&byte).copied().unwrap_or_default().to_be_bytes());
        }
    }
    if !here.is_empty() {
        place |= Trie::VALUES;
        out.extend(u32::try_from(here.len()).unwrap_or_default().to_be_bytes());
        for (priority, value) in here {
            out.extend(priority.to_be_bytes());
            out.extend(value.as_bytes());
            out.push(0);
        }
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(path: &str, lines: &[&str]) -> Module {
        Module::read(path, &elf::sample::module(lines)).unwrap()
    }

    fn text(tables: &BTreeMap<String, Vec<u8>>, name: &str) -> String {
        String::from_utf8(tables[name].clone()).unwrap()
    }

    #[test]
    fn dependencies_are_complete_and_in_the_order_of_unloading() {
        let modules = [
            module("kernel/a/vfat.ko", &["depends=fat", "alias=fs-vfat", "softdep=pre: nls-cp437"]),
            module("kernel/a/fat.ko", &["depends=crc-x"]),
            module("kernel/lib/crc-x.ko", &["depends="]),
        ];
        let tables = tables(&modules, "kernel/a/vfat.ko\n", "kernel/b/loop-y.ko\n").unwrap();
        assert_eq!(
            text(&tables, "modules.dep"),
            "kernel/a/vfat.ko: kernel/a/fat.ko kernel/lib/crc-x.ko\n\
             kernel/lib/crc-x.ko:\n\
             kernel/a/fat.ko: kernel/lib/crc-x.ko\n"
        );
        assert_eq!(text(&tables, "modules.alias"), "alias fs-vfat vfat\n");
        assert_eq!(lookup(&tables["modules.alias.bin"], "fs_vfat"), ["vfat"]);
        assert_eq!(lookup(&tables["modules.dep.bin"], "crc_x"), ["kernel/lib/crc-x.ko:"]);
        assert_eq!(text(&tables, "modules.softdep"), "softdep vfat pre: nls-cp437\n");
        assert_eq!(lookup(&tables["modules.builtin.bin"], "loop_y"), [""]);
    }

    #[test]
    fn modules_with_a_device_node_are_listed_with_it() {
        let modules = [
            module("tun.ko", &["alias=devname:net/tun", "alias=char-major-10-200"]),
            module("disk.ko", &["alias=block-major-8-*"]),
            module("odd.ko", &["alias=devname:odd", "alias=char-major-10-*"]),
        ];
        let tables = tables(&modules, "", "").unwrap();
        assert_eq!(text(&tables, "modules.devname"), "tun net/tun c10:200\n");
    }

    #[test]
    fn a_missing_dependency_is_named() {
        let modules = [module("kernel/a.ko", &["depends=b"])];
        let error = tables(&modules, "", "").unwrap_err().to_string();
        assert_eq!(error, "kernel module b: another module needs it, and it is not there");
    }

    #[test]
    fn a_circle_of_modules_ends() {
        let modules = [module("a.ko", &["depends=b"]), module("b.ko", &["depends=a"])];
        assert!(tables(&modules, "", "").is_ok());
    }

    #[test]
    fn dashes_become_underscores_outside_of_brackets() {
        assert_eq!(normalized("of:N*T*Cx-y[a-z]-*"), "of:N*T*Cx_y[a-z]_*");
    }

    #[test]
    fn every_key_is_found_in_the_trie_with_all_its_values() {
        let mut trie = Trie::default();
        let keys = ["pci:v1", "pci:v12", "pci:v2", "p", "usb:*", "virtio:d00000001v*", "virtio:d00000002v*"];
        for (number, key) in (0..).zip(keys) {
            trie.insert(key, format!("for {key}"), number);
        }
        trie.insert("usb:*", "second".to_owned(), 9);
        let bytes = trie.write();
        for key in keys {
            assert_eq!(lookup(&bytes, key)[0], format!("for {key}"));
        }
        assert_eq!(lookup(&bytes, "usb:*"), ["for usb:*", "second"]);
        for absent in ["pci:v", "pci:v3", "", "virtio", "usb:*x"] {
            assert!(lookup(&bytes, absent).is_empty(), "{absent}");
        }
        assert!(lookup(&Trie::default().write(), "x").is_empty());
    }

    /// Looks a key up the way libkmod reads the file.
    fn lookup(file: &[u8], key: &str) -> Vec<String> {
        let word = |at: usize| u32::from_be_bytes(file[at..at + 4].try_into().unwrap());
        let string = |at: usize| {
            let end = file[at..].iter().position(|byte| *byte == 0).unwrap();
            String::from_utf8(file[at..at + end].to_vec()).unwrap()
        };
        assert_eq!((word(0), word(4)), (Trie::MAGIC, Trie::VERSION));
        let (mut node, mut rest) = (word(8), key.as_bytes());
        loop {
            let mut at = (node & 0x0fff_ffff) as usize;
            if at == 0 {
                return Vec::new();
            }
            if node & Trie::PREFIX != 0 {
                let prefix = string(at);
                at += prefix.len() + 1;
                let Some(left) = rest.strip_prefix(prefix.as_bytes()) else { return Vec::new() };
                rest = left;
            }
            let mut next = 0;
            if node & Trie::CHILDREN != 0 {
                let (first, last) = (file[at], file[at + 1]);
                at += 2;
                if let Some(byte) = rest.first().filter(|byte| (first..=last).contains(byte)) {
                    next = word(at + usize::from(byte - first) * 4);
                }
                at += (usize::from(last - first) + 1) * 4;
            }
            if rest.is_empty() {
                let count = if node & Trie::VALUES != 0 { word(at) } else { 0 };
                at += 4;
                let value = |_| {
                    let text = string(at + 4);
                    at += 4 + text.len() + 1;
                    text
                };
                return (0..count).map(value).collect();
            }
            (node, rest) = (next, &rest[1..]);
        }
    }
}
