//! The control plane as machines render it, started as plain processes: a configuration goes in, the real etcd,
//! kube-apiserver, kube-controller-manager and kube-scheduler come up with our files, certificates and flags.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use ichor_config::CommentMode;
use ichor_config::generate::{Input, Options, Secrets};
use ichor_config::patch::{Patch, apply_to_bytes};
use ichor_cosi::{Runtime, State, SystemClock};
use ichor_ctl_k8s::{api, pod_server, render, settings, static_pods};
use ichor_ctl_secrets as secrets;
use ichor_kube::{Client, Kind, Target, Write as Writing};
use ichor_live::programs;
use ichor_pki::{Authority, KeyAlgorithm};
use ichor_resource::config::{MachineConfig, MachineType};
use ichor_resource::k8s::StaticPodServerStatus;
use ichor_resource::network::{HostnameStatus, NetworkStatus, NodeAddress};
use ichor_resource::secrets::{EtcdRootSecret, EtcdSecret, KubernetesSecret};
use ichor_resource::time::TimeStatus;
use ichor_resource::v1alpha1::Service;
use ichor_resource::value::PemCertificateAndKey;
use ichor_testkit::wait_for;
use jiff::Timestamp;
use serde_json::{Value as Json, json};
use tokio::time::sleep;

/// Where the server says that it is; nobody is there.
const ADVERTISED: &str = "10.254.0.1";
const START_MAX: Duration = Duration::from_secs(300);
/// How often a component may end by itself, as when it loses its lease while the server is away.
const ENDS_MAX: usize = 12;
const LEASES: Kind = Kind::known("coordination.k8s.io", "v1", "leases", true);
const ACCOUNTS: Kind = Kind::known("", "v1", "serviceaccounts", true);

/// A process that ends with the value.
struct Running {
    pod: Json,
    process: Child,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Ports of this plane; several may run at the same time.
struct Ports {
    controller_manager: u16,
    scheduler: u16,
    etcd: u16,
    etcd_peer: u16,
}

struct Plane {
    dir: tempfile::TempDir,
    state: State,
    config: Vec<u8>,
    ports: Ports,
    running: BTreeMap<String, Running>,
    ends: usize,
    controllers: tokio::task::JoinHandle<()>,
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.controllers.abort();
    }
}

fn free_port() -> u16 {
    ichor_live::free_port().unwrap()
}

fn encode(text: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(text)
}

impl Plane {
    /// The controllers of a machine with a fresh configuration, and etcd.
    async fn start() -> Self {
        ichor_pki::install_provider();
        let dir = tempfile::tempdir().unwrap();
        let [api, controller_manager, scheduler, etcd, etcd_peer] = std::array::from_fn(|_| free_port());
        let ports = Ports { controller_manager, scheduler, etcd, etcd_peer };
        let input = Input {
            cluster_name: "plane".into(),
            endpoint: format!("https://127.0.0.1:{api}"),
            kubernetes_version: "1.35.0".into(),
            secrets: Secrets::generate(Timestamp::now(), ichor_types::VersionContract::CURRENT).unwrap(),
            options: Options { local_api_server_port: api, kube_prism_port: Some(0), ..Options::default() },
        };
        let documents = input.config(ichor_types::MachineType::ControlPlane).unwrap();
        let config = documents.encode(CommentMode::default()).into_bytes();
        let state = State::new(SystemClock);
        let runtime = Runtime::new(state.clone());
        register(&runtime, dir.path());
        let controllers = tokio::spawn(async move { runtime.run(std::future::pending()).await });
        let mut plane = Self { dir, state, config, ports, running: BTreeMap::new(), ends: 0, controllers };
        plane.machine();
        plane.configure("");
        plane.etcd().await;
        plane
    }

    fn put<T: ichor_resource::TypedSpec>(&self, namespace: &str, id: &str, spec: T) {
        self.state.modify::<T>(namespace, id, "", |stored| stored.clone_from(&spec)).unwrap();
    }

    /// What a machine knows of itself.
    fn machine(&self) {
        let machine_type = ichor_types::MachineType::ControlPlane;
        self.put("config", MachineType::ID, MachineType { machine_type });
        self.put("network", "hostname", HostnameStatus { hostname: "plane".into(), ..Default::default() });
        let addresses = vec![format!("{ADVERTISED}/24").parse().unwrap()];
        self.put("network", "accumulative-no-k8s", NodeAddress { addresses, ..Default::default() });
        let ready = NetworkStatus { address_ready: true, hostname_ready: true, ..Default::default() };
        self.put("network", "status", ready);
        self.put("runtime", "node", TimeStatus { synced: true, ..Default::default() });
    }

    /// The configuration with a patch.
    fn configure(&self, patch: &str) {
        let text = match patch {
            "" => self.config.clone(),
            patch => apply_to_bytes(&self.config, &[Patch::load(patch.as_bytes()).unwrap()]).unwrap(),
        };
        self.put("config", MachineConfig::ACTIVE, MachineConfig::new(text));
    }

    async fn etcd(&mut self) {
        let made = wait_for::<EtcdSecret>(&self.state, "secrets", "etcd", |_| true).await;
        let root = self.state.get::<EtcdRootSecret>("secrets", "etcd").unwrap();
        let place = self.dir.path().join("etcd");
        fs::create_dir_all(&place).unwrap();
        let pair = |name: &str, pair: &Option<PemCertificateAndKey>| {
            let pair = pair.as_ref().unwrap();
            fs::write(place.join(format!("{name}.crt")), &pair.crt).unwrap();
            fs::write(place.join(format!("{name}.key")), &pair.key).unwrap();
        };
        pair("ca", &root.etcd_ca);
        pair("server", &made.etcd);
        pair("peer", &made.etcd_peer);
        pair("admin", &made.etcd_admin);
        let file = |name: &str| place.join(name).display().to_string();
        let (client, peer) = (self.ports.etcd, self.ports.etcd_peer);
        let args = [
            format!("--data-dir={}", file("data")),
            format!("--listen-client-urls=https://127.0.0.1:{client}"),
            format!("--advertise-client-urls=https://127.0.0.1:{client}"),
            format!("--listen-peer-urls=https://127.0.0.1:{peer}"),
            format!("--initial-advertise-peer-urls=https://127.0.0.1:{peer}"),
            format!("--initial-cluster=default=https://127.0.0.1:{peer}"),
            "--client-cert-auth=true".to_owned(),
            "--peer-client-cert-auth=true".to_owned(),
            format!("--trusted-ca-file={}", file("ca.crt")),
            format!("--peer-trusted-ca-file={}", file("ca.crt")),
            format!("--cert-file={}", file("server.crt")),
            format!("--key-file={}", file("server.key")),
            format!("--peer-cert-file={}", file("peer.crt")),
            format!("--peer-key-file={}", file("peer.key")),
            "--unsafe-no-fsync".to_owned(),
        ];
        let process = programs::component("etcd", self.dir.path(), &args).unwrap();
        self.running.insert("etcd".into(), Running { pod: Json::Null, process });
        let start = Instant::now();
        while let Err(error) = self.etcd_client().members(true).await {
            assert!(start.elapsed() < START_MAX, "{error}\n{}", self.log("etcd"));
            sleep(Duration::from_millis(100)).await;
        }
        self.put("runtime", "etcd", Service { running: true, healthy: true, unknown: false });
    }

    fn etcd_client(&self) -> ichor_etcd::Client {
        let read = |name: &str| fs::read(self.dir.path().join("etcd").join(name)).unwrap();
        let tls = ichor_etcd::Tls { ca: read("ca.crt"), cert: read("admin.crt"), key: read("admin.key") };
        let endpoint = ichor_rpc::Endpoint::new("127.0.0.1", self.ports.etcd);
        ichor_etcd::Client::connect([endpoint], &tls).unwrap()
    }

    /// What kubelet does: asks for the list, and starts what is new or another one.
    async fn sync(&mut self) {
        let status =
            wait_for::<StaticPodServerStatus>(&self.state, "k8s", "static-pod-server-status", |_| true).await;
        let address = status.url.strip_prefix("http://").unwrap().to_owned();
        let list = tokio::task::spawn_blocking(move || fetch(&address)).await.unwrap();
        for pod in list["items"].as_array().unwrap() {
            let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
            if let Some(running) = self.running.get_mut(&name).filter(|running| running.pod == *pod) {
                if running.process.try_wait().unwrap().is_none() {
                    continue;
                }
                self.ends += 1;
                let log = self.log(&name);
                println!("{name} ended by itself and is started anew, as by a kubelet:\n{log}");
                assert!(self.ends < ENDS_MAX, "{name} ended by itself: {log}");
                sleep(Duration::from_millis(500)).await;
            }
            self.running.remove(&name);
            let process = self.run(&name, &pod["spec"]["containers"][0]);
            self.running.insert(name, Running { pod: pod.clone(), process });
        }
    }

    /// Repeats until all three run with these secrets.
    async fn sync_to(&mut self, secrets_version: &str) {
        let start = Instant::now();
        loop {
            self.sync().await;
            let up = |name: &&str| {
                let annotations =
                    self.running.get(*name).map(|running| &running.pod["metadata"]["annotations"]);
                annotations.is_some_and(|found| found["talos.dev/secrets-version"] == secrets_version)
            };
            if static_pods::CONTROL_PLANE.iter().all(up) {
                return;
            }
            assert!(start.elapsed() < START_MAX, "pods of secrets {secrets_version} do not come");
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Starts a container's command, with the paths of this plane.
    fn run(&self, name: &str, container: &Json) -> Child {
        let here = self.dir.path().display().to_string();
        // The scheduler is told of its kubeconfig by its configuration file.
        let config = self.dir.path().join("system/config/kubernetes/kube-scheduler/scheduler-config.yaml");
        let text = fs::read_to_string(&config).unwrap();
        let moved = self.dir.path().join("scheduler-config.yaml");
        fs::write(&moved, text.replace("\"/system/", &format!("\"{here}/system/"))).unwrap();
        fs::create_dir_all(self.dir.path().join("var/log/audit/kube")).unwrap();
        let etcd = format!("https://localhost:{}", self.ports.etcd);
        let mut args: Vec<String> = container["command"].as_array().unwrap()[1..]
            .iter()
            .map(|argument| {
                let argument = argument.as_str().unwrap();
                argument
                    .replace("=/system/config/kubernetes/kube-scheduler", &format!("={here}"))
                    .replace("=/system/", &format!("={here}/system/"))
                    .replace("=/var/", &format!("={here}/var/"))
                    .replace("https://localhost:2379", &etcd)
                    .replace("$(POD_IP)", ADVERTISED)
                    .replace("--bind-address=0.0.0.0", "--bind-address=127.0.0.1")
            })
            .collect();
        match name {
            "kube-controller-manager" => {
                args.push(format!("--secure-port={}", self.ports.controller_manager))
            }
            "kube-scheduler" => args.push(format!("--secure-port={}", self.ports.scheduler)),
            _ => {}
        }
        programs::component(name, self.dir.path(), &args).unwrap()
    }

    fn log(&self, name: &str) -> String {
        let text = fs::read_to_string(self.dir.path().join(format!("{name}.log"))).unwrap_or_default();
        let lines: Vec<_> = text.lines().rev().take(20).collect();
        lines.join("\n")
    }

    fn kubeconfigs(&self) -> KubernetesSecret {
        (*self.state.get::<KubernetesSecret>("secrets", "k8s-certs").unwrap()).clone()
    }

    /// Waits until the API server answers this user.
    async fn ready(&self, kubeconfig: &str) -> Client {
        let client = Client::from_kubeconfig(kubeconfig).unwrap();
        let start = Instant::now();
        while let Err(error) = client.ready().await {
            let log = || self.log("kube-apiserver");
            assert!(start.elapsed() < START_MAX, "not ready: {}\n{}", error.chain(), log());
            sleep(Duration::from_millis(100)).await;
        }
        client
    }

    /// Waits for an object that `is` what is wanted.
    async fn object(&self, client: &Client, target: Target, is: impl Fn(&Json) -> bool) -> Json {
        let start = Instant::now();
        loop {
            if let Ok(Some(object)) = client.find(&target).await
                && is(&object)
            {
                return object;
            }
            let logs = || [self.log("kube-controller-manager"), self.log("kube-scheduler")].join("\n\n");
            assert!(start.elapsed() < START_MAX, "no {} {}\n{}", target.kind.plural, target.name, logs());
            sleep(Duration::from_millis(100)).await;
        }
    }
}

fn register(runtime: &Runtime, root: &Path) {
    let disk = || render::Disk::below(root);
    runtime.register(secrets::RootEtcd::default()).unwrap();
    runtime.register(secrets::RootKubernetes::default()).unwrap();
    runtime.register(secrets::KubernetesCertSans).unwrap();
    runtime.register(secrets::Etcd::default()).unwrap();
    runtime.register(secrets::Kubernetes::default()).unwrap();
    runtime.register(secrets::KubernetesDynamic::default()).unwrap();
    runtime.register(settings::ApiServerController).unwrap();
    runtime.register(settings::AdmissionController).unwrap();
    runtime.register(settings::AuditPolicyController).unwrap();
    runtime.register(settings::AuthorizationController).unwrap();
    runtime.register(settings::ControllerManagerController).unwrap();
    runtime.register(settings::SchedulerController).unwrap();
    runtime.register(render::RenderSecretsStaticPodController::new(disk())).unwrap();
    runtime.register(render::RenderConfigsStaticPodController::new(disk())).unwrap();
    runtime.register(static_pods::ControlPlaneStaticPodController::new(Arc::new(api::connect))).unwrap();
    runtime.register(pod_server::StaticPodServerController::new(root.join("pods"))).unwrap();
}

/// The list of pods, as JSON.
fn fetch(address: &str) -> Json {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    serde_json::from_str(body).unwrap()
}

#[tokio::test]
async fn what_we_render_runs() {
    let mut plane = Plane::start().await;
    plane.sync_to("1").await;
    let start = Instant::now();
    let admin = plane.ready(&plane.kubeconfigs().admin_kubeconfig).await;
    println!("the API server answered after {:.1} s", start.elapsed().as_secs_f64());
    let local = Client::from_kubeconfig(&plane.kubeconfigs().localhost_admin_kubeconfig).unwrap();
    let start = Instant::now();
    while let Err(error) = local.ready().await {
        assert!(start.elapsed() < START_MAX, "not ready: {}", error.chain());
        sleep(Duration::from_millis(100)).await;
    }

    // Both others have found it, with their kubeconfigs, and do their work.
    for component in ["kube-controller-manager", "kube-scheduler"] {
        let held = |lease: &Json| lease["spec"]["holderIdentity"].as_str().is_some_and(|who| !who.is_empty());
        plane.object(&admin, Target::new(LEASES, "kube-system", component), held).await;
    }
    plane.object(&admin, Target::new(ACCOUNTS, "default", "default"), |_| true).await;
    let trusted =
        plane.object(&admin, Target::new(Kind::CONFIG_MAPS, "default", "kube-root-ca.crt"), |_| true).await;
    assert!(trusted["data"]["ca.crt"].as_str().unwrap().contains("BEGIN CERTIFICATE"));

    secrets_are_encrypted(&plane, &admin).await;
    strangers_are_refused(&plane).await;
    let file = plane.dir.path().join("var/log/audit/kube/kube-apiserver.log");
    let start = Instant::now();
    let line = loop {
        let audit = fs::read_to_string(&file).unwrap_or_default();
        if let Some((line, _)) = audit.split_once('\n') {
            break line.to_owned();
        }
        assert!(start.elapsed() < START_MAX, "nothing in {}", file.display());
        sleep(Duration::from_millis(100)).await;
    };
    let line: Json = serde_json::from_str(&line).unwrap();
    assert_eq!((&line["kind"], &line["level"]), (&json!("Event"), &json!("Metadata")));

    a_rotation_fails_no_request(&mut plane).await;
}

/// What is in etcd cannot be read there.
async fn secrets_are_encrypted(plane: &Plane, admin: &Client) {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "plain" },
        "stringData": { "password": "correct horse" },
    });
    admin.create(&Kind::SECRETS, "default", &secret, Writing::default()).await.unwrap();
    let stored = plane.etcd_client().get("/registry/secrets/default/plain").await.unwrap().unwrap();
    assert!(stored.starts_with(b"k8s:enc:secretbox:v1:key2:"), "{:?}", String::from_utf8_lossy(&stored));
    let read = admin.get(&Target::new(Kind::SECRETS, "default", "plain")).await.unwrap();
    assert_eq!(read["data"]["password"], encode("correct horse"));
}

/// Nobody is let in without a name.
async fn strangers_are_refused(plane: &Plane) {
    let admin = plane.kubeconfigs().admin_kubeconfig;
    let cut = admin.find("    client-certificate-data").unwrap();
    let nobody = admin[..cut].replace("  user:\n", "  user: {}\n");
    let client = Client::from_kubeconfig(&nobody).unwrap();
    assert!(client.read("/api").await.is_err(), "anonymous requests are refused");
}

/// The states of `rotate-ca`: the new authority is accepted, then issues while the old one is accepted, then is alone.
async fn a_rotation_fails_no_request(plane: &mut Plane) {
    let new =
        Authority::generate(KeyAlgorithm::EcdsaP256, "kubernetes", Timestamp::now(), Authority::TEN_YEARS);
    let new = new.unwrap();
    let text = String::from_utf8(plane.config.clone()).unwrap();
    let documents = ichor_config::Documents::load(text.as_bytes()).unwrap();
    let old = documents.root().unwrap().cluster.as_ref().unwrap().ca.as_ref().unwrap();
    let old = String::from_utf8(old.crt.0.to_vec()).unwrap();
    let before = plane.kubeconfigs().admin_kubeconfig;

    plane.configure(&format!("cluster: {{acceptedCAs: [{{crt: {}}}]}}", encode(new.crt_pem())));
    plane.sync_to("2").await;
    plane.ready(&before).await;
    let both = plane.kubeconfigs().admin_kubeconfig;
    plane.ready(&both).await;

    let issue = format!("ca: {{crt: {}, key: {}}}", encode(new.crt_pem()), encode(&new.key_pem()));
    plane.configure(&format!("cluster: {{{issue}, acceptedCAs: [{{crt: {}}}]}}", encode(&old)));
    plane.sync_to("3").await;
    plane.ready(&both).await;
    let after = plane.kubeconfigs().admin_kubeconfig;
    plane.ready(&after).await;

    plane.configure(&format!("cluster: {{{issue}}}"));
    plane.sync_to("4").await;
    let admin = plane.ready(&after).await;
    plane.ready(&plane.kubeconfigs().admin_kubeconfig).await;
    let refused = Client::from_kubeconfig(&both).unwrap().read("/api").await;
    assert!(refused.is_err(), "certificates of the old authority are worth nothing any more");
    admin.get(&Target::new(Kind::SECRETS, "default", "plain")).await.unwrap();
}
