//! Certificates of etcd and Kubernetes: who they are for, how long they live, and when they are made anew.

use std::net::IpAddr;
use std::time::Duration;

use expect_test::{Expect, expect};
use ichor_cosi::State;
use ichor_ctl_secrets::{
    Etcd, Kubelet, Kubernetes, KubernetesCertSans, KubernetesDynamic, RootEtcd, RootKubernetes, id,
};
use ichor_pki::{Authority, CertInfo, KeyAlgorithm};
use ichor_resource::config::MachineConfig;
use ichor_resource::network::{HostnameStatus, NetworkStatus, NodeAddress};
use ichor_resource::secrets::{
    CertSAN, EtcdSecret, KubeletSecret, KubernetesDynamicCert, KubernetesRootSecret, KubernetesSecret,
};
use ichor_resource::time::TimeStatus;
use ichor_resource::value::PemCertificateAndKey;
use ichor_resource::value::binary::base64;
use ichor_testkit::{FakeClock, Harness};

const HOUR: Duration = Duration::from_secs(60 * 60);
const HALF_YEAR: Duration = Duration::from_secs(4380 * 60 * 60);

fn authority(name: &str, clock: jiff::Timestamp) -> Authority {
    Authority::generate(KeyAlgorithm::EcdsaP256, name, clock, Authority::TEN_YEARS).unwrap()
}

fn pair(authority: &Authority) -> String {
    let (crt, key) = (base64(authority.crt_pem().as_bytes()), base64(authority.key_pem().as_bytes()));
    format!("{{crt: {crt}, key: {key}}}")
}

struct Lab {
    state: State,
    clock: FakeClock,
    etcd: Authority,
    kubernetes: Authority,
    aggregator: Authority,
}

impl Lab {
    fn new() -> Self {
        let (state, clock) = ichor_testkit::state();
        let now = Harness::new(&state, Etcd::default()).unwrap().context().now();
        let [etcd, kubernetes, aggregator] = ["etcd", "kubernetes", ""].map(|name| authority(name, now));
        let lab = Self { state, clock, etcd, kubernetes, aggregator };
        lab.configure(&pair(&lab.kubernetes), "");
        lab.put(
            "network",
            "hostname",
            HostnameStatus { hostname: "node-1".into(), domainname: "lan".into() },
        );
        lab.addresses(&["10.5.0.2/24", "fd00::2/64"]);
        let ready = NetworkStatus { address_ready: true, hostname_ready: true, ..Default::default() };
        lab.put("network", "status", ready);
        lab.put("runtime", "node", TimeStatus { synced: true, ..Default::default() });
        lab
    }

    fn configure(&self, kubernetes: &str, more: &str) {
        let (etcd, aggregator) = (pair(&self.etcd), pair(&self.aggregator));
        let text = format!(
            "version: v1alpha1\nmachine:\n  type: controlplane\n  token: a.b\n  features: {{kubePrism: {{enabled: true}}}}\n\
             cluster:\n  clusterName: lab\n  token: tokenid.tokensecret\n  controlPlane: {{endpoint: 'https://10.5.0.9:6443'}}\n  \
             ca: {kubernetes}\n  aggregatorCA: {aggregator}\n  etcd: {{ca: {etcd}}}\n{more}"
        );
        self.put("config", MachineConfig::ACTIVE, MachineConfig::new(text));
    }

    fn put<T: ichor_resource::TypedSpec>(&self, namespace: &str, id: &str, spec: T) {
        self.state.modify::<T>(namespace, id, "", |stored| stored.clone_from(&spec)).unwrap();
    }

    fn addresses(&self, addresses: &[&str]) {
        let addresses: Vec<_> = addresses.iter().map(|text| text.parse().unwrap()).collect();
        self.put("network", "accumulative-no-k8s", NodeAddress { addresses, ..Default::default() });
    }

    async fn roots(&self) {
        Harness::new(&self.state, RootEtcd::default()).unwrap().reconcile().await.unwrap();
        Harness::new(&self.state, RootKubernetes::default()).unwrap().reconcile().await.unwrap();
        Harness::new(&self.state, KubernetesCertSans).unwrap().reconcile().await.unwrap();
    }

    fn version<T: ichor_resource::TypedSpec>(&self, id: &str) -> Option<u64> {
        self.state.get::<T>("secrets", id).ok().map(|found| found.meta().version().number())
    }
}

/// A certificate in one line, checked against its key and its authority.
fn line(pair: Option<&PemCertificateAndKey>) -> String {
    let pair = pair.expect("a certificate");
    let info = CertInfo::parse(&pair.crt).unwrap();
    ichor_pki::check::pair(&pair.crt, &pair.key, info.not_before).expect("a key that fits");
    // The key usage is two bits of its extension's last byte.
    let der = body(&pair.crt);
    let at = der.windows(3).position(|bytes| bytes == [0x55, 0x1d, 0x0f]).expect("a key usage");
    let usage = match der[at..at + 16].windows(4).find(|bytes| bytes[..2] == [0x03, 0x02]).unwrap()[3] {
        0xa0 => "DS+KE",
        0x80 => "DS",
        other => panic!("key usage {other:#x}"),
    };
    let hours = info.not_after.duration_since(info.not_before).as_secs() as f64 / 3600.0;
    let addresses: Vec<_> = info.addresses.iter().map(IpAddr::to_string).collect();
    format!(
        "CN={} O={} {usage} {} {hours:.3}h dns={} ip={} by {}\n",
        info.common_name,
        info.organizations.join(","),
        info.extended_usages.join("+"),
        info.dns_names.join(","),
        addresses.join(","),
        info.issuer,
    )
}

fn parse_base64(text: &str) -> Result<Vec<u8>, base64::DecodeError> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(text)
}

fn body(pem: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(pem).unwrap();
    let lines: String = text.lines().filter(|line| !line.starts_with('-')).collect();
    parse_base64(&lines).unwrap()
}

#[track_caller]
fn check(pairs: &[Option<&PemCertificateAndKey>], expect: Expect) {
    expect.assert_eq(&pairs.iter().map(|pair| line(*pair)).collect::<String>());
}

/// What stands behind a key of a kubeconfig.
fn field<'a>(kubeconfig: &'a str, key: &str) -> &'a str {
    kubeconfig.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix(": ")).unwrap()
}

fn client(kubeconfig: &str) -> PemCertificateAndKey {
    let part = |key: &str| parse_base64(field(kubeconfig, key)).unwrap().into();
    PemCertificateAndKey { crt: part("client-certificate-data"), key: part("client-key-data") }
}

#[tokio::test]
async fn etcd_is_met_from_other_machines_and_from_here() {
    let lab = Lab::new();
    lab.roots().await;
    let mut harness = Harness::new(&lab.state, Etcd::default()).unwrap();
    harness.reconcile().await.unwrap();
    let made = lab.state.get::<EtcdSecret>("secrets", id::ETCD).unwrap();
    check(
        &[
            made.etcd.as_ref(),
            made.etcd_peer.as_ref(),
            made.etcd_admin.as_ref(),
            made.etcd_api_server.as_ref(),
        ],
        expect![[r#"
            CN=node-1 O= DS+KE 1.3.6.1.5.5.7.3.1+1.3.6.1.5.5.7.3.2 87600.000h dns=localhost,node-1,node-1.lan ip=10.5.0.2,127.0.0.1,::1,fd00::2 by etcd
            CN=node-1 O= DS+KE 1.3.6.1.5.5.7.3.1+1.3.6.1.5.5.7.3.2 87600.000h dns=node-1,node-1.lan ip=10.5.0.2,fd00::2 by etcd
            CN=talos O= DS+KE 1.3.6.1.5.5.7.3.2 87600.000h dns= ip= by etcd
            CN=kube-apiserver O= DS+KE 1.3.6.1.5.5.7.3.2 87600.000h dns= ip= by etcd
        "#]],
    );
}

#[tokio::test]
async fn the_control_plane_has_certificates_of_a_year() {
    let lab = Lab::new();
    lab.roots().await;
    let mut dynamic = Harness::new(&lab.state, KubernetesDynamic::default()).unwrap();
    dynamic.reconcile().await.unwrap();
    assert_eq!(dynamic.requeue(), Some(HALF_YEAR));
    let made = lab.state.get::<KubernetesDynamicCert>("secrets", id::KUBERNETES_DYNAMIC).unwrap();
    let mut kubernetes = Harness::new(&lab.state, Kubernetes::default()).unwrap();
    kubernetes.reconcile().await.unwrap();
    let configs = lab.state.get::<KubernetesSecret>("secrets", id::KUBERNETES_CERTS).unwrap();
    let clients = [
        &configs.controller_manager_kubeconfig,
        &configs.scheduler_kubeconfig,
        &configs.admin_kubeconfig,
        &configs.localhost_admin_kubeconfig,
    ]
    .map(|text| client(text));
    let mut all =
        vec![made.api_server.as_ref(), made.api_server_kubelet_client.as_ref(), made.front_proxy.as_ref()];
    all.extend(clients.iter().map(Some));
    check(
        &all,
        expect![[r#"
        CN=kube-apiserver O=kube-master DS+KE 1.3.6.1.5.5.7.3.1 8760.000h dns=kubernetes,kubernetes.default,kubernetes.default.svc,kubernetes.default.svc.cluster.local,localhost,node-1,node-1.lan ip=10.5.0.2,10.5.0.9,10.96.0.1,127.0.0.1,fd00::2 by kubernetes
        CN=apiserver-kubelet-client O=system:masters DS+KE 1.3.6.1.5.5.7.3.2 8760.000h dns= ip= by kubernetes
        CN=front-proxy-client O= DS+KE 1.3.6.1.5.5.7.3.2 8760.000h dns= ip= by 
        CN=system:kube-controller-manager O=system:kube-controller-manager DS+KE 1.3.6.1.5.5.7.3.2 8760.003h dns= ip= by kubernetes
        CN=system:kube-scheduler O=system:kube-scheduler DS+KE 1.3.6.1.5.5.7.3.2 8760.003h dns= ip= by kubernetes
        CN=talos:admin O=system:masters DS+KE 1.3.6.1.5.5.7.3.2 8760.003h dns= ip= by kubernetes
        CN=talos:admin O=system:masters DS+KE 1.3.6.1.5.5.7.3.2 8760.003h dns= ip= by kubernetes
    "#]],
    );
}

#[tokio::test]
async fn a_kubeconfig_says_who_and_where() {
    let lab = Lab::new();
    lab.roots().await;
    Harness::new(&lab.state, Kubernetes::default()).unwrap().reconcile().await.unwrap();
    let made = lab.state.get::<KubernetesSecret>("secrets", id::KUBERNETES_CERTS).unwrap();
    let mut text = made.scheduler_kubeconfig.clone();
    for key in ["certificate-authority-data", "client-certificate-data", "client-key-data"] {
        let value = field(&text, key).to_owned();
        if key == "certificate-authority-data" {
            assert_eq!(parse_base64(&value).unwrap(), lab.kubernetes.crt_pem().as_bytes());
        }
        text = text.replace(&value, "...");
    }
    expect![[r#"
        apiVersion: v1
        clusters:
        - cluster:
            certificate-authority-data: ...
            server: https://127.0.0.1:7445
          name: lab
        contexts:
        - context:
            cluster: lab
            namespace: default
            user: system:kube-scheduler@lab
          name: default@lab
        current-context: default@lab
        kind: Config
        users:
        - name: system:kube-scheduler@lab
          user:
            client-certificate-data: ...
            client-key-data: ...
    "#]]
    .assert_eq(&text);
    for (config, context, server) in [
        (&made.admin_kubeconfig, "admin@lab", "https://10.5.0.9:6443"),
        (&made.localhost_admin_kubeconfig, "admin@lab", "https://127.0.0.1:7445"),
        (&made.controller_manager_kubeconfig, "default@lab", "https://127.0.0.1:7445"),
    ] {
        assert_eq!((field(config, "current-context"), field(config, "server")), (context, server));
    }
}

#[tokio::test]
async fn nothing_is_made_anew_without_need() {
    let lab = Lab::new();
    lab.roots().await;
    let mut etcd = Harness::new(&lab.state, Etcd::default()).unwrap();
    let mut kubernetes = Harness::new(&lab.state, Kubernetes::default()).unwrap();
    let mut dynamic = Harness::new(&lab.state, KubernetesDynamic::default()).unwrap();
    let versions = || {
        (
            lab.version::<EtcdSecret>(id::ETCD),
            lab.version::<KubernetesSecret>(id::KUBERNETES_CERTS),
            lab.version::<KubernetesDynamicCert>(id::KUBERNETES_DYNAMIC),
        )
    };
    let mut all = async || {
        etcd.reconcile().await.unwrap();
        kubernetes.reconcile().await.unwrap();
        dynamic.reconcile().await.unwrap();
    };
    all().await;
    assert_eq!(versions(), (Some(1), Some(1), Some(1)));

    lab.clock.advance(HALF_YEAR - HOUR);
    lab.put("runtime", "node", TimeStatus { synced: true, epoch: 1, ..Default::default() });
    all().await;
    assert_eq!(versions(), (Some(1), Some(1), Some(1)), "young, and no input changed");

    lab.clock.advance(HOUR);
    all().await;
    assert_eq!(versions(), (Some(1), Some(2), Some(2)), "half a year is over");

    // Another name for the API server is nothing to restart the control plane for.
    lab.configure(&pair(&lab.kubernetes), "  apiServer: {certSANs: [api.lab]}\n");
    lab.roots().await;
    all().await;
    assert_eq!(versions(), (Some(1), Some(2), Some(3)));

    lab.addresses(&["10.5.0.2/24", "10.5.0.3/24", "fd00::2/64"]);
    lab.roots().await;
    all().await;
    assert_eq!(versions(), (Some(2), Some(2), Some(4)));

    lab.configure(
        &pair(&lab.kubernetes),
        "  apiServer: {certSANs: [api.lab]}\n  secretboxEncryptionSecret: bmV3\n",
    );
    lab.roots().await;
    all().await;
    assert_eq!(versions(), (Some(2), Some(3), Some(4)), "the control plane reads its keys when it starts");
}

#[tokio::test]
async fn certificates_wait_for_the_clock_and_for_names() {
    let lab = Lab::new();
    lab.roots().await;
    lab.put("runtime", "node", TimeStatus::default());
    let mut etcd = Harness::new(&lab.state, Etcd::default()).unwrap();
    let mut kubernetes = Harness::new(&lab.state, Kubernetes::default()).unwrap();
    let mut dynamic = Harness::new(&lab.state, KubernetesDynamic::default()).unwrap();
    etcd.reconcile().await.unwrap();
    kubernetes.reconcile().await.unwrap();
    dynamic.reconcile().await.unwrap();
    assert_eq!(lab.version::<EtcdSecret>(id::ETCD), None);
    assert_eq!(lab.version::<KubernetesSecret>(id::KUBERNETES_CERTS), None);
    assert_eq!(lab.version::<KubernetesDynamicCert>(id::KUBERNETES_DYNAMIC), None);

    lab.put("runtime", "node", TimeStatus { synced: true, ..Default::default() });
    lab.put("network", "status", NetworkStatus { address_ready: true, ..Default::default() });
    let mut dynamic = Harness::new(&lab.state, KubernetesDynamic::default()).unwrap();
    etcd.reconcile().await.unwrap();
    kubernetes.reconcile().await.unwrap();
    dynamic.reconcile().await.unwrap();
    assert_eq!(lab.version::<EtcdSecret>(id::ETCD), None);
    assert_eq!(
        lab.version::<KubernetesSecret>(id::KUBERNETES_CERTS),
        Some(1),
        "nothing of the network is in it"
    );
    assert_eq!(lab.version::<KubernetesDynamicCert>(id::KUBERNETES_DYNAMIC), None);
}

#[tokio::test]
async fn what_loses_its_root_is_gone() {
    let lab = Lab::new();
    lab.roots().await;
    let mut etcd = Harness::new(&lab.state, Etcd::default()).unwrap();
    let mut kubernetes = Harness::new(&lab.state, Kubernetes::default()).unwrap();
    let mut dynamic = Harness::new(&lab.state, KubernetesDynamic::default()).unwrap();
    for _ in 0..2 {
        etcd.reconcile().await.unwrap();
        kubernetes.reconcile().await.unwrap();
        dynamic.reconcile().await.unwrap();
        lab.put(
            "config",
            MachineConfig::ACTIVE,
            MachineConfig::new("version: v1alpha1\nmachine: {type: worker}\ncluster: {}\n"),
        );
        lab.roots().await;
    }
    assert!(lab.state.get::<KubernetesRootSecret>("secrets", id::KUBERNETES).is_err());
    assert_eq!(lab.version::<EtcdSecret>(id::ETCD), None);
    assert_eq!(lab.version::<KubernetesSecret>(id::KUBERNETES_CERTS), None);
    assert_eq!(lab.version::<KubernetesDynamicCert>(id::KUBERNETES_DYNAMIC), None);
}

/// The three states of a rotation: the new authority accepted, then issuing with the old one accepted, then alone.
#[tokio::test]
async fn during_a_rotation_both_authorities_are_accepted_by_everybody() {
    let lab = Lab::new();
    let (old, new) = (&lab.kubernetes, authority("kubernetes", lab.kubernetes.info().not_before));
    let accept = |ca: &Authority| format!("  acceptedCAs: [{{crt: {}}}]\n", base64(ca.crt_pem().as_bytes()));
    let mut kubernetes = Harness::new(&lab.state, Kubernetes::default()).unwrap();
    let mut kubelet = Harness::new(&lab.state, Kubelet::default()).unwrap();
    let both = |one: &Authority, two: &Authority| format!("{}{}", one.crt_pem(), two.crt_pem());
    let steps = [
        (old, String::new(), old.crt_pem().to_owned(), old.crt_pem().to_owned()),
        (old, accept(&new), both(&new, old), both(old, &new)),
        (&new, accept(old), both(old, &new), both(&new, old)),
        (&new, String::new(), new.crt_pem().to_owned(), new.crt_pem().to_owned()),
    ];
    for (version, (issuer, more, trusted, trusted_by_kubelet)) in (1..).zip(&steps) {
        lab.configure(&pair(issuer), more);
        lab.roots().await;
        kubernetes.reconcile().await.unwrap();
        kubelet.reconcile().await.unwrap();
        let made = lab.state.get::<KubernetesSecret>("secrets", id::KUBERNETES_CERTS).unwrap();
        assert_eq!(made.meta().version().number(), version, "each step restarts the control plane");
        for config in
            [&made.admin_kubeconfig, &made.scheduler_kubeconfig, &made.controller_manager_kubeconfig]
        {
            let bundle = parse_base64(field(config, "certificate-authority-data")).unwrap();
            assert_eq!(String::from_utf8(bundle).unwrap(), *trusted);
        }
        let secret = lab.state.get::<KubeletSecret>("secrets", id::KUBELET).unwrap();
        let bundle: Vec<u8> = secret.accepted_cas.iter().flat_map(|ca| ca.crt.to_vec()).collect();
        assert_eq!(String::from_utf8(bundle).unwrap(), *trusted_by_kubelet);
    }
    assert!(lab.state.get::<CertSAN>("secrets", id::KUBERNETES).is_ok());
}
