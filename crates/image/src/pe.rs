//! PE files, as firmware starts them: the headers of one, and a copy of one with more sections.
//!
//! Files come from outside: every offset is checked, and nothing but the headers is held in memory.

use std::ops::Range;

use crate::Content;

/// Headers of a sane file end before this.
pub const HEADERS_MAX: usize = 64 * 1024;
/// More sections than any linker or stub makes.
const SECTIONS_MAX: usize = 96;

const DOS_MAGIC: &[u8] = b"MZ";
const DOS_LFANEW: usize = 0x3c;
/// Where the PE header of a file that we write is.
const PE_OFFSET: usize = 0x80;
const PE_MAGIC: &[u8] = b"PE\0\0";
const COFF_LEN: usize = 20;
const SECTION_LEN: usize = 40;
const PE32_PLUS: u16 = 0x20b;
/// The optional header up to the data directories.
const OPTIONAL_MIN: usize = 112;
const DIRECTORY_SECURITY: usize = 4;
const DIRECTORY_DEBUG: usize = 6;

const CODE: u32 = 0x20;
const INITIALIZED_DATA: u32 = 0x40;
const READ: u32 = 0x4000_0000;

/// Sections are loaded at multiples of a page, whatever the stub's own alignment.
const PAGE: u64 = 4096;

/// Why a file is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeError {
    /// It ends where more must follow.
    #[error("PE file is cut off: {0}")]
    CutOff(&'static str),
    /// A magic number is missing.
    #[error("not a PE file: no {0}")]
    NotPe(&'static str),
    /// It is of a kind that we do not read.
    #[error("not a 64-bit PE file (optional header {0:#x})")]
    NotPlus(u16),
    /// There are too many sections.
    #[error("PE file has {0} sections, at most {SECTIONS_MAX} are allowed")]
    Sections(usize),
    /// An alignment is no power of two.
    #[error("PE file has an alignment of {0}")]
    Alignment(u32),
    /// A section lies outside of the file.
    #[error("PE section {0} is outside of the file")]
    Outside(String),
    /// No section has this name.
    #[error("PE file has no section {0}")]
    Missing(String),
    /// A section to be added has a bad name or no content.
    #[error("PE section {0:?} can't be added: a name has 1 to 8 bytes, a section at least one")]
    Added(String),
    /// The headers do not fit before the first section.
    #[error("PE headers of {0} bytes do not fit before the first section")]
    HeaderRoom(u64),
    /// The file would be larger than the format allows.
    #[error("PE file would be larger than 4 GiB")]
    TooLarge,
}

/// A section as the header describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// The name without padding.
    pub name: String,
    /// Bytes in memory.
    pub virtual_size: u32,
    /// The address relative to the image's base.
    pub virtual_address: u32,
    /// Bytes in the file, padding included.
    pub raw_size: u32,
    /// Where they are in the file.
    pub raw_offset: u32,
    /// What it is, and who may read and write it.
    pub characteristics: u32,
}

impl Section {
    /// Where its content is in the file, without padding.
    pub fn content(&self) -> Range<u64> {
        let start = u64::from(self.raw_offset);
        start..start + u64::from(self.raw_size.min(self.virtual_size))
    }
}

/// The headers of a PE file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Headers {
    /// The kind of processor.
    pub machine: u16,
    /// Unit of addresses of sections.
    pub section_alignment: u32,
    /// Unit of offsets of sections.
    pub file_alignment: u32,
    /// The sections, in the order of the table.
    pub sections: Vec<Section>,
    coff: Range<usize>,
    optional: Range<usize>,
}

impl Headers {
    /// Reads the headers at the beginning of a file of `file_len` bytes. `head` is as much of the file as there is, or
    /// its first [`HEADERS_MAX`] bytes.
    pub fn parse(head: &[u8], file_len: u64) -> Result<Self, PeError> {
        if head.get(..2) != Some(DOS_MAGIC) {
            return Err(PeError::NotPe("MZ header"));
        }
        let pe = u32_at(head, DOS_LFANEW).ok_or(PeError::CutOff("DOS header"))?;
        let pe = usize::try_from(pe).map_err(|_| PeError::CutOff("PE header"))?;
        let after = |start: usize, len: usize| start.checked_add(len).filter(|end| *end <= head.len());
        let coff = after(pe, 4).ok_or(PeError::CutOff("PE header"))?;
        if &head[pe..coff] != PE_MAGIC {
            return Err(PeError::NotPe("PE header"));
        }
        let optional = after(coff, COFF_LEN).ok_or(PeError::CutOff("COFF header"))?;
        let short = PeError::CutOff("optional header");
        let machine = u16_at(head, coff).ok_or(short.clone())?;
        let count = usize::from(u16_at(head, coff + 2).ok_or(short.clone())?);
        let optional_len = usize::from(u16_at(head, coff + 16).ok_or(short.clone())?);
        let table = after(optional, optional_len).ok_or(short.clone())?;
        let magic = u16_at(head, optional).ok_or(short.clone())?;
        if magic != PE32_PLUS {
            return Err(PeError::NotPlus(magic));
        }
        if optional_len < OPTIONAL_MIN {
            return Err(short);
        }
        if count > SECTIONS_MAX {
            return Err(PeError::Sections(count));
        }
        let alignment = |at: usize| {
            let value = u32_at(head, optional + at).unwrap_or_default();
            if value.is_power_of_two() { Ok(value) } else { Err(PeError::Alignment(value)) }
        };
        let mut sections = Vec::with_capacity(count);
        for place in 0..count {
            let start = table + place * SECTION_LEN;
            let entry = head.get(start..start + SECTION_LEN).ok_or(PeError::CutOff("section table"))?;
            sections.push(section(entry, file_len)?);
        }
        Ok(Self {
            machine,
            section_alignment: alignment(32)?,
            file_alignment: alignment(36)?,
            sections,
            coff: coff..optional,
            optional: optional..table,
        })
    }

    /// The first section with this name.
    pub fn section(&self, name: &str) -> Result<&Section, PeError> {
        let found = self.sections.iter().find(|section| section.name == name);
        found.ok_or_else(|| PeError::Missing(name.to_owned()))
    }
}

fn section(entry: &[u8], file_len: u64) -> Result<Section, PeError> {
    let word = |at| u32_at(entry, at).unwrap_or_default();
    let name = entry[..8].split(|byte| *byte == 0).next().unwrap_or_default();
    let section = Section {
        name: String::from_utf8_lossy(name).into_owned(),
        virtual_size: word(8),
        virtual_address: word(12),
        raw_size: word(16),
        raw_offset: word(20),
        characteristics: word(36),
    };
    let end = u64::from(section.raw_offset) + u64::from(section.raw_size);
    // The last section of a file may lack its padding.
    let outside = section.raw_size > 0 && (end > file_len && section.content().end > file_len);
    if outside { Err(PeError::Outside(section.name)) } else { Ok(section) }
}

/// `stub` with `added` sections behind its own. Time stamps, versions of linkers and checksums are zeroed: the same input
/// gives the same bytes.
pub fn add_sections(stub: &[u8], added: Vec<(&str, Content)>) -> Result<Content, PeError> {
    let headers = Headers::parse(stub, stub.len() as u64)?;
    let count = headers.sections.len() + added.len();
    if count > SECTIONS_MAX {
        return Err(PeError::Sections(count));
    }
    let head_len = PE_OFFSET + PE_MAGIC.len() + COFF_LEN + headers.optional.len() + count * SECTION_LEN;
    let head_len = (head_len as u64).next_multiple_of(u64::from(headers.file_alignment));
    let first = headers.sections.iter().map(|section| section.virtual_address).min();
    if first.is_some_and(|address| u64::from(address) < head_len) {
        return Err(PeError::HeaderRoom(head_len));
    }

    let mut layout =
        Layout { headers: &headers, head_len, end: 0, table: Vec::new(), body: Content::default() };
    for section in &headers.sections {
        layout.keep(stub, section)?;
    }
    for (name, content) in added {
        layout.add(name, content)?;
    }
    let Layout { table, body, end, .. } = layout;

    let mut file = Content::bytes(header(stub, &headers, &table, head_len, end)?);
    if !file.extend_to(head_len) {
        return Err(PeError::HeaderRoom(head_len));
    }
    file.append(body);
    Ok(file)
}

/// Sections of a file in the making.
struct Layout<'a> {
    headers: &'a Headers,
    /// Where the first section begins in the file.
    head_len: u64,
    /// Where the last section ends in memory.
    end: u64,
    table: Vec<Section>,
    body: Content,
}

impl Layout<'_> {
    fn place(&mut self, mut section: Section, content: Content) -> Result<(), PeError> {
        let start = self.body.len();
        self.body.append(content);
        self.body.align(u64::from(self.headers.file_alignment));
        let len = self.body.len() - start;
        section.raw_offset = if len > 0 { narrow(self.head_len + start)? } else { 0 };
        section.raw_size = narrow(len)?;
        self.end = self.end.max(u64::from(section.virtual_address) + u64::from(section.virtual_size));
        self.table.push(section);
        Ok(())
    }

    /// A section of the stub: its address stays, its place in the file may move.
    fn keep(&mut self, stub: &[u8], section: &Section) -> Result<(), PeError> {
        let outside = || PeError::Outside(section.name.clone());
        let start = section.raw_offset as usize;
        let end = start.saturating_add(section.raw_size as usize).min(stub.len());
        let bytes = stub.get(start.min(end)..end).ok_or_else(outside)?;
        self.place(section.clone(), Content::bytes(bytes))
    }

    fn add(&mut self, name: &str, content: Content) -> Result<(), PeError> {
        if name.is_empty() || name.len() > 8 || content.is_empty() {
            return Err(PeError::Added(name.to_owned()));
        }
        let unit = PAGE.max(u64::from(self.headers.section_alignment));
        // In the file they begin at pages as well, so that an ISO image can show a part of the file as another file.
        let start = (self.head_len + self.body.len()).next_multiple_of(PAGE) - self.head_len;
        if !self.body.extend_to(start) {
            return Err(PeError::TooLarge);
        }
        let section = Section {
            name: name.to_owned(),
            virtual_size: narrow(content.len())?,
            virtual_address: narrow(self.end.next_multiple_of(unit))?,
            raw_size: 0,
            raw_offset: 0,
            characteristics: INITIALIZED_DATA | READ,
        };
        self.place(section, content)
    }
}

fn narrow(value: u64) -> Result<u32, PeError> {
    u32::try_from(value).map_err(|_| PeError::TooLarge)
}

/// All headers of the new file, without padding.
fn header(
    stub: &[u8],
    old: &Headers,
    table: &[Section],
    head_len: u64,
    end: u64,
) -> Result<Vec<u8>, PeError> {
    let mut out = vec![0; PE_OFFSET];
    out[..2].copy_from_slice(DOS_MAGIC);
    put32(&mut out, DOS_LFANEW, PE_OFFSET as u32);
    out.extend_from_slice(PE_MAGIC);

    let coff = out.len();
    out.extend_from_slice(&stub[old.coff.clone()]);
    let count = u16::try_from(table.len()).map_err(|_| PeError::Sections(table.len()))?;
    out[coff + 2..coff + 4].copy_from_slice(&count.to_le_bytes());
    // Time stamp, symbol table and its length: none.
    out[coff + 4..coff + 16].fill(0);

    let optional = out.len();
    out.extend_from_slice(&stub[old.optional.clone()]);
    let sum = |kind: u32| {
        let of_kind = table.iter().filter(|section| section.characteristics & kind != 0);
        narrow(of_kind.map(|section| u64::from(section.raw_size)).sum())
    };
    out[optional + 2..optional + 4].fill(0);
    put32(&mut out, optional + 4, sum(CODE)?);
    put32(&mut out, optional + 8, sum(INITIALIZED_DATA)?);
    let image = end.next_multiple_of(PAGE.max(u64::from(old.section_alignment)));
    put32(&mut out, optional + 56, narrow(image)?);
    put32(&mut out, optional + 60, narrow(head_len)?);
    put32(&mut out, optional + 64, 0);
    // Both hold offsets in the file, which have moved: a signature no longer holds anyway.
    for directory in [DIRECTORY_SECURITY, DIRECTORY_DEBUG] {
        let at = optional + OPTIONAL_MIN + directory * 8;
        if at + 8 <= out.len() {
            out[at..at + 8].fill(0);
        }
    }

    for section in table {
        let mut entry = [0; SECTION_LEN];
        let name = section.name.as_bytes();
        let len = name.len().min(8);
        entry[..len].copy_from_slice(&name[..len]);
        let words = [section.virtual_size, section.virtual_address, section.raw_size, section.raw_offset];
        for (place, word) in words.into_iter().enumerate() {
            put32(&mut entry, 8 + place * 4, word);
        }
        put32(&mut entry, 36, section.characteristics);
        out.extend_from_slice(&entry);
    }
    Ok(out)
}

fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at.checked_add(2)?)?.try_into().ok().map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_le_bytes)
}
