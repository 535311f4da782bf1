//! Expressions that pick disks and volumes.

use bytes::Bytes;

use crate::value::wire::put_bytes;
use crate::value::{Field, Sampler, Value, WireError, Yaml};

/// An expression over disks or volumes: its text for people, its checked form for the wire.
///
/// Who writes a spec gives both; one read from the wire has the checked form alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expression {
    /// The text.
    pub text: String,
    /// `google.api.expr.v1alpha1.CheckedExpr`, encoded.
    pub checked: Bytes,
}

impl Value for Expression {
    fn proto_type() -> String {
        "google.api.expr.v1alpha1.CheckedExpr".into()
    }

    fn is_zero(&self) -> bool {
        self.checked.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.checked.is_empty() && self.text.is_empty()
    }

    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        put_bytes(tag, &self.checked, out);
    }

    fn merge(&mut self, field: Field<'_>) -> Result<(), WireError> {
        self.checked = Bytes::copy_from_slice(field.bytes()?);
        Ok(())
    }

    fn yaml(&self, yaml: &mut Yaml<'_>) {
        yaml.string(&self.text);
    }

    fn sample(_: &mut Sampler) -> Self {
        // The constant `true`: the type of expression 1 is a boolean, and expression 1 is that constant.
        let checked = &[0x1a, 6, 0x08, 1, 0x12, 2, 0x28, 1, 0x22, 6, 0x10, 1, 0x1a, 2, 0x10, 1, 0x2a, 0];
        Self { text: "true".into(), checked: Bytes::from_static(checked) }
    }
}
