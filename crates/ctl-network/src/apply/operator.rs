//! Runs operators: programs that keep up some network configuration, such as a DHCP client.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use ichor_cosi::{
    Context, Controller, ControllerError, Input, Output, StateError, Typed, Wake, shared, weak,
};
use ichor_net::dhcp4::client::Hostname;
use ichor_net::dhcp4::{ClientId, Config, Event, Lease};
use ichor_resource::TypedSpec;
use ichor_resource::network::{
    AddressSpec, ClientIdentifier, ClientIdentifierSpec, HostnameSpec, HostnameStatus, LinkSpec, LinkStatus,
    OperationalState, Operator, OperatorSpec, ResolverSpec, RouteSpec, TimeServerSpec,
};
use tokio::sync::watch;

use super::lease::{LeaseSpecs, specs};
use crate::ids;
use crate::ports::{Dhcp, Running};

/// Runs operators.
#[derive(Debug)]
pub struct OperatorSpecController<D> {
    dhcp: D,
    running: BTreeMap<String, Client>,
    wake: Option<Wake>,
    seed: u64,
}

/// A DHCP client at work.
#[derive(Debug)]
struct Client {
    spec: OperatorSpec,
    link_index: u32,
    lease: Arc<Mutex<Option<Lease>>>,
    hostname: watch::Sender<Hostname>,
    _task: Running,
}

impl<D: Dhcp> OperatorSpecController<D> {
    /// `seed` makes transaction numbers of different machines differ.
    pub fn new(dhcp: D, seed: u64) -> Self {
        Self { dhcp, running: BTreeMap::new(), wake: None, seed }
    }

    fn start_client(&mut self, id: &str, spec: &OperatorSpec, link: &LinkStatus) {
        let Ok(hardware) = <[u8; 6]>::try_from(link.hardware_addr.0.as_slice()) else {
            tracing::warn!(link = spec.link_name, "dhcp needs an ethernet link");
            return;
        };
        self.seed = self.seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(u64::from(link.index));
        let config = Config {
            client_id: client_id(&spec.dhcp4.client_identifier),
            request_hostname: !spec.dhcp4.skip_hostname_request,
            ..Config::new(hardware, self.seed)
        };
        let lease = Arc::new(Mutex::new(None));
        let (slot, wake) = (lease.clone(), self.wake.clone());
        let link_name = spec.link_name.clone();
        let on_event = Arc::new(move |event| {
            let lease = match event {
                Event::Bound(lease) => Some(*lease),
                Event::Lost => None,
            };
            let mut held = slot.lock().unwrap_or_else(PoisonError::into_inner);
            let address = |lease: &Option<Lease>| lease.as_ref().map(|lease| lease.address);
            match (address(&held), address(&lease)) {
                (old, Some(address)) if old != Some(address) => {
                    tracing::info!(link = link_name, %address, "leased address");
                }
                (Some(address), None) => tracing::warn!(link = link_name, %address, "lost lease"),
                (Some(_) | None, _) => {}
            }
            *held = lease;
            drop(held);
            if let Some(wake) = &wake {
                wake.wake();
            }
        });
        let (hostname, names) = watch::channel(None);
        let task = self.dhcp.start(&spec.link_name, link.index, config, names, on_event);
        tracing::info!(link = spec.link_name, "dhcp started");
        let client = Client { spec: spec.clone(), link_index: link.index, lease, hostname, _task: task };
        self.running.insert(id.to_owned(), client);
    }
}

impl Client {
    fn lease(&self) -> Option<Lease> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells the server the machine's name, unless it comes from this very lease.
    fn tell_hostname(&self, status: Option<&HostnameStatus>) {
        let from_lease = self.lease().and_then(|lease| lease.hostname);
        let told = match (status, from_lease) {
            // The first round is for the server to speak.
            (_, None) if self.lease().is_none() => return,
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
}

fn client_id(spec: &ClientIdentifierSpec) -> ClientId {
    match spec.client_identifier {
        ClientIdentifier::None => ClientId::None,
        ClientIdentifier::Mac => ClientId::Mac,
        ClientIdentifier::Duid => {
            let hex = spec.duid_raw_hex.replace(':', "");
            let byte = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
            let bytes: Option<Vec<u8>> = (0..hex.len()).step_by(2).map(byte).collect();
            bytes.filter(|b| !b.is_empty()).map_or(ClientId::Mac, ClientId::Raw)
        }
    }
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
            let link = links.iter().find(|link| link.id() == spec.link_name.as_str())?;
            is_ready(spec, link).then_some(link)
        };

        self.running.retain(|id, client| {
            let spec = wanted.iter().find(|spec| spec.id() == id.as_str());
            spec.is_some_and(|spec| {
                *spec.spec() == client.spec
                    && link_of(spec).is_some_and(|link| link.index == client.link_index)
            })
        });
        for spec in &wanted {
            let Some(link) = link_of(spec) else { continue };
            if self.running.contains_key(spec.id().as_str()) {
                continue;
            }
            match spec.operator {
                Operator::Dhcp4 => self.start_client(spec.id(), spec, link),
                Operator::Dhcp6 | Operator::Vip => {
                    tracing::debug!(operator = %spec.id(), "operators of this kind do not run yet");
                }
            }
        }

        let hostname = ctx.get::<HostnameStatus>(ids::HOSTNAME)?;
        let mut leases = BTreeMap::new();
        for (id, client) in &self.running {
            client.tell_hostname(hostname.as_ref().map(|status| status.spec()));
            if let Some(lease) = client.lease() {
                let dhcp = &client.spec.dhcp4;
                let found =
                    specs(&client.spec.link_name, &lease, dhcp.route_metric, !dhcp.skip_hostname_request);
                leases.insert(id.clone(), found);
            }
        }
        publish(ctx, &leases, |l| &l.addresses, |s: &AddressSpec| ids::address(&s.link_name, s.address))?;
        publish(ctx, &leases, |l| &l.links, |s: &LinkSpec| s.name.clone())?;
        publish(ctx, &leases, |l| &l.routes, ids::route_spec)?;
        publish(ctx, &leases, |l| &l.hostnames, |_: &HostnameSpec| ids::HOSTNAME.to_owned())?;
        publish(ctx, &leases, |l| &l.resolvers, |_: &ResolverSpec| ids::RESOLVERS.to_owned())?;
        publish(ctx, &leases, |l| &l.time_servers, |_: &TimeServerSpec| ids::TIME_SERVERS.to_owned())?;
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
        assert_eq!(of("00:01:ff"), ClientId::Raw(vec![0, 1, 255]));
        assert_eq!(of("0001ff"), ClientId::Raw(vec![0, 1, 255]));
        assert_eq!(of("zz"), ClientId::Mac);
        assert_eq!(of(""), ClientId::Mac);
    }
}
