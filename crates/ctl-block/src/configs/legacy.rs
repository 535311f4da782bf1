//! Disks of the old section `machine.disks`. Pure.

use ichor_config::Documents;
use ichor_ctl::volumes::EPHEMERAL;
use ichor_resource::block::{
    Disk, FilesystemSpec, FilesystemType, MountSpec, PartitionSpec, ProvisioningSpec, VolumeConfig,
    VolumeType,
};

use super::{EPHEMERAL_LABEL, LINUX_DATA, WantedVolume, expression, quoted};

/// They get their place after all others, one after the other.
const WAVE: i64 = 1_000_000;
const USER_DISK: &str = "talos.dev/user-disk";
/// A partition that takes the rest of its disk has at least this.
const MINIMUM: u64 = 100 << 20;

/// The partitions of all disks, in order.
pub(super) fn volumes(documents: &Documents, disks: &[(String, Disk)]) -> Vec<WantedVolume> {
    let Some(machine) = documents.machine() else { return Vec::new() };
    let quota = machine.features.as_ref().and_then(|features| features.disk_quota_support).unwrap_or(false);
    let mut wanted = Vec::new();
    for disk in machine.disks.iter() {
        let node = resolve(&disk.device, disks);
        for (index, partition) in disk.partitions.iter().enumerate() {
            let number = index + 1;
            let id = format!("{}-{number}", disk.device);
            let size = partition.size.0;
            let mut config = VolumeConfig {
                r#type: VolumeType::Partition,
                provisioning: ProvisioningSpec {
                    wave: WAVE + wanted.len() as i64,
                    partition_spec: PartitionSpec {
                        min_size: if size == 0 { MINIMUM } else { size },
                        max_size: size,
                        type_uuid: LINUX_DATA.to_owned(),
                        ..PartitionSpec::default()
                    },
                    filesystem_spec: FilesystemSpec {
                        r#type: FilesystemType::Xfs,
                        ..FilesystemSpec::default()
                    },
                    ..ProvisioningSpec::default()
                },
                mount: mount(&partition.mountpoint, quota),
                ..VolumeConfig::default()
            };
            let selector = format!("disk.dev_path == {}", quoted(&node));
            config.provisioning.disk_selector.r#match = expression(selector);
            config.locator.r#match = expression(format!(
                "volume.parent_dev_path == {} && volume.partition_index == {number}u",
                quoted(&node)
            ));
            wanted.push(WantedVolume { id, label: USER_DISK, config, mount: Some(false) });
        }
    }
    wanted
}

/// The node of a disk that may be given by one of its other names.
fn resolve(device: &str, disks: &[(String, Disk)]) -> String {
    let found = disks.iter().find(|(_, disk)| disk.symlinks.iter().any(|name| name == device));
    found.map_or_else(|| device.to_owned(), |(_, disk)| disk.dev_path.clone())
}

fn mount(target: &str, project_quota_support: bool) -> MountSpec {
    let mut spec = MountSpec {
        target_path: target.to_owned(),
        file_mode: 0o700,
        selinux_label: EPHEMERAL_LABEL.to_owned(),
        project_quota_support,
        ..MountSpec::default()
    };
    if let Some(below) = target.strip_prefix("/var/") {
        (spec.parent_id, spec.target_path) = (EPHEMERAL.to_owned(), below.to_owned());
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_of_a_disk_follow_one_another() {
        let yaml = "version: v1alpha1\nmachine:\n    type: worker\n    disks:\n        - device: /dev/disk/by-id/b\n          \
                    partitions:\n            - {mountpoint: /var/mnt/extra, size: 1GB}\n            - {mountpoint: /var/lib/more}\n\
                    cluster: {}\n";
        let documents = Documents::load(yaml.as_bytes()).unwrap();
        let disk = Disk {
            dev_path: "/dev/sdb".into(),
            symlinks: vec!["/dev/disk/by-id/b".into()],
            ..Disk::default()
        };
        let found = volumes(&documents, &[("sdb".into(), disk)]);
        let [first, second] = &found[..] else { panic!("{found:?}") };
        assert_eq!((first.id.as_str(), second.id.as_str()), ("/dev/disk/by-id/b-1", "/dev/disk/by-id/b-2"));
        assert_eq!(
            first.config.locator.r#match.text,
            "volume.parent_dev_path == \"/dev/sdb\" && volume.partition_index == 1u"
        );
        let sizes = |volume: &WantedVolume| {
            let spec = &volume.config.provisioning.partition_spec;
            (spec.min_size, spec.max_size, volume.config.provisioning.wave)
        };
        assert_eq!(sizes(first), (1_000_000_000, 1_000_000_000, WAVE));
        assert_eq!(sizes(second), (MINIMUM, 0, WAVE + 1));
        assert_eq!(
            (second.config.mount.parent_id.as_str(), second.config.mount.target_path.as_str()),
            ("EPHEMERAL", "lib/more")
        );
    }
}
