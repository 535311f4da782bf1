//! Addresses of the control plane, from the URL in the machine configuration.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, shared};
use ichor_ctl::{Configuration, active_input};
use ichor_resource::k8s::Endpoint;
use ichor_resource::value::Ip;
use tracing::warn;

/// Names may come to mean other addresses.
const LOOK_AGAIN: Duration = Duration::from_secs(5 * 60);
/// A name that does not resolve is tried again this often.
const RETRY: Duration = Duration::from_secs(10);

/// Turns names into addresses.
pub trait Resolve: Send + Sync + 'static {
    /// All addresses of a host.
    fn resolve(&self, host: &str) -> impl Future<Output = io::Result<Vec<IpAddr>>> + Send;
}

/// Writes `Endpoints/controlplane`.
#[derive(Debug, Default)]
pub struct StaticEndpoint<R> {
    resolver: R,
}

impl<R: Resolve> StaticEndpoint<R> {
    /// A controller that resolves names with this port.
    pub fn new(resolver: R) -> Self {
        Self { resolver }
    }
}

impl<R: Resolve> Controller for StaticEndpoint<R> {
    const NAME: &'static str = "k8s.StaticEndpointController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<Endpoint>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let configuration = Configuration::active(ctx)?;
        let host = configuration
            .as_ref()
            .and_then(|documents| {
                documents.root()?.cluster.as_ref()?.control_plane.as_ref()?.endpoint.as_ref()
            })
            .map(|url| url.hostname().to_owned())
            .filter(|host| !host.is_empty());
        let Some(host) = host else {
            return Ok(ctx.publish::<Endpoint>([] as [(&str, Endpoint); 0])?);
        };
        let mut addresses = match host.parse::<IpAddr>() {
            Ok(address) => vec![address],
            Err(_) => match self.resolver.resolve(&host).await {
                Ok(addresses) => {
                    ctx.requeue_after(LOOK_AGAIN);
                    addresses
                }
                Err(error) => {
                    // What was found before is better than nothing.
                    warn!(host, %error, "the control plane endpoint does not resolve");
                    ctx.trouble(format!("the control plane endpoint {host} does not resolve: {error}"));
                    ctx.requeue_after(RETRY);
                    return Ok(());
                }
            },
        };
        addresses.sort_unstable();
        addresses.dedup();
        let spec = Endpoint { addresses: addresses.into_iter().map(Ip::from).collect() };
        Ok(ctx.publish([("controlplane", spec)])?)
    }
}
