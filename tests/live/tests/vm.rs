//! The same node on a real kernel: QEMU without KVM, our initramfs, squashfs root, real PID 1,
//! cgroup v2, devtmpfs, an address by DHCP.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::ensure;
use ichor_block::Guid;
use ichor_block::device::Device;
use ichor_block::gpt::{Geometry, NewPartition, Table};
use ichor_live::vm::{BOOT_MAX, Machine, TimeServer};
use ichor_live::{Fleet, eventually, wait};
use jiff::{Timestamp, ToSpan};

#[test]
fn a_node_boots_takes_a_configuration_reboots_and_stops_on_a_real_kernel() {
    let client = Fleet::named("vm", 90).unwrap();
    let address = client.loopback(1);
    let (disk, data) = (client.home().join("disk"), client.home().join("data"));
    make_disk(&disk);
    File::create(&data).unwrap().set_len(1 << 30).unwrap();
    let drive = |path: &Path, id: &str| format!("file={},format=raw,if=none,id={id}", path.display());
    let (disk_drive, data_drive) = (drive(&disk, "disk"), drive(&data, "data"));
    let drives = [
        ["-drive", &disk_drive, "-device", "virtio-blk-pci,drive=disk,serial=test-disk"],
        ["-drive", &data_drive, "-device", "virtio-blk-pci,drive=data,serial=data-disk"],
    ]
    .concat();
    let mut machine = Machine::boot_with(&address, &drives, &[]).unwrap();
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

    disks_are_shown_and_wiped(&client, &address, &disk);

    // A configuration, then the configured API over mutual TLS.
    let dir = client.home().join("config");
    let dir_text = dir.to_string_lossy().into_owned();
    let endpoint = format!("https://{address}:6443");
    let generate = ["gen", "config", "vm", &endpoint, "--additional-sans", &address, "--output", &dir_text];
    client.ok(&[&generate[..], &["--config-patch", VOLUMES_PATCH]].concat()).unwrap();
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
        mounts.contains("overlay / overlay ro,") && mounts.contains("cgroup2") && mounts.contains("devtmpfs"),
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

    // META is on its partition, and survives.
    node(&["meta", "write", "0x0c", "kept-on-disk"]).unwrap();
    let before = volumes_are_mounted(&node);

    // A real reboot: the machine comes back by itself with its configuration and its identity, which are on STATE.
    let boot_id = node(&["read", "/proc/sys/kernel/random/boot_id"]).unwrap();
    node(&["reboot", "--wait=false"]).unwrap();
    wait("another boot", BOOT_MAX, || {
        let found = node(&["read", "/proc/sys/kernel/random/boot_id"]).ok()?;
        (found != boot_id).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}"));
    let after_reboot = volumes_are_mounted(&node);
    assert_eq!(before, after_reboot, "filesystems and identity are those of before");
    let kept = node(&["get", "metakeys", "0x0c", "-o", "yaml"]).unwrap();
    assert!(kept.contains("kept-on-disk"), "{kept}");
    let after = node(&["read", "/proc/sys/kernel/random/boot_id"]).unwrap();
    assert_ne!(boot_id, after);

    // Power off ends the virtual machine.
    node(&["shutdown", "--wait=false"]).unwrap();
    let status = wait("the machine is off", BOOT_MAX, || machine.ended()).unwrap();
    assert!(status.success(), "{status}");
}

/// Volumes on a second disk; the one that is too large for it is refused by name.
const VOLUMES_PATCH: &str = r#"
machine:
  features: {diskQuotaSupport: true}
---
apiVersion: v1alpha1
kind: UserVolumeConfig
name: local
provisioning: {diskSelector: {match: "disk.serial == 'data-disk'"}, minSize: 200MiB, maxSize: 400MiB}
---
apiVersion: v1alpha1
kind: SwapVolumeConfig
name: swap
provisioning: {diskSelector: {match: "disk.serial == 'data-disk'"}, minSize: 64MiB, maxSize: 64MiB}
---
apiVersion: v1alpha1
kind: RawVolumeConfig
name: huge
provisioning: {diskSelector: {match: "disk.serial == 'data-disk'"}, minSize: 100GiB}
"#;

/// STATE and EPHEMERAL are partitions of the system disk, volumes of the configuration are where they belong. The
/// UUIDs of the filesystems and the identity of the machine: what must not change.
fn volumes_are_mounted(node: &impl Fn(&[&str]) -> anyhow::Result<String>) -> String {
    let shows = |what: &str, args: &[&str], lines: &[&[&str]]| {
        let is_shown = |text: &String| {
            lines.iter().all(|words| {
                text.lines().any(|line| {
                    let found: Vec<&str> = line.split_whitespace().collect();
                    words.iter().all(|word| found.contains(word))
                })
            })
        };
        wait(what, BOOT_MAX, || node(args).ok().filter(is_shown))
            .unwrap_or_else(|error| panic!("{error}: {:?}", node(args)))
    };
    shows(
        "volumes are ready",
        &["get", "volumestatus"],
        &[
            &["STATE", "partition", "ready", "/dev/vda2"],
            &["EPHEMERAL", "partition", "ready", "/dev/vda3"],
            &["u-local", "partition", "ready"],
            &["s-swap", "partition", "ready"],
            &["r-huge", "failed"],
        ],
    );
    shows(
        "volumes are mounted",
        &["get", "mountstatus"],
        &[
            &["STATE", "/dev/vda2", "/system/state", "xfs"],
            &["EPHEMERAL", "/dev/vda3", "/var", "xfs"],
            &["u-local", "/var/mnt/local", "xfs"],
            &["s-swap", "swap"],
        ],
    );
    shows("swap is on", &["get", "swapstatus"], &[&["SwapStatus"]]);
    let huge = node(&["get", "volumestatus", "r-huge", "-o", "yaml"]).unwrap();
    assert!(huge.contains("no disk has room") && huge.contains("/dev/vdb has only"), "{huge}");
    let mounts = node(&["read", "/proc/mounts"]).unwrap();
    let var = mounts.lines().rfind(|line| line.split(' ').nth(1) == Some("/var")).unwrap_or_default();
    assert!(var.starts_with("/dev/vda3 /var xfs rw") && var.contains("prjquota"), "{mounts}");
    // What is written to the image's directories is kept on EPHEMERAL.
    let kept = node(&["ls", "/var/system/overlays"]).unwrap();
    assert!(kept.contains("etc-kubernetes-diff"), "{kept}");
    let shown = node(&["mounts"]).unwrap();
    assert!(shown.lines().any(|line| line.contains("/dev/vda3") && line.contains("/var")), "{shown}");

    let volumes = node(&["get", "discoveredvolumes", "-o", "yaml"]).unwrap();
    let identity = node(&["get", "identities", "-o", "yaml"]).unwrap();
    let lines = volumes.lines().filter(|line| line.trim_start().starts_with("uuid:"));
    let mut kept: Vec<&str> = lines.chain(identity.lines().filter(|line| line.contains("nodeId"))).collect();
    // Swap areas are made anew at every start.
    let swap = node(&["get", "volumestatus", "s-swap", "-o", "yaml"]).unwrap();
    assert!(swap.contains("filesystem: swap"), "{swap}");
    let count = kept.len();
    assert!(count >= 4, "{volumes}\n{identity}");
    kept.retain(|line| !swap_uuid(&volumes).is_some_and(|uuid| line.contains(uuid)));
    kept.join("\n")
}

/// The UUID of the swap area among the documents of discovered volumes.
fn swap_uuid(volumes: &str) -> Option<&str> {
    let document = volumes.split("---").find(|document| document.contains("name: swap"))?;
    document.lines().find_map(|line| line.trim().strip_prefix("uuid: "))
}

/// A disk with META, as an installed machine has it, and a partition with swap in it.
fn make_disk(path: &Path) {
    let geometry = Geometry { size: 4 << 30, sector_size: 512, io_size: 0 };
    let mut table = Table::new(geometry, Guid::from_random([1; 16])).unwrap();
    for (name, guid, size) in [("META", 2, 1 << 20), ("DATA", 3, 16 << 20)] {
        table
            .add(&NewPartition::new(name, Guid::LINUX_DATA, Guid::from_random([guid; 16])).size(size))
            .unwrap();
    }
    let mut file = File::create(path).unwrap();
    file.set_len(geometry.size).unwrap();
    table.write(&mut file).unwrap();
    // A header of swap: its version, its pages, its signature at the end of the first page.
    let (data, _) = table.offset_and_size(2).unwrap();
    for (offset, bytes) in [(1024, &[1, 0, 0, 0, 255, 0, 0, 0][..]), (4086, b"SWAPSPACE2")] {
        file.seek(SeekFrom::Start(data + offset)).unwrap();
        file.write_all(bytes).unwrap();
    }
}

/// What the machine finds on its disk, before it is anybody's: a partition is wiped by its name, on the disk itself.
fn disks_are_shown_and_wiped(client: &Fleet, address: &str, disk: &Path) {
    let get = |resource: &str| client.ok(&["get", resource, "--insecure", "-n", address]);
    let wait_for = |resource: &str, word: &str| {
        wait(&format!("{word} among {resource}"), BOOT_MAX, || {
            get(resource).ok().filter(|text| text.contains(word))
        })
        .unwrap()
    };
    let disks = wait_for("disks", "test-disk");
    let line = disks.lines().find(|line| line.contains(" vda ")).unwrap();
    assert!(line.contains("4.3 GB") && line.contains("virtio"), "{disks}");
    let volumes = wait_for("discoveredvolumes", " vda2 ");
    for (id, words) in [("vda", ["gpt", "disk"]), ("vda1", ["META", "partition"]), ("vda2", ["swap", "DATA"])]
    {
        let line = volumes.lines().find(|line| line.split_whitespace().any(|word| word == id));
        assert!(words.iter().all(|word| line.is_some_and(|line| line.contains(word))), "{id}: {volumes}");
    }
    wait_for("systemdisk", "vda");
    let meta = wait_for("volumestatus", "/dev/vda1");
    assert!(meta.lines().any(|line| line.contains(" META ") && line.contains("ready")), "{meta}");
    wait_for("blockdevices", " vda1 ");

    client
        .refused(&["wipe", "disk", "vdz", "--insecure", "-n", address], "blockdevice \"vdz\" not found")
        .unwrap();
    client.ok(&["wipe", "disk", "vda2", "--drop-partition", "--insecure", "-n", address]).unwrap();
    wait("the partition is gone", BOOT_MAX, || {
        get("discoveredvolumes").ok().filter(|text| !text.contains(" vda2 "))
    })
    .unwrap();
    wait("the device is gone", BOOT_MAX, || get("blockdevices").ok().filter(|text| !text.contains(" vda2 ")))
        .unwrap();
    let device = Device::open(disk).unwrap();
    let (table, health) = device.table().unwrap().unwrap();
    assert_eq!(table.partitions().keys().collect::<Vec<_>>(), [&1], "{health:?}");
    let mut start = vec![0; 32 << 20];
    File::open(disk).unwrap().read_exact(&mut start).unwrap();
    assert!(!start.windows(10).any(|window| window == b"SWAPSPACE2"));
}

/// What the machine below is asked for beside the usual: a rule for the disk, a module with a parameter, files.
const DEVICES_PATCH: &str = r#"
machine:
  udev:
    rules:
      - SUBSYSTEM=="block", ENV{ID_SERIAL}=="ichor0", SYMLINK+="disk/by-rule/ichor"
  kernel:
    modules:
      - name: dummy
        parameters: [numdummies=2]
  files:
    - {path: /var/etc/made, op: create, content: made, permissions: 0o640}
    - {path: /etc/nfsmount.conf, op: append, content: "appended = true", permissions: 0o644}
    - {path: /etc/refused, op: create, content: x, permissions: 0o644}
"#;

/// A disk and a second network card whose drivers are in no list of ours: the device manager finds and loads them.
#[test]
fn devices_get_their_drivers_from_the_device_manager() {
    let client = Fleet::named("devices", 90).unwrap();
    let address = client.loopback(3);
    let disk = client.home().join("disk.raw");
    std::fs::File::create(&disk).unwrap().set_len(64 << 20).unwrap();
    let drive = format!("file={},format=raw,if=none,id=d0", disk.display());
    let machine = Machine::boot_with(
        &address,
        &[
            &["-drive", &drive, "-device", "virtio-blk-pci,drive=d0,serial=ichor0"][..],
            &["-netdev", "user,id=n1,net=10.9.0.0/24,restrict=on", "-device", "vmxnet3,netdev=n1,romfile="],
            &["-device", "virtio-scsi-pci", "-device", "virtio-rng-pci"],
        ]
        .concat(),
        &[],
    )
    .unwrap();

    let dir = client.home().join("config").to_string_lossy().into_owned();
    let endpoint = format!("https://{address}:6443");
    let generate = ["gen", "config", "devices", &endpoint, "--additional-sans", &address, "--output", &dir];
    client.ok(&[&generate[..], &["--config-patch", DEVICES_PATCH]].concat()).unwrap();
    let (config, talosconfig) = (format!("{dir}/controlplane.yaml"), format!("{dir}/talosconfig"));
    let once = |args: &[&str]| {
        client.ok(&[&["--talosconfig", &talosconfig, "-e", &address, "-n", "10.0.2.15"], args].concat())
    };
    eventually("the machine takes its configuration", BOOT_MAX, || {
        let applied = client.ok(&["apply-config", "--insecure", "-n", &address, "-f", &config]);
        if once(&["version"]).is_ok() { Ok(()) } else { applied.map(drop) }
    })
    .unwrap();
    let node = |args: &[&str]| eventually("an answer", BOOT_MAX, || once(args));
    let shows = |what: &str, args: &[&str], text: &str| {
        wait(what, BOOT_MAX, || once(args).ok().filter(|shown| shown.contains(text)))
            .unwrap_or_else(|error| panic!("{error}: no {text:?} in {:?}\n{}", once(args), machine.console()))
    };

    // The service, and what follows from it.
    let services = node(&["services"]).unwrap();
    let line = services.lines().find(|line| line.contains(" udevd ")).unwrap_or_else(|| panic!("{services}"));
    assert!(line.contains("Running") && line.contains(" OK "), "{services}");
    shows("devices are ready", &["get", "devicesstatuses", "-o", "yaml"], "ready: true");

    // Drivers by modalias: nothing of ours names them.
    let modules = node(&["read", "/proc/modules"]).unwrap();
    for module in ["virtio_blk", "virtio_net", "vmxnet3", "virtio_scsi", "virtio_rng"] {
        assert!(modules.lines().any(|line| line.starts_with(&format!("{module} "))), "{module} in {modules}");
    }
    shows("a link to the disk", &["ls", "/dev/disk/by-id"], "virtio-ichor0");
    shows("its path", &["ls", "/dev/disk/by-path"], "pci-0000:00");
    let links = node(&["get", "links"]).unwrap();
    assert!(links.contains("enp0s"), "links have predictable names: {links}");

    // Of the configuration.
    shows("the rule's link", &["ls", "/dev/disk/by-rule"], "ichor");
    shows("links of the module", &["get", "links"], "dummy1");
    shows("the file that was made", &["read", "/var/etc/made"], "made");
    shows("the file that was changed", &["read", "/etc/nfsmount.conf"], "nolock=true\n\nappended = true");
    let refused = "/etc/refused cannot be created; only files in /var can";
    shows("the file that was refused", &["dmesg"], refused);

    // The root cannot be written to, and there is nothing in it to write a command for.
    let mounts = node(&["read", "/proc/self/mounts"]).unwrap();
    let root =
        mounts.lines().find(|line| line.split(' ').nth(1) == Some("/")).unwrap_or_else(|| panic!("{mounts}"));
    assert!(root.starts_with("overlay / overlay ro,"), "{root}");
    let programs = node(&["ls", "/usr/bin"]).unwrap();
    for absent in ["sh", "bash", "busybox", "perl", "python3", "apt", "dpkg"] {
        let found = programs.lines().any(|line| line.split_whitespace().last() == Some(absent));
        assert!(!found, "{absent} in {programs}");
    }
    assert!(programs.contains("systemd-udevd") && programs.contains("cryptsetup"), "{programs}");
    // The archive that it came from is gone, but for the images.
    let initramfs = node(&["read", "/proc/meminfo"]).unwrap();
    println!("{}", initramfs.lines().take(3).collect::<Vec<_>>().join("; "));
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
