//! Plans as lists of steps, for both boot loaders.

use expect_test::{Expect, expect};

use super::*;
use crate::slots::Trial;

const BY: BootId = BootId(7);

fn system(tag: &str) -> NewSystem {
    NewSystem { name: "Talos".into(), tag: tag.into(), cmdline: "talos.platform=metal".into() }
}

#[track_caller]
fn check(steps: &[Step], expected: Expect) {
    expected.assert_eq(&steps.iter().map(|step| format!("{step}\n")).collect::<String>());
}

fn grub() -> BootDisk {
    let (mut disk, _) =
        BootDisk::install(Loader::Grub(GrubFiles::default()), &system("v1"), "amd64", None).unwrap();
    disk.record.slots = Slots::found(Slot::A, false);
    disk
}

fn sd_boot() -> BootDisk {
    let image = |tag: &str| UkiName::parse(&format!("Talos-{tag}.efi")).unwrap();
    let files = SdBootFiles {
        images: vec![image("v1"), image("v0")],
        default: Some("Talos-v1.efi".into()),
        one_shot: None,
        conf: Some("timeout 10\n".into()),
    };
    BootDisk::read(Loader::SdBoot(files), None, None).unwrap()
}

#[test]
fn an_upgrade_with_grub_is_in_this_order() {
    let mut disk = grub();
    let steps = disk.upgrade(&system("v2"), Start::OneShot, BY).unwrap();
    check(
        &steps,
        expect![[r#"
            set META 0xe0
            delete B/vmlinuz on BOOT
            delete B/initramfs.xz on BOOT
            flush BOOT
            write Kernel to B/vmlinuz on BOOT
            write Initramfs to B/initramfs.xz on BOOT
            flush BOOT
            verify B/vmlinuz on BOOT
            verify B/initramfs.xz on BOOT
            write 842 bytes to grub/grub.cfg.spare on BOOT
            flush BOOT
            exchange grub/grub.cfg with grub/grub.cfg.spare on BOOT
            flush BOOT
            set META 0xe0
            write 1024 bytes to grub/grubenv on BOOT
            flush BOOT
            overwrite grub/grubenv on BOOT
            flush BOOT
            set META 0xe0
        "#]],
    );
    let Loader::Grub(files) = &disk.loader else { panic!("another boot loader") };
    let config = files.config.as_ref().unwrap();
    assert_eq!((config.default, config.fallback), (Slot::A, None), "the old one until the new one is good");
    assert_eq!(files.env.as_ref().unwrap().get("next_entry"), Some("B - Talos v2"));
}

#[test]
fn an_upgrade_with_systemd_boot_is_in_this_order() {
    let mut disk = sd_boot();
    let steps = disk.upgrade(&system("v2"), Start::OneShot, BY).unwrap();
    check(
        &steps,
        expect![[r#"
            set META 0xe0
            overwrite loader/loader.conf on EFI
            flush EFI
            delete EFI/Linux/Talos-v0.efi on EFI
            flush EFI
            write Uki to EFI/Linux/Talos-v2.efi on EFI
            flush EFI
            verify EFI/Linux/Talos-v2.efi on EFI
            set META 0xe0
            set LoaderEntryOneShot-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f
            set META 0xe0
        "#]],
    );
    assert_eq!(disk.default_entry().as_deref(), Some("Talos-v1.efi"));
    let again = disk.upgrade(&system("v2"), Start::OneShot, BY).unwrap();
    check(
        &again,
        expect![[r#"
            delete LoaderEntryOneShot-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f
            set META 0xe0
            delete EFI/Linux/Talos-v2.efi on EFI
            flush EFI
            write Uki to EFI/Linux/Talos-v2~1.efi on EFI
            flush EFI
            verify EFI/Linux/Talos-v2~1.efi on EFI
            set META 0xe0
            set LoaderEntryOneShot-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f
            set META 0xe0
        "#]],
    );
}

#[test]
fn a_boot_with_nothing_to_do_writes_nothing() {
    let mut disk = sd_boot();
    disk.upgrade(&system("v2"), Start::OneShot, BY).unwrap();
    let Loader::SdBoot(files) = &mut disk.loader else { panic!("another boot loader") };
    files.one_shot = None;
    let id = BootId(8);
    let (_, next) = disk.boot(Some("talos-v2.efi"), BootPath::Firmware, id).unwrap();
    let Next::Judge(judge) = next else { panic!("{next:?}") };
    assert_eq!(disk.record.slots.other(), Other::Trial(Trial::Started { boot: id }));
    check(
        &disk.commit(&judge).unwrap(),
        expect![[r#"
            set LoaderEntryDefault-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f
            overwrite loader/loader.conf on EFI
            flush EFI
            set META 0xe0
        "#]],
    );
    let (steps, next) = disk.boot(Some("talos-v2.efi"), BootPath::Firmware, BootId(9)).unwrap();
    assert_eq!((steps, next), (Vec::new(), Next::Run));
    check(
        &disk.rollback(BY).unwrap(),
        expect![[r#"
            set LoaderEntryDefault-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f
            overwrite loader/loader.conf on EFI
            flush EFI
            set META 0xe0
        "#]],
    );
}

#[test]
fn the_original_finds_its_way_back_when_it_runs_the_installer() {
    for (mut disk, label) in [(grub(), "A"), (sd_boot(), "Talos-v1.efi")] {
        let steps = disk.upgrade(&system("v2"), Start::Default, BY).unwrap();
        let previous = Step::SetMeta { key: 0x06, value: label.into() };
        let at = steps.iter().position(|step| *step == previous).unwrap();
        let changes = |step: &Step| matches!(step, Step::SetVariable { .. } | Step::Exchange { .. });
        assert!(steps[at..].iter().any(changes), "before the default changes");
        assert_eq!(disk.record.slots, Slots::new(Slot::B, Standing::Unproven, Other::Good));
    }
}

#[test]
fn a_record_that_another_installer_overtook_counts_as_none() {
    let mut disk = sd_boot();
    disk.upgrade(&system("v2"), Start::OneShot, BY).unwrap();
    let Loader::SdBoot(mut files) = disk.loader.clone() else { panic!("another boot loader") };
    // The original wrote an image of its own, made it the default and deleted the others.
    files.images = vec![UkiName::parse("Talos-v1.efi").unwrap(), UkiName::parse("Talos-v9.efi").unwrap()];
    files.default = Some("Talos-v9.efi".into());
    let read = |previous| {
        BootDisk::read(Loader::SdBoot(files.clone()), Some(disk.record.clone()), previous).unwrap().record
    };
    assert_eq!(read(None).slots, Slots::found(Slot::A, true));
    assert_eq!(read(None).name(Slot::A), Some("Talos-v9.efi"));
    // It is new, says the original: it has to show that it starts from cold.
    assert_eq!(read(Some("Talos-v1.efi")).slots, Slots::new(Slot::A, Standing::Unproven, Other::Good));
}

#[test]
fn a_reset_leaves_what_a_machine_starts_from_to_the_end() {
    let mut disk = sd_boot();
    disk.upgrade(&system("v2"), Start::OneShot, BY).unwrap();
    let labels = ["EFI", "META", "STATE", "EPHEMERAL"].map(str::to_owned);
    check(
        &disk.clone().reset(&labels).unwrap(),
        expect![[r#"
            delete LoaderEntryOneShot-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f
            set META 0xe0
            delete LoaderEntryOneShot-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f
            delete LoaderEntryDefault-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f
            wipe STATE
            wipe EPHEMERAL
            wipe META
            wipe EFI
        "#]],
    );
    let steps = disk.reset(&["STATE".to_owned()]).unwrap();
    assert_eq!(steps[steps.len() - 2..], [Step::DeleteMeta { key: 9 }, Step::Wipe { label: "STATE".into() }]);
}

#[test]
fn what_cannot_be_written_changes_nothing() {
    for mut disk in [grub(), sd_boot()] {
        let before = disk.clone();
        let bad = NewSystem { cmdline: "a='b'".into(), ..system("v2+1") };
        assert!(disk.upgrade(&bad, Start::OneShot, BY).is_err());
        assert_eq!(disk, before);
    }
    let loader = Loader::SdBoot(SdBootFiles::default());
    assert_eq!(BootDisk::read(loader, None, None), Err(PlanError::NoDefault));
}
