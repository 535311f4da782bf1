//! The whole cluster behind a command: its machines, the way to them and to their Kubernetes.

use ichor_client::Routed;
use ichor_health::{Access, Cluster, Lazy, Topology};
use ichor_rpc::Endpoint;

use crate::explain;
use crate::failure::Failure;
use crate::parse::Call;
use crate::profile;
use crate::session::Session;

/// The port of the Kubernetes API on control planes.
pub const KUBERNETES_PORT: u16 = 6443;

/// A cluster of machines that can be asked, and its Kubernetes.
pub type Fleet = Cluster<Routed, Lazy<Routed>>;

/// Connects as the command line says; machines need not be named.
pub async fn connect(call: &Call) -> Result<(Session, Vec<String>), Failure> {
    let loaded = profile::load(call)?;
    let client = loaded.client()?;
    crate::term::patient("connecting", client.connect())
        .await
        .map_err(|error| explain::unreachable(&error))?;
    let hosts = loaded.hosts();
    Ok((Session::over_client(client, loaded.nodes.clone(), true), hosts))
}

/// The cluster: machines as named by flags, else the members that the first named machine (or the endpoint)
/// knows.
pub async fn open(
    call: &Call,
    session: &Session,
    hosts: &[String],
    endpoint: &str,
) -> Result<Fleet, Failure> {
    let access = access(session);
    let mut control_planes = call.list("control-plane-nodes");
    control_planes.extend(call.some_text("init-node").map(str::to_owned));
    let workers = call.list("worker-nodes");
    let topology = if control_planes.is_empty() && workers.is_empty() {
        let asked = session.nodes.first().map(String::as_str).unwrap_or_default();
        discover(&access, asked).await?
    } else {
        Topology::named(&control_planes, &workers)
    };
    over(access, topology, hosts, endpoint)
}

/// The way to the machines of a session.
pub fn access(session: &Session) -> Access<Routed> {
    Access::new(session.endpoint().routed(), Vec::new())
}

/// A cluster of known machines. Its Kubernetes is where its kubeconfig says; where that leads nowhere, as it
/// does outside of the network of local clusters, the hosts of the machine API are tried.
pub fn over(
    access: Access<Routed>,
    topology: Topology,
    hosts: &[String],
    endpoint: &str,
) -> Result<Fleet, Failure> {
    let forced = if endpoint.is_empty() { None } else { Some(parse_endpoint(endpoint)?) };
    let others = hosts.iter().map(|host| Endpoint::new(host.clone(), KUBERNETES_PORT)).collect();
    let control_planes = topology.control_planes().iter().map(|machine| machine.address.clone()).collect();
    let kubernetes = Lazy::new(access.clone(), control_planes, forced, others);
    Ok(Cluster { topology, access, kubernetes })
}

async fn discover(access: &Access<Routed>, asked: &str) -> Result<Topology, Failure> {
    let members = access.list(asked, "cluster", "Members.cluster.talos.dev").await;
    let members = members.map_err(|status| explain::status("error listing members", &status))?;
    let topology = Topology::discovered(members.iter().map(|member| &member.spec));
    if topology.all().is_empty() {
        return Err(Failure::new("no members of the cluster were discovered")
            .hint("name the machines with --control-plane-nodes and --worker-nodes"));
    }
    Ok(topology)
}

/// Reads `https://host:port`, `host:port` or `host`.
pub fn parse_endpoint(text: &str) -> Result<Endpoint, Failure> {
    let bad = || {
        Failure::new(format!("\"{text}\" is no address of the Kubernetes API")).hint("use https://HOST:PORT")
    };
    if text.starts_with("http://") {
        return Err(bad());
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
        return Err(bad());
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
