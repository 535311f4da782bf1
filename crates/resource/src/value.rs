//! What fields of a spec can hold, and how each kind of value is written as protobuf and as YAML.
//!
//! [`Value`] is one field, [`Message`] a struct of fields. Both come from the derives; hand-written
//! impls are for the few values with a form of their own.

pub mod binary;
pub mod containers;
pub mod enums;
pub mod ip;
pub mod numbers;
pub mod object;
pub mod pem;
pub mod sample;
pub mod scalar;
pub mod time;
pub mod url;
pub mod wire;
pub mod yaml;

use std::fmt;

pub use binary::{Base64Bytes, IntBytes, TextBytes};
pub use ip::{Ip, IpPort, IpPrefix};
pub use object::Object;
pub use pem::{PemCertificate, PemCertificateAndKey, PemKey};
pub use sample::Sampler;
pub use time::Timestamp;
pub use url::Url;
pub use wire::{Field, Reader, WireError};
pub use yaml::{Frame, Yaml};

pub use ichor_types::{GoDuration, HardwareAddr};

/// One field of a spec.
pub trait Value: Default + Clone + PartialEq + fmt::Debug {
    /// The protobuf type, as the `.proto` files write it.
    fn proto_type() -> String;

    /// True for the value protobuf leaves out.
    fn is_zero(&self) -> bool;

    /// True for the value YAML leaves out where a field may be left out.
    fn is_empty(&self) -> bool {
        self.is_zero()
    }

    /// Appends the field, zero or not.
    fn put(&self, tag: u32, out: &mut Vec<u8>);

    /// Takes the field from the wire; the last of several wins, lists and maps collect.
    fn merge(&mut self, field: Field<'_>) -> Result<(), WireError>;

    /// Writes the value as YAML.
    fn yaml(&self, yaml: &mut Yaml<'_>);

    /// A value that is not zero, for tests that want every field filled.
    fn sample(sampler: &mut Sampler) -> Self;

    /// Appends the field unless it is zero.
    fn encode(&self, tag: u32, out: &mut Vec<u8>) {
        if !self.is_zero() {
            self.put(tag, out);
        }
    }

    /// Appends a repeated field; numbers override this to pack.
    fn put_all(items: &[Self], tag: u32, out: &mut Vec<u8>) {
        for item in items {
            item.put(tag, out);
        }
    }

    /// Takes one occurrence of a repeated field from the wire.
    fn merge_all(items: &mut Vec<Self>, field: Field<'_>) -> Result<(), WireError> {
        let mut item = Self::default();
        item.merge(field)?;
        items.push(item);
        Ok(())
    }
}

/// What a test may ask about a field of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldInfo {
    /// The protobuf field number.
    pub tag: u32,
    /// The YAML key, empty for a field whose value is inlined.
    pub key: &'static str,
    /// True when YAML leaves the key out for an empty value.
    pub omit: bool,
    /// The protobuf type.
    pub proto_type: String,
}

/// A struct of fields. Derived with `SpecMessage` or `ResourceSpec`.
pub trait Message: Default + Clone + PartialEq + fmt::Debug {
    /// Full name of the protobuf message, empty when there is none.
    const NAME: &'static str;

    /// The fields in YAML order.
    fn fields() -> Vec<FieldInfo>;

    /// True when every field is zero.
    fn all_zero(&self) -> bool;

    /// True when every field is empty for YAML.
    fn all_empty(&self) -> bool;

    /// Appends the protobuf form.
    fn encode_message(&self, out: &mut Vec<u8>);

    /// Takes one field from the wire; unknown ones are skipped.
    fn merge_field(&mut self, tag: u32, field: Field<'_>) -> Result<(), WireError>;

    /// Writes the entries into an open mapping.
    fn yaml_fields(&self, yaml: &mut Yaml<'_>, frame: &mut Frame);

    /// Writes the whole message as YAML.
    fn yaml_message(&self, yaml: &mut Yaml<'_>) {
        let mut frame = yaml.begin();
        self.yaml_fields(yaml, &mut frame);
        yaml.end_map(frame);
    }

    /// A message with every field filled.
    fn sample_message(sampler: &mut Sampler) -> Self;

    /// Takes all fields of a message from the wire.
    fn merge_message(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        wire::each_field(bytes, Self::NAME, &mut |tag, field| self.merge_field(tag, field))
    }
}
