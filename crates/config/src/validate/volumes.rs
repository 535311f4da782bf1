//! Rules of volumes: names, sizes, encryption, filesystems.

use ichor_cel::{Type, environments};

use super::Report;
use crate::{
    kinds::block::{
        Encryption, EncryptionProvider, Filesystem, FilesystemType, Provisioning, UserVolumeConfig,
        VolumeConfig, VolumeType,
    },
    model::{Field, Path},
};

/// Longest name of a volume; with its prefix it has to fit a partition label.
const VOLUME_NAME_MAX: usize = 34;

pub(super) fn check_volume_name(report: &mut Report<'_>, name: &str, limited: bool) {
    let path = Path::root().key("name");
    if name.is_empty() {
        report.error(&path, "name is required");
    }
    if limited && !(1..=VOLUME_NAME_MAX).contains(&name.len()) {
        report.error(&path, format!("name must be between 1 and {VOLUME_NAME_MAX} characters long"));
    }
    if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        let message = "name can only contain lowercase and uppercase ASCII letters, digits, and hyphens";
        report.error(&path, message);
    }
}

pub(super) fn check_provisioning(report: &mut Report<'_>, spec: &Provisioning, required: bool, sized: bool) {
    let path = Path::root().key("provisioning");
    let expression = &spec.disk_selector.expression;
    let at = path.key("diskSelector").key("match");
    if expression.is_set() {
        report.expression(&at, "disk selector", &expression.0, &environments::disk(), &Type::Bool);
    } else if required {
        report.error(&at, "disk selector is required");
    }
    let (min, max) = (&spec.min_size, &spec.max_size);
    if !sized {
        if min.is_set() || !max.is_empty() || spec.grow.is_some() {
            report.error(&path, "min size, max size and grow are not supported");
        }
        return;
    }
    if max.bytes().is_some_and(|max| min.is_set() && min.bytes() > max) {
        report.error(&path.key("minSize"), "min size is greater than max size");
    }
    if required && !min.is_set() && max.is_empty() {
        report.error(&path, "min size or max size is required");
    }
}

pub(super) fn check_encryption(report: &mut Report<'_>, spec: &Encryption) {
    if spec.is_absent() {
        return;
    }
    let path = Path::root().key("encryption");
    if spec.provider != EncryptionProvider::Luks2 {
        report.error(&path.key("provider"), format!("unsupported encryption provider: {}", spec.provider));
    }
    if spec.keys.is_empty() {
        report.error(&path.key("keys"), "encryption keys are required");
    }
    for (i, key) in spec.keys.iter().enumerate() {
        let at = path.key("keys").index(i);
        if spec.keys[..i].iter().any(|earlier| earlier.slot == key.slot) {
            report.error(&at.key("slot"), format!("duplicate key slot {}", key.slot));
        }
        let typed =
            key.static_key.is_some() || key.node_id.is_some() || key.kms.is_some() || key.tpm.is_some();
        if !typed {
            let message = "at least one encryption key type must be specified for slot";
            report.error(&at, format!("{message} {}", key.slot));
        }
        let options = key.tpm.as_ref().and_then(|tpm| tpm.options.as_ref());
        for (j, pcr) in options.map_or(&[][..], |options| &options.pcrs).iter().enumerate() {
            if !(0..=23).contains(pcr) {
                let at = at.key("tpm").key("options").key("pcrs").index(j);
                report.error(&at, format!("TPM PCR {pcr} is out of range (0-23)"));
            }
        }
    }
}

pub(super) fn check_volume(report: &mut Report<'_>, volume: &VolumeConfig) {
    let names = ["STATE", "EPHEMERAL", "IMAGECACHE"];
    let name = volume.name.as_str();
    if !names.contains(&name) {
        let help = crate::suggest::did_you_mean(name, names.into_iter());
        let list = names.map(|name| format!("{name:?}")).join(" ");
        let message = format!("only [{list}] volumes are supported");
        report.error_with_help(&Path::root().key("name"), message, help);
        return;
    }
    if name == "STATE" {
        if !Field::is_empty(&volume.provisioning) {
            let message = format!("provisioning config is not allowed for the {name:?} volume");
            report.error(&Path::root().key("provisioning"), message);
        }
        for (i, key) in volume.encryption.keys.iter().enumerate() {
            if key.lock_to_state == Some(true) {
                let message = format!("state-locked key is not allowed for the {name:?} volume");
                report.error(&Path::of("encryption.keys").index(i).key("lockToState"), message);
            }
        }
    }
    check_provisioning(report, &volume.provisioning, false, true);
    check_encryption(report, &volume.encryption);
}

pub(super) fn check_user_volume(report: &mut Report<'_>, volume: &UserVolumeConfig) {
    check_volume_name(report, &volume.name, true);
    let root = Path::root();
    let kind = volume.volume_type.unwrap_or_default();
    match kind {
        VolumeType::Directory => {
            let parts = [
                ("provisioning", Field::is_empty(&volume.provisioning)),
                ("encryption", volume.encryption.is_absent()),
                ("filesystem", Field::is_empty(&volume.filesystem)),
            ];
            for (key, _) in parts.iter().filter(|(_, absent)| !absent) {
                report.error(&root.key(key), format!("{key} spec is invalid for volumeType directory"));
            }
        }
        VolumeType::Disk | VolumeType::Partition => {
            check_provisioning(report, &volume.provisioning, true, kind == VolumeType::Partition);
            check_filesystem(report, &volume.filesystem);
            check_encryption(report, &volume.encryption);
        }
        VolumeType::Tmpfs | VolumeType::Symlink | VolumeType::Overlay => {
            let help = Some("allowed: partition, disk, directory".to_owned());
            let message = format!("unsupported volume type {:?}", kind.as_str());
            report.error_with_help(&root.key("volumeType"), message, help);
        }
    }
}

fn check_filesystem(report: &mut Report<'_>, spec: &Filesystem) {
    let path = Path::root().key("filesystem");
    let kind = spec.filesystem_type;
    if !matches!(kind, FilesystemType::None | FilesystemType::Xfs | FilesystemType::Ext4) {
        report.error(&path.key("type"), format!("unsupported filesystem type: {kind}"));
    } else if spec.project_quota_support == Some(true) && kind == FilesystemType::Ext4 {
        let message = "project quota support is only available for xfs filesystem";
        report.error(&path.key("projectQuotaSupport"), message);
    }
}
