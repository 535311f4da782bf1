//! The volumes of the system: META, STATE and EPHEMERAL. Pure.

use std::path::Path;

use ichor_config::kinds::block::{Encryption, Provisioning};
use ichor_config::{Document, Documents};
use ichor_ctl::volumes::{EPHEMERAL, STATE};
use ichor_resource::block::{
    EncryptionProviderType, FilesystemSpec, FilesystemType, MountSpec, ProvisioningSpec, VolumeConfig,
    VolumeType,
};

use super::{EPHEMERAL_LABEL, LINUX_DATA, encryption, expression, partition};
use crate::system_disk::META_LABEL;

/// How META is found: a partition of that name with another size is somebody else's.
const META_LOCATOR: &str =
    "volume.partition_label == \"META\" && volume.name in [\"\", \"talosmeta\"] && volume.size == 1048576u";
/// Volumes of the system get their place before all others.
pub(super) const WAVE: i64 = -1;
/// The size of STATE.
const STATE_SIZE: u64 = 100 << 20;
/// The security label of STATE.
const STATE_LABEL: &str = "system_u:object_r:system_state_t:s0";
/// EPHEMERAL has at least this.
const EPHEMERAL_MIN: u64 = 2 << 30;
/// The disk of the system, for volumes that name no other.
const SYSTEM_DISK: &str = "system_disk";

/// Where the volumes of the system are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In memory: the system is not installed on a disk.
    Memory,
    /// On the disk that META is on.
    Disk,
}

/// META: found, never made.
pub(super) fn meta() -> VolumeConfig {
    let mut config = VolumeConfig { r#type: VolumeType::Partition, ..VolumeConfig::default() };
    config.locator.r#match = expression(META_LOCATOR);
    config
}

/// All volumes of the system but META. `documents` is the configuration, once there is one.
pub(super) fn volumes(
    place: Place,
    state: &Path,
    ephemeral: &Path,
    documents: Option<&Documents>,
) -> Vec<(&'static str, VolumeConfig)> {
    let (state_mount, mut ephemeral_mount) =
        (mount(state, 0o700, STATE_LABEL), mount(ephemeral, 0o755, EPHEMERAL_LABEL));
    if place == Place::Memory {
        let directory =
            |mount| VolumeConfig { r#type: VolumeType::Directory, mount, ..VolumeConfig::default() };
        return vec![(STATE, directory(state_mount)), (EPHEMERAL, directory(ephemeral_mount))];
    }
    let Some(documents) = documents.filter(|documents| documents.is_complete()) else {
        return vec![(STATE, state_to_find(state_mount))];
    };
    let features = documents.machine().and_then(|machine| machine.features.as_ref());
    ephemeral_mount.project_quota_support =
        features.and_then(|features| features.disk_quota_support).unwrap_or(false);
    vec![
        (STATE, state_to_make(state_mount, documents)),
        (EPHEMERAL, ephemeral_to_make(ephemeral_mount, documents)),
    ]
}

fn mount(target: &Path, file_mode: u32, selinux_label: &str) -> MountSpec {
    MountSpec {
        target_path: target.to_string_lossy().into_owned(),
        file_mode,
        selinux_label: selinux_label.to_owned(),
        ..MountSpec::default()
    }
}

/// STATE of a machine whose configuration is not known: it may be on it. An empty partition holds none.
fn state_to_find(mount: MountSpec) -> VolumeConfig {
    let mut config = VolumeConfig { r#type: VolumeType::Partition, mount, ..VolumeConfig::default() };
    config.locator.r#match = expression("volume.partition_label == \"STATE\" && volume.name != \"\"");
    config
}

fn state_to_make(mount: MountSpec, documents: &Documents) -> VolumeConfig {
    let mut config = to_make(STATE, mount, documents);
    let spec = &mut config.provisioning.partition_spec;
    (spec.min_size, spec.max_size, spec.relative_max_size, spec.grow) = (STATE_SIZE, STATE_SIZE, 0, false);
    config.provisioning.disk_selector.r#match = expression(SYSTEM_DISK);
    config
}

fn ephemeral_to_make(mount: MountSpec, documents: &Documents) -> VolumeConfig {
    to_make(EPHEMERAL, mount, documents)
}

/// A volume that is made where it does not exist, by its document or as usual.
fn to_make(id: &str, mount: MountSpec, documents: &Documents) -> VolumeConfig {
    let (usual, open) = (Provisioning::default(), Encryption::default());
    let document = documents.iter().find_map(|document| match document {
        Document::VolumeConfig(volume) if volume.name == id => Some(volume),
        _ => None,
    });
    let wanted = document.map_or(&usual, |volume| &volume.provisioning);
    let selector = &wanted.disk_selector.expression;
    let selector = if selector.is_set() { selector.0.as_str() } else { SYSTEM_DISK };
    let mut config = VolumeConfig {
        r#type: VolumeType::Partition,
        provisioning: ProvisioningSpec {
            wave: WAVE,
            partition_spec: partition(id, LINUX_DATA, wanted, EPHEMERAL_MIN, true),
            filesystem_spec: FilesystemSpec { r#type: FilesystemType::Xfs, label: id.to_owned() },
            ..ProvisioningSpec::default()
        },
        encryption: encryption(document.map_or(&open, |volume| &volume.encryption)),
        mount,
        ..VolumeConfig::default()
    };
    config.provisioning.disk_selector.r#match = expression(selector);
    config.locator.r#match = expression(format!("volume.partition_label == \"{id}\""));
    if is_encrypted_by_legacy(id, documents) {
        config.encryption.provider = EncryptionProviderType::Luks2;
    }
    config
}

/// Whether the old section of the configuration encrypts this volume.
fn is_encrypted_by_legacy(id: &str, documents: &Documents) -> bool {
    let section = documents.machine().and_then(|machine| machine.system_disk_encryption.as_ref());
    section.is_some_and(|section| match id {
        STATE => section.state.is_some(),
        EPHEMERAL => section.ephemeral.is_some(),
        _ => false,
    })
}

/// The label of META, which its status is known by.
pub(super) const META: &str = META_LABEL;

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: &str = "version: v1alpha1\nmachine: {type: worker}\ncluster: {}\n";

    fn volumes_of(place: Place, yaml: Option<&str>) -> Vec<(&'static str, VolumeConfig)> {
        let documents = yaml.map(|yaml| Documents::load(yaml.as_bytes()).unwrap());
        volumes(place, Path::new("/system/state"), Path::new("/var"), documents.as_ref())
    }

    #[test]
    fn a_machine_that_runs_from_memory_has_directories() {
        let found = volumes_of(Place::Memory, Some(MACHINE));
        assert!(found.iter().all(|(_, config)| config.r#type == VolumeType::Directory));
        assert_eq!(found[1].1.mount.target_path, "/var");
    }

    #[test]
    fn without_a_configuration_state_is_only_looked_for() {
        let found = volumes_of(Place::Disk, None);
        assert_eq!(found.len(), 1);
        let (id, state) = &found[0];
        assert_eq!((*id, state.provisioning.disk_selector.r#match.text.as_str()), ("STATE", ""));
        assert!(state.locator.r#match.text.contains("volume.name != \"\""));
        // A document alone is no configuration to start with.
        let partial = volumes_of(Place::Disk, Some("apiVersion: v1alpha1\nkind: ZswapConfig\n"));
        assert_eq!(partial.len(), 1);
    }

    #[test]
    fn with_one_both_are_made_on_the_system_disk() {
        let found = volumes_of(Place::Disk, Some(MACHINE));
        let [(_, state), (_, ephemeral)] = &found[..] else { panic!("{found:?}") };
        let sizes = |config: &VolumeConfig| {
            let spec = &config.provisioning.partition_spec;
            (spec.min_size >> 20, spec.max_size >> 20, spec.grow)
        };
        assert_eq!((sizes(state), sizes(ephemeral)), ((100, 100, false), (2048, 0, true)));
        for config in [state, ephemeral] {
            assert_eq!(config.provisioning.wave, WAVE);
            assert_eq!(config.provisioning.disk_selector.r#match.text, "system_disk");
            assert_eq!(config.provisioning.filesystem_spec.r#type, FilesystemType::Xfs);
        }
        assert!(!ephemeral.mount.project_quota_support);
    }

    #[test]
    fn a_document_says_where_and_how_large_ephemeral_is() {
        let yaml = format!(
            "{MACHINE}---\napiVersion: v1alpha1\nkind: VolumeConfig\nname: EPHEMERAL\nprovisioning:\n    \
             diskSelector: {{match: disk.transport == 'nvme'}}\n    minSize: 4GiB\n    maxSize: 50%\n    grow: false\n"
        );
        let found = volumes_of(Place::Disk, Some(&yaml));
        let provisioning = &found[1].1.provisioning;
        assert_eq!(provisioning.disk_selector.r#match.text, "disk.transport == 'nvme'");
        let spec = &provisioning.partition_spec;
        assert_eq!(
            (spec.min_size, spec.max_size, spec.relative_max_size, spec.grow),
            (4 << 30, 0, 50, false)
        );
    }

    #[test]
    fn quota_and_encryption_are_passed_on() {
        let yaml = "version: v1alpha1\nmachine:\n    type: worker\n    features: {diskQuotaSupport: true}\n    \
                    systemDiskEncryption: {ephemeral: {provider: luks2, keys: [{slot: 0, nodeID: {}}]}}\ncluster: {}\n";
        let found = volumes_of(Place::Disk, Some(yaml));
        assert!(found[1].1.mount.project_quota_support);
        assert_eq!(found[0].1.encryption.provider, EncryptionProviderType::None);
        assert_eq!(found[1].1.encryption.provider, EncryptionProviderType::Luks2);
    }
}
