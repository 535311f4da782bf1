//! Volumes for workloads, as documents of the configuration ask for them. Pure.

use ichor_config::Document;
use ichor_config::kinds::block::{
    self as documents, ExistingVolumeConfig, Provisioning, RawVolumeConfig, SwapVolumeConfig,
    UserVolumeConfig,
};
use ichor_resource::block::{
    FilesystemSpec, FilesystemType, MountSpec, ProvisioningSpec, VolumeConfig, VolumeType,
};

use super::{
    EPHEMERAL_LABEL, LINUX_DATA, LINUX_SWAP, WantedVolume, encryption, expression, partition, quoted,
};

/// The directory that volumes for workloads are mounted in, as a volume of its own.
pub(super) const MOUNT_POINT: &str = "/var/mnt";
/// A partition has at least this, unless its document says otherwise.
const MINIMUM: u64 = 100 << 20;
/// A swap volume without a largest size has this.
const SWAP_MAX: u64 = 100 << 20;
/// Volumes of documents get their place together, after those of the system.
const WAVE: i64 = 0;

const USER: &str = "talos.dev/user-volume";
const RAW: &str = "talos.dev/raw-volume";
const EXISTING: &str = "talos.dev/existing-volume";
const SWAP: &str = "talos.dev/swap-volume";
const SYSTEM: &str = "talos.dev/system-volume";

/// The volumes of these documents, and the directory they are mounted in where any is.
pub(super) fn volumes<'a>(documents: impl IntoIterator<Item = &'a Document>) -> Vec<WantedVolume> {
    let mut wanted: Vec<WantedVolume> = documents
        .into_iter()
        .filter_map(|document| match document {
            Document::UserVolumeConfig(volume) => Some(user(volume)),
            Document::RawVolumeConfig(volume) => Some(raw(volume)),
            Document::ExistingVolumeConfig(volume) => Some(existing(volume)),
            Document::SwapVolumeConfig(volume) => Some(swap(volume)),
            _ => None,
        })
        .collect();
    if wanted.iter().any(|volume| volume.config.mount.parent_id == MOUNT_POINT) {
        wanted.insert(0, mount_point());
    }
    wanted
}

fn mount_point() -> WantedVolume {
    let mount = MountSpec {
        target_path: "mnt".to_owned(),
        parent_id: ichor_ctl::volumes::EPHEMERAL.to_owned(),
        ..below_ephemeral()
    };
    let config = VolumeConfig { r#type: VolumeType::Directory, mount, ..VolumeConfig::default() };
    // Mounted with the first volume in it.
    WantedVolume { id: MOUNT_POINT.to_owned(), label: SYSTEM, config, mount: None }
}

fn below_ephemeral() -> MountSpec {
    MountSpec { file_mode: 0o755, selinux_label: EPHEMERAL_LABEL.to_owned(), ..MountSpec::default() }
}

fn mount(name: &str) -> MountSpec {
    MountSpec { target_path: name.to_owned(), parent_id: MOUNT_POINT.to_owned(), ..below_ephemeral() }
}

fn user(volume: &UserVolumeConfig) -> WantedVolume {
    let (id, wanted) = (format!("u-{}", volume.name), &volume.provisioning);
    let mut mount = mount(&volume.name);
    mount.project_quota_support = volume.filesystem.project_quota_support.unwrap_or(false);
    let mut config =
        VolumeConfig { mount, encryption: encryption(&volume.encryption), ..VolumeConfig::default() };
    let filesystem = match volume.filesystem.filesystem_type {
        documents::FilesystemType::Ext4 => FilesystemType::Ext4,
        _ => FilesystemType::Xfs,
    };
    match volume.volume_type.unwrap_or(documents::VolumeType::Partition) {
        documents::VolumeType::Directory => {
            config.r#type = VolumeType::Directory;
            config.mount.bind_target = Some(volume.name.clone());
        }
        documents::VolumeType::Disk => {
            config.r#type = VolumeType::Disk;
            config.locator.disk_match = expression(wanted.disk_selector.expression.0.clone());
            config.provisioning = provisioning(&id, wanted, filesystem);
        }
        _ => {
            config.locator.r#match = by_label(&id);
            config.provisioning = provisioning(&id, wanted, filesystem);
            config.provisioning.partition_spec = partition(&id, LINUX_DATA, wanted, MINIMUM, false);
        }
    }
    WantedVolume { id, label: USER, config, mount: Some(false) }
}

fn by_label(label: &str) -> ichor_resource::block::Expression {
    expression(format!("volume.partition_label == {}", quoted(label)))
}

/// Everything but the sizes of a partition.
fn provisioning(label: &str, wanted: &Provisioning, filesystem: FilesystemType) -> ProvisioningSpec {
    let mut spec = ProvisioningSpec {
        wave: WAVE,
        filesystem_spec: FilesystemSpec { r#type: filesystem, label: filesystem_label(label, filesystem) },
        ..ProvisioningSpec::default()
    };
    spec.disk_selector.r#match = expression(wanted.disk_selector.expression.0.clone());
    spec
}

/// As much of a label as the filesystem takes.
fn filesystem_label(label: &str, filesystem: FilesystemType) -> String {
    let most = match filesystem {
        FilesystemType::Xfs => 12,
        FilesystemType::Ext4 | FilesystemType::Swap => 16,
        FilesystemType::None | FilesystemType::Vfat | FilesystemType::Iso9660 => 0,
    };
    label.chars().take(most).collect()
}

fn raw(volume: &RawVolumeConfig) -> WantedVolume {
    let id = format!("r-{}", volume.name);
    let mut config = VolumeConfig { encryption: encryption(&volume.encryption), ..VolumeConfig::default() };
    config.locator.r#match = by_label(&id);
    config.provisioning = provisioning(&id, &volume.provisioning, FilesystemType::None);
    config.provisioning.partition_spec = partition(&id, LINUX_DATA, &volume.provisioning, MINIMUM, false);
    WantedVolume { id, label: RAW, config, mount: None }
}

fn swap(volume: &SwapVolumeConfig) -> WantedVolume {
    let id = format!("s-{}", volume.name);
    let mut config = VolumeConfig { encryption: encryption(&volume.encryption), ..VolumeConfig::default() };
    config.locator.r#match = by_label(&id);
    config.provisioning = provisioning(&id, &volume.provisioning, FilesystemType::Swap);
    let mut spec = partition(&id, LINUX_SWAP, &volume.provisioning, MINIMUM, false);
    if spec.max_size == 0 && spec.relative_max_size == 0 {
        spec.max_size = SWAP_MAX.max(spec.min_size);
    }
    config.provisioning.partition_spec = spec;
    WantedVolume { id, label: SWAP, config, mount: Some(false) }
}

fn existing(volume: &ExistingVolumeConfig) -> WantedVolume {
    let mut config = VolumeConfig { mount: mount(&volume.name), ..VolumeConfig::default() };
    config.locator.r#match = expression(volume.discovery.volume_selector.expression.0.clone());
    let read_only = volume.mount.read_only.unwrap_or(false);
    WantedVolume { id: format!("e-{}", volume.name), label: EXISTING, config, mount: Some(read_only) }
}

#[cfg(test)]
mod tests {
    use ichor_config::Documents;

    use super::*;

    fn wanted(yaml: &str) -> Vec<WantedVolume> {
        let documents = Documents::load(yaml.as_bytes()).unwrap();
        volumes(documents.iter())
    }

    fn document(kind: &str, rest: &str) -> String {
        format!("apiVersion: v1alpha1\nkind: {kind}\nname: data\n{rest}")
    }

    const SELECTOR: &str =
        "provisioning: {diskSelector: {match: '!system_disk'}, minSize: 200MiB, maxSize: 1GiB}\n";

    #[test]
    fn a_user_volume_is_a_partition_with_a_filesystem_below_var_mnt() {
        let found = wanted(&document("UserVolumeConfig", SELECTOR));
        let [parent, volume] = &found[..] else { panic!("{found:?}") };
        assert_eq!((parent.id.as_str(), parent.mount), ("/var/mnt", None));
        assert_eq!((volume.id.as_str(), volume.label, volume.mount), ("u-data", USER, Some(false)));
        let config = &volume.config;
        assert_eq!(config.locator.r#match.text, "volume.partition_label == \"u-data\"");
        assert_eq!(config.provisioning.filesystem_spec.r#type, FilesystemType::Xfs);
        let spec = &config.provisioning.partition_spec;
        assert_eq!((spec.min_size, spec.max_size, spec.grow), (200 << 20, 1 << 30, false));
        assert_eq!(
            (config.mount.parent_id.as_str(), config.mount.target_path.as_str()),
            ("/var/mnt", "data")
        );
    }

    #[test]
    fn a_user_volume_may_be_a_disk_or_a_directory() {
        let disk = wanted(&document(
            "UserVolumeConfig",
            "volumeType: disk\nprovisioning: {diskSelector: {match: disk.serial == 'a'}}\nfilesystem: {type: ext4}\n",
        ));
        let config = &disk[1].config;
        assert_eq!(
            (config.r#type, config.locator.disk_match.text.as_str()),
            (VolumeType::Disk, "disk.serial == 'a'")
        );
        assert_eq!(config.provisioning.filesystem_spec.r#type, FilesystemType::Ext4);
        let directory = wanted(&document("UserVolumeConfig", "volumeType: directory\n"));
        let config = &directory[1].config;
        assert_eq!(
            (config.r#type, config.mount.bind_target.as_deref()),
            (VolumeType::Directory, Some("data"))
        );
    }

    #[test]
    fn raw_swap_and_existing_volumes() {
        let raw = &wanted(&document("RawVolumeConfig", SELECTOR))[0];
        assert_eq!((raw.id.as_str(), raw.mount), ("r-data", None));
        assert_eq!(raw.config.provisioning.filesystem_spec.r#type, FilesystemType::None);
        let small = "provisioning: {diskSelector: {match: 'true'}, minSize: 50MiB}\n";
        let swap = &wanted(&document("SwapVolumeConfig", small))[0];
        assert_eq!((swap.id.as_str(), swap.mount), ("s-data", Some(false)));
        let spec = &swap.config.provisioning.partition_spec;
        assert_eq!(
            (spec.min_size, spec.max_size, spec.type_uuid.as_str()),
            (50 << 20, 100 << 20, LINUX_SWAP)
        );
        let existing = wanted(&document(
            "ExistingVolumeConfig",
            "discovery: {volumeSelector: {match: volume.label == 'x'}}\nmount: {readOnly: true}\n",
        ));
        assert_eq!((existing[1].id.as_str(), existing[1].mount), ("e-data", Some(true)));
        assert!(existing[1].config.provisioning.disk_selector.r#match.text.is_empty());
    }

    #[test]
    fn labels_fit_the_filesystem() {
        assert_eq!(filesystem_label("u-a-very-long-name", FilesystemType::Xfs), "u-a-very-lon");
        assert_eq!(filesystem_label("u-a", FilesystemType::Ext4), "u-a");
    }
}
