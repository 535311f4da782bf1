//! Tells listeners of the events API when this node's name or addresses change.

use std::fmt;
use std::sync::Arc;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, weak};
use ichor_resource::network::{HostnameStatus, NodeAddress};

use crate::ids;

/// The view that is told.
const ADDRESSES: &str = "current-no-k8s";

/// Called with host name and addresses.
pub type OnAddresses = Arc<dyn Fn(&str, &[String]) + Send + Sync>;

/// Publishes address events.
pub struct AddressEventController {
    on_addresses: OnAddresses,
    told: Option<(String, Vec<String>)>,
}

impl AddressEventController {
    /// Tells this listener.
    pub fn new(on_addresses: OnAddresses) -> Self {
        Self { on_addresses, told: None }
    }
}

impl fmt::Debug for AddressEventController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressEventController").field("told", &self.told).finish_non_exhaustive()
    }
}

impl Controller for AddressEventController {
    const NAME: &'static str = "network.AddressEventController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<NodeAddress>().id(ADDRESSES), weak::<HostnameStatus>().id(ids::HOSTNAME)]
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let hostname = ctx.get::<HostnameStatus>(ids::HOSTNAME)?;
        let hostname = hostname.map(|status| status.hostname.clone()).unwrap_or_default();
        let view = ctx.get::<NodeAddress>(ADDRESSES)?;
        let prefixes = view.iter().flat_map(|view| view.addresses.iter().filter_map(|net| net.get()));
        let addresses: Vec<String> = prefixes.map(|net| net.addr().to_string()).collect();
        let now = (hostname, addresses);
        if self.told.as_ref() != Some(&now) {
            (self.on_addresses)(&now.0, &now.1);
            self.told = Some(now);
        }
        Ok(())
    }
}
