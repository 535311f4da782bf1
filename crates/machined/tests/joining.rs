//! A worker among members that lie: one that hands back an authority of its own, and addresses that lead nowhere.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use ichor_cosi::State;
use ichor_ctl_cluster::member::{EndpointController, MemberController};
use ichor_ctl_secrets::{Api, ApiCertSans, Resolve, RootOs, StaticEndpoint, id};
use ichor_machined::trust::TrustClient;
use ichor_pki::{Authority, CertInfo, KeyAlgorithm, Leaf, check};
use ichor_resource::cluster::{Affiliate, ControlPlane};
use ichor_resource::config::{MachineConfig, MachineType};
use ichor_resource::k8s::Endpoint as Endpoints;
use ichor_resource::network::{HostnameStatus, NetworkStatus, NodeAddress};
use ichor_resource::secrets::ApiCertificate;
use ichor_resource::value::Ip;
use ichor_resource::value::binary::base64;
use ichor_testkit::{FakeTrustd, Harness};
use ichor_types::MachineType as Role;
use jiff::Timestamp;
use tokio::net::TcpListener;

const TOKEN: &str = "abcdef.0123456789abcdef";

fn authority() -> Authority {
    // All of the same name, as a liar would make it.
    Authority::generate(KeyAlgorithm::Ed25519, "talos", Timestamp::now(), Authority::TEN_YEARS).unwrap()
}

/// A cluster's authority, and machines that all have a certificate of it for their own address.
struct Cluster {
    authority: Authority,
    port: u16,
}

impl Cluster {
    fn new() -> Self {
        ichor_pki::install_provider();
        // A port that is free at one address is free at the others: nobody else uses these.
        let probe = std::net::TcpListener::bind("127.91.0.1:0").unwrap();
        Self { authority: authority(), port: probe.local_addr().unwrap().port() }
    }

    /// Serves trust at an address, signing with `signer`.
    async fn trustd(&self, address: &str, signer: Authority) -> FakeTrustd {
        let address: IpAddr = address.parse().unwrap();
        let leaf = Leaf::server("member").with_names([""; 0], [address]);
        let identity = self.authority.issue(&leaf, Timestamp::now()).unwrap();
        let listener = TcpListener::bind((address, self.port)).await.unwrap();
        FakeTrustd::serve(listener, &identity, TOKEN, signer)
    }

    fn real(&self) -> Authority {
        Authority::from_pem(self.authority.crt_pem(), self.authority.key_pem()).unwrap()
    }
}

struct NoNames;

impl Resolve for NoNames {
    async fn resolve(&self, host: &str) -> std::io::Result<Vec<IpAddr>> {
        Err(std::io::Error::other(format!("no such host: {host}")))
    }
}

/// A worker up to its certificate.
struct Worker {
    state: State,
    controller: Harness<Api<TrustClient>>,
}

impl Worker {
    /// A worker whose configuration names this endpoint, and the cluster's authority and no other.
    async fn new(cluster: &Cluster, endpoint: &str) -> Self {
        let state = State::new(ichor_cosi::SystemClock);
        ichor_machined::meta::register(&state).unwrap();
        let crt = base64(cluster.authority.crt_pem().as_bytes());
        let config = format!(
            "version: v1alpha1\nmachine:\n  type: worker\n  token: {TOKEN}\n  ca: {{crt: {crt}, key: \"\"}}\n\
             cluster:\n  controlPlane: {{endpoint: 'https://{endpoint}:6443'}}\n"
        );
        state.create("config", MachineConfig::ACTIVE, MachineConfig::new(config), "").unwrap();
        state.create("config", MachineType::ID, MachineType { machine_type: Role::Worker }, "").unwrap();
        let hostname = HostnameStatus { hostname: "worker".into(), ..Default::default() };
        state.create("network", "hostname", hostname, "").unwrap();
        for id in ["accumulative", "accumulative-no-k8s"] {
            let addresses = vec!["127.91.0.9/8".parse().unwrap()];
            state.create("network", id, NodeAddress { addresses, ..Default::default() }, "").unwrap();
        }
        let ready = NetworkStatus { address_ready: true, hostname_ready: true, ..Default::default() };
        state.create("network", "status", ready, "").unwrap();
        Harness::new(&state, RootOs::default()).unwrap().reconcile().await.unwrap();
        Harness::new(&state, ApiCertSans).unwrap().reconcile().await.unwrap();
        Harness::new(&state, StaticEndpoint::new(NoNames)).unwrap().reconcile().await.unwrap();
        let controller = Harness::new(&state, Api::new(TrustClient::on_port(cluster.port))).unwrap();
        Self { state, controller }
    }

    /// A member says that it is a control plane.
    async fn hears(&self, name: &str, addresses: &[&str]) {
        let address = |text: &&str| Ip::from(text.parse::<IpAddr>().unwrap());
        let liar = Affiliate {
            node_id: name.into(),
            nodename: name.into(),
            machine_type: Role::ControlPlane,
            addresses: addresses.iter().map(address).collect(),
            control_plane: Some(ControlPlane { port: 6443 }),
            ..Default::default()
        };
        self.state.create("cluster", name, liar, "").unwrap();
        Harness::new(&self.state, MemberController).unwrap().reconcile().await.unwrap();
        Harness::new(&self.state, EndpointController::default()).unwrap().reconcile().await.unwrap();
        assert!(self.state.get::<Endpoints>("controlplane", "discovery").is_ok());
    }

    fn certificate(&self) -> Option<ApiCertificate> {
        self.state.find::<ApiCertificate>("secrets", id::API).map(|found| (*found).clone())
    }

    /// The certificate is of the cluster, and nothing but the configuration's authority is accepted.
    fn is_safe(&self, cluster: &Cluster) {
        let found = self.certificate().expect("a certificate");
        let accepted: Vec<_> = found.accepted_cas.iter().map(|ca| ca.crt.to_vec()).collect();
        assert_eq!(accepted, [cluster.authority.crt_pem().as_bytes()]);
        let server = found.server.expect("a server certificate");
        assert!(check::issued_by(&server.crt, cluster.authority.crt_pem()).unwrap());
        check::pair(&server.crt, &server.key, Timestamp::now()).unwrap();
        assert_eq!(CertInfo::parse(&server.crt).unwrap().common_name, "worker");
    }
}

#[tokio::test]
async fn a_lying_member_cannot_make_a_worker_trust_its_authority() {
    let cluster = Cluster::new();
    // Root on another worker: its certificate is good, its authority is its own.
    let lies = cluster.trustd("127.91.0.2", authority()).await;
    let mut worker = Worker::new(&cluster, "127.91.0.1").await;
    worker.hears("a-liar", &["127.91.0.2"]).await;
    let error = worker.controller.reconcile().await.unwrap_err().to_string();
    assert!(error.contains("127.91.0.2: its certificate was refused"), "{error}");
    assert!(lies.asked() > 0, "the liar was asked");
    assert_eq!(worker.certificate(), None);

    // The real one is found all the same.
    let signs = cluster.trustd("127.91.0.1", cluster.real()).await;
    worker.controller.reconcile().await.unwrap();
    worker.is_safe(&cluster);
    assert_eq!(signs.asked(), 1);
}

#[tokio::test]
async fn addresses_that_lead_nowhere_do_not_keep_a_worker_from_its_certificate() {
    let cluster = Cluster::new();
    // They take connections and never answer.
    let mut holes = Vec::new();
    let mut claimed = Vec::new();
    for last in 10..40 {
        let address = format!("127.91.0.{last}");
        holes.push(std::net::TcpListener::bind((address.as_str(), cluster.port)).unwrap());
        claimed.push(address);
    }
    cluster.trustd("127.91.0.200", cluster.real()).await;
    let mut worker = Worker::new(&cluster, "127.91.0.1").await;
    for (number, addresses) in claimed.chunks(10).enumerate() {
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        worker.hears(&format!("hole-{number}"), &addresses).await;
    }
    // Named last, after all holes; and the endpoint of the configuration refuses.
    worker.hears("z-real", &["127.91.0.200"]).await;
    let began = Instant::now();
    worker.controller.reconcile().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    worker.is_safe(&cluster);
}
