//! From a machine configuration to certificates, one pass at a time.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ichor_cosi::State;
use ichor_ctl_secrets::{
    Api, ApiCertSans, Kubelet, Maintenance, MaintenanceCertSans, MaintenanceRoot, Resolve, RootEtcd,
    RootKubernetes, RootOs, SignError, SignRequest, Signed, StaticEndpoint, TrustService, Trustd, id,
};
use ichor_pki::{Authority, CertInfo, ExtendedUsage, Grant, KeyAlgorithm, KeyUsage, Leaf, Request};
use ichor_resource::config::{MachineConfig, MachineType};
use ichor_resource::k8s::Endpoint;
use ichor_resource::network::{HostnameStatus, NetworkStatus, NodeAddress};
use ichor_resource::secrets::{
    ApiCertificate, CertSAN, EtcdRootSecret, KubeletSecret, KubernetesRootSecret,
    MaintenanceServiceCertificate, OSRootSecret, TrustdCertificate,
};
use ichor_resource::value::binary::base64;
use ichor_testkit::{FakeClock, Harness};
use ichor_types::MachineType as Role;

fn now() -> jiff::Timestamp {
    "2025-01-01T00:00:00Z".parse().unwrap()
}

fn authority() -> Authority {
    Authority::generate(KeyAlgorithm::Ed25519, "talos", now(), Authority::TEN_YEARS).unwrap()
}

fn config(role: &str, ca: &Authority) -> String {
    let key = if role == "worker" { String::new() } else { base64(ca.key_pem().as_bytes()) };
    let crt = base64(ca.crt_pem().as_bytes());
    format!(
        "version: v1alpha1\nmachine:\n  type: {role}\n  token: abcdef.0123456789abcdef\n  ca:\n    crt: {crt}\n    \
         key: {key:?}\n  certSANs: [127.5.0.2, node.example.org]\n  features:\n    kubernetesTalosAPIAccess:\n      \
         enabled: true\ncluster:\n  clusterName: lab\n  token: tokenid.tokensecret\n  controlPlane:\n    \
         endpoint: https://10.5.0.2:6443\n  ca:\n    crt: {crt}\n    key: {key:?}\n  etcd:\n    ca:\n      crt: {crt}\n      key: {key:?}\n"
    )
}

struct Lab {
    state: State,
    clock: FakeClock,
    ca: Authority,
}

impl Lab {
    fn new(role: &str) -> Self {
        let (state, clock) = ichor_testkit::state();
        let lab = Self { state, clock, ca: authority() };
        let config = MachineConfig::new(config(role, &lab.ca));
        lab.put("config", MachineConfig::ACTIVE, config);
        let machine_type = role.parse::<Role>().unwrap();
        lab.put("config", MachineType::ID, MachineType { machine_type });
        lab.put(
            "network",
            "hostname",
            HostnameStatus { hostname: "node-1".into(), domainname: "example.org".into() },
        );
        lab.addresses(&["10.5.0.2/24", "fd00::2/64"]);
        lab.put(
            "network",
            "status",
            NetworkStatus { address_ready: true, hostname_ready: true, ..Default::default() },
        );
        lab
    }

    fn put<T: ichor_resource::TypedSpec>(&self, namespace: &str, id: &str, spec: T) {
        self.state.modify::<T>(namespace, id, "", |stored| stored.clone_from(&spec)).unwrap();
    }

    fn addresses(&self, addresses: &[&str]) {
        let addresses: Vec<_> = addresses.iter().map(|text| text.parse().unwrap()).collect();
        for id in ["accumulative", "accumulative-no-k8s"] {
            self.put("network", id, NodeAddress { addresses: addresses.clone(), ..Default::default() });
        }
    }

    fn api(&self) -> ApiCertificate {
        (*self.state.get::<ApiCertificate>("secrets", id::API).unwrap()).clone()
    }

    async fn roots(&self) {
        Harness::new(&self.state, RootOs::default()).unwrap().reconcile().await.unwrap();
        Harness::new(&self.state, ApiCertSans).unwrap().reconcile().await.unwrap();
    }
}

/// A trust service that signs with an authority, or does not answer at all.
#[derive(Clone, Default)]
struct FakeTrust {
    authority: Option<Arc<Authority>>,
    asked: Arc<Mutex<Vec<SignRequest>>>,
}

impl TrustService for FakeTrust {
    async fn sign(&self, request: SignRequest) -> Result<Signed, SignError> {
        self.asked.lock().unwrap().push(request.clone());
        let Some(authority) = &self.authority else { return std::future::pending().await };
        let grant = Grant {
            key_usage: KeyUsage::Signature,
            extended_usage: ExtendedUsage::Server,
            keep_organizations: false,
            lifetime: Leaf::DAY,
        };
        let request = Request::from_pem(&request.csr).map_err(|error| SignError(error.to_string()))?;
        let crt =
            authority.sign_request(&request, &grant, now()).map_err(|error| SignError(error.to_string()))?;
        Ok(Signed(crt.into()))
    }
}

fn info(pair: Option<&ichor_resource::value::PemCertificateAndKey>) -> CertInfo {
    let pair = pair.expect("a certificate");
    ichor_pki::check::pair(&pair.crt, &pair.key, now()).expect("a key that fits")
}

#[tokio::test]
async fn root_secrets_follow_the_configuration() {
    let lab = Lab::new("controlplane");
    for _ in 0..2 {
        Harness::new(&lab.state, RootOs::default()).unwrap().reconcile().await.unwrap();
        Harness::new(&lab.state, RootEtcd::default()).unwrap().reconcile().await.unwrap();
        Harness::new(&lab.state, RootKubernetes::default()).unwrap().reconcile().await.unwrap();
        Harness::new(&lab.state, Kubelet::default()).unwrap().reconcile().await.unwrap();
    }
    let os = lab.state.get::<OSRootSecret>("secrets", id::OS).unwrap();
    assert_eq!(os.meta().version().number(), 1, "nothing changed, so nothing was written twice");
    assert_eq!(os.cert_san_ips, ["127.5.0.2".parse::<IpAddr>().unwrap().into()]);
    assert_eq!(os.cert_san_dns_names, ["node.example.org", "talos", "talos.default"]);
    assert_eq!(os.token, "abcdef.0123456789abcdef");
    assert_eq!(os.accepted_cas.len(), 1);
    assert!(os.issuing_ca.is_some());
    assert!(lab.state.get::<EtcdRootSecret>("secrets", id::ETCD).unwrap().etcd_ca.is_some());
    let kubernetes = lab.state.get::<KubernetesRootSecret>("secrets", id::KUBERNETES).unwrap();
    assert_eq!(kubernetes.api_server_ips[0].to_string(), "10.96.0.1");
    assert_eq!(kubernetes.local_endpoint.as_ref().unwrap().0, "https://localhost:6443");
    assert_eq!(
        (kubernetes.dns_domain.as_str(), kubernetes.bootstrap_token_id.as_str()),
        ("cluster.local", "tokenid")
    );
    let kubelet = lab.state.get::<KubeletSecret>("secrets", id::KUBELET).unwrap();
    assert_eq!(kubelet.endpoint.as_ref().unwrap().0, "https://localhost:6443");
}

#[tokio::test]
async fn a_worker_has_no_key_to_issue_from() {
    let lab = Lab::new("worker");
    lab.roots().await;
    Harness::new(&lab.state, RootEtcd::default()).unwrap().reconcile().await.unwrap();
    let os = lab.state.get::<OSRootSecret>("secrets", id::OS).unwrap();
    assert_eq!((os.issuing_ca.as_ref(), os.accepted_cas.len()), (None, 1));
    assert!(lab.state.get::<EtcdRootSecret>("secrets", id::ETCD).is_err());
}

#[tokio::test]
async fn names_are_sorted_and_given_once() {
    let lab = Lab::new("controlplane");
    lab.addresses(&["fd00::2/64", "10.5.0.2/24", "127.5.0.2/8"]);
    lab.roots().await;
    let names = lab.state.get::<CertSAN>("secrets", id::API).unwrap();
    let ips: Vec<_> = names.ips.iter().map(ToString::to_string).collect();
    assert_eq!(ips, ["10.5.0.2", "127.5.0.2", "fd00::2"]);
    assert_eq!(
        names.dns_names,
        ["node-1", "node-1.example.org", "node.example.org", "talos", "talos.default"]
    );
    assert_eq!(names.fqdn, "node-1.example.org");
}

#[tokio::test]
async fn a_control_plane_machine_issues_its_own_certificates() {
    let lab = Lab::new("controlplane");
    lab.roots().await;
    let mut harness = Harness::new(&lab.state, Api::new(FakeTrust::default())).unwrap();
    harness.reconcile().await.unwrap();
    let made = lab.api();
    let (server, client) = (info(made.server.as_ref()), info(made.client.as_ref()));
    assert_eq!((server.common_name.as_str(), server.organizations.len()), ("node-1.example.org", 0));
    assert_eq!(server.addresses.len(), 3);
    assert_eq!(client.organizations, ["os:impersonator"]);
    assert!(client.is_client_only() && !server.is_client_only());
    assert_eq!(made.accepted_cas[0].crt, lab.ca.crt_pem().as_bytes());
    assert_eq!(harness.requeue(), Some(Duration::from_secs(12 * 60 * 60)));
}

#[tokio::test]
async fn a_certificate_stays_until_its_inputs_change_or_half_its_life_is_over() {
    let lab = Lab::new("controlplane");
    lab.roots().await;
    let mut harness = Harness::new(&lab.state, Api::new(FakeTrust::default())).unwrap();
    harness.reconcile().await.unwrap();
    let first = lab.api();

    lab.clock.advance(Duration::from_secs(11 * 60 * 60));
    harness.reconcile().await.unwrap();
    assert_eq!(lab.api(), first, "a young certificate with the same inputs stays");
    assert_eq!(harness.requeue(), Some(Duration::from_secs(60 * 60)));

    lab.clock.advance(Duration::from_secs(60 * 60));
    harness.reconcile().await.unwrap();
    let second = lab.api();
    assert_ne!(second, first, "half its life is over");

    lab.addresses(&["10.5.0.3/24"]);
    lab.roots().await;
    harness.reconcile().await.unwrap();
    let third = lab.api();
    assert_ne!(third, second, "the address changed");

    lab.clock.set(ichor_resource::Nanos::from_timestamp(now()));
    harness.reconcile().await.unwrap();
    assert_ne!(lab.api(), third, "the clock went back to before it was issued");
}

#[tokio::test]
async fn certificates_wait_for_the_network() {
    let lab = Lab::new("controlplane");
    lab.roots().await;
    lab.put("network", "status", NetworkStatus { address_ready: true, ..Default::default() });
    Harness::new(&lab.state, Api::new(FakeTrust::default())).unwrap().reconcile().await.unwrap();
    assert!(lab.state.get::<ApiCertificate>("secrets", id::API).is_err());
}

#[tokio::test]
async fn a_worker_has_its_certificate_signed() {
    let lab = Lab::new("worker");
    lab.roots().await;
    let signer = Arc::new(Authority::from_pem(lab.ca.crt_pem(), lab.ca.key_pem()).unwrap());
    let trust = FakeTrust { authority: Some(signer), ..Default::default() };
    let mut harness = Harness::new(&lab.state, Api::new(trust.clone())).unwrap();

    harness.reconcile().await.unwrap();
    assert!(trust.asked.lock().unwrap().is_empty(), "nobody to ask yet");

    Harness::new(&lab.state, StaticEndpoint::new(NoNames)).unwrap().reconcile().await.unwrap();
    let endpoint = lab.state.get::<Endpoint>("controlplane", "controlplane").unwrap();
    assert_eq!(endpoint.addresses[0].to_string(), "10.5.0.2");

    harness.reconcile().await.unwrap();
    let made = lab.api();
    assert_eq!(info(made.server.as_ref()).common_name, "node-1.example.org");
    assert_eq!(made.client, None);
    assert_eq!(made.accepted_cas.len(), 1);
    let asked = trust.asked.lock().unwrap();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].token, "abcdef.0123456789abcdef");
    assert_eq!(asked[0].endpoints, ["10.5.0.2".parse::<IpAddr>().unwrap()]);
}

#[tokio::test(start_paused = true)]
async fn a_question_is_dropped_when_its_inputs_change() {
    let lab = Lab::new("worker");
    lab.roots().await;
    lab.put(
        "controlplane",
        "controlplane",
        Endpoint { addresses: vec!["10.5.0.2".parse::<IpAddr>().unwrap().into()] },
    );
    let trust = FakeTrust::default();
    let mut harness = Harness::new(&lab.state, Api::new(trust.clone())).unwrap();
    let (wake, state) = (harness.context().wake().clone(), lab.state.clone());
    let later = tokio::spawn(async move {
        for second in 1..=4 {
            // A wake-up for nothing, and addresses that come and go.
            tokio::time::sleep(Duration::from_secs(1)).await;
            let spec = Endpoint { addresses: vec![IpAddr::from([10, 5, 0, second]).into()] };
            state
                .modify::<Endpoint>("controlplane", "discovery", "", |stored| *stored = spec.clone())
                .unwrap();
            wake.wake();
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        state
            .modify::<CertSAN>("secrets", id::API, "secrets.APICertSANsController", |names| {
                names.fqdn = "other".into()
            })
            .unwrap();
        wake.wake();
    });
    let began = tokio::time::Instant::now();
    harness.reconcile().await.unwrap();
    assert_eq!(began.elapsed().as_millis(), 4500, "a new name counts at once, new addresses do not");
    later.await.unwrap();
    assert_eq!(trust.asked.lock().unwrap().len(), 1);
    assert!(harness.was_woken().await, "another pass follows at once");

    let error = harness.reconcile().await.unwrap_err().to_string();
    assert_eq!(error, "signing took more than a minute");
    let asked = trust.asked.lock().unwrap();
    let endpoints: Vec<_> = asked[1].endpoints.iter().map(ToString::to_string).collect();
    assert_eq!(endpoints, ["10.5.0.2", "10.5.0.4"], "those of the configuration first");
}

#[tokio::test]
async fn a_worker_takes_no_certificate_of_an_authority_that_its_configuration_does_not_name() {
    let lab = Lab::new("worker");
    lab.roots().await;
    Harness::new(&lab.state, StaticEndpoint::new(NoNames)).unwrap().reconcile().await.unwrap();
    // Of the same name, as a liar would make it.
    let trust = FakeTrust { authority: Some(Arc::new(authority())), ..Default::default() };
    let mut harness = Harness::new(&lab.state, Api::new(trust)).unwrap();
    let error = harness.reconcile().await.unwrap_err().to_string();
    assert_eq!(
        error,
        "certificate of the trust service refused: certificate is not signed by an accepted certificate authority"
    );
    assert!(lab.state.get::<ApiCertificate>("secrets", id::API).is_err());
}

#[tokio::test]
async fn other_addresses_of_control_planes_are_no_reason_for_a_new_certificate() {
    let lab = Lab::new("worker");
    lab.roots().await;
    Harness::new(&lab.state, StaticEndpoint::new(NoNames)).unwrap().reconcile().await.unwrap();
    let signer = Arc::new(Authority::from_pem(lab.ca.crt_pem(), lab.ca.key_pem()).unwrap());
    let trust = FakeTrust { authority: Some(signer), ..Default::default() };
    let mut harness = Harness::new(&lab.state, Api::new(trust.clone())).unwrap();
    harness.reconcile().await.unwrap();
    let first = lab.api();
    let liar = Endpoint { addresses: vec![IpAddr::from([10, 5, 0, 66]).into()] };
    lab.put("controlplane", "discovery", liar);
    harness.reconcile().await.unwrap();
    assert_eq!((lab.api(), trust.asked.lock().unwrap().len()), (first, 1));
}

struct NoNames;

impl Resolve for NoNames {
    async fn resolve(&self, host: &str) -> std::io::Result<Vec<IpAddr>> {
        Err(std::io::Error::other(format!("no such host: {host}")))
    }
}

#[tokio::test]
async fn trustd_has_a_certificate_on_control_plane_machines_only() {
    let lab = Lab::new("controlplane");
    lab.roots().await;
    let mut harness = Harness::new(&lab.state, Trustd::default()).unwrap();
    harness.reconcile().await.unwrap();
    let made = lab.state.get::<TrustdCertificate>("secrets", id::TRUSTD).unwrap();
    assert_eq!(info(made.server.as_ref()).common_name, "node-1.example.org");

    lab.put("config", MachineType::ID, MachineType { machine_type: Role::Worker });
    harness.reconcile().await.unwrap();
    assert!(lab.state.get::<TrustdCertificate>("secrets", id::TRUSTD).is_err());
}

#[tokio::test]
async fn maintenance_makes_its_own_authority_once() {
    let lab = Lab::new("worker");
    let mut root = Harness::new(&lab.state, MaintenanceRoot).unwrap();
    root.reconcile().await.unwrap();
    root.reconcile().await.unwrap();
    Harness::new(&lab.state, MaintenanceCertSans).unwrap().reconcile().await.unwrap();
    Harness::new(&lab.state, Maintenance::default()).unwrap().reconcile().await.unwrap();
    let made = lab.state.get::<MaintenanceServiceCertificate>("secrets", id::MAINTENANCE).unwrap();
    let server = info(made.server.as_ref());
    assert_eq!(server.common_name, "maintenance-service.talos.dev");
    assert!(server.addresses.contains(&"127.0.0.1".parse().unwrap()));
    assert!(server.dns_names.contains(&"node-1".to_owned()));
}

#[tokio::test]
async fn a_machine_without_a_name_still_gets_its_maintenance_certificate() {
    let lab = Lab::new("worker");
    lab.state.destroy::<HostnameStatus>("network", "hostname", "").unwrap();
    Harness::new(&lab.state, MaintenanceCertSans).unwrap().reconcile().await.unwrap();
    let names = lab.state.get::<CertSAN>("secrets", id::MAINTENANCE).unwrap();
    assert!(names.dns_names.is_empty());
    assert!(names.ips.len() > 2, "the node's own and loopback: {:?}", names.ips);
}
