//! Every spec holds against the `.proto` files, and comes back from the wire as it went.

use std::collections::BTreeMap;

use ichor_resource::value::{FieldInfo, Message, Sampler};
use ichor_resource::{TypedSpec, Visitor, catalogue, visit_all};
use protox::prost_reflect::{DescriptorPool, FieldDescriptor, Kind};

fn pool() -> DescriptorPool {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire/proto");
    let mut files = vec!["v1alpha1/meta.proto".to_owned()];
    let mut folders = vec![std::path::PathBuf::from(root).join("resource")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    let set = protox::compile(files, [root]).unwrap();
    DescriptorPool::from_file_descriptor_set(set).unwrap()
}

fn kind_name(kind: &Kind) -> String {
    match kind {
        Kind::Message(message) => message.full_name().to_owned(),
        Kind::Enum(number) => number.full_name().to_owned(),
        Kind::Double => "double".into(),
        Kind::Int32 => "int32".into(),
        Kind::Int64 => "int64".into(),
        Kind::Uint32 => "uint32".into(),
        Kind::Uint64 => "uint64".into(),
        Kind::Bool => "bool".into(),
        Kind::String => "string".into(),
        Kind::Bytes => "bytes".into(),
        other => format!("{other:?}"),
    }
}

fn type_name(field: &FieldDescriptor) -> String {
    match field.kind() {
        Kind::Message(entry) if field.is_map() => {
            let part = |number| kind_name(&entry.get_field(number).unwrap().kind());
            format!("map<{},{}>", part(1), part(2))
        }
        kind if field.is_list() => format!("[]{}", kind_name(&kind)),
        kind => kind_name(&kind),
    }
}

/// Collects what differs between the structs and the `.proto` files.
struct Check {
    pool: DescriptorPool,
    checked: usize,
    wrong: Vec<String>,
}

impl Check {
    fn message(&mut self, name: &str, fields: &[FieldInfo]) {
        let Some(message) = self.pool.get_message_by_name(name) else {
            return self.wrong.push(format!("{name}: no such message"));
        };
        let want: BTreeMap<u32, String> =
            message.fields().map(|field| (field.number(), type_name(&field))).collect();
        let have: BTreeMap<u32, String> = fields
            .iter()
            .filter(|field| field.tag != 0)
            .map(|field| (field.tag, field.proto_type.clone()))
            .collect();
        for (tag, ours) in &have {
            match want.get(tag) {
                Some(theirs) if theirs == ours => self.checked += 1,
                theirs => self.wrong.push(format!("{name}#{tag}: {ours} here, {theirs:?} there")),
            }
        }
        for (tag, theirs) in want.iter().filter(|(tag, _)| !have.contains_key(tag)) {
            self.wrong.push(format!("{name}#{tag}: {theirs} is missing here"));
        }
    }
}

impl Visitor for Check {
    fn visit<T: TypedSpec + Message>(&mut self) {
        assert_eq!(T::NAME, T::definition().proto);
        if !T::NAME.is_empty() {
            self.message(T::NAME, &T::fields());
        }
    }
}

#[test]
fn every_field_has_the_number_and_type_of_its_message() {
    let mut check = Check { pool: pool(), checked: 0, wrong: Vec::new() };
    visit_all(&mut check);
    nested(&mut check);
    assert!(check.wrong.is_empty(), "{}", check.wrong.join("\n"));
    assert!(check.checked > 800, "only {} fields checked", check.checked);
}

/// Messages inside specs, which no resource shows by itself.
fn nested(check: &mut Check) {
    macro_rules! messages {
        ($($group:ident::{$($name:ident),+ $(,)?})+) => {
            $($(check.message(
                <ichor_resource::$group::$name as Message>::NAME,
                &<ichor_resource::$group::$name as Message>::fields(),
            );)+)+
        };
    }
    messages! {
        block::{ProvisioningSpec, DiskSelector, PartitionSpec, FilesystemSpec, EncryptionSpec, EncryptionKey, LocatorSpec, MountSpec, SymlinkProvisioningSpec, TPMEncryptionOptionsInfo}
        cluster::{KubeSpanAffiliateSpec, ControlPlane}
        cri::{RegistryMirrorConfig, RegistryEndpointConfig, RegistryAuthConfig, RegistryTLSConfig}
        k8s::{ExtraVolume, Resources, AdmissionPluginSpec, AuthorizationAuthorizersSpec, ExtraMount, IdMapping, ExtraManifest, SingleManifest, KubePrismEndpoint}
        meta::{PrintColumn}
        network::{EthernetRingsSpec, EthernetChannelsSpec, EthernetRingsStatus, EthernetChannelsStatus, EthernetFeature, TCPProbeSpec, BondSlave, BridgeSlave, VLANSpec, BondMasterSpec, BridgeMasterSpec, STPSpec, BridgeVLANSpec, WireguardSpec, WireguardPeer, NfTablesRule, NfTablesIfNameMatch, NfTablesMark, NfTablesConntrackStateMatch, NfTablesAddressMatch, NfTablesLayer4Match, NfTablesPortMatch, PortRange, NfTablesICMPTypeMatch, NfTablesLimitMatch, NfTablesClampMSS, DHCP4OperatorSpec, ClientIdentifierSpec, DHCP6OperatorSpec, VIPOperatorSpec, VIPEquinixMetalSpec, VIPHCloudSpec}
        perf::{CPUStat}
        runtime::{ExtensionServiceConfigFile, ExtensionMetadata, ExtensionCompatibility, ExtensionConstraint, MachineStatusStatus, UnmetCondition}
    }
}

struct RoundTrip;

impl Visitor for RoundTrip {
    fn visit<T: TypedSpec + Message>(&mut self) {
        let name = T::definition().type_name;
        for spec in (0..20).map(|seed| T::sample_message(&mut Sampler::new(seed * 11))).chain([T::default()])
        {
            let mut bytes = Vec::new();
            spec.encode_proto(&mut bytes);
            let back = T::decode_proto(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
            if T::fields().is_empty()
                || ["ResourceDefinitions.", "VolumeConfigs."].iter().any(|no| name.starts_with(no))
            {
                // Not all of these is on the wire: automatic aliases, texts of expressions.
                continue;
            }
            assert_eq!(back, spec, "{name}");
            // Unknown fields are skipped, cut messages are errors or shorter messages, never panics.
            bytes.extend_from_slice(&[0xf8, 0xff, 0x07, 0x01]);
            assert_eq!(T::decode_proto(&bytes).as_ref(), Ok(&spec), "{name}");
            for len in 0..bytes.len() {
                let _ = T::decode_proto(&bytes[..len]);
            }
        }
    }
}

#[test]
fn every_spec_comes_back_from_the_wire() {
    visit_all(&mut RoundTrip);
}

#[test]
fn noise_never_panics() {
    struct Noise(Vec<Vec<u8>>);
    impl Visitor for Noise {
        fn visit<T: TypedSpec + Message>(&mut self) {
            for bytes in &self.0 {
                if let Ok(spec) = T::decode_proto(bytes) {
                    spec.encode_yaml(&mut String::new());
                }
            }
        }
    }
    let mut state = 7u64;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let noise = (0..200).map(|len| (0..len % 40).map(|_| byte() & 0x3f).collect()).collect();
    visit_all(&mut Noise(noise));
}

#[test]
fn the_catalogue_is_whole() {
    assert_eq!(catalogue().count(), 160);
    let mut names: Vec<_> = catalogue().map(|definition| definition.type_name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 160);
    let namespaces: Vec<_> = ichor_resource::meta::NAMESPACES.iter().map(|(name, _)| *name).collect();
    for definition in catalogue() {
        assert!(namespaces.contains(&definition.default_namespace), "{}", definition.type_name);
    }
}
