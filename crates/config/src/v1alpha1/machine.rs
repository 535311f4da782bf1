//! `machine`: the part of the root document that is about one machine.

use ichor_types::GoDuration;

use super::{
    control_plane::MachineControlPlane, encryption::SystemDiskEncryption, features::Features,
    install::InstallConfig, kubelet::KubeletConfig, network::NetworkConfig, registries::Registries,
};
use crate::{
    model::{Free, List, Map, section},
    values::{DiskSize, FileMode, PemCert, PemPair, Url},
};

section! {
    /// How a machine is set up.
    pub struct MachineConfig {
        /// Role of the machine: `controlplane`, `worker` or, for the first machine of old clusters, `init`.
        @always
        @default("worker")
        @example("type: controlplane")
        "type" => machine_type: String,
        /// Token with which machines prove that they may join the trust service.
        @always
        @example("token: 328hom.uqjzh6jnn2eie9oi")
        "token" => token: String,
        /// Certificate authority of the machine API; workers carry the certificate without its key.
        "ca" => ca: Option<PemPair>,
        /// Further certificate authorities that the machine API trusts, for example while rotating.
        @example("acceptedCAs:\n    - crt: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg==")
        "acceptedCAs" => accepted_cas: List<PemCert>,
        /// Additional names and addresses in the certificate of the machine API.
        @always
        @example("certSANs:\n    - 10.0.0.10\n    - 172.16.0.10")
        "certSANs" => cert_sans: List<String>,
        /// Switches for control plane components of this machine.
        "controlPlane" => control_plane: Option<MachineControlPlane>,
        /// Settings of the kubelet.
        "kubelet" => kubelet: Option<KubeletConfig>,
        /// Manifests of static pods that the kubelet runs.
        @example("pods:\n    - apiVersion: v1\n      kind: Pod\n      metadata:\n        name: nginx\n      spec:\n        containers:\n            - name: nginx\n              image: nginx")
        "pods" => pods: List<Free>,
        /// Network of the machine.
        "network" => network: Option<NetworkConfig>,
        /// Additional disks to partition, format and mount.
        @deprecated("use `UserVolumeConfig` documents")
        "disks" => disks: List<MachineDisk>,
        /// How the system is installed on a disk.
        "install" => install: Option<InstallConfig>,
        /// Files to write at boot.
        @example("files:\n    - content: key=value\n      permissions: 0o644\n      path: /var/etc/example.conf\n      op: create")
        "files" => files: List<MachineFile>,
        /// Environment variables of the init process and every service.
        @example("env:\n    https_proxy: http://proxy.example:3128/")
        "env" => env: Map<String>,
        /// Time synchronisation.
        @deprecated("use a `TimeSyncConfig` document")
        "time" => time: Option<TimeConfig>,
        /// Kernel parameters.
        @example("sysctls:\n    net.ipv4.ip_forward: \"0\"")
        "sysctls" => sysctls: Map<String>,
        /// Values written below `/sys`; dots in the key stand for slashes.
        @example("sysfs:\n    devices.system.cpu.cpu0.cpufreq.scaling_governor: performance")
        "sysfs" => sysfs: Map<String>,
        /// Mirrors and credentials of image registries.
        @deprecated("use `RegistryMirrorConfig`, `RegistryAuthConfig` and `RegistryTLSConfig` documents")
        "registries" => registries: Registries,
        /// Encryption of the system partitions.
        @deprecated("use `VolumeConfig` documents")
        "systemDiskEncryption" => system_disk_encryption: Option<SystemDiskEncryption>,
        /// Optional abilities of the system.
        "features" => features: Option<Features>,
        /// Additional udev rules.
        @example("udev:\n    rules:\n        - SUBSYSTEM==\"drm\", KERNEL==\"renderD*\", GROUP=\"44\", MODE=\"0660\"")
        "udev" => udev: Option<UdevConfig>,
        /// Where service logs are sent.
        @example("logging:\n    destinations:\n        - endpoint: tcp://10.0.0.5:12345\n          format: json_lines")
        "logging" => logging: Option<LoggingConfig>,
        /// Kernel modules.
        @example("kernel:\n    modules:\n        - name: btrfs")
        "kernel" => kernel: Option<KernelConfig>,
        /// Seccomp profiles that are made available to containers.
        "seccompProfiles" => seccomp_profiles: List<SeccompProfile>,
        /// Overrides of the default container runtime specification.
        "baseRuntimeSpecOverrides" => base_runtime_spec_overrides: Free,
        /// Labels of the Kubernetes node.
        @example("nodeLabels:\n    example.com/rack: r12")
        "nodeLabels" => node_labels: Map<String>,
        /// Annotations of the Kubernetes node.
        @example("nodeAnnotations:\n    example.com/owner: team-a")
        "nodeAnnotations" => node_annotations: Map<String>,
        /// Taints of the Kubernetes node, as `value:Effect` or `Effect`.
        @example("nodeTaints:\n    example.com/dedicated: batch:NoSchedule")
        "nodeTaints" => node_taints: Map<String>,
    }
}

section! {
    /// A disk to partition, format and mount.
    pub struct MachineDisk {
        /// The device.
        "device" => device: String,
        /// Partitions to make; only the last one may leave out its size.
        "partitions" => partitions: List<DiskPartition>,
    }
}

section! {
    /// A partition of an additional disk.
    pub struct DiskPartition {
        /// Size in bytes or with a unit; the rest of the disk when left out.
        "size" => size: DiskSize,
        /// Where it is mounted.
        "mountpoint" => mountpoint: String,
    }
}

section! {
    /// A file to write at boot.
    pub struct MachineFile {
        /// The content.
        @always
        "content" => content: String,
        /// The permissions, in octal.
        @always
        "permissions" => permissions: FileMode,
        /// The path.
        @always
        "path" => path: String,
        /// What to do: `create`, `overwrite` or `append`.
        @always
        "op" => op: String,
    }
}

section! {
    /// Time synchronisation of the machine.
    pub struct TimeConfig {
        /// Leave the clock alone.
        @default("false")
        "disabled" => disabled: Option<bool>,
        /// NTP servers, or PTP devices.
        "servers" => servers: List<String>,
        /// How long booting waits for the clock; zero waits for ever.
        "bootTimeout" => boot_timeout: GoDuration,
    }
}

section! {
    /// Additional udev rules.
    pub struct UdevConfig {
        /// The rules, one per line.
        "rules" => rules: List<String>,
    }
}

section! {
    /// Where service logs are sent.
    pub struct LoggingConfig {
        /// The receivers.
        @always
        "destinations" => destinations: List<LoggingDestination>,
    }
}

section! {
    /// A receiver of service logs.
    pub struct LoggingDestination {
        /// Where it listens: `tcp://host:port` or `udp://host:port`.
        @always
        "endpoint" => endpoint: Option<Url>,
        /// The format of the lines: `json_lines`.
        @always
        "format" => format: String,
        /// Tags added to every line.
        "extraTags" => extra_tags: Map<String>,
    }
}

section! {
    /// Kernel modules.
    pub struct KernelConfig {
        /// The modules to load.
        "modules" => modules: List<KernelModule>,
    }
}

section! {
    /// A kernel module to load.
    pub struct KernelModule {
        /// Its name.
        @always
        "name" => name: String,
        /// Its parameters; changes take effect after a reboot.
        "parameters" => parameters: List<String>,
    }
}

section! {
    /// A seccomp profile.
    pub struct SeccompProfile {
        /// The file name it gets.
        @always
        "name" => name: String,
        /// The profile.
        @always
        "value" => value: Free,
    }
}
