//! From a request to machines that boot: plan, secrets, configurations, machines.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use ichor_config::Documents;
use ichor_config::patch::Patch;
use ichor_config::talosconfig::ClientConfig;
use ichor_provision::{
    ClusterRequest, Configs, Machine, MachineKind, MachineRequest, Plan, Provider, Resources,
};
use ipnet::IpNet;

use super::{Event, Site, Step, provided};
use crate::error::{Doing as _, Problem, Result};
use crate::event::Sink;
use crate::fleet::KUBERNETES_PORT;
use crate::generate::{Generate, Generated, generate};

/// Registries whose images the provider's own registry has.
const MIRRORED: [&str; 4] = ["docker.io", "gcr.io", "ghcr.io", "registry.k8s.io"];

/// How many machines of a kind, and how large they are.
#[derive(Debug, Clone, Copy, Default)]
pub struct Size {
    /// How many.
    pub count: usize,
    /// Each of them.
    pub resources: Resources,
}

/// A cluster to make.
#[derive(Clone)]
pub struct CreateOptions {
    /// Its name.
    pub name: String,
    /// Its control planes; at least one.
    pub control_planes: Size,
    /// Its workers.
    pub workers: Size,
    /// The networks of its machines; without any the provider chooses.
    pub cidrs: Vec<IpNet>,
    /// Largest packet.
    pub mtu: u32,
    /// What machines boot; the provider's default without one.
    pub image: Option<String>,
    /// Container images to serve to the machines.
    pub images: Option<PathBuf>,
    /// More kernel arguments.
    pub kernel_args: Vec<String>,
    /// Settings of the provider.
    pub settings: BTreeMap<String, String>,
    /// What configurations are generated from. Name, endpoint and names of certificates are filled in.
    pub generate: Generate,
    /// Give machines their configuration; without it they wait for one.
    pub configure: bool,
    /// The first control plane starts etcd without being asked.
    pub init_node: bool,
}

/// A cluster whose machines boot.
pub struct Created {
    /// The cluster and the ways to it.
    pub site: Site,
    /// The client configuration of the cluster.
    pub talosconfig: ClientConfig,
    /// The configuration of control planes.
    pub controlplane: Vec<u8>,
    /// The configuration of workers.
    pub worker: Vec<u8>,
}

/// Plans a cluster, generates its configurations, and makes and starts its machines.
pub async fn create(
    provider: &Arc<dyn Provider>,
    options: CreateOptions,
    events: &dyn Sink<Event>,
) -> Result<Created> {
    let started = Instant::now();
    let request = request(&options);
    let plan = provided(provider, events, move |provider, _| provider.plan(&request)).await?;
    events.emit(Event::Step(Step::Generating));
    // Keys take a while.
    let (input, checked) = (input(&options, &plan)?, plan.cluster.network.cidrs.clone());
    let generated = tokio::task::spawn_blocking(move || {
        let generated = generate(&input)?;
        check_networks(&checked, &generated.controlplane).map(|()| generated)
    });
    let generated = match generated.await {
        Ok(generated) => generated?,
        Err(panic) => return Err(crate::Error::state(format!("generating keys failed: {panic}"))),
    };
    let configs =
        if options.configure { configs(&plan, &generated, options.init_node) } else { Configs::new() };
    let cluster = provided(provider, events, move |provider, steps| provider.create(&plan, &configs, steps));
    let site = Site::new(&**provider, cluster.await?);
    events.emit(Event::Done);
    events.emit(Event::Phase { name: "start", took: started.elapsed() });
    Ok(Created {
        talosconfig: pointed(generated.talosconfig, &site),
        controlplane: generated.controlplane,
        worker: generated.worker,
        site,
    })
}

fn request(options: &CreateOptions) -> ClusterRequest {
    let machine = |kind: MachineKind, number: usize, resources: Resources| MachineRequest {
        name: format!("{}-{kind}-{number}", options.name),
        kind,
        kernel_args: options.kernel_args.clone(),
        resources,
    };
    let machines = |kind: MachineKind, size: Size| {
        (1..=size.count).map(move |number| machine(kind, number, size.resources))
    };
    ClusterRequest {
        name: options.name.clone(),
        cidrs: options.cidrs.clone(),
        mtu: options.mtu,
        image: options.image.clone(),
        images: options.images.clone(),
        machines: machines(MachineKind::ControlPlane, options.control_planes)
            .chain(machines(MachineKind::Worker, options.workers))
            .collect(),
        settings: options.settings.clone(),
    }
}

/// What configurations are generated from, with what the plan says.
fn input(options: &CreateOptions, plan: &Plan) -> Result<Generate> {
    let mut input = options.generate.clone();
    input.cluster.clone_from(&plan.cluster.name);
    input.endpoint = plan.cluster.endpoint().map_or(String::new(), |host| kubernetes_url(&host));
    input.additional_sans.extend(plan.new.iter().flat_map(|machine| machine.sans.clone()));
    input.additional_sans.extend(plan.cluster.control_planes().map(Machine::address));
    if let Some(registry) = &plan.registry {
        for host in MIRRORED {
            input.registry_mirrors.entry(host.to_owned()).or_insert_with(|| vec![registry.clone()]);
        }
    }
    let own = plan.patches.iter().map(|text| Patch::load(text.as_bytes()).doing("a patch of the provider"));
    let own: Vec<Patch> = own.collect::<Result<_>>()?;
    input.patches = own.into_iter().chain(input.patches).collect();
    Ok(input)
}

/// The URL of the Kubernetes API at a host.
fn kubernetes_url(host: &str) -> String {
    format!("https://{}", ichor_provision::Endpoint::new(host, KUBERNETES_PORT))
}

fn configs(plan: &Plan, generated: &Generated, mut init_node: bool) -> Configs {
    let config = |machine: &Machine| {
        let config = match machine.kind {
            MachineKind::ControlPlane if std::mem::take(&mut init_node) => &generated.init,
            MachineKind::ControlPlane => &generated.controlplane,
            MachineKind::Worker => &generated.worker,
        };
        (machine.name.clone(), config.clone())
    };
    plan.cluster.machines.iter().map(config).collect()
}

/// Refuses a network that pods or services are to have: machines would have no address to be reached at.
fn check_networks(cidrs: &[IpNet], config: &[u8]) -> Result<()> {
    let documents = Documents::load(config).doing("the generated configuration")?;
    for (what, subnets) in [("pods", documents.pod_subnets()), ("services", documents.service_subnets())] {
        for cidr in cidrs {
            if let Some(other) = subnets.iter().find(|other| other.contains(cidr) || cidr.contains(*other)) {
                return Err(Problem::NetworkOverlap { cidr: *cidr, other: *other, what }.into());
            }
        }
    }
    Ok(())
}

/// The generated client configuration, pointed at the machines: control planes are connected to, the first
/// of them is the one commands are for.
fn pointed(mut config: ClientConfig, site: &Site) -> ClientConfig {
    for context in config.contexts.entries_mut().values_mut() {
        context.endpoints = site.control_plane_endpoints().into_iter().collect();
        context.nodes = site.cluster.control_planes().take(1).map(Machine::address).collect();
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_of_machines_that_pods_or_services_have_is_refused() {
        let config = "version: v1alpha1\nmachine:\n  type: controlplane\ncluster:\n  network:\n    \
                      podSubnets: [10.40.0.0/16]\n";
        let check = |cidr: &str| check_networks(&[cidr.parse().unwrap()], config.as_bytes());
        assert!(check("10.5.0.0/24").is_ok());
        for (cidr, what) in [("10.40.3.0/24", "pods"), ("10.97.0.0/24", "services"), ("10.0.0.0/8", "pods")] {
            let refused = check(cidr).unwrap_err().to_string();
            assert!(refused.contains(cidr) && refused.contains(what), "{refused}");
        }
    }

    #[test]
    fn the_kubernetes_endpoint_may_be_of_either_family_or_a_name() {
        for (host, url) in [
            ("10.5.0.2", "https://10.5.0.2:6443"),
            ("fd00::2", "https://[fd00::2]:6443"),
            ("k8s.example.org", "https://k8s.example.org:6443"),
        ] {
            assert_eq!(kubernetes_url(host), url);
        }
    }
}
