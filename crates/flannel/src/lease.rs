//! What nodes say of themselves: annotations and networks. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ichor_net::neighbour::Mac;
use ipnet::IpNet;
use serde_json::{Value, json};

/// One node, as far as its neighbours care.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lease {
    /// Addresses of its pods.
    pub subnets: Vec<IpNet>,
    /// How it is joined: `vxlan`, `host-gw`; empty when it does not say.
    pub backend: String,
    /// Where packets for it go.
    pub public: Option<Ipv4Addr>,
    /// The same for IPv6.
    pub public6: Option<Ipv6Addr>,
    /// Its end of the overlay.
    pub vtep: Option<Vtep>,
    /// Its end of the overlay over IPv6.
    pub vtep6: Option<Vtep>,
    /// An administrator's word on where packets for it go.
    pub overwrite: Option<Ipv4Addr>,
    /// The same for IPv6.
    pub overwrite6: Option<Ipv6Addr>,
    /// Its addresses within the cluster.
    pub internal: Vec<IpAddr>,
    /// Its conditions say that the network is there.
    pub available: bool,
}

/// An end of the overlay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vtep {
    /// Number of the network.
    pub id: u32,
    /// Hardware address.
    pub mac: Mac,
}

impl Lease {
    /// Reads a node.
    pub fn of(node: &Value, prefix: &str) -> Self {
        let note = |name: &str| node["metadata"]["annotations"][format!("{prefix}/{name}")].as_str();
        let cidrs = node["spec"]["podCIDRs"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut subnets: Vec<IpNet> = cidrs.iter().filter_map(|cidr| cidr.as_str()?.parse().ok()).collect();
        if subnets.is_empty() {
            subnets.extend(node["spec"]["podCIDR"].as_str().and_then(|cidr| cidr.parse::<IpNet>().ok()));
        }
        let member = note("kube-subnet-manager") == Some("true");
        let addresses = node["status"]["addresses"].as_array().map(Vec::as_slice).unwrap_or_default();
        let conditions = node["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        Self {
            subnets: subnets.iter().map(IpNet::trunc).collect(),
            backend: note("backend-type").filter(|_| member).unwrap_or_default().to_owned(),
            public: note("public-ip").and_then(|text| text.parse().ok()),
            public6: note("public-ipv6").and_then(|text| text.parse().ok()),
            vtep: note("backend-data").and_then(vtep),
            vtep6: note("backend-v6-data").and_then(vtep),
            overwrite: note("public-ip-overwrite").and_then(|text| text.parse().ok()),
            overwrite6: note("public-ipv6-overwrite").and_then(|text| text.parse().ok()),
            internal: addresses
                .iter()
                .filter(|address| address["type"] == "InternalIP")
                .filter_map(|address| address["address"].as_str()?.parse().ok())
                .collect(),
            available: conditions
                .iter()
                .any(|condition| condition["type"] == CONDITION && condition["status"] == "False"),
        }
    }

    /// The part of its network with addresses of this family.
    pub fn subnet(&self, v6: bool) -> Option<IpNet> {
        self.subnets.iter().find(|net| net.addr().is_ipv6() == v6).copied()
    }

    /// Where packets for it go.
    pub fn public(&self, v6: bool) -> Option<IpAddr> {
        if v6 { self.public6.map(IpAddr::V6) } else { self.public.map(IpAddr::V4) }
    }

    /// Its end of the overlay.
    pub fn vtep(&self, v6: bool) -> Option<Vtep> {
        if v6 { self.vtep6 } else { self.vtep }
    }

    /// The annotations that say all this, for a merge patch.
    pub fn annotations(&self, prefix: &str) -> Value {
        let data = |vtep: Option<Vtep>| match vtep {
            Some(vtep) => json!({ "VNI": vtep.id, "VtepMAC": vtep.mac.to_string() }).to_string(),
            None => "null".to_owned(),
        };
        let mut notes = json!({
            format!("{prefix}/backend-type"): self.backend,
            format!("{prefix}/kube-subnet-manager"): "true",
        });
        if let Some(public) = self.public {
            notes[format!("{prefix}/backend-data")] = json!(data(self.vtep));
            notes[format!("{prefix}/public-ip")] = json!(public.to_string());
        }
        if let Some(public) = self.public6 {
            notes[format!("{prefix}/backend-v6-data")] = json!(data(self.vtep6));
            notes[format!("{prefix}/public-ipv6")] = json!(public.to_string());
        }
        notes
    }

    /// Whether a node announces the same.
    pub fn announces(&self, other: &Self) -> bool {
        let said =
            |lease: &Self| (lease.backend.clone(), lease.public, lease.public6, lease.vtep, lease.vtep6);
        said(self) == said(other)
    }
}

/// The condition of a node that says whether its network is there.
pub const CONDITION: &str = "NetworkUnavailable";

/// The condition that says that the network is there; none when it is said already.
pub fn condition(lease: &Lease, now: &str) -> Option<Value> {
    (!lease.available).then(|| {
        json!({
            "type": CONDITION,
            "status": "False",
            "reason": "FlannelIsUp",
            "message": "Flannel is running on this node",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        })
    })
}

fn vtep(text: &str) -> Option<Vtep> {
    let json: Value = serde_json::from_str(text).ok()?;
    let id = json["VNI"].as_u64().and_then(|id| u32::try_from(id).ok())?;
    Some(Vtep { id, mac: json["VtepMAC"].as_str()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "flannel.alpha.coreos.com";

    #[test]
    fn a_node_says_what_it_was_told_to_say() {
        let lease = Lease {
            subnets: vec!["10.244.1.0/24".parse().unwrap()],
            backend: "vxlan".into(),
            public: Some("10.5.0.2".parse().unwrap()),
            vtep: Some(Vtep { id: 1, mac: "0a:00:00:00:00:01".parse().unwrap() }),
            ..Lease::default()
        };
        let notes = lease.annotations(PREFIX);
        assert_eq!(
            notes,
            json!({
                "flannel.alpha.coreos.com/backend-type": "vxlan",
                "flannel.alpha.coreos.com/kube-subnet-manager": "true",
                "flannel.alpha.coreos.com/backend-data": r#"{"VNI":1,"VtepMAC":"0a:00:00:00:00:01"}"#,
                "flannel.alpha.coreos.com/public-ip": "10.5.0.2",
            })
        );
        let node = json!({ "metadata": { "annotations": notes }, "spec": { "podCIDR": "10.244.1.0/24" } });
        assert_eq!(Lease::of(&node, PREFIX), lease);
        assert!(lease.announces(&Lease::of(&node, PREFIX)));
    }

    #[test]
    fn a_node_without_annotations_is_no_member_yet() {
        let node = json!({
            "spec": { "podCIDRs": ["10.244.2.0/24", "fd00:2::/64", "nonsense"] },
            "status": {
                "addresses": [{ "type": "Hostname", "address": "a" }, { "type": "InternalIP", "address": "10.5.0.3" }],
                "conditions": [{ "type": "Ready" }, { "type": "NetworkUnavailable", "status": "True" }],
            },
        });
        let lease = Lease::of(&node, PREFIX);
        assert_eq!((lease.backend.as_str(), lease.vtep), ("", None));
        assert_eq!(lease.subnet(true).unwrap().to_string(), "fd00:2::/64");
        assert_eq!(lease.internal, ["10.5.0.3".parse::<IpAddr>().unwrap()]);
        assert_eq!(condition(&lease, "now").unwrap()["status"], "False");
        assert_eq!(condition(&Lease { available: true, ..lease }, "now"), None);
        assert_eq!(Lease::of(&Value::Null, PREFIX), Lease::default());
    }
}
