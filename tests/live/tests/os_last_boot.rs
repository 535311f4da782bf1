//! Why a machine went down: each cause is brought about on a machine in QEMU, and `ichorctl why --last-boot` has to name it. A
//! slot that failed is part of `os_bad`.

use std::fs::File;
use std::path::Path;

use ichor_block::Guid;
use ichor_block::gpt::{Geometry, NewPartition, Table};
use ichor_live::os::{Life, monitor};
use ichor_live::vm::{BOOT_MAX, Machine};
use ichor_live::{Fleet, eventually, root, wait};
use serde_json::json;

/// A machine that gives up as soon as somebody asks it to, or when it has no memory left.
const FRAGILE: &str =
    "machine: {sysctls: {kernel.unknown_nmi_panic: '1', kernel.panic: '1', vm.panic_on_oom: '1'}}";

/// Waits for the next start, and for what it says of the one before.
#[track_caller]
fn went_down(life: &Life, before: &str, wanted: &str) {
    life.restarted(before);
    life.says(wanted, &["why", "--last-boot"], |text| text.contains(wanted));
}

#[test]
fn a_machine_tells_reboots_power_cuts_panics_and_lack_of_memory_apart() {
    let life = Life::begin("last-boot", 85, true, &root().join("build/images"));
    life.configure();
    life.node(&["patch", "machineconfig", "--mode", "no-reboot", "--patch", FRAGILE]).unwrap();
    for setting in ["kernel/unknown_nmi_panic", "vm/panic_on_oom"] {
        life.says(setting, &["read", &format!("/proc/sys/{setting}")], |text| text.trim() == "1");
    }

    let before = life.boot_id();
    life.node(&["reboot", "--wait=false"]).unwrap();
    went_down(&life, &before, "reboot was asked for by a client");

    let before = life.boot_id();
    life.power_cycle();
    went_down(&life, &before, "stopped without a word");

    let before = life.boot_id();
    life.monitor(&json!({"execute": "inject-nmi"}));
    life.told("an interrupt that nobody expects");
    went_down(&life, &before, "the kernel panicked: NMI");
    let log = life.node(&["logs", "last-crash"]).unwrap();
    assert!(log.contains("Kernel panic - not syncing"), "{log}");

    let before = life.boot_id();
    life.monitor(&json!({"execute": "balloon", "arguments": {"value": 64 << 20}}));
    life.told("the memory is taken away");
    went_down(&life, &before, "ran out of memory");

    life.fleet.destroy().unwrap();
}

/// A disk with META, as an installed machine has it.
fn make_disk(path: &Path) {
    let geometry = Geometry { size: 4 << 30, sector_size: 512, io_size: 0 };
    let mut table = Table::new(geometry, Guid::from_random([1; 16])).unwrap();
    let meta = NewPartition::new("META", Guid::LINUX_DATA, Guid::from_random([2; 16])).size(1 << 20);
    table.add(&meta).unwrap();
    let mut file = File::create(path).unwrap();
    file.set_len(geometry.size).unwrap();
    table.write(&mut file).unwrap();
}

/// The kernel stops at a panic here, and nothing keeps its last words: only the watchdog is left.
const WATCHED: &str = "
machine: {sysctls: {kernel.unknown_nmi_panic: '1', kernel.panic: '0'}}
---
apiVersion: v1alpha1
kind: WatchdogTimerConfig
device: /dev/watchdog0
timeout: 30s
";

#[test]
fn a_machine_tells_that_its_watchdog_restarted_it() {
    let client = Fleet::named("watchdog", 90).unwrap();
    let address = client.loopback(4);
    let disk = client.home().join("disk");
    make_disk(&disk);
    let drive = format!("file={},format=raw,if=none,id=disk", disk.display());
    let socket = client.home().join("qmp");
    let qmp = format!("unix:{},server=on,wait=off", socket.display());
    let devices = ["-drive", &drive, "-device", "virtio-blk-pci,drive=disk", "-qmp", &qmp];
    let watchdog = ["-device", "i6300esb", "-action", "watchdog=reset"];
    let machine = Machine::boot_with(&address, &[&devices[..], &watchdog].concat(), &[]).unwrap();

    let dir = client.home().join("config").to_string_lossy().into_owned();
    let endpoint = format!("https://{address}:6443");
    let generate = ["gen", "config", "watchdog", &endpoint, "--additional-sans", &address, "--output", &dir];
    client.ok(&[&generate[..], &["--config-patch", WATCHED]].concat()).unwrap();
    let (config, talosconfig) = (format!("{dir}/controlplane.yaml"), format!("{dir}/talosconfig"));
    let node = |args: &[&str]| {
        client.ok(&[&["--talosconfig", &talosconfig, "-e", &address, "-n", "10.0.2.15"], args].concat())
    };
    eventually("the machine takes its configuration", BOOT_MAX, || {
        let applied = client.ok(&["apply-config", "--insecure", "-n", &address, "-f", &config]);
        if node(&["version"]).is_ok() { Ok(()) } else { applied.map(drop) }
    })
    .unwrap();
    let says = |what: &str, args: &[&str], wanted: &str| {
        let found = wait(what, BOOT_MAX, || node(args).ok().filter(|text| text.contains(wanted)));
        found.unwrap_or_else(|error| panic!("{error}: {:?}\n{}", node(args), machine.console()))
    };
    says("the watchdog is armed", &["get", "watchdogtimerstatuses", "-o", "yaml"], "/dev/watchdog0");
    says("the setting", &["read", "/proc/sys/kernel/unknown_nmi_panic"], "1");
    let boot_id = || node(&["read", "/proc/sys/kernel/random/boot_id"]).ok();
    let before = wait("the boot id", BOOT_MAX, boot_id).unwrap();

    monitor(&socket, &json!({"execute": "inject-nmi"}));
    wait("another boot", BOOT_MAX, || boot_id().filter(|now| *now != before))
        .unwrap_or_else(|error| panic!("{error}\n{}", machine.console()));
    // It ends with 1 where a machine went down as it should not.
    let why = || node(&["why", "--last-boot"]).unwrap_or_else(|error| format!("{error:#}"));
    let told = || why().contains("the watchdog restarted the machine").then_some(());
    wait("the cause", BOOT_MAX, told).unwrap_or_else(|error| panic!("{error}: {}", why()));
}
