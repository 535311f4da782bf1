//! What the firmware says about the machine: the SMBIOS tables. Pure but for [`read`].
//!
//! The tables come from firmware, so nothing in them is trusted: offsets are checked, strings cut, and the walk
//! ends after a bounded number of structures.

use std::io;
use std::path::Path;

/// Where the kernel shows the tables.
const FOLDER: &str = "sys/firmware/dmi/tables";

/// Structures looked at; real machines have a few hundred.
const STRUCTURES_MAX: usize = 4096;

/// Characters kept of one string.
const STRING_MAX: usize = 256;

/// Which machine this is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct System {
    /// Who made it.
    pub manufacturer: String,
    /// What it is called.
    pub product_name: String,
    /// Which version of it.
    pub version: String,
    /// Its serial number.
    pub serial_number: String,
    /// Its UUID; all zeroes or ones where nobody set one, empty where the table is too old for it.
    pub uuid: String,
    /// What switched it on.
    pub wake_up_type: &'static str,
    /// The stock keeping unit.
    pub sku_number: String,
}

/// A processor socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processor {
    /// What is printed next to the socket.
    pub socket: String,
    /// Whether there is a processor in it.
    pub populated: bool,
    /// Who made the processor.
    pub manufacturer: String,
    /// What it is called.
    pub product_name: String,
    /// The fastest it may run.
    pub max_speed_mhz: u16,
    /// How fast it ran at boot.
    pub boot_speed_mhz: u16,
    /// The status byte as the firmware has it.
    pub status: u8,
    /// Its serial number.
    pub serial_number: String,
    /// Its asset tag.
    pub asset_tag: String,
    /// Its part number.
    pub part_number: String,
    /// Cores it has.
    pub core_count: u16,
    /// Cores that are on.
    pub core_enabled: u16,
    /// Threads it runs.
    pub thread_count: u16,
}

/// A slot for memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryModule {
    /// What is printed next to the slot.
    pub device_locator: String,
    /// The bank it belongs to.
    pub bank_locator: String,
    /// Its size; nothing when the slot is empty or the size unknown.
    pub size_mib: Option<u32>,
    /// Transfers per microsecond.
    pub speed: u16,
    /// Who made it.
    pub manufacturer: String,
    /// Its serial number.
    pub serial_number: String,
    /// Its asset tag.
    pub asset_tag: String,
    /// Its part number.
    pub part_number: String,
}

/// What of the tables is of interest here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// The machine.
    pub system: Option<System>,
    /// Its sockets.
    pub processors: Vec<Processor>,
    /// Its slots for memory.
    pub memory: Vec<MemoryModule>,
}

/// Reads the tables of the machine under `root`; `None` when its firmware has none.
pub fn read(root: &Path) -> io::Result<Option<Tables>> {
    let folder = root.join(FOLDER);
    let file = |name: &str| match std::fs::read(folder.join(name)) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    let Some(table) = file("DMI")? else { return Ok(None) };
    let entry = file("smbios_entry_point")?.unwrap_or_default();
    Ok(Some(parse(version(&entry), &table)))
}

/// Major and minor version of the tables, from their entry point.
pub fn version(entry: &[u8]) -> (u8, u8) {
    let at = |offset: usize| entry.get(offset).copied().unwrap_or(0);
    if entry.starts_with(b"_SM3_") {
        (at(7), at(8))
    } else if entry.starts_with(b"_SM_") {
        (at(6), at(7))
    } else {
        (0, 0)
    }
}

/// Parses a table; what is cut off or makes no sense is left out.
pub fn parse(version: (u8, u8), table: &[u8]) -> Tables {
    let mut tables = Tables::default();
    let mut rest = table;
    for _ in 0..STRUCTURES_MAX {
        let Some((structure, after)) = Structure::split(rest) else { break };
        match structure.body[0] {
            1 if tables.system.is_none() => tables.system = Some(structure.system(version)),
            4 => tables.processors.push(structure.processor()),
            17 => tables.memory.push(structure.memory()),
            127 => break,
            _ => {}
        }
        rest = after;
    }
    tables
}

/// One structure: its formatted part, and the strings behind it.
struct Structure<'a> {
    body: &'a [u8],
    strings: &'a [u8],
}

impl<'a> Structure<'a> {
    /// The first structure and what comes after it.
    fn split(table: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let len = usize::from(*table.get(1)?);
        if len < 4 {
            return None;
        }
        let (body, rest) = table.split_at_checked(len)?;
        // The strings end with an empty one.
        let end = rest.windows(2).position(|pair| pair == [0, 0])?;
        Some((Self { body, strings: &rest[..end] }, &rest[end + 2..]))
    }

    fn byte(&self, at: usize) -> u8 {
        self.body.get(at).copied().unwrap_or(0)
    }

    fn word(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.byte(at), self.byte(at + 1)])
    }

    fn double(&self, at: usize) -> u32 {
        u32::from(self.word(at)) | u32::from(self.word(at + 2)) << 16
    }

    /// The string whose number stands at this offset.
    fn text(&self, at: usize) -> String {
        let Some(index) = usize::from(self.byte(at)).checked_sub(1) else { return String::new() };
        let bytes = self.strings.split(|byte| *byte == 0).nth(index).unwrap_or_default();
        let text = String::from_utf8_lossy(bytes);
        text.trim().chars().filter(|c| !c.is_control()).take(STRING_MAX).collect()
    }

    fn system(&self, version: (u8, u8)) -> System {
        const WAKE_UP: [&str; 9] = [
            "Reserved",
            "Other",
            "Unknown",
            "APM Timer",
            "Modem Ring",
            "LAN Remote",
            "Power Switch",
            "PCI PME#",
            "AC Power Restored",
        ];
        System {
            manufacturer: self.text(0x04),
            product_name: self.text(0x05),
            version: self.text(0x06),
            serial_number: self.text(0x07),
            uuid: self.body.get(0x08..0x18).map_or_else(String::new, |bytes| uuid(version, bytes)),
            wake_up_type: self
                .body
                .get(0x18)
                .map_or("", |number| WAKE_UP.get(usize::from(*number)).copied().unwrap_or("Unknown")),
            sku_number: self.text(0x19),
        }
    }

    fn processor(&self) -> Processor {
        // Counts beyond a byte stand elsewhere.
        let count = |small: usize, large: usize| match self.byte(small) {
            0xff if self.word(large) != 0 => self.word(large),
            number => u16::from(number),
        };
        let status = self.byte(0x18);
        Processor {
            socket: self.text(0x04),
            populated: status & 0x40 != 0,
            manufacturer: self.text(0x07),
            product_name: self.text(0x10),
            max_speed_mhz: self.word(0x14),
            boot_speed_mhz: self.word(0x16),
            status,
            serial_number: self.text(0x20),
            asset_tag: self.text(0x21),
            part_number: self.text(0x22),
            core_count: count(0x23, 0x2a),
            core_enabled: count(0x24, 0x2c),
            thread_count: count(0x25, 0x2e),
        }
    }

    fn memory(&self) -> MemoryModule {
        let size_mib = match self.word(0x0c) {
            0 | 0xffff => None,
            0x7fff => Some(self.double(0x1c) & 0x7fff_ffff),
            // The top bit says that the number counts KiB.
            small if small & 0x8000 != 0 => Some(u32::from(small & 0x7fff) / 1024),
            size => Some(u32::from(size)),
        };
        MemoryModule {
            device_locator: self.text(0x10),
            bank_locator: self.text(0x11),
            size_mib,
            speed: self.word(0x15),
            manufacturer: self.text(0x17),
            serial_number: self.text(0x18),
            asset_tag: self.text(0x19),
            part_number: self.text(0x1a),
        }
    }
}

/// The text of a UUID; the first three fields are little-endian since version 2.6.
fn uuid(version: (u8, u8), bytes: &[u8]) -> String {
    const SWAPPED: [usize; 16] = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    let mut text = String::with_capacity(36);
    for (place, swapped) in SWAPPED.into_iter().enumerate() {
        if matches!(place, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let index = if version >= (2, 6) { swapped } else { place };
        text.push_str(&format!("{:02x}", bytes.get(index).copied().unwrap_or(0)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A structure of this type: bytes at offsets, then strings.
    fn structure(kind: u8, len: u8, bytes: &[(usize, &[u8])], strings: &[&str]) -> Vec<u8> {
        let mut out = vec![0; usize::from(len)];
        (out[0], out[1]) = (kind, len);
        for (at, bytes) in bytes {
            out[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        for text in strings {
            out.extend_from_slice(text.as_bytes());
            out.push(0);
        }
        out.extend_from_slice(if strings.is_empty() { &[0, 0] } else { &[0] });
        out
    }

    fn machine() -> Vec<u8> {
        let uuid: Vec<u8> = (0..16).collect();
        [
            structure(0, 24, &[(4, &[1])], &["some firmware"]),
            structure(
                1,
                27,
                &[(4, &[1, 2, 3, 4]), (8, &uuid), (0x18, &[6, 5])],
                &["Maker", "Machine", "v1", "S-1 ", "SKU"],
            ),
            structure(
                4,
                48,
                &[
                    (4, &[1]),
                    (7, &[2]),
                    (0x10, &[3]),
                    (0x14, &[0xb8, 0x0b, 0xa0, 0x0f]),
                    (0x18, &[0x41]),
                    (0x23, &[0xff, 4, 8]),
                    (0x2a, &[0x80, 1]),
                ],
                &["CPU 0", "Chips", "Fast 9000"],
            ),
            structure(4, 35, &[(4, &[1])], &["CPU 1"]),
            structure(
                17,
                40,
                &[(0x0c, &[0x00, 0x40]), (0x10, &[1, 2]), (0x15, &[0x80, 0x0c]), (0x17, &[3, 0, 0, 4])],
                &["DIMM 0", "BANK 0", "Chips", "PN"],
            ),
            structure(17, 40, &[(0x0c, &[0xff, 0x7f]), (0x10, &[1]), (0x1c, &[0, 0, 2, 0])], &["DIMM 1"]),
            structure(17, 40, &[(0x10, &[1])], &["DIMM 2"]),
            structure(127, 4, &[], &[]),
            structure(1, 27, &[(4, &[1])], &["after the end"]),
        ]
        .concat()
    }

    #[test]
    fn a_machine_is_read_whole() {
        let tables = parse((2, 8), &machine());
        expect_test::expect![[r#"
            Some(
                System {
                    manufacturer: "Maker",
                    product_name: "Machine",
                    version: "v1",
                    serial_number: "S-1",
                    uuid: "03020100-0504-0706-0809-0a0b0c0d0e0f",
                    wake_up_type: "Power Switch",
                    sku_number: "SKU",
                },
            )
        "#]]
        .assert_debug_eq(&tables.system);
        let cpu = &tables.processors[0];
        assert_eq!((cpu.socket.as_str(), cpu.product_name.as_str()), ("CPU 0", "Fast 9000"));
        assert_eq!((cpu.max_speed_mhz, cpu.boot_speed_mhz, cpu.status), (3000, 4000, 0x41));
        assert_eq!((cpu.core_count, cpu.core_enabled, cpu.thread_count), (384, 4, 8));
        assert!(cpu.populated && !tables.processors[1].populated);
        let sizes: Vec<_> = tables.memory.iter().map(|module| module.size_mib).collect();
        assert_eq!(sizes, [Some(16384), Some(131_072), None]);
        assert_eq!((tables.memory[0].speed, tables.memory[0].part_number.as_str()), (3200, "PN"));
    }

    #[test]
    fn the_byte_order_of_a_uuid_depends_on_the_version() {
        let old = parse((2, 4), &machine()).system.unwrap();
        assert_eq!(old.uuid, "00010203-0405-0607-0809-0a0b0c0d0e0f");
        assert_eq!(version(b"_SM_\x00\x1f\x02\x08"), (2, 8));
        assert_eq!(version(b"_SM3_\x00\x18\x03\x02"), (3, 2));
        assert_eq!(version(b"_SM"), (0, 0));
    }

    #[test]
    fn a_table_cut_anywhere_is_read_as_far_as_it_goes() {
        let whole = machine();
        for end in 0..whole.len() {
            let tables = parse((3, 0), &whole[..end]);
            assert!(tables.processors.len() <= 2 && tables.memory.len() <= 3);
        }
    }

    #[test]
    fn garbage_is_no_machine_and_no_panic() {
        // A small generator: every run is the same, and names its round when it fails.
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        for round in 0..2000 {
            let mut bytes = machine();
            for _ in 0..8 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round);
                let at = (seed >> 33) as usize % bytes.len();
                bytes[at] = (seed >> 24) as u8;
            }
            let tables = parse((2, 7), &bytes);
            assert!(tables.processors.len() + tables.memory.len() <= bytes.len() / 4, "round {round}");
        }
    }
}
