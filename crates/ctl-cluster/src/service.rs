//! Keeps in touch with discovery services: those of the cluster's own control planes, or one outside.
//!
//! Control planes do not share what they know. Instead every node is in touch with each of them, so that one that is
//! away takes nothing with it, and one that comes back empty is told everything again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Wake, shared, weak};
use ichor_discovery::{Client, Local, Options};
use ichor_pki::seal::SealKey;
use ichor_resource::cluster::{Affiliate, ControlPlane, DiscoveryConfig, Identity, KubeSpanAffiliateSpec};
use ichor_resource::k8s::Endpoint as Endpoints;
use ichor_resource::runtime::MachineResetSignal;
use ichor_resource::secrets::OSRootSecret;
use ichor_resource::value::{Ip, IpPort, IpPrefix};
use ichor_rpc::{Channel, Endpoint};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::affiliate::RAW;
use crate::config;

/// Control planes to be in touch with.
const SERVICES_MAX: usize = 16;
/// A control plane that has not answered for this long gives its place to another that may.
const SILENT_MAX: Duration = Duration::from_secs(30);
/// Endpoints in the order of what can be said for them; those that are not listed come last.
const ENDPOINTS: [&str; 2] = ["controlplane", "kube-apiserver"];
/// Taking this node back may hold up a reset this long.
const FAREWELL: Duration = Duration::from_secs(10);

/// A service to connect to.
#[derive(Debug, Clone, PartialEq)]
pub enum Service {
    /// A control plane of this cluster, known by the cluster's authority.
    Own {
        /// Its address.
        address: IpAddr,
        /// The authorities to trust, PEM.
        accepted: Vec<u8>,
    },
    /// A service outside.
    Outside {
        /// Where it is.
        endpoint: Endpoint,
        /// Without TLS.
        insecure: bool,
    },
}

/// Makes a connection to a service, or says why there can be none. A port.
pub type Connect = Arc<dyn Fn(&Service) -> Result<(Endpoint, Channel), String> + Send + Sync>;

/// Everything a session depends on; when it changes the session starts over.
#[derive(Debug, Clone, PartialEq)]
struct Terms {
    service: Service,
    cluster_id: String,
    node_id: String,
    key: Vec<u8>,
    token: String,
}

struct Session {
    terms: Terms,
    client: Client,
    task: JoinHandle<()>,
    since: Instant,
}

impl Session {
    /// Whether the service has answered, now or earlier.
    fn has_answered(&self) -> bool {
        self.client.public_ip().is_some()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Writes `Affiliates/service/*` in `cluster-raw`.
pub struct DiscoveryServiceController {
    version: String,
    connect: Connect,
    wake: Option<Wake>,
    sessions: BTreeMap<String, Session>,
    /// Addresses that did not answer, and when they were given up.
    silent: BTreeMap<IpAddr, Instant>,
}

impl DiscoveryServiceController {
    /// A node of this version that connects so.
    pub fn new(version: &str, connect: Connect) -> Self {
        Self {
            version: version.to_owned(),
            connect,
            wake: None,
            sessions: BTreeMap::new(),
            silent: BTreeMap::new(),
        }
    }
}

impl Controller for DiscoveryServiceController {
    const NAME: &'static str = "cluster.DiscoveryServiceController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<DiscoveryConfig>().id(config::ID),
            weak::<Identity>().id("local"),
            weak::<Affiliate>().in_ns("cluster"),
            weak::<OSRootSecret>().id("os"),
            weak::<Endpoints>(),
            weak::<MachineResetSignal>(),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<Affiliate>()]
    }

    fn start(&mut self, wake: Wake) {
        self.wake = Some(wake);
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        if !ctx.list::<MachineResetSignal>()?.is_empty() {
            self.leave().await;
            return Ok(());
        }
        let terms = self.terms(ctx)?;
        let node_id = terms.first().map(|terms| terms.node_id.clone());
        self.keep(ctx, terms)?;
        let local = match &node_id {
            Some(id) => ctx.get_in::<Affiliate>("cluster", id)?.map(|local| told(&local)),
            None => None,
        };
        let mut found = BTreeMap::new();
        let mut silent = Vec::new();
        for session in self.sessions.values() {
            session.client.set_local(Local { affiliate: local.clone(), ..Local::default() });
            silent.extend(session.client.error());
            for affiliate in session.client.affiliates() {
                found.insert(format!("service/{}", affiliate.node_id), heard(affiliate));
            }
        }
        // One that answers is enough; silence of all is worth a word.
        if !self.sessions.is_empty() && silent.len() == self.sessions.len() {
            ctx.trouble(silent.join("; "));
        }
        ctx.publish_in(RAW, found)?;
        Ok(())
    }
}

impl DiscoveryServiceController {
    /// Starts what is new and ends what is no more.
    fn keep(&mut self, ctx: &Context, wanted: Vec<Terms>) -> Result<(), ControllerError> {
        let wanted: BTreeMap<String, Terms> =
            wanted.into_iter().map(|terms| (format!("{:?}", terms.service), terms)).collect();
        self.sessions.retain(|name, session| wanted.get(name) == Some(&session.terms));
        for (name, terms) in wanted {
            if self.sessions.contains_key(&name) {
                continue;
            }
            let (endpoint, channel) = match (self.connect)(&terms.service) {
                Ok(connected) => connected,
                Err(reason) => {
                    ctx.trouble(reason);
                    continue;
                }
            };
            let client = Client::new(Options {
                endpoint,
                cluster_id: terms.cluster_id.clone(),
                affiliate_id: terms.node_id.clone(),
                key: SealKey::new(&terms.key)?,
                version: self.version.clone(),
                token: terms.token.clone(),
                dial: Arc::new(move |_| channel.clone()),
            });
            let (running, wake) = (client.clone(), self.wake.clone());
            let task = tokio::spawn(async move {
                let told = async {
                    loop {
                        running.changed().await;
                        if let Some(wake) = &wake {
                            wake.wake();
                        }
                    }
                };
                tokio::select! {
                    () = running.run() => {}
                    () = told => {}
                }
            });
            self.sessions.insert(name, Session { terms, client, task, since: Instant::now() });
        }
        Ok(())
    }

    /// Takes this node back everywhere, as far as the time goes.
    async fn leave(&mut self) {
        let sessions = std::mem::take(&mut self.sessions);
        let all = async {
            for session in sessions.values() {
                // The machine is being reset: whoever does not answer forgets the node by itself.
                let _ = session.client.delete_local().await;
            }
        };
        let _ = tokio::time::timeout(FAREWELL, all).await;
    }

    /// The services to be in touch with, and on which terms.
    fn terms(&mut self, ctx: &Context) -> Result<Vec<Terms>, ControllerError> {
        let config = ctx.get::<DiscoveryConfig>(config::ID)?;
        let identity = ctx.get::<Identity>("local")?;
        let (Some(config), Some(identity)) = (config, identity) else { return Ok(Vec::new()) };
        if !config.registry_service_enabled {
            return Ok(Vec::new());
        }
        let with = |service, token: String| Terms {
            service,
            cluster_id: config.service_cluster_id.clone(),
            node_id: identity.node_id.clone(),
            key: config.service_encryption_key.0.to_vec(),
            token,
        };
        if let Some((host, port)) = config.service_endpoint.rsplit_once(':') {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let endpoint = Endpoint::new(host, port.parse().unwrap_or(443));
            let service = Service::Outside { endpoint, insecure: config.service_endpoint_insecure };
            return Ok(vec![with(service, String::new())]);
        }
        let Some(root) = ctx.get::<OSRootSecret>("os")? else { return Ok(Vec::new()) };
        let addresses = self.control_planes(ctx)?;
        let accepted: Vec<u8> =
            root.accepted_cas.iter().flat_map(|ca| ca.crt.iter().copied().chain([b'\n'])).collect();
        let own = |address| with(Service::Own { address, accepted: accepted.clone() }, root.token.clone());
        Ok(addresses.into_iter().map(own).collect())
    }

    /// The control planes to be in touch with.
    fn control_planes(&mut self, ctx: &Context) -> Result<Vec<IpAddr>, ControllerError> {
        let now = Instant::now();
        let (mut sure, mut claimed) = (vec![Vec::new(); ENDPOINTS.len()], Vec::new());
        for endpoints in ctx.list::<Endpoints>()? {
            let rank = ENDPOINTS.iter().position(|known| *known == &**endpoints.id());
            let into = rank.map_or(&mut claimed, |rank| &mut sure[rank]);
            into.extend(endpoints.addresses.iter().filter_map(Ip::get));
        }
        claimed.sort_unstable();
        self.silent.retain(|address, _| claimed.contains(address));
        let mut answered = BTreeSet::new();
        for session in self.sessions.values() {
            let Service::Own { address, .. } = &session.terms.service else { continue };
            if session.has_answered() {
                answered.insert(*address);
                self.silent.remove(address);
            } else if now - session.since >= SILENT_MAX && claimed.contains(address) {
                self.silent.insert(*address, now);
            }
        }
        let sure: Vec<IpAddr> = sure.into_iter().flatten().collect();
        let chosen = choose(&sure, &claimed, &answered, &self.silent);
        // Those who wait for a place get one when others stay silent.
        if claimed.iter().any(|address| !chosen.contains(address)) {
            ctx.requeue_after(SILENT_MAX);
        }
        Ok(chosen)
    }
}

/// Which control planes to be in touch with: those that are sure, then those claimed that have answered, then those that
/// were not tried, then those that were silent, the longest ago first.
fn choose(
    sure: &[IpAddr],
    claimed: &[IpAddr],
    answered: &BTreeSet<IpAddr>,
    silent: &BTreeMap<IpAddr, Instant>,
) -> Vec<IpAddr> {
    let mut claimed = claimed.to_vec();
    claimed.sort_by_key(|address| (!answered.contains(address), silent.get(address).copied()));
    let mut seen = BTreeSet::new();
    let mut all: Vec<IpAddr> = sure.iter().copied().chain(claimed).collect();
    all.retain(|address| seen.insert(*address));
    all.truncate(SERVICES_MAX);
    all
}

/// A resource as a node tells it.
fn told(affiliate: &Affiliate) -> ichor_discovery::Affiliate {
    let span = &affiliate.kubespan;
    ichor_discovery::Affiliate {
        node_id: affiliate.node_id.clone(),
        addresses: affiliate.addresses.iter().filter_map(Ip::get).collect(),
        hostname: affiliate.hostname.clone(),
        nodename: affiliate.nodename.clone(),
        machine_type: affiliate.machine_type.as_str().to_owned(),
        operating_system: affiliate.operating_system.clone(),
        kubespan: span.address.get().map(|address| ichor_discovery::KubeSpan {
            public_key: span.public_key.clone(),
            address,
            additional_addresses: span.additional_addresses.iter().filter_map(IpPrefix::get).collect(),
        }),
        control_plane: affiliate.control_plane.as_ref().and_then(|plane| {
            Some(ichor_discovery::ControlPlane { api_server_port: u16::try_from(plane.port).ok()? })
        }),
        endpoints: span.endpoints.iter().filter_map(IpPort::get).collect(),
    }
}

/// What a node told, as a resource.
fn heard(affiliate: ichor_discovery::Affiliate) -> Affiliate {
    let span = affiliate.kubespan.map(|span| KubeSpanAffiliateSpec {
        public_key: span.public_key,
        address: Ip::from(span.address),
        additional_addresses: span.additional_addresses.into_iter().map(IpPrefix::from).collect(),
        endpoints: affiliate
            .endpoints
            .iter()
            .map(|e| IpPort { ip: Ip::from(e.ip()), port: e.port() })
            .collect(),
    });
    Affiliate {
        node_id: affiliate.node_id,
        addresses: affiliate.addresses.into_iter().map(Ip::from).collect(),
        hostname: affiliate.hostname,
        nodename: affiliate.nodename,
        operating_system: affiliate.operating_system,
        machine_type: affiliate.machine_type.parse().unwrap_or_default(),
        kubespan: span.unwrap_or_default(),
        control_plane: affiliate
            .control_plane
            .map(|plane| ControlPlane { port: plane.api_server_port.into() }),
    }
}

#[cfg(test)]
mod tests {
    use ichor_types::MachineType;

    use super::*;

    #[test]
    fn a_node_is_heard_as_it_was_told() {
        let affiliate = Affiliate {
            node_id: "n".into(),
            addresses: vec![Ip::from("10.5.0.2".parse::<IpAddr>().unwrap())],
            hostname: "h".into(),
            nodename: "h".into(),
            operating_system: "Talos (v1)".into(),
            machine_type: MachineType::ControlPlane,
            control_plane: Some(ControlPlane { port: 6443 }),
            ..Default::default()
        };
        assert_eq!(heard(told(&affiliate)), affiliate);
    }

    fn addresses(third: u8, count: u8) -> Vec<IpAddr> {
        (0..count).map(|last| IpAddr::from([10, 5, third, last])).collect()
    }

    #[test]
    fn claims_do_not_push_out_the_control_planes_of_the_configuration_nor_those_that_answer() {
        let sure = addresses(9, 2);
        let claimed = [addresses(0, 100), addresses(8, 3)].concat();
        let answered = addresses(8, 3).into_iter().collect();
        let chosen = choose(&sure, &claimed, &answered, &BTreeMap::new());
        assert_eq!(chosen.len(), SERVICES_MAX);
        assert_eq!(chosen[..2], sure);
        assert_eq!(chosen[2..5], addresses(8, 3));
    }

    #[test]
    fn silent_ones_make_room_for_those_that_were_not_tried() {
        let now = Instant::now();
        let claimed = addresses(0, 20);
        let first = choose(&[], &claimed, &BTreeSet::new(), &BTreeMap::new());
        assert_eq!(first, claimed[..16]);
        let mut silent: BTreeMap<_, _> = first.iter().map(|address| (*address, now)).collect();
        silent.insert(first[5], now - SILENT_MAX);
        let second = choose(&[], &claimed, &BTreeSet::new(), &silent);
        assert_eq!(second[..4], claimed[16..]);
        assert_eq!(second[4], first[5], "the longest ago");
    }
}
