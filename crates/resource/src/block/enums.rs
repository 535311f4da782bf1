//! Enums of volumes.

use crate::value::enums::spec_enum;

spec_enum! {
    /// Where a disk key comes from.
    pub enum EncryptionKeyType = "talos.resource.definitions.enums.BlockEncryptionKeyType" {
        #[default]
        Static = 0 => "static",
        NodeId = 1 => "nodeID",
        Kms = 2 => "kms",
        Tpm = 3 => "tpm",
    }
}

spec_enum! {
    /// What encrypts a volume.
    pub enum EncryptionProviderType = "talos.resource.definitions.enums.BlockEncryptionProviderType" {
        #[default]
        None = 0 => "none",
        Luks2 = 1 => "luks2",
    }
}

spec_enum! {
    /// The filesystem of a volume.
    pub enum FilesystemType = "talos.resource.definitions.enums.BlockFilesystemType" {
        #[default]
        None = 0 => "none",
        Xfs = 1 => "xfs",
        Vfat = 2 => "vfat",
        Ext4 = 3 => "ext4",
        Iso9660 = 4 => "iso9660",
        Swap = 5 => "swap",
    }
}

spec_enum! {
    /// Where a volume is in its life.
    pub enum VolumePhase = "talos.resource.definitions.enums.BlockVolumePhase" {
        #[default]
        Waiting = 0 => "waiting",
        Failed = 1 => "failed",
        Missing = 2 => "missing",
        Located = 3 => "located",
        Provisioned = 4 => "provisioned",
        Prepared = 5 => "prepared",
        Ready = 6 => "ready",
        Closed = 7 => "closed",
    }
}

spec_enum! {
    /// What backs a volume.
    pub enum VolumeType = "talos.resource.definitions.enums.BlockVolumeType" {
        #[default]
        Partition = 0 => "partition",
        Disk = 1 => "disk",
        Tmpfs = 2 => "tmpfs",
        Directory = 3 => "directory",
        Symlink = 4 => "symlink",
        Overlay = 5 => "overlay",
    }
}
