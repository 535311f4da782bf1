//! Runs operators: programs that keep up some network configuration, such as a DHCP client.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ichor_cosi::{
    Context, Controller, ControllerError, Input, Output, StateError, Typed, Wake, shared, weak,
};
use ichor_net::dhcp4::client::Hostname;
use ichor_net::{dhcp4, dhcp6};
use ichor_resource::TypedSpec;
use ichor_resource::network::{
    AddressSpec, ClientIdentifier, ClientIdentifierSpec, HostnameSpec, HostnameStatus, LinkSpec, LinkStatus,
    OperationalState, Operator, OperatorSpec, ResolverSpec, RouteSpec, TimeServerSpec,
};
use tokio::sync::watch;

use super::lease::{self, LeaseSpecs};
use crate::ids;
use crate::link_name;
use crate::ports::{Dhcp, Running};

/// Where the packet size of the link is the platform's business, not the server's.
const WITHOUT_MTU: &str = "azure";

/// Runs operators.
#[derive(Debug)]
pub struct OperatorSpecController<D> {
    dhcp: D,
    running: BTreeMap<String, Client>,
    wake: Option<Wake>,
    seed: u64,
    request_mtu: bool,
}

/// A DHCP client at work.
#[derive(Debug)]
struct Client {
    spec: OperatorSpec,
    link_index: u32,
    news: Arc<Mutex<News>>,
    hostname: watch::Sender<Hostname>,
    _task: Running,
}

/// What a client last said.
#[derive(Debug, Default)]
struct News {
    lease: Option<Lease>,
    trouble: Option<String>,
}

/// A lease of either kind.
#[derive(Debug, Clone)]
enum Lease {
    V4(dhcp4::Lease),
    V6(dhcp6::Lease),
}

impl Lease {
    fn address(&self) -> String {
        match self {
            Self::V4(lease) => lease.address.to_string(),
            Self::V6(lease) => lease.address.to_string(),
        }
    }
}

/// Takes a client's news in and passes the word on.
struct Desk {
    link: String,
    news: Arc<Mutex<News>>,
    wake: Option<Wake>,
}

impl Desk {
    fn take(&self, lease: Option<Lease>, trouble: Option<String>) {
        let mut news = lock(&self.news);
        match (&news.lease, &lease) {
            (old, Some(new)) if old.as_ref().map(Lease::address) != Some(new.address()) => {
                tracing::info!(link = self.link, address = new.address(), "leased address");
            }
            (Some(old), None) => {
                tracing::warn!(link = self.link, address = old.address(), "lost lease");
            }
            (Some(_) | None, _) => {}
        }
        *news = News { lease, trouble };
        drop(news);
        if let Some(wake) = &self.wake {
            wake.wake();
        }
    }
}

fn lock(news: &Mutex<News>) -> MutexGuard<'_, News> {
    news.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<D: Dhcp> OperatorSpecController<D> {
    /// `seed` makes transaction numbers of different machines differ.
    pub fn new(dhcp: D, seed: u64, platform: &str) -> Self {
        Self { dhcp, running: BTreeMap::new(), wake: None, seed, request_mtu: platform != WITHOUT_MTU }
    }

    /// Starts the client of a spec; an error says why it cannot work.
    fn start_client(
        &mut self,
        id: &str,
        spec: &OperatorSpec,
        link: &str,
        status: &LinkStatus,
    ) -> Result<(), String> {
        let hardware = <[u8; 6]>::try_from(status.hardware_addr.0.as_slice());
        let hardware = hardware.map_err(|_| format!("{id}: {link} is not an ethernet link"))?;
        self.seed = self.seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(u64::from(status.index));
        let news = Arc::new(Mutex::new(News::default()));
        let desk = Desk { link: link.to_owned(), news: news.clone(), wake: self.wake.clone() };
        let (hostname, names) = watch::channel(None);
        let task = match spec.operator {
            Operator::Dhcp4 => {
                let config = dhcp4::Config {
                    client_id: client_id(&spec.dhcp4.client_identifier),
                    request_hostname: !spec.dhcp4.skip_hostname_request,
                    request_mtu: self.request_mtu,
                    ..dhcp4::Config::new(hardware, self.seed)
                };
                let on_event = Arc::new(move |event| match event {
                    dhcp4::Event::Bound(lease) => desk.take(Some(Lease::V4(*lease)), None),
                    dhcp4::Event::Lost => desk.take(None, None),
                    dhcp4::Event::Silent(reason) => desk.take(None, Some(reason)),
                });
                self.dhcp.start(link, status.index, config, names, on_event)
            }
            Operator::Dhcp6 => {
                let config = dhcp6::Config {
                    duid: duid(&spec.dhcp6.client_identifier),
                    request_hostname: !spec.dhcp6.skip_hostname_request,
                    ..dhcp6::Config::new(hardware, self.seed)
                };
                let on_event = Arc::new(move |event| match event {
                    dhcp6::Event::Bound(lease) => desk.take(Some(Lease::V6(*lease)), None),
                    dhcp6::Event::Lost => desk.take(None, None),
                    dhcp6::Event::Silent(reason) => desk.take(None, Some(reason)),
                });
                self.dhcp.start6(link, status.index, config, on_event)
            }
            Operator::Vip => {
                return Err(format!(
                    "{id}: virtual addresses are not implemented yet; no node gets this one"
                ));
            }
        };
        tracing::info!(link, operator = %spec.operator, "operator started");
        let client = Client { spec: spec.clone(), link_index: status.index, news, hostname, _task: task };
        self.running.insert(id.to_owned(), client);
        Ok(())
    }
}

impl Client {
    /// Tells the server the machine's name, unless it comes from this very lease.
    fn tell_hostname(&self, status: Option<&HostnameStatus>) {
        let news = lock(&self.news);
        // The first round is for the server to speak.
        let Some(Lease::V4(lease)) = &news.lease else { return };
        let told = match (status, &lease.hostname) {
            (Some(status), Some(own)) if own.split('.').next() == Some(&status.hostname) => None,
            (Some(status), _) => Some((status.hostname.clone(), status.domainname.clone())),
            (None, _) => None,
        };
        self.hostname.send_if_modified(|held| {
            let changed = *held != told;
            *held = told;
            changed
        });
    }

    /// What the lease brings, if there is one.
    fn specs(&self) -> Option<LeaseSpecs> {
        let (link, spec) = (&self.spec.link_name, &self.spec);
        match lock(&self.news).lease.as_ref()? {
            Lease::V4(held) => {
                let dhcp = &spec.dhcp4;
                Some(lease::specs(link, held, dhcp.route_metric, !dhcp.skip_hostname_request))
            }
            Lease::V6(held) => {
                let dhcp = &spec.dhcp6;
                Some(lease::specs6(link, held, dhcp.route_metric, !dhcp.skip_hostname_request))
            }
        }
    }
}

fn client_id(spec: &ClientIdentifierSpec) -> dhcp4::ClientId {
    match spec.client_identifier {
        ClientIdentifier::None => dhcp4::ClientId::None,
        ClientIdentifier::Mac => dhcp4::ClientId::Mac,
        ClientIdentifier::Duid => raw(spec).map_or(dhcp4::ClientId::Mac, dhcp4::ClientId::Raw),
    }
}

fn duid(spec: &ClientIdentifierSpec) -> dhcp6::Duid {
    match spec.client_identifier {
        ClientIdentifier::None => dhcp6::Duid::LinkLayerTime,
        ClientIdentifier::Mac => dhcp6::Duid::LinkLayer,
        ClientIdentifier::Duid => raw(spec).map_or(dhcp6::Duid::LinkLayerTime, dhcp6::Duid::Raw),
    }
}

/// The bytes of an identifier in hex, with or without colons.
fn raw(spec: &ClientIdentifierSpec) -> Option<Vec<u8>> {
    let hex = spec.duid_raw_hex.replace(':', "");
    let byte = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..hex.len()).step_by(2).map(byte).collect();
    bytes.filter(|bytes| !bytes.is_empty())
}

/// True when an operator may work on this link.
fn is_ready(spec: &OperatorSpec, link: &LinkStatus) -> bool {
    !spec.require_up || matches!(link.operational_state, OperationalState::Up | OperationalState::Unknown)
}

/// Publishes one kind of spec of all leases, each under `dhcp4/<link>/<final id>`.
fn publish<T: TypedSpec>(
    ctx: &Context,
    leases: &BTreeMap<String, LeaseSpecs>,
    pick: impl Fn(&LeaseSpecs) -> &Vec<T>,
    id: impl Fn(&T) -> String,
) -> Result<(), StateError> {
    let named = leases.iter().flat_map(|(operator, specs)| {
        pick(specs).iter().map(|spec| (format!("{operator}/{}", id(spec)), spec.clone())).collect::<Vec<_>>()
    });
    ctx.publish_in(ids::CONFIG_NAMESPACE, named)
}

impl<D: Dhcp> Controller for OperatorSpecController<D> {
    const NAME: &'static str = "network.OperatorSpecController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<OperatorSpec>(), weak::<LinkStatus>(), weak::<HostnameStatus>().id(ids::HOSTNAME)]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![
            shared::<AddressSpec>(),
            shared::<LinkSpec>(),
            shared::<RouteSpec>(),
            shared::<HostnameSpec>(),
            shared::<ResolverSpec>(),
            shared::<TimeServerSpec>(),
        ]
    }

    fn start(&mut self, wake: Wake) {
        self.wake = Some(wake);
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let wanted: Vec<Typed<OperatorSpec>> =
            ctx.list::<OperatorSpec>()?.into_iter().filter(|spec| spec.meta().is_running()).collect();
        let links = ctx.list::<LinkStatus>()?;
        let link_of = |spec: &OperatorSpec| {
            let link = link_name::find_status(&links, &spec.link_name)?;
            is_ready(spec, link).then_some(link)
        };

        self.running.retain(|id, client| {
            let spec = wanted.iter().find(|spec| spec.id() == id.as_str());
            spec.is_some_and(|spec| {
                *spec.spec() == client.spec
                    && link_of(spec).is_some_and(|link| link.index == client.link_index)
            })
        });
        let mut troubles = Vec::new();
        for spec in &wanted {
            let Some(link) = link_of(spec) else { continue };
            if !self.running.contains_key(spec.id().as_str()) {
                troubles.extend(self.start_client(spec.id(), spec, link.id(), link).err());
            }
        }

        let hostname = ctx.get::<HostnameStatus>(ids::HOSTNAME)?;
        let mut leases = BTreeMap::new();
        for (id, client) in &self.running {
            client.tell_hostname(hostname.as_ref().map(|status| status.spec()));
            leases.extend(client.specs().map(|specs| (id.clone(), specs)));
            let news = lock(&client.news);
            troubles.extend(news.trouble.as_ref().map(|trouble| format!("{id}: {trouble}")));
        }
        publish(ctx, &leases, |l| &l.addresses, |s: &AddressSpec| ids::address(&s.link_name, s.address))?;
        publish(ctx, &leases, |l| &l.links, |s: &LinkSpec| s.name.clone())?;
        publish(ctx, &leases, |l| &l.routes, ids::route_spec)?;
        publish(ctx, &leases, |l| &l.hostnames, |_: &HostnameSpec| ids::HOSTNAME.to_owned())?;
        publish(ctx, &leases, |l| &l.resolvers, |_: &ResolverSpec| ids::RESOLVERS.to_owned())?;
        publish(ctx, &leases, |l| &l.time_servers, |_: &TimeServerSpec| ids::TIME_SERVERS.to_owned())?;
        if !troubles.is_empty() {
            ctx.trouble(troubles.join("; "));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duid_is_given_as_hex_with_or_without_colons() {
        let of = |text: &str| {
            client_id(&ClientIdentifierSpec {
                client_identifier: ClientIdentifier::Duid,
                duid_raw_hex: text.to_owned(),
            })
        };
        assert_eq!(of("00:01:ff"), dhcp4::ClientId::Raw(vec![0, 1, 255]));
        assert_eq!(of("0001ff"), dhcp4::ClientId::Raw(vec![0, 1, 255]));
        assert_eq!(of("zz"), dhcp4::ClientId::Mac);
        assert_eq!(of(""), dhcp4::ClientId::Mac);
    }
}
