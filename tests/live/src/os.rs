//! One machine with a disk in QEMU, from its installation medium on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{Fleet, eventually, root, wait};

/// Longest wait for a step: machines are emulated, and Kubernetes is started on them.
pub const STEP_MAX: Duration = Duration::from_secs(600);
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

/// Has the monitor of a QEMU do something.
#[track_caller]
pub fn monitor(socket: &Path, command: &Value) {
    use std::io::{BufRead, BufReader, Write};
    let monitor = std::os::unix::net::UnixStream::connect(socket).unwrap();
    monitor.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut answers = BufReader::new(monitor.try_clone().unwrap());
    let mut line = String::new();
    answers.read_line(&mut line).unwrap();
    for command in [&json!({"execute": "qmp_capabilities"}), command] {
        writeln!(&monitor, "{command}").unwrap();
        line.clear();
        answers.read_line(&mut line).unwrap();
        assert!(!line.contains("\"error\""), "{command}: {line}");
    }
}

/// The life of a machine.
pub struct Life {
    /// Its cluster.
    pub fleet: Fleet,
    started: Instant,
}

impl Life {
    /// A machine on the network `10.<octet>.0.0/24` that was started from its medium and waits for a configuration. Container
    /// images come from the OCI layout `images`.
    pub fn begin(name: &str, octet: u8, is_uefi: bool, images: &Path) -> Self {
        let life = Self { fleet: Fleet::named(name, octet).unwrap(), started: Instant::now() };
        let (cidr, iso) = (format!("10.{octet}.0.0/24"), iso());
        let uefi = format!("--with-uefi={is_uefi}");
        let mut args = vec!["cluster", "create", "qemu", "--name", life.fleet.name(), "--cidr", &cidr];
        args.extend(["--controlplanes", "1", "--workers", "0", "--wait-timeout", "10m", &uefi]);
        args.extend(["--presets", "iso,maintenance", "--iso-path", iso.to_str().unwrap()]);
        args.extend(["--disks", "virtio:8GiB", "--memory", "3.0GiB"]);
        args.extend(["--config-patch", "machine: {install: {disk: /dev/vda}}"]);
        args.extend(["--images", images.to_str().unwrap()]);
        // Configurations are written to where it runs.
        let made = life.fleet.command(&args).current_dir(life.fleet.home()).output().unwrap();
        assert!(made.status.success(), "{}{}", String::from_utf8_lossy(&made.stderr), life.console());
        life.told("waits for a configuration");
        life
    }

    /// Installation, upgrade, rollback and reset of a machine on the network `10.<octet>.0.0/24`.
    pub fn lives(name: &str, octet: u8, is_uefi: bool) {
        let life = Self::begin(name, octet, is_uefi, &root().join("build/images"));
        life.install();

        // From the same medium to the other slot: on trial until it was healthy, then the default.
        let before = life.boot_id();
        life.node(&["upgrade", "--wait=false"]).unwrap();
        life.told("upgrade was taken");
        life.restarted(&before);
        life.ready();
        life.slots("the other slot was kept", |text| {
            text.lines().any(|line| line.starts_with("B default good"))
        });

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

    /// The ways that are taken less often, on the network `10.<octet>.0.0/24`: an upgrade that is staged, a power cut, a reset of single
    /// volumes, an upgrade in maintenance mode, a machine that is configured again.
    pub fn lives_otherwise(name: &str, octet: u8, is_uefi: bool) {
        let life = Self::begin(name, octet, is_uefi, &root().join("build/images"));
        life.install();
        let address = life.fleet.loopback(0);
        let insecure = |args: &[&str]| life.fleet.ok(&[args, &["--insecure", "-n", &address]].concat());

        // Written at the next start of the machine, started by the one after it.
        life.node(&["upgrade", "--stage", "--wait=false"]).unwrap();
        life.told("a staged upgrade was taken");
        life.slots("the other slot was kept", |text| {
            text.lines().any(|line| line.starts_with("B default good"))
        });
        life.ready();

        // Without a word to anybody. What is in etcd and on the disk is what was there before.
        let before = life.boot_id();
        life.power_cycle();
        life.restarted(&before);
        life.ready();

        // The configuration and the workloads are gone, the system and META are not: it waits, started from its disk.
        let labels = ["--system-labels-to-wipe", "STATE", "--system-labels-to-wipe", "EPHEMERAL"];
        let reset = ["reset", "--graceful=false", "--reboot", "--wait=false"];
        life.node(&[&reset[..], &labels].concat()).unwrap();
        life.told("a reset of two volumes was taken");
        let volumes = wait("maintenance mode", STEP_MAX, || insecure(&["get", "discoveredvolumes"]).ok());
        let volumes = volumes.unwrap_or_else(|error| panic!("{error}{}", life.console()));
        assert!(volumes.contains("META"), "{volumes}");
        life.told("waits for a configuration, from its disk");

        // There is nothing to be healthy there but the API. The first slot is free again.
        insecure(&["upgrade", "--wait=false"]).unwrap();
        life.told("an upgrade in maintenance mode was taken");
        let gone = wait("the restart", STEP_MAX, || insecure(&["version"]).is_err().then_some(()));
        gone.unwrap_or_else(|error| panic!("{error}{}", life.console()));
        life.told("restarts");
        life.configure();
        life.bootstrap();
        life.ready();
        life.slots("the first slot was kept", |text| {
            text.lines().any(|line| line.starts_with("A default good"))
        });
        life.fleet.destroy().unwrap();
    }

    /// Has it installed and Kubernetes started, until both are well.
    #[track_caller]
    pub fn install(&self) {
        self.configure();
        self.bootstrap();
        self.ready();
        self.slots("the first slot is good", |text| text.contains("default good"));
    }

    /// Starts its cluster.
    #[track_caller]
    fn bootstrap(&self) {
        eventually("bootstrap", STEP_MAX, || self.node(&["bootstrap"])).unwrap();
    }

    /// Gives it its configuration, which it keeps on its disk; it is installed where it is not yet.
    #[track_caller]
    pub fn configure(&self) {
        let address = self.fleet.loopback(0);
        let config = self.fleet.home().join("controlplane.yaml").to_string_lossy().into_owned();
        let apply = ["apply-config", "--insecure", "-n", &address, "--file", &config];
        eventually("the configuration", STEP_MAX, || self.fleet.ok(&apply)).unwrap();
        self.told("has its configuration");

        // Installed, and started from its disk with the configuration that is there.
        self.says("answers from its disk", &["read", "/proc/cmdline"], |text| {
            text.contains("talos.") && !text.contains("halt_if_installed")
        });
        self.says("its system disk", &["get", "systemdisk"], |text| text.contains("vda"));
        self.says("its volumes", &["get", "volumestatus"], |text| {
            ["STATE", "EPHEMERAL"].iter().all(|id| {
                text.lines().any(|line| line.contains(&format!(" {id} ")) && line.contains("ready"))
            })
        });
    }

    /// Prints what happened, and when.
    pub fn told(&self, what: &str) {
        println!("{:6.1} s  {what}", self.started.elapsed().as_secs_f64());
    }

    /// The directory of the cluster.
    fn dir(&self) -> PathBuf {
        self.fleet.home().join(".talos/clusters").join(self.fleet.name())
    }

    /// The name of the machine.
    fn machine(&self) -> String {
        format!("{}-controlplane-1", self.fleet.name())
    }

    /// Everything that was on the console.
    pub fn console_text(&self) -> String {
        let text = fs::read(self.dir().join(format!("{}.log", self.machine()))).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The end of the console.
    pub fn console(&self) -> String {
        let text = self.console_text();
        let lines: Vec<&str> = text.lines().collect();
        format!("\nconsole:\n{}", lines[lines.len().saturating_sub(80)..].join("\n"))
    }

    /// Runs a command on the machine.
    ///
    /// # Errors
    /// When it fails.
    pub fn node(&self, args: &[&str]) -> anyhow::Result<String> {
        self.fleet.ok(&[&["-n", &self.fleet.address(0)], args].concat())
    }

    /// Takes the power away and gives it back: the monitor ends QEMU, and its supervisor starts another one.
    pub fn power_cycle(&self) {
        self.monitor(&json!({"execute": "system_reset"}));
        self.told("power cycle");
    }

    /// Has the monitor of QEMU do something.
    #[track_caller]
    pub fn monitor(&self, command: &Value) {
        let socket = self.dir().join("machines").join(self.machine()).join("qmp");
        monitor(&socket, command);
    }

    /// Waits until the machine says so.
    #[track_caller]
    pub fn says(&self, what: &str, args: &[&str], wanted: impl Fn(&str) -> bool) -> String {
        let mut last = String::new();
        let found = wait(what, STEP_MAX, || {
            last = self.node(args).unwrap_or_else(|error| format!("{error:#}"));
            wanted(&last).then(|| last.clone())
        });
        let found = found.unwrap_or_else(|error| panic!("{error}: {last}{}", self.console()));
        self.told(what);
        found
    }

    /// Which start of the machine this is.
    pub fn boot_id(&self) -> String {
        eventually("the boot id", STEP_MAX, || self.node(&["read", "/proc/sys/kernel/random/boot_id"]))
            .unwrap()
    }

    /// Waits for another start of the machine, from its disk.
    #[track_caller]
    pub fn restarted(&self, before: &str) {
        let other = |text: &str| text.trim().len() == 36 && text.trim() != before.trim();
        self.says("runs again", &["read", "/proc/sys/kernel/random/boot_id"], other);
        let line = self.says("from its disk", &["read", "/proc/cmdline"], |text| text.contains("talos."));
        assert!(!line.contains("halt_if_installed"), "started from the medium: {line}");
    }

    /// Waits for what the record of the slots tells.
    #[track_caller]
    pub fn slots(&self, what: &str, wanted: impl Fn(&str) -> bool) {
        let text = self.says(what, &["get", "metakeys", SLOTS, "-o", "jsonpath={.spec.value}"], wanted);
        println!("{text}");
    }

    /// Waits until Kubernetes is well.
    #[track_caller]
    pub fn ready(&self) {
        let healthy = |text: &str| {
            ["etcd", "kubelet"].iter().all(|service| {
                let is_it = |line: &str| line.split_whitespace().any(|word| word == *service);
                text.lines().any(|line| is_it(line) && line.contains("Running") && line.contains(" OK "))
            })
        };
        self.says("etcd and kubelet are healthy", &["services"], healthy);
    }
}
