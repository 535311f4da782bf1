//! A provider that is nothing like the sandbox: IPv6 machines behind forwarded ports, Kubernetes behind a name. Whatever
//! engines and client configurations make of it must come from the provider's own answers.

use std::io::Read;
use std::sync::{Arc, Mutex};

use ichor_config::Documents;
use ichor_ops::Silent;
use ichor_ops::cluster::{CreateOptions, Site, Size, context_of, create, follow};
use ichor_ops::generate::Generate;
use ichor_provision::{
    Cluster, ClusterRequest, Configs, Endpoint, Machine, MachineKind, MachineRequest, MachineStatus,
    NewMachine, Plan, Power, Provider, ProvisionError, Registration, Registry, Setting, Steps, Store,
    check_settings,
};

const NAME: &str = "elsewhere";
const SETTINGS: &[Setting] = &[Setting { name: "region", about: "where machines are" }];

struct Elsewhere {
    store: Store,
    given: Mutex<Configs>,
}

fn unsupported<T>() -> Result<T, ProvisionError> {
    Err(ProvisionError::Failed { text: "not part of this test".to_owned() })
}

impl Provider for Elsewhere {
    fn name(&self) -> &'static str {
        NAME
    }

    fn store(&self) -> &Store {
        &self.store
    }

    fn settings(&self) -> &'static [Setting] {
        SETTINGS
    }

    fn plan(&self, request: &ClusterRequest) -> Result<Plan, ProvisionError> {
        check_settings(request, SETTINGS)?;
        let mut cluster = Cluster::plan(NAME, request, "fd00:9::/64".parse().unwrap(), "ami-1")?;
        cluster.endpoint = Some("k8s.example.org".to_owned());
        let san = |machine: &Machine| format!("{}.example.org", machine.name);
        let new = |machine: &Machine| NewMachine { name: machine.name.clone(), sans: vec![san(machine)] };
        Ok(Plan {
            new: cluster.machines.iter().map(new).collect(),
            registry: Some("http://[fd00:9::1]:5000".to_owned()),
            patches: vec!["machine: {network: {nameservers: [fd00:9::1]}}".to_owned()],
            cluster,
        })
    }

    fn create(&self, plan: &Plan, configs: &Configs, steps: Steps<'_>) -> Result<Cluster, ProvisionError> {
        steps("renting machines");
        self.given.lock().unwrap().clone_from(configs);
        let mut cluster = plan.cluster.clone();
        cluster.machines.iter_mut().for_each(|machine| machine.status = MachineStatus::Running);
        Ok(cluster)
    }

    fn plan_more(&self, _: &str, _: &[MachineRequest]) -> Result<Plan, ProvisionError> {
        unsupported()
    }

    fn add(&self, _: &Plan, _: &Configs, _: Steps<'_>) -> Result<Cluster, ProvisionError> {
        unsupported()
    }

    fn remove(&self, _: &str, _: &str, _: Steps<'_>) -> Result<Cluster, ProvisionError> {
        unsupported()
    }

    fn reach(&self, cluster: &Cluster, machine: &Machine) -> Endpoint {
        let at = cluster.machines.iter().position(|other| other.name == machine.name).unwrap_or_default();
        Endpoint::new("198.51.100.7", 40_001 + u16::try_from(at).unwrap())
    }

    fn kubernetes(&self, _: &Cluster) -> Vec<Endpoint> {
        vec![Endpoint::new("k8s.example.org", 8443)]
    }

    fn power(&self, _: &str, _: Option<&str>, _: Power) -> Result<(), ProvisionError> {
        unsupported()
    }

    fn console(&self, _: &str, _: &str) -> Result<Box<dyn Read + Send>, ProvisionError> {
        unsupported()
    }

    fn show(&self, cluster: &str) -> Result<Cluster, ProvisionError> {
        self.store.load(cluster)
    }

    fn destroy(&self, _: &str, _: Steps<'_>) -> Result<(), ProvisionError> {
        unsupported()
    }
}

fn options(settings: &[(&str, &str)]) -> CreateOptions {
    let setting = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    CreateOptions {
        name: "lab".to_owned(),
        control_planes: Size { count: 2, ..Size::default() },
        workers: Size { count: 1, ..Size::default() },
        cidrs: Vec::new(),
        mtu: 1500,
        image: None,
        images: None,
        kernel_args: Vec::new(),
        settings: settings.iter().map(setting).collect(),
        generate: Generate::default(),
        configure: true,
        init_node: false,
    }
}

#[tokio::test]
async fn a_provider_of_ipv6_machines_behind_forwarded_ports_needs_nothing_else() {
    let elsewhere = Arc::new(Elsewhere { store: Store::new("/nowhere"), given: Mutex::default() });
    let provider: Arc<dyn Provider> = elsewhere.clone();
    let created = create(&provider, options(&[("region", "north")]), &Silent).await.unwrap();

    assert_eq!(created.site.endpoints(), ["198.51.100.7:40001", "198.51.100.7:40002", "198.51.100.7:40003"]);
    assert_eq!(created.site.kubernetes_servers(), ["https://k8s.example.org:8443"]);
    assert_eq!(created.site.find("fd00:9::3").unwrap().name, "lab-controlplane-2");

    let (_, context) = created.talosconfig.contexts.iter().next().unwrap();
    assert_eq!(context.endpoints.to_vec(), ["198.51.100.7:40001", "198.51.100.7:40002"]);
    assert_eq!(context.nodes.to_vec(), ["fd00:9::2"]);
    assert!(context_of(&created.talosconfig, &created.site).is_some(), "the context is found again");

    let given = elsewhere.given.lock().unwrap().clone();
    assert_eq!(given.len(), 3);
    let mut documents = Documents::load(&given["lab-controlplane-1"]).unwrap();
    let root = documents.root_mut().unwrap();
    let machine = root.machine.as_ref().unwrap();
    let sans = machine.cert_sans.to_vec();
    for name in ["lab-controlplane-1.example.org", "lab-worker-1.example.org", "fd00:9::2", "fd00:9::3"] {
        assert!(sans.iter().any(|san| san == name), "{name} is not in {sans:?}");
    }
    let text = String::from_utf8(given["lab-worker-1"].clone()).unwrap();
    assert!(text.contains("endpoint: https://k8s.example.org:6443"), "{text}");
    assert!(text.contains("http://[fd00:9::1]:5000"), "the registry of the provider is a mirror: {text}");
    assert!(text.contains("- fd00:9::1\n"), "the patch of the provider is applied: {text}");

    // A control plane goes: the client configuration follows.
    let mut cluster = created.site.cluster.clone();
    cluster.machines.remove(0);
    let after = Site::new(&*provider, cluster);
    let config = follow(created.talosconfig, &created.site, &after);
    let (_, context) = config.contexts.iter().next().unwrap();
    assert_eq!(context.nodes.to_vec(), ["fd00:9::3"]);
    assert_eq!(after.cluster.control_planes().filter(|own| own.kind == MachineKind::ControlPlane).count(), 1);
}

#[tokio::test]
async fn a_setting_that_the_provider_does_not_have_stops_before_keys_are_made() {
    let provider: Arc<dyn Provider> =
        Arc::new(Elsewhere { store: Store::new("/nowhere"), given: Mutex::default() });
    let refused = create(&provider, options(&[("zone", "a")]), &Silent).await;
    let error = refused.map(drop).unwrap_err().to_string();
    assert_eq!(error, "there is no setting zone; this provider has region");
}

static ENTRIES: &[Registration] = &[
    Registration {
        name: NAME,
        open: |store| Arc::new(Elsewhere { store, given: Mutex::default() }),
        helper: None,
    },
    ichor_provision_sandbox::REGISTRATION,
];

#[test]
fn a_cluster_is_opened_by_the_provider_that_made_it() {
    let registry = Registry::new(ENTRIES);
    assert_eq!(registry.names().collect::<Vec<_>>(), [NAME, "sandbox"]);
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path());
    let request = ClusterRequest { name: "lab".to_owned(), mtu: 1500, ..ClusterRequest::default() };
    for made_by in [NAME, "sandbox"] {
        let cluster = Cluster::plan(made_by, &request, "10.5.0.0/24".parse().unwrap(), "/image").unwrap();
        let _ = store.reserve("lab");
        store.save(&cluster).unwrap();
        assert_eq!(registry.of_cluster("lab", store.clone(), NAME).unwrap().name(), made_by);
    }
    assert_eq!(registry.of_cluster("gone", store.clone(), "sandbox").unwrap().name(), "sandbox");
    let unknown = registry.open("qemu", store).map(drop).unwrap_err().to_string();
    assert_eq!(unknown, "provider \"qemu\" is not offered yet");
}
