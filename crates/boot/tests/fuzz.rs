//! Files of boot loaders, variables of firmware and records of META are read or refused, never with a panic; what was
//! read is written so that it reads the same.

use ichor_boot::grub::{EnvBlock, GrubConfig};
use ichor_boot::record::Record;
use ichor_boot::sdboot::{self, LoadOption, UkiName, variable};
use ichor_fuzz::{Target, shape};

const GRUB: &str = "set default=\"A - Talos v1\"\nset fallback=\"B - Talos v0\"\n\nset timeout=3\n\
    menuentry \"A - Talos v1\" {\n  linux /A/vmlinuz a=\\$\\{b\\} c\n  initrd /A/initramfs.xz\n}\n\
    menuentry \"B - Talos v0\" {\n  linux /B/vmlinuz x\n  initrd /B/initramfs.xz\n}\nmenuentry \"Reset it\" {\n}\n";

#[test]
fn grub_configurations() {
    let words = ["menuentry \"", "\" {", "}", "\\}", "set default=\"", "linux ", "initrd ", "\\\\"];
    Target::text("grub-config").seeds([GRUB]).words(words).rounds(10_000).run(|input| {
        let text = String::from_utf8_lossy(input);
        match GrubConfig::parse(&text) {
            Ok(config) => match config.render() {
                Ok(rendered) => {
                    let again = GrubConfig::parse(&rendered).expect("what was written is read");
                    assert_eq!((again.default, again.fallback), (config.default, config.fallback));
                    format!("{:?} {}", config.fallback, config.reset)
                }
                Err(error) => shape(&error.to_string()),
            },
            Err(error) => shape(&error.to_string()),
        }
    });
}

#[test]
fn grub_environments() {
    let mut block = EnvBlock::default();
    block.set("next_entry", "B - Talos v1.13.0");
    let seed = block.encode().expect("fits");
    Target::binary("grub-environment").seeds([seed]).rounds(5_000).run(|input| {
        let mut bytes = input.to_vec();
        bytes.resize(1024, b'#');
        match EnvBlock::parse(&bytes) {
            Ok(block) => match block.encode() {
                Ok(again) => {
                    assert_eq!(EnvBlock::parse(&again).as_ref(), Ok(&block));
                    format!("{:?}", block.get("next_entry").is_some())
                }
                Err(error) => shape(&error.to_string()),
            },
            Err(error) => shape(&error.to_string()),
        }
    });
}

#[test]
fn firmware_variables() {
    let drive = sdboot::HardDrive { number: 1, start: 2048, len: 4096, guid: [7; 16] };
    let option =
        LoadOption { description: "Talos Linux UKI".into(), drive, file: r"\EFI\boot\BOOTX64.efi".into() };
    let seeds = [variable::encode_text("Talos-v1.12.1.efi"), variable::encode(&option.encode())];
    Target::binary("boot-variables").seeds(seeds).rounds(10_000).run(|input| {
        let text = variable::decode_text(input);
        if let Some(text) = &text {
            assert_eq!(variable::decode_text(&variable::encode_text(text)).as_ref(), Some(text));
        }
        let option = variable::decode(input).and_then(LoadOption::decode);
        if let Some(option) = &option {
            assert_eq!(LoadOption::decode(&option.encode()).as_ref(), Some(option));
        }
        format!("{} {}", text.is_some(), option.is_some())
    });
}

#[test]
fn records_and_names() {
    let seeds = [
        "slots 1\nA default good A - Talos v1\nB trial-started:0123456789abcdef0123456789abcdef B - Talos v2\n",
        "Talos-v1.12.1~3.efi",
        "timeout 10\ndefault Talos-v1.efi\n####\n",
    ];
    let words = ["failed-unhealthy:", "unproven", "~", "-", ".efi", "default "];
    Target::text("boot-records").seeds(seeds).words(words).rounds(10_000).run(|input| {
        let text = String::from_utf8_lossy(input);
        if let Some(name) = UkiName::parse(&text) {
            assert_eq!(UkiName::parse(&name.to_string()), Some(name.clone()));
            assert_eq!(
                sdboot::default_of(&sdboot::with_default(Some(&text), &name)).is_some(),
                !text.contains('\n')
            );
        }
        match Record::parse(&text) {
            Ok(record) => {
                assert_eq!(Record::parse(&record.encode()), Ok(record.clone()));
                format!("{:?}", record.slots.standing())
            }
            Err(error) => shape(&error.to_string()),
        }
    });
}
