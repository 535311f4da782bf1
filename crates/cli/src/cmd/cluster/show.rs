//! Clusters as text.

use ichor_ops::cluster::Site;
use ichor_ops::fleet::KUBERNETES_PORT;
use ichor_provision::{Cluster, Endpoint, MachineKind, MachineStatus};
use ichor_types::size;

use crate::tabs::Table;

/// A cluster and its machines.
pub(super) fn cluster_text(site: &Site) -> String {
    let cluster = &site.cluster;
    let mut facts = Table::default();
    facts.row(["PROVISIONER", &cluster.provisioner]);
    facts.row(["NAME", &cluster.name]);
    facts.row(["NETWORK NAME", &cluster.network.name]);
    facts.row(["NETWORK CIDR", &joined(&cluster.network.cidrs)]);
    facts.row(["NETWORK GATEWAY", &joined(&cluster.network.gateways)]);
    facts.row(["NETWORK MTU", &cluster.network.mtu.to_string()]);
    facts.row(["KUBERNETES ENDPOINT", &kubernetes_endpoint(cluster)]);
    let mut nodes = Table::with_header(["NAME", "TYPE", "IP", "CPU", "RAM", "DISK", "STATUS", "ENDPOINT"]);
    for (machine, endpoint) in site.machines() {
        nodes.row([
            machine.name.clone(),
            machine.kind.to_string(),
            machine.address(),
            machine
                .resources
                .millicores
                .map_or_else(|| "-".to_owned(), |cpus| format!("{:.2}", cpus as f64 / 1000.0)),
            machine.resources.memory.map_or_else(|| "-".to_owned(), size::decimal),
            // The disk of a sandbox machine is a directory of the host.
            "-".to_owned(),
            machine.status.to_string(),
            endpoint,
        ]);
    }
    format!("{}\nNODES:\n\n{}", facts.take(), nodes.take())
}

/// Where the Kubernetes API of a cluster is: at its first control plane, or at what stands in for it.
fn kubernetes_endpoint(cluster: &Cluster) -> String {
    let url = |host: String| format!("https://{}", Endpoint::new(host, KUBERNETES_PORT));
    cluster.endpoint().map(url).unwrap_or_default()
}

fn joined<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// All clusters, one line each.
pub(super) fn list_text(clusters: &[Cluster]) -> String {
    let mut table =
        Table::with_header(["NAME", "PROVISIONER", "NETWORK", "CONTROL PLANES", "WORKERS", "RUNNING"]);
    for cluster in clusters {
        let count =
            |kind: MachineKind| cluster.machines.iter().filter(|machine| machine.kind == kind).count();
        let running =
            cluster.machines.iter().filter(|machine| machine.status == MachineStatus::Running).count();
        table.row([
            cluster.name.clone(),
            cluster.provisioner.clone(),
            joined(&cluster.network.cidrs),
            count(MachineKind::ControlPlane).to_string(),
            count(MachineKind::Worker).to_string(),
            format!("{running}/{}", cluster.machines.len()),
        ]);
    }
    table.take()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use ichor_ops::providers::PROVIDERS;
    use ichor_provision::{ClusterRequest, MachineRequest, Resources, Store};

    use super::*;

    fn cluster() -> Cluster {
        let machine = |name: &str, kind: MachineKind| MachineRequest {
            name: name.to_owned(),
            kind,
            kernel_args: Vec::new(),
            resources: match kind {
                MachineKind::ControlPlane => Resources { millicores: Some(1500), memory: Some(2 << 30) },
                MachineKind::Worker => Resources::default(),
            },
        };
        let request = ClusterRequest {
            name: "lab".to_owned(),
            mtu: 1500,
            machines: vec![
                machine("lab-controlplane-1", MachineKind::ControlPlane),
                machine("lab-worker-1", MachineKind::Worker),
            ],
            ..ClusterRequest::default()
        };
        let mut cluster =
            Cluster::plan("sandbox", &request, "10.5.0.0/24".parse().unwrap(), "image").unwrap();
        cluster.machines[0].status = MachineStatus::Running;
        cluster
    }

    #[test]
    fn a_cluster_is_shown_with_its_machines() {
        let sandbox = PROVIDERS.open("sandbox", Store::new("/nowhere")).unwrap();
        expect![[r#"
            PROVISIONER           sandbox
            NAME                  lab
            NETWORK NAME          lab
            NETWORK CIDR          10.5.0.0/24
            NETWORK GATEWAY       10.5.0.1
            NETWORK MTU           1500
            KUBERNETES ENDPOINT   https://10.5.0.2:6443

            NODES:

            NAME                 TYPE           IP         CPU    RAM      DISK   STATUS    ENDPOINT
            lab-controlplane-1   controlplane   10.5.0.2   1.50   2.1 GB   -      running   127.5.0.2
            lab-worker-1         worker         10.5.0.3   -      -        -      unknown   127.5.0.3
        "#]]
        .assert_eq(&cluster_text(&Site::new(&*sandbox, cluster())));
    }

    #[test]
    fn clusters_are_listed_with_what_runs() {
        expect![[r#"
            NAME   PROVISIONER   NETWORK       CONTROL PLANES   WORKERS   RUNNING
            lab    sandbox       10.5.0.0/24   1                1         1/2
        "#]]
        .assert_eq(&list_text(&[cluster()]));
    }
}
