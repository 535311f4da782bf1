//! From secrets and settings to files, pods, and the list kubelet asks for.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use expect_test::expect;
use ichor_cosi::State;
use ichor_ctl_k8s::api::{ConnectError, Way};
use ichor_ctl_k8s::pod_server::StaticPodServerController;
use ichor_ctl_k8s::render::{Disk, RenderConfigsStaticPodController, RenderSecretsStaticPodController};
use ichor_ctl_k8s::static_pods::ControlPlaneStaticPodController;
use ichor_pki::{Authority, KeyAlgorithm, Leaf, PrivateKey};
use ichor_resource::config::MachineType;
use ichor_resource::k8s::{
    APIServerConfig, AdmissionControlConfig, AuditPolicyConfig, AuthorizationConfig, ConfigStatus,
    ControllerManagerConfig, SchedulerConfig, SecretStatus, StaticPod, StaticPodServerStatus,
};
use ichor_resource::secrets::{
    EtcdRootSecret, EtcdSecret, KubernetesDynamicCert, KubernetesRootSecret, KubernetesSecret,
};
use ichor_resource::v1alpha1::Service;
use ichor_resource::value::binary::base64;
use ichor_resource::value::{Object, PemCertificate, PemCertificateAndKey, PemKey};
use ichor_testkit::Harness;
use serde_json::{Value as Json, json};

fn now() -> jiff::Timestamp {
    "2025-01-01T00:00:00Z".parse().unwrap()
}

fn put<T: ichor_resource::TypedSpec>(state: &State, namespace: &str, id: &str, spec: T) {
    state.modify::<T>(namespace, id, "", |stored| stored.clone_from(&spec)).unwrap();
}

/// Everything the secrets are made from; returns the authority.
fn secrets(state: &State) -> Authority {
    let ca = Authority::generate(KeyAlgorithm::EcdsaP256, "kubernetes", now(), Authority::TEN_YEARS).unwrap();
    let pair = |pair: ichor_pki::KeyPair| PemCertificateAndKey { crt: pair.crt.into(), key: pair.key.into() };
    let leaf = |name: &str| Some(pair(ca.issue(&Leaf::server(name), now()).unwrap()));
    let account = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let root = KubernetesRootSecret {
        name: "lab".into(),
        issuing_ca: Some(pair(ca.to_pair())),
        aggregator_ca: Some(pair(ca.to_pair())),
        accepted_cas: vec![
            // Without the newline at its end: the bundle must not run into the next one.
            PemCertificate { crt: ca.crt_pem().trim_end().to_owned().into() },
            PemCertificate { crt: ca.crt_pem().to_owned().into() },
        ],
        service_account: Some(PemKey { key: account.to_pem().into() }),
        secretbox_encryption_secret: "c2VjcmV0".into(),
        ..Default::default()
    };
    put(state, "secrets", "k8s", root);
    put(state, "secrets", "etcd", EtcdRootSecret { etcd_ca: Some(pair(ca.to_pair())) });
    put(
        state,
        "secrets",
        "etcd",
        EtcdSecret { etcd_api_server: leaf("kube-apiserver"), ..Default::default() },
    );
    let dynamic = KubernetesDynamicCert {
        api_server: leaf("server"),
        api_server_kubelet_client: leaf("client"),
        front_proxy: leaf("proxy"),
    };
    put(state, "secrets", "k8s-dynamic-certs", dynamic);
    let kubeconfigs = KubernetesSecret {
        scheduler_kubeconfig: "scheduler".into(),
        controller_manager_kubeconfig: "controller-manager".into(),
        ..Default::default()
    };
    put(state, "secrets", "k8s-certs", kubeconfigs);
    ca
}

fn settings(state: &State) {
    put(state, "controlplane", "admission-control", AdmissionControlConfig::default());
    put(state, "controlplane", "audit-policy", AuditPolicyConfig::default());
    put(state, "controlplane", "authorization", AuthorizationConfig::default());
    let image = |name: &str| format!("registry.k8s.io/{name}:v1.35.0");
    let scheduler = SchedulerConfig { enabled: true, image: image("kube-scheduler"), ..Default::default() };
    put(state, "controlplane", "kube-scheduler", scheduler);
    let manager = ControllerManagerConfig { enabled: true, image: image("kcm"), ..Default::default() };
    put(state, "controlplane", "kube-controller-manager", manager);
    let api = APIServerConfig { image: image("kube-apiserver"), local_port: 6443, ..Default::default() };
    put(state, "controlplane", "kube-apiserver", api);
}

/// Paths below a directory with their modes, in order.
fn tree(root: &Path) -> String {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let mode = fs::metadata(&path).unwrap().mode() & 0o777;
            found.push(format!("{} {mode:o}\n", path.strip_prefix(root).unwrap().display()));
            if path.is_dir() {
                open.push(path);
            }
        }
    }
    found.sort();
    found.concat()
}

#[tokio::test]
async fn every_component_finds_its_files() {
    let (state, _clock) = ichor_testkit::state();
    let place = tempfile::tempdir().unwrap();
    let mut render =
        Harness::new(&state, RenderSecretsStaticPodController::new(Disk::below(place.path()))).unwrap();
    render.reconcile().await.unwrap();
    assert!(state.get::<SecretStatus>("controlplane", "static-pods").is_err(), "nothing to write yet");

    let ca = secrets(&state);
    settings(&state);
    render.reconcile().await.unwrap();
    let before = read_configs(&state, place.path()).await;
    expect![[r#"
        system 755
        system/config 755
        system/config/kubernetes 755
        system/config/kubernetes/kube-apiserver 755
        system/config/kubernetes/kube-apiserver/admission-control-config.yaml 400
        system/config/kubernetes/kube-apiserver/auditpolicy.yaml 400
        system/config/kubernetes/kube-apiserver/authorization-config.yaml 400
        system/config/kubernetes/kube-scheduler 755
        system/config/kubernetes/kube-scheduler/scheduler-config.yaml 400
        system/secrets 755
        system/secrets/kubernetes 755
        system/secrets/kubernetes/kube-apiserver 755
        system/secrets/kubernetes/kube-apiserver/aggregator-ca.crt 400
        system/secrets/kubernetes/kube-apiserver/apiserver-kubelet-client.crt 400
        system/secrets/kubernetes/kube-apiserver/apiserver-kubelet-client.key 400
        system/secrets/kubernetes/kube-apiserver/apiserver.crt 400
        system/secrets/kubernetes/kube-apiserver/apiserver.key 400
        system/secrets/kubernetes/kube-apiserver/ca.crt 400
        system/secrets/kubernetes/kube-apiserver/encryptionconfig.yaml 400
        system/secrets/kubernetes/kube-apiserver/etcd-client-ca.crt 400
        system/secrets/kubernetes/kube-apiserver/etcd-client.crt 400
        system/secrets/kubernetes/kube-apiserver/etcd-client.key 400
        system/secrets/kubernetes/kube-apiserver/front-proxy-client.crt 400
        system/secrets/kubernetes/kube-apiserver/front-proxy-client.key 400
        system/secrets/kubernetes/kube-apiserver/service-account.key 400
        system/secrets/kubernetes/kube-apiserver/service-account.pub 400
        system/secrets/kubernetes/kube-controller-manager 755
        system/secrets/kubernetes/kube-controller-manager/ca.crt 400
        system/secrets/kubernetes/kube-controller-manager/ca.key 400
        system/secrets/kubernetes/kube-controller-manager/kubeconfig 400
        system/secrets/kubernetes/kube-controller-manager/root-ca.crt 400
        system/secrets/kubernetes/kube-controller-manager/service-account.key 400
        system/secrets/kubernetes/kube-scheduler 755
        system/secrets/kubernetes/kube-scheduler/kubeconfig 400
    "#]]
    .assert_eq(&tree(place.path()));
    assert_eq!(state.get::<SecretStatus>("controlplane", "static-pods").unwrap().version, "1");
    assert!(before.parse::<u64>().is_ok(), "{before}");
    assert_eq!(read_configs(&state, place.path()).await, before, "nothing new");
    state
        .modify::<SchedulerConfig>("controlplane", "kube-scheduler", "", |spec| spec.image = "new".into())
        .unwrap();
    assert_eq!(read_configs(&state, place.path()).await, before, "an image is in no file");

    let read =
        |name: &str| fs::read_to_string(place.path().join("system/secrets/kubernetes").join(name)).unwrap();
    assert_eq!(read("kube-apiserver/ca.crt"), [ca.crt_pem(), ca.crt_pem()].concat());
    assert_eq!(read("kube-controller-manager/ca.crt"), ca.crt_pem(), "it signs, so it has one");
    assert!(read("kube-apiserver/service-account.pub").starts_with("-----BEGIN EC PUBLIC KEY-----"));
    assert_eq!(read("kube-scheduler/kubeconfig"), "scheduler");
}

/// Writes the configuration files, and gives their version.
async fn read_configs(state: &State, place: &Path) -> String {
    let configs = RenderConfigsStaticPodController::new(Disk::below(place));
    Harness::new(state, configs).unwrap().reconcile().await.unwrap();
    state.get::<ConfigStatus>("controlplane", "static-pods").unwrap().version.clone()
}

#[tokio::test]
async fn only_files_that_change_are_written() {
    let (state, _clock) = ichor_testkit::state();
    let place = tempfile::tempdir().unwrap();
    secrets(&state);
    let mut render =
        Harness::new(&state, RenderSecretsStaticPodController::new(Disk::below(place.path()))).unwrap();
    render.reconcile().await.unwrap();
    let inode =
        |name: &str| fs::metadata(place.path().join("system/secrets/kubernetes").join(name)).unwrap().ino();
    let before = (inode("kube-apiserver/ca.crt"), inode("kube-scheduler/kubeconfig"));
    state
        .modify::<KubernetesSecret>("secrets", "k8s-certs", "", |spec| {
            spec.scheduler_kubeconfig = "another".into();
        })
        .unwrap();
    render.reconcile().await.unwrap();
    assert_eq!(inode("kube-apiserver/ca.crt"), before.0);
    assert_ne!(inode("kube-scheduler/kubeconfig"), before.1);
    assert_eq!(state.get::<SecretStatus>("controlplane", "static-pods").unwrap().version, "2");
}

#[tokio::test]
async fn a_key_that_is_none_is_told_by_name() {
    let (state, _clock) = ichor_testkit::state();
    let place = tempfile::tempdir().unwrap();
    secrets(&state);
    state
        .modify::<KubernetesRootSecret>("secrets", "k8s", "", |spec| {
            spec.service_account = Some(PemKey { key: "nonsense".into() });
        })
        .unwrap();
    let render = RenderSecretsStaticPodController::new(Disk::below(place.path()));
    let error = Harness::new(&state, render).unwrap().reconcile().await.unwrap_err().to_string();
    assert!(error.contains("cluster.serviceAccount.key"), "{error}");
    assert!(fs::read_dir(place.path()).unwrap().next().is_none(), "half a set of files is worse than none");
}

fn pods(state: &State) -> Vec<String> {
    state.list::<StaticPod>("k8s").iter().map(|pod| pod.id().to_string()).collect()
}

fn etcd(state: &State, healthy: bool) {
    put(state, "runtime", "etcd", Service { running: true, healthy, unknown: false });
}

#[tokio::test(start_paused = true)]
async fn the_control_plane_runs_while_there_is_an_etcd() {
    let (state, _clock) = ichor_testkit::state();
    settings(&state);
    put(&state, "controlplane", "static-pods", SecretStatus { ready: true, version: "1".into() });
    put(&state, "controlplane", "static-pods", ConfigStatus { ready: true, version: "1111".into() });
    put(&state, "secrets", "k8s-certs", KubernetesSecret::default());
    let nowhere = Arc::new(|_: Way<'_>| Err(ConnectError::Access(ichor_kube::AccessError::Field("nowhere"))));
    let mut harness = Harness::new(&state, ControlPlaneStaticPodController::new(nowhere)).unwrap();
    harness.reconcile().await.unwrap();
    assert!(pods(&state).is_empty(), "no etcd");
    etcd(&state, false);
    harness.reconcile().await.unwrap();
    assert!(pods(&state).is_empty(), "not healthy yet");
    etcd(&state, true);
    harness.reconcile().await.unwrap();
    assert_eq!(pods(&state), ["kube-apiserver", "kube-controller-manager", "kube-scheduler"]);
    etcd(&state, false);
    harness.reconcile().await.unwrap();
    assert_eq!(pods(&state).len(), 3, "an etcd that is ill stops nothing");

    etcd(&state, true);
    let off = |spec: &mut SchedulerConfig| spec.enabled = false;
    state.modify::<SchedulerConfig>("controlplane", "kube-scheduler", "", off).unwrap();
    harness.reconcile().await.unwrap();
    assert_eq!(pods(&state), ["kube-apiserver", "kube-controller-manager"]);

    put(&state, "controlplane", "static-pods", SecretStatus { ready: true, version: "2".into() });
    harness.reconcile().await.unwrap();
    let pod = state.get::<StaticPod>("k8s", "kube-apiserver").unwrap();
    assert_eq!(pod.pod.0["metadata"]["annotations"]["talos.dev/secrets-version"], "2");

    state.destroy::<Service>("runtime", "etcd", "").unwrap();
    harness.reconcile().await.unwrap();
    assert_eq!(pods(&state).len(), 2, "an etcd that was killed comes back");
    tokio::time::advance(harness.requeue().unwrap()).await;
    harness.reconcile().await.unwrap();
    assert!(pods(&state).is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_others_wait_for_an_api_server_but_not_for_ever() {
    let (state, _clock) = ichor_testkit::state();
    settings(&state);
    put(&state, "controlplane", "static-pods", SecretStatus { ready: true, version: "1".into() });
    put(&state, "controlplane", "static-pods", ConfigStatus { ready: true, version: "1111".into() });
    put(&state, "secrets", "k8s-certs", KubernetesSecret::default());
    etcd(&state, true);
    ichor_pki::install_provider();
    let ca = Authority::generate(KeyAlgorithm::EcdsaP256, "nobody", now(), Authority::TEN_YEARS).unwrap();
    let config = format!(
        "clusters: [{{name: a, cluster: {{server: 'https://127.0.0.1:1', certificate-authority-data: {}}}}}]\n\
         contexts: [{{name: a, context: {{cluster: a}}}}]\n",
        base64(ca.crt_pem().as_bytes())
    );
    let nobody = Arc::new(move |_: Way<'_>| Ok(ichor_kube::Client::from_kubeconfig(&config)?));
    let mut harness = Harness::new(&state, ControlPlaneStaticPodController::new(nobody)).unwrap();
    harness.reconcile().await.unwrap();
    assert_eq!(pods(&state), ["kube-apiserver"]);
    tokio::time::sleep(Duration::from_secs(30)).await;
    harness.reconcile().await.unwrap();
    assert_eq!(pods(&state), ["kube-apiserver"]);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(harness.was_woken().await);
    harness.reconcile().await.unwrap();
    assert_eq!(pods(&state).len(), 3);
}

fn pod(namespace: &str, name: &str) -> StaticPod {
    let Json::Object(pod) = json!({ "metadata": { "namespace": namespace, "name": name } }) else {
        unreachable!()
    };
    StaticPod { pod: Object(pod) }
}

/// Asks as kubelet does, on a connection that stays open.
struct Client(TcpStream);

impl Client {
    fn of(state: &State) -> Self {
        let status = state.get::<StaticPodServerStatus>("k8s", "static-pod-server-status").unwrap();
        let stream = TcpStream::connect(status.url.strip_prefix("http://").unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self(stream)
    }

    fn ask(&mut self, request: &str) -> (u16, String) {
        self.0.write_all(request.as_bytes()).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; if request.starts_with("HEAD") { 0 } else { length.parse().unwrap() }];
        self.0.read_exact(&mut body).unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), String::from_utf8(body).unwrap())
    }

    fn names(&mut self) -> Vec<String> {
        let (code, body) = self.ask("GET /any/path HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(code, 200);
        let list: Json = serde_json::from_str(&body).unwrap();
        assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("PodList"), &json!("v1")));
        let items = list["items"].as_array().unwrap();
        items.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }
}

/// The client blocks, so it needs a thread of its own.
async fn ask<T: Send + 'static>(question: impl FnOnce() -> T + Send + 'static) -> T {
    let asked = tokio::task::spawn_blocking(question);
    tokio::time::timeout(Duration::from_secs(30), asked).await.expect("an answer in time").unwrap()
}

#[tokio::test]
async fn a_change_is_told_at_once_to_who_waits() {
    let (state, _clock) = ichor_testkit::state();
    let place = tempfile::tempdir().unwrap();
    put(&state, "k8s", "shop-web", pod("shop", "web"));
    let mut harness = Harness::new(&state, StaticPodServerController::new(place.path())).unwrap();
    harness.reconcile().await.unwrap();
    let mut client = Client::of(&state);
    let (first, mut client) = ask(move || (client.names(), client)).await;
    assert_eq!(first, ["web"]);

    put(&state, "k8s", "shop-db", pod("shop", "db"));
    let waiting = tokio::task::spawn_blocking(move || {
        let start = Instant::now();
        (client.names(), start.elapsed())
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!waiting.is_finished(), "there is nothing new yet");
    harness.reconcile().await.unwrap();
    let (names, took) = tokio::time::timeout(Duration::from_secs(30), waiting).await.unwrap().unwrap();
    assert_eq!(names, ["db", "web"]);
    assert!(took < Duration::from_secs(25), "{took:?}");

    for (request, code) in
        [("POST / HTTP/1.1\r\nHost: x\r\n\r\n", 405), ("HEAD / HTTP/1.1\r\nHost: x\r\n\r\n", 200)]
    {
        let mut other = Client::of(&state);
        assert_eq!(ask(move || other.ask(request).0).await, code);
    }
}

#[tokio::test]
async fn a_machined_that_was_killed_takes_no_pod_along() {
    let place = tempfile::tempdir().unwrap();
    let url = {
        let (state, _clock) = ichor_testkit::state();
        put(&state, "k8s", "kube-apiserver", pod("kube-system", "kube-apiserver"));
        put(&state, "k8s", "shop-web", pod("shop", "web"));
        let mut harness = Harness::new(&state, StaticPodServerController::new(place.path())).unwrap();
        harness.reconcile().await.unwrap();
        state.get::<StaticPodServerStatus>("k8s", "static-pod-server-status").unwrap().url.clone()
    };
    // The old server lives on in this process, so the port is taken and the new one gets another.
    let (state, _clock) = ichor_testkit::state();
    let machine_type = ichor_types::MachineType::ControlPlane;
    put(&state, "config", MachineType::ID, MachineType { machine_type });
    let mut harness = Harness::new(&state, StaticPodServerController::new(place.path())).unwrap();
    let list = async || {
        let mut client = Client::of(&state);
        ask(move || client.names()).await
    };
    harness.reconcile().await.unwrap();
    assert_eq!(list().await, ["kube-apiserver", "web"], "nobody said yet that they are gone");
    assert_ne!(state.get::<StaticPodServerStatus>("k8s", "static-pod-server-status").unwrap().url, url);

    put(&state, "k8s", "shop-web", pod("shop", "web"));
    etcd(&state, false);
    harness.reconcile().await.unwrap();
    assert_eq!(list().await, ["kube-apiserver", "web"]);

    put(&state, "k8s", "kube-apiserver", pod("kube-system", "kube-apiserver"));
    harness.reconcile().await.unwrap();
    state.destroy::<StaticPod>("k8s", "kube-apiserver", "").unwrap();
    harness.reconcile().await.unwrap();
    assert_eq!(list().await, ["web"], "from now on what is gone is gone");
}

#[tokio::test]
async fn the_port_is_the_one_of_before() {
    let place = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    fs::write(place.path().join("port"), port.to_string()).unwrap();
    fs::write(place.path().join("pods"), "not a list").unwrap();
    let (state, _clock) = ichor_testkit::state();
    let mut harness = Harness::new(&state, StaticPodServerController::new(place.path())).unwrap();
    harness.reconcile().await.unwrap();
    let status = state.get::<StaticPodServerStatus>("k8s", "static-pod-server-status").unwrap();
    assert_eq!(status.url, format!("http://127.0.0.1:{port}"));
    let mut client = Client::of(&state);
    assert!(ask(move || client.names()).await.is_empty());
}
