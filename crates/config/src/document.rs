//! One document of a configuration: the root document or one of the other kinds.

use ichor_yaml::{Node, Value};

use crate::{
    kinds::{block, bond, firewall, link, registry, runtime, service},
    model::{Decoder, DeleteError, DeleteStep, Field, MergeError, ObjectInfo},
    v1alpha1,
};

/// The only API version that documents with a kind have.
pub const API_VERSION: &str = "v1alpha1";

/// The kind under which the root document goes.
pub const ROOT_KIND: &str = "v1alpha1";

/// What tells documents apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DocumentId {
    /// API version; empty for the root document.
    pub api_version: String,
    /// Kind; `v1alpha1` for the root document.
    pub kind: String,
    /// Name; empty for kinds without one.
    pub name: String,
}

/// Description of a kind.
#[derive(Debug)]
pub struct KindInfo {
    /// The kind.
    pub kind: &'static str,
    /// Keys, types and documentation.
    pub object: &'static ObjectInfo,
    /// True if several documents of this kind may exist, told apart by name.
    pub named: bool,
    /// Name of the type in the original, for messages.
    pub go_type: &'static str,
}

macro_rules! kinds {
    (@name $document:ident named) => { $document.name.as_str() };
    (@name $document:ident single) => {{ let _ = $document; "" }};
    (@named named) => { true };
    (@named single) => { false };
    ($( $kind:ident ($ty:ty, $naming:ident, $go:literal) ),* $(,)?) => {
        /// One document of a configuration.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Document {
            /// The root document.
            Config(Box<v1alpha1::Config>),
            $( #[doc = concat!("A `", stringify!($kind), "` document.")] $kind(Box<$ty>), )*
        }

        /// All kinds except the root document.
        pub static KINDS: &[KindInfo] = &[ $( KindInfo {
            kind: stringify!($kind),
            object: &<$ty>::INFO,
            named: kinds!(@named $naming),
            go_type: $go,
        } ),* ];

        impl Document {
            /// The kind; `v1alpha1` for the root document.
            pub fn kind(&self) -> &'static str {
                match self {
                    Self::Config(_) => ROOT_KIND,
                    $( Self::$kind(_) => stringify!($kind), )*
                }
            }

            /// The name; empty for kinds without one.
            pub fn name(&self) -> &str {
                match self {
                    Self::Config(_) => "",
                    $( Self::$kind(document) => kinds!(@name document $naming), )*
                }
            }

            /// Reads a document of a known kind from a tree without `apiVersion` and `kind`.
            pub(crate) fn decode_kind(kind: &str, node: &Node, decoder: &mut Decoder) -> Option<Self> {
                match kind {
                    ROOT_KIND => Some(Self::Config(Field::decode(node, decoder))),
                    $( stringify!($kind) => Some(Self::$kind(Field::decode(node, decoder))), )*
                    _ => None,
                }
            }

            /// A document of a kind with nothing but a name.
            pub fn empty(kind: &str) -> Option<Self> {
                match kind {
                    ROOT_KIND => Some(Self::Config(Default::default())),
                    $( stringify!($kind) => Some(Self::$kind(Default::default())), )*
                    _ => None,
                }
            }

            fn encode_fields(&self) -> Node {
                match self {
                    Self::Config(document) => document.encode(),
                    $( Self::$kind(document) => document.encode(), )*
                }
            }

            /// Merges a document with the same identity into this one.
            pub fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
                match (self, right) {
                    (Self::Config(left), Self::Config(right)) => left.merge(right),
                    $( (Self::$kind(left), Self::$kind(right)) => left.merge(right), )*
                    _ => Ok(()),
                }
            }

            /// Deletes what a path leads to.
            pub fn delete(&mut self, path: &[DeleteStep]) -> Result<(), DeleteError> {
                match self {
                    Self::Config(document) => document.delete(path),
                    $( Self::$kind(document) => document.delete(path), )*
                }
            }
        }
    };
}

kinds! {
    VolumeConfig(block::VolumeConfig, named, "block.VolumeConfigV1Alpha1"),
    UserVolumeConfig(block::UserVolumeConfig, named, "block.UserVolumeConfigV1Alpha1"),
    RawVolumeConfig(block::RawVolumeConfig, named, "block.RawVolumeConfigV1Alpha1"),
    ExistingVolumeConfig(block::ExistingVolumeConfig, named, "block.ExistingVolumeConfigV1Alpha1"),
    SwapVolumeConfig(block::SwapVolumeConfig, named, "block.SwapVolumeConfigV1Alpha1"),
    ZswapConfig(block::ZswapConfig, single, "block.ZswapConfigV1Alpha1"),
    RegistryMirrorConfig(registry::RegistryMirrorConfig, named, "cri.RegistryMirrorConfigV1Alpha1"),
    RegistryAuthConfig(registry::RegistryAuthConfig, named, "cri.RegistryAuthConfigV1Alpha1"),
    RegistryTLSConfig(registry::RegistryTLSConfig, named, "cri.RegistryTLSConfigV1Alpha1"),
    PCIDriverRebindConfig(crate::kinds::PCIDriverRebindConfig, named, "hardware.PCIDriverRebindConfigV1Alpha1"),
    LinkConfig(link::LinkConfig, named, "network.LinkConfigV1Alpha1"),
    BondConfig(bond::BondConfig, named, "network.BondConfigV1Alpha1"),
    BridgeConfig(link::BridgeConfig, named, "network.BridgeConfigV1Alpha1"),
    VLANConfig(link::VLANConfig, named, "network.VLANConfigV1Alpha1"),
    DummyLinkConfig(link::DummyLinkConfig, named, "network.DummyLinkConfigV1Alpha1"),
    WireguardConfig(link::WireguardConfig, named, "network.WireguardConfigV1Alpha1"),
    LinkAliasConfig(link::LinkAliasConfig, named, "network.LinkAliasConfigV1Alpha1"),
    EthernetConfig(link::EthernetConfig, named, "network.EthernetConfigV1Alpha1"),
    DHCPv4Config(service::DHCPv4Config, named, "network.DHCPv4ConfigV1Alpha1"),
    DHCPv6Config(service::DHCPv6Config, named, "network.DHCPv6ConfigV1Alpha1"),
    Layer2VIPConfig(service::Layer2VIPConfig, named, "network.Layer2VIPConfigV1Alpha1"),
    HCloudVIPConfig(service::HCloudVIPConfig, named, "network.HCloudVIPConfigV1Alpha1"),
    HostnameConfig(service::HostnameConfig, single, "network.HostnameConfigV1Alpha1"),
    ResolverConfig(service::ResolverConfig, single, "network.ResolverConfigV1Alpha1"),
    StaticHostConfig(service::StaticHostConfig, named, "network.StaticHostConfigV1Alpha1"),
    TimeSyncConfig(service::TimeSyncConfig, single, "network.TimeSyncConfigV1Alpha1"),
    KubeSpanEndpointsConfig(service::KubeSpanEndpointsConfig, single, "network.KubespanEndpointsConfigV1Alpha1"),
    NetworkDefaultActionConfig(firewall::NetworkDefaultActionConfig, single, "network.DefaultActionConfigV1Alpha1"),
    NetworkRuleConfig(firewall::NetworkRuleConfig, named, "network.RuleConfigV1Alpha1"),
    EventSinkConfig(runtime::EventSinkConfig, single, "runtime.EventSinkV1Alpha1"),
    KmsgLogConfig(runtime::KmsgLogConfig, named, "runtime.KmsgLogV1Alpha1"),
    WatchdogTimerConfig(runtime::WatchdogTimerConfig, single, "runtime.WatchdogTimerV1Alpha1"),
    OOMConfig(runtime::OOMConfig, single, "runtime.OOMV1Alpha1"),
    ExtensionServiceConfig(runtime::ExtensionServiceConfig, named, "extensions.ServiceConfigV1Alpha1"),
    TrustedRootsConfig(crate::kinds::TrustedRootsConfig, named, "security.TrustedRootsConfigV1Alpha1"),
    SideroLinkConfig(crate::kinds::SideroLinkConfig, single, "siderolink.ConfigV1Alpha1"),
}

/// Kinds of which at most one document may have a given name.
const EXCLUSIVE: &[&[&str]] = &[
    &["BondConfig", "BridgeConfig", "DummyLinkConfig", "LinkConfig", "VLANConfig", "WireguardConfig"],
    &["Layer2VIPConfig", "HCloudVIPConfig"],
    &["UserVolumeConfig", "ExistingVolumeConfig"],
];

/// The group of kinds that a kind may not share a name with.
pub(crate) fn exclusive_group(kind: &str) -> Option<usize> {
    EXCLUSIVE.iter().position(|group| group.contains(&kind))
}

impl Document {
    /// What tells this document apart.
    pub fn id(&self) -> DocumentId {
        let api_version = if matches!(self, Self::Config(_)) { "" } else { API_VERSION };
        DocumentId {
            api_version: api_version.to_owned(),
            kind: self.kind().to_owned(),
            name: self.name().to_owned(),
        }
    }

    /// How messages call this document: `v1alpha1.Config`, `Kind` or `Kind/name`.
    pub fn title(&self) -> String {
        match (self, self.name()) {
            (Self::Config(_), _) => "v1alpha1.Config".to_owned(),
            (_, "") => self.kind().to_owned(),
            (_, name) => format!("{}/{name}", self.kind()),
        }
    }

    /// Writes the document without comments.
    pub fn encode(&self) -> Node {
        let mut node = self.encode_fields();
        if !matches!(self, Self::Config(_))
            && let Value::Map(entries) = &mut node.value
        {
            let head = [("apiVersion", API_VERSION), ("kind", self.kind())];
            entries.splice(0..0, head.map(|(key, value)| (Node::string(key), Node::string(value))));
        }
        node
    }
}

/// Description of a kind.
pub fn kind_info(kind: &str) -> Option<&'static KindInfo> {
    KINDS.iter().find(|info| info.kind == kind)
}

/// Name of the type of a kind in the original, for messages.
pub(crate) fn go_type(kind: &str) -> &'static str {
    kind_info(kind).map_or("v1alpha1.Config", |info| info.go_type)
}
