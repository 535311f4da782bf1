//! The DNS cache of this machine: its settings, its upstreams, its listeners.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Wake, exclusive, shared, weak};
use ichor_net::dns::{Forwarder, Listener, serve};
use ichor_resource::cluster::Member;
use ichor_resource::network::{
    AddressSpec, ConfigLayer, DNSResolveCache, DNSUpstream, HostDNSConfig, ResolverStatus, Scope,
};
use ichor_resource::value::Ip;
use ipnet::IpNet;

use crate::documents;
use crate::ids;
use crate::ports::Running;
use crate::settings::Settings;
use crate::source::cmdline::address_spec;

/// The id of the settings.
const CONFIG: &str = "config";
const PORT: u16 = 53;
/// Where programs of this machine ask.
const LOCAL: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 53);
/// Where pods ask.
pub(crate) const SERVICE: Ipv4Addr = Ipv4Addr::new(169, 254, 116, 108);
/// How soon a listener that could not be bound is tried again, at first and at last.
const BIND_RETRY: Duration = Duration::from_millis(100);
const BIND_RETRY_MAX: Duration = Duration::from_secs(30);

/// Publishes the settings of the cache.
#[derive(Debug, Default)]
pub struct HostDNSConfigController;

/// What the configuration asks for.
pub(crate) fn decide(settings: Option<&Settings>) -> (HostDNSConfig, Option<AddressSpec>) {
    let mut config = HostDNSConfig::default();
    let Some(settings) = settings.filter(|s| s.host_dns.enabled) else { return (config, None) };
    config.enabled = true;
    config.resolve_member_names = settings.host_dns.resolve_member_names;
    config.listen_addresses = vec![SocketAddr::from((LOCAL, PORT)).into()];
    let pods_speak_v4 = settings.kubernetes_subnets.iter().any(|net| net.addr().is_ipv4());
    if !settings.host_dns.forward_kube_dns || !pods_speak_v4 {
        return (config, None);
    }
    config.listen_addresses.push(SocketAddr::from((SERVICE, PORT)).into());
    config.service_host_dns_address = SERVICE.into();
    let prefix = IpNet::from(IpAddr::V4(SERVICE));
    let mut address = address_spec("lo", prefix, 0, ConfigLayer::Operator);
    address.scope = Scope::HOST;
    (config, Some(address))
}

impl Controller for HostDNSConfigController {
    const NAME: &'static str = "network.HostDNSConfigController";

    fn inputs(&self) -> Vec<Input> {
        vec![documents::input()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<HostDNSConfig>(), shared::<AddressSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let settings = documents::settings(ctx)?;
        let (config, address) = decide(settings.as_ref());
        let id = |s: &AddressSpec| ids::layered(s.layer, &ids::address(&s.link_name, s.address));
        ctx.publish_in(ids::CONFIG_NAMESPACE, address.map(|spec| (id(&spec), spec)))?;
        ctx.publish([(CONFIG, config)])?;
        Ok(())
    }
}

/// Hands the resolvers in effect to the cache and shows them.
#[derive(Debug)]
pub struct DNSUpstreamController {
    forwarder: Arc<Forwarder>,
    told: Vec<SocketAddr>,
}

impl DNSUpstreamController {
    /// The upstreams of this cache.
    pub fn new(forwarder: Arc<Forwarder>) -> Self {
        Self { forwarder, told: Vec::new() }
    }
}

impl Controller for DNSUpstreamController {
    const NAME: &'static str = "network.DNSUpstreamController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<HostDNSConfig>().id(CONFIG), weak::<ResolverStatus>().id(ids::RESOLVERS)]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<DNSUpstream>()]
    }

    fn start(&mut self, wake: Wake) {
        self.forwarder.on_health(move || wake.wake());
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let enabled = ctx.get::<HostDNSConfig>(CONFIG)?.is_some_and(|config| config.enabled);
        let resolvers = ctx.get::<ResolverStatus>(ids::RESOLVERS)?.filter(|_| enabled);
        let servers = resolvers.iter().flat_map(|status| status.dns_servers.iter().filter_map(Ip::get));
        let upstreams: Vec<_> = servers.map(|ip| SocketAddr::new(ip, PORT)).collect();
        self.forwarder.set_upstreams(upstreams.clone());
        let mut troubles = Vec::new();
        let mut shown = Vec::new();
        for (position, upstream) in upstreams.iter().enumerate() {
            let trouble = self.forwarder.trouble(*upstream);
            let spec = DNSUpstream { healthy: trouble.is_none(), addr: upstream.to_string() };
            shown.push((format!("#{position:03} {}", upstream.ip()), spec));
            troubles.extend(trouble.map(|reason| (*upstream, reason)));
        }
        ctx.publish(shown)?;
        for (upstream, reason) in troubles.iter().filter(|(upstream, _)| !self.told.contains(upstream)) {
            tracing::warn!(server = %upstream.ip(), reason, "name server does not answer");
        }
        self.told = troubles.iter().map(|(upstream, _)| *upstream).collect();
        let texts: Vec<_> =
            troubles.iter().map(|(s, why)| format!("name server {}: {why}", s.ip())).collect();
        if !texts.is_empty() {
            ctx.trouble(texts.join("; "));
        }
        Ok(())
    }
}

/// The names of cluster members: the host name with and without its domain, and the node name.
fn names<'a>(members: impl Iterator<Item = (&'a str, &'a Member)>) -> BTreeMap<String, Vec<IpAddr>> {
    let mut names: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    for (id, member) in members {
        let full = member.hostname.trim_end_matches('.').to_lowercase();
        let short = full.split('.').next().unwrap_or_default().to_owned();
        let addresses: Vec<_> = member.addresses.iter().filter_map(Ip::get).collect();
        for name in BTreeSet::from([full, short, id.to_lowercase()]) {
            if !name.is_empty() {
                names.entry(name).or_default().extend(&addresses);
            }
        }
    }
    names
}

/// Runs the listeners of the cache.
#[derive(Debug)]
pub struct DNSResolveCacheController {
    forwarder: Arc<Forwarder>,
    running: BTreeMap<String, Server>,
    wake: Option<Wake>,
    /// Passes in a row in which a listener could not be bound.
    tries: u32,
}

#[derive(Debug)]
struct Server {
    hops: u32,
    ended: Arc<AtomicBool>,
    _task: Running,
}

impl DNSResolveCacheController {
    /// Listeners of this cache.
    pub fn new(forwarder: Arc<Forwarder>) -> Self {
        Self { forwarder, running: BTreeMap::new(), wake: None, tries: 0 }
    }

    fn start_server(&mut self, id: &str, listener: Listener, hops: u32) {
        let ended = Arc::new(AtomicBool::new(false));
        let (flag, wake, forwarder) = (ended.clone(), self.wake.clone(), self.forwarder.clone());
        let name = id.to_owned();
        let task = tokio::spawn(async move {
            let error = serve(listener, forwarder).await;
            tracing::warn!(listener = name, %error, "dns listener failed");
            flag.store(true, Ordering::Relaxed);
            if let Some(wake) = wake {
                wake.wake();
            }
        });
        self.running.insert(id.to_owned(), Server { hops, ended, _task: Running::task(task) });
    }
}

impl Controller for DNSResolveCacheController {
    const NAME: &'static str = "network.DNSResolveCacheController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<DNSUpstream>(), weak::<HostDNSConfig>().id(CONFIG), weak::<Member>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<DNSResolveCache>()]
    }

    fn start(&mut self, wake: Wake) {
        self.wake = Some(wake);
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = ctx.get::<HostDNSConfig>(CONFIG)?.filter(|config| config.enabled);
        let resolve = config.as_ref().is_some_and(|config| config.resolve_member_names);
        let members = if resolve { ctx.list::<Member>()? } else { Vec::new() };
        self.forwarder.set_members(names(members.iter().map(|m| (m.id().as_str(), m.spec()))));
        // Answers must not leave the machine; those for pods take one hop more.
        let hops = match &config {
            Some(config) if !config.service_host_dns_address.is_unset() => 2,
            _ => 1,
        };
        let mut wanted = BTreeMap::new();
        for address in config.iter().flat_map(|config| config.listen_addresses.iter().filter_map(|a| a.get()))
        {
            wanted.insert(format!("udp-{address}"), (address, true));
            wanted.insert(format!("tcp-{address}"), (address, false));
        }
        self.running.retain(|id, server| {
            wanted.contains_key(id) && server.hops == hops && !server.ended.load(Ordering::Relaxed)
        });
        let mut waiting = Vec::new();
        for (id, (address, udp)) in wanted {
            if self.running.contains_key(&id) {
                continue;
            }
            let bound = if udp { Listener::udp(address, hops).await } else { Listener::tcp(address, hops) };
            match bound {
                Ok(listener) => self.start_server(&id, listener, hops),
                // The address may just not be there yet.
                Err(error) => {
                    waiting.push(format!("listener {id}: {error}"));
                    self.tries = self.tries.saturating_add(1);
                    ctx.requeue_after((BIND_RETRY * 2_u32.pow(self.tries.min(6))).min(BIND_RETRY_MAX));
                }
            }
        }
        if waiting.is_empty() {
            self.tries = 0;
        } else {
            ctx.trouble(waiting.join("; "));
        }
        let status = || DNSResolveCache { status: "running".to_owned() };
        ctx.publish(self.running.keys().map(|id| (id.as_str(), status())))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::HostDnsSetting;

    #[test]
    fn pods_are_served_when_they_speak_ipv4() {
        let with = |forward_kube_dns, subnet: &str| Settings {
            host_dns: HostDnsSetting { enabled: true, forward_kube_dns, resolve_member_names: false },
            kubernetes_subnets: vec![subnet.parse().unwrap()],
            ..Settings::default()
        };
        let (config, address) = decide(Some(&with(true, "10.244.0.0/16")));
        let listeners: Vec<_> = config.listen_addresses.iter().map(ToString::to_string).collect();
        assert_eq!(listeners, ["127.0.0.53:53", "169.254.116.108:53"]);
        let address = address.unwrap();
        assert_eq!(
            (address.address.to_string().as_str(), address.layer),
            ("169.254.116.108/32", ConfigLayer::Operator)
        );
        assert_eq!(decide(Some(&with(true, "fd00::/48"))).1, None);
        assert_eq!(decide(Some(&with(false, "10.244.0.0/16"))).1, None);
        assert!(!decide(Some(&Settings::default())).0.enabled);
        assert!(!decide(None).0.enabled);
    }

    #[test]
    fn a_member_answers_to_its_names() {
        let member = Member {
            hostname: "Node-1.example.org".into(),
            addresses: vec!["10.5.0.2".parse().unwrap()],
            ..Member::default()
        };
        let names = names([("worker-a", &member)].into_iter());
        let keys: Vec<_> = names.keys().map(String::as_str).collect();
        assert_eq!(keys, ["node-1", "node-1.example.org", "worker-a"]);
    }
}
