//! Is the network ready? Services wait for this.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_resource::files::EtcFileStatus;
use ichor_resource::network::{
    HostnameStatus, NetworkStatus, NodeAddress, ProbeStatus, RouteStatus, RouteType,
};

use crate::ids;

/// The id of the status.
pub const STATUS: &str = "status";
/// Files that must be there.
const ETC_FILES: [&str; 2] = ["hosts", "resolv.conf"];

/// Publishes the readiness of the network.
#[derive(Debug, Default)]
pub struct StatusController;

impl Controller for StatusController {
    const NAME: &'static str = "network.StatusController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<NodeAddress>().id("current"),
            weak::<RouteStatus>(),
            weak::<HostnameStatus>(),
            weak::<EtcFileStatus>(),
            weak::<ProbeStatus>(),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<NetworkStatus>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let current = ctx.get::<NodeAddress>("current")?;
        let probes = ctx.list::<ProbeStatus>()?;
        let connectivity_ready = if probes.is_empty() {
            let routes = ctx.list::<RouteStatus>()?;
            // Not the kernel's own "nowhere" route of IPv6.
            routes.iter().any(|route| route.dst.is_unset() && route.r#type == RouteType::UNICAST)
        } else {
            probes.iter().all(|probe| probe.success)
        };
        let mut etc_files_ready = true;
        for file in ETC_FILES {
            etc_files_ready &= ctx.get::<EtcFileStatus>(file)?.is_some();
        }
        let status = NetworkStatus {
            address_ready: current.is_some_and(|view| !view.addresses.is_empty()),
            connectivity_ready,
            hostname_ready: ctx.get::<HostnameStatus>(ids::HOSTNAME)?.is_some(),
            etc_files_ready,
        };
        ctx.publish([(STATUS, status)])?;
        Ok(())
    }
}
