//! Interface entries of the machine configuration.

use bytes::Bytes;

use crate::custom::custom_spec;
use crate::value::wire::put_bytes;
use crate::value::{Field, FieldInfo, Frame, Message, Sampler, WireError, Yaml};

/// One interface entry of the machine configuration after selector expansion.
///
/// Id: `<interface>/<nnn>` or `<interface>/<nnn>/<mmm>`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceConfigSpec {
    /// The entry alone, as YAML in block style.
    pub device: Bytes,
}

impl Message for DeviceConfigSpec {
    const NAME: &'static str = "resource.network.DeviceConfigSpecSpec";

    fn fields() -> Vec<FieldInfo> {
        vec![FieldInfo { tag: 1, key: "device", omit: false, proto_type: "bytes".into() }]
    }

    fn all_zero(&self) -> bool {
        self.device.is_empty()
    }

    fn all_empty(&self) -> bool {
        false
    }

    fn encode_message(&self, out: &mut Vec<u8>) {
        if !self.device.is_empty() {
            put_bytes(1, &self.device, out);
        }
    }

    fn merge_field(&mut self, tag: u32, field: Field<'_>) -> Result<(), WireError> {
        if tag == 1 {
            self.device = Bytes::copy_from_slice(field.bytes()?);
        }
        Ok(())
    }

    fn yaml_fields(&self, yaml: &mut Yaml<'_>, frame: &mut Frame) {
        yaml.key(frame, "device");
        match std::str::from_utf8(&self.device).map(str::trim_end) {
            Ok("" | "{}") | Err(_) => yaml.plain("{}"),
            Ok(text) => yaml.raw_block(text),
        }
    }

    fn sample_message(_: &mut Sampler) -> Self {
        Self { device: Bytes::from_static(b"interface: eth0\naddresses:\n    - 10.5.0.2/24\ndhcp: true\n") }
    }
}

custom_spec!(
    DeviceConfigSpec,
    type_name: "DeviceConfigSpecs.net.talos.dev",
    default_namespace: "network",
    sensitive: true,
    proto: "resource.network.DeviceConfigSpecSpec",
);
