//! Holds our `.proto` files against the list of the original's names and numbers (`api.json`), in
//! both directions: nothing missing, nothing different, nothing invented outside of package `ichor`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet};
use serde_json::Value;

/// One line per fact, so that a difference reads as a diff.
type Facts = BTreeSet<String>;

#[test]
fn every_service_message_field_and_enum_is_the_one_of_the_original() {
    let want = facts_of_list(&read_list());
    let have = facts_of_protos(&compile_all());

    let missing: Vec<_> = want.difference(&have).collect();
    let invented: Vec<_> = have.difference(&want).collect();
    assert!(missing.is_empty() && invented.is_empty(), "missing: {missing:#?}\ninvented: {invented:#?}");
}

#[test]
fn the_list_has_as_many_parts_as_it_says() {
    let list = read_list();
    let counts = &list["counts"];
    let facts = facts_of_list(&list);
    let of = |word: &str| {
        let ours = |f: &&String| f.strip_prefix(word).is_some_and(|name| !name.starts_with("google."));
        facts.iter().filter(ours).count()
    };

    assert_eq!(of("message "), counts["messages"].as_u64().unwrap() as usize);
    assert_eq!(of("field "), counts["fields"].as_u64().unwrap() as usize);
    assert_eq!(of("enum "), counts["enums"].as_u64().unwrap() as usize);
}

fn read_list() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/api.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn compile_all() -> FileDescriptorSet {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let mut files = Vec::new();
    collect(&root, &root, &mut files);
    protox::compile(files, [root]).unwrap()
}

fn collect(root: &Path, dir: &Path, files: &mut Vec<String>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(root, &path, files);
        } else {
            files.push(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
        }
    }
}

// ---- the list ----

fn facts_of_list(list: &Value) -> Facts {
    let mut facts = Facts::new();
    for (package, body) in list["packages"].as_object().unwrap() {
        for (name, message) in body["messages"].as_object().unwrap() {
            list_message(&format!("{package}.{name}"), message, &mut facts);
        }
        list_enums(package, body, &mut facts);
        for service in body["services"].as_object().unwrap().values() {
            let service_name = service["full_name"].as_str().unwrap();
            for (name, rpc) in service["rpcs"].as_object().unwrap() {
                facts.insert(format!(
                    "rpc /{service_name}/{name} {}{} -> {}{}",
                    stream(rpc["client_streaming"].as_bool().unwrap()),
                    rpc["request"].as_str().unwrap(),
                    stream(rpc["server_streaming"].as_bool().unwrap()),
                    rpc["response"].as_str().unwrap(),
                ));
                assert_eq!(rpc["path"].as_str().unwrap(), format!("/{service_name}/{name}"));
            }
        }
    }
    for (name, message) in list["vendored"]["messages"].as_object().unwrap() {
        list_message(name, message, &mut facts);
    }
    facts
}

fn list_message(name: &str, message: &Value, facts: &mut Facts) {
    facts.insert(format!("message {name}"));
    for field in message["fields"].as_array().unwrap() {
        let text = |key: &str| field[key].as_str().unwrap_or_default();
        let ty = match text("label") {
            "map" => format!("map<{}, {}>", text("key"), text("type")),
            "singular" => text("type").to_owned(),
            label => format!("{label} {}", text("type")),
        };
        let oneof = field.get("oneof").map(|o| format!(" in {}", o.as_str().unwrap())).unwrap_or_default();
        facts.insert(format!("field {name}.{} = {} {ty}{oneof}", text("name"), field["number"]));
    }
    list_enums(name, message, facts);
    for (nested, body) in message.get("messages").and_then(Value::as_object).into_iter().flatten() {
        list_message(&format!("{name}.{nested}"), body, facts);
    }
}

fn list_enums(scope: &str, body: &Value, facts: &mut Facts) {
    for (name, body) in body.get("enums").and_then(Value::as_object).into_iter().flatten() {
        facts.insert(format!("enum {scope}.{name}"));
        for (value, number) in body["values"].as_object().unwrap() {
            facts.insert(format!("value {scope}.{name}.{value} = {number}"));
        }
    }
}

fn stream(yes: bool) -> &'static str {
    if yes { "stream " } else { "" }
}

// ---- our files ----

fn facts_of_protos(set: &FileDescriptorSet) -> Facts {
    let mut facts = Facts::new();
    let other = ["google.protobuf", "ichor.", "containerd", "etcd", "runtime.", "sidero.discovery."];
    let others = |package: &str| other.iter().any(|prefix| package.starts_with(prefix));
    for file in set.file.iter().filter(|f| !others(f.package())) {
        for message in &file.message_type {
            proto_message(file.package(), message, &mut facts);
        }
        for body in &file.enum_type {
            proto_enum(file.package(), body, &mut facts);
        }
        for service in &file.service {
            for method in &service.method {
                facts.insert(format!(
                    "rpc /{}.{}/{} {}{} -> {}{}",
                    file.package(),
                    service.name(),
                    method.name(),
                    stream(method.client_streaming()),
                    method.input_type().trim_start_matches('.'),
                    stream(method.server_streaming()),
                    method.output_type().trim_start_matches('.'),
                ));
            }
        }
    }
    facts
}

fn proto_message(scope: &str, message: &DescriptorProto, facts: &mut Facts) {
    let name = format!("{scope}.{}", message.name());
    facts.insert(format!("message {name}"));
    let entries: BTreeMap<String, &DescriptorProto> = message
        .nested_type
        .iter()
        .filter(|n| n.options.as_ref().is_some_and(|o| o.map_entry()))
        .map(|n| (format!("{name}.{}", n.name()), n))
        .collect();

    for field in &message.field {
        let ty = field_type(field, &entries);
        let oneof = match field.oneof_index {
            Some(index) if !field.proto3_optional() => {
                format!(" in {}", message.oneof_decl[index as usize].name())
            }
            _ => String::new(),
        };
        facts.insert(format!("field {name}.{} = {} {ty}{oneof}", field.name(), field.number()));
    }
    for body in &message.enum_type {
        proto_enum(&name, body, facts);
    }
    for nested in &message.nested_type {
        if !entries.contains_key(&format!("{name}.{}", nested.name())) {
            proto_message(&name, nested, facts);
        }
    }
}

fn field_type(field: &FieldDescriptorProto, entries: &BTreeMap<String, &DescriptorProto>) -> String {
    let bare = bare_type(field);
    match entries.get(&bare) {
        Some(entry) => format!("map<{}, {}>", bare_type(&entry.field[0]), bare_type(&entry.field[1])),
        None if field.label() == Label::Repeated => format!("repeated {bare}"),
        None if field.proto3_optional() => format!("optional {bare}"),
        None => bare,
    }
}

fn bare_type(field: &FieldDescriptorProto) -> String {
    match field.r#type() {
        Type::Message | Type::Enum | Type::Group => field.type_name().trim_start_matches('.').to_owned(),
        scalar => scalar.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    }
}

fn proto_enum(scope: &str, body: &EnumDescriptorProto, facts: &mut Facts) {
    facts.insert(format!("enum {scope}.{}", body.name()));
    for value in &body.value {
        facts.insert(format!("value {scope}.{}.{} = {}", body.name(), value.name(), value.number()));
    }
}
