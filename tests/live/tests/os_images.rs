//! Images of the operating system as `ichorctl image build` makes them, each started by real firmware in QEMU until its API
//! answers, and the places where a machine finds what it is to be: volumes and web servers.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use ichor_block::Guid;
use ichor_block::gpt::{Geometry, NewPartition, Table};
use ichor_image::{Content, fat};
use ichor_live::vm::{BOOT_MAX, Machine};
use ichor_live::{Fleet, eventually, root, wait};

/// The network of these tests.
const OCTET: u8 = 93;
const MEDIA_MAX: u64 = 120_000_000;

/// Builds an image of the kernel for virtual machines, and once more to the same bytes.
fn image(kind: &str, name: &str, more: &[&str]) -> PathBuf {
    let dir = root().join("build/os/tests");
    fs::create_dir_all(&dir).unwrap();
    let make = |output: &Path| {
        let done = Command::new(root().join("bin/ichorctl"))
            .args(["image", "build", kind, "--kernel"])
            .arg(root().join("build/vm/kernel"))
            .args(["--extra-kernel-arg", "console=ttyS0", "--output"])
            .arg(output)
            .args(more)
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    let (first, second) = (dir.join(name), dir.join(format!("again-{name}")));
    make(&first);
    make(&second);
    let digest = |path: &Path| Content::file(path).unwrap().sha256().unwrap();
    assert_eq!(digest(&first), digest(&second), "{name}: the same parts, the same bytes");
    fs::remove_file(second).unwrap();
    first
}

/// Built once for all tests.
fn iso() -> &'static Path {
    static ISO: OnceLock<PathBuf> = OnceLock::new();
    ISO.get_or_init(|| {
        let iso = image("iso", "metal.iso", &[]);
        let len = fs::metadata(&iso).unwrap().len();
        assert!(len <= MEDIA_MAX, "the ISO has {len} bytes");
        iso
    })
}

/// Makes a machine with these flags, which returns when its maintenance API answers; gives back its command line.
fn boots(name: &str, flags: &[&str]) -> String {
    let fleet = Fleet::named(name, OCTET).unwrap();
    let cidr = format!("10.{OCTET}.0.0/24");
    let mut args = vec!["cluster", "create", "qemu", "--name", fleet.name(), "--cidr", &cidr];
    args.extend(["--controlplanes", "1", "--workers", "0", "--wait-timeout", "6m"]);
    args.extend(flags);
    // Configurations that nobody took are written to where it runs.
    let made = fleet.command(&args).current_dir(fleet.home()).output().unwrap();
    if !made.status.success() {
        let (clusters, name) = (fleet.home().join(".talos/clusters"), fleet.name());
        let console = clusters.join(name).join(format!("{name}-controlplane-1.log"));
        let console = fs::read_to_string(console).unwrap_or_default();
        panic!("{}\nconsole:\n{console}", String::from_utf8_lossy(&made.stderr));
    }
    let address = fleet.loopback(0);
    let get = |what: &str| {
        let args = ["get", what, "--insecure", "-n", &address, "-o", "yaml"];
        eventually(what, BOOT_MAX, || fleet.ok(&args)).unwrap()
    };
    wait("an address by DHCP", BOOT_MAX, || {
        Some(()).filter(|()| get("addresses").contains(&fleet.address(0)))
    })
    .unwrap();
    if flags.contains(&"--iso-path") {
        // The driver of the drive came from the layer of modules; who installs finds the medium by its label.
        wait("the medium", BOOT_MAX, || {
            Some(()).filter(|()| get("discoveredvolumes").contains("label: TALOS_V"))
        })
        .unwrap();
    }
    get("kernelcmdlines")
}

#[test]
fn an_iso_is_started_by_bios_and_by_uefi() {
    let iso = iso().to_str().unwrap();
    let flags = ["--presets", "iso,maintenance", "--iso-path", iso, "--disks", "virtio:6GiB"];
    let bios = boots("iso-bios", &[&flags[..], &["--with-uefi=false"]].concat());
    assert!(bios.contains("BOOT_IMAGE=/boot/vmlinuz talos.platform=metal"), "{bios}");
    let uefi = boots("iso-uefi", &flags);
    assert!(uefi.contains("talos.halt_if_installed=1") && !uefi.contains("BOOT_IMAGE"), "{uefi}");
}

#[test]
fn a_disk_image_is_started_by_bios_and_by_uefi() {
    let raw = image("metal", "metal.raw", &[]);
    let flags = ["--presets", "disk-image,maintenance", "--disks", "virtio:6GiB", "--disk-image-path"];
    let flags = [&flags[..], &[raw.to_str().unwrap()]].concat();
    let bios = boots("raw-bios", &[&flags[..], &["--with-uefi=false"]].concat());
    assert!(bios.contains("BOOT_IMAGE=/A/vmlinuz"), "{bios}");
    let uefi = boots("raw-uefi", &flags);
    assert!(!uefi.contains("BOOT_IMAGE"), "{uefi}");
    fs::remove_file(raw).unwrap();
}

#[test]
fn a_compressed_qcow2_image_is_started_by_bios_and_by_uefi() {
    let image = image("metal", "metal.qcow2", &["--compress"]);
    let flags = ["--presets", "disk-image,maintenance", "--disks", "virtio:6GiB", "--disk-format", "qcow2"];
    let flags = [&flags[..], &["--disk-image-path", image.to_str().unwrap()]].concat();
    let bios = boots("qcow2-bios", &[&flags[..], &["--with-uefi=false"]].concat());
    assert!(bios.contains("BOOT_IMAGE=/A/vmlinuz"), "{bios}");
    assert!(!boots("qcow2-uefi", &flags).contains("BOOT_IMAGE"));
    fs::remove_file(image).unwrap();
}

#[test]
fn kernel_and_initramfs_are_started_without_a_boot_loader() {
    let line = boots("direct", &["--presets", "maintenance", "--disks", "none", "--with-uefi=false"]);
    assert!(line.contains("talos.platform=metal"), "{line}");
}

/// A disk that is a FAT filesystem, or has a partition of this name with one.
fn volume(path: &Path, label: &str, partition: Option<&str>, files: &[(&str, &[u8])]) {
    let mut tree = fat::Tree::default();
    for (name, bytes) in files {
        tree.file(name, Content::bytes(*bytes)).unwrap();
    }
    let content = fat::filesystem(fat::len_for(&tree, 0), label, 7, &tree).unwrap().content;
    let mut file = File::create(path).unwrap();
    let Some(partition) = partition else { return content.write_to(&mut file).unwrap() };
    let geometry = Geometry { size: content.len() + (4 << 20), sector_size: 512, io_size: 0 };
    let mut table = Table::new(geometry, Guid::from_random([1; 16])).unwrap();
    let one = NewPartition::new(partition, Guid::LINUX_DATA, Guid::from_random([2; 16]));
    let number = table.add(&one.size(content.len())).unwrap();
    let (at, _) = table.offset_and_size(number).unwrap();
    file.set_len(geometry.size).unwrap();
    table.write(&mut file).unwrap();
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(&content.read(1 << 30).unwrap()).unwrap();
}

/// A client with the configuration of a machine that is reached at its first address.
struct Owner {
    client: Fleet,
    address: String,
    talosconfig: String,
    config: Vec<u8>,
}

impl Owner {
    fn new(name: &str) -> Self {
        let client = Fleet::named(name, OCTET).unwrap();
        let address = client.loopback(1);
        let dir = client.home().join("config").to_string_lossy().into_owned();
        let endpoint = format!("https://{address}:6443");
        let made = ["gen", "config", name, &endpoint, "--additional-sans", &address, "--output", &dir];
        client.ok(&made).unwrap();
        let config = fs::read(format!("{dir}/controlplane.yaml")).unwrap();
        Self { talosconfig: format!("{dir}/talosconfig"), client, address, config }
    }

    fn disk(&self) -> PathBuf {
        self.client.home().join("disk")
    }

    /// Boots with the disk and these kernel arguments.
    fn boot(&self, platform: &str, cmdline: &str, more: &[&str]) -> Machine {
        let drive = format!("file={},format=raw,if=none,readonly=on,id=seed", self.disk().display());
        let mut args = vec!["-drive", &drive, "-device", "virtio-blk-pci,drive=seed"];
        if !self.disk().exists() {
            args.clear();
        }
        args.extend(more);
        let env = [
            ("ICHOR_VM_PLATFORM", platform),
            ("ICHOR_VM_CMDLINE", cmdline),
            ("ICHOR_VM_RESTRICT", if more.is_empty() { "on" } else { "off" }),
        ];
        Machine::boot_with(&self.address, &args, &env).unwrap()
    }

    /// Asks the configured machine, over mutual TLS.
    fn says(&self, what: &[&str], word: &str) {
        let mut args = vec!["--talosconfig", &self.talosconfig, "-e", &self.address, "-n", "10.0.2.15"];
        args.extend(what);
        let mut last = String::new();
        wait(&format!("{word} in {what:?}"), BOOT_MAX, || {
            last = self.client.ok(&args).unwrap_or_else(|error| format!("{error:#}"));
            Some(()).filter(|()| last.contains(word))
        })
        .unwrap_or_else(|error| panic!("{error}: {last}"));
    }
}

#[test]
fn a_configuration_is_read_from_a_volume() {
    let owner = Owner::new("c-medium");
    let files: &[(&str, &[u8])] = &[("config.yaml", &owner.config)];
    volume(&owner.disk(), "DATA", Some("metal-iso"), files);
    let _machine = owner.boot("metal", "talos.config=metal-iso", &[]);
    owner.says(&["get", "machinetype", "-o", "yaml"], "controlplane");
}

const NETWORK: &str = "version: 2
ethernets:
  any:
    match: {macaddress: '52:54:00:12:34:56'}
    addresses: [10.0.2.15/24]
    gateway4: 10.0.2.2
    nameservers: {addresses: [10.0.2.3]}
";

#[test]
fn a_platform_without_a_cloud_has_its_files_on_a_volume() {
    let owner = Owner::new("c-nocloud");
    let files: &[(&str, &[u8])] = &[
        ("meta-data", b"instance-id: i-7\nlocal-hostname: seeded\n"),
        ("network-config", NETWORK.as_bytes()),
        ("user-data", &owner.config),
    ];
    volume(&owner.disk(), "CIDATA", None, files);
    let _machine = owner.boot("nocloud", "net.ifnames=0", &[]);
    owner.says(&["get", "hostname"], "seeded");
    owner.says(&["get", "addressspecs", "--namespace", "network-config"], "platform/eth0/10.0.2.15/24");
    owner.says(&["get", "platformmetadata", "-o", "yaml"], "instanceId: i-7");
}

#[test]
fn a_platform_without_a_cloud_has_its_files_on_a_web_server() {
    let owner = Owner::new("c-nocloud-net");
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = server.local_addr().unwrap().port();
    let config = owner.config.clone();
    // Ends with the test.
    std::thread::spawn(move || {
        for stream in server.incoming().flatten() {
            let mut line = String::new();
            let mut reader = BufReader::new(stream);
            let _ = reader.read_line(&mut line);
            let body: Option<&[u8]> = match line.split_whitespace().nth(1) {
                Some("/seed/meta-data") => Some(b"instance-id: i-8\n"),
                Some("/seed/user-data") => Some(&config),
                _ => None,
            };
            let status = if body.is_some() { "200 OK" } else { "404 Not Found" };
            let body = body.unwrap_or_default();
            let head =
                format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            let mut stream = reader.into_inner();
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        }
    });
    let serial = format!("type=1,serial=ds=nocloud-net;s=http://10.0.2.2:{port}/seed;h=served");
    let _machine = owner.boot("nocloud", "net.ifnames=0", &["-smbios", &serial]);
    owner.says(&["get", "hostname"], "served");
    owner.says(&["get", "platformmetadata", "-o", "yaml"], "instanceId: i-8");
}
