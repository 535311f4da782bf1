//! The daemon: watches nodes, announces its own, keeps the kernel as it should be. Nothing in it polls.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ichor_kube::{Access, Client, Event, Kind, Patch, Select, Target, Write};
use ichor_net::link::vxlan::Vxlan;
use ichor_net::nftables::Chain;
use ichor_net::watch::{Topics, Watcher};
use ichor_rpc::Endpoint;
use ipnet::IpNet;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use crate::args::Args;
use crate::kernel::{Kernel, Links, told};
use crate::lease::{Lease, Vtep, condition};
use crate::net_conf::{Backend, NetConf};
use crate::plan::{View, wanted};
use crate::subnet_env::SubnetEnv;
use crate::uplink::{Uplink, choose};
use crate::{VERSION, masquerade};

/// Where a pod finds who it is.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const MANAGER: &str = "flannel";
/// Failures are tried again after this long, then twice that, up to the last.
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_LAST: Duration = Duration::from_secs(5);
/// Changes of links and routes come in bursts, one for each pod.
const SETTLE: Duration = Duration::from_secs(1);
/// Events that wait while the kernel is being changed; a watch that is further ahead waits too.
const EVENTS: usize = 64;
/// Bytes that packing adds.
const PACKING: u32 = 50;
const PACKING6: u32 = 70;

/// How to get a client: again whenever something failed, since tokens and authorities are replaced over time.
pub type Connect = Arc<dyn Fn() -> Result<Client, String> + Send + Sync>;

/// Runs until told to stop.
pub fn main(args: &[String]) -> ExitCode {
    let args = match Args::parse(args) {
        Ok(args) => args,
        Err(error) => return fail(&error.to_string()),
    };
    if args.version {
        println!("{VERSION}");
        return ExitCode::SUCCESS;
    }
    let text = fs::read_to_string(&args.net_config_path).map_err(|error| error.to_string());
    let conf = text.and_then(|text| NetConf::parse(&text).map_err(|error| told(&error)));
    let conf = match conf {
        Ok(conf) => conf,
        Err(error) => return fail(&format!("{}: {error}", args.net_config_path)),
    };
    ichor_pki::install_provider();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.to_string()),
    };
    let kubeconfig = args.kubeconfig.clone();
    let connect: Connect = Arc::new(move || connect(kubeconfig.as_deref()));
    runtime.block_on(async {
        let mut terminate = match signal(SignalKind::terminate()) {
            Ok(terminate) => terminate,
            Err(error) => return fail(&error.to_string()),
        };
        let ended = tokio::select! {
            // The network stays: pods live on without their daemon.
            _ = terminate.recv() => return ExitCode::SUCCESS,
            ended = run(args, conf, connect, own_name) => ended,
        };
        fail(&ended)
    })
}

fn fail(text: &str) -> ExitCode {
    eprintln!("flanneld: {text}");
    ExitCode::FAILURE
}

/// A client from a kubeconfig, or from what a pod is given.
fn connect(kubeconfig: Option<&str>) -> Result<Client, String> {
    let read = |path: &str| fs::read(path).map_err(|error| format!("read {path}: {error}"));
    let access = match kubeconfig {
        Some(path) => {
            let text = String::from_utf8_lossy(&read(path)?).into_owned();
            Access::from_kubeconfig(&text).map_err(|error| told(&error))?
        }
        None => {
            let variable = |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set"));
            let port = variable("KUBERNETES_SERVICE_PORT")?;
            let port = port.parse().map_err(|_| format!("KUBERNETES_SERVICE_PORT {port:?} is no port"))?;
            let token = String::from_utf8_lossy(&read(&format!("{ACCOUNT}/token"))?).trim().to_owned();
            Access {
                endpoint: Endpoint::new(variable("KUBERNETES_SERVICE_HOST")?, port),
                server_name: None,
                authorities: read(&format!("{ACCOUNT}/ca.crt"))?,
                identity: None,
                token: Some(token),
            }
        }
    };
    Client::new(&access).map_err(|error| told(&error))
}

/// The name of this node: told, or that of our pod's node.
async fn own_name(client: Client) -> Result<String, String> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if let Some(name) = variable("NODE_NAME") {
        return Ok(name);
    }
    let (Some(pod), Some(namespace)) = (variable("POD_NAME"), variable("POD_NAMESPACE")) else {
        return Err("neither NODE_NAME nor POD_NAME and POD_NAMESPACE are set".to_owned());
    };
    let pod = client.get(&Target::new(Kind::PODS, &namespace, &pod)).await.map_err(|error| error.chain())?;
    pod["spec"]["nodeName"].as_str().map(str::to_owned).ok_or_else(|| "our pod is on no node".to_owned())
}

/// Does everything until something happens that cannot be repaired from here.
pub async fn run<N, F>(args: Args, conf: NetConf, connect: Connect, name: N) -> String
where
    N: Fn(Client) -> F,
    F: Future<Output = Result<String, String>>,
{
    let mut patience = Patience::default();
    let own = loop {
        let found = match connect() {
            Ok(client) => name(client).await,
            Err(error) => Err(error),
        };
        match found {
            Ok(own) => break own,
            Err(error) => sleep(patience.after(&error)).await,
        }
    };
    let (kernel, mut changes) = match Kernel::open().and_then(|kernel| {
        let watcher = Watcher::open(Topics::LINKS | Topics::ADDRESSES | Topics::ROUTES)?;
        Ok((kernel, watcher))
    }) {
        Ok(opened) => opened,
        Err(error) => return told(&error),
    };
    let (events, mut incoming) = mpsc::channel(EVENTS);
    let follower = follow(connect.clone(), args.annotation_prefix.clone(), events);
    tokio::pin!(follower);
    let mut daemon = Daemon {
        args,
        networks: conf.networks().collect(),
        conf,
        own,
        connect,
        kernel,
        nodes: BTreeMap::new(),
        done: Done::default(),
        told: Vec::new(),
    };
    let mut patience = Patience::default();
    // When to look at the kernel because it changed, and when to try again what failed.
    let (mut look, mut again): (Option<Instant>, Option<Instant>) = (None, None);
    loop {
        let due = look.into_iter().chain(again).min();
        tokio::select! {
            () = &mut follower => return "the watch of nodes ended".to_owned(),
            Some(news) = incoming.recv() => daemon.learn(news),
            changed = changes.changed() => match changed {
                Ok(()) => {
                    look = look.or(Some(Instant::now() + SETTLE));
                    continue;
                }
                Err(error) => return told(&error),
            },
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                daemon.done.looked_at = None;
                look = None;
            }
        }
        while let Ok(news) = incoming.try_recv() {
            daemon.learn(news);
        }
        again = match daemon.reconcile().await {
            Ok(()) => {
                patience = Patience::default();
                None
            }
            Err(error) => Some(Instant::now() + patience.after(&error)),
        };
    }
}

/// Longer and longer waits; a failure is said once.
#[derive(Default)]
struct Patience {
    next: Option<Duration>,
    said: String,
}

impl Patience {
    fn after(&mut self, error: &str) -> Duration {
        if self.said != error {
            eprintln!("flanneld: {error}");
            error.clone_into(&mut self.said);
        }
        let wait = self.next.unwrap_or(RETRY_FIRST);
        self.next = Some((wait * 2).min(RETRY_LAST));
        wait
    }
}

/// What is new about nodes.
#[derive(Debug)]
enum News {
    All(BTreeMap<String, Lease>),
    One(String, Option<Lease>),
}

/// Tells about nodes, forever. Nodes are large; what is kept of them is small.
async fn follow(connect: Connect, prefix: String, events: mpsc::Sender<News>) {
    let read = |node: &Value| {
        let name = node["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        (name, Lease::of(node, &prefix))
    };
    let mut patience = Patience::default();
    loop {
        let error = match connect() {
            Ok(client) => {
                let mut watch = client.watch(Kind::NODES, "", Select::default());
                loop {
                    let news = match watch.next().await {
                        Ok(Event::Listed(nodes)) => News::All(nodes.iter().map(read).collect()),
                        Ok(Event::Changed(node)) => {
                            let (name, lease) = read(&node);
                            News::One(name, Some(lease))
                        }
                        Ok(Event::Gone(node)) => News::One(read(&node).0, None),
                        Err(error) => break error.chain(),
                    };
                    patience = Patience::default();
                    if events.send(news).await.is_err() {
                        return;
                    }
                }
            }
            Err(error) => error,
        };
        sleep(patience.after(&error)).await;
    }
}

/// What was done last, so that it is not done again.
#[derive(Default)]
struct Done {
    env: String,
    chain: Option<Chain>,
    /// Nodes as they were when the kernel was last looked at.
    looked_at: Option<BTreeMap<String, Lease>>,
}

struct Daemon {
    args: Args,
    conf: NetConf,
    networks: Vec<IpNet>,
    own: String,
    connect: Connect,
    kernel: Kernel,
    nodes: BTreeMap<String, Lease>,
    done: Done,
    told: Vec<String>,
}

impl Daemon {
    fn learn(&mut self, news: News) {
        match news {
            News::All(nodes) => self.nodes = nodes,
            News::One(name, Some(lease)) => drop(self.nodes.insert(name, lease)),
            News::One(name, None) => drop(self.nodes.remove(&name)),
        }
    }

    /// Makes everything as it should be, where anything changed.
    async fn reconcile(&mut self) -> Result<(), String> {
        if self.done.looked_at.as_ref() == Some(&self.nodes) {
            return Ok(());
        }
        let Some(own) = self.nodes.get(&self.own).cloned() else {
            return Err(format!("waiting for node {}", self.own));
        };
        let missing = self.networks.iter().find(|net| own.subnet(net.addr().is_ipv6()).is_none());
        if let Some(net) = missing {
            return Err(format!("waiting for a part of {net} for node {}", self.own));
        }
        let uplink = self.uplink(&own).await?;
        let (lease, links, mtu) = self.join(&own, &uplink).await?;
        self.masquerade(&own)?;
        self.tell_plugin(&own, mtu)?;
        self.announce(&own, &lease).await?;

        let view = View {
            own: &self.own,
            backend: self.conf.backend,
            networks: &self.networks,
            neighbourhood: &uplink.neighbourhood,
        };
        let (items, mut troubles) = wanted(&view, &self.nodes);
        let failed = self.kernel.apply(links, &items).await;
        let ok = failed.is_empty();
        troubles.extend(failed);
        for trouble in troubles.iter().filter(|trouble| !self.told.contains(trouble)) {
            eprintln!("flanneld: {trouble}");
        }
        self.told = troubles;
        if !ok {
            return Err("not all nodes are joined".to_owned());
        }
        self.done.looked_at = Some(self.nodes.clone());
        Ok(())
    }

    async fn uplink(&self, own: &Lease) -> Result<Uplink, String> {
        let host = self.kernel.host().await.map_err(|error| told(&error))?;
        let source = match &self.args.iface_can_reach {
            Some(to) => Some(source_towards(to).map_err(|error| format!("reach {to}: {error}"))?),
            None => None,
        };
        choose(&host, &self.args.iface, source, &own.internal)
    }

    /// This node's ends of the overlay, and what it says of itself.
    async fn join(&self, own: &Lease, uplink: &Uplink) -> Result<(Lease, Links, u32), String> {
        let parse = |text: &Option<String>| match text {
            Some(text) => text.parse::<IpAddr>().map(Some).map_err(|_| format!("{text} is not an address")),
            None => Ok(None),
        };
        let mut lease = Lease { backend: self.conf.backend.name().to_owned(), ..Lease::default() };
        let mut links = Links { uplink: uplink.index, ..Links::default() };
        let mut mtu = uplink.mtu;
        for network in &self.networks {
            let v6 = network.addr().is_ipv6();
            let local = if v6 { uplink.v6 } else { uplink.v4 };
            let local = local.ok_or_else(|| format!("link {} has no address for {network}", uplink.name))?;
            let (said, overwrite) = match v6 {
                false => (parse(&self.args.public_ip)?, own.overwrite.map(IpAddr::V4)),
                true => (parse(&self.args.public_ipv6)?, own.overwrite6.map(IpAddr::V6)),
            };
            match overwrite.or(said).unwrap_or(local) {
                IpAddr::V4(ip) if !v6 => lease.public = Some(ip),
                IpAddr::V6(ip) if v6 => lease.public6 = Some(ip),
                other => return Err(format!("{other} is of the wrong family for {network}")),
            }
            let Backend::Vxlan { id, port, mtu: fixed, .. } = self.conf.backend else { continue };
            let inner = fixed.unwrap_or(uplink.mtu.saturating_sub(if v6 { PACKING6 } else { PACKING }));
            mtu = mtu.min(inner);
            let settings =
                Vxlan { id, port, local: Some(local), parent_index: uplink.index, learning: false };
            let name = if v6 { format!("flannel-v6.{id}") } else { format!("flannel.{id}") };
            let base = own.subnet(v6).map(|subnet| IpNet::from(subnet.network()));
            let base = base.ok_or_else(|| format!("no part of {network}"))?;
            let made = self.kernel.overlay(&name, settings, inner, base).await;
            let (index, mac) = made.map_err(|error| told(&error))?;
            let vtep = Some(Vtep { id, mac });
            match v6 {
                false => (links.overlay, lease.vtep) = (Some(index), vtep),
                true => (links.overlay6, lease.vtep6) = (Some(index), vtep),
            }
        }
        Ok((lease, links, mtu))
    }

    fn masquerade(&mut self, own: &Lease) -> Result<(), String> {
        let chain = self.args.ip_masq.then(|| masquerade::chain(&self.networks, &own.subnets));
        if chain.is_some() && self.done.chain == chain {
            return Ok(());
        }
        masquerade::program(chain.clone()).map_err(|error| told(&error))?;
        self.done.chain = chain;
        Ok(())
    }

    fn tell_plugin(&mut self, own: &Lease, mtu: u32) -> Result<(), String> {
        let subnets = self.networks.iter().filter_map(|net| own.subnet(net.addr().is_ipv6()));
        let env = SubnetEnv {
            networks: self.networks.clone(),
            subnets: subnets
                .filter_map(|net| IpNet::new(net.hosts().next()?, net.prefix_len()).ok())
                .collect(),
            mtu,
            ip_masq: self.args.ip_masq,
        };
        let text = env.text();
        let path = Path::new(&self.args.subnet_file);
        if self.done.env != text || !path.exists() {
            write(path, &text).map_err(|error| format!("write {}: {error}", path.display()))?;
            eprintln!(
                "flanneld: pods of node {} are in {}",
                self.own,
                text.lines().nth(1).unwrap_or_default()
            );
            self.done.env = text;
        }
        Ok(())
    }

    async fn announce(&mut self, own: &Lease, lease: &Lease) -> Result<(), String> {
        // The status of a node is its own; the rest is not ours to write.
        let kind = Kind { plural: format!("nodes/{}", self.own).into(), ..Kind::NODES };
        let target = Target::new(kind, "", "status");
        let condition = match self.args.set_node_network_unavailable {
            true => condition(own, &now()),
            false => None,
        };
        let mut change = json!({});
        if !lease.announces(own) {
            change["metadata"]["annotations"] = lease.annotations(&self.args.annotation_prefix);
        }
        if let Some(condition) = condition {
            change["status"]["conditions"] = json!([condition]);
        }
        if change == json!({}) {
            return Ok(());
        }
        let client = (self.connect)()?;
        let node = client.patch(&target, Patch::Strategic, &change, Write::by(MANAGER)).await;
        self.know(&node.map_err(|error| error.chain())?);
        Ok(())
    }

    /// Our own node, fresher than the watch has it.
    fn know(&mut self, node: &Value) {
        let lease = Lease::of(node, &self.args.annotation_prefix);
        self.nodes.insert(self.own.clone(), lease);
    }
}

/// The address that packets to another one would come from; nothing is sent.
fn source_towards(to: &str) -> io::Result<IpAddr> {
    let to: IpAddr = to.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect((to, 9))?;
    Ok(socket.local_addr()?.ip())
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    ichor_sys::file::replace(path, text.as_bytes(), 0o644)
}

fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
