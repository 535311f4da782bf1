//! The life of volumes as tables: what is wanted, what there is, what happens.

use ichor_ctl_block::volumes::{Action, Created, Decision, Outcome, World, conclude, decide};
use ichor_resource::block::{
    DiscoveredVolume, Disk, EncryptionProviderType, Expression, FilesystemType, VolumeConfig, VolumePhase,
    VolumeStatus, VolumeType,
};
use ichor_types::size;

const GIB: u64 = 1 << 30;

fn expression(text: &str) -> Expression {
    Expression { text: text.into(), ..Expression::default() }
}

/// EPHEMERAL as a configured machine wants it.
fn ephemeral() -> VolumeConfig {
    let mut config = VolumeConfig::default();
    config.locator.r#match = expression("volume.partition_label == 'EPHEMERAL'");
    config.provisioning.disk_selector.r#match = expression("system_disk");
    config.provisioning.partition_spec.min_size = 2 * GIB;
    config.provisioning.partition_spec.grow = true;
    config.provisioning.partition_spec.label = "EPHEMERAL".into();
    config.provisioning.filesystem_spec.r#type = FilesystemType::Xfs;
    config.mount.target_path = "/var".into();
    config
}

fn disk(name: &str, bytes: u64) -> (String, Disk) {
    let disk = Disk {
        dev_path: format!("/dev/{name}"),
        size: bytes,
        pretty_size: size::decimal(bytes),
        sector_size: 512,
        ..Disk::default()
    };
    (name.into(), disk)
}

fn whole(name: &str, contents: &str) -> (String, DiscoveredVolume) {
    let volume = DiscoveredVolume {
        dev_path: format!("/dev/{name}"),
        name: contents.into(),
        ..DiscoveredVolume::default()
    };
    (name.into(), volume)
}

fn part(disk: &str, index: u64, label: &str, offset: u64, bytes: u64) -> (String, DiscoveredVolume) {
    let volume = DiscoveredVolume {
        dev_path: format!("/dev/{disk}{index}"),
        parent: disk.into(),
        parent_dev_path: format!("/dev/{disk}"),
        partition_label: label.into(),
        partition_index: index,
        offset,
        size: bytes,
        ..DiscoveredVolume::default()
    };
    (format!("{disk}{index}"), volume)
}

/// A decision in one line.
fn told(decision: &Decision) -> String {
    let (how, status, action) = match decision {
        Decision::Stay(status) => ("stay", status, String::new()),
        Decision::Move(status) => ("move", status, String::new()),
        Decision::Act(status, action) => ("act", status, format!(" {action:?}")),
    };
    let error =
        if status.error_message.is_empty() { String::new() } else { format!(": {}", status.error_message) };
    format!("{how} {}{error}{action}", status.phase)
}

struct Machine {
    disks: Vec<(String, Disk)>,
    volumes: Vec<(String, DiscoveredVolume)>,
    system_disk: Option<&'static str>,
    devices_ready: bool,
    waves_ready: bool,
}

impl Machine {
    /// Installed, with nothing but META on its disk of ten gibibytes.
    fn installed() -> Self {
        Self {
            disks: vec![disk("sda", 10 * GIB), disk("sdb", 20 * GIB)],
            volumes: vec![whole("sda", "gpt"), part("sda", 1, "META", 1 << 20, 1 << 20), whole("sdb", "")],
            system_disk: Some("sda"),
            devices_ready: true,
            waves_ready: true,
        }
    }

    fn world(&self) -> World<'_> {
        World {
            devices_ready: self.devices_ready,
            waves_ready: self.waves_ready,
            volumes: &self.volumes,
            disks: &self.disks,
            system_disk: self.system_disk,
        }
    }

    fn decide(&self, config: &VolumeConfig, status: &VolumeStatus) -> Decision {
        decide(config, status, &self.world())
    }

    fn first(&self, config: &VolumeConfig) -> String {
        told(&self.decide(config, &VolumeStatus::default()))
    }
}

#[test]
fn a_new_volume_is_made_formatted_and_ready() {
    let (machine, config) = (Machine::installed(), ephemeral());
    let Decision::Act(status, Action::CreatePartition { disk, has_table, minimum, maximum, .. }) =
        machine.decide(&config, &VolumeStatus::default())
    else {
        panic!("no partition is made");
    };
    assert_eq!((disk.as_str(), has_table, minimum, maximum), ("/dev/sda", true, 2 * GIB, None));
    let created = Created { device: "/dev/sda2".into(), disk, number: 2, guid: "g".into(), size: 9 * GIB };
    let Decision::Move(status) = conclude(&config, &status, Outcome::Created(created)) else { panic!() };
    assert_eq!((status.phase, status.location.as_str()), (VolumePhase::Provisioned, "/dev/sda2"));
    assert_eq!((status.parent_location.as_str(), status.pretty_size.as_str()), ("/dev/sda", "9.7 GB"));
    let Decision::Move(status) = machine.decide(&config, &status) else { panic!() };
    assert_eq!((status.phase, status.mount_location.as_str()), (VolumePhase::Prepared, "/dev/sda2"));
    let Decision::Act(status, Action::Probe { .. }) = machine.decide(&config, &status) else { panic!() };
    let Decision::Act(status, Action::Format { filesystem, .. }) =
        conclude(&config, &status, Outcome::Found(String::new()))
    else {
        panic!("an empty volume is formatted");
    };
    assert_eq!(filesystem, FilesystemType::Xfs);
    let done = conclude(&config, &status, Outcome::Done);
    assert_eq!(told(&done), "move ready");
    let Decision::Move(status) = done else { panic!() };
    assert_eq!(told(&machine.decide(&config, &status)), "stay ready");
}

#[test]
fn a_largest_size_is_in_bytes_or_a_share_of_what_is_free() {
    let (machine, mut config) = (Machine::installed(), ephemeral());
    let largest = |config: &VolumeConfig| match machine.decide(config, &VolumeStatus::default()) {
        Decision::Act(_, Action::CreatePartition { maximum, .. }) => maximum,
        other => panic!("{other:?}"),
    };
    assert_eq!(largest(&config), None);
    config.provisioning.partition_spec.relative_max_size = 50;
    let free = 10 * GIB - (3 << 20);
    assert_eq!(largest(&config), Some(free / 2));
    config.provisioning.partition_spec.relative_max_size = 1;
    assert_eq!(largest(&config), Some(2 * GIB), "not less than the smallest size");
    config.provisioning.partition_spec.max_size = 3 * GIB;
    assert_eq!(largest(&config), Some(3 * GIB));
}

#[test]
fn a_volume_that_is_there_is_grown_and_never_formatted() {
    let (mut machine, config) = (Machine::installed(), ephemeral());
    machine.volumes.push(part("sda", 2, "EPHEMERAL", 2 << 20, 4 * GIB));
    let Decision::Move(status) = machine.decide(&config, &VolumeStatus::default()) else { panic!() };
    assert_eq!((status.phase, status.partition_index), (VolumePhase::Located, 2));
    let grow = machine.decide(&config, &status);
    let expected = "act located GrowPartition { disk: \"/dev/sda\", number: 2, most: 18446744073709551615, least: 1048576 }";
    assert_eq!(told(&grow), expected);
    let Decision::Move(status) = conclude(&config, &status, Outcome::Grown(GIB)) else { panic!() };
    assert_eq!(status.size, 5 * GIB);
    let Decision::Move(status) = machine.decide(&config, &status) else { panic!() };
    let same = conclude(&config, &status, Outcome::Found("xfs".into()));
    assert_eq!(told(&same), "act prepared GrowFilesystem { device: \"/dev/sda2\", filesystem: Xfs }");
    let other = conclude(&config, &status, Outcome::Found("ext4".into()));
    assert_eq!(
        told(&other),
        "stay failed: filesystem type mismatch: ext4 != xfs; the volume is not formatted over data: wipe it to start over"
    );
    // Taken up again where it failed, once something has changed.
    let Decision::Stay(status) = other else { panic!() };
    assert_eq!(told(&machine.decide(&config, &status)), "act prepared Probe { device: \"/dev/sda2\" }");
}

#[test]
fn a_volume_waits_for_devices_and_for_earlier_waves_and_is_missing_without_a_place() {
    let config = ephemeral();
    let none = Machine { devices_ready: false, ..Machine::installed() };
    assert_eq!(none.first(&config), "stay waiting");
    let early = Machine { waves_ready: false, ..Machine::installed() };
    assert_eq!(early.first(&config), "stay waiting");
    let mut located_only = config.clone();
    located_only.provisioning.disk_selector = Default::default();
    assert_eq!(Machine::installed().first(&located_only), "stay missing");
    // Found before the devices have settled, it is used at once.
    let mut found = none;
    found.volumes.push(part("sda", 2, "EPHEMERAL", 2 << 20, 4 * GIB));
    assert_eq!(found.first(&config), "move located");
    let unset = VolumeConfig::default();
    assert_eq!(Machine::installed().first(&unset), "stay failed: volume locator is not set");
}

#[test]
fn a_disk_that_does_not_do_is_named_with_the_reason() {
    let machine = Machine::installed();
    let mut config = ephemeral();
    let mut check = |selector: &str, minimum: u64, expected: &str| {
        config.provisioning.disk_selector.r#match = expression(selector);
        config.provisioning.partition_spec.min_size = minimum;
        assert_eq!(machine.first(&config), format!("stay failed: {expected}"));
    };
    check(
        "disk.transport == 'nvme'",
        GIB,
        "no disks matched selector for volume: \"disk.transport == 'nvme'\"; there are /dev/sda (11 GB), /dev/sdb (22 GB)",
    );
    check("system_disk", 11 * GIB, "no disk has room for the volume: /dev/sda has only 11 GB free");
    check("!system_disk", 21 * GIB, "no disk has room for the volume: /dev/sdb has only 22 GB");
    check("disk.nothing == 1", GIB, "selector \"disk.nothing == 1\": no such field 'nothing'");

    let mut whole_disk = ephemeral();
    whole_disk.r#type = VolumeType::Disk;
    whole_disk.provisioning.disk_selector.r#match = expression("disk.size > 0u");
    assert_eq!(
        machine.first(&whole_disk),
        "stay failed: multiple disks matched selector for disk volume: /dev/sda (11 GB), /dev/sdb (22 GB); narrow the selector to one"
    );
    whole_disk.provisioning.disk_selector.r#match = expression("system_disk");
    assert_eq!(
        machine.first(&whole_disk),
        "stay failed: no disk has room for the volume: /dev/sda is not empty: it holds gpt"
    );
    whole_disk.provisioning.disk_selector.r#match = expression("!system_disk");
    assert_eq!(machine.first(&whole_disk), "move provisioned");

    let mut foreign = Machine::installed();
    foreign.volumes[2].1.name = "ext4".into();
    let mut config = ephemeral();
    config.provisioning.disk_selector.r#match = expression("!system_disk");
    assert_eq!(
        foreign.first(&config),
        "stay failed: no disk has room for the volume: /dev/sdb is not empty: it holds ext4"
    );
}

#[test]
fn raw_swap_and_encrypted_volumes_are_treated_by_their_kind() {
    let machine = Machine::installed();
    let status = VolumeStatus {
        phase: VolumePhase::Prepared,
        location: "/dev/sda2".into(),
        mount_location: "/dev/sda2".into(),
        ..VolumeStatus::default()
    };
    let mut config = ephemeral();
    config.provisioning.filesystem_spec.r#type = FilesystemType::None;
    let found =
        |config: &VolumeConfig, name: &str| told(&conclude(config, &status, Outcome::Found(name.into())));
    assert_eq!(found(&config, ""), "stay failed: the volume is empty; nothing can be mounted");
    assert!(found(&config, "luks").starts_with("stay failed: the volume is encrypted"));
    assert_eq!(found(&config, "xfs"), "move ready");
    config.mount = Default::default();
    assert_eq!(found(&config, ""), "move ready", "a raw volume may be empty");
    config.provisioning.filesystem_spec.r#type = FilesystemType::Swap;
    assert!(found(&config, "swap").starts_with("act prepared Format"), "swap is made anew at every start");
    assert!(found(&config, "").starts_with("act prepared Format"));

    let mut encrypted = ephemeral();
    encrypted.encryption.provider = EncryptionProviderType::Luks2;
    let provisioned = VolumeStatus { phase: VolumePhase::Provisioned, ..status };
    assert!(
        told(&machine.decide(&encrypted, &provisioned))
            .starts_with("stay failed: encrypted volumes are not supported")
    );
    for kind in [VolumeType::Directory, VolumeType::Symlink, VolumeType::Overlay, VolumeType::Tmpfs] {
        let config = VolumeConfig { r#type: kind, ..VolumeConfig::default() };
        assert_eq!(machine.first(&config), "move ready");
    }
}
