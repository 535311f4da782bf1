//! A node of one controller family in namespaces of its own.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ichor_cosi::{Runtime, State, SystemClock};
use ichor_ctl_network::ports::{Dhcp, Running};
use ichor_ctl_network::system::{SystemHost, SystemKernel};
use ichor_ctl_network::{DevicesGate, Ports, register};
use ichor_net::cmdline::NetworkArgs;
use ichor_net::dhcp4::{self, Config, Event};
use ichor_net::{Netlink, dhcp6, link, netns};
use ichor_resource::config::MachineConfig;
use ichor_resource::network::NodeAddress;
use ichor_types::Cmdline;

pub(crate) type OnEvent = Arc<dyn Fn(Event) + Send + Sync>;

/// A DHCP client that hands its events to the test.
#[derive(Clone, Default)]
pub(crate) struct FakeDhcp(pub Arc<Mutex<Vec<(String, OnEvent)>>>);

impl Dhcp for FakeDhcp {
    fn start(
        &self,
        link: &str,
        _index: u32,
        _config: Config,
        _hostname: tokio::sync::watch::Receiver<dhcp4::client::Hostname>,
        on_event: OnEvent,
    ) -> Running {
        self.0.lock().unwrap().push((link.to_owned(), on_event));
        Running::nothing()
    }

    fn start6(
        &self,
        _link: &str,
        _index: u32,
        _config: dhcp6::Config,
        _on_event: Arc<dyn Fn(dhcp6::Event) + Send + Sync>,
    ) -> Running {
        Running::nothing()
    }
}

pub(crate) struct Node {
    pub state: State,
    pub controllers: Runtime,
    pub netlink: Netlink,
    pub dhcp: FakeDhcp,
    pub directory: PathBuf,
}

impl Node {
    /// Waits until `check` finds what it looks for.
    pub(crate) async fn wait<T>(&self, what: &str, mut check: impl FnMut(&State) -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = check(&self.state) {
                return found;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{what}: not within a minute");
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    }

    pub(crate) async fn wait_for_default(&self, address: &str) {
        self.wait(address, |state| {
            let view = state.get::<NodeAddress>("network", "default").ok()?;
            (view.addresses.first()?.to_string() == address).then_some(())
        })
        .await;
    }

    /// Gives the node a machine configuration, or another one.
    pub(crate) fn configure(&self, yaml: &str) {
        let config = || MachineConfig::new(yaml.as_bytes().to_vec());
        if self.state.create("config", MachineConfig::ACTIVE, config(), "").is_err() {
            self.state
                .update_with::<MachineConfig>("config", MachineConfig::ACTIVE, "", |spec, _| *spec = config())
                .unwrap();
        }
    }

    /// What a controller says it could not do.
    pub(crate) fn trouble(&self, controller: &str) -> Option<String> {
        let statuses = self.controllers.status();
        statuses.into_iter().find(|status| status.name == controller).expect("a controller").trouble
    }

    /// Waits until a controller's trouble is as wanted.
    pub(crate) async fn wait_for_trouble(&self, controller: &str, wanted: impl Fn(Option<&str>) -> bool) {
        let began = Instant::now();
        loop {
            let trouble = self.trouble(controller);
            if wanted(trouble.as_deref()) {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{controller} says {trouble:?}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Moves the other end of the wire into a namespace of its own and gives it addresses.
    pub(crate) async fn neighbour(&self, addresses: &[&str]) -> (OwnedFd, Netlink) {
        let far = netns::create().unwrap();
        link::move_to(&self.netlink, "far0", far.as_fd()).await.unwrap();
        let netlink = Netlink::open_in(far.as_fd()).unwrap();
        for address in addresses {
            link::add_address(&netlink, "far0", address.parse().unwrap()).await.unwrap();
        }
        link::set_up(&netlink, "far0", true).await.unwrap();
        (far, netlink)
    }
}

/// A node with a veth link `eth0`, its other end up, and leases handed out by the test.
pub(crate) fn on_a_node(cmdline: &str, test: impl AsyncFnOnce(&Node) + Send) {
    let dhcp = FakeDhcp::default();
    with_dhcp(cmdline, dhcp.clone(), dhcp, test);
}

/// As [`on_a_node`], with any DHCP client.
pub(crate) fn with_dhcp(
    cmdline: &str,
    dhcp: impl Dhcp,
    events: FakeDhcp,
    test: impl AsyncFnOnce(&Node) + Send,
) {
    on_platform("sandbox", cmdline, dhcp, events, test);
}

/// As [`with_dhcp`], on any platform.
pub(crate) fn on_platform(
    platform: &str,
    cmdline: &str,
    dhcp: impl Dhcp,
    events: FakeDhcp,
    test: impl AsyncFnOnce(&Node) + Send,
) {
    if !rustix::process::geteuid().is_root() {
        // Past the harness, which would keep it to itself.
        let _ = std::io::Write::write_all(
            &mut std::io::stderr(),
            b"skipped: needs root for network namespaces\n",
        );
        return;
    }
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            netns::isolate_thread().unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let netlink = Netlink::open().unwrap();
                link::create_veth_pair(&netlink, "eth0", "far0", None).await.unwrap();
                link::set_up(&netlink, "far0", true).await.unwrap();
                let directory = std::env::temp_dir().join(format!(
                    "ichor-net-{}-{:?}",
                    std::process::id(),
                    std::thread::current().id()
                ));
                let host = SystemHost::new(
                    directory.join("etc"),
                    directory.join("shadow"),
                    directory.join("resolv.conf"),
                    directory.clone(),
                );
                let state = State::new(SystemClock);
                let controllers = Runtime::new(state.clone());
                let ports = Ports {
                    kernel: SystemKernel::open().unwrap(),
                    host,
                    dhcp,
                    cmdline: NetworkArgs::parse(&Cmdline::parse(cmdline)).unwrap(),
                    devices: DevicesGate::OPEN,
                    platform: platform.to_owned(),
                    on_addresses: None,
                    seed: None,
                    random: 1,
                };
                register(&controllers, ports).unwrap();
                let node = Node {
                    state,
                    controllers: controllers.clone(),
                    netlink,
                    dhcp: events,
                    directory: directory.clone(),
                };
                tokio::select! {
                    () = controllers.run(std::future::pending()) => {}
                    () = test(&node) => {}
                }
                let _ = std::fs::remove_dir_all(&directory);
            });
        });
        if let Err(panic) = worker.join() {
            std::panic::resume_unwind(panic);
        }
    });
}
