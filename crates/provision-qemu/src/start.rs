//! What a start of a machine is made of: its command line, its source, its disks. No I/O here.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use ichor_provision::{Machine, MachineKind, Resources};

use crate::arguments::Source;
use crate::options::{Arch, Boot, Disk, Options};

/// What every kernel of ours is started with: a restart after a panic, and what the node insists on. An emulated machine
/// on a busy host may miss the ticks that kernels test their timer with, and would panic over it.
const KERNEL_ARGS: &str = "talos.platform=metal slab_nomerge pti=on quiet panic=-1 no_timer_check mitigations=off \
                           random.trust_cpu=on";
const MEMORY_DEFAULT: u64 = 2 << 30;
const MILLICORES_DEFAULT: u64 = 2000;

/// The disks of a machine: all that are asked for are for workers, control planes have the first.
pub(crate) fn disks(options: &Options, kind: MachineKind) -> &[Disk] {
    let count = match kind {
        MachineKind::ControlPlane => options.disks.len().min(1),
        MachineKind::Worker => options.disks.len(),
    };
    &options.disks[..count]
}

/// The file of a disk in the directory of its machine.
pub(crate) fn disk_file(machine: &Path, number: usize, options: &Options) -> PathBuf {
    machine.join(format!("disk-{number}.{}", options.format.name()))
}

/// Processors and MiB of memory.
pub(crate) fn size(resources: Resources) -> (u64, u64) {
    let cpus = resources.millicores.unwrap_or(MILLICORES_DEFAULT).div_ceil(1000).max(1);
    (cpus, resources.memory.unwrap_or(MEMORY_DEFAULT).div_ceil(1 << 20))
}

/// What a machine boots this time; `installed` when its first disk has something that starts.
pub(crate) fn source(options: &Options, installed: bool) -> Source {
    let from_disk = installed && options.bootloader;
    match &options.boot {
        Some(Boot::Kernel { .. } | Boot::Uki(_)) if from_disk => Source::Disk,
        Some(Boot::Kernel { kernel, initrd }) => {
            Source::Kernel { kernel: kernel.clone(), initrd: initrd.clone() }
        }
        Some(Boot::Uki(uki)) => Source::Uki(uki.clone()),
        // Its place in the order of the firmware is behind that of the disk.
        Some(Boot::Iso(iso)) => Source::Iso(iso.clone()),
        Some(Boot::Usb(stick)) => Source::Usb(stick.clone()),
        Some(Boot::DiskImage(_)) | None => Source::Disk,
        Some(Boot::Ipxe(_)) => Source::Network,
    }
}

/// The arguments of the kernel: all of them for a kernel that we start, what comes on top for one that a boot loader
/// does. `config` is where the machine finds its configuration, if it has one.
pub(crate) fn command_line(
    options: &Options,
    source: &Source,
    machine: &Machine,
    config: Option<&str>,
) -> Option<String> {
    let console = match options.arch {
        Arch::Amd64 => "console=ttyS0",
        Arch::Arm64 => "console=ttyAMA0",
    };
    let mut words = vec![console.to_owned()];
    match source {
        Source::Kernel { .. } => words.push(KERNEL_ARGS.to_owned()),
        _ if !options.inject_cmdline => return None,
        _ => {}
    }
    words.extend(config.map(|url| format!("talos.config={url}")));
    words.extend(machine.kernel_args.iter().cloned());
    Some(words.join(" "))
}

/// Where a machine finds its configuration: nobody else knows its number.
pub(crate) fn config_url(gateway: Ipv4Addr, uuid: &str) -> String {
    format!("http://{gateway}{}", config_path(uuid))
}

/// The path of that.
pub(crate) fn config_path(uuid: &str) -> String {
    format!("/{uuid}/config.yaml")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ichor_provision::{Cluster, ClusterRequest, MachineRequest};

    use super::*;

    fn options(settings: &[(&str, &str)]) -> Options {
        let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Options::parse(&settings.collect::<BTreeMap<_, _>>()).unwrap()
    }

    fn machine() -> Machine {
        let request = ClusterRequest {
            name: "lab".into(),
            machines: vec![MachineRequest {
                name: "lab-worker-1".into(),
                kind: MachineKind::Worker,
                kernel_args: vec!["a=b".into()],
                resources: Resources::default(),
            }],
            ..ClusterRequest::default()
        };
        Cluster::plan("qemu", &request, "10.5.0.0/24".parse().unwrap(), "").unwrap().machines.remove(0)
    }

    const KERNEL: [(&str, &str); 2] = [("vmlinuz-path", "/k"), ("initrd-path", "/i")];

    #[test]
    fn a_kernel_is_started_until_something_is_installed() {
        let kernel = Source::Kernel { kernel: "/k".into(), initrd: "/i".into() };
        assert_eq!(source(&options(&KERNEL), false), kernel);
        assert_eq!(source(&options(&KERNEL), true), Source::Disk);
        let never = options(&[KERNEL.as_slice(), &[("with-bootloader", "false")]].concat());
        assert_eq!(source(&never, true), kernel);
        assert_eq!(source(&options(&[("iso-path", "/x")]), true), Source::Iso("/x".into()));
        assert_eq!(source(&options(&[("disk-image-path", "/x")]), false), Source::Disk);
        assert_eq!(source(&options(&[("ipxe-boot-script", "http://x")]), false), Source::Network);
    }

    #[test]
    fn a_boot_loader_is_only_told_what_comes_on_top() {
        let (options, machine) = (options(&KERNEL), machine());
        let line = |source: &Source, config| command_line(&options, source, &machine, config).unwrap();
        let all = line(&source(&options, false), Some("http://10.5.0.1/u/config.yaml"));
        assert_eq!(
            all,
            "console=ttyS0 talos.platform=metal slab_nomerge pti=on quiet panic=-1 no_timer_check \
             mitigations=off random.trust_cpu=on talos.config=http://10.5.0.1/u/config.yaml a=b"
        );
        assert_eq!(line(&Source::Disk, None), "console=ttyS0 a=b");
    }

    #[test]
    fn control_planes_have_the_first_disk_only() {
        let options = options(&[]);
        assert_eq!(disks(&options, MachineKind::ControlPlane).len(), 1);
        assert_eq!(disks(&options, MachineKind::Worker).len(), 2);
    }

    #[test]
    fn machines_have_whole_processors() {
        let sized = |millicores, memory| size(Resources { millicores, memory });
        assert_eq!(sized(None, None), (2, 2048));
        assert_eq!(sized(Some(500), Some(1)), (1, 1));
        assert_eq!(sized(Some(2500), Some(3 << 30)), (3, 3072));
    }
}
