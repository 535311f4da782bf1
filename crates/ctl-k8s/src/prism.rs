//! The local balancer in front of the Kubernetes API: where it listens and whom it may ask.

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use ichor_config::Documents;
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Wake, exclusive, weak};
use ichor_ctl::{Configuration, active_input};
use ichor_net::balancer::Balancer;
use ichor_resource::cluster::Member;
use ichor_resource::k8s::{KubePrismConfig, KubePrismEndpoint, KubePrismEndpoints, KubePrismStatus};

use crate::settings::is_control_plane;

const ENDPOINTS: &str = "k8s-cluster";
const CONFIG: &str = "k8s-loadbalancer-config";
const STATUS: &str = "k8s-loadbalancer";
/// A port that is taken is tried again this soon.
const BIND_RETRY: Duration = Duration::from_secs(2);

/// Writes `KubePrismEndpoints/k8s-cluster`.
#[derive(Debug, Default)]
pub struct EndpointsController;

impl Controller for EndpointsController {
    const NAME: &'static str = "k8s.KubePrismEndpointsController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input(), weak::<Member>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<KubePrismEndpoints>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = Configuration::active(ctx)?;
        let members = ctx.list::<Member>()?;
        let found = members.iter().filter_map(|member| {
            let port = member.control_plane.as_ref().and_then(|plane| u32::try_from(plane.port).ok())?;
            Some(member.addresses.iter().map(move |address| (address.to_string(), port)))
        });
        let found: Vec<(String, u32)> = found.flatten().collect();
        let config = config.as_deref().filter(|config| config.kube_prism_port().is_some());
        ctx.publish(
            config.map(|config| (ENDPOINTS, KubePrismEndpoints { endpoints: endpoints(config, found) })),
        )?;
        Ok(())
    }
}

/// The endpoint of the cluster, this node's own server, and those of members; each once.
fn endpoints(config: &Documents, members: Vec<(String, u32)>) -> Vec<KubePrismEndpoint> {
    let mut all = Vec::new();
    if let Some(url) = config.cluster_endpoint() {
        all.push((url.hostname().to_owned(), url.port().parse().unwrap_or(443)));
    }
    if is_control_plane(config) {
        all.push(("localhost".to_owned(), config.api_server_port().into()));
    }
    all.extend(members);
    let mut seen = BTreeSet::new();
    all.retain(|endpoint| seen.insert(endpoint.clone()));
    all.into_iter().map(|(host, port)| KubePrismEndpoint { host, port }).collect()
}

/// Writes `KubePrismConfigs/k8s-loadbalancer-config`.
#[derive(Debug, Default)]
pub struct ConfigController;

impl Controller for ConfigController {
    const NAME: &'static str = "k8s.KubePrismConfigController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input(), weak::<KubePrismEndpoints>().id(ENDPOINTS)]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<KubePrismConfig>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = Configuration::active(ctx)?;
        let port = config.as_deref().and_then(Documents::kube_prism_port);
        let endpoints = ctx.get::<KubePrismEndpoints>(ENDPOINTS)?.map(|found| found.endpoints.clone());
        let wanted = port.zip(endpoints).map(|(port, endpoints)| {
            (CONFIG, KubePrismConfig { host: "127.0.0.1".to_owned(), port: port.into(), endpoints })
        });
        ctx.publish(wanted)?;
        Ok(())
    }
}

/// Where the balancer gets its socket from.
pub trait Listen: Send + Sync + 'static {
    /// A listening socket at this address.
    fn bind(&self, address: SocketAddr) -> io::Result<TcpListener>;
    /// The socket is not needed any more.
    fn release(&self);
}

/// Runs the balancer and writes `KubePrismStatuses/k8s-loadbalancer`.
pub struct KubePrismController<L> {
    listen: L,
    wake: Option<Wake>,
    running: Option<Running>,
}

struct Running {
    address: SocketAddr,
    upstreams: Vec<String>,
    balancer: Balancer,
}

impl<L: Listen> KubePrismController<L> {
    /// A balancer on sockets of this kind.
    pub fn new(listen: L) -> Self {
        Self { listen, wake: None, running: None }
    }

    /// Starts the balancer, unless it runs there already.
    fn run_at(&mut self, address: SocketAddr) -> io::Result<&mut Running> {
        let kept = self.running.take().filter(|old| old.address == address && old.balancer.is_running());
        let running = match kept {
            Some(running) => running,
            None => {
                let wake = self.wake.clone();
                let balancer = Balancer::start(self.listen.bind(address)?, move || {
                    if let Some(wake) = &wake {
                        wake.wake();
                    }
                })?;
                tracing::info!(endpoint = %address, "KubePrism is enabled");
                Running { address, upstreams: Vec::new(), balancer }
            }
        };
        Ok(self.running.insert(running))
    }
}

impl<L: Listen> Controller for KubePrismController<L> {
    const NAME: &'static str = "k8s.KubePrismController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<KubePrismConfig>().id(CONFIG)]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<KubePrismStatus>()]
    }

    fn start(&mut self, wake: Wake) {
        self.wake = Some(wake);
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let Some(config) = ctx.get::<KubePrismConfig>(CONFIG)? else {
            if self.running.take().is_some() {
                self.listen.release();
                tracing::info!("KubePrism is disabled");
            }
            ctx.publish::<KubePrismStatus>(std::iter::empty::<(&str, _)>())?;
            return Ok(());
        };
        let address = config.host.parse().ok().zip(u16::try_from(config.port).ok());
        let Some(address) = address.map(|(host, port)| SocketAddr::new(host, port)) else {
            ctx.trouble(format!("cannot listen on {}:{}", config.host, config.port));
            return Ok(());
        };
        let running = match self.run_at(address) {
            Ok(running) => running,
            Err(error) => {
                ctx.trouble(format!("listen on {address}: {error}"));
                ctx.requeue_after(BIND_RETRY);
                ctx.publish::<KubePrismStatus>(std::iter::empty::<(&str, _)>())?;
                return Ok(());
            }
        };
        let upstreams: Vec<String> = config.endpoints.iter().map(dialled).collect();
        if running.upstreams != upstreams {
            running.balancer.set_upstreams(upstreams.clone());
            running.upstreams = upstreams;
        }
        let healthy = running.balancer.healthy();
        ctx.publish([(STATUS, KubePrismStatus { host: address.to_string(), healthy })])?;
        Ok(())
    }
}

/// `host:port`, with brackets around what has colons of its own.
fn dialled(endpoint: &KubePrismEndpoint) -> String {
    match endpoint.host.contains(':') {
        true => format!("[{}]:{}", endpoint.host, endpoint.port),
        false => format!("{}:{}", endpoint.host, endpoint.port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "version: v1alpha1
machine:
  type: controlplane
  features: {kubePrism: {enabled: true}}
cluster:
  controlPlane: {endpoint: 'https://api.example:6443'}
";

    #[test]
    fn every_way_to_the_api_is_listed_once() {
        let config = Documents::load(CONFIG.as_bytes()).unwrap();
        let members = vec![("10.5.0.2".to_owned(), 6443), ("10.5.0.2".to_owned(), 6443)];
        let shown: Vec<String> = endpoints(&config, members)
            .iter()
            .map(|endpoint| format!("{}:{}", endpoint.host, endpoint.port))
            .collect();
        assert_eq!(shown, ["api.example:6443", "localhost:6443", "10.5.0.2:6443"]);
        let worker =
            Documents::load(CONFIG.replace("controlplane", "worker").replace(":6443", "").as_bytes())
                .unwrap();
        assert_eq!(
            endpoints(&worker, Vec::new()),
            [KubePrismEndpoint { host: "api.example".into(), port: 443 }]
        );
    }

    #[derive(Clone, Default)]
    struct Sockets(std::sync::Arc<std::sync::atomic::AtomicU32>);

    impl Listen for Sockets {
        fn bind(&self, address: SocketAddr) -> io::Result<TcpListener> {
            TcpListener::bind(address)
        }

        fn release(&self) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn the_balancer_runs_as_configured_and_its_health_is_shown() {
        let (state, _clock) = ichor_testkit::state();
        let sockets = Sockets::default();
        let mut harness =
            ichor_testkit::Harness::new(&state, KubePrismController::new(sockets.clone())).unwrap();
        state.register::<KubePrismConfig>();
        harness.reconcile().await.unwrap();
        assert!(state.list::<KubePrismStatus>("k8s").is_empty());

        let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = upstream.local_addr().unwrap().port();
        // Probes and clients, in any order and number: a dial that takes long is overtaken by another. The thread ends
        // with the process.
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            for mut stream in upstream.incoming().take(64).map_while(Result::ok) {
                let _ = io::Write::write_all(&mut stream, b"hello");
                kept.push(stream);
            }
        });
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = KubePrismConfig {
            host: "127.0.0.1".into(),
            port: free.into(),
            endpoints: vec![KubePrismEndpoint { host: "localhost".into(), port: port.into() }],
        };
        state.create("k8s", super::CONFIG, config, "").unwrap();
        harness.reconcile().await.unwrap();
        let mut client = std::net::TcpStream::connect(("127.0.0.1", free)).unwrap();
        client.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
        let mut text = [0; 5];
        io::Read::read_exact(&mut client, &mut text).unwrap();
        assert_eq!(&text, b"hello");
        assert!(harness.was_woken().await, "health turned");
        harness.reconcile().await.unwrap();
        let status = state.get::<KubePrismStatus>("k8s", STATUS).unwrap();
        assert_eq!((status.host.as_str(), status.healthy), (format!("127.0.0.1:{free}").as_str(), true));

        state.destroy::<KubePrismConfig>("k8s", super::CONFIG, "").unwrap();
        harness.reconcile().await.unwrap();
        assert!(state.list::<KubePrismStatus>("k8s").is_empty());
        assert_eq!(sockets.0.load(std::sync::atomic::Ordering::Relaxed), 1);
    }

    #[test]
    fn addresses_with_colons_are_bracketed() {
        let endpoint = |host: &str| dialled(&KubePrismEndpoint { host: host.into(), port: 6443 });
        assert_eq!([endpoint("fd00::1"), endpoint("a.b")], ["[fd00::1]:6443", "a.b:6443"]);
    }
}
