//! Prints every definition and some filled specs as JSON, for the parity tests to compare.

use std::io::Write;

use ichor_resource::meta::{NAMESPACES, ResourceDefinition};
use ichor_resource::value::{Message, Sampler};
use ichor_resource::{Spec, TypedSpec, Visitor, visit_all};
use serde_json::{Value, json};

/// How many differently filled specs of each type to print, besides the empty one.
const SAMPLES: u32 = 8;

#[derive(Default)]
struct Dump {
    definitions: Vec<Value>,
    samples: Vec<Value>,
}

impl Visitor for Dump {
    fn visit<T: TypedSpec + Message>(&mut self) {
        let definition = ResourceDefinition::from(T::definition());
        let columns: Vec<_> = definition
            .print_columns
            .iter()
            .map(|column| json!({ "name": column.name, "jsonPath": column.json_path }))
            .collect();
        let mut yaml = String::new();
        definition.encode_yaml(&mut yaml);
        self.definitions.push(json!({
            "yaml": yaml,
            "type": definition.r#type,
            "displayType": definition.display_type,
            "defaultNamespace": definition.default_namespace,
            "aliases": definition.aliases,
            "allAliases": definition.all_aliases,
            "printColumns": columns,
            "sensitivity": definition.sensitivity.as_str(),
        }));
        self.sample(&T::default());
        for seed in 0..SAMPLES {
            self.sample(&T::sample_message(&mut Sampler::new(seed * 37)));
        }
    }
}

impl Dump {
    fn sample<T: TypedSpec + Message>(&mut self, spec: &T) {
        let (mut proto, mut yaml) = (Vec::new(), String::new());
        spec.encode_proto(&mut proto);
        spec.encode_yaml(&mut yaml);
        let hex: String = proto.iter().map(|byte| format!("{byte:02x}")).collect();
        self.samples.push(json!({ "type": T::definition().type_name, "proto": hex, "yaml": yaml }));
    }
}

fn main() -> std::io::Result<()> {
    let mut dump = Dump::default();
    visit_all(&mut dump);
    let namespaces: Vec<_> = NAMESPACES.iter().map(|(name, _)| *name).collect();
    let all = json!({ "definitions": dump.definitions, "samples": dump.samples, "namespaces": namespaces });
    writeln!(std::io::stdout(), "{all}")
}
