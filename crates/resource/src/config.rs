//! The machine configuration and the role it gives the machine.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use ichor_types::MachineType as Role;

use crate::custom::custom_spec;
use crate::value::wire::put_bytes;
use crate::value::{Field, FieldInfo, Frame, Message, Sampler, Value, WireError, Yaml};

/// The machine configuration itself, byte for byte; YAML shows it as one string.
///
/// Id: `v1alpha1` active, `persistent` as stored on disk, `maintenance` just received in maintenance mode.
#[derive(Clone, Default)]
pub struct MachineConfig {
    /// The documents.
    pub yaml: Bytes,
    parsed: ParseSlot,
}

/// Room for the parsed documents: this crate does not know their type, and parsing once is enough.
type ParseSlot = Arc<OnceLock<Arc<dyn Any + Send + Sync>>>;

impl MachineConfig {
    /// Ids in use.
    pub const ACTIVE: &'static str = "v1alpha1";
    /// As stored on disk.
    pub const PERSISTENT: &'static str = "persistent";
    /// Just received in maintenance mode.
    pub const MAINTENANCE: &'static str = "maintenance";

    /// A configuration from its text.
    pub fn new(yaml: impl Into<Bytes>) -> Self {
        Self { yaml: yaml.into(), parsed: ParseSlot::default() }
    }

    /// What `parse` makes of the text, kept for the next caller and for every copy of this spec.
    ///
    /// One program parses into one type; a second type is parsed anew each time.
    pub fn parsed<T: Send + Sync + 'static>(&self, parse: impl Fn(&[u8]) -> T) -> Arc<T> {
        let kept = self.parsed.get_or_init(|| Arc::new(parse(&self.yaml)));
        Arc::clone(kept).downcast().unwrap_or_else(|_| Arc::new(parse(&self.yaml)))
    }
}

impl PartialEq for MachineConfig {
    fn eq(&self, other: &Self) -> bool {
        self.yaml == other.yaml
    }
}

impl fmt::Debug for MachineConfig {
    /// The text holds secrets, so only its length shows.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MachineConfig").field("bytes", &self.yaml.len()).finish_non_exhaustive()
    }
}

impl Message for MachineConfig {
    const NAME: &'static str = "resource.config.MachineConfigSpec";

    fn fields() -> Vec<FieldInfo> {
        vec![FieldInfo { tag: 1, key: "", omit: false, proto_type: "bytes".into() }]
    }

    fn all_zero(&self) -> bool {
        self.yaml.is_empty()
    }

    fn all_empty(&self) -> bool {
        false
    }

    fn encode_message(&self, out: &mut Vec<u8>) {
        if !self.yaml.is_empty() {
            put_bytes(1, &self.yaml, out);
        }
    }

    fn merge_field(&mut self, tag: u32, field: Field<'_>) -> Result<(), WireError> {
        if tag == 1 {
            *self = Self::new(Bytes::copy_from_slice(field.bytes()?));
        }
        Ok(())
    }

    fn yaml_fields(&self, _: &mut Yaml<'_>, _: &mut Frame) {}

    fn yaml_message(&self, yaml: &mut Yaml<'_>) {
        yaml.string(&String::from_utf8_lossy(&self.yaml));
    }

    fn sample_message(_: &mut Sampler) -> Self {
        Self::new(&b"version: v1alpha1\nmachine:\n    type: worker\n"[..])
    }
}

custom_spec!(
    MachineConfig,
    type_name: "MachineConfigs.config.talos.dev",
    default_namespace: "config",
    sensitive: true,
    proto: "resource.config.MachineConfigSpec",
);

/// Role of this machine; YAML shows the bare word.
///
/// Id: `machine-type`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MachineType {
    /// The role.
    pub machine_type: Role,
}

impl MachineType {
    /// The one id of this type.
    pub const ID: &'static str = "machine-type";
}

impl Message for MachineType {
    const NAME: &'static str = "resource.config.MachineTypeSpec";

    fn fields() -> Vec<FieldInfo> {
        let proto_type = "resource.config.MachineType".into();
        vec![FieldInfo { tag: 1, key: "", omit: false, proto_type }]
    }

    fn all_zero(&self) -> bool {
        self.machine_type.is_zero()
    }

    fn all_empty(&self) -> bool {
        false
    }

    fn encode_message(&self, out: &mut Vec<u8>) {
        self.machine_type.encode(1, out);
    }

    fn merge_field(&mut self, tag: u32, field: Field<'_>) -> Result<(), WireError> {
        if tag == 1 { self.machine_type.merge(field) } else { Ok(()) }
    }

    fn yaml_fields(&self, _: &mut Yaml<'_>, _: &mut Frame) {}

    fn yaml_message(&self, yaml: &mut Yaml<'_>) {
        self.machine_type.yaml(yaml);
    }

    fn sample_message(sampler: &mut Sampler) -> Self {
        Self { machine_type: Role::sample(sampler) }
    }
}

custom_spec!(
    MachineType,
    type_name: "MachineTypes.config.talos.dev",
    default_namespace: "config",
    columns: &[("Type", "{@}")],
    proto: "resource.config.MachineTypeSpec",
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Spec;

    #[test]
    fn a_configuration_is_parsed_once_for_all_copies() {
        let config = MachineConfig::new("a: b");
        let copy = config.clone();
        let first = config.parsed(|bytes| bytes.len());
        assert!(Arc::ptr_eq(&first, &copy.parsed(|_| unreachable!("parsed twice"))));
        assert_eq!(*config.parsed(|bytes| bytes[0]), b'a');
    }

    #[test]
    fn yaml_is_one_string() {
        let mut out = String::new();
        MachineConfig::new("a: b\nc: d\n").encode_yaml(&mut out);
        assert_eq!(out, "|\n    a: b\n    c: d\n");
        out.clear();
        MachineType { machine_type: Role::ControlPlane }.encode_yaml(&mut out);
        assert_eq!(out, "controlplane\n");
    }
}
