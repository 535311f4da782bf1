//! What `os_life` does with UEFI, with BIOS, and what happens to machines less often.

use ichor_live::os::Life;

#[test]
fn a_machine_is_installed_upgraded_rolled_back_and_reset_by_bios() {
    Life::lives("life-bios", 87, false);
}

#[test]
fn a_machine_is_upgraded_later_and_without_configuration_and_loses_power() {
    Life::lives_otherwise("life-otherwise", 86, true);
}
