//! `cluster create`: configurations, machines, client configuration, in one go.

use std::path::{Path, PathBuf};
use std::time::Instant;

use ichor_config::Documents;
use ichor_config::talosconfig::ClientConfig;
use ichor_provision::{
    Cluster, ClusterRequest, MachineKind, MachineRequest, Provider as _, ProvisionError, Resources,
};
use ichor_provision_sandbox::Sandbox;
use ipnet::{IpNet, Ipv4Net};

use super::bring_up::{self, BringUp, Times};
use super::{failed, ready, sandbox, show};
use crate::failure::{Context as _, Failure};
use crate::kubeconfig::{self, Decision};
use crate::machineconfig::{self, Generate};
use crate::parse::Call;
use crate::session::block_on;
use crate::table::{Args, Command, Complete, Flag};
use crate::term::Progress;
use crate::{files, print, profile};

/// The most machines of one kind; each is a set of processes on this host.
pub const MACHINES_MAX: i64 = 200;

/// The command; `sandbox` is the provider when none is named.
pub static CREATE: Command = Command {
    name: "create",
    about: "Make a cluster and start it",
    long: "Makes a cluster of machines on this host and starts it. A machine is a set of namespaces: no container\n\
           engine and no virtual machine is needed, and nothing of the host changes.\n\n\
           Where the image has Kubernetes, etcd is bootstrapped, the cluster waited for until it is healthy, and\n\
           its kubeconfig merged into that of KUBECONFIG or ~/.kube/config.",
    examples: &["cluster create", "cluster create --name lab --controlplanes 3 --workers 2"],
    args: Args::between("[sandbox]", 0, 1).complete(&[Complete::Words(&["sandbox"])]),
    flags: FLAGS,
    run: Some(run),
    ..Command::EMPTY
};

static FLAGS: &[Flag] = &[
    Flag::int("controlplanes", "1", "number of control plane machines"),
    Flag::int("workers", "1", "number of worker machines"),
    Flag::text("cidr", "network of the machines (default: the first free one from 10.5.0.0/24 on)"),
    Flag::int("mtu", "1500", "largest packet of the network"),
    Flag::text("image", "root image of the machines").complete(Complete::File),
    Flag::text(
        "images",
        "OCI layout of container images for the machines (default: `images` beside the image)",
    )
    .complete(Complete::File),
    Flag::repeated("config-patch", "patch for all machines, as text or @file"),
    Flag::repeated("config-patch-control-plane", "patch for control plane machines"),
    Flag::repeated("config-patch-controlplanes", "patch for control plane machines").hidden(),
    Flag::repeated("config-patch-worker", "patch for worker machines"),
    Flag::repeated("config-patch-workers", "patch for worker machines").hidden(),
    Flag::text("kubernetes-version", "version of Kubernetes").default(crate::identity::KUBERNETES_VERSION),
    Flag::text("talos-version", "version contract of the configurations"),
    Flag::text("dns-domain", "domain of the cluster").default("cluster.local"),
    Flag::repeated("registry-mirror", "mirror of a registry, as host=URL"),
    Flag::switch("with-init-node", "let the first machine start etcd without being asked"),
    Flag::switch("with-cluster-discovery", "let machines find each other").default("true"),
    Flag::switch("with-kubespan", "encrypt traffic between machines"),
    Flag::text("with-secrets", "use this secrets bundle").complete(Complete::File),
    Flag::switch(
        "skip-injecting-config",
        "write the configurations to files and let the machines wait for them",
    ),
    Flag::list("extra-boot-kernel-args", "more kernel arguments"),
    Flag::switch("wait", "wait until machines and Kubernetes are healthy").default("true"),
    Flag::duration("wait-timeout", "20m0s", "give up waiting after this time"),
    Flag::switch("skip-kubeconfig", "leave the kubeconfig as it is"),
    Flag::switch(
        "skip-k8s-node-readiness-check",
        "do not wait for nodes to be ready, as without a network for pods",
    ),
    Flag::text("talosconfig", "client configuration to add the cluster to").complete(Complete::File),
    Flag::text("talosconfig-destination", "the same").hidden().complete(Complete::File),
    Flag::text("memory", "memory of control plane machines").default("2.0GiB"),
    Flag::text("memory-workers", "memory of worker machines").default("2.0GiB"),
    Flag::text("memory-controlplanes", "the same as --memory").default("2.0GiB").hidden(),
    Flag::text("cpus", "CPUs of control plane machines").default("2.0"),
    Flag::text("cpus-workers", "CPUs of worker machines").default("2.0"),
    Flag::text("cpus-controlplanes", "the same as --cpus").default("2.0").hidden(),
    Flag::text("provisioner", "provider of the cluster").default("sandbox").hidden(),
];

fn run(call: &Call) -> Result<(), Failure> {
    let provisioner = call.args.first().map_or(call.text("provisioner"), String::as_str);
    if provisioner != Sandbox::NAME {
        return Err(Failure::new(format!("provider \"{provisioner}\" is not offered yet"))
            .hint("use sandbox, which is the default and needs neither a container engine nor KVM"));
    }
    let provider = sandbox(call)?;
    let mut plan = plan(call, &provider)?;
    check(&provider, &plan)?;
    let started = Instant::now();
    let mut times = Times::default();
    let mut progress = Progress::new();
    progress.step("generating secrets and configurations");
    let layout = Cluster::plan(Sandbox::NAME, &plan).map_err(|error| failed(&error))?;
    let generated = machineconfig::generate(&generate_input(call, &layout)?)?;
    check_network(plan.cidr, &generated.controlplane)?;
    let inject = !call.on("skip-injecting-config");
    let mut init_node = call.on("with-init-node");
    if inject {
        for machine in &mut plan.machines {
            let first = std::mem::take(&mut init_node);
            machine.config = Some(match machine.kind {
                MachineKind::ControlPlane if first => generated.init.clone(),
                MachineKind::ControlPlane => generated.controlplane.clone(),
                MachineKind::Worker => generated.worker.clone(),
            });
        }
    }
    let created = provider.create(&plan, &mut |step| progress.step(step));
    let cluster = created.map_err(|error| {
        progress.failed();
        failed(&error)
    })?;
    progress.done();
    let client = client_config(generated.talosconfig, &cluster);
    if !inject {
        write_configs(&generated.controlplane, &generated.worker, &client)?;
    }
    let destination = call.some_text("talosconfig").or(call.some_text("talosconfig-destination"));
    let location = profile::locate_at(destination)?;
    for line in profile::merge_at(&location, &client)? {
        eprintln!("{line}");
    }
    times.note("start", started);
    let outcome = match inject {
        true => block_on(bring_up(call, client, &cluster, &mut progress, &mut times)),
        false if call.on("wait") => {
            let limit = call.duration("wait-timeout");
            let access = ready::Access::Maintenance;
            block_on(ready::wait(&access, &cluster.machines, limit, &mut progress, |_| {}))
        }
        false => Ok(()),
    };
    if let Err(failure) = outcome {
        progress.failed();
        eprint!("\n{}", times.text());
        return Err(failure);
    }
    progress.done();
    let cluster = provider.show(&cluster.name).unwrap_or(cluster);
    print(&show::cluster_text(&cluster))?;
    eprint!("\n{}", times.text());
    print(&next_text(&cluster, inject, call.on("wait") && !call.on("skip-kubeconfig")))
}

/// Refuses a network that pods or services are to have: machines would have no address to be reached at.
fn check_network(cidr: Ipv4Net, config: &[u8]) -> Result<(), Failure> {
    let documents = Documents::load(config).context("the generated configuration")?;
    let own = IpNet::V4(cidr);
    for (what, subnets) in [("pods", documents.pod_subnets()), ("services", documents.service_subnets())] {
        if let Some(other) = subnets.iter().find(|other| other.contains(&own) || own.contains(*other)) {
            let text =
                format!("the network {cidr} of the machines overlaps with {other}, the network of {what}");
            return Err(Failure::new(text).hint(
                "choose another with --cidr, such as 10.5.0.0/24, or change cluster.network with --config-patch",
            ));
        }
    }
    Ok(())
}

/// What follows when the machines have their configuration: bootstrap, waiting, kubeconfig. An image without
/// Kubernetes ends with machines that are ready.
async fn bring_up(
    call: &Call,
    client: ClientConfig,
    cluster: &Cluster,
    progress: &mut Progress,
    times: &mut Times,
) -> Result<(), Failure> {
    let limit = call.duration("wait-timeout");
    let bring_up = BringUp::new(&client, cluster, limit)?;
    let since = Instant::now();
    progress.step("waiting for the first control plane");
    if !bring_up.has_kubernetes().await? {
        if call.on("wait") {
            let access = ready::Access::Configured(client);
            ready::wait(&access, &cluster.machines, limit, progress, |_| {}).await?;
            times.note("machines", since);
        }
        return Ok(());
    }
    if !call.on("with-init-node") {
        progress.step("bootstrapping etcd");
        bring_up.bootstrap().await?;
    }
    progress.done();
    times.note("bootstrap", since);
    if !call.on("wait") {
        return Ok(());
    }
    bring_up.wait(!call.on("skip-k8s-node-readiness-check"), progress, times).await?;
    if !call.on("skip-kubeconfig") {
        merge_kubeconfig(&bring_up.kubeconfig().await?, cluster)?;
    }
    Ok(())
}

/// Adds the cluster to the kubeconfig of the person at the terminal. What an earlier cluster at the same
/// address left there is replaced; other clusters keep their names.
fn merge_kubeconfig(text: &str, cluster: &Cluster) -> Result<(), Failure> {
    let path = crate::cmd::kubernetes::default_path()?;
    let old = if path.exists() { files::read(&path)? } else { Vec::new() };
    let old = String::from_utf8(old).context(format!("read {}", path.display()))?;
    let old = kubeconfig::without(&old, &bring_up::servers(cluster))?.unwrap_or(old);
    let (merged, renamed) = kubeconfig::merge(&old, text, None, |_, _| Ok(Decision::Rename))?;
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).context(format!("create {}", parent.display()))?;
    }
    files::write(&path, merged.as_bytes(), 0o600)?;
    for line in renamed {
        eprintln!("{line}");
    }
    eprintln!("merged kubeconfig into {}", path.display());
    Ok(())
}

/// What the provider would refuse anyway is refused before keys are made, which takes a while.
fn check(provider: &Sandbox, plan: &ClusterRequest) -> Result<(), Failure> {
    let names = provider.store().names().map_err(|error| failed(&error))?;
    if names.contains(&plan.name) {
        return Err(failed(&ProvisionError::Exists { name: plan.name.clone() }));
    }
    if !plan.image.exists() {
        return Err(failed(&ProvisionError::NoImage { path: plan.image.clone() }));
    }
    if !rustix::process::geteuid().is_root() {
        return Err(failed(&ProvisionError::NotRoot { what: "making a cluster" }));
    }
    Ok(())
}

/// What to ask the provider for, without configurations.
fn plan(call: &Call, provider: &Sandbox) -> Result<ClusterRequest, Failure> {
    let name = call.text("name").to_owned();
    let count = |flag: &str| {
        let count = call.int(flag);
        if (0..=MACHINES_MAX).contains(&count) {
            return Ok(count);
        }
        Err(Failure::new(format!("--{flag} must lie between 0 and {MACHINES_MAX}")))
    };
    let (controlplanes, workers) = (count("controlplanes")?, count("workers")?);
    if controlplanes == 0 {
        return Err(Failure::new(
            "a cluster needs a control plane machine: --controlplanes must be at least 1",
        ));
    }
    let cidr = match call.some_text("cidr") {
        Some(text) => text.parse().map_err(|_| {
            Failure::new(format!("\"{text}\" is not an IPv4 network")).hint("write it as 10.5.0.0/24")
        })?,
        None => provider.free_network().ok_or_else(|| {
            Failure::new("no network is free for the cluster")
                .hint("remove a cluster with `ichorctl cluster destroy`, or choose a network with --cidr")
        })?,
    };
    let mtu = u32::try_from(call.int("mtu")).unwrap_or_default();
    if !(576..=65535).contains(&mtu) {
        return Err(Failure::new("--mtu must lie between 576 and 65535"));
    }
    let (control, worker) = (resources(call, CONTROL_SIZE)?, resources(call, WORKER_SIZE)?);
    let machine = |kind: MachineKind, number: i64| MachineRequest {
        resources: match kind {
            MachineKind::ControlPlane => control,
            MachineKind::Worker => worker,
        },
        name: format!("{name}-{kind}-{number}"),
        kind,
        config: None,
        kernel_args: call.list("extra-boot-kernel-args"),
    };
    let machines = (1..=controlplanes)
        .map(|number| machine(MachineKind::ControlPlane, number))
        .chain((1..=workers).map(|number| machine(MachineKind::Worker, number)))
        .collect();
    let image = image(call);
    let images = images(call, &image);
    Ok(ClusterRequest { machines, cidr, mtu, image, images, name })
}

/// The flags of the size of a kind of machine: the later of a pair counts when it is given.
type SizeFlags = [&'static str; 4];
const CONTROL_SIZE: SizeFlags = ["memory", "memory-controlplanes", "cpus", "cpus-controlplanes"];
const WORKER_SIZE: SizeFlags = ["memory-workers", "memory-workers", "cpus-workers", "cpus-workers"];

/// A machine with less does not start.
const MEMORY_MIN: u64 = 64 << 20;
/// Less would take minutes to start.
const MILLICORES_MIN: u64 = 50;

fn resources(call: &Call, [memory, memory_too, cpus, cpus_too]: SizeFlags) -> Result<Resources, Failure> {
    let flag = |first: &'static str, second: &'static str| match call.given(second) {
        true => second,
        false => first,
    };
    let (memory, cpus) = (flag(memory, memory_too), flag(cpus, cpus_too));
    let bytes = parse_memory(call.text(memory)).filter(|bytes| *bytes >= MEMORY_MIN).ok_or_else(|| {
        Failure::new(format!("--{memory} {} is not an amount of memory of 64MiB or more", call.text(memory)))
            .hint("write it as 2GiB or 512MiB; a number alone means MiB")
    })?;
    let millicores =
        parse_cpus(call.text(cpus)).filter(|parts| *parts >= MILLICORES_MIN).ok_or_else(|| {
            Failure::new(format!("--{cpus} {} is not a number of CPUs of 0.05 or more", call.text(cpus)))
                .hint("write it as 2 or 0.5")
        })?;
    Ok(Resources { millicores: Some(millicores), memory: Some(bytes) })
}

/// A size; a number alone counts MiB.
fn parse_memory(text: &str) -> Option<u64> {
    let bare = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let text = if bare { format!("{text}MiB") } else { text.to_owned() };
    ichor_types::size::parse(&text).ok()
}

/// Thousandths of a CPU.
fn parse_cpus(text: &str) -> Option<u64> {
    let cpus: f64 = text.parse().ok()?;
    (0.0..=1e6).contains(&cpus).then_some((cpus * 1000.0).round() as u64)
}

/// The root image: as named, else what lies near the program.
fn image(call: &Call) -> PathBuf {
    let named = call.some_text("image").map(PathBuf::from);
    if let Some(path) = named.or_else(|| std::env::var_os("ICHOR_IMAGE").map(PathBuf::from)) {
        return std::path::absolute(&path).unwrap_or(path);
    }
    let program = std::env::current_exe().unwrap_or_default();
    let beside = program.parent().unwrap_or(Path::new("."));
    let candidates = ["rootfs.squashfs", "../build/rootfs.squashfs", "../share/ichor/rootfs.squashfs"];
    let found = candidates.iter().map(|place| beside.join(place)).find(|path| path.exists());
    let path = found.unwrap_or_else(|| PathBuf::from("build/rootfs.squashfs"));
    path.canonicalize().or_else(|_| std::path::absolute(&path)).unwrap_or(path)
}

/// The container images: as named, else what lies beside the root image.
fn images(call: &Call, image: &Path) -> Option<PathBuf> {
    if let Some(path) = call.some_text("images").map(PathBuf::from) {
        return Some(std::path::absolute(&path).unwrap_or(path));
    }
    let beside = image.with_file_name("images");
    beside.join("index.json").exists().then_some(beside)
}

/// Registries whose images the cluster's own registry has.
const MIRRORED: [&str; 4] = ["docker.io", "gcr.io", "ghcr.io", "registry.k8s.io"];

/// Mirrors as asked for, and the cluster's own registry where nothing was.
fn registry_mirrors(call: &Call, layout: &Cluster) -> Vec<String> {
    let mut mirrors = call.list("registry-mirror");
    if let Some(registry) = layout.registry() {
        let own = MIRRORED.into_iter().filter(|host| {
            !mirrors.iter().any(|mirror| mirror.split('=').next().is_some_and(|name| name == *host))
        });
        let own: Vec<String> = own.map(|host| format!("{host}=http://{registry}")).collect();
        mirrors.extend(own);
    }
    mirrors
}

/// Machines share the disk of this host: a kubelet that wants a tenth of it free would evict all pods on a full one.
const SHARED_DISK: &str = "machine: {kubelet: {extraConfig: {evictionHard: {memory.available: 100Mi, \
    nodefs.available: 1Gi, imagefs.available: 1Gi}, imageGCHighThresholdPercent: 100}}}";

fn generate_input(call: &Call, layout: &Cluster) -> Result<Generate, Failure> {
    let joined = |names: &[&str]| names.iter().flat_map(|name| call.list(name)).collect::<Vec<_>>();
    let control = layout.machines.iter().filter(|machine| machine.kind == MachineKind::ControlPlane);
    // Machines are reached at their loopback address, which only these names make valid.
    let mut sans: Vec<String> = layout.machines.iter().map(|machine| machine.loopback.to_string()).collect();
    sans.extend(control.map(|machine| machine.address.to_string()));
    let secrets = call.some_text("with-secrets").map(|path| files::read(Path::new(path))).transpose()?;
    Ok(Generate {
        cluster: layout.name.clone(),
        endpoint: show::kubernetes_endpoint(layout),
        kubernetes_version: call.text("kubernetes-version").trim_start_matches('v').to_owned(),
        talos_version: call.text("talos-version").to_owned(),
        dns_domain: call.text("dns-domain").to_owned(),
        additional_sans: sans,
        registry_mirrors: registry_mirrors(call, layout),
        discovery: call.on("with-cluster-discovery"),
        kubespan: call.on("with-kubespan"),
        secrets,
        patches: std::iter::once(SHARED_DISK.to_owned()).chain(call.list("config-patch")).collect(),
        controlplane_patches: joined(&["config-patch-control-plane", "config-patch-controlplanes"]),
        worker_patches: joined(&["config-patch-worker", "config-patch-workers"]),
        ..Generate::default()
    })
}

/// The generated client configuration, pointed at the machines: control planes are connected to, the first
/// of them is the one commands are for.
fn client_config(mut config: ClientConfig, cluster: &Cluster) -> ClientConfig {
    let control = || cluster.machines.iter().filter(|machine| machine.kind == MachineKind::ControlPlane);
    for context in config.contexts.entries_mut().values_mut() {
        context.endpoints = control().map(|machine| machine.loopback.to_string()).collect();
        context.nodes = control().take(1).map(|machine| machine.address.to_string()).collect();
    }
    config
}

fn write_configs(controlplane: &[u8], worker: &[u8], client: &ClientConfig) -> Result<(), Failure> {
    for (file, content) in [
        ("controlplane.yaml", controlplane.to_vec()),
        ("worker.yaml", worker.to_vec()),
        ("talosconfig", profile::encode(client)),
    ] {
        files::write(Path::new(file), &content, 0o600)?;
        eprintln!("Created {file}");
    }
    Ok(())
}

/// Commands to go on with.
fn next_text(cluster: &Cluster, configured: bool, kubernetes: bool) -> String {
    let name = &cluster.name;
    let all: Vec<String> = cluster.machines.iter().map(|machine| machine.address.to_string()).collect();
    let Some(first) = cluster.machines.first() else { return String::new() };
    if !configured {
        return format!(
            "\nThe machines wait for their configuration. Try:\n\
             \x20   ichorctl get addresses --insecure -n {0}\n\
             \x20   ichorctl apply-config --insecure -n {0} --file controlplane.yaml\n\
             \x20   ichorctl cluster destroy --name {name}\n",
            first.loopback
        );
    }
    let kubectl = if kubernetes { "    kubectl get nodes -o wide\n    ichorctl health\n" } else { "" };
    format!(
        "\nTry:\n{kubectl}\
         \x20   ichorctl version\n\
         \x20   ichorctl -n {0} get machinestatus\n\
         \x20   ichorctl services\n\
         \x20   ichorctl logs machined -f\n\
         \x20   ichorctl get rd\n\
         \x20   ichorctl cluster destroy --name {name}\n",
        all.join(",")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_of_machines_that_pods_or_services_have_is_refused() {
        let config = "version: v1alpha1\nmachine:\n  type: controlplane\ncluster:\n  network:\n    \
                      podSubnets: [10.40.0.0/16]\n";
        let check = |cidr: &str| check_network(cidr.parse().unwrap(), config.as_bytes());
        assert!(check("10.5.0.0/24").is_ok());
        for (cidr, what) in [("10.40.3.0/24", "pods"), ("10.97.0.0/24", "services"), ("10.0.0.0/8", "pods")] {
            let refused = check(cidr).unwrap_err().to_string();
            assert!(refused.contains(cidr) && refused.contains(what), "{refused}");
        }
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("2.0GiB", Some(2 << 30)),
            ("512", Some(512 << 20)),
            ("1GB", Some(1_000_000_000)),
            ("much", None),
            ("", None),
            ("-1", None),
        ] {
            assert_eq!(parse_memory(text), bytes, "{text:?}");
        }
        for (text, parts) in
            [("2.0", Some(2000)), ("0.5", Some(500)), ("-1", None), ("NaN", None), ("two", None)]
        {
            assert_eq!(parse_cpus(text), parts, "{text:?}");
        }
    }
}
