//! Reads what building an image needs of ELF files: the libraries a program names, and the `.modinfo` of a kernel module.
//!
//! Only 64-bit little-endian files are read; the images are for x86-64 and arm64.

/// What is wrong with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ElfError(&'static str);

type Result<T> = std::result::Result<T, ElfError>;

const MAGIC: &[u8; 4] = b"\x7fELF";
const SECTION_DYNAMIC: u32 = 6;
const TAG_NEEDED: u64 = 1;
/// Bytes of a section header and of an entry of the dynamic section.
const HEADER_LEN: usize = 64;
const ENTRY_LEN: usize = 16;

/// Whether these bytes begin an ELF file.
pub fn is_elf(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// The libraries that a program or library names as needed, in its order.
pub fn needed(bytes: &[u8]) -> Result<Vec<String>> {
    let Some(dynamic) = sections(bytes)?.into_iter().find(|section| section.kind == SECTION_DYNAMIC) else {
        return Ok(Vec::new());
    };
    let all = sections(bytes)?;
    let strings =
        all.get(dynamic.link as usize).ok_or(ElfError("the dynamic section names no string table"))?;
    let strings = strings.bytes(bytes)?;
    let entries = dynamic.bytes(bytes)?.chunks_exact(ENTRY_LEN);
    let names =
        entries.map(|entry| (u64_at(entry, 0), u64_at(entry, 8))).map(|(tag, value)| (tag.ok(), value));
    names
        .filter(|(tag, _)| *tag == Some(TAG_NEEDED))
        .map(|(_, value)| text_at(strings, size(value?)?))
        .collect()
}

/// The `key=value` lines of a kernel module's `.modinfo` section, in its order.
pub fn modinfo(bytes: &[u8]) -> Result<Vec<(String, String)>> {
    let all = sections(bytes)?;
    let header = usize::from(u16_at(bytes, 62)?);
    let names = all.get(header).ok_or(ElfError("no table of section names"))?.bytes(bytes)?;
    for section in &all {
        if text_at(names, section.name as usize)? != ".modinfo" {
            continue;
        }
        let lines = section.bytes(bytes)?.split(|byte| *byte == 0).filter(|line| !line.is_empty());
        let text = lines.map(|line| String::from_utf8_lossy(line).into_owned());
        return Ok(text
            .filter_map(|line| line.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())))
            .collect());
    }
    Err(ElfError("no section .modinfo"))
}

/// What a section header says.
struct Section {
    name: u32,
    kind: u32,
    offset: u64,
    len: u64,
    link: u32,
}

impl Section {
    fn bytes<'a>(&self, file: &'a [u8]) -> Result<&'a [u8]> {
        let start = size(self.offset)?;
        let end = start.checked_add(size(self.len)?).ok_or(ElfError("a section is too long"))?;
        file.get(start..end).ok_or(ElfError("a section lies behind the end of the file"))
    }
}

fn sections(bytes: &[u8]) -> Result<Vec<Section>> {
    if !is_elf(bytes) {
        return Err(ElfError("not an ELF file"));
    }
    if bytes.get(4..6) != Some(&[2, 1]) {
        return Err(ElfError("not a 64-bit little-endian ELF file"));
    }
    let table = size(u64_at(bytes, 40)?)?;
    let count = usize::from(u16_at(bytes, 60)?);
    (0..count)
        .map(|index| {
            let at = index.checked_mul(HEADER_LEN).and_then(|offset| table.checked_add(offset));
            let header: [u8; HEADER_LEN] =
                array(bytes, at.ok_or(ElfError("the table of sections is too long"))?)?;
            Ok(Section {
                name: u32_at(&header, 0)?,
                kind: u32_at(&header, 4)?,
                offset: u64_at(&header, 24)?,
                len: u64_at(&header, 32)?,
                link: u32_at(&header, 40)?,
            })
        })
        .collect()
}

fn text_at(table: &[u8], at: usize) -> Result<String> {
    let rest = table.get(at..).ok_or(ElfError("a name lies behind the end of its table"))?;
    let end = rest.iter().position(|byte| *byte == 0).ok_or(ElfError("a name has no end"))?;
    Ok(String::from_utf8_lossy(&rest[..end]).into_owned())
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    let part =
        at.checked_add(N).and_then(|end| bytes.get(at..end)).ok_or(ElfError("the file is cut short"))?;
    part.try_into().map_err(|_| ElfError("the file is cut short"))
}

fn size(value: u64) -> Result<usize> {
    usize::try_from(value).map_err(|_| ElfError("an offset is too large"))
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16> {
    Ok(u16::from_le_bytes(array(bytes, at)?))
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32> {
    Ok(u32::from_le_bytes(array(bytes, at)?))
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64> {
    Ok(u64::from_le_bytes(array(bytes, at)?))
}

/// Small ELF files, for tests of what reads them.
pub mod sample {
    use super::{HEADER_LEN, SECTION_DYNAMIC, TAG_NEEDED};

    /// A file with these sections: name, type, link, content.
    fn file(sections: &[(&str, u32, u32, &[u8])]) -> Vec<u8> {
        let mut names = vec![0];
        let mut bytes = vec![0; HEADER_LEN];
        let mut headers = vec![[0; HEADER_LEN]];
        let mut add = |name: &str, kind: u32, link: u32, offset: usize, len: usize| {
            let mut header = [0; HEADER_LEN];
            header[..4].copy_from_slice(&(names.len() as u32).to_le_bytes());
            header[4..8].copy_from_slice(&kind.to_le_bytes());
            header[24..32].copy_from_slice(&(offset as u64).to_le_bytes());
            header[32..40].copy_from_slice(&(len as u64).to_le_bytes());
            header[40..44].copy_from_slice(&link.to_le_bytes());
            names.extend(name.as_bytes());
            names.push(0);
            headers.push(header);
        };
        for (name, kind, link, content) in sections {
            add(name, *kind, *link, bytes.len(), content.len());
            bytes.extend_from_slice(content);
        }
        let at = bytes.len();
        add(".shstrtab", 3, 0, at, 64);
        bytes.extend(names);
        bytes.resize(at + 64, 0);
        let table = bytes.len() as u64;
        let count = headers.len() as u16;
        bytes.extend(headers.concat());
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[40..48].copy_from_slice(&table.to_le_bytes());
        bytes[60..62].copy_from_slice(&count.to_le_bytes());
        bytes[62..64].copy_from_slice(&(count - 1).to_le_bytes());
        bytes
    }

    /// A program that needs these libraries.
    pub fn program(libraries: &[&str]) -> Vec<u8> {
        let mut strings = vec![0];
        let mut dynamic = Vec::new();
        for library in libraries {
            dynamic.extend(TAG_NEEDED.to_le_bytes());
            dynamic.extend((strings.len() as u64).to_le_bytes());
            strings.extend(library.as_bytes());
            strings.push(0);
        }
        file(&[(".dynstr", 3, 0, &strings), (".dynamic", SECTION_DYNAMIC, 1, &dynamic)])
    }

    /// A kernel module with these lines.
    pub fn module(lines: &[&str]) -> Vec<u8> {
        file(&[(".modinfo", 1, 0, (lines.join("\0") + "\0").as_bytes())])
    }
}

#[cfg(test)]
mod tests {
    use super::sample::{module, program};
    use super::*;

    #[test]
    fn needed_libraries_are_read_in_order() {
        assert_eq!(needed(&program(&["libb.so.2", "libc.so.6"])).unwrap(), ["libb.so.2", "libc.so.6"]);
        assert!(needed(&module(&["license=GPL"])).unwrap().is_empty());
        assert!(needed(b"#!/bin/sh").is_err());
    }

    #[test]
    fn modinfo_lines_are_read_in_order() {
        let found = modinfo(&module(&["depends=a,b", "alias=pci:v*", "alias=fs-x"])).unwrap();
        let found: Vec<String> = found.iter().map(|(key, value)| format!("{key} {value}")).collect();
        assert_eq!(found, ["depends a,b", "alias pci:v*", "alias fs-x"]);
    }

    #[test]
    fn a_damaged_file_is_an_error_wherever_it_is_cut_or_changed() {
        let good = module(&["depends=a"]);
        for len in 0..good.len() {
            assert!(modinfo(&good[..len]).is_err(), "{len}");
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] = 0xff;
            // Whatever comes out, nothing panics.
            let _ = (modinfo(&bad), needed(&bad));
        }
    }
}
