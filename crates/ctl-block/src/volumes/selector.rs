//! Expressions over disks and volumes. Pure.

use std::sync::Arc;

use ichor_cel::{Expression, Object, Value, environments};
use ichor_resource::block::{DiscoveredVolume, Disk};

/// An expression without an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("selector {text:?}: {reason}")]
pub struct SelectorError {
    text: String,
    reason: String,
}

struct DiskObject(Disk);
struct VolumeObject(DiscoveredVolume);

impl Object for DiskObject {
    fn field(&self, name: &str) -> Option<Value> {
        let disk = &self.0;
        Some(match name {
            "size" => Value::Uint(disk.size),
            "io_size" => Value::Uint(disk.io_size),
            "sector_size" => Value::Uint(disk.sector_size),
            "readonly" => Value::Bool(disk.readonly),
            "model" => Value::string(&disk.model),
            "serial" => Value::string(&disk.serial),
            "modalias" => Value::string(&disk.modalias),
            "wwid" => Value::string(&disk.wwid),
            "bus_path" => Value::string(&disk.bus_path),
            "sub_system" => Value::string(&disk.sub_system),
            "transport" => Value::string(&disk.transport),
            "rotational" => Value::Bool(disk.rotational),
            "cdrom" => Value::Bool(disk.cdrom),
            "dev_path" => Value::string(&disk.dev_path),
            "pretty_size" => Value::string(&disk.pretty_size),
            "secondary_disks" => Value::list(disk.secondary_disks.iter().map(Value::string)),
            "uuid" => Value::string(&disk.uuid),
            "symlinks" => Value::list(disk.symlinks.iter().map(Value::string)),
            _ => return None,
        })
    }
}

impl Object for VolumeObject {
    fn field(&self, name: &str) -> Option<Value> {
        let volume = &self.0;
        Some(match name {
            "size" => Value::Uint(volume.size),
            "sector_size" => Value::Uint(volume.sector_size),
            "io_size" => Value::Uint(volume.io_size),
            "name" => Value::string(&volume.name),
            "uuid" => Value::string(&volume.uuid),
            "label" => Value::string(&volume.label),
            "block_size" => Value::Uint(volume.block_size.into()),
            "filesystem_block_size" => Value::Uint(volume.filesystem_block_size.into()),
            "probed_size" => Value::Uint(volume.probed_size),
            "partition_uuid" => Value::string(&volume.partition_uuid),
            "partition_type" => Value::string(&volume.partition_type),
            "partition_label" => Value::string(&volume.partition_label),
            "partition_index" => Value::Uint(volume.partition_index),
            "type" => Value::string(&volume.r#type),
            "device_path" => Value::string(&volume.device_path),
            "parent" => Value::string(&volume.parent),
            "dev_path" => Value::string(&volume.dev_path),
            "parent_dev_path" => Value::string(&volume.parent_dev_path),
            "pretty_size" => Value::string(&volume.pretty_size),
            "offset" => Value::Uint(volume.offset),
            _ => return None,
        })
    }
}

/// Whether an expression selects a disk. `system_disk` has no value while it is not known which disk that is.
///
/// # Errors
/// When it cannot be read, or asks for what is not known.
pub fn matches_disk(text: &str, disk: &Disk, system_disk: Option<bool>) -> Result<bool, SelectorError> {
    let mut values = vec![("disk", Value::Message(Arc::new(DiskObject(disk.clone()))))];
    values.extend(system_disk.map(|is_system| ("system_disk", Value::Bool(is_system))));
    evaluate(text, &environments::disk(), &Known(values))
}

/// Whether an expression selects a volume on a disk.
///
/// # Errors
/// As [`matches_disk`].
pub fn matches_volume(
    text: &str,
    volume: &DiscoveredVolume,
    disk: Option<&Disk>,
) -> Result<bool, SelectorError> {
    let mut values = vec![("volume", Value::Message(Arc::new(VolumeObject(volume.clone()))))];
    values.extend(disk.map(|disk| ("disk", Value::Message(Arc::new(DiskObject(disk.clone()))))));
    evaluate(text, &environments::volume(), &Known(values))
}

struct Known(Vec<(&'static str, Value)>);

impl ichor_cel::Variables for Known {
    fn variable(&self, name: &str) -> Option<Value> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone())
    }
}

fn evaluate(text: &str, environment: &ichor_cel::Env, values: &Known) -> Result<bool, SelectorError> {
    let failed = |reason: String| SelectorError { text: text.to_owned(), reason };
    let expression = Expression::parse(text).map_err(|error| failed(error.to_string()))?;
    match expression.eval(environment, values).map_err(|error| failed(error.to_string()))? {
        Value::Bool(selected) => Ok(selected),
        other => Err(failed(format!("is a {} and not true or false", other.type_name()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_selected_by_what_they_are() {
        let disk =
            Disk { size: 10 << 30, transport: "nvme".into(), model: "Fast 1".into(), ..Disk::default() };
        for (text, selected) in [
            ("disk.transport == 'nvme' && disk.size > 4u * GiB", true),
            ("glob('Fast*', disk.model)", true),
            ("disk.rotational", false),
            ("system_disk", true),
        ] {
            assert_eq!(matches_disk(text, &disk, Some(true)), Ok(selected), "{text}");
        }
        let error = matches_disk("system_disk", &disk, None).unwrap_err().to_string();
        assert!(error.contains("system_disk"), "{error}");
        assert!(matches_disk("disk.size +", &disk, None).is_err());
    }

    #[test]
    fn volumes_are_selected_by_label_and_disk() {
        let volume =
            DiscoveredVolume { partition_label: "META".into(), size: 1 << 20, ..DiscoveredVolume::default() };
        let text =
            "volume.partition_label == 'META' && volume.name in ['', 'talosmeta'] && volume.size == 1048576u";
        assert_eq!(matches_volume(text, &volume, None), Ok(true));
        assert!(matches_volume("disk.size > 0u", &volume, None).is_err(), "no disk is known");
        assert_eq!(matches_volume("disk.size > 0u", &volume, Some(&Disk::default())), Ok(false));
    }
}
