//! The kubelet's files in a directory, and a service that only takes notes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ichor_pki::{Authority, CertInfo, KeyAlgorithm, Leaf, check};
use ichor_resource::value::{Object, PemCertificate};
use ichor_testkit::Harness;

use serde_json::json;

use super::plan::{KUBERNETES, OWN};
use super::*;

#[derive(Clone, Default)]
struct Service {
    told: Arc<Mutex<Vec<&'static str>>>,
    /// What it was last started with.
    run: Arc<Mutex<KubeletRun>>,
    inherited: bool,
}

impl KubeletPort for Service {
    fn is_inherited(&self) -> bool {
        self.inherited
    }

    fn start(&self, run: &KubeletRun) -> Result<(), String> {
        self.told.lock().unwrap().push("start");
        *self.run.lock().unwrap() = run.clone();
        Ok(())
    }

    async fn stop(&self) -> Result<(), String> {
        self.told.lock().unwrap().push("stop");
        Ok(())
    }
}

fn now() -> jiff::Timestamp {
    "2026-11-15T12:00:00Z".parse().unwrap()
}

fn authority() -> Authority {
    Authority::generate(KeyAlgorithm::EcdsaP256, "kubernetes", now(), Authority::TEN_YEARS).unwrap()
}

fn secret(authorities: &[&Authority]) -> KubeletSecret {
    let crt = |authority: &&Authority| PemCertificate { crt: authority.crt_pem().as_bytes().to_vec().into() };
    KubeletSecret {
        endpoint: Some("https://127.0.0.1:7445".into()),
        accepted_cas: authorities.iter().map(crt).collect(),
        bootstrap_token_id: "abcdef".into(),
        bootstrap_token_secret: "0123456789abcdef".into(),
    }
}

fn spec(config: Json) -> KubeletSpec {
    let Json::Object(config) = config else { unreachable!() };
    KubeletSpec {
        image: "kubelet:1".into(),
        expected_nodename: "node-1".into(),
        config: Object(config),
        ..KubeletSpec::default()
    }
}

fn client(authority: &Authority, name: &str) -> Vec<u8> {
    let leaf = Leaf::client(name, ["system:nodes"]).with_lifetime(Duration::from_secs(3600));
    let pair = authority.issue(&leaf, now()).unwrap();
    format!("{}{}", pair.crt, pair.key).into_bytes()
}

fn machine() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("var/lib/kubelet/pki")).unwrap();
    let root = dir.path().to_owned();
    (dir, root)
}

fn files(root: &std::path::Path) -> Files {
    Files::new(root.to_owned(), root.join("run/mark"))
}

fn clean(root: &std::path::Path, plan: &Plan, issuer: Option<&Issuer>, now: jiff::Timestamp) {
    let controller = KubeletServiceController::new(Service::default(), root, root.join("run/mark"));
    let first = issuer.cloned().map_or(FirstCertificate::ByKubelet, FirstCertificate::Signed);
    controller.clean(plan, first, now).unwrap();
}

fn json_file(path: PathBuf) -> Json {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[tokio::test]
async fn the_kubelet_starts_once_for_every_change() {
    let (_dir, root) = machine();
    let (state, _clock) = ichor_testkit::state();
    let service = Service::default();
    let controller = KubeletServiceController::new(service.clone(), &root, root.join("run/mark"));
    let mut harness = Harness::new(&state, controller).unwrap();
    harness.reconcile().await.unwrap();
    let ca = authority();
    state.create("k8s", KUBELET, spec(json!({ "a": 1 })), "").unwrap();
    state.create("secrets", KUBELET, secret(&[&ca]), "").unwrap();
    harness.reconcile().await.unwrap();
    assert!(service.told.lock().unwrap().is_empty(), "the machine has no id yet");
    state.create("files", "machine-id", EtcFileStatus::default(), "").unwrap();
    harness.reconcile().await.unwrap();
    assert_eq!(*service.told.lock().unwrap(), ["stop", "start"]);
    state.modify::<KubeletSpec>("k8s", KUBELET, "", |_| {}).unwrap();
    harness.reconcile().await.unwrap();
    assert_eq!(service.told.lock().unwrap().len(), 2, "nothing new is no reason");
    state.modify::<KubeletSpec>("k8s", KUBELET, "", |spec| spec.args.push("--v=4".into())).unwrap();
    harness.reconcile().await.unwrap();
    assert_eq!(*service.told.lock().unwrap(), ["stop", "start", "stop", "start"]);
    let expected = KubeletRun { image: "kubelet:1".into(), args: vec!["--v=4".into()], ..Default::default() };
    assert_eq!(*service.run.lock().unwrap(), expected, "the service runs what the controller has read");

    let bootstrap = json_file(root.join("etc/kubernetes/bootstrap-kubeconfig"));
    assert_eq!(bootstrap["users"][0]["user"]["token"], "abcdef.0123456789abcdef");
    assert_eq!(bootstrap["clusters"][0]["cluster"]["server"], "https://127.0.0.1:7445");
    assert_eq!(bootstrap["current-context"], "kubelet@local");
    let mode = |name: &str| fs::metadata(root.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("etc/kubernetes/bootstrap-kubeconfig"), 0o600);
    assert_eq!(mode("etc/kubernetes/pki/ca.crt"), 0o400);
    assert_eq!(fs::read_to_string(root.join("etc/kubernetes/pki/ca.crt")).unwrap(), ca.crt_pem());

    // A new manager finds the kubelet running as it is meant to, and later one that is not.
    let again = Service { inherited: true, ..Service::default() };
    let controller = KubeletServiceController::new(again.clone(), &root, root.join("run/mark"));
    Harness::new(&state, controller).unwrap().reconcile().await.unwrap();
    assert_eq!(*again.told.lock().unwrap(), ["start"]);
    state.modify::<KubeletSpec>("k8s", KUBELET, "", |spec| spec.args.push("--v=5".into())).unwrap();
    let third = Service { inherited: true, ..Service::default() };
    let controller = KubeletServiceController::new(third.clone(), &root, root.join("run/mark"));
    Harness::new(&state, controller).unwrap().reconcile().await.unwrap();
    assert_eq!(*third.told.lock().unwrap(), ["stop", "start"]);
}

/// It went on for five minutes with what the API refused.
#[tokio::test]
async fn a_kubelet_whose_certificate_ended_in_a_jump_of_the_clock_starts_anew() {
    let (_dir, root) = machine();
    let (state, clock) = ichor_testkit::state();
    let at = |hours| {
        let time = now() + jiff::SignedDuration::from_hours(hours);
        clock.set(ichor_resource::Nanos(time.as_nanosecond().try_into().unwrap()));
    };
    at(0);
    let service = Service::default();
    let controller = KubeletServiceController::new(service.clone(), &root, root.join("run/mark"));
    let mut harness = Harness::new(&state, controller).unwrap();
    let ca = authority();
    state.create("k8s", KUBELET, spec(json!({})), "").unwrap();
    state.create("secrets", KUBELET, secret(&[&ca]), "").unwrap();
    state.create("files", "machine-id", EtcFileStatus::default(), "").unwrap();
    let time = |epoch| TimeStatus { synced: true, epoch, sync_disabled: false };
    state.create("runtime", "node", time(0), "").unwrap();
    harness.reconcile().await.unwrap();
    let pem = root.join("var/lib/kubelet/pki/kubelet-client-current.pem");
    fs::write(&pem, client(&ca, "system:node:node-1")).unwrap();
    let mut jump = async |epoch, hours| {
        at(hours);
        state.modify::<TimeStatus>("runtime", "node", "", |status| status.epoch = epoch).unwrap();
        harness.reconcile().await.unwrap();
        harness.reconcile().await.unwrap();
        (service.told.lock().unwrap().len(), pem.exists())
    };
    assert_eq!(jump(1, 0).await, (2, true), "a jump that the certificate outlives changes nothing");
    assert_eq!(
        jump(2, 2).await,
        (4, false),
        "it starts once without the certificate, and asks for a new one"
    );
}

#[test]
fn a_certificate_stays_while_its_name_and_its_authority_do() {
    let (old, new) = (authority(), authority());
    let later = now() + jiff::SignedDuration::from_hours(2);
    for (case, accepted, name, when, stays) in [
        ("as it should be", vec![&old], "system:node:node-1", now(), true),
        ("another name", vec![&old], "system:node:node-2", now(), false),
        ("another authority of the same name", vec![&new], "system:node:node-1", now(), false),
        ("both authorities", vec![&new, &old], "system:node:node-1", now(), true),
        ("too old", vec![&old], "system:node:node-1", later, false),
    ] {
        let (_dir, root) = machine();
        fs::create_dir_all(root.join(KUBERNETES)).unwrap();
        let pem = root.join("var/lib/kubelet/pki/kubelet-client-current.pem");
        let kubeconfig = root.join("etc/kubernetes/kubeconfig-kubelet");
        fs::write(&pem, client(&old, name)).unwrap();
        fs::write(&kubeconfig, "server: https://elsewhere").unwrap();
        clean(&root, &Plan::of(&spec(json!({})), &secret(&accepted)), None, when);
        assert_eq!(pem.exists(), stays, "{case}");
        assert_eq!(kubeconfig.exists(), stays, "{case}");
        if stays {
            let file = json_file(kubeconfig);
            assert_eq!(file["clusters"][0]["cluster"]["server"], "https://127.0.0.1:7445");
            assert_eq!(
                file["users"][0]["user"]["client-key"],
                "/var/lib/kubelet/pki/kubelet-client-current.pem"
            );
        }
    }
}

#[test]
fn a_name_that_the_user_chose_is_not_checked() {
    let ca = authority();
    let spec = KubeletSpec { expected_nodename: String::new(), ..spec(json!({})) };
    let plan = Plan::of(&spec, &secret(&[&ca]));
    assert_eq!(plan.refuses(&client(&ca, "system:node:mine"), now()), None);
    assert_eq!(plan.refuses(b"not a certificate", now()), None);
}

#[test]
fn the_state_of_another_cpu_policy_and_certificates_it_signed_itself_go() {
    let ca = authority();
    for (old, new, stays) in
        [("none", None, true), ("static", Some("static"), true), ("none", Some("static"), false)]
    {
        let (_dir, root) = machine();
        let own = root.join(OWN);
        fs::write(own.join("cpu_manager_state"), format!(r#"{{"policyName":"{old}"}}"#)).unwrap();
        for name in ["pki/kubelet.crt", "pki/kubelet.key", "pki/other"] {
            fs::write(own.join(name), "x").unwrap();
        }
        let config = new.map_or(json!({}), |policy| json!({ "cpuManagerPolicy": policy }));
        clean(&root, &Plan::of(&spec(config), &secret(&[&ca])), None, now());
        assert_eq!(own.join("cpu_manager_state").exists(), stays, "{old} {new:?}");
        assert!(!own.join("pki/kubelet.crt").exists() && !own.join("pki/kubelet.key").exists());
        assert!(own.join("pki/other").exists());
        clean(&root, &Plan::of(&spec(json!({})), &secret(&[&ca])), None, now());
    }
}

#[test]
fn files_of_credential_providers_come_and_go() {
    let ca = authority();
    let (_dir, root) = machine();
    let path = root.join("etc/kubernetes/kubelet-credentialproviderconfig.yaml");
    let Json::Object(providers) = json!({ "providers": [] }) else { unreachable!() };
    let with = KubeletSpec { credential_provider_config: Object(providers), ..spec(json!({})) };
    files(&root).apply(&Plan::of(&with, &secret(&[&ca])).prepare()).unwrap();
    assert_eq!(json_file(path.clone())["providers"], json!([]));
    files(&root).apply(&Plan::of(&spec(json!({})), &secret(&[&ca])).prepare()).unwrap();
    assert!(!path.exists());
}

/// A pod of the control plane that runs since `started`.
fn run_pod(state: &ichor_cosi::State, generation: i64, started: &str) {
    let object = |value: Json| match value {
        Json::Object(object) => Object(object),
        _ => unreachable!(),
    };
    let pod = object(json!({ "metadata": { "generation": generation } }));
    state.modify::<StaticPod>("k8s", "kube-apiserver", "", |spec| spec.pod = pod.clone()).unwrap();
    let running = json!({ "ready": true, "state": { "running": { "startedAt": started } } });
    let status = object(json!({ "containerStatuses": [running] }));
    let id = "kube-system/kube-apiserver-node-1";
    state.modify::<StaticPodStatus>("k8s", id, "", |spec| spec.pod_status = status.clone()).unwrap();
}

#[tokio::test]
async fn pods_of_the_control_plane_are_replaced_first() {
    let (state, clock) = ichor_testkit::state();
    clock.set(ichor_resource::Nanos::from_timestamp(now()));
    let (_dir, root) = machine();
    let (old, new) = (authority(), authority());
    state.create("files", "machine-id", EtcFileStatus::default(), "").unwrap();
    state.create("k8s", KUBELET, spec(json!({})), "").unwrap();
    state.create("secrets", KUBELET, secret(&[&old]), "").unwrap();
    let service = Service::default();
    let controller = KubeletServiceController::new(service.clone(), &root, root.join("mark"));
    let mut harness = Harness::new(&state, controller).unwrap();
    let told = || service.told.lock().unwrap().len();
    harness.reconcile().await.unwrap();
    let begun = told();
    run_pod(&state, 1, "2026-11-15T11:00:00Z");
    harness.reconcile().await.unwrap();

    let accept = |authorities: &[&Authority]| {
        let wanted = secret(authorities);
        state.modify::<KubeletSecret>("secrets", KUBELET, "", |spec| spec.clone_from(&wanted)).unwrap();
    };
    accept(&[&old, &new]);
    harness.reconcile().await.unwrap();
    assert_eq!(told(), begun, "the pods may change as well");
    assert_eq!(harness.requeue(), Some(PODS_KNOWN));
    clock.advance(PODS_KNOWN);
    run_pod(&state, 2, "2026-11-15T11:00:00Z");
    harness.reconcile().await.unwrap();
    assert_eq!(told(), begun, "the pod that runs is the old one");
    run_pod(&state, 2, "2026-11-15T12:00:01Z");
    harness.reconcile().await.unwrap();
    assert_eq!(told(), begun + 2, "stopped and started");

    accept(&[&new]);
    harness.reconcile().await.unwrap();
    clock.advance(PODS_KNOWN);
    harness.reconcile().await.unwrap();
    assert_eq!(told(), begun + 4, "no pod changed, so none is waited for");

    accept(&[&old]);
    harness.reconcile().await.unwrap();
    run_pod(&state, 3, "2026-11-15T11:00:00Z");
    clock.advance(PODS_MAX);
    harness.reconcile().await.unwrap();
    assert_eq!(told(), begun + 6, "a pod that does not come holds up nothing for ever");
}

fn root_secret(authority: &Authority) -> KubernetesRootSecret {
    let pair = authority.to_pair();
    let pair = ichor_resource::value::PemCertificateAndKey {
        crt: pair.crt.as_bytes().to_vec().into(),
        key: pair.key.as_bytes().to_vec().into(),
    };
    KubernetesRootSecret { issuing_ca: Some(pair), ..KubernetesRootSecret::default() }
}

/// Its signing request waited for an API server, an approver and a leader: most of the time a new cluster took.
#[tokio::test]
async fn a_control_plane_signs_the_first_certificate_of_its_own_kubelet() {
    let (_dir, root) = machine();
    let (state, clock) = ichor_testkit::state();
    clock.set(ichor_resource::Nanos::from_timestamp(now()));
    let service = Service::default();
    let controller = KubeletServiceController::new(service.clone(), &root, root.join("run/mark"));
    let mut harness = Harness::new(&state, controller).unwrap();
    let ca = authority();
    state
        .create(
            "config",
            "machine-type",
            MachineTypeSpec { machine_type: ichor_types::MachineType::ControlPlane },
            "",
        )
        .unwrap();
    state.create("k8s", KUBELET, spec(json!({})), "").unwrap();
    state.create("secrets", KUBELET, secret(&[&ca]), "").unwrap();
    state.create("files", "machine-id", EtcFileStatus::default(), "").unwrap();
    harness.reconcile().await.unwrap();
    assert!(service.told.lock().unwrap().is_empty(), "the key of the CA is not known yet");
    state.create("secrets", "k8s", root_secret(&ca), "").unwrap();
    harness.reconcile().await.unwrap();
    assert_eq!(*service.told.lock().unwrap(), ["stop", "start"]);

    let pki = root.join("var/lib/kubelet/pki");
    let link = fs::read_link(pki.join("kubelet-client-current.pem")).unwrap();
    assert!(link.starts_with("/var/lib/kubelet/pki"), "{}", link.display());
    let pem = fs::read(pki.join(link.file_name().unwrap())).unwrap();
    let leaf = CertInfo::parse(&pem).unwrap();
    assert_eq!(leaf.common_name, "system:node:node-1");
    assert!(check::issued_by(&pem, ca.crt_pem()).unwrap());
    ichor_pki::check::pair(&pem, &pem, now()).unwrap();
    let mode = fs::metadata(pki.join(link.file_name().unwrap())).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let kubeconfig = json_file(root.join("etc/kubernetes/kubeconfig-kubelet"));
    assert_eq!(
        kubeconfig["users"][0]["user"]["client-certificate"],
        "/var/lib/kubelet/pki/kubelet-client-current.pem"
    );
}

#[test]
fn a_certificate_that_is_there_is_not_signed_again() {
    let (_dir, root) = machine();
    fs::create_dir_all(root.join(KUBERNETES)).unwrap();
    let ca = authority();
    let pem = root.join("var/lib/kubelet/pki/kubelet-client-current.pem");
    let held = client(&ca, "system:node:node-1");
    fs::write(&pem, &held).unwrap();
    let issuer = Issuer::of(Some(&root_secret(&ca)));
    clean(&root, &Plan::of(&spec(json!({})), &secret(&[&ca])), issuer.as_ref(), now());
    assert_eq!(fs::read(&pem).unwrap(), held);
    let worker = KubernetesRootSecret::default();
    assert!(Issuer::of(Some(&worker)).is_none() && Issuer::of(None).is_none());
}

/// A worker with all that its kubelet needs but a certificate, and an API server to request one from.
fn worker(
    root: &std::path::Path,
    service: &Service,
    server: &ichor_testkit::kube::Server,
) -> (ichor_cosi::State, Harness<KubeletServiceController<Service>>, Authority) {
    let (state, clock) = ichor_testkit::state();
    clock.set(ichor_resource::Nanos(now().as_nanosecond().try_into().unwrap()));
    let client = server.client();
    let controller = KubeletServiceController::new(service.clone(), root, root.join("run/mark"))
        .requesting(Arc::new(move |_: Way<'_>| Ok(client.clone())));
    let harness = Harness::new(&state, controller).unwrap();
    let ca = authority();
    state.create("k8s", KUBELET, spec(json!({})), "").unwrap();
    state.create("secrets", KUBELET, secret(&[&ca]), "").unwrap();
    state.create("files", "machine-id", EtcFileStatus::default(), "").unwrap();
    (state, harness, ca)
}

/// Kubelets of workers started before they were allowed to read anything and waited ever longer between attempts.
#[tokio::test(start_paused = true)]
async fn the_kubelet_of_a_worker_starts_with_a_certificate() {
    let (_dir, root) = machine();
    let (service, server) = (Service::default(), ichor_testkit::kube::Server::new());
    let (_state, mut harness, ca) = worker(&root, &service, &server);
    harness.reconcile().await.unwrap();
    assert!(service.told.lock().unwrap().is_empty(), "there is no certificate yet");

    tokio::time::sleep(Duration::from_secs(1)).await;
    let paths = server.paths();
    let path = paths.iter().find(|path| path.contains("certificatesigningrequests/")).expect("a request");
    let mut object = server.object(path).unwrap();
    assert_eq!(object["spec"]["signerName"], "kubernetes.io/kube-apiserver-client-kubelet");
    let decoded = |text: &Json| {
        use ::base64::Engine as _;
        ::base64::engine::general_purpose::STANDARD.decode(text.as_str().unwrap()).unwrap()
    };
    let request = ichor_pki::Request::from_pem(decoded(&object["spec"]["request"])).unwrap();
    request.verify().unwrap();
    let grant = ichor_pki::Grant {
        key_usage: ichor_pki::KeyUsage::Signature,
        extended_usage: ichor_pki::ExtendedUsage::Client,
        keep_organizations: true,
        lifetime: Leaf::YEAR,
    };
    let signed = ca.sign_request(&request, &grant, now()).unwrap();
    object["status"]["certificate"] = json!(ichor_resource::value::binary::base64(signed.as_bytes()));
    server.put(path, object);

    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(harness.was_woken().await);
    harness.reconcile().await.unwrap();
    assert_eq!(*service.told.lock().unwrap(), ["stop", "start"]);
    let pki = root.join("var/lib/kubelet/pki");
    let link = fs::read_link(pki.join(client::CURRENT)).unwrap();
    let pem = fs::read(pki.join(link.file_name().unwrap())).unwrap();
    assert_eq!(CertInfo::parse(&pem).unwrap().common_name, "system:node:node-1");
    assert!(root.join("etc/kubernetes/kubeconfig-kubelet").exists());
}

#[tokio::test(start_paused = true)]
async fn without_an_api_the_kubelet_of_a_worker_starts_after_a_minute() {
    let (_dir, root) = machine();
    let (service, server) = (Service::default(), ichor_testkit::kube::Server::new());
    server.set_down(true);
    let (_state, mut harness, _ca) = worker(&root, &service, &server);
    harness.reconcile().await.unwrap();
    tokio::time::sleep(Duration::from_secs(58)).await;
    harness.reconcile().await.unwrap();
    assert!(service.told.lock().unwrap().is_empty());
    tokio::time::sleep(Duration::from_secs(3)).await;
    harness.reconcile().await.unwrap();
    assert_eq!(*service.told.lock().unwrap(), ["stop", "start"]);
    assert!(!root.join("etc/kubernetes/kubeconfig-kubelet").exists(), "the kubelet requests its own");
}

#[tokio::test]
async fn static_pods_of_a_worker_do_not_wait_for_an_api() {
    let (_dir, root) = machine();
    let (service, server) = (Service::default(), ichor_testkit::kube::Server::new());
    server.set_down(true);
    let (state, mut harness, _ca) = worker(&root, &service, &server);
    state.create("k8s", "default-nginx", StaticPod::default(), "").unwrap();
    harness.reconcile().await.unwrap();
    assert_eq!(*service.told.lock().unwrap(), ["stop", "start"]);
}

#[tokio::test]
async fn a_kubelet_that_is_being_torn_down_is_not_started_again() {
    let (_dir, root) = machine();
    let (state, _clock) = ichor_testkit::state();
    let service = Service::default();
    let controller = KubeletServiceController::new(service.clone(), &root, root.join("run/mark"));
    let mut harness = Harness::new(&state, controller).unwrap();
    state.create("k8s", KUBELET, spec(json!({})), "").unwrap();
    state.create("secrets", KUBELET, secret(&[&authority()]), "").unwrap();
    state.create("files", "machine-id", EtcFileStatus::default(), "").unwrap();
    harness.reconcile().await.unwrap();
    let lifecycle = state.get::<KubeletLifecycle>("k8s", KUBELET).unwrap();
    assert_eq!(lifecycle.meta().owner(), OWNER);
    assert!(state.teardown::<KubeletLifecycle>("k8s", KUBELET, OWNER).unwrap(), "nobody holds it");
    state.modify::<KubeletSpec>("k8s", KUBELET, "", |spec| spec.args.push("--v=4".into())).unwrap();
    harness.reconcile().await.unwrap();
    assert_eq!(*service.told.lock().unwrap(), ["stop", "start"]);
}

#[test]
fn the_steps_of_a_plan_follow_from_what_is_found() {
    use super::plan::{Found, Step};
    let ca = authority();
    let plan = Plan::of(&spec(json!({})), &secret(&[&ca]));
    let named = |steps: Vec<Step>| -> Vec<String> {
        let line = |step| match step {
            Step::Directory(path, mode) => format!("mkdir {} {mode:o}", path.display()),
            Step::Write(path, _, mode) => format!("write {} {mode:o}", path.display()),
            Step::Link(path, target) => format!("link {} -> {}", path.display(), target.display()),
            Step::Remove(path) => format!("rm {}", path.display()),
            Step::RemoveTree(path) => format!("rm -r {}", path.display()),
        };
        steps.into_iter().map(line).collect()
    };
    let own = ["rm var/lib/kubelet/pki/kubelet.crt", "rm var/lib/kubelet/pki/kubelet.key"];
    assert_eq!(named(plan.clean(&Found::default(), None, now())), own);
    let stranger = Found {
        certificate: Some(client(&authority(), "system:node:node-1")),
        has_certificate_link: true,
        has_kubeconfig: true,
        cpu_state: Some(br#"{"policyName":"static"}"#.to_vec()),
    };
    assert!(plan.lacks_certificate(&stranger, now()));
    let refused = ["rm -r var/lib/kubelet/pki", "rm etc/kubernetes/kubeconfig-kubelet"];
    let cpu = "rm var/lib/kubelet/cpu_manager_state";
    let without = [&refused[..], &[cpu], &own].concat();
    assert_eq!(named(plan.clean(&stranger, None, now())), without);
    let issued = [
        "mkdir var/lib/kubelet/pki 755",
        "write var/lib/kubelet/pki/kubelet-client-2026-11-15-12-00-00.pem 600",
        "link var/lib/kubelet/pki/kubelet-client-current.pem -> \
         /var/lib/kubelet/pki/kubelet-client-2026-11-15-12-00-00.pem",
        "write etc/kubernetes/kubeconfig-kubelet 600",
    ];
    let with = [&without[..], &issued].concat();
    assert_eq!(named(plan.clean(&stranger, Some("pem"), now())), with);
}
