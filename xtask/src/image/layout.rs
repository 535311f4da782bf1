//! What every root image holds: directories, files with fixed content, links, and the places of programs.

/// Names the one program answers to.
pub(super) const PROGRAMS: &[&str] =
    &["apid", "init", "machined", "poweroff", "reboot", "shutdown", "trustd"];

/// Programs of `build/components` that run on the node itself, and where they lie there. What runs in containers comes
/// in images.
pub(super) const COMPONENTS: &[(&str, &str)] = &[
    ("cni/bridge", "opt/cni/bin/bridge"),
    ("cni/firewall", "opt/cni/bin/firewall"),
    ("cni/host-local", "opt/cni/bin/host-local"),
    ("cni/loopback", "opt/cni/bin/loopback"),
    ("cni/portmap", "opt/cni/bin/portmap"),
    ("containerd", "usr/bin/containerd"),
    ("containerd-shim-runc-v2", "usr/bin/containerd-shim-runc-v2"),
    ("flannel", "opt/cni/bin/flannel"),
    ("runc", "usr/bin/runc"),
];

/// Directories, parents first. Most are places to mount on.
pub(super) const DIRECTORIES: &[&str] = &[
    ".extra",
    "boot",
    "boot/EFI",
    "dev",
    "etc",
    "etc/cni",
    "etc/cni/net.d",
    "etc/containerd",
    "etc/cri",
    "etc/cri/conf.d",
    "etc/cri/conf.d/hosts",
    "etc/iscsi",
    "etc/kubernetes",
    "etc/kubernetes/manifests",
    "etc/lvm",
    "etc/nvme",
    "etc/selinux",
    "etc/selinux/targeted",
    "etc/selinux/targeted/contexts",
    "etc/selinux/targeted/contexts/files",
    "etc/ssl",
    "etc/ssl/certs",
    "mnt",
    "opt",
    "opt/cni",
    "opt/cni/bin",
    "opt/containerd",
    "opt/containerd/bin",
    "opt/containerd/lib",
    "proc",
    "root",
    "run",
    "sys",
    "system",
    "tmp",
    "usr",
    "usr/bin",
    "usr/etc",
    "usr/lib",
    "usr/lib/firmware",
    "usr/lib/modules",
    "usr/lib/systemd",
    "usr/lib/systemd/network",
    "usr/lib/udev",
    "usr/libexec",
    "usr/libexec/kubernetes",
    "usr/local",
    "usr/local/bin",
    "usr/local/etc",
    "usr/local/lib",
    "usr/local/lib/kubelet",
    "usr/local/lib/kubelet/credentialproviders",
    "usr/local/sbin",
    "usr/local/share",
    "usr/share",
    "var",
];

/// Empty files to bind the real ones on.
pub(super) const BIND_TARGETS: &[&str] = &[
    "etc/cri/conf.d/01-registries.part",
    "etc/cri/conf.d/02-host.part",
    "etc/cri/conf.d/20-customization.part",
    "etc/cri/conf.d/base-spec.json",
    "etc/cri/conf.d/cri.toml",
    "etc/extensions.yaml",
    "etc/hostname",
    "etc/hosts",
    "etc/iscsi/initiatorname.iscsi",
    "etc/machine-id",
    "etc/nvme/hostid",
    "etc/nvme/hostnqn",
    "etc/resolv.conf",
    "etc/selinux/targeted/contexts/files/file_contexts",
    "etc/ssl/certs/ca-certificates.crt",
];

pub(super) const LINKS: &[(&str, &str)] = &[
    ("bin", "usr/bin"),
    ("etc/ca-certificates", "ssl"),
    ("etc/localtime", "/usr/share/zoneinfo/UTC"),
    ("etc/mtab", "/proc/self/mounts"),
    ("etc/pki", "ssl"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib"),
    ("sbin", "usr/bin"),
    ("usr/lib64", "lib"),
    ("usr/local/share/ca-certificates", "/etc/ssl"),
    ("usr/sbin", "bin"),
    ("usr/share/ca-certificates", "/etc/ssl"),
];

/// The container runtime's own file; all that may change is in the one it names.
const CRI: &str = "\
version = 3

disabled_plugins = [
    'io.containerd.differ.v1.erofs',
    'io.containerd.internal.v1.tracing',
    'io.containerd.snapshotter.v1.blockfile',
    'io.containerd.snapshotter.v1.erofs',
    'io.containerd.tracing.processor.v1.otlp',
]

imports = ['/etc/cri/conf.d/cri.toml']

[debug]
  format = 'json'
  level = 'info'
";

/// The first part of what the runtime is told: pods keep what they unpacked, not what they downloaded.
const CRI_BASE: &str = "\
version = 3

[plugins]
  [plugins.'io.containerd.cri.v1.images']
    discard_unpacked_layers = true
    use_local_image_pull = true

  [plugins.'io.containerd.cri.v1.runtime']
    [plugins.'io.containerd.cri.v1.runtime'.containerd]
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes]
        [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
          base_runtime_spec = '/etc/cri/conf.d/base-spec.json'

  [plugins.'io.containerd.nri.v1.nri']
    disable = true
";

/// Volume groups are described on their disks; a copy in `/etc` would have to be written.
const LVM: &str = "backup {\n\tbackup = 0\n\tarchive = 0\n}\n";

/// How the device manager names network links; `net.ifnames=0` leaves them the kernel's names.
const LINK_NAMES: &str = "\
[Match]
OriginalName=*

[Link]
NamePolicy=keep kernel database onboard slot path mac
MACAddressPolicy=none
";

/// Files with content. Users are those that services run as; nobody can log in.
pub(super) const FILES: &[(&str, &str)] = &[
    ("etc/cri/conf.d/00-base.part", CRI_BASE),
    ("etc/cri/containerd.toml", CRI),
    ("etc/group", "root:x:0:\ntty:x:5:\napid:x:50:\ntrustd:x:51:\netcd:x:60:\nnogroup:x:65534:\n"),
    ("etc/lvm/lvm.conf", LVM),
    ("etc/nfsmount.conf", "[ NFSMount_Global_Options ]\nnolock=true\n"),
    ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
    (
        "etc/passwd",
        "root:x:0:0:root:/:/nologin\napid:x:50:50:apid:/:/nologin\ntrustd:x:51:51:trustd:/:/nologin\n\
         etcd:x:60:60:etcd:/:/nologin\nnobody:x:65534:65534:nobody:/:/nologin\n",
    ),
    (
        "etc/ssl/certs/ca-certificates",
        "# No certificate authority is trusted: the package ca-certificates was missing when the image was built,\n\
         # and no bundle was named (cargo xtask image --ca-bundle FILE).\n",
    ),
    ("usr/lib/systemd/network/99-default.link", LINK_NAMES),
];
