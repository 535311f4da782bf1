//! PE files, packages and kernels may come from anywhere: they are read or refused.

use ichor_fuzz::{Target, shape};
use ichor_image::pe::{Headers, add_sections};
use ichor_image::{Content, kernel};

/// A small file with two sections.
fn seed() -> Vec<u8> {
    let mut stub = vec![0; 0x600];
    stub[..2].copy_from_slice(b"MZ");
    stub[0x3c] = 0x80;
    stub[0x80..0x84].copy_from_slice(b"PE\0\0");
    stub[0x84..0x86].copy_from_slice(&0x8664_u16.to_le_bytes());
    stub[0x86] = 2;
    stub[0x94] = 240;
    let optional = 0x98;
    stub[optional..optional + 2].copy_from_slice(&0x20b_u16.to_le_bytes());
    stub[optional + 33] = 0x10;
    stub[optional + 37] = 0x02;
    for (place, name) in [b".text\0\0\0", b".sdmagic"].into_iter().enumerate() {
        let entry = optional + 240 + place * 40;
        stub[entry..entry + 8].copy_from_slice(name);
        stub[entry + 8] = 0x40;
        stub[entry + 13] = 0x10 * (place as u8 + 1);
        stub[entry + 17] = 0x02;
        stub[entry + 21] = if place == 0 { 0x02 } else { 0x04 };
        stub[entry + 36] = 0x20;
    }
    stub[0x400..0x411].copy_from_slice(b"systemd-stub 257\0");
    stub
}

#[test]
fn fuzz_pe_files() {
    let seed = seed();
    assert!(Headers::parse(&seed, seed.len() as u64).is_ok());
    assert!(add_sections(&seed, vec![(".linux", Content::bytes(*b"kernel"))]).is_ok());
    Target::binary("pe-files").seeds([seed]).words([*b"PE\0\0", *b".lin"]).rounds(20_000).len_max(4096).run(
        |input| {
            ichor_image::uki::stub_version(input);
            match Headers::parse(input, input.len() as u64) {
                Ok(headers) => {
                    for section in &headers.sections {
                        let range = section.content();
                        assert!(range.is_empty() || range.end <= input.len() as u64, "{section:?}");
                    }
                    // A file that is made of it can be read again.
                    match add_sections(input, vec![(".linux", Content::bytes(*b"kernel"))]) {
                        Ok(made) => {
                            let made = made.read(1 << 30).unwrap();
                            let again = Headers::parse(&made, made.len() as u64).unwrap();
                            let range = again.section(".linux").map(|section| section.content()).unwrap();
                            assert!(range.end <= made.len() as u64);
                            format!("made {}", headers.sections.len())
                        }
                        Err(error) => shape(&error.to_string()),
                    }
                }
                Err(error) => shape(&error.to_string()),
            }
        },
    );
}

#[test]
fn fuzz_kernel_headers() {
    let mut seed = vec![0; 0x300];
    seed[0x202..0x206].copy_from_slice(b"HdrS");
    seed[0x20e] = 0x20;
    seed[0x220..0x22a].copy_from_slice(b"6.1.0-44 x");
    Target::binary("kernel-headers").seeds([seed]).rounds(20_000).len_max(2048).run(|input| {
        let release = kernel::release(input);
        assert!(release.as_ref().is_none_or(|release| (1..=64).contains(&release.len())));
        release.map(|release| release.len())
    });
}
