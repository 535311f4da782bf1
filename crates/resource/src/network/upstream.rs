//! Upstreams of the host DNS cache.

use crate::custom::custom_spec;
use crate::value::{Field, FieldInfo, Frame, Message, Sampler, WireError, Yaml};

/// An upstream of the host DNS cache. It has no protobuf form.
///
/// Id: `#<nnn> <address>`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DNSUpstream {
    /// Whether it answered last time.
    pub healthy: bool,
    /// Its address.
    pub addr: String,
}

impl Message for DNSUpstream {
    const NAME: &'static str = "";

    fn fields() -> Vec<FieldInfo> {
        Vec::new()
    }

    fn all_zero(&self) -> bool {
        true
    }

    fn all_empty(&self) -> bool {
        false
    }

    fn encode_message(&self, _: &mut Vec<u8>) {}

    fn merge_field(&mut self, _: u32, _: Field<'_>) -> Result<(), WireError> {
        Ok(())
    }

    fn yaml_fields(&self, yaml: &mut Yaml<'_>, frame: &mut Frame) {
        yaml.key(frame, "healthy");
        yaml.string(if self.healthy { "true" } else { "false" });
        yaml.key(frame, "addr");
        yaml.string(&self.addr);
    }

    fn sample_message(_: &mut Sampler) -> Self {
        Self { healthy: true, addr: "1.1.1.1:53".into() }
    }
}

custom_spec!(
    DNSUpstream,
    type_name: "DNSUpstreams.net.talos.dev",
    default_namespace: "network",
    columns: &[("Healthy", "{.healthy}"), ("Address", "{.addr}")],
);
