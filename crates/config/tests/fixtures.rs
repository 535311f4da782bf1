//! The fixture cases: what the original reads, writes, merges and generates.

use std::{fs, path::PathBuf};

use ichor_config::{CommentMode, Document, Documents, Mode};

fn fixture(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn load(name: &str) -> Documents {
    let text = fixture(name);
    Documents::load(text.as_bytes()).unwrap_or_else(|error| panic!("{}", error.render(name, &text)))
}

/// Loads one document, writes it anew and expects the same bytes.
#[track_caller]
fn round_trip(name: &str, kind: &str) -> Documents {
    let documents = load(name);
    assert_eq!(documents.len(), 1, "{name}");
    assert_eq!(documents.iter().next().unwrap().kind(), kind, "{name}");
    assert_eq!(documents.encode(CommentMode::None), fixture(name), "{name}");
    documents
}

#[track_caller]
fn valid(documents: &Documents) {
    if let Err(error) = documents.validate(Mode::METAL) {
        panic!("{error}");
    }
}

#[test]
fn block_documents_come_back_unchanged() {
    for (name, kind) in [
        ("existingvolumeconfig_selector", "ExistingVolumeConfig"),
        ("swapvolumeconfig_diskselector", "SwapVolumeConfig"),
        ("swapvolumeconfig_encrypted", "SwapVolumeConfig"),
        ("uservolumeconfig_diskselector", "UserVolumeConfig"),
        ("volumeconfig_diskselector", "VolumeConfig"),
        ("volumeconfig_empty", "VolumeConfig"),
        ("volumeconfig_maxsize", "VolumeConfig"),
        ("volumeconfig_state", "VolumeConfig"),
        ("zswapconfig_full", "ZswapConfig"),
    ] {
        valid(&round_trip(&format!("types/block/{name}.yaml"), kind));
    }
}

#[test]
fn fractional_sizes_are_exact() {
    let documents = load("types/block/volumeconfig_maxsize.yaml");
    let Some(Document::VolumeConfig(volume)) = documents.iter().next() else { panic!("no volume") };
    assert_eq!(volume.provisioning.max_size.bytes(), Some(5 << 39));
}

#[test]
fn tpm_keys_bind_to_the_listed_registers() {
    for (name, want) in [("with_pcr_settings", vec![0, 7]), ("with_pcrs_disabled", vec![])] {
        let documents = load(&format!("types/block/volumeconfig_tpm_encryption_{name}.yaml"));
        valid(&documents);
        let Some(Document::VolumeConfig(volume)) = documents.iter().next() else { panic!("no volume") };
        assert_eq!(volume.encryption.keys[0].tpm.as_ref().unwrap().pcrs(), want);
    }
    assert_eq!(ichor_config::kinds::block::TpmKey::SIGNED_POLICY_PCRS, [11]);
    let documents = load("types/block/volumeconfig_state.yaml");
    let Some(Document::VolumeConfig(volume)) = documents.iter().next() else { panic!("no volume") };
    assert_eq!(volume.encryption.keys[0].tpm.as_ref().unwrap().pcrs(), [7]);
}

#[test]
fn other_documents_come_back_unchanged() {
    for (name, kind) in [
        ("cri/registryauthconfig", "RegistryAuthConfig"),
        ("hardware/pcidriverrebindconfig", "PCIDriverRebindConfig"),
        ("network/bridgeconfig", "BridgeConfig"),
        ("network/defaultactionconfig", "NetworkDefaultActionConfig"),
        ("network/dhcpv4config", "DHCPv4Config"),
        ("network/dhcpv6config", "DHCPv6Config"),
        ("network/dummylinkconfig", "DummyLinkConfig"),
        ("network/ethernetconfig", "EthernetConfig"),
        ("network/hcloudvipconfig", "HCloudVIPConfig"),
        ("network/hostnameconfig", "HostnameConfig"),
        ("network/layer2vipconfig", "Layer2VIPConfig"),
        ("network/linkaliasconfig", "LinkAliasConfig"),
        ("network/ruleconfig", "NetworkRuleConfig"),
        ("network/timesyncconfig", "TimeSyncConfig"),
        ("network/wireguardconfig", "WireguardConfig"),
        ("runtime/eventsink", "EventSinkConfig"),
        ("runtime/oom", "OOMConfig"),
        ("runtime/watchdogtimer", "WatchdogTimerConfig"),
        ("security/trustedrootsconfig", "TrustedRootsConfig"),
        ("siderolink/document", "SideroLinkConfig"),
    ] {
        valid(&round_trip(&format!("types/{name}.yaml"), kind));
    }
}

#[test]
fn a_document_can_be_read_without_being_valid() {
    let documents = round_trip("types/runtime/kmsglog.yaml", "KmsgLogConfig");
    assert!(documents.validate(Mode::METAL).is_err());
    round_trip("types/network/wireguardconfig_redacted.yaml", "WireguardConfig");
}

#[test]
fn old_and_partial_files_are_accepted() {
    for name in ["decoder-controlplane", "decoder-worker", "loader-worker", "loader-empty1"] {
        let documents = load(&format!("decode/{name}.yaml"));
        assert!(documents.is_complete(), "{name}");
        assert_eq!(documents.bytes(), fixture(&format!("decode/{name}.yaml")).as_bytes(), "kept as written");
    }
}

#[test]
fn a_second_root_document_is_not_allowed() {
    let text = fixture("decode/duplicate-v1alpha1.yaml");
    let error = Documents::load(text.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("not allowed"), "{error}");
    assert_eq!(error.items[0].span.line, 5);
}
