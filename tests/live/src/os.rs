//! One machine with a disk in QEMU, from its installation medium on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

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

    /// Has it installed and Kubernetes started, until both are well.
    #[track_caller]
    pub fn install(&self) {
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
        eventually("bootstrap", STEP_MAX, || self.node(&["bootstrap"])).unwrap();
        self.ready();
        self.slots("the first slot is good", |text| text.contains("default good"));
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
        use std::io::{BufRead, BufReader, Write};
        let socket = self.dir().join("machines").join(self.machine()).join("qmp");
        let monitor = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        monitor.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut answers = BufReader::new(monitor.try_clone().unwrap());
        let mut line = String::new();
        answers.read_line(&mut line).unwrap();
        for command in ["qmp_capabilities", "system_reset"] {
            writeln!(&monitor, "{{\"execute\": \"{command}\"}}").unwrap();
            line.clear();
            answers.read_line(&mut line).unwrap();
            assert!(!line.contains("error"), "{command}: {line}");
        }
        self.told("power cycle");
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
