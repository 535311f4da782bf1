//! The same node on a real kernel: QEMU without KVM, our initramfs, squashfs root, real PID 1,
//! cgroup v2, devtmpfs, an address by DHCP.

use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use ichor_live::{Fleet, eventually, root, wait};

/// Longest wait for a step: there is no hardware that helps, and the host may be busy.
const BOOT_MAX: Duration = Duration::from_secs(400);

/// A virtual machine that ends with the test.
struct Machine {
    qemu: Child,
    console: std::path::PathBuf,
}

impl Machine {
    fn boot(address: &str) -> Result<Self> {
        // A socket that can be bound now can be bound by QEMU in a moment.
        drop(TcpListener::bind((address, 50000)).with_context(|| format!("{address}:50000 is busy"))?);
        let console = root().join("build/vm/console.log");
        let qemu = Command::new(root().join("scripts/vm"))
            .args(["qemu", "-serial", "stdio"])
            .env("ICHOR_VM_ADDRESS", address)
            .stdin(Stdio::null())
            .stdout(fs::File::create(&console)?)
            .stderr(Stdio::inherit())
            .spawn()
            .context("start scripts/vm")?;
        Ok(Self { qemu, console })
    }

    fn console(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.console).unwrap_or_default()).into_owned()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        if std::thread::panicking() {
            eprintln!("console:\n{}", self.console());
        }
    }
}

#[test]
fn a_node_boots_takes_a_configuration_reboots_and_stops_on_a_real_kernel() {
    let client = Fleet::named("vm", 90).unwrap();
    let address = client.loopback(1);
    let mut machine = Machine::boot(&address).unwrap();
    let maintenance = |what: &str| {
        wait(what, BOOT_MAX, || client.ok(&["get", "addresses", "--insecure", "-n", &address]).ok())
    };

    // Maintenance mode, address by DHCP.
    let addresses = maintenance("the maintenance API answers").unwrap();
    wait("an address by DHCP", BOOT_MAX, || {
        client
            .ok(&["get", "addresses", "--insecure", "-n", &address])
            .ok()
            .filter(|t| t.contains("10.0.2.15"))
    })
    .unwrap_or_else(|error| panic!("{error}: {addresses}"));

    // A configuration, then the configured API over mutual TLS.
    let dir = client.home().join("config");
    let dir_text = dir.to_string_lossy().into_owned();
    let endpoint = format!("https://{address}:6443");
    client
        .ok(&["gen", "config", "vm", &endpoint, "--additional-sans", &address, "--output", &dir_text])
        .unwrap();
    let (config, talosconfig) = (format!("{dir_text}/controlplane.yaml"), format!("{dir_text}/talosconfig"));
    let node = |args: &[&str]| {
        let mut all = vec!["--talosconfig", &talosconfig, "-e", &address, "-n", "10.0.2.15"];
        all.extend(args);
        client.ok(&all)
    };
    // The answer to the configuration may get lost when the API changes over to it; asked again, the machine may
    // already know its owner.
    let configure = || {
        let mut version = None;
        eventually("the machine takes its configuration", BOOT_MAX, || {
            let applied = client.ok(&["apply-config", "--insecure", "-n", &address, "-f", &config]);
            version = node(&["version"]).ok();
            if version.is_some() { Ok(()) } else { applied.map(drop) }
        })
        .unwrap();
        let version = version.map_or_else(|| eventually("version", BOOT_MAX, || node(&["version"])), Ok);
        let version = version.unwrap();
        assert!(version.contains("Server:"), "{version}");
    };
    configure();
    let node = |args: &[&str]| eventually("an answer", BOOT_MAX, || node(args));
    wait("the kind of machine", BOOT_MAX, || {
        node(&["get", "machinetype", "-o", "yaml"]).ok().filter(|kind| kind.contains("controlplane"))
    })
    .unwrap();
    // The container runtime, in its group of the unified hierarchy.
    let healthy = |text: &String| {
        text.lines().any(|line| line.contains(" cri ") && line.contains("Running") && line.contains(" OK "))
    };
    wait("containerd is healthy", BOOT_MAX, || node(&["services"]).ok().filter(healthy)).unwrap();
    let processes = node(&["read", "/sys/fs/cgroup/podruntime/runtime/cgroup.procs"]).unwrap();
    assert!(!processes.trim().is_empty());
    let mounts = node(&["read", "/proc/self/mounts"]).unwrap();
    assert!(
        mounts.contains("squashfs") && mounts.contains("cgroup2") && mounts.contains("devtmpfs"),
        "{mounts}"
    );

    // The daemons are confined here as in a sandbox, by the unified control groups.
    for (group, file, expected) in [
        ("apid", "memory.max", "134217728"),
        ("apid", "memory.swap.max", "0"),
        ("apid", "memory.min", "16777216"),
        ("apid", "pids.max", "64"),
    ] {
        let found = node(&["read", &format!("/sys/fs/cgroup/system/{group}/{file}")]).unwrap();
        assert_eq!(found.trim(), expected, "{group} {file}");
    }
    let pid = node(&["read", "/sys/fs/cgroup/system/apid/cgroup.procs"]).unwrap();
    let status = node(&["read", &format!("/proc/{}/status", pid.trim())]).unwrap();
    for line in ["Uid:\t50\t50\t50\t50", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{line:?} in {status}");
    }
    let seen = node(&["read", &format!("/proc/{}/mountinfo", pid.trim())]).unwrap();
    assert!(!seen.contains("/system/state") && !seen.contains(" / / rw"), "{seen}");

    // A real reboot: without disks the machine comes back to maintenance mode, with a new boot id.
    let boot_id = node(&["read", "/proc/sys/kernel/random/boot_id"]).unwrap();
    node(&["reboot", "--wait=false"]).unwrap();
    maintenance("the maintenance API answers after the reboot").unwrap();
    configure();
    let after = node(&["read", "/proc/sys/kernel/random/boot_id"]).unwrap();
    assert_ne!(boot_id, after);

    // Power off ends the virtual machine.
    node(&["shutdown", "--wait=false"]).unwrap();
    let status = wait("the machine is off", BOOT_MAX, || machine.qemu.try_wait().ok().flatten()).unwrap();
    assert!(status.success(), "{status}");
}
