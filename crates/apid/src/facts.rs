//! The resources the gateway lives on, turned into its settings.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ichor_pki::CertInfo;
use ichor_resource::cluster::Member;
use ichor_resource::k8s::Endpoint;
use ichor_resource::network::{HostnameStatus, NodeAddress};
use ichor_resource::secrets::ApiCertificate;
use ichor_resource::value::Ip;
use ichor_rpc::ServerTls;
use ichor_rpc::members::Members;
use ichor_rpc::proxy::Proxy;
use ichor_rpc::route::Facts;
use ichor_rpc::tls::{ClientTls, ClientTlsError};

/// Certificates that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadCertificates {
    #[error("there is no server certificate")]
    NoServer,
    #[error("accepted authorities")]
    Accepted(#[source] ichor_pki::PkiError),
    #[error("server certificate")]
    Server(#[source] ichor_pki::PkiError),
    #[error("client certificate")]
    Client(#[source] ClientTlsError),
}

/// Puts new certificates to use, and gives what the node's own says. What is bad changes nothing.
pub(crate) fn apply_certificates(
    certificates: &ApiCertificate,
    tls: &ServerTls,
    proxy: &Proxy,
) -> Result<CertInfo, BadCertificates> {
    let server = certificates.server.as_ref().ok_or(BadCertificates::NoServer)?;
    let mut accepted = Vec::new();
    for authority in &certificates.accepted_cas {
        accepted.extend_from_slice(&authority.crt);
        accepted.push(b'\n');
    }
    // A worker has no client certificate, and so forwards nothing.
    let client = certificates.client.as_ref().filter(|pair| !pair.crt.is_empty() && !pair.key.is_empty());
    let identity = client
        .map(|pair| ClientTls::verified(&accepted, Some((&pair.crt, &pair.key))))
        .transpose()
        .map_err(BadCertificates::Client)?;
    let info = CertInfo::parse(&server.crt).map_err(BadCertificates::Server)?;
    tls.set_accepted(&accepted).map_err(BadCertificates::Accepted)?;
    tls.set_certificate(&server.crt, &server.key).map_err(BadCertificates::Server)?;
    proxy.set_identity(identity);
    Ok(info)
}

/// What the node knows of itself and of its cluster.
#[derive(Debug, Default)]
pub(crate) struct Knowledge {
    pub(crate) addresses: NodeAddress,
    pub(crate) host: HostnameStatus,
    /// The node's own certificate, whose names an administrator may have added to.
    pub(crate) certificate: Option<CertInfo>,
    /// By node name.
    pub(crate) members: BTreeMap<String, Member>,
    /// Addresses of control planes, whoever told of them.
    pub(crate) endpoints: Vec<Endpoint>,
}

impl Knowledge {
    /// The node's own addresses, host name and full name.
    pub(crate) fn facts(&self) -> Facts {
        Facts::new(self.own_addresses(), self.own_names())
    }

    fn own_addresses(&self) -> Vec<IpAddr> {
        self.addresses.addresses.iter().filter_map(|prefix| prefix.get()).map(|net| net.addr()).collect()
    }

    fn own_names(&self) -> [String; 2] {
        let host = self.host.hostname.clone();
        let full = match self.host.domainname.as_str() {
            "" => host.clone(),
            domain => format!("{host}.{domain}"),
        };
        [host, full]
    }

    /// Whom callers of every role may reach: the node itself, by everything its certificate names, the members that
    /// discovery found, and the control planes that Kubernetes tells of. Without discovery that leaves out workers.
    pub(crate) fn members(&self) -> Members {
        let mut members = Members::default();
        members.add(&self.own_addresses(), []);
        // Names of the node itself are resolved as any other: where it is reached may depend on who asks.
        members.add(&[], self.own_names().iter().map(String::as_str));
        if let Some(certificate) = &self.certificate {
            members.add(&certificate.addresses, []);
            members.add(&[], certificate.dns_names.iter().map(String::as_str));
        }
        for endpoint in &self.endpoints {
            members.add(&addresses(&endpoint.addresses), []);
        }
        for (node, member) in &self.members {
            let short = member.hostname.split('.').next().unwrap_or_default();
            members.add(&addresses(&member.addresses), [node.as_str(), short, &member.hostname]);
        }
        members
    }
}

fn addresses(found: &[Ip]) -> Vec<IpAddr> {
    found.iter().filter_map(Ip::get).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Ip {
        Ip::from(text.parse::<IpAddr>().unwrap())
    }

    fn own() -> Knowledge {
        let prefix = "10.5.0.2/24".parse::<ipnet::IpNet>().unwrap().into();
        Knowledge {
            addresses: NodeAddress { addresses: vec![prefix], ..NodeAddress::default() },
            host: HostnameStatus { hostname: "cp-1".into(), domainname: "example".into() },
            ..Knowledge::default()
        }
    }

    #[track_caller]
    fn check(knowledge: &Knowledge, members: &[&str], strangers: &[&str]) {
        let found = knowledge.members();
        for target in members {
            assert!(found.contains(target), "{target} is a member");
        }
        for target in strangers {
            assert!(!found.contains(target), "{target} is no member");
        }
    }

    #[test]
    fn without_discovery_the_node_and_the_control_planes_are_members() {
        let authority = ichor_pki::Authority::generate(
            ichor_pki::KeyAlgorithm::Ed25519,
            "talos",
            jiff::Timestamp::now(),
            ichor_pki::Authority::TEN_YEARS,
        )
        .unwrap();
        let leaf = ichor_pki::Leaf::server("cp-1")
            .with_names(["balancer.example"], ["192.0.2.1".parse::<IpAddr>().unwrap()]);
        let pair = authority.issue(&leaf, jiff::Timestamp::now()).unwrap();
        let knowledge = Knowledge {
            certificate: Some(CertInfo::parse(&pair.crt).unwrap()),
            endpoints: vec![Endpoint { addresses: vec![ip("10.5.0.3"), ip("fd00::3")] }],
            ..own()
        };
        let members =
            ["10.5.0.2", "cp-1", "CP-1.example", "10.5.0.3", "fd00::3", "192.0.2.1", "balancer.example"];
        check(&knowledge, &members, &["10.5.0.4", "10.5.0.0", "cp-2", "example", "127.0.0.1"]);
    }

    #[test]
    fn discovered_members_are_known_by_every_name() {
        let worker =
            Member { hostname: "w-1.example".into(), addresses: vec![ip("10.5.0.9")], ..Member::default() };
        let knowledge = Knowledge { members: [("worker-1".to_owned(), worker)].into(), ..own() };
        check(&knowledge, &["w-1.example", "w-1", "worker-1", "10.5.0.9", "cp-1"], &["w-2", "10.5.0.10"]);
        let found = knowledge.members();
        assert_eq!(found.addresses_of("worker-1"), ["10.5.0.9".parse::<IpAddr>().unwrap()]);
    }
}
