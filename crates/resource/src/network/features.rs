//! Features of a network card, which YAML shows as a mapping in the order of the card.

use ichor_resource_derive::SpecMessage;

use crate::value::{Field, Sampler, Value, WireError, Yaml};

/// One feature and its state.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.EthernetFeatureStatus")]
pub struct EthernetFeature {
    #[spec(1, "name")]
    pub name: String,
    #[spec(2, "status")]
    pub status: String,
}

/// All features of a card.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EthernetFeatures(pub Vec<EthernetFeature>);

impl Value for EthernetFeatures {
    fn proto_type() -> String {
        Vec::<EthernetFeature>::proto_type()
    }

    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        self.0.put(tag, out);
    }

    fn merge(&mut self, field: Field<'_>) -> Result<(), WireError> {
        self.0.merge(field)
    }

    fn yaml(&self, yaml: &mut Yaml<'_>) {
        let mut frame = yaml.begin();
        for feature in &self.0 {
            yaml.string_key(&mut frame, &feature.name);
            // `on` and `off` stand without quotes here; clients read this as text anyway.
            yaml.plain(&feature.status);
        }
        yaml.end_map(frame);
    }

    fn sample(_: &mut Sampler) -> Self {
        let feature = |name: &str, status: &str| EthernetFeature { name: name.into(), status: status.into() };
        Self(vec![feature("tx-checksum-ipv4", "off [fixed]"), feature("rx-gro", "on")])
    }
}
