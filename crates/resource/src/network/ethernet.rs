//! Settings of network cards.

use std::collections::BTreeMap;

use ichor_resource_derive::{ResourceSpec, SpecMessage};

use super::features::EthernetFeatures;
use super::kernel::{Duplex, Port, WOLMode};

/// Wanted ethtool settings.
///
/// Id: link name.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "EthernetSpecs.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.EthernetSpecSpec")]
pub struct EthernetSpec {
    #[spec(1, "rings", omit)]
    pub rings: EthernetRingsSpec,
    #[spec(2, "features", omit)]
    pub features: BTreeMap<String, bool>,
    #[spec(3, "channels", omit)]
    pub channels: EthernetChannelsSpec,
    #[spec(4, "wakeOnLan", omit)]
    pub wake_on_lan: Vec<WOLMode>,
}

/// Part of a spec: `network.EthernetRingsSpec`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.EthernetRingsSpec")]
pub struct EthernetRingsSpec {
    #[spec(1, "rx", omit)]
    pub rx: Option<u32>,
    #[spec(4, "tx", omit)]
    pub tx: Option<u32>,
    #[spec(2, "rx-mini", omit)]
    pub rx_mini: Option<u32>,
    #[spec(3, "rx-jumbo", omit)]
    pub rx_jumbo: Option<u32>,
    #[spec(5, "rx-buf-len", omit)]
    pub rx_buf_len: Option<u32>,
    #[spec(6, "cqe-size", omit)]
    pub cqe_size: Option<u32>,
    #[spec(7, "tx-push", omit)]
    pub tx_push: Option<bool>,
    #[spec(8, "rx-push", omit)]
    pub rx_push: Option<bool>,
    #[spec(9, "tx-push-buf-len", omit)]
    pub tx_push_buf_len: Option<u32>,
    #[spec(10, "tcp-data-split", omit)]
    pub tcp_data_split: Option<bool>,
}

/// Part of a spec: `network.EthernetChannelsSpec`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.EthernetChannelsSpec")]
pub struct EthernetChannelsSpec {
    #[spec(1, "rx", omit)]
    pub rx: Option<u32>,
    #[spec(2, "tx", omit)]
    pub tx: Option<u32>,
    #[spec(3, "other", omit)]
    pub other: Option<u32>,
    #[spec(4, "combined", omit)]
    pub combined: Option<u32>,
}

/// Current ethtool settings; `features` prints as an ordered mapping of name to state.
///
/// Id: link name.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "EthernetStatuses.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.EthernetStatusSpec")]
#[resource(aliases("ethtool"))]
#[resource(columns(("Link", "{.linkState}"), ("Speed", "{.speedMbit}")))]
pub struct EthernetStatus {
    #[spec(1, "linkState", omit)]
    pub link_state: Option<bool>,
    #[spec(2, "speedMbit", omit)]
    pub speed_mbit: i64,
    #[spec(3, "port")]
    pub port: Port,
    #[spec(4, "duplex")]
    pub duplex: Duplex,
    #[spec(5, "ourModes", omit)]
    pub our_modes: Vec<String>,
    #[spec(6, "peerModes", omit)]
    pub peer_modes: Vec<String>,
    #[spec(7, "rings", omit)]
    pub rings: Option<EthernetRingsStatus>,
    #[spec(8, "features", omit)]
    pub features: EthernetFeatures,
    #[spec(9, "channels", omit)]
    pub channels: Option<EthernetChannelsStatus>,
    #[spec(10, "wakeOnLAN", omit)]
    pub wake_on_lan: Vec<WOLMode>,
}

/// Part of a spec: `network.EthernetRingsStatus`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.EthernetRingsStatus")]
pub struct EthernetRingsStatus {
    #[spec(1, "rx-max", omit)]
    pub rx_max: Option<u32>,
    #[spec(2, "rx-mini-max", omit)]
    pub rx_mini_max: Option<u32>,
    #[spec(3, "rx-jumbo-max", omit)]
    pub rx_jumbo_max: Option<u32>,
    #[spec(4, "tx-max", omit)]
    pub tx_max: Option<u32>,
    #[spec(5, "tx-push-buf-len-max", omit)]
    pub tx_push_buf_len_max: Option<u32>,
    #[spec(6, "rx", omit)]
    pub rx: Option<u32>,
    #[spec(7, "rx-mini", omit)]
    pub rx_mini: Option<u32>,
    #[spec(8, "rx-jumbo", omit)]
    pub rx_jumbo: Option<u32>,
    #[spec(9, "tx", omit)]
    pub tx: Option<u32>,
    #[spec(10, "rx-buf-len", omit)]
    pub rx_buf_len: Option<u32>,
    #[spec(11, "cqe-size", omit)]
    pub cqe_size: Option<u32>,
    #[spec(12, "tx-push", omit)]
    pub tx_push: Option<bool>,
    #[spec(13, "rx-push", omit)]
    pub rx_push: Option<bool>,
    #[spec(14, "tx-push-buf-len", omit)]
    pub tx_push_buf_len: Option<u32>,
    #[spec(15, "tcp-data-split", omit)]
    pub tcp_data_split: Option<bool>,
}

/// Part of a spec: `network.EthernetChannelsStatus`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.EthernetChannelsStatus")]
pub struct EthernetChannelsStatus {
    #[spec(1, "rx-max", omit)]
    pub rx_max: Option<u32>,
    #[spec(2, "tx-max", omit)]
    pub tx_max: Option<u32>,
    #[spec(3, "other-max", omit)]
    pub other_max: Option<u32>,
    #[spec(4, "combined-max", omit)]
    pub combined_max: Option<u32>,
    #[spec(5, "rx", omit)]
    pub rx: Option<u32>,
    #[spec(6, "tx", omit)]
    pub tx: Option<u32>,
    #[spec(7, "other", omit)]
    pub other: Option<u32>,
    #[spec(8, "combined", omit)]
    pub combined: Option<u32>,
}
