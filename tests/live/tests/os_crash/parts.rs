//! Real parts of systems: one kernel for all of them, and for each a command line and a first program that tell which it is.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use ichor_crash::life::cmdline;
use ichor_image::cpio::Archive;
use ichor_image::uki::{Reset, Uki};
use ichor_image::{Content, os_release};
use ichor_live::root;
use ichor_types::Cmdline;

/// Sectors of the model.
const SECTOR: usize = 512;

/// Parts by kind and system, made when they are needed.
pub(crate) struct Parts {
    /// Where images are made.
    pub(crate) dir: PathBuf,
    made: BTreeMap<(String, u32), PathBuf>,
}

impl Parts {
    /// None yet; what is in the directory is removed.
    pub(crate) fn new(dir: &Path) -> Self {
        let _ = fs::remove_dir_all(dir);
        fs::create_dir_all(dir).unwrap();
        Self { dir: dir.to_owned(), made: BTreeMap::new() }
    }

    /// The file of a part.
    fn file(&mut self, kind: &str, system: u32) -> &Path {
        let path = self.dir.join(format!("{kind}-{system}"));
        self.made.entry((kind.to_owned(), system)).or_insert_with(|| {
            part(kind, system).write_to(&mut File::create(&path).unwrap()).unwrap();
            path
        })
    }

    /// A file of the model with the bytes of real parts: each sector of the model stands for a piece of the part, and one that
    /// was not written for garbage.
    pub(crate) fn content(&mut self, model: &[u8]) -> Content {
        let sectors: Vec<Option<Piece>> = model.chunks(SECTOR).map(Piece::parse).collect();
        let Some(any) = sectors.iter().flatten().next().cloned() else { return Content::bytes(model) };
        let mut content = Content::default();
        for (place, sector) in sectors.into_iter().enumerate() {
            let piece = sector.clone().unwrap_or_else(|| Piece { at: place, ..any.clone() });
            let path = self.file(&piece.kind, piece.system);
            let len = fs::metadata(path).unwrap().len();
            let step = len.div_ceil(piece.count as u64).next_multiple_of(SECTOR as u64);
            let start = (step * piece.at as u64).min(len);
            let len = step.min(len - start);
            match sector {
                Some(_) => content.append(Content::file_part(path, start, len)),
                None => content.append_bytes(vec![0xaa; len as usize]),
            }
        }
        content
    }
}

/// What a sector of the model says that it is.
#[derive(Clone)]
struct Piece {
    kind: String,
    system: u32,
    at: usize,
    count: usize,
}

impl Piece {
    fn parse(sector: &[u8]) -> Option<Self> {
        let line = str::from_utf8(sector.split(|byte| *byte == b'\n').next()?).ok()?;
        let [kind, system, at, count] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
        if !["uki", "kernel", "initramfs", "loader"].contains(&kind) {
            return None;
        }
        Some(Self {
            kind: kind.to_owned(),
            system: system.parse().ok()?,
            at: at.parse().ok()?,
            count: count.parse().ok()?,
        })
    }
}

fn part(kind: &str, system: u32) -> Content {
    let file = |path: &str| Content::file(&root().join(path)).unwrap();
    let kernel = || file("build/vm/kernel/vmlinuz");
    match kind {
        "kernel" => kernel(),
        "initramfs" => initramfs(system),
        "loader" => file("build/os/efi/systemd-bootx64.efi"),
        "uki" => Uki {
            stub: fs::read(root().join("build/os/efi/linuxx64.efi.stub")).unwrap(),
            os_release: os_release(&format!("1.{system}.0")),
            cmdline: Cmdline::parse(&cmdline(system)),
            uname: None,
            kernel: kernel(),
            initramfs: initramfs(system),
            reset: Reset::Maintenance,
        }
        .build()
        .unwrap(),
        other => panic!("there is no part {other}"),
    }
}

/// What the first program of a system says.
pub(crate) fn hello(system: u32) -> String {
    format!("first program of system {system} runs")
}

fn initramfs(system: u32) -> Content {
    let mut archive = Archive::default();
    archive.file("init", 0o755, Content::bytes(program(&format!("\n{}\n", hello(system))))).unwrap();
    archive.finish().unwrap()
}

/// A program for x86-64 that writes a text to its output and waits.
fn program(text: &str) -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: usize = 64 + 56;
    let mut code = vec![0xb8, 1, 0, 0, 0, 0xbf, 1, 0, 0, 0]; // mov eax, 1 (write); mov edi, 1
    code.extend([0x48, 0x8d, 0x35, 16, 0, 0, 0]); // lea rsi, [rip + 16]: behind the code
    code.push(0xba); // mov edx, length
    code.extend((text.len() as u32).to_le_bytes());
    code.extend([0x0f, 0x05]); // syscall
    code.extend([0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7]); // pause, again and again
    assert_eq!(code.len(), 17 + 16);
    code.extend(text.as_bytes());
    let len = (HEADERS + code.len()) as u64;

    let mut elf = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    elf.extend([2, 0, 62, 0, 1, 0, 0, 0]); // executable, x86-64, version 1
    for number in [BASE + HEADERS as u64, 64, 0] {
        elf.extend(number.to_le_bytes()); // entry, program headers, no section headers
    }
    elf.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 64, 0, 0, 0, 0, 0]);
    elf.extend([1, 0, 0, 0, 5, 0, 0, 0]); // to be loaded, read and executed
    for number in [0, BASE, BASE, len, len, 0x1000] {
        elf.extend(number.to_le_bytes());
    }
    elf.extend(code);
    elf
}
