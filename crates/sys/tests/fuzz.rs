//! What firmware and kernel show is read or left out, never with a panic, and in bounded time and memory.

use ichor_fuzz::Target;
use ichor_sys::kmsg::Record;
use ichor_sys::{counters, module, smbios};

/// A structure of the firmware's tables: its type and length, bytes at offsets, strings.
fn structure(kind: u8, len: u8, bytes: &[(usize, u8)], strings: &[u8]) -> Vec<u8> {
    let mut out = vec![0; usize::from(len)];
    (out[0], out[1]) = (kind, len);
    for (at, byte) in bytes {
        out[*at] = *byte;
    }
    out.extend_from_slice(strings);
    out.extend_from_slice(&[0, 0]);
    out
}

#[test]
fn firmware_tables() {
    let table = [
        structure(1, 27, &[(4, 1), (8, 7), (0x18, 6), (0x19, 2)], b"Maker\0SKU"),
        structure(4, 48, &[(4, 1), (0x18, 0x41), (0x23, 0xff), (0x2a, 9)], b"CPU 0"),
        structure(17, 40, &[(0x0c, 0xff), (0x0d, 0x7f), (0x10, 1), (0x1c, 1)], b"DIMM 0"),
        structure(127, 4, &[], b""),
    ];
    Target::binary("smbios").seeds([table.concat()]).run(|input| {
        let tables = smbios::parse((3, 0), input);
        assert!((tables.processors.len() + tables.memory.len()) * 6 <= input.len());
        let uuid = tables.system.as_ref().map_or(0, |system| system.uuid.len());
        assert!(uuid == 0 || uuid == 36);
        (tables.system.is_some(), tables.processors.len().min(8), tables.memory.len().min(8))
    });
}

#[test]
fn texts_of_the_kernel() {
    let seeds = [
        "vfat 24576 1 fat,nls, Live 0xffffffffc0a0b000 (E)\n",
        "kernel/fs/fat/vfat.ko.xz: kernel/fs/fat/fat.ko kernel/lib/crc.ko\n",
        "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2\nintr 5 1\nctxt 9\n",
        "Filename Type Size Used Priority\n/dev/vda2 partition 1024 4 -2\n",
        "12,7,1500000,-,caller=T1;text \\x41\n SUBSYSTEM=x\n",
    ];
    Target::text("kernel-texts").seeds(seeds).run(|input| {
        let text = String::from_utf8_lossy(input);
        let modules = module::parse(&text).len();
        let chain = module::chain(&text, "vfat").map_or(0, |(_, needed)| needed.len());
        let stat = counters::stat(&text).processors.len();
        let swaps = counters::swaps(&text).len();
        (modules.min(4), chain.min(4), stat.min(4), swaps.min(4), Record::parse(input).is_some())
    });
}
