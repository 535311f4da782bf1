//! etcd.

use std::collections::BTreeMap;

use ichor_resource_derive::ResourceSpec;

use crate::value::Ip;

/// etcd settings from the machine configuration.
///
/// Id: `etcd`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "EtcdConfigs.etcd.talos.dev", namespace = "etcd")]
#[resource(proto = "talos.resource.definitions.etcd.ConfigSpec")]
#[resource(columns(("Image", "{.image}")))]
pub struct EtcdConfig {
    #[spec(1, "advertiseValidSubnets", omit)]
    pub advertise_valid_subnets: Vec<String>,
    #[spec(2, "advertiseExcludeSubnets")]
    pub advertise_exclude_subnets: Vec<String>,
    #[spec(5, "listenValidSubnets", omit)]
    pub listen_valid_subnets: Vec<String>,
    #[spec(6, "listenExcludeSubnets")]
    pub listen_exclude_subnets: Vec<String>,
    #[spec(3, "image")]
    pub image: String,
    #[spec(4, "extraArgs")]
    pub extra_args: BTreeMap<String, String>,
}

/// Member id of the local etcd, 16 hex digits.
///
/// Id: `local`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "EtcdMembers.etcd.talos.dev", namespace = "etcd")]
#[resource(proto = "talos.resource.definitions.etcd.MemberSpec")]
#[resource(columns(("Member ID", "{.memberID}")))]
pub struct EtcdMember {
    #[spec(1, "memberID")]
    pub member_id: String,
}

/// Final etcd run parameters: name, addresses, image, arguments.
///
/// Id: `etcd`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "EtcdSpecs.etcd.talos.dev", namespace = "etcd")]
#[resource(proto = "talos.resource.definitions.etcd.SpecSpec")]
#[resource(columns(
    ("Name", "{.name}"),
    ("AdvertisedAddresses", "{.advertisedAddresses}"),
    ("ListenPeerAddresses", "{.listenPeerAddresses}"),
    ("ListenClientAddresses", "{.listenClientAddresses}"),
))]
pub struct EtcdSpec {
    #[spec(1, "name")]
    pub name: String,
    #[spec(2, "advertisedAddresses")]
    pub advertised_addresses: Vec<Ip>,
    #[spec(5, "listenPeerAddresses")]
    pub listen_peer_addresses: Vec<Ip>,
    #[spec(6, "listenClientAddresses")]
    pub listen_client_addresses: Vec<Ip>,
    #[spec(3, "image")]
    pub image: String,
    #[spec(4, "extraArgs")]
    pub extra_args: BTreeMap<String, String>,
}

/// etcd certificates are written to disk.
///
/// Id: `etcd`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "PKIStatuses.etcd.talos.dev", namespace = "etcd")]
#[resource(proto = "talos.resource.definitions.etcd.PKIStatusSpec")]
#[resource(columns(("Ready", "{.ready}"), ("Secrets Version", "{.version}")))]
pub struct PKIStatus {
    #[spec(1, "ready")]
    pub ready: bool,
    #[spec(2, "version")]
    pub version: String,
}
