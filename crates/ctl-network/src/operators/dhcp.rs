//! DHCP clients as operators, of both address families.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ichor_net::dhcp4::client::Hostname;
use ichor_net::{dhcp4, dhcp6};
use ichor_resource::network::{
    ClientIdentifier, ClientIdentifierSpec, HostnameStatus, LinkStatus, OperatorSpec,
};
use tokio::sync::watch;

use super::{Notify, OperatorKind, OperatorSpecs, RunningOperator, Start, lease};
use crate::ports::{Dhcp, Running};

/// Where the packet size of the link is the platform's business, not the server's.
const WITHOUT_MTU: &str = "azure";

/// DHCPv4.
pub(super) struct Dhcp4<D> {
    client: D,
    request_mtu: bool,
}

impl<D> Dhcp4<D> {
    pub(super) fn new(client: D, platform: &str) -> Self {
        Self { client, request_mtu: platform != WITHOUT_MTU }
    }
}

impl<D: Dhcp> OperatorKind for Dhcp4<D> {
    fn start(&self, start: Start<'_>) -> Result<Box<dyn RunningOperator>, String> {
        let dhcp = &start.spec.dhcp4;
        let config = dhcp4::Config {
            client_id: client_id(&dhcp.client_identifier),
            request_hostname: !dhcp.skip_hostname_request,
            request_mtu: self.request_mtu,
            ..dhcp4::Config::new(hardware(&start)?, start.seed)
        };
        let (hostname, names) = watch::channel(None);
        let updates = Updates::new(&start);
        let received = Arc::clone(&updates.received);
        let on_event = Arc::new(move |event| match event {
            dhcp4::Event::Bound(lease) => updates.take(Some(Lease::V4(*lease)), None),
            dhcp4::Event::Lost => updates.take(None, None),
            dhcp4::Event::Silent(reason) => updates.take(None, Some(reason)),
        });
        let task = self.client.start(start.link, start.status.index, config, names, on_event);
        Ok(Box::new(Client { spec: start.spec.clone(), received, hostname, _task: task }))
    }
}

/// DHCPv6.
pub(super) struct Dhcp6<D> {
    client: D,
}

impl<D> Dhcp6<D> {
    pub(super) fn new(client: D) -> Self {
        Self { client }
    }
}

impl<D: Dhcp> OperatorKind for Dhcp6<D> {
    fn start(&self, start: Start<'_>) -> Result<Box<dyn RunningOperator>, String> {
        let dhcp = &start.spec.dhcp6;
        let config = dhcp6::Config {
            duid: duid(&dhcp.client_identifier),
            request_hostname: !dhcp.skip_hostname_request,
            ..dhcp6::Config::new(hardware(&start)?, start.seed)
        };
        let updates = Updates::new(&start);
        let received = Arc::clone(&updates.received);
        let on_event = Arc::new(move |event| match event {
            dhcp6::Event::Bound(lease) => updates.take(Some(Lease::V6(*lease)), None),
            dhcp6::Event::Lost => updates.take(None, None),
            dhcp6::Event::Silent(reason) => updates.take(None, Some(reason)),
        });
        let task = self.client.start6(start.link, start.status.index, config, on_event);
        let hostname = watch::Sender::new(None);
        Ok(Box::new(Client { spec: start.spec.clone(), received, hostname, _task: task }))
    }
}

fn hardware(start: &Start<'_>) -> Result<[u8; 6], String> {
    let LinkStatus { hardware_addr, .. } = start.status;
    <[u8; 6]>::try_from(hardware_addr.0.as_slice())
        .map_err(|_| format!("{}: {} is not an ethernet link", start.id, start.link))
}

/// A DHCP client at work.
struct Client {
    spec: OperatorSpec,
    received: Arc<Mutex<Received>>,
    hostname: watch::Sender<Hostname>,
    _task: Running,
}

/// What a client last reported.
#[derive(Debug, Default)]
struct Received {
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

/// Takes in what a client reports.
struct Updates {
    link: String,
    received: Arc<Mutex<Received>>,
    notify: Notify,
}

impl Updates {
    fn new(start: &Start<'_>) -> Self {
        Self { link: start.link.to_owned(), received: Arc::default(), notify: start.notify.clone() }
    }

    fn take(&self, lease: Option<Lease>, trouble: Option<String>) {
        let mut received = lock(&self.received);
        match (&received.lease, &lease) {
            (old, Some(new)) if old.as_ref().map(Lease::address) != Some(new.address()) => {
                tracing::info!(link = self.link, address = new.address(), "leased address");
            }
            (Some(old), None) => {
                tracing::warn!(link = self.link, address = old.address(), "lost lease");
            }
            (Some(_) | None, _) => {}
        }
        *received = Received { lease, trouble };
        drop(received);
        self.notify.changed();
    }
}

fn lock(received: &Mutex<Received>) -> MutexGuard<'_, Received> {
    received.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RunningOperator for Client {
    fn specs(&self) -> Option<OperatorSpecs> {
        let (link, spec) = (&self.spec.link_name, &self.spec);
        match lock(&self.received).lease.as_ref()? {
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

    fn trouble(&self) -> Option<String> {
        lock(&self.received).trouble.clone()
    }

    /// Tells the server the machine's name, unless it comes from this very lease.
    fn set_hostname(&self, status: Option<&HostnameStatus>) {
        let received = lock(&self.received);
        // The first round is for the server to speak.
        let Some(Lease::V4(lease)) = &received.lease else { return };
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
