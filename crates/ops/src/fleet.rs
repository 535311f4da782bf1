//! The whole cluster as an engine sees it: its machines, the way to them and to their Kubernetes.

use ichor_client::{Client, Routed};
use ichor_health::{Access, Cluster, Lazy, Topology};
use ichor_rpc::Endpoint;

use crate::error::{Error, Problem, Result};

/// The port of the Kubernetes API on control planes.
pub const KUBERNETES_PORT: u16 = 6443;

/// A cluster of machines that can be asked, and its Kubernetes.
pub type Fleet = Cluster<Routed, Lazy<Routed>>;

/// Which machines a cluster has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Members {
    /// Control planes by address.
    pub control_planes: Vec<String>,
    /// Workers by address.
    pub workers: Vec<String>,
}

/// The way to the Kubernetes of a cluster.
#[derive(Debug, Clone, Default)]
pub struct Route {
    /// The only place to ask, when one was named.
    pub endpoint: Option<Endpoint>,
    /// Hosts that are tried on the usual port when the kubeconfig leads nowhere, as it does outside of the network of
    /// local clusters.
    pub hosts: Vec<String>,
}

/// The way to the machines behind a client.
pub fn access(client: &Client) -> Access<Routed> {
    Access::new(client.routed(), Vec::new())
}

/// The cluster behind a client: the named members, else those that `asked` (or the endpoint, when it is empty) knows.
pub async fn open(client: &Client, members: &Members, asked: &str, route: &Route) -> Result<Fleet> {
    let access = access(client);
    let topology = if members.control_planes.is_empty() && members.workers.is_empty() {
        discover(&access, asked).await?
    } else {
        Topology::named(&members.control_planes, &members.workers)
    };
    Ok(over(access, topology, route))
}

/// A cluster of known machines.
pub fn over(access: Access<Routed>, topology: Topology, route: &Route) -> Fleet {
    let others = route.hosts.iter().map(|host| Endpoint::new(host.clone(), KUBERNETES_PORT)).collect();
    let control_planes = topology.control_planes().iter().map(|machine| machine.address.clone()).collect();
    let kubernetes = Lazy::new(access.clone(), control_planes, route.endpoint.clone(), others);
    Cluster { topology, access, kubernetes }
}

async fn discover(access: &Access<Routed>, asked: &str) -> Result<Topology> {
    let members = access.list(asked, "cluster", "Members.cluster.talos.dev").await;
    let members = members.map_err(|status| Error::call("error listing members", status))?;
    let topology = Topology::discovered(members.iter().map(|member| &member.spec));
    if topology.all().is_empty() {
        return Err(Problem::NoMembers.into());
    }
    Ok(topology)
}

/// Reads `https://host:port`, `host:port` or `host`.
pub fn parse_endpoint(text: &str) -> Result<Endpoint> {
    let bad = || Problem::BadEndpoint(text.to_owned());
    if text.starts_with("http://") {
        return Err(bad().into());
    }
    let rest = text.strip_prefix("https://").unwrap_or(text).trim_end_matches('/');
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            (host, port.parse().map_err(|_| bad())?)
        }
        _ => (rest, KUBERNETES_PORT),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() || host.contains('/') {
        return Err(bad().into());
    }
    Ok(Endpoint::new(host, port))
}

#[cfg(test)]
mod tests {
    use super::parse_endpoint;

    #[test]
    fn addresses_of_the_api_are_read_as_people_write_them() {
        for (text, expected) in [
            ("https://10.5.0.2:6443", Some("10.5.0.2:6443")),
            ("https://lab.example.org/", Some("lab.example.org:6443")),
            ("127.5.0.2", Some("127.5.0.2:6443")),
            ("[fd00::1]:443", Some("[fd00::1]:443")),
            ("fd00::1", Some("[fd00::1]:6443")),
            ("http://10.5.0.2", None),
            ("https://", None),
            ("https://a:b", None),
        ] {
            assert_eq!(
                parse_endpoint(text).ok().map(|endpoint| endpoint.to_string()).as_deref(),
                expected,
                "{text}"
            );
        }
    }
}
