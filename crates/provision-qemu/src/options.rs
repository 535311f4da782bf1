//! What only QEMU machines can be told: as the text of settings, and as types. No I/O here.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use ichor_provision::{ProvisionError, Setting};
use ichor_types::size;

/// As large as the original's: one for all machines, one more for workers.
const DISKS: &str = "virtio:10GiB,virtio:6GiB";
/// The most disks and network interfaces of a machine; a machine has no more slots.
const DISKS_MAX: usize = 16;
const NICS_MAX: usize = 8;
/// A disk that holds nothing is a mistake.
const DISK_MIN: u64 = 1 << 20;

const fn setting(name: &'static str, about: &'static str) -> Setting {
    Setting { name, about }
}

/// All settings; those of the original's command line have its names.
pub(crate) const SETTINGS: &[Setting] = &[
    setting("arch", "amd64 or arm64"),
    setting("accel", "kvm or tcg; what works without it"),
    setting("disks", "disks as DRIVER:SIZE, those after the first for workers only"),
    setting("disk-format", "raw, or qcow2 for snapshots"),
    setting("disk-block-size", "512 or 4096"),
    setting("vmlinuz-path", "kernel"),
    setting("initrd-path", "initramfs"),
    setting("uki-path", "unified kernel image"),
    setting("iso-path", "ISO image"),
    setting("usb-path", "image of a USB stick"),
    setting("disk-image-path", "image of the first disk"),
    setting("ipxe-boot-script", "URL of a script for iPXE"),
    setting("with-uefi", "UEFI firmware; BIOS without"),
    setting("extra-uefi-search-paths", "more directories with UEFI firmware"),
    setting("qemu-path", "the program, as it was found when the cluster was made"),
    setting("uefi-code", "firmware"),
    setting("uefi-vars", "template of its variables"),
    setting("with-bootloader", "boot from the first disk once something is installed there"),
    setting("with-iommu", "an IOMMU"),
    setting("bad-rtc", "a clock that is years behind"),
    setting("rtc-base", "where the clock starts, as 2020-01-31T12:00:00"),
    setting("nics", "network interfaces"),
    setting("nameservers", "name servers"),
    setting("disable-dhcp-hostname", "machines get no name by DHCP"),
    setting("skip-injecting-extra-cmdline", "no kernel arguments where firmware starts the boot loader"),
    setting("with-tpm1_2", ""),
    setting("with-tpm2", ""),
    setting("encrypt-state", ""),
    setting("encrypt-ephemeral", ""),
    setting("encrypt-user-volumes", ""),
];

/// What is not built, with what a machine lacks for it.
const REFUSED: [(&str, &str); 5] = [
    ("with-tpm1_2", "machines have no TPM"),
    ("with-tpm2", "machines have no TPM"),
    ("encrypt-state", "disks are not encrypted"),
    ("encrypt-ephemeral", "disks are not encrypted"),
    ("encrypt-user-volumes", "disks are not encrypted"),
];

/// A processor architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arch {
    Amd64,
    Arm64,
}

impl Arch {
    /// That of this program.
    pub(crate) const HOST: Self = if cfg!(target_arch = "aarch64") { Self::Arm64 } else { Self::Amd64 };

    /// As the original's files are named.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }
}

/// Who executes a machine's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accel {
    Kvm,
    Tcg,
}

/// How a disk is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    Virtio,
    Ide,
    Ahci,
    Scsi,
    Nvme,
    Megaraid,
}

const DRIVERS: [(&str, Driver); 6] = [
    ("virtio", Driver::Virtio),
    ("ide", Driver::Ide),
    ("ahci", Driver::Ahci),
    ("scsi", Driver::Scsi),
    ("nvme", Driver::Nvme),
    ("megaraid", Driver::Megaraid),
];

/// A disk of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Disk {
    pub(crate) driver: Driver,
    pub(crate) bytes: u64,
}

/// How disks are kept in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Raw,
    Qcow2,
}

impl Format {
    /// As QEMU calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

/// What a machine boots while nothing is installed on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Boot {
    /// A kernel and its initramfs, without a boot loader.
    Kernel { kernel: PathBuf, initrd: PathBuf },
    /// A unified kernel image, started by the firmware.
    Uki(PathBuf),
    /// A CD.
    Iso(PathBuf),
    /// A USB stick.
    Usb(PathBuf),
    /// What the first disk is made of.
    DiskImage(PathBuf),
    /// A script, by the firmware of the network interface.
    Ipxe(String),
}

/// UEFI firmware: its code, and a template of its variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Uefi {
    pub(crate) code: PathBuf,
    pub(crate) vars: PathBuf,
}

/// How the machines of a cluster are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) arch: Arch,
    /// QEMU, once it was found: what starts machines later has no path to look for it in.
    pub(crate) program: Option<PathBuf>,
    /// What was asked for, or found to work.
    pub(crate) accel: Option<Accel>,
    pub(crate) disks: Vec<Disk>,
    pub(crate) format: Format,
    pub(crate) block_size: u32,
    pub(crate) boot: Option<Boot>,
    pub(crate) uefi_wanted: bool,
    pub(crate) uefi_paths: Vec<PathBuf>,
    /// Once it was found.
    pub(crate) uefi: Option<Uefi>,
    pub(crate) bootloader: bool,
    pub(crate) iommu: bool,
    /// Where the clock starts, if not at the present.
    pub(crate) rtc: Option<String>,
    pub(crate) nics: u8,
    pub(crate) nameservers: Vec<Ipv4Addr>,
    pub(crate) hostname: bool,
    pub(crate) inject_cmdline: bool,
}

/// The clock of a machine with a bad one.
const BAD_RTC: &str = "2011-11-11T11:11:00";

impl Options {
    /// Reads settings; what is not set has the original's default.
    pub(crate) fn parse(settings: &BTreeMap<String, String>) -> Result<Self, ProvisionError> {
        let reader = Reader(settings);
        for (name, reason) in REFUSED {
            if reader.on(name, false)? {
                return Err(ProvisionError::NotOffered { name, reason });
            }
        }
        let bad_rtc = reader.on("bad-rtc", false)?;
        let rtc = reader.text("rtc-base").filter(|base| is_time(base)).map(str::to_owned);
        if let Some(base) = reader.text("rtc-base").filter(|_| rtc.is_none()) {
            return Err(bad("rtc-base", base, "a time such as 2020-01-31T12:00:00"));
        }
        let path = |name| reader.text(name).map(PathBuf::from);
        let arch = reader.one_of("arch", &[("amd64", Arch::Amd64), ("arm64", Arch::Arm64)])?;
        Ok(Self {
            arch: arch.unwrap_or(Arch::HOST),
            program: path("qemu-path"),
            accel: reader.one_of("accel", &[("kvm", Accel::Kvm), ("tcg", Accel::Tcg)])?,
            disks: disks(reader.text("disks").unwrap_or(DISKS))?,
            format: reader
                .one_of("disk-format", &[("raw", Format::Raw), ("qcow2", Format::Qcow2)])?
                .unwrap_or(Format::Raw),
            block_size: reader.one_of("disk-block-size", &[("512", 512), ("4096", 4096)])?.unwrap_or(512),
            boot: reader.boot()?,
            uefi_wanted: reader.on("with-uefi", true)?,
            uefi_paths: reader.list("extra-uefi-search-paths").map(PathBuf::from).collect(),
            uefi: path("uefi-code").zip(path("uefi-vars")).map(|(code, vars)| Uefi { code, vars }),
            bootloader: reader.on("with-bootloader", true)?,
            iommu: reader.on("with-iommu", false)?,
            rtc: rtc.or_else(|| bad_rtc.then(|| BAD_RTC.to_owned())),
            nics: reader.nics()?,
            nameservers: reader
                .list("nameservers")
                .map(|text| text.parse().map_err(|_| bad("nameservers", text, "a list of IPv4 addresses")))
                .collect::<Result<_, _>>()?,
            hostname: !reader.on("disable-dhcp-hostname", false)?,
            inject_cmdline: !reader.on("skip-injecting-extra-cmdline", false)?,
        })
    }
}

fn bad(name: &'static str, value: &str, expected: &'static str) -> ProvisionError {
    ProvisionError::BadSetting { name, value: value.to_owned(), expected }
}

struct Reader<'a>(&'a BTreeMap<String, String>);

impl Reader<'_> {
    /// A setting that is not empty.
    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|text| !text.is_empty())
    }

    fn list(&self, name: &str) -> impl Iterator<Item = &str> {
        self.text(name).unwrap_or_default().split(',').filter(|part| !part.is_empty())
    }

    fn on(&self, name: &'static str, default: bool) -> Result<bool, ProvisionError> {
        Ok(self.one_of(name, &[("true", true), ("false", false)])?.unwrap_or(default))
    }

    fn one_of<T: Copy>(
        &self,
        name: &'static str,
        known: &[(&'static str, T)],
    ) -> Result<Option<T>, ProvisionError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match known.iter().find(|(word, _)| *word == text) {
            Some((_, value)) => Ok(Some(*value)),
            None => Err(ProvisionError::NotOneOf {
                name,
                value: text.to_owned(),
                known: known.iter().map(|(word, _)| *word).collect(),
            }),
        }
    }

    fn nics(&self) -> Result<u8, ProvisionError> {
        let text = self.text("nics").unwrap_or("1");
        let number = text.parse().ok().filter(|number| (1..=NICS_MAX).contains(&usize::from(*number)));
        number.ok_or_else(|| bad("nics", text, "a number from 1 to 8"))
    }

    /// What to boot. A kernel without an initramfs, or the other way around, waits for its other half.
    fn boot(&self) -> Result<Option<Boot>, ProvisionError> {
        const SOURCES: [&str; 5] =
            ["uki-path", "iso-path", "usb-path", "disk-image-path", "ipxe-boot-script"];
        let given: Vec<&'static str> = SOURCES.into_iter().filter(|name| self.text(name).is_some()).collect();
        if let [first, second, ..] = given.as_slice() {
            return Err(ProvisionError::Contradiction { first, second });
        }
        let Some(name) = given.first() else {
            let path = |name| self.text(name).map(PathBuf::from);
            let both = path("vmlinuz-path").zip(path("initrd-path"));
            return Ok(both.map(|(kernel, initrd)| Boot::Kernel { kernel, initrd }));
        };
        let text = self.text(name).unwrap_or_default();
        Ok(Some(match *name {
            "uki-path" => Boot::Uki(text.into()),
            "iso-path" => Boot::Iso(text.into()),
            "usb-path" => Boot::Usb(text.into()),
            "disk-image-path" => Boot::DiskImage(text.into()),
            _ => Boot::Ipxe(text.to_owned()),
        }))
    }
}

/// `virtio:10GiB,nvme:1GiB`; a size alone is that of a virtio disk, and none at all is none.
fn disks(text: &str) -> Result<Vec<Disk>, ProvisionError> {
    const EXPECTED: &str = "a list of disks such as virtio:10GiB,nvme:6GiB, or none";
    if text == "none" {
        return Ok(Vec::new());
    }
    let disk = |part: &str| {
        let (driver, bytes) = part.split_once(':').unwrap_or(("virtio", part));
        let driver = DRIVERS.iter().find(|(name, _)| *name == driver).map(|(_, driver)| *driver)?;
        let bytes = size::parse(bytes).ok().filter(|bytes| *bytes >= DISK_MIN)?;
        // Whole blocks of the largest size there is.
        Some(Disk { driver, bytes: bytes.next_multiple_of(4096) })
    };
    let found: Option<Vec<Disk>> = text.split(',').map(|part| disk(part.trim())).collect();
    let found = found.filter(|disks| disks.len() <= DISKS_MAX);
    found.ok_or_else(|| bad("disks", text, EXPECTED))
}

/// `2020-01-31T12:00:00`: nothing else gets into the arguments of QEMU.
fn is_time(text: &str) -> bool {
    let shape = b"dddd-dd-ddTdd:dd:dd";
    text.len() == shape.len()
        && text.bytes().zip(shape).all(|(byte, kind)| match kind {
            b'd' => byte.is_ascii_digit(),
            kind => byte == *kind,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(settings: &[(&str, &str)]) -> Result<Options, String> {
        let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Options::parse(&settings.collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn without_settings_machines_are_as_the_original_makes_them() {
        let options = parse(&[]).unwrap();
        let disk = |gib: u64| Disk { driver: Driver::Virtio, bytes: gib << 30 };
        assert_eq!(options.disks, [disk(10), disk(6)]);
        assert!(options.uefi_wanted && options.bootloader && options.hostname && options.inject_cmdline);
        assert_eq!((options.boot, options.accel, options.nics), (None, None, 1));
    }

    #[test]
    fn disks_have_a_driver_and_a_size() {
        let drivers = |text| parse(&[("disks", text)]).map(|options| options.disks);
        let disk = |driver, bytes| Disk { driver, bytes };
        assert_eq!(
            drivers("nvme:1GiB,2GiB").unwrap(),
            [disk(Driver::Nvme, 1 << 30), disk(Driver::Virtio, 2 << 30)]
        );
        assert_eq!(drivers("none").unwrap(), []);
        for wrong in ["floppy:1GiB", "virtio:", "virtio:x", "virtio:1KiB", ",", &"1GiB,".repeat(17)] {
            let told = drivers(wrong).unwrap_err();
            assert!(told.starts_with("setting disks: "), "{wrong}: {told}");
        }
    }

    #[test]
    fn what_is_not_built_is_refused_by_its_name() {
        for name in ["with-tpm1_2", "with-tpm2", "encrypt-state", "encrypt-ephemeral", "encrypt-user-volumes"]
        {
            let told = parse(&[(name, "true")]).unwrap_err();
            assert!(told.starts_with(&format!("--{name} is not offered yet: ")), "{told}");
            assert!(parse(&[(name, "false")]).is_ok());
        }
    }

    #[test]
    fn wrong_values_say_what_would_be_right() {
        for (name, value, told) in [
            ("arch", "mips", "setting arch: \"mips\" is none of amd64, arm64"),
            ("with-uefi", "maybe", "setting with-uefi: \"maybe\" is none of true, false"),
            ("nics", "9", "setting nics: \"9\" is not a number from 1 to 8"),
            ("nameservers", "1.1.1.1,x", "setting nameservers: \"x\" is not a list of IPv4 addresses"),
            (
                "rtc-base",
                "2020-01-31T12:00:00,driftfix=slew",
                "setting rtc-base: \"2020-01-31T12:00:00,driftfix=slew\" is not a time such as 2020-01-31T12:00:00",
            ),
        ] {
            assert_eq!(parse(&[(name, value)]).unwrap_err(), told);
        }
    }

    #[test]
    fn a_machine_boots_from_one_thing() {
        assert_eq!(
            parse(&[("iso-path", "/a"), ("disk-image-path", "/b")]).unwrap_err(),
            "--iso-path and --disk-image-path exclude each other; leave one of them out"
        );
        let boot = |settings: &[(&str, &str)]| parse(settings).unwrap().boot;
        assert_eq!(boot(&[("iso-path", "/a"), ("vmlinuz-path", "/k")]), Some(Boot::Iso("/a".into())));
        assert_eq!(boot(&[("vmlinuz-path", "/k")]), None, "a kernel alone is half of it");
    }
}
