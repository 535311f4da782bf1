//! The maintenance service: runs while somebody asks for it, on the port the gateway takes later.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use ichor_cosi::{
    Context, Controller, ControllerError, Input, Output, StateError, exclusive, shared, strong, weak,
};
use ichor_pki::CertInfo;
use ichor_resource::config::MachineConfig;
use ichor_resource::network::NodeAddress;
use ichor_resource::runtime::{MaintenanceServiceConfig, MaintenanceServiceRequest};
use ichor_resource::secrets::MaintenanceServiceCertificate;
use ichor_resource::value::Ip;
use ichor_rpc::ServerTls;

use crate::api::server::serve_maintenance;
use crate::daemons::APID_PORT;
use crate::node::Node;

/// The controller's name, also the owner of what clients hand in.
pub const NAME: &str = "runtime.MaintenanceServiceController";

/// The one id of everything about the service.
const ID: &str = "maintenance";

/// The addresses this machine has now.
const CURRENT: &str = "current";

/// Serves the maintenance API on request.
pub struct MaintenanceServiceController {
    node: Arc<Node>,
    api: Handle,
    tls: ServerTls,
    server: Option<Server>,
    fingerprint: String,
}

struct Server {
    address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl MaintenanceServiceController {
    /// A controller that serves on the runtime `api`.
    pub fn new(node: Arc<Node>, api: Handle) -> Self {
        Self { node, api, tls: ServerTls::new(), server: None, fingerprint: String::new() }
    }

    async fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop.cancel();
            // Ends by itself within the drain time of the server.
            let _ = server.task.await;
            info!("the maintenance service is gone");
        }
    }

    async fn start(&mut self, address: SocketAddr) -> Result<(), ControllerError> {
        if self.server.as_ref().is_some_and(|server| server.address == address && !server.task.is_finished())
        {
            return Ok(());
        }
        self.stop().await;
        let (node, tls, stop) = (Arc::clone(&self.node), self.tls.clone(), CancellationToken::new());
        let stopped = stop.clone();
        // Bound on the runtime that serves: a socket belongs to one reactor.
        let bound = self.api.spawn(async move { listen(address).await }).await?;
        let listener =
            bound.map_err(|error| ControllerError::new(format!("listen on {address}: {error}")))?;
        let task = self.api.spawn(async move {
            if let Err(error) = serve_maintenance(node, listener, &tls, stopped).await {
                error!(%error, "the maintenance service ended");
            }
        });
        self.server = Some(Server { address, stop, task });
        Ok(())
    }

    fn tell(&mut self, certificate: &[u8], config: &MaintenanceServiceConfig) {
        let fingerprint = CertInfo::parse(certificate).map(|info| info.spki_fingerprint).unwrap_or_default();
        if fingerprint != self.fingerprint {
            info!("this machine waits for a configuration; certificate fingerprint: {fingerprint}");
            for address in &config.reachable_addresses {
                info!("upload one with: apply-config --insecure --nodes {address} --file <config.yaml>");
            }
            self.fingerprint = fingerprint;
        }
    }
}

/// Says where the maintenance service listens and where it can be reached.
#[derive(Debug, Default)]
pub struct MaintenanceConfigController;

impl Controller for MaintenanceConfigController {
    const NAME: &'static str = "runtime.MaintenanceConfigController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<NodeAddress>().id(CURRENT)]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<MaintenanceServiceConfig>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let addresses = ctx.get::<NodeAddress>(CURRENT)?;
        let reachable: Vec<Ip> = addresses
            .iter()
            .flat_map(|found| &found.addresses)
            .filter_map(|prefix| Some(Ip::from(prefix.get()?.addr())))
            .collect();
        ctx.modify::<MaintenanceServiceConfig>(ID, |spec| {
            spec.listen_address = format!(":{APID_PORT}");
            spec.reachable_addresses.clone_from(&reachable);
        })?;
        Ok(())
    }
}

/// Listens on an address; without IPv6 in the kernel, on the same port of IPv4.
async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(_) if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        bound => bound,
    }
}

/// The address in the configuration, such as `:50000`; nothing means everywhere.
fn listen_address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    let port = if port.is_empty() { APID_PORT } else { port.parse().ok()? };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let ip = if host.is_empty() { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { host.parse().ok()? };
    Some(SocketAddr::new(ip, port))
}

impl Controller for MaintenanceServiceController {
    const NAME: &'static str = NAME;

    fn inputs(&self) -> Vec<Input> {
        vec![
            strong::<MaintenanceServiceRequest>().id(ID),
            weak::<MaintenanceServiceConfig>().id(ID),
            weak::<MaintenanceServiceCertificate>().id(ID),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<MachineConfig>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let request = ctx.get::<MaintenanceServiceRequest>(ID)?;
        if !request.as_ref().is_some_and(|request| request.meta().is_running()) {
            self.stop().await;
            match ctx.destroy::<MachineConfig>(MachineConfig::MAINTENANCE) {
                Ok(()) | Err(StateError::NotFound(_)) => {}
                Err(error) => return Err(error.into()),
            }
            if request.is_some() {
                ctx.remove_finalizer::<MaintenanceServiceRequest>(ID)?;
            }
            return Ok(());
        }
        ctx.add_finalizer::<MaintenanceServiceRequest>(ID)?;
        let (Some(config), Some(certificate)) =
            (ctx.get::<MaintenanceServiceConfig>(ID)?, ctx.get::<MaintenanceServiceCertificate>(ID)?)
        else {
            return Ok(());
        };
        let Some(server) = &certificate.server else { return Ok(()) };
        self.tls.set_certificate(&server.crt, &server.key)?;
        let Some(address) = listen_address(&config.listen_address) else {
            let text = format!("cannot listen on {:?}", config.listen_address);
            return Err(ControllerError::new(text));
        };
        self.start(address).await?;
        self.tell(&server.crt, &config);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_addresses_are_read() {
        for (text, expected) in [
            (":50000", Some("[::]:50000")),
            ("", Some("[::]:50000")),
            ("[fd00::1]:50000", Some("[fd00::1]:50000")),
            ("10.0.0.1:7", Some("10.0.0.1:7")),
            ("nonsense:x", None),
        ] {
            assert_eq!(listen_address(text).map(|at| at.to_string()).as_deref(), expected, "{text}");
        }
    }

    #[tokio::test]
    async fn the_service_is_reached_at_the_current_addresses() {
        let (state, _) = ichor_testkit::state();
        let mut harness = ichor_testkit::Harness::new(&state, MaintenanceConfigController).unwrap();
        let addresses = NodeAddress {
            addresses: vec!["10.5.0.2/24".parse().unwrap(), "fd00::2/64".parse().unwrap()],
            ..NodeAddress::default()
        };
        state.create("network", CURRENT, addresses, "").unwrap();
        harness.reconcile().await.unwrap();
        let config = state.get::<MaintenanceServiceConfig>("runtime", ID).unwrap();
        assert_eq!(config.listen_address, ":50000");
        let reachable: Vec<_> = config.reachable_addresses.iter().map(ToString::to_string).collect();
        assert_eq!(reachable, ["10.5.0.2", "fd00::2"]);
    }
}
