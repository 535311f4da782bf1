//! A machine with a disk, in QEMU with UEFI: installed from its medium, upgraded, rolled back and reset, with Kubernetes on it as
//! what tells a healthy system from others. `os_life_more` is the same with BIOS.

use ichor_live::os::Life;

#[test]
fn a_machine_is_installed_upgraded_rolled_back_and_reset_by_uefi() {
    Life::lives("life-uefi", 89, true);
}
