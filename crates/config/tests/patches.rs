//! The patch and merge cases of the fixtures.

use std::{fs, path::PathBuf};

use ichor_config::{
    CommentMode, Document, Documents,
    patch::{self, Patch, StrategicPatch, Target},
};

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn fixture(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn load(name: &str) -> Documents {
    let text = fixture(name);
    Documents::load(text.as_bytes()).unwrap_or_else(|error| panic!("{}", error.render(name, &text)))
}

#[test]
fn merging_follows_the_rules_of_each_field() {
    for case in ["001", "002", "004", "005", "006"] {
        let left = load(&format!("strategic-merge/{case}/left.yaml"));
        let patch =
            StrategicPatch::load(fixture(&format!("strategic-merge/{case}/right.yaml")).as_bytes()).unwrap();
        let want = load(&format!("strategic-merge/{case}/expected.yaml"));
        let got = patch.apply(left).unwrap();
        assert_eq!(got.encode(CommentMode::None), want.encode(CommentMode::None), "case {case}");
        assert_eq!(got, want, "case {case}");
    }
}

/// Loads the numbered patches of a case as if given as `@file` arguments.
fn patches(case: &str) -> Vec<Patch> {
    let mut files: Vec<String> = fs::read_dir(path(&format!("patch/{case}")))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with(|c: char| c.is_ascii_digit()))
        .map(|name| format!("@{}", path(&format!("patch/{case}/{name}")).display()))
        .collect();
    files.sort();
    patch::load_all(&files, |path| fs::read(path)).unwrap()
}

#[track_caller]
fn check_case(case: &str) {
    let want = fixture(&format!("patch/{case}/expected.yaml"));
    let config = fixture(&format!("patch/{case}/config.yaml"));
    let patches = patches(case);
    let from_bytes = patch::apply_to_bytes(config.as_bytes(), &patches).unwrap();
    assert_eq!(String::from_utf8(from_bytes).unwrap(), want, "{case} from bytes");
    let target = Target::Documents(load(&format!("patch/{case}/config.yaml")));
    let from_documents = patch::apply(target, &patches).unwrap().into_bytes();
    assert_eq!(String::from_utf8(from_documents).unwrap(), want, "{case} from documents");
}

#[test]
fn both_patch_languages_take_turns() {
    assert_eq!(patches("apply-mixed").len(), 4, "neighbouring operations become one patch");
    check_case("apply-mixed");
}

#[test]
fn an_audit_policy_is_replaced_as_a_whole() {
    check_case("audit-policy-replace");
}

#[test]
fn items_entries_and_sections_are_deleted() {
    check_case("delete-controlplane");
}

#[test]
fn blank_lines_before_a_manifest_are_dropped() {
    check_case("inline-manifest-newline");
}

#[test]
fn documents_are_matched_by_kind_and_name() {
    check_case("multidoc-merge");
}

#[test]
fn operations_need_a_single_document() {
    let config = fixture("patch/multidoc-json-rejected/config.yaml");
    let error = patch::apply_to_bytes(config.as_bytes(), &patches("multidoc-json-rejected")).unwrap_err();
    let want = "JSON6902 patches are not supported for multi-document machine configuration";
    assert_eq!(error.to_string(), want);
}

#[test]
fn the_language_of_a_patch_is_found_out() {
    let load = |name: &str| Patch::load(fixture(&format!("patch/{name}")).as_bytes()).unwrap();
    let operations = |patch: Patch| match patch {
        Patch::Json(patch) => serde_json::to_value(&patch).unwrap(),
        Patch::Strategic(_) => panic!("not operations"),
    };
    let json = operations(load("load-json6902-json/patch.json"));
    assert_eq!(json.as_array().unwrap().len(), 1);
    assert_eq!((json[0]["op"].as_str(), json[0]["path"].as_str()), (Some("add"), Some("/machine/certSANs")));
    let yaml = operations(load("load-json6902-yaml/patch.yaml"));
    assert_eq!((yaml[0]["op"].as_str(), yaml[0]["path"].as_str()), (Some("add"), Some("/some/path")));
    assert_eq!(yaml[0]["value"], serde_json::json!(["a", "b", "c"]));
    let Patch::Strategic(patch) = load("load-strategic/patch.yaml") else { panic!("not strategic") };
    let Some(Document::Config(config)) = patch.documents().next() else { panic!("no root document") };
    let network = config.machine.as_ref().unwrap().network.as_ref().unwrap();
    assert_eq!(network.hostname, "foo.bar");
}

#[test]
fn redacting_replaces_secrets_only() {
    let redacted = load("types/network/wireguardconfig.yaml").redacted("REDACTED");
    assert_eq!(redacted.encode(CommentMode::None), fixture("types/network/wireguardconfig_redacted.yaml"));
    let auth = load("types/cri/registryauthconfig.yaml").redacted("x").encode(CommentMode::None);
    assert!(auth.contains("username: agent007\npassword: x\n"), "{auth}");
    let link = load("types/siderolink/document.yaml").redacted("x").encode(CommentMode::None);
    assert!(link.contains("apiUrl: https://siderolink.api/?jointoken=x&user=alice"), "{link}");
    let vip = load("types/network/hcloudvipconfig.yaml").redacted("x").encode(CommentMode::None);
    assert!(vip.contains("apiToken: s3cr3t-t0k3n"), "{vip}");
}

/// Applies a patch text to a configuration text.
fn patched(config: &str, text: &str) -> String {
    match Patch::load(text.as_bytes()).and_then(|patch| patch::apply_to_bytes(config.as_bytes(), &[patch])) {
        Ok(bytes) => String::from_utf8(bytes).unwrap(),
        Err(error) => format!("error: {error}"),
    }
}

const SMALL: &str = "machine:\n    type: worker\n    certSANs: [a, b]\n    sysctls: {x: \"1\", y: \"2\"}\n    kubelet:\n        extraConfig: {m: {n: 1}}\n";

#[test]
fn lists_and_maps_can_be_replaced_on_request() {
    let list = patched(SMALL, "machine:\n  certSANs:\n    - $patch: replace\n    - c\n");
    assert!(list.contains("certSANs:\n        - c\n") && !list.contains("- a\n"), "{list}");
    let map = patched(SMALL, "machine:\n  sysctls:\n    $patch: replace\n    z: \"3\"\n");
    assert!(map.contains("sysctls:\n        z: \"3\"\n") && !map.contains("x:"), "{map}");
    let new = patched(SMALL, "machine:\n  env:\n    $patch: replace\n    a: b\n");
    assert!(new.contains("env:\n        a: b\n"), "{new}");
    let free = patched(SMALL, "machine:\n  kubelet:\n    extraConfig:\n      $patch: replace\n      q: 2\n");
    assert!(free.contains("extraConfig:\n            q: 2\n"), "{free}");
    let inside = patched(
        SMALL,
        "machine:\n  kubelet:\n    extraConfig:\n      m:\n        $patch: replace\n        q: 2\n",
    );
    assert!(inside.starts_with("error: patch delete: path 'machine.kubelet.extraConfig.m'"), "{inside}");
}

#[test]
fn deletions_say_what_is_wrong_with_them() {
    for (text, want) in [
        (
            "machine:\n  nodeLabels:\n    nothing:\n      $patch: delete\n",
            "error: patch delete: path 'machine.nodeLabels.nothing' in document '/v1alpha1': failed to delete path 'machine.nodeLabels.nothing': lookup failed",
        ),
        (
            "$patch: delete\nmachine: {}\n",
            "error: missing apiVersion in document for which $patch: delete is used",
        ),
        (
            "machine:\n  certSANs:\n    - $patch: delete\n",
            "error: no key:val found in sequence node for path machine.certSANs.[0]",
        ),
        (
            "machine:\n  network:\n    interfaces:\n      - interface: eth0\n        vip:\n          $patch: delete\n",
            "error: cannot delete an inner key in 'machine.network.interfaces.[0].vip'",
        ),
        (
            "apiVersion: v1alpha1\nkind: LinkConfig\nname: eth0\naddresses:\n  $patch: delete\n",
            "error: named patch delete: document v1alpha1/LinkConfig: failed to delete path 'addresses': lookup failed",
        ),
    ] {
        assert_eq!(patched(SMALL, text), want);
    }
    let whole = "apiVersion: v1alpha1\nkind: ZswapConfig\n$patch: delete\n";
    assert!(!patched(SMALL, whole).starts_with("error"), "a document that is not there needs no deleting");
}

#[test]
fn traps_of_merging_stay_as_they_are() {
    let config = "machine:\n    ca: {crt: Y2E=, key: a2V5}\n    sysctls: {x: \"1\"}\ncluster:\n    controlPlane:\n        endpoint: https://a:6443/p?q=1\n---\napiVersion: v1alpha1\nkind: VolumeConfig\nname: EPHEMERAL\nprovisioning:\n    diskSelector:\n        match: system_disk\n    minSize: 1GiB\n    maxSize: 2GiB\n";
    let key = patched(config, "machine:\n  ca:\n    crt: bmV3\n");
    assert!(
        key.contains("crt: bmV3\n        key: \"\"\n"),
        "a missing key erases the one that was there: {key}"
    );
    let url = patched(config, "cluster:\n  controlPlane:\n    endpoint: https://b:1\n");
    assert!(url.contains("endpoint: https://b:1/p?q=1\n"), "path and query stay: {url}");
    let empty = patched(config, "machine:\n  sysctls:\n    x: \"\"\n");
    assert!(empty.contains("x: \"1\"\n"), "an empty text does not overwrite: {empty}");
    let volume = patched(
        config,
        "apiVersion: v1alpha1\nkind: VolumeConfig\nname: EPHEMERAL\nprovisioning:\n  grow: true\n",
    );
    assert!(volume.contains("provisioning:\n    grow: true\n    maxSize: 2GiB\n"), "{volume}");
}
