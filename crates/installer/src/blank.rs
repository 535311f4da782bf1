//! Whether a disk may be installed to. Pure.

use ichor_block::probe::Contents;

/// What is on a disk, in words; none when it is empty or has an empty partition table.
pub fn occupied(contents: &Contents) -> Option<String> {
    let signature = contents.signature.as_ref()?;
    if signature.name != "gpt" {
        let label = signature.label.as_ref().map(|label| format!(" {label:?}")).unwrap_or_default();
        return Some(format!("{}{label}", signature.name));
    }
    if contents.partitions.is_empty() {
        return None;
    }
    let shown = contents.partitions.iter().map(|partition| {
        let name = match partition.entry.name.as_str() {
            "" => format!("partition {}", partition.number),
            name => name.to_owned(),
        };
        match &partition.signature {
            Some(found) => format!("{name} ({})", found.name),
            None => name,
        }
    });
    Some(shown.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ichor_block::Guid;
    use ichor_block::gpt::Partition;
    use ichor_block::probe::{PartitionContents, Signature};

    fn signature(name: &'static str) -> Option<Signature> {
        Some(Signature { name, ..Signature::default() })
    }

    #[test]
    fn a_disk_is_empty_without_partitions() {
        assert_eq!(occupied(&Contents::default()), None);
        assert_eq!(occupied(&Contents { signature: signature("gpt"), partitions: Vec::new() }), None);
    }

    #[test]
    fn what_is_there_is_named() {
        let xfs = Contents { signature: signature("xfs"), partitions: Vec::new() };
        assert_eq!(occupied(&xfs).as_deref(), Some("xfs"));
        let partition = |number, name: &str, signature| PartitionContents {
            number,
            entry: Partition {
                type_guid: Guid::LINUX_DATA,
                guid: Guid::NIL,
                first: 0,
                last: 0,
                attributes: 0,
                name: name.to_owned(),
            },
            offset: 0,
            size: 1,
            signature,
        };
        let partitions = vec![partition(1, "EFI", signature("vfat")), partition(2, "", None)];
        let disk = Contents { signature: signature("gpt"), partitions };
        assert_eq!(occupied(&disk).as_deref(), Some("EFI (vfat), partition 2"));
    }
}
