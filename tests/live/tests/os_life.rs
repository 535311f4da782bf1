//! The life of a machine with a disk, in QEMU: installed from its medium, upgraded, rolled back and reset, by BIOS and by UEFI,
//! with Kubernetes on it as what tells a healthy system from others.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use ichor_live::{Fleet, eventually, root, wait};

/// The network of these tests.
const OCTET: u8 = 89;
/// Longest wait for a step: machines are emulated, and Kubernetes is started on them.
const STEP_MAX: Duration = Duration::from_secs(600);
/// Where the slots are told: the record in META.
const SLOTS: &str = "0xe0";

/// Installation media of the kernel for virtual machines.
fn iso() -> PathBuf {
    let dir = root().join("build/os/tests");
    fs::create_dir_all(&dir).unwrap();
    let iso = dir.join("life.iso");
    let done = Command::new(root().join("bin/ichorctl"))
        .args(["image", "build", "iso", "--kernel"])
        .arg(root().join("build/vm/kernel"))
        .args(["--extra-kernel-arg", "console=ttyS0", "--output"])
        .arg(&iso)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    iso
}

struct Life {
    fleet: Fleet,
    started: Instant,
}

impl Life {
    /// A machine that was started from its medium and waits for a configuration.
    fn begin(name: &str, is_uefi: bool) -> Self {
        let life = Self { fleet: Fleet::named(name, OCTET).unwrap(), started: Instant::now() };
        let (cidr, iso) = (format!("10.{OCTET}.0.0/24"), iso());
        let uefi = format!("--with-uefi={is_uefi}");
        let mut args = vec!["cluster", "create", "qemu", "--name", life.fleet.name(), "--cidr", &cidr];
        args.extend(["--controlplanes", "1", "--workers", "0", "--wait-timeout", "10m", &uefi]);
        args.extend(["--presets", "iso,maintenance", "--iso-path", iso.to_str().unwrap()]);
        args.extend(["--disks", "virtio:8GiB", "--memory", "3.0GiB"]);
        args.extend(["--config-patch", "machine: {install: {disk: /dev/vda}}"]);
        // Configurations are written to where it runs.
        let images = root().join("build/images").to_string_lossy().into_owned();
        args.extend(["--images", &images]);
        let made = life.fleet.command(&args).current_dir(life.fleet.home()).output().unwrap();
        assert!(made.status.success(), "{}{}", String::from_utf8_lossy(&made.stderr), life.console());
        life.told("waits for a configuration");
        life
    }

    fn told(&self, what: &str) {
        println!("{:6.1} s  {what}", self.started.elapsed().as_secs_f64());
    }

    /// The end of the console.
    fn console(&self) -> String {
        let name = self.fleet.name();
        let console = self.fleet.home().join(".talos/clusters").join(name);
        let text = fs::read(console.join(format!("{name}-controlplane-1.log"))).unwrap_or_default();
        let lines: Vec<String> = String::from_utf8_lossy(&text).lines().map(str::to_owned).collect();
        format!("\nconsole:\n{}", lines[lines.len().saturating_sub(80)..].join("\n"))
    }

    fn node(&self, args: &[&str]) -> anyhow::Result<String> {
        self.fleet.ok(&[&["-n", &self.fleet.address(0)], args].concat())
    }

    /// Waits until the machine says so.
    #[track_caller]
    fn says(&self, what: &str, args: &[&str], wanted: impl Fn(&str) -> bool) -> String {
        let mut last = String::new();
        let found = wait(what, STEP_MAX, || {
            last = self.node(args).unwrap_or_else(|error| format!("{error:#}"));
            wanted(&last).then(|| last.clone())
        });
        let found = found.unwrap_or_else(|error| panic!("{error}: {last}{}", self.console()));
        self.told(what);
        found
    }

    fn boot_id(&self) -> String {
        eventually("the boot id", STEP_MAX, || self.node(&["read", "/proc/sys/kernel/random/boot_id"]))
            .unwrap()
    }

    /// Waits for another start of the machine, from its disk.
    #[track_caller]
    fn restarted(&self, before: &str) {
        let other = |text: &str| text.trim().len() == 36 && text.trim() != before.trim();
        self.says("runs again", &["read", "/proc/sys/kernel/random/boot_id"], other);
        let line = self.says("from its disk", &["read", "/proc/cmdline"], |text| text.contains("talos."));
        assert!(!line.contains("halt_if_installed"), "started from the medium: {line}");
    }

    /// The slots, as their record tells them.
    #[track_caller]
    fn slots(&self, what: &str, wanted: impl Fn(&str) -> bool) {
        let text = self.says(what, &["get", "metakeys", SLOTS, "-o", "jsonpath={.spec.value}"], wanted);
        println!("{text}");
    }

    #[track_caller]
    fn ready(&self) {
        let healthy = |text: &str| {
            ["etcd", "kubelet"].iter().all(|service| {
                let is_it = |line: &str| line.split_whitespace().any(|word| word == *service);
                text.lines().any(|line| is_it(line) && line.contains("Running") && line.contains(" OK "))
            })
        };
        self.says("etcd and kubelet are healthy", &["services"], healthy);
    }
}

fn lives(name: &str, is_uefi: bool) {
    let life = Life::begin(name, is_uefi);
    let address = life.fleet.loopback(0);
    let config = life.fleet.home().join("controlplane.yaml").to_string_lossy().into_owned();
    let apply = ["apply-config", "--insecure", "-n", &address, "--file", &config];
    eventually("the configuration", STEP_MAX, || life.fleet.ok(&apply)).unwrap();
    life.told("has its configuration");

    // Installed, and started from its disk with the configuration that is there.
    life.says("answers from its disk", &["read", "/proc/cmdline"], |text| {
        text.contains("talos.") && !text.contains("halt_if_installed")
    });
    life.says("its system disk", &["get", "systemdisk"], |text| text.contains("vda"));
    life.says("its volumes", &["get", "volumestatus"], |text| {
        ["STATE", "EPHEMERAL"]
            .iter()
            .all(|id| text.lines().any(|line| line.contains(&format!(" {id} ")) && line.contains("ready")))
    });
    eventually("bootstrap", STEP_MAX, || life.node(&["bootstrap"])).unwrap();
    life.ready();
    life.slots("the first slot is good", |text| text.contains("default good"));

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
