//! `net-conf.json`: which networks pods are in and how nodes are joined. Pure.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde_json::Value;

/// The port that Linux used before one was assigned; the original's default.
const PORT_DEFAULT: u16 = 8472;
const ID_DEFAULT: u32 = 1;
const ID_MAX: u64 = (1 << 24) - 1;

/// The network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetConf {
    /// Addresses of all pods.
    pub network: Option<Ipv4Net>,
    /// The same for IPv6.
    pub network6: Option<Ipv6Net>,
    /// How nodes are joined.
    pub backend: Backend,
}

/// How nodes are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// Packets travel in packets.
    Vxlan {
        /// Number of the network.
        id: u32,
        /// UDP port.
        port: u16,
        /// Largest packet, where the link's is not to be used.
        mtu: Option<u32>,
        /// Neighbours are reached without packing.
        direct: bool,
    },
    /// All nodes are neighbours and need routes only.
    HostGateway,
}

impl Backend {
    /// The name nodes announce.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vxlan { .. } => "vxlan",
            Self::HostGateway => "host-gw",
        }
    }
}

/// A description that cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum BadNetConf {
    /// No JSON.
    #[error("not JSON")]
    Json(#[from] serde_json::Error),
    /// A value is not what it should be.
    #[error("{0}")]
    Value(String),
}

impl NetConf {
    /// Reads the description.
    pub fn parse(text: &str) -> Result<Self, BadNetConf> {
        let json: Value = serde_json::from_str(text)?;
        let bad = |text: String| BadNetConf::Value(text);
        let on = |key: &str, default: bool| json[key].as_bool().unwrap_or(default);
        let net = |key: &str| match json[key].as_str() {
            None | Some("") => Ok::<_, BadNetConf>(None),
            Some(text) => {
                let net: IpNet = text.parse().map_err(|_| bad(format!("{key}: {text} is not a network")))?;
                Ok(Some(net.trunc()))
            }
        };
        let network = match net("Network")?.filter(|_| on("EnableIPv4", true)) {
            None => None,
            Some(IpNet::V4(net)) => Some(net),
            Some(IpNet::V6(net)) => return Err(bad(format!("Network: {net} belongs into IPv6Network"))),
        };
        let network6 = match net("IPv6Network")?.filter(|_| on("EnableIPv6", false)) {
            None => None,
            Some(IpNet::V6(net)) => Some(net),
            Some(IpNet::V4(net)) => return Err(bad(format!("IPv6Network: {net} belongs into Network"))),
        };
        if network.is_none() && network6.is_none() {
            return Err(bad("there is neither a Network nor an IPv6Network with EnableIPv6".to_owned()));
        }
        Ok(Self { network, network6, backend: backend(&json["Backend"])? })
    }

    /// The networks there are.
    pub fn networks(&self) -> impl Iterator<Item = IpNet> {
        self.network.map(IpNet::V4).into_iter().chain(self.network6.map(IpNet::V6))
    }
}

fn backend(json: &Value) -> Result<Backend, BadNetConf> {
    let number = |key: &str, max: u64| match &json[key] {
        Value::Null => Ok(None),
        value => match value.as_u64().filter(|number| *number <= max) {
            Some(number) => Ok(Some(number)),
            None => Err(BadNetConf::Value(format!("Backend.{key}: {value} is not a number up to {max}"))),
        },
    };
    match json["Type"].as_str() {
        Some("vxlan") => Ok(Backend::Vxlan {
            id: number("VNI", ID_MAX)?.map_or(ID_DEFAULT, |id| id as u32),
            port: number("Port", 65535)?.filter(|port| *port != 0).map_or(PORT_DEFAULT, |port| port as u16),
            mtu: number("MTU", 65535)?.filter(|mtu| *mtu != 0).map(|mtu| mtu as u32),
            direct: json["DirectRouting"].as_bool().unwrap_or(false),
        }),
        Some("host-gw") => Ok(Backend::HostGateway),
        Some(other) => {
            Err(BadNetConf::Value(format!("Backend.Type: {other} is not supported; vxlan and host-gw are")))
        }
        None => Err(BadNetConf::Value("Backend.Type is missing; vxlan and host-gw are supported".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_and_backends_are_read() {
        let conf =
            NetConf::parse(r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","Port":4789}}"#).unwrap();
        assert_eq!(
            conf,
            NetConf {
                network: Some("10.244.0.0/16".parse().unwrap()),
                network6: None,
                backend: Backend::Vxlan { id: 1, port: 4789, mtu: None, direct: false },
            }
        );
        let dual = r#"{"Network":"10.0.0.0/8","IPv6Network":"fd00::/56","EnableIPv6":true,"Backend":{"Type":"host-gw"}}"#;
        let nets: Vec<_> = NetConf::parse(dual).unwrap().networks().map(|net| net.to_string()).collect();
        assert_eq!(nets, ["10.0.0.0/8", "fd00::/56"]);
        let six =
            r#"{"EnableIPv4":false,"IPv6Network":"fd00::/56","EnableIPv6":true,"Backend":{"Type":"vxlan"}}"#;
        let six = NetConf::parse(six).unwrap();
        assert_eq!((six.network, six.backend.name()), (None, "vxlan"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, says) in [
            ("{", "not JSON"),
            (r#"{"Network":"x","Backend":{}}"#, "Network: x is not a network"),
            (r#"{"Network":"fd00::/8"}"#, "Network: fd00::/8 belongs into IPv6Network"),
            ("{}", "there is neither a Network nor an IPv6Network with EnableIPv6"),
            (r#"{"Network":"10.0.0.0/8"}"#, "Backend.Type is missing; vxlan and host-gw are supported"),
            (
                r#"{"Network":"10.0.0.0/8","Backend":{"Type":"udp"}}"#,
                "Backend.Type: udp is not supported; vxlan and host-gw are",
            ),
            (
                r#"{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan","VNI":99999999}}"#,
                "Backend.VNI: 99999999 is not a number up to 16777215",
            ),
        ] {
            assert_eq!(NetConf::parse(text).unwrap_err().to_string(), says);
        }
    }
}
