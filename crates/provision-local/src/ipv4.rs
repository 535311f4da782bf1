//! The IPv4 side of a cluster: machines have one IPv4 address each, and the host reaches it through its loopback.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use ichor_provision::{Cluster, Machine, ProvisionError};
use ipnet::{IpNet, Ipv4Net};

/// The port of the registry, at the gateway.
const REGISTRY_PORT: u16 = 5000;

const UNSUPPORTED: ProvisionError = ProvisionError::UnsupportedNetwork;

/// The one network that is asked for, when one is.
pub fn wanted(cidrs: &[IpNet]) -> Result<Option<Ipv4Net>, ProvisionError> {
    match cidrs {
        [] => Ok(None),
        [IpNet::V4(cidr)] => Ok(Some(*cidr)),
        _ => Err(UNSUPPORTED),
    }
}

/// The network of a cluster.
pub fn network(cluster: &Cluster) -> Result<Ipv4Net, ProvisionError> {
    wanted(&cluster.network.cidrs)?.ok_or(UNSUPPORTED)
}

/// The address of the host's side.
pub fn gateway(cluster: &Cluster) -> Result<Ipv4Addr, ProvisionError> {
    match cluster.network.gateways.first() {
        Some(IpAddr::V4(gateway)) => Ok(*gateway),
        _ => Err(UNSUPPORTED),
    }
}

/// The address of a machine.
pub fn address(machine: &Machine) -> Result<Ipv4Addr, ProvisionError> {
    match machine.addresses.first() {
        Some(IpAddr::V4(address)) => Ok(*address),
        _ => Err(UNSUPPORTED),
    }
}

/// The addresses of machines that have one.
pub fn addresses<'a>(machines: impl Iterator<Item = &'a Machine>) -> Vec<Ipv4Addr> {
    machines.filter_map(|machine| address(machine).ok()).collect()
}

/// The endpoint of a cluster whose machine is gone.
pub fn orphaned_endpoint(cluster: &Cluster) -> Option<Ipv4Addr> {
    match cluster.orphaned_endpoint() {
        Some(IpAddr::V4(address)) => Some(address),
        _ => None,
    }
}

/// Where machines find the registry of container images, if there is one.
pub fn registry(cluster: &Cluster) -> Option<SocketAddrV4> {
    let gateway = gateway(cluster).ok()?;
    cluster.images.as_ref().map(|_| SocketAddrV4::new(gateway, REGISTRY_PORT))
}

/// The address on the host's loopback that leads to an address of a machine: `10.5.0.2` is `127.5.0.2`.
pub fn loopback(address: Ipv4Addr) -> Ipv4Addr {
    let [_, second, third, fourth] = address.octets();
    Ipv4Addr::new(127, second, third, fourth)
}

/// The hardware address of an interface, the same at each boot: locally administered, its number, then the machine's
/// address.
pub fn hardware(address: Ipv4Addr, interface: u8) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    [0x02, 0x1c_u8.wrapping_add(interface), a, b, c, d]
}
