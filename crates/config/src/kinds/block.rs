//! Volumes: system, user, raw, existing, swap; zswap.

use crate::{
    model::{List, choices, section},
    values::{ByteSize, Expression, Size},
};

section! {
    /// Where a volume is made and how large it is.
    pub struct Provisioning {
        /// Selects the disk.
        "diskSelector" => disk_selector: DiskSelector,
        /// Grow the volume when the disk has room.
        @example("grow: true")
        "grow" => grow: Option<bool>,
        /// Smallest size.
        @example("minSize: 10GiB")
        "minSize" => min_size: ByteSize,
        /// Largest size, absolute or in percent of the disk.
        @example("maxSize: 50%")
        "maxSize" => max_size: Size,
    }
}

section! {
    /// Selects disks by an expression.
    pub struct DiskSelector {
        /// Expression over `disk` and `system_disk`.
        @example("match: disk.size > 120u * GB && disk.size < 1u * TB")
        "match" => expression: Expression,
    }
}

choices! {
    /// Kind of encryption.
    pub enum EncryptionProvider {
        None = "none",
        Luks2 = "luks2",
    }
}

section! {
    /// Encryption of a volume.
    pub struct Encryption empty_if is_absent {
        /// Kind of encryption: `luks2`.
        @always
        "provider" => provider: EncryptionProvider,
        /// Keys, each in its own slot.
        @always
        "keys" => keys: List<EncryptionKey>,
        /// Cipher: `aes-xts-plain64`, `xchacha12,aes-adiantum-plain64` or `xchacha20,aes-adiantum-plain64`.
        @default("aes-xts-plain64")
        "cipher" => cipher: String,
        /// Size of the key in bits.
        "keySize" => key_size: u64,
        /// Size of the blocks in bytes.
        "blockSize" => block_size: u64,
        /// Performance options: `no_read_workqueue`, `no_write_workqueue`, `same_cpu_crypt`.
        "options" => options: List<String>,
    }
}

impl Encryption {
    /// True if there is no encryption: neither a provider nor a key is set.
    pub fn is_absent(&self) -> bool {
        self.provider == EncryptionProvider::None && self.keys.is_empty()
    }
}

section! {
    /// A key of an encrypted volume.
    pub struct EncryptionKey {
        /// Slot of the key.
        @always
        "slot" => slot: i64,
        /// A fixed passphrase.
        "static" => static_key: Option<StaticKey>,
        /// A key derived from the identity of the machine.
        "nodeID" => node_id: Option<NodeIdKey>,
        /// A key sealed by a key server.
        "kms" => kms: Option<KmsKey>,
        /// A key sealed by the TPM.
        "tpm" => tpm: Option<TpmKey>,
        /// Tie the key to the STATE volume.
        "lockToState" => lock_to_state: Option<bool>,
    }
}

section! {
    /// A fixed passphrase.
    pub struct StaticKey {
        /// The passphrase.
        "passphrase" => passphrase: String,
    }
}

section! {
    /// A key derived from the identity of the machine.
    pub struct NodeIdKey {}
}

section! {
    /// A key sealed by a key server.
    pub struct KmsKey {
        /// Where the server listens.
        @always
        "endpoint" => endpoint: String,
    }
}

section! {
    /// A key sealed by the TPM.
    pub struct TpmKey {
        /// What the key is bound to.
        "options" => options: Option<TpmOptions>,
        /// Refuse to enrol unless secure boot is on.
        @default("false")
        "checkSecurebootStatusOnEnroll" => check_secureboot_status_on_enroll: Option<bool>,
    }
}

impl TpmKey {
    /// Registers the key is bound to: PCR 7 unless a list is given, which may be empty.
    pub fn pcrs(&self) -> Vec<i64> {
        match &self.options {
            Some(options) if options.pcrs.is_present() => options.pcrs.to_vec(),
            _ => vec![7],
        }
    }

    /// Registers of the signed policy.
    pub const SIGNED_POLICY_PCRS: [i64; 1] = [11];
}

section! {
    /// What a TPM key is bound to.
    pub struct TpmOptions {
        /// Platform configuration registers, 0 to 23.
        "pcrs" => pcrs: List<i64>,
    }
}

section! {
    /// Settings of a system volume: `STATE`, `EPHEMERAL` or `IMAGECACHE`.
    pub struct VolumeConfig {
        /// The volume.
        @always
        "name" => name: String,
        /// Where it is made and how large it is.
        "provisioning" => provisioning: Provisioning,
        /// Its encryption.
        "encryption" => encryption: Encryption,
    }
}

choices! {
    /// What a user volume is made of.
    pub enum VolumeType {
        Partition = "partition",
        Disk = "disk",
        Tmpfs = "tmpfs",
        Directory = "directory",
        Symlink = "symlink",
        Overlay = "overlay",
    }
}

choices! {
    /// Filesystem of a volume.
    pub enum FilesystemType {
        None = "none",
        Xfs = "xfs",
        Vfat = "vfat",
        Ext4 = "ext4",
        Iso9660 = "iso9660",
        Swap = "swap",
    }
}

section! {
    /// A volume for workloads, mounted at `/var/mnt/<name>`.
    pub struct UserVolumeConfig {
        /// Name of the volume.
        @always
        "name" => name: String,
        /// What it is made of: `partition`, `disk` or `directory`.
        @default("partition")
        "volumeType" => volume_type: Option<VolumeType>,
        /// Where it is made and how large it is.
        "provisioning" => provisioning: Provisioning,
        /// Its filesystem.
        "filesystem" => filesystem: Filesystem,
        /// Its encryption.
        "encryption" => encryption: Encryption,
    }
}

section! {
    /// Filesystem of a volume.
    pub struct Filesystem {
        /// `xfs` or `ext4`.
        @default("xfs")
        "type" => filesystem_type: FilesystemType,
        /// Project quota, xfs only.
        @default("false")
        "projectQuotaSupport" => project_quota_support: Option<bool>,
    }
}

section! {
    /// A volume without a filesystem.
    pub struct RawVolumeConfig {
        /// Name of the volume.
        @always
        "name" => name: String,
        /// Where it is made and how large it is.
        "provisioning" => provisioning: Provisioning,
        /// Its encryption.
        "encryption" => encryption: Encryption,
    }
}

section! {
    /// A volume for swapping.
    pub struct SwapVolumeConfig {
        /// Name of the volume.
        @always
        "name" => name: String,
        /// Where it is made and how large it is.
        "provisioning" => provisioning: Provisioning,
        /// Its encryption.
        "encryption" => encryption: Encryption,
    }
}

section! {
    /// A volume that exists already, mounted at `/var/mnt/<name>`.
    pub struct ExistingVolumeConfig {
        /// Name of the volume.
        @always
        "name" => name: String,
        /// How it is found.
        "discovery" => discovery: VolumeDiscovery,
        /// How it is mounted.
        "mount" => mount: Mount,
    }
}

section! {
    /// How an existing volume is found.
    pub struct VolumeDiscovery {
        /// Selects the volume.
        "volumeSelector" => volume_selector: VolumeSelector,
    }
}

section! {
    /// Selects a volume by an expression.
    pub struct VolumeSelector {
        /// Expression over `volume` and `disk`.
        @example("match: volume.partition_label == \"MY-DATA\"")
        "match" => expression: Expression,
    }
}

section! {
    /// How a volume is mounted.
    pub struct Mount {
        /// Mount it read-only.
        @default("false")
        "readOnly" => read_only: Option<bool>,
    }
}

section! {
    /// Compressed swap cache in memory; the document turns it on.
    pub struct ZswapConfig {
        /// Share of memory it may use, in percent.
        @default("20")
        "maxPoolPercent" => max_pool_percent: Option<i64>,
        /// Let it give memory back under pressure.
        @default("false")
        "shrinkerEnabled" => shrinker_enabled: Option<bool>,
    }
}
