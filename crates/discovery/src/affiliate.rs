//! What a node tells about itself, and its sealed form.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ichor_pki::seal::{SealError, SealKey};
use ichor_wire::discovery::client as wire;
use ipnet::IpNet;
use prost::Message;

/// Where a node can be reached by WireGuard.
pub type Endpoint = SocketAddr;

/// A node as others see it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Affiliate {
    /// Its identity.
    pub node_id: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its full host name.
    pub hostname: String,
    /// Its name in Kubernetes.
    pub nodename: String,
    /// `controlplane` or `worker`.
    pub machine_type: String,
    /// Name and version of its operating system.
    pub operating_system: String,
    /// Its part in KubeSpan.
    pub kubespan: Option<KubeSpan>,
    /// Set on control planes.
    pub control_plane: Option<ControlPlane>,
    /// Where it can be reached by WireGuard; these travel apart from the rest.
    pub endpoints: Vec<Endpoint>,
}

/// A node's part in KubeSpan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeSpan {
    /// The WireGuard key.
    pub public_key: String,
    /// The address inside.
    pub address: IpAddr,
    /// What else is reached through it.
    pub additional_addresses: Vec<IpNet>,
}

/// What a control plane serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlPlane {
    /// The port of its Kubernetes API.
    pub api_server_port: u16,
}

/// Why what another node told cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Not sealed by a node of this cluster.
    #[error(transparent)]
    Sealed(#[from] SealError),
    /// Not the message it should be.
    #[error(transparent)]
    Message(#[from] prost::DecodeError),
    /// An address with a length no address has.
    #[error("an address of {0} bytes")]
    Address(usize),
    /// A prefix longer than its address.
    #[error("a prefix of {0} bits")]
    Prefix(u32),
    /// A port above 65535.
    #[error("port {0}")]
    Port(u32),
}

impl Affiliate {
    /// The sealed form, without the endpoints.
    pub fn seal(&self, key: &SealKey) -> Result<Vec<u8>, SealError> {
        key.seal(&self.to_wire().encode_to_vec())
    }

    /// Opens what a node told, and the endpoints known of it. An endpoint that cannot be read is left out: anybody
    /// may tell of endpoints, so one bad one must not hide the node.
    pub fn open(key: &SealKey, data: &[u8], endpoints: &[Vec<u8>]) -> Result<Self, OpenError> {
        let mut affiliate = Self::from_wire(wire::Affiliate::decode(&key.open(data)?[..])?)?;
        affiliate.endpoints = endpoints.iter().filter_map(|sealed| open_endpoint(key, sealed).ok()).collect();
        Ok(affiliate)
    }

    fn to_wire(&self) -> wire::Affiliate {
        wire::Affiliate {
            node_id: self.node_id.clone(),
            addresses: self.addresses.iter().copied().map(octets).collect(),
            hostname: self.hostname.clone(),
            nodename: self.nodename.clone(),
            machine_type: self.machine_type.clone(),
            operating_system: self.operating_system.clone(),
            kubespan: self.kubespan.as_ref().map(|span| wire::KubeSpan {
                public_key: span.public_key.clone(),
                address: octets(span.address),
                additional_addresses: span
                    .additional_addresses
                    .iter()
                    .map(|net| wire::IpPrefix { ip: octets(net.addr()), bits: net.prefix_len().into() })
                    .collect(),
            }),
            control_plane: self
                .control_plane
                .map(|plane| wire::ControlPlane { api_server_port: plane.api_server_port.into() }),
        }
    }

    fn from_wire(wire: wire::Affiliate) -> Result<Self, OpenError> {
        Ok(Self {
            node_id: wire.node_id,
            addresses: wire.addresses.iter().map(|bytes| address(bytes)).collect::<Result<_, _>>()?,
            hostname: wire.hostname,
            nodename: wire.nodename,
            machine_type: wire.machine_type,
            operating_system: wire.operating_system,
            kubespan: wire.kubespan.map(open_kubespan).transpose()?,
            control_plane: wire
                .control_plane
                .map(|plane| {
                    Ok::<_, OpenError>(ControlPlane { api_server_port: port(plane.api_server_port)? })
                })
                .transpose()?,
            endpoints: Vec::new(),
        })
    }
}

fn open_kubespan(span: wire::KubeSpan) -> Result<KubeSpan, OpenError> {
    let prefix = |prefix: &wire::IpPrefix| {
        let bits = u8::try_from(prefix.bits).map_err(|_| OpenError::Prefix(prefix.bits))?;
        IpNet::new(address(&prefix.ip)?, bits).map_err(|_| OpenError::Prefix(prefix.bits))
    };
    Ok(KubeSpan {
        public_key: span.public_key,
        address: address(&span.address)?,
        additional_addresses: span
            .additional_addresses
            .iter()
            .map(prefix)
            .collect::<Result<_, OpenError>>()?,
    })
}

/// Seals an endpoint so that equal ones look equal to the service.
pub fn seal_endpoint(key: &SealKey, endpoint: Endpoint) -> Result<Vec<u8>, SealError> {
    let message = wire::Endpoint { ip: octets(endpoint.ip()), port: endpoint.port().into() };
    key.seal_same(&message.encode_to_vec())
}

/// Opens an endpoint.
pub fn open_endpoint(key: &SealKey, sealed: &[u8]) -> Result<Endpoint, OpenError> {
    let message = wire::Endpoint::decode(&key.open_same(sealed)?[..])?;
    Ok(SocketAddr::new(address(&message.ip)?, port(message.port)?))
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address.to_canonical() {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// An address of 4 or 16 bytes.
pub(crate) fn address(bytes: &[u8]) -> Result<IpAddr, OpenError> {
    match (<[u8; 4]>::try_from(bytes), <[u8; 16]>::try_from(bytes)) {
        (Ok(four), _) => Ok(Ipv4Addr::from(four).into()),
        (_, Ok(sixteen)) => Ok(IpAddr::V6(Ipv6Addr::from(sixteen)).to_canonical()),
        _ => Err(OpenError::Address(bytes.len())),
    }
}

fn port(number: u32) -> Result<u16, OpenError> {
    u16::try_from(number).map_err(|_| OpenError::Port(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> SealKey {
        SealKey::new(&(0..32).collect::<Vec<u8>>()).unwrap()
    }

    #[test]
    fn a_node_is_the_same_on_the_other_side() {
        let node = Affiliate {
            node_id: "n".into(),
            addresses: vec!["10.5.0.2".parse().unwrap(), "2001:db8::2".parse().unwrap()],
            hostname: "a.example".into(),
            nodename: "a".into(),
            machine_type: "controlplane".into(),
            operating_system: "Talos (v1.12.1)".into(),
            kubespan: Some(KubeSpan {
                public_key: "key".into(),
                address: "fd00::1".parse().unwrap(),
                additional_addresses: vec!["10.244.1.0/24".parse().unwrap()],
            }),
            control_plane: Some(ControlPlane { api_server_port: 6443 }),
            endpoints: vec!["10.5.0.2:51820".parse().unwrap()],
        };
        let endpoint = seal_endpoint(&key(), node.endpoints[0]).unwrap();
        let sealed = node.seal(&key()).unwrap();
        let open = Affiliate::open(&key(), &sealed, &[endpoint, vec![1; 16], vec![1; 3]]).unwrap();
        assert_eq!(open, node);
    }

    #[test]
    fn endpoints_have_the_known_form() {
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let v6 = seal_endpoint(&key(), "[2001:db8::1]:51820".parse().unwrap()).unwrap();
        assert_eq!(hex(v6), "e2702633ca89239d5ee036a316dde237d604c19a74d2f45c1e624c2d38c4cca0");
    }

    #[test]
    fn what_no_node_would_say_is_an_error() {
        let message = |affiliate: wire::Affiliate| {
            Affiliate::open(&key(), &key().seal(&affiliate.encode_to_vec()).unwrap(), &[])
                .unwrap_err()
                .to_string()
        };
        let bad = wire::Affiliate { addresses: vec![vec![1; 5]], ..Default::default() };
        assert_eq!(message(bad), "an address of 5 bytes");
        let plane = Some(wire::ControlPlane { api_server_port: 70_000 });
        assert_eq!(message(wire::Affiliate { control_plane: plane, ..Default::default() }), "port 70000");
        assert!(Affiliate::open(&key(), b"nothing", &[]).is_err());
    }
}
