//! From what a probe found to what is published. Pure.

use ichor_block::gpt::partition_name;
use ichor_block::probe::Signature;
use ichor_resource::block::{BlockDevice, DiscoveredVolume};
use ichor_types::size;

use crate::ports::Probed;

/// The volume on a device, and those in its partitions, by id.
pub(super) fn volumes(name: &str, device: &BlockDevice, probed: &Probed) -> Vec<(String, DiscoveredVolume)> {
    let whole = DiscoveredVolume {
        dev_path: format!("/dev/{name}"),
        r#type: device.r#type.clone(),
        device_path: device.device_path.clone(),
        parent: device.parent.clone(),
        parent_dev_path: match device.parent.as_str() {
            "" => String::new(),
            parent => format!("/dev/{parent}"),
        },
        size: probed.size,
        pretty_size: size::decimal(probed.size),
        sector_size: probed.sector_size.into(),
        io_size: probed.io_size,
        ..filled(probed.contents.signature.as_ref())
    };
    let parts = probed.contents.partitions.iter().map(|part| {
        let id = partition_name(name, part.number);
        let spec = DiscoveredVolume {
            dev_path: format!("/dev/{id}"),
            r#type: "partition".to_owned(),
            device_path: format!("{}/{id}", device.device_path),
            parent: name.to_owned(),
            parent_dev_path: whole.dev_path.clone(),
            offset: part.offset,
            size: part.size,
            pretty_size: size::decimal(part.size),
            sector_size: whole.sector_size,
            io_size: whole.io_size,
            partition_uuid: part.entry.guid.to_string(),
            partition_type: part.entry.type_guid.to_string(),
            partition_label: part.entry.name.clone(),
            partition_index: part.number.into(),
            ..filled(part.signature.as_ref())
        };
        (id, spec)
    });
    let parts: Vec<_> = parts.collect();
    std::iter::once((name.to_owned(), whole)).chain(parts).collect()
}

/// What a signature says.
fn filled(signature: Option<&Signature>) -> DiscoveredVolume {
    let Some(found) = signature else { return DiscoveredVolume::default() };
    DiscoveredVolume {
        name: found.name.to_owned(),
        uuid: found.uuid.clone().unwrap_or_default(),
        label: found.label.clone().unwrap_or_default(),
        block_size: found.block_size,
        filesystem_block_size: found.filesystem_block_size,
        probed_size: found.probed_size,
        ..DiscoveredVolume::default()
    }
}
