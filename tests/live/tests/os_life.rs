//! The life of a machine with a disk, in QEMU: installed from its medium, upgraded, rolled back and reset, by BIOS and by UEFI,
//! with Kubernetes on it as what tells a healthy system from others.

use ichor_live::os::{Life, STEP_MAX};
use ichor_live::{root, wait};

/// The network of these tests.
const OCTET: u8 = 89;

fn lives(name: &str, is_uefi: bool) {
    let life = Life::begin(name, OCTET, is_uefi, &root().join("build/images"));
    life.install();

    // From the same medium to the other slot: on trial until it was healthy, then the default.
    let before = life.boot_id();
    life.node(&["upgrade", "--wait=false"]).unwrap();
    life.told("upgrade was taken");
    life.restarted(&before);
    life.ready();
    life.slots("the other slot was kept", |text| text.lines().any(|line| line.starts_with("B default good")));

    // Back.
    let before = life.boot_id();
    life.node(&["rollback"]).unwrap();
    life.told("rollback was taken");
    life.restarted(&before);
    life.slots("the first slot is the default again", |text| {
        text.lines().any(|line| line.starts_with("A default good"))
    });

    // Nothing is left of it: the medium starts, and waits for a configuration.
    life.node(&["reset", "--graceful=false", "--reboot", "--wait=false"]).unwrap();
    life.told("reset was taken");
    let address = life.fleet.loopback(0);
    let disks = ["get", "discoveredvolumes", "--insecure", "-n", &address];
    let empty = wait("maintenance mode", STEP_MAX, || life.fleet.ok(&disks).ok());
    let empty = empty.unwrap_or_else(|error| panic!("{error}{}", life.console()));
    assert!(!empty.contains("EPHEMERAL") && !empty.contains("META"), "{empty}");
    life.told("waits for a configuration again");
    life.fleet.destroy().unwrap();
}

#[test]
fn a_machine_is_installed_upgraded_rolled_back_and_reset_by_uefi() {
    lives("life-uefi", true);
}

#[test]
fn a_machine_is_installed_upgraded_rolled_back_and_reset_by_bios() {
    lives("life-bios", false);
}
