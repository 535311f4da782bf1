//! GRUB's own tools judge what is written for it, where they are installed.

use std::process::Command;

use ichor_boot::Slot;
use ichor_boot::grub::EnvBlock;
use ichor_boot::grub::config::{Entry, GrubConfig, title};

/// Runs a tool; none when it is not there.
fn run(tool: &str, arguments: &[&str]) -> Option<(bool, String)> {
    let output = match Command::new(tool).args(arguments).output() {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("{tool} is not installed: not checked");
            return None;
        }
        Err(error) => panic!("{tool}: {error}"),
    };
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    Some((output.status.success(), text))
}

#[test]
fn grub_takes_the_configuration() {
    let entry = |slot: Slot, cmdline: &str| Entry {
        title: title(slot, "Talos", "v1.12.1"),
        kernel: format!("/{slot}/vmlinuz"),
        initrd: format!("/{slot}/initramfs.xz"),
        cmdline: cmdline.to_owned(),
    };
    let odd = r#"talos.config=https://x/?a=${uuid}&b=1|2;c<d>e\f"g" ip=[::1] x=a*b?~!@%^()"#;
    let config = GrubConfig {
        default: Slot::A,
        fallback: Some(Slot::B),
        entries: [Some(entry(Slot::A, odd)), Some(entry(Slot::B, "quiet"))],
        reset: true,
        one_shot: true,
    };
    let text = config.render().unwrap();
    assert_eq!(GrubConfig::parse(&text), Ok(config));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("grub.cfg");
    std::fs::write(&path, &text).unwrap();
    if let Some((ok, said)) = run("grub-script-check", &[path.to_str().unwrap()]) {
        assert!(ok, "{said}\n{text}");
    }
}

#[test]
fn grub_reads_and_writes_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("grubenv");
    let name = path.to_str().unwrap();
    let mut block = EnvBlock::default();
    block.set("next_entry", "B - Talos v1.13.0");
    std::fs::write(&path, block.encode().unwrap()).unwrap();
    let Some((ok, said)) = run("grub-editenv", &[name, "list"]) else { return };
    assert_eq!((ok, said.as_str()), (true, "next_entry=B - Talos v1.13.0\n"));
    // As `save_env` leaves it.
    run("grub-editenv", &[name, "set", "next_entry="]);
    let read = EnvBlock::parse(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(read.get("next_entry"), None);
    std::fs::remove_file(&path).unwrap();
    run("grub-editenv", &[name, "create"]);
    run("grub-editenv", &[name, "set", r"odd=a\b"]);
    let read = EnvBlock::parse(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(read.get("odd"), Some(r"a\b"));
}
