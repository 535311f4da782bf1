//! Documentation and schema come from the descriptions and stay in step with them.

use std::{collections::BTreeSet, fs, path::PathBuf};

use ichor_config::{Documents, describe};
use ichor_yaml::Node;

/// Keys of the original's schema, as `Kind path`.
const REFERENCE_KEYS: &str = include_str!("schema_keys.txt");

#[test]
fn the_schema_has_the_keys_of_the_original_and_the_differences_are_known() {
    let reference: BTreeSet<&str> = REFERENCE_KEYS.lines().collect();
    let ours: BTreeSet<String> = describe::all_kinds()
        .flat_map(|(kind, object, _)| {
            describe::walk(object).into_iter().map(move |(path, _)| format!("{kind} {path}"))
        })
        .collect();
    let deprecated: BTreeSet<String> = describe::all_kinds()
        .flat_map(|(kind, object, _)| {
            let old: Vec<String> = describe::walk(object)
                .into_iter()
                .filter(|(_, field)| field.deprecated().is_some())
                .map(|(path, _)| format!("{kind} {path}"))
                .collect();
            old
        })
        .collect();
    let missing: Vec<&&str> = reference.iter().filter(|key| !ours.contains(**key)).collect();
    let below_deprecated = |key: &str| deprecated.iter().any(|old| key.starts_with(old.as_str()));
    let extra: Vec<&String> =
        ours.iter().filter(|key| !reference.contains(key.as_str()) && !below_deprecated(key)).collect();
    let known = |sign: char| {
        let of_sign = DIFFERENCES.iter().filter(move |(mark, ..)| *mark == sign);
        of_sign.map(|(_, key, _)| *key).collect::<Vec<_>>()
    };
    assert_eq!(missing.into_iter().copied().collect::<Vec<_>>(), known('-'));
    assert_eq!(extra.into_iter().map(String::as_str).collect::<Vec<_>>(), known('+'));
    let page =
        describe::pages().into_iter().find(|page| page.file == "README.md").expect("the first page").text;
    for (_, key, reason) in DIFFERENCES {
        let path = key.split_once(' ').map_or(*key, |(_, path)| path);
        assert!(page.contains(path), "{key}, {reason}: not told on the first page");
    }
}

/// Keys that only one of the schemas has, and why. Keys below deprecated ones are not in the original's at all.
const DIFFERENCES: &[(char, &str, &str)] = &[
    ('-', "KubeSpanEndpoints extraAnnouncedEndpoints", KIND),
    ('-', "RegistryTLSConfig clientIdentity.crt", CERT),
    ('-', "v1alpha1 cluster.acceptedCAs.crt", LIST),
    ('-', "v1alpha1 machine.acceptedCAs.crt", LIST),
    ('+', "KubeSpanEndpointsConfig extraAnnouncedEndpoints", KIND),
    ('+', "RegistryTLSConfig clientIdentity.cert", CERT),
    ('+', "v1alpha1 cluster.acceptedCAs[].crt", LIST),
    ('+', "v1alpha1 cluster.apiServer.resources.limits", RESOURCES),
    ('+', "v1alpha1 cluster.apiServer.resources.requests", RESOURCES),
    ('+', "v1alpha1 cluster.controllerManager.resources.limits", RESOURCES),
    ('+', "v1alpha1 cluster.controllerManager.resources.requests", RESOURCES),
    ('+', "v1alpha1 cluster.scheduler.resources.limits", RESOURCES),
    ('+', "v1alpha1 cluster.scheduler.resources.requests", RESOURCES),
    ('+', "v1alpha1 machine.acceptedCAs[].crt", LIST),
];

const KIND: &str = "the kind is written without its ending there";
const CERT: &str = "the decoder wants `cert`";
const LIST: &str = "the decoder wants a list";
const RESOURCES: &str = "the two keys are left open there";

#[test]
fn every_key_is_documented() {
    for (kind, object, _) in describe::all_kinds() {
        assert!(!object.doc.trim().is_empty(), "{kind}");
        for (path, field) in describe::walk(object) {
            assert!(!field.doc.trim().is_empty(), "{kind} {path}");
        }
    }
}

#[test]
fn the_reference_pages_are_up_to_date() {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/config");
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    if update {
        fs::create_dir_all(&directory).unwrap();
    }
    for page in describe::pages() {
        let path = directory.join(&page.file);
        if update {
            fs::write(&path, &page.text).unwrap();
        }
        let text = fs::read_to_string(&path).unwrap_or_default();
        assert!(text == page.text, "{} is out of date: run the tests once with UPDATE_EXPECT=1", page.file);
    }
}

/// The example of a key inside the document it belongs to.
fn in_place(kind: &str, named: bool, path: &str, example: &str) -> String {
    let mut node =
        ichor_yaml::parse(example).unwrap_or_else(|error| panic!("{kind} {path}: {error}")).remove(0).root;
    let parents: Vec<&str> = path.split('.').collect();
    for parent in parents[..parents.len() - 1].iter().rev() {
        let name = parent.trim_end_matches(['[', ']', '{', '}']);
        for mark in parent.as_bytes()[name.len()..].chunks(2).rev() {
            node = match mark {
                b"[]" => Node::seq(vec![node]),
                _ => Node::map(vec![(Node::string("entry"), node)]),
            };
        }
        node = Node::map(vec![(Node::string(name), node)]);
    }
    let body = ichor_yaml::emit(&node);
    match kind {
        "v1alpha1" => format!("{body}{}", if body.contains("debug:") { "" } else { "debug: false\n" }),
        kind => {
            let name = if named && !body.starts_with("name:") { "name: x\n" } else { "" };
            format!("apiVersion: v1alpha1\nkind: {kind}\n{name}{body}")
        }
    }
}

#[test]
fn every_example_can_be_used_where_it_stands() {
    let mut count = 0;
    for (kind, object, named) in describe::all_kinds() {
        for (path, field) in describe::walk(object) {
            let Some(example) = field.flag("example") else { continue };
            let text = in_place(kind, named, &path, example);
            let loaded = Documents::load(text.as_bytes());
            assert!(loaded.is_ok(), "{kind} {path}: {}", loaded.unwrap_err().render("example", &text));
            assert!(example.starts_with(&format!("{}:", field.key)), "{kind} {path}: {example}");
            count += 1;
        }
    }
    assert!(count > 40, "{count} examples");
}
