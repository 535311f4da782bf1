//! From a typed machine to the arguments of QEMU. No I/O here; what is tested is the list.

use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use crate::options::{Accel, Arch, Driver, Format, Uefi};

/// The fastest model without hardware that helps: it has no AVX, whose registers are costly to emulate.
const TCG_MODEL: &str = "Nehalem,+aes,+rdrand,+pclmulqdq";
/// Bytes of translated code that are kept, in MiB.
const TCG: &str = "tcg,thread=multi,tb-size=256";
/// The firmware tries disks, then this; a kernel that QEMU loads itself has place 0.
const BOOT_DISK: u8 = 1;
const BOOT_OTHER: u8 = 10;

/// One start of a machine.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) uuid: String,
    pub(crate) arch: Arch,
    pub(crate) accel: Accel,
    pub(crate) cpus: u64,
    pub(crate) memory_mib: u64,
    pub(crate) iommu: bool,
    /// Where the clock starts; without it at the present.
    pub(crate) rtc: Option<String>,
    pub(crate) console: PathBuf,
    /// Our end of the monitor, as QEMU sees its number.
    pub(crate) events: RawFd,
    pub(crate) nics: Vec<Nic>,
    pub(crate) mtu: u32,
    pub(crate) disks: Vec<DiskFile>,
    pub(crate) format: Format,
    pub(crate) block_size: u32,
    /// UEFI with this machine's own variables; BIOS without.
    pub(crate) uefi: Option<Uefi>,
    pub(crate) source: Source,
    /// Arguments for the kernel, where they can be handed over.
    pub(crate) command_line: Option<String>,
}

/// A network interface, whose other end is open.
#[derive(Clone, Debug)]
pub(crate) struct Nic {
    pub(crate) hardware: [u8; 6],
    pub(crate) tap: RawFd,
}

/// A disk and its file.
#[derive(Clone, Debug)]
pub(crate) struct DiskFile {
    pub(crate) driver: Driver,
    pub(crate) path: PathBuf,
}

/// What this start boots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Kernel { kernel: PathBuf, initrd: PathBuf },
    Uki(PathBuf),
    Iso(PathBuf),
    Usb(PathBuf),
    Disk,
    Network,
}

/// The arguments, without the program's name.
pub(crate) fn arguments(machine: &Machine) -> Vec<String> {
    let mut list = List::default();
    list.platform(machine);
    list.firmware(machine);
    list.devices(machine);
    for (number, nic) in machine.nics.iter().enumerate() {
        list.nic(machine, number, nic);
    }
    for (number, disk) in machine.disks.iter().enumerate() {
        list.disk(machine, number, disk);
    }
    list.source(machine);
    list.0
}

#[derive(Default)]
struct List(Vec<String>);

impl List {
    fn put(&mut self, option: &str, value: impl Into<String>) {
        self.0.extend([option.to_owned(), value.into()]);
    }

    fn flag(&mut self, option: &str) {
        self.0.push(option.to_owned());
    }

    fn platform(&mut self, machine: &Machine) {
        self.put("-name", comma(&machine.name));
        self.put("-uuid", &machine.uuid);
        let mut board = match machine.arch {
            Arch::Amd64 => "q35",
            Arch::Arm64 => "virt,gic-version=max",
        }
        .to_owned();
        if machine.iommu {
            board.push_str(match machine.arch {
                Arch::Amd64 => ",kernel-irqchip=split",
                Arch::Arm64 => ",iommu=smmuv3",
            });
        }
        self.put("-machine", board);
        let (accel, model) = match (machine.accel, machine.arch) {
            (Accel::Kvm, _) => ("kvm", "host"),
            (Accel::Tcg, Arch::Amd64) => (TCG, TCG_MODEL),
            (Accel::Tcg, Arch::Arm64) => (TCG, "max"),
        };
        self.put("-accel", accel);
        self.put("-cpu", model);
        self.put("-smp", format!("cpus={}", machine.cpus));
        self.put("-m", format!("{}M", machine.memory_mib));
        for flag in ["-nodefaults", "-no-user-config", "-no-reboot"] {
            self.flag(flag);
        }
        self.put("-display", "none");
        let base = machine.rtc.as_deref().unwrap_or("utc");
        self.put("-rtc", format!("base={base}"));
    }

    fn firmware(&mut self, machine: &Machine) {
        let Some(uefi) = &machine.uefi else { return };
        let code = format!("if=pflash,format=raw,unit=0,readonly=on,file={}", file(&uefi.code));
        self.put("-drive", code);
        self.put("-drive", format!("if=pflash,format=raw,unit=1,file={}", file(&uefi.vars)));
    }

    fn devices(&mut self, machine: &Machine) {
        let console = file(&machine.console);
        self.put("-chardev", format!("file,id=console,path={console},append=on"));
        self.put("-serial", "chardev:console");
        self.put("-chardev", format!("socket,id=events,fd={}", machine.events));
        self.put("-mon", "chardev=events,mode=control");
        // For people and tests; in the machine's directory, where QEMU is started.
        self.put("-qmp", "unix:qmp,server=on,wait=off");
        self.put("-device", "virtio-rng-pci");
        // Memory that a machine frees is the host's again; it may be asked for more through the monitor.
        self.put("-device", "virtio-balloon-pci,id=balloon,free-page-reporting=on");
        if machine.arch == Arch::Amd64 {
            // A machine that hangs is reset, and its supervisor starts it anew.
            self.put("-device", "i6300esb");
            self.put("-action", "watchdog=reset");
            if machine.iommu {
                self.put("-device", "intel-iommu,intremap=on,device-iotlb=on");
            }
        }
    }

    fn nic(&mut self, machine: &Machine, number: usize, nic: &Nic) {
        self.put("-netdev", format!("tap,id=net{number},fd={}", nic.tap));
        let hardware: Vec<String> = nic.hardware.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut device = format!("virtio-net-pci,netdev=net{number},mac={}", hardware.join(":"));
        if machine.mtu != 1500 {
            device.push_str(&format!(",host_mtu={}", machine.mtu));
        }
        device.push_str(&match (&machine.source, number) {
            (Source::Network, 0) => format!(",bootindex={BOOT_OTHER}"),
            // Without its own firmware an interface starts sooner.
            _ => ",romfile=".to_owned(),
        });
        self.put("-device", device);
    }

    fn disk(&mut self, machine: &Machine, number: usize, disk: &DiskFile) {
        let (format, path) = (machine.format.name(), file(&disk.path));
        self.put(
            "-blockdev",
            format!(
                "driver={format},node-name=disk{number},discard=unmap,file.driver=file,file.filename={path}"
            ),
        );
        let device = match disk.driver {
            Driver::Virtio => "virtio-blk-pci".to_owned(),
            Driver::Nvme => "nvme".to_owned(),
            // The board's own controller.
            Driver::Ide => format!("ide-hd,bus=ide.{number}"),
            Driver::Ahci => self.controller(number, "ahci", ".0", "ide-hd"),
            Driver::Scsi => self.controller(number, "virtio-scsi-pci", ".0", "scsi-hd"),
            Driver::Megaraid => self.controller(number, "megasas-gen2", ".0", "scsi-hd"),
        };
        let block = machine.block_size;
        let mut device = format!("{device},drive=disk{number},serial=ichor-disk{number}");
        if block != 512 {
            device.push_str(&format!(",logical_block_size={block},physical_block_size={block}"));
        }
        if number == 0 {
            device.push_str(&format!(",bootindex={BOOT_DISK}"));
        }
        self.put("-device", device);
    }

    /// A controller of its own for one disk, and the disk's device at it.
    fn controller(&mut self, number: usize, kind: &str, bus: &str, device: &str) -> String {
        self.put("-device", format!("{kind},id=controller{number}"));
        format!("{device},bus=controller{number}{bus}")
    }

    fn source(&mut self, machine: &Machine) {
        match &machine.source {
            Source::Kernel { kernel, initrd } => {
                self.put("-kernel", kernel.to_string_lossy());
                self.put("-initrd", initrd.to_string_lossy());
                self.put("-append", machine.command_line.clone().unwrap_or_default());
                return;
            }
            Source::Uki(uki) => self.put("-kernel", uki.to_string_lossy()),
            Source::Iso(iso) => {
                let drive = format!("if=none,id=cd,media=cdrom,readonly=on,format=raw,file={}", file(iso));
                self.put("-drive", drive);
                self.put("-device", format!("ide-cd,bus=ide.5,drive=cd,bootindex={BOOT_OTHER}"));
            }
            Source::Usb(stick) => {
                let drive = format!("if=none,id=stick,readonly=on,format=raw,file={}", file(stick));
                self.put("-drive", drive);
                self.put("-device", "qemu-xhci");
                self.put("-device", format!("usb-storage,drive=stick,bootindex={BOOT_OTHER}"));
            }
            Source::Disk | Source::Network => {}
        }
        // Where the firmware starts a unified kernel image, its stub takes more arguments from here.
        if let Some(line) = machine.command_line.as_ref().filter(|_| machine.uefi.is_some()) {
            let value = format!("io.systemd.stub.kernel-cmdline-extra={line}");
            self.put("-smbios", format!("type=11,value={}", comma(&value)));
        }
    }
}

/// A value inside of an option: a comma ends it unless there are two.
fn comma(text: &str) -> String {
    text.replace(',', ",,")
}

fn file(path: &Path) -> String {
    comma(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn machine(source: Source) -> Machine {
        Machine {
            name: "lab-worker-1".into(),
            uuid: "8e0c3a54-0000-4000-8000-000000000001".into(),
            arch: Arch::Amd64,
            accel: Accel::Tcg,
            cpus: 2,
            memory_mib: 2048,
            iommu: false,
            rtc: None,
            console: "/c/lab-worker-1.log".into(),
            events: 7,
            nics: vec![Nic { hardware: [2, 0x1c, 10, 5, 0, 3], tap: 8 }],
            mtu: 1500,
            disks: Vec::new(),
            format: Format::Raw,
            block_size: 512,
            uefi: None,
            source,
            command_line: Some("console=ttyS0 talos.platform=metal".into()),
        }
    }

    fn kernel() -> Source {
        Source::Kernel { kernel: "/k".into(), initrd: "/i".into() }
    }

    /// One option a line.
    fn lines(machine: &Machine) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for argument in arguments(machine) {
            match (argument.starts_with('-'), lines.last_mut()) {
                (false, Some(line)) => *line = format!("{line} {argument}"),
                _ => lines.push(argument),
            }
        }
        lines
    }

    #[test]
    fn a_kernel_on_emulated_processors() {
        expect![[r#"
            -name lab-worker-1
            -uuid 8e0c3a54-0000-4000-8000-000000000001
            -machine q35
            -accel tcg,thread=multi,tb-size=256
            -cpu Nehalem,+aes,+rdrand,+pclmulqdq
            -smp cpus=2
            -m 2048M
            -nodefaults
            -no-user-config
            -no-reboot
            -display none
            -rtc base=utc
            -chardev file,id=console,path=/c/lab-worker-1.log,append=on
            -serial chardev:console
            -chardev socket,id=events,fd=7
            -mon chardev=events,mode=control
            -qmp unix:qmp,server=on,wait=off
            -device virtio-rng-pci
            -device virtio-balloon-pci,id=balloon,free-page-reporting=on
            -device i6300esb
            -action watchdog=reset
            -netdev tap,id=net0,fd=8
            -device virtio-net-pci,netdev=net0,mac=02:1c:0a:05:00:03,romfile=
            -kernel /k
            -initrd /i
            -append console=ttyS0 talos.platform=metal
        "#]]
        .assert_eq(&(lines(&machine(kernel())).join("\n") + "\n"));
    }

    /// What a change of the machine above adds to its arguments.
    #[track_caller]
    fn adds(change: impl FnOnce(&mut Machine), expect: Expect) {
        let before = lines(&machine(kernel()));
        let mut changed = machine(kernel());
        change(&mut changed);
        let after = lines(&changed);
        let added: Vec<&String> = after.iter().filter(|line| !before.contains(line)).collect();
        expect.assert_eq(&added.iter().map(|line| format!("{line}\n")).collect::<String>());
    }

    #[test]
    fn hardware_runs_machines_as_the_host_is() {
        adds(
            |machine| machine.accel = Accel::Kvm,
            expect![[r#"
            -accel kvm
            -cpu host
        "#]],
        );
    }

    #[test]
    fn other_architectures_have_another_board() {
        adds(
            |machine| machine.arch = Arch::Arm64,
            expect![[r#"
            -machine virt,gic-version=max
            -cpu max
        "#]],
        );
    }

    #[test]
    fn disks_hang_on_their_own_controllers() {
        let drivers =
            [Driver::Virtio, Driver::Ide, Driver::Ahci, Driver::Scsi, Driver::Nvme, Driver::Megaraid];
        let disk =
            |(number, driver): (usize, Driver)| DiskFile { driver, path: format!("/d{number}").into() };
        adds(
            |machine| {
                machine.disks = drivers.into_iter().enumerate().map(disk).collect();
                machine.format = Format::Qcow2;
                machine.block_size = 4096;
            },
            expect![[r#"
                -blockdev driver=qcow2,node-name=disk0,discard=unmap,file.driver=file,file.filename=/d0
                -device virtio-blk-pci,drive=disk0,serial=ichor-disk0,logical_block_size=4096,physical_block_size=4096,bootindex=1
                -blockdev driver=qcow2,node-name=disk1,discard=unmap,file.driver=file,file.filename=/d1
                -device ide-hd,bus=ide.1,drive=disk1,serial=ichor-disk1,logical_block_size=4096,physical_block_size=4096
                -blockdev driver=qcow2,node-name=disk2,discard=unmap,file.driver=file,file.filename=/d2
                -device ahci,id=controller2
                -device ide-hd,bus=controller2.0,drive=disk2,serial=ichor-disk2,logical_block_size=4096,physical_block_size=4096
                -blockdev driver=qcow2,node-name=disk3,discard=unmap,file.driver=file,file.filename=/d3
                -device virtio-scsi-pci,id=controller3
                -device scsi-hd,bus=controller3.0,drive=disk3,serial=ichor-disk3,logical_block_size=4096,physical_block_size=4096
                -blockdev driver=qcow2,node-name=disk4,discard=unmap,file.driver=file,file.filename=/d4
                -device nvme,drive=disk4,serial=ichor-disk4,logical_block_size=4096,physical_block_size=4096
                -blockdev driver=qcow2,node-name=disk5,discard=unmap,file.driver=file,file.filename=/d5
                -device megasas-gen2,id=controller5
                -device scsi-hd,bus=controller5.0,drive=disk5,serial=ichor-disk5,logical_block_size=4096,physical_block_size=4096
            "#]],
        );
    }

    #[test]
    fn firmware_hands_arguments_to_what_it_starts() {
        let uefi = Uefi { code: "/code".into(), vars: "/a,b/vars".into() };
        adds(
            |machine| {
                machine.uefi = Some(uefi);
                machine.source = Source::Iso("/x.iso".into());
                machine.command_line = Some("ip=a,b".into());
            },
            expect![[r#"
                -drive if=pflash,format=raw,unit=0,readonly=on,file=/code
                -drive if=pflash,format=raw,unit=1,file=/a,,b/vars
                -drive if=none,id=cd,media=cdrom,readonly=on,format=raw,file=/x.iso
                -device ide-cd,bus=ide.5,drive=cd,bootindex=10
                -smbios type=11,value=io.systemd.stub.kernel-cmdline-extra=ip=a,,b
            "#]],
        );
    }

    #[test]
    fn other_sources_come_after_the_disk() {
        adds(
            |machine| machine.source = Source::Usb("/u".into()),
            expect![[r#"
            -drive if=none,id=stick,readonly=on,format=raw,file=/u
            -device qemu-xhci
            -device usb-storage,drive=stick,bootindex=10
        "#]],
        );
        adds(
            |machine| machine.source = Source::Network,
            expect![[r#"
            -device virtio-net-pci,netdev=net0,mac=02:1c:0a:05:00:03,bootindex=10
        "#]],
        );
        adds(
            |machine| machine.source = Source::Uki("/u.efi".into()),
            expect![[r#"
            -kernel /u.efi
        "#]],
        );
        adds(|machine| machine.source = Source::Disk, expect![[""]]);
    }

    #[test]
    fn clock_packets_and_iommu_are_as_asked_for() {
        adds(
            |machine| {
                machine.rtc = Some("2011-11-11T11:11:00".into());
                machine.mtu = 1400;
                machine.iommu = true;
                machine.nics.push(Nic { hardware: [2, 0x1d, 10, 5, 0, 3], tap: 9 });
            },
            expect![[r#"
                -machine q35,kernel-irqchip=split
                -rtc base=2011-11-11T11:11:00
                -device intel-iommu,intremap=on,device-iotlb=on
                -device virtio-net-pci,netdev=net0,mac=02:1c:0a:05:00:03,host_mtu=1400,romfile=
                -netdev tap,id=net1,fd=9
                -device virtio-net-pci,netdev=net1,mac=02:1d:0a:05:00:03,host_mtu=1400,romfile=
            "#]],
        );
    }
}
