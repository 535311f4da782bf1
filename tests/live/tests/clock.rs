//! A whole control plane on a real kernel while its clock moves forward: first past half of the life of the certificates
//! of Kubernetes, then past half of the life of etcd's, when all others have ended long ago.
//!
//! The machine starts five years behind. Tools of the host look at it through a [`window`], which judges certificates by
//! the machine's clock.

#[path = "clock/window.rs"]
mod window;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ichor_config::generate::Secrets;
use ichor_config::values::PemPair;
use ichor_live::vm::{Machine, TimeServer};
use ichor_live::{Fleet, free_port, root, wait};
use ichor_pki::{Authority, CertInfo, ExtendedUsage, Leaf};
use ichor_types::VersionContract;
use jiff::SignedDuration;
use window::{Clock, Window};

/// Longest wait for a step: no hardware helps, and the host may be busy.
const STEP_MAX: Duration = Duration::from_secs(900);
/// How long everything has to go on in the end without a failure.
const CALM: Duration = Duration::from_secs(20);

const DAY: i64 = 24 * 60 * 60;
/// Where the machine begins, and where it is after the first jump, behind the host: certificates of a year are then older
/// than half of it, those of ten years only at the end.
const START: i64 = 1840 * DAY;
const MIDDLE: i64 = 1640 * DAY;

/// The machine's own address.
const MACHINE: &str = "10.0.2.15";

/// Files with certificates that live a year.
const YEAR: [&str; 5] = [
    "kubernetes/kube-apiserver/apiserver.crt",
    "kubernetes/kube-apiserver/apiserver-kubelet-client.crt",
    "kubernetes/kube-apiserver/front-proxy-client.crt",
    "kubernetes/kube-controller-manager/kubeconfig",
    "kubernetes/kube-scheduler/kubeconfig",
];
/// And those that live ten.
const DECADE: [&str; 4] =
    ["etcd/server.crt", "etcd/peer.crt", "etcd/admin.crt", "kubernetes/kube-apiserver/etcd-client.crt"];
/// The pods that are started anew with their certificates, for they read them once.
const PODS: [&str; 3] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];

/// Between two tries: asking costs the processors that the machine computes with.
const PAUSE: Duration = Duration::from_secs(1);

/// Repeats `attempt` until it works, without hurry.
fn eventually<T>(what: &str, attempt: impl Fn() -> Result<T>) -> Result<T> {
    ichor_live::eventually(what, STEP_MAX, || attempt().inspect_err(|_| std::thread::sleep(PAUSE)))
}

/// The machine and all that leads to it.
struct Lab {
    fleet: Fleet,
    clock: Clock,
    time: TimeServer,
    runtime: tokio::runtime::Runtime,
    api: Window,
    etcd: Window,
    talosconfig: String,
    window: String,
    start: Instant,
    _machine: Machine,
}

fn authority(pair: Option<&PemPair>) -> Result<Arc<Authority>> {
    let pair = pair.context("no authority")?;
    Ok(Arc::new(Authority::from_pem(&pair.crt.0, &pair.key.0)?))
}

impl Lab {
    /// Starts the machine, gives it a configuration and has it begin a cluster.
    fn start() -> Result<Self> {
        let start = Instant::now();
        let fleet = Fleet::named("clock-k8s", 90)?;
        let (window, address) = (fleet.loopback(3), fleet.loopback(4));
        let clock = Clock::default();
        clock.set_behind(START);
        let time = TimeServer::start()?;
        let past = clock.now().strftime("base=%Y-%m-%dT%H:%M:%S").to_string();
        let forward: String =
            [6443, 2379].map(|port| format!(",hostfwd=tcp:{address}:{port}-:{port}")).concat();
        let settings = [
            ("ICHOR_VM_RESTRICT", "off"),
            ("ICHOR_VM_MEMORY", "4096"),
            ("ICHOR_VM_FORWARD", forward.as_str()),
        ];
        let machine = Machine::boot_with(&address, &["-rtc", &past], &settings)?;

        let secrets =
            Secrets::generate(clock.now() - SignedDuration::from_hours(1), VersionContract::CURRENT)?;
        let certs = secrets.certs.as_ref().context("secrets without certificates")?;
        let of = |port, authority, client, protocol| -> Result<Window> {
            let target = SocketAddr::new(address.parse()?, port);
            let name = MACHINE.parse::<IpAddr>()?;
            Ok(Window { target, name, authority, client, clock: clock.clone(), protocol })
        };
        let machines = of(50000, authority(certs.os.as_ref())?, Leaf::client("admin", ["os:admin"]), b"h2")?;
        let admin = Leaf::client("admin", ["system:masters"]);
        let api = of(6443, authority(certs.k8s.as_ref())?, admin, b"http/1.1")?;
        let peer = Leaf { extended_usage: ExtendedUsage::Both, ..Leaf::client("look", [] as [&str; 0]) };
        let etcd = of(2379, authority(certs.etcd.as_ref())?, peer, b"h2")?;

        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let registry = free_port()?;
        runtime.block_on(async {
            machines.open(SocketAddr::new(window.parse()?, 50000)).await?;
            api.clone().open(SocketAddr::new(window.parse()?, 6443)).await?;
            let layout = ichor_registry::Layout::open(&root().join("build/images"))?;
            let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, registry)).await?;
            let limits = ichor_registry::Limits::default();
            tokio::spawn(ichor_registry::serve(listener, Arc::new(layout), limits, std::future::pending()));
            anyhow::Ok(())
        })?;

        let dir = fleet.home().join("config").to_string_lossy().into_owned();
        let bundle = fleet.home().join("secrets.yaml").to_string_lossy().into_owned();
        std::fs::write(&bundle, secrets.to_yaml())?;
        let mirrors = ["docker.io", "gcr.io", "ghcr.io", "registry.k8s.io"]
            .map(|host| format!("--registry-mirror={host}=http://10.0.2.2:{registry}"));
        // Who stands still for a while loses an election, and ends, though nobody else is there to win it.
        let patch = "machine: {time: {servers: [10.0.2.2], bootTimeout: 5s}}\n\
                     cluster: {allowSchedulingOnControlPlanes: true, discovery: {enabled: false}, \
                     controllerManager: {extraArgs: {leader-elect: 'false'}}, \
                     scheduler: {extraArgs: {leader-elect: 'false'}}}";
        let endpoint = format!("https://{MACHINE}:6443");
        let mut args = vec!["gen", "config", "clock", &endpoint, "--with-secrets", &bundle, "--output", &dir];
        args.extend(["--additional-sans", &address, "--config-patch", patch]);
        args.extend(mirrors.iter().map(String::as_str));
        fleet.ok(&args)?;
        std::fs::create_dir(fleet.home().join(".kube"))?;
        let ca = STANDARD.encode(api.authority.crt_pem());
        // The window has the credentials; without any at all kubectl asks for some.
        let kubeconfig = format!(
            "{{apiVersion: v1, kind: Config, current-context: w, clusters: [{{name: w, cluster: {{server: \
             \"https://{window}:6443\", certificate-authority-data: {ca}}}}}], contexts: [{{name: w, context: \
             {{cluster: w, user: w}}}}], users: [{{name: w, user: {{token: unread}}}}]}}\n"
        );
        std::fs::write(fleet.home().join(".kube/config"), kubeconfig)?;
        let (config, talosconfig) = (format!("{dir}/controlplane.yaml"), format!("{dir}/talosconfig"));
        let lab =
            Self { fleet, clock, time, runtime, api, etcd, talosconfig, window, start, _machine: machine };
        eventually("the machine takes its configuration", || {
            let applied = lab.fleet.ok(&["apply-config", "--insecure", "-n", &address, "-f", &config]);
            lab.node(&["version"]).or(applied)
        })?;
        lab.say("configured");
        eventually("the cluster begins", || match lab.node(&["bootstrap"]) {
            // The answer to the first try got lost.
            Err(error) if error.to_string().contains("AlreadyExists") => Ok(String::new()),
            answer => answer,
        })?;
        lab.say("bootstrapped");
        Ok(lab)
    }

    fn say(&self, what: &str) {
        println!("{what}: after {:.0} s", self.start.elapsed().as_secs_f64());
    }

    /// `ichorctl` with the machine.
    fn node(&self, args: &[&str]) -> Result<String> {
        let way = ["--talosconfig", &self.talosconfig, "-e", &self.window, "-n", MACHINE];
        self.fleet.ok(&[&way, args].concat())
    }

    fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.fleet.kubectl(args)
    }

    /// The certificate in a file below `/system/secrets`, or in the kubeconfig there.
    fn certificate(&self, file: &str) -> Result<CertInfo> {
        let text = self.node(&["read", &format!("/system/secrets/{file}")])?;
        let inside = text.lines().find_map(|line| line.trim().strip_prefix("client-certificate-data: "));
        let pem = inside.map_or(Ok(text.clone().into_bytes()), |data| STANDARD.decode(data))?;
        CertInfo::parse(pem).with_context(|| format!("{file}: {text}"))
    }

    fn certificates(&self, files: &[&str]) -> Result<BTreeMap<String, CertInfo>> {
        files.iter().map(|file| Ok(((*file).to_owned(), self.certificate(file)?))).collect()
    }

    /// The versions of the secrets that the control plane's pods were started with.
    fn versions(&self) -> Result<BTreeMap<String, String>> {
        let node = self.name()?;
        let of = |pod: &str| {
            let path = r"jsonpath={.metadata.annotations.talos\.dev/secrets-version}";
            let version =
                self.kubectl(&["get", "pod", "-n", "kube-system", &format!("{pod}-{node}"), "-o", path])?;
            ensure!(!version.is_empty(), "{pod} does not say");
            Ok((pod.to_owned(), version))
        };
        PODS.iter().map(|pod| of(pod)).collect()
    }

    fn name(&self) -> Result<String> {
        let name = self.kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"])?;
        ensure!(!name.is_empty(), "no node");
        Ok(name)
    }

    /// Waits until the node and all of its pods are well.
    fn ready(&self) -> Result<()> {
        eventually("the node is ready", || {
            let nodes = self.kubectl(&["get", "nodes", "--no-headers"])?;
            ensure!(nodes.contains(" Ready "), "{nodes}");
            Ok(())
        })?;
        self.say("node ready");
        eventually("all pods are ready", || {
            let pods = self.kubectl(&["get", "pods", "-A", "--no-headers"])?;
            let well = |line: &str| {
                let mut words = line.split_whitespace().skip(2);
                let ready = words.next().and_then(|ready| ready.split_once('/'));
                words.next() == Some("Running") && ready.is_some_and(|(ready, all)| ready == all)
            };
            ensure!(pods.contains("coredns") && pods.lines().all(well), "{pods}");
            Ok(())
        })?;
        self.say("pods ready");
        Ok(())
    }

    /// Moves the machine's clock, and waits until all of these were issued anew and are shown to new connections.
    fn jump(&self, behind: i64, renewed: &[&str]) -> Result<()> {
        let before = self.certificates(renewed)?;
        // A machine whose clock was right asks ever more seldom; one with other servers asks at once, and again soon when
        // nobody answers.
        self.time.hush();
        let other = if behind == 0 { "10.0.2.200" } else { "10.0.2.100" };
        let servers = format!("{{\"machine\":{{\"time\":{{\"servers\":[\"10.0.2.2\",\"{other}\"]}}}}}}");
        eventually("other time servers", || self.node(&["patch", "mc", "--mode=no-reboot", "-p", &servers]))?;
        wait("a question for the time", STEP_MAX, || self.time.was_asked().then_some(()))?;
        self.time.tell(behind);
        self.clock.set_behind(behind);
        let moved = Instant::now();
        let today = self.clock.now() - SignedDuration::from_hours(1);
        eventually("certificates of today", || {
            for (file, old) in &before {
                let new = self.certificate(file)?;
                ensure!(new.serial != old.serial && new.not_before > today, "{file}: {new:?}");
                new.check_time(self.clock.now()).with_context(|| file.clone())?;
            }
            Ok(())
        })?;
        println!("files renewed: {:.0} s after the clock was told", moved.elapsed().as_secs_f64());
        for (window, file) in [(&self.api, YEAR[0]), (&self.etcd, DECADE[0])] {
            let shown = eventually(file, || {
                let shown = self.runtime.block_on(window.certificate())?;
                let file = self.certificate(file)?;
                ensure!(shown.serial == file.serial, "an old one is shown: {shown:?}");
                Ok(shown)
            })?;
            println!(
                "{file} of {} is shown: {:.0} s after the clock was told",
                shown.not_before,
                moved.elapsed().as_secs_f64()
            );
        }
        Ok(())
    }

    /// The cluster does its work: an object is written, the API server reaches the kubelet, the kubelet the API server,
    /// and a new pod goes the whole way through controllers, scheduler and kubelet.
    fn works(&self, name: &str) -> Result<()> {
        let jumped = self.clock.now() - SignedDuration::from_hours(1);
        eventually("a write", || {
            self.kubectl(&["create", "configmap", name, "--from-literal=a=b"]).or_else(|error| {
                match error.to_string().contains("AlreadyExists") {
                    true => Ok(String::new()),
                    false => Err(error),
                }
            })
        })?;
        let node = self.name()?;
        eventually("the API server reaches the kubelet", || {
            let told = self.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{node}/proxy/healthz")])?;
            ensure!(told.trim() == "ok", "{told}");
            Ok(())
        })?;
        eventually("the kubelet tells that it lives", || {
            let path = "jsonpath={.spec.renewTime}";
            let text = self.kubectl(&["get", "lease", "-n", "kube-node-lease", &node, "-o", path])?;
            let renewed: jiff::Timestamp = text.parse()?;
            ensure!(renewed > jumped, "the lease is of {renewed}, it is {}", self.clock.now());
            Ok(())
        })?;
        eventually("a deployment", || {
            let image = "--image=registry.k8s.io/pause:3.10";
            let made = self.kubectl(&["create", "deployment", name, image]);
            let told =
                self.kubectl(&["get", "deployment", name, "-o", "jsonpath={.status.readyReplicas}"])?;
            ensure!(told == "1", "{made:?}: {told:?}");
            Ok(())
        })?;
        self.ready()
    }

    /// Nothing fails for a while, each question over a connection of its own.
    fn stays(&self) -> Result<()> {
        let (start, mut asked) = (Instant::now(), 0);
        while start.elapsed() < CALM {
            self.kubectl(&["get", "namespaces"]).context("a question when all was well")?;
            asked += 1;
        }
        println!("{asked} questions answered");
        Ok(())
    }
}

#[test]
fn a_cluster_renews_its_certificates_and_goes_on_when_the_clock_moves_forward() {
    let lab = Lab::start().unwrap();
    eventually("the API answers", || lab.kubectl(&["get", "--raw", "/livez"])).unwrap();
    lab.say("API server answers");
    lab.ready().unwrap();
    let cgroups = lab.node(&["read", "/proc/self/mounts"]).unwrap();
    assert!(cgroups.contains("cgroup2"), "{cgroups}");

    let (decade, versions) = (lab.certificates(&DECADE).unwrap(), lab.versions().unwrap());
    lab.jump(MIDDLE, &YEAR).unwrap();
    lab.works("middle").unwrap();
    assert_eq!(lab.certificates(&DECADE).unwrap(), decade, "these have most of their life before them");
    eventually("pods with new secrets", || {
        let now = lab.versions()?;
        ensure!(PODS.iter().all(|pod| now[*pod] != versions[*pod]), "{versions:?}, then {now:?}");
        Ok(())
    })
    .unwrap();
    lab.ready().unwrap();
    lab.stays().unwrap();

    lab.jump(0, &[YEAR.as_slice(), &DECADE].concat()).unwrap();
    lab.works("end").unwrap();
    // The machine asks etcd with a certificate that was renewed, too.
    let members = eventually("members of etcd", || lab.node(&["etcd", "members"])).unwrap();
    assert!(members.contains(MACHINE), "{members}");
    lab.stays().unwrap();
}
