//! The same node on a real kernel: QEMU without KVM, our initramfs, squashfs root, real PID 1,
//! cgroup v2, devtmpfs, an address by DHCP.

use anyhow::ensure;
use ichor_live::vm::{BOOT_MAX, Machine, TimeServer};
use ichor_live::{Fleet, eventually, wait};
use jiff::{Timestamp, ToSpan};

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
    let status = wait("the machine is off", BOOT_MAX, || machine.ended()).unwrap();
    assert!(status.success(), "{status}");
}

/// The machine starts with a clock that is 200 days behind and makes its certificate by it, which ended long ago for
/// everybody else. Then it learns what time it is.
#[test]
fn certificates_are_renewed_when_the_clock_moves_forward() {
    let client = Fleet::named("clock", 90).unwrap();
    let address = client.loopback(2);
    let time = TimeServer::start().unwrap();
    let now = Timestamp::now();
    let past = (now - 4800.hours()).strftime("base=%Y-%m-%dT%H:%M:%S").to_string();
    let _machine = Machine::boot_with(&address, &["-rtc", &past], &[("ICHOR_VM_RESTRICT", "off")]).unwrap();

    let dir = client.home().join("config");
    let dir = dir.to_string_lossy().into_owned();
    let endpoint = format!("https://{address}:6443");
    let patch = "machine: {time: {servers: [10.0.2.2], bootTimeout: 5s}}";
    client
        .ok(&[
            "gen",
            "config",
            "clock",
            &endpoint,
            "--additional-sans",
            &address,
            "--config-patch",
            patch,
            "--output",
            &dir,
        ])
        .unwrap();
    let (config, talosconfig) = (format!("{dir}/controlplane.yaml"), format!("{dir}/talosconfig"));
    let node = |args: &[&str]| {
        let all = [&["--talosconfig", &talosconfig, "-e", &address, "-n", "10.0.2.15"], args].concat();
        client.run(&all)
    };
    // The API that follows shows a certificate that has ended.
    let mut configured = false;
    let told = eventually("a certificate of the past", BOOT_MAX, || {
        if !configured {
            client.ok(&["apply-config", "--insecure", "-n", &address, "-f", &config])?;
            configured = true;
        }
        let output = node(&["version"])?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success() && text.contains("expired"), "{text}");
        Ok(text)
    })
    .unwrap();
    println!("before: {}", told.lines().next().unwrap_or_default());
    wait("a question for the time", BOOT_MAX, || time.was_asked().then_some(())).unwrap();
    time.tell(0);
    let told = eventually("a certificate of today", BOOT_MAX, || {
        let output = node(&["version"])?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{text}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    });
    assert!(told.unwrap().contains("Server:"));
}
