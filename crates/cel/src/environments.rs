//! The environments in which a configuration has expressions.

use crate::{
    env::{Env, Function, Kind, Message, Type},
    value::Value,
};

const TEXTS: Kind = Kind::List(&Kind::String);

/// A disk.
pub static DISK: Message = Message {
    name: "talos.resource.definitions.block.DiskSpec",
    fields: &[
        ("size", Kind::Uint),
        ("io_size", Kind::Uint),
        ("sector_size", Kind::Uint),
        ("readonly", Kind::Bool),
        ("model", Kind::String),
        ("serial", Kind::String),
        ("modalias", Kind::String),
        ("wwid", Kind::String),
        ("bus_path", Kind::String),
        ("sub_system", Kind::String),
        ("transport", Kind::String),
        ("rotational", Kind::Bool),
        ("cdrom", Kind::Bool),
        ("dev_path", Kind::String),
        ("pretty_size", Kind::String),
        ("secondary_disks", TEXTS),
        ("uuid", Kind::String),
        ("symlinks", TEXTS),
    ],
};

/// A volume that was found on a disk.
pub static VOLUME: Message = Message {
    name: "talos.resource.definitions.block.DiscoveredVolumeSpec",
    fields: &[
        ("size", Kind::Uint),
        ("sector_size", Kind::Uint),
        ("io_size", Kind::Uint),
        ("name", Kind::String),
        ("uuid", Kind::String),
        ("label", Kind::String),
        ("block_size", Kind::Uint),
        ("filesystem_block_size", Kind::Uint),
        ("probed_size", Kind::Uint),
        ("partition_uuid", Kind::String),
        ("partition_type", Kind::String),
        ("partition_label", Kind::String),
        ("partition_index", Kind::Uint),
        ("type", Kind::String),
        ("device_path", Kind::String),
        ("parent", Kind::String),
        ("dev_path", Kind::String),
        ("parent_dev_path", Kind::String),
        ("pretty_size", Kind::String),
        ("offset", Kind::Uint),
    ],
};

static VLAN: Message = Message {
    name: "talos.resource.definitions.network.VLANSpec",
    fields: &[("vid", Kind::Uint), ("protocol", Kind::Int)],
};

static STP: Message =
    Message { name: "talos.resource.definitions.network.STPSpec", fields: &[("enabled", Kind::Bool)] };

static BRIDGE_VLAN: Message = Message {
    name: "talos.resource.definitions.network.BridgeVLANSpec",
    fields: &[("filtering_enabled", Kind::Bool)],
};

static BRIDGE: Message = Message {
    name: "talos.resource.definitions.network.BridgeMasterSpec",
    fields: &[("stp", Kind::Message(&STP)), ("vlan", Kind::Message(&BRIDGE_VLAN))],
};

static BOND: Message = Message {
    name: "talos.resource.definitions.network.BondMasterSpec",
    fields: &[
        ("mode", Kind::Int),
        ("hash_policy", Kind::Int),
        ("lacp_rate", Kind::Int),
        ("arp_validate", Kind::Int),
        ("arp_all_targets", Kind::Int),
        ("primary_index", Kind::Uint),
        ("primary_reselect", Kind::Int),
        ("fail_over_mac", Kind::Int),
        ("ad_select", Kind::Int),
        ("mii_mon", Kind::Uint),
        ("up_delay", Kind::Uint),
        ("down_delay", Kind::Uint),
        ("arp_interval", Kind::Uint),
        ("resend_igmp", Kind::Uint),
        ("min_links", Kind::Uint),
        ("lp_interval", Kind::Uint),
        ("packets_per_slave", Kind::Uint),
        ("num_peer_notif", Kind::Uint),
        ("tlb_dynamic_lb", Kind::Uint),
        ("all_slaves_active", Kind::Uint),
        ("use_carrier", Kind::Bool),
        ("ad_actor_sys_prio", Kind::Uint),
        ("ad_user_port_key", Kind::Uint),
        ("peer_notify_delay", Kind::Uint),
        ("adlacp_active", Kind::Int),
        ("missed_max", Kind::Uint),
    ],
};

static WIREGUARD: Message = Message {
    name: "talos.resource.definitions.network.WireguardSpec",
    fields: &[
        ("private_key", Kind::String),
        ("public_key", Kind::String),
        ("listen_port", Kind::Int),
        ("firewall_mark", Kind::Int),
    ],
};

/// A network link.
pub static LINK: Message = Message {
    name: "talos.resource.definitions.network.LinkStatusSpec",
    fields: &[
        ("index", Kind::Uint),
        ("type", Kind::Int),
        ("link_index", Kind::Uint),
        ("flags", Kind::Uint),
        ("hardware_addr", Kind::Bytes),
        ("broadcast_addr", Kind::Bytes),
        ("mtu", Kind::Uint),
        ("queue_disc", Kind::String),
        ("master_index", Kind::Uint),
        ("operational_state", Kind::Int),
        ("kind", Kind::String),
        ("slave_kind", Kind::String),
        ("bus_path", Kind::String),
        ("pciid", Kind::String),
        ("driver", Kind::String),
        ("driver_version", Kind::String),
        ("firmware_version", Kind::String),
        ("product_id", Kind::String),
        ("vendor_id", Kind::String),
        ("product", Kind::String),
        ("vendor", Kind::String),
        ("link_state", Kind::Bool),
        ("speed_megabits", Kind::Int),
        ("port", Kind::Int),
        ("duplex", Kind::Int),
        ("vlan", Kind::Message(&VLAN)),
        ("bridge_master", Kind::Message(&BRIDGE)),
        ("bond_master", Kind::Message(&BOND)),
        ("wireguard", Kind::Message(&WIREGUARD)),
        ("permanent_addr", Kind::Bytes),
        ("alias", Kind::String),
        ("alt_names", TEXTS),
    ],
};

/// Units of sizes.
fn units() -> Vec<(&'static str, Value)> {
    let binary = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].into_iter().zip((1..=6).map(|n| 1024u64.pow(n)));
    let decimal = ["kB", "MB", "GB", "TB", "PB", "EB"].into_iter().zip((1..=6).map(|n| 1000u64.pow(n)));
    binary.chain(decimal).map(|(name, value)| (name, Value::Uint(value))).collect()
}

/// Classes of control groups.
fn classes() -> impl Iterator<Item = (&'static str, Value)> {
    ["Besteffort", "Burstable", "Guaranteed", "Podruntime", "System"].into_iter().zip((0..).map(Value::Int))
}

/// Selects disks: `disk`, `system_disk`, `glob`.
pub fn disk() -> Env {
    Env::new()
        .variable("disk", Type::Message(&DISK))
        .variable("system_disk", Type::Bool)
        .constants(units())
        .function(Function::Glob)
}

/// Selects volumes: `volume`, `disk`.
pub fn volume() -> Env {
    Env::new()
        .variable("volume", Type::Message(&VOLUME))
        .variable("disk", Type::Message(&DISK))
        .constants(units())
}

/// Selects links: `link`, `glob`, `mac`.
pub fn link() -> Env {
    Env::new().variable("link", Type::Message(&LINK)).function(Function::Glob).function(Function::Mac)
}

/// Says when memory is short: pressure averages, their changes, time since the last time.
pub fn oom_trigger() -> Env {
    const NAMES: [&str; 16] = [
        "memory_some_avg10",
        "memory_some_avg60",
        "memory_some_avg300",
        "memory_some_total",
        "memory_full_avg10",
        "memory_full_avg60",
        "memory_full_avg300",
        "memory_full_total",
        "d_memory_some_avg10",
        "d_memory_some_avg60",
        "d_memory_some_avg300",
        "d_memory_some_total",
        "d_memory_full_avg10",
        "d_memory_full_avg60",
        "d_memory_full_avg300",
        "d_memory_full_total",
    ];
    let env = NAMES.into_iter().fold(Env::new(), |env, name| env.variable(name, Type::Double));
    env.variable("time_since_trigger", Type::Duration).constants(units()).constants(classes())
}

/// Ranks control groups when memory is short.
pub fn oom_ranking() -> Env {
    let optional = || Type::Optional(Box::new(Type::Uint));
    Env::new()
        .variable("memory_max", optional())
        .variable("memory_current", optional())
        .variable("memory_peak", optional())
        .variable("path", Type::String)
        .variable("class", Type::Int)
        .constants(units())
        .constants(classes())
}
