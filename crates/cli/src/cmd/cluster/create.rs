//! `cluster create`: configurations, machines, client configuration, in one go.

use std::collections::BTreeMap;
use std::path::Path;

use ichor_config::patch::Patch;
use ichor_ops::cluster::{self, Access, BringUpOptions, CreateOptions, Created, Site, Size, bring_up};
use ichor_ops::generate::Generate;
use ichor_ops::kubeconfig::{self, Decision};
use ichor_ops::providers::PROVIDERS;
use ichor_provision::{Machine, Resources};
use ipnet::IpNet;

use super::screen::Screen;
use super::{ClusterFlags, PROVISIONER, failed, show};
use crate::failure::{Context as _, Failure};
use crate::parse::Call;
use crate::session::block_on;
use crate::table::{Args, Command, Complete, Flag};
use crate::{files, machineconfig, print, profile};

/// The most machines of one kind; each is a set of processes on this host.
const MACHINES_MAX: usize = 200;

/// The command.
pub(super) static CREATE: Command = Command {
    name: "create",
    about: "Make a cluster and start it",
    long: "Makes a cluster of machines on this host and starts it. A machine is a set of namespaces: no container\n\
           engine and no virtual machine is needed, and nothing of the host changes. `cluster create qemu` makes\n\
           virtual machines.\n\n\
           Where the image has Kubernetes, etcd is bootstrapped, the cluster waited for until it is healthy, and\n\
           its kubeconfig merged into that of KUBECONFIG or ~/.kube/config.",
    examples: &["cluster create", "cluster create --name lab --controlplanes 3 --workers 2"],
    args: Args::between("[PROVIDER]", 0, 1).complete(&[Complete::Provider]),
    shared_flags: FLAGS,
    subcommands: &[&super::qemu::QEMU],
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
    Flag::repeated("setting", "setting of the provider, as NAME=VALUE").hidden(),
    PROVISIONER,
];

/// The command line, resolved.
struct CreateFlags {
    cluster: ClusterFlags,
    options: CreateOptions,
    bring_up: BringUpOptions,
}

impl CreateFlags {
    fn of(call: &Call, provider: Option<&str>) -> Result<Self, Failure> {
        let mut cluster = ClusterFlags::of(call)?;
        if let Some(named) = provider.or(call.args.first().map(String::as_str)) {
            cluster.provisioner = named.to_owned();
        }
        if cluster.talosconfig.is_none() {
            cluster.talosconfig = call.some_text("talosconfig-destination").map(str::to_owned);
        }
        let (control_planes, workers) = (count(call, "controlplanes")?, count(call, "workers")?);
        if control_planes == 0 {
            return Err(Failure::new(
                "a cluster needs a control plane machine: --controlplanes must be at least 1",
            ));
        }
        let cidrs = call.some_text("cidr").map(cidr).transpose()?.into_iter().collect();
        let mtu = u32::try_from(call.int("mtu")).unwrap_or_default();
        if !(576..=65535).contains(&mtu) {
            return Err(Failure::new("--mtu must lie between 576 and 65535"));
        }
        let wait = call.on("wait");
        let options = CreateOptions {
            name: cluster.name.clone(),
            control_planes: Size { count: control_planes, resources: resources(call, CONTROL_SIZE)? },
            workers: Size { count: workers, resources: resources(call, WORKER_SIZE)? },
            cidrs,
            mtu,
            image: call.some_text("image").map(str::to_owned),
            images: call.some_text("images").map(Into::into),
            kernel_args: call.list("extra-boot-kernel-args"),
            settings: settings(&call.list("setting"))?,
            generate: generate(call)?,
            configure: !call.on("skip-injecting-config"),
            init_node: call.on("with-init-node"),
        };
        let bring_up = BringUpOptions {
            limit: call.duration("wait-timeout"),
            bootstrap: !options.init_node,
            wait,
            nodes: !call.on("skip-k8s-node-readiness-check"),
            kubeconfig: !call.on("skip-kubeconfig"),
        };
        Ok(Self { cluster, options, bring_up })
    }
}

/// A number of machines.
pub(super) fn count(call: &Call, flag: &str) -> Result<usize, Failure> {
    let count = usize::try_from(call.int(flag)).ok().filter(|count| *count <= MACHINES_MAX);
    count.ok_or_else(|| Failure::new(format!("--{flag} must lie between 0 and {MACHINES_MAX}")))
}

fn cidr(text: &str) -> Result<IpNet, Failure> {
    text.parse()
        .map_err(|_| Failure::new(format!("\"{text}\" is not a network")).hint("write it as 10.5.0.0/24"))
}

fn settings(given: &[String]) -> Result<BTreeMap<String, String>, Failure> {
    let setting = |text: &String| match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(Failure::new(format!("invalid setting \"{text}\"")).hint("write it as NAME=VALUE")),
    };
    given.iter().map(setting).collect()
}

/// What configurations are generated from, as far as the flags say.
fn generate(call: &Call) -> Result<Generate, Failure> {
    let patches = |flags: &[&str]| -> Result<Vec<Patch>, Failure> {
        machineconfig::load_patches(&flags.iter().flat_map(|flag| call.list(flag)).collect::<Vec<_>>())
    };
    let secrets = call.some_text("with-secrets").map(|path| files::read(Path::new(path))).transpose()?;
    Ok(Generate {
        kubernetes_version: call.text("kubernetes-version").trim_start_matches('v').to_owned(),
        contract: machineconfig::contract(call.text("talos-version"))?,
        dns_domain: call.text("dns-domain").to_owned(),
        registry_mirrors: machineconfig::mirrors(&call.list("registry-mirror"))?,
        discovery: call.on("with-cluster-discovery"),
        kubespan: call.on("with-kubespan"),
        install_image: machineconfig::installer_image(),
        secrets: secrets.as_deref().map(machineconfig::load_secrets).transpose()?,
        patches: patches(&["config-patch"])?,
        controlplane_patches: patches(&["config-patch-control-plane", "config-patch-controlplanes"])?,
        worker_patches: patches(&["config-patch-worker", "config-patch-workers"])?,
        ..Generate::default()
    })
}

fn run(call: &Call) -> Result<(), Failure> {
    run_on(call, None, BTreeMap::new(), false)
}

/// The same for machines of one provider with settings of its own; in maintenance machines wait for their configuration.
pub(super) fn run_on(
    call: &Call,
    provider: Option<&str>,
    settings: BTreeMap<String, String>,
    maintenance: bool,
) -> Result<(), Failure> {
    let CreateFlags { cluster, mut options, bring_up: wanted } = CreateFlags::of(call, provider)?;
    options.settings.extend(settings);
    options.configure &= !maintenance;
    let provider = PROVIDERS.open(&cluster.provisioner, cluster.store.clone()).map_err(failed)?;
    let configured = options.configure;
    let screen = Screen::default();
    let made = block_on(async { Ok(cluster::create(&provider, options, &screen).await?) });
    let created = screen.finish(made)?;
    if !configured {
        write_configs(&created)?;
    }
    let location = profile::locate_at(cluster.talosconfig.as_deref())?;
    for line in profile::merge_at(&location, &created.talosconfig)? {
        eprintln!("{line}");
    }
    let Created { site, talosconfig, .. } = created;
    let came_up = block_on(async {
        match configured {
            true => Ok(bring_up(&site, &talosconfig, &wanted, &screen).await?),
            false if wanted.wait => {
                Access::Maintenance.wait(&site, wanted.limit, &screen).await?;
                Ok(None)
            }
            false => Ok(None),
        }
    });
    let merged = came_up.and_then(|text| match text {
        Some(text) => merge_kubeconfig(&text, &site),
        None => Ok(()),
    });
    screen.finish(merged).inspect_err(|_| eprint!("\n{}", screen.times()))?;
    let shown = provider.show(&site.cluster.name).map(|cluster| Site::new(&*provider, cluster));
    let site = shown.unwrap_or(site);
    print(&show::cluster_text(&site))?;
    eprint!("\n{}", screen.times());
    print(&next_text(&site, configured, wanted.wait && wanted.kubeconfig))
}

/// Adds the cluster to the kubeconfig of the person at the terminal. What an earlier cluster at the same
/// address left there is replaced; other clusters keep their names.
fn merge_kubeconfig(text: &str, site: &Site) -> Result<(), Failure> {
    let path = crate::cmd::kubernetes::default_path()?;
    let old = if path.exists() { files::read(&path)? } else { Vec::new() };
    let old = String::from_utf8(old).context(format!("read {}", path.display()))?;
    let old = kubeconfig::without(&old, &site.kubernetes_servers())?.unwrap_or(old);
    let rename = |_, _: &str| Ok::<_, Failure>(Decision::Rename);
    let (merged, renamed) = kubeconfig::merge(&old, text, None, rename)?;
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

fn write_configs(created: &Created) -> Result<(), Failure> {
    for (file, content) in [
        ("controlplane.yaml", &created.controlplane),
        ("worker.yaml", &created.worker),
        ("talosconfig", &profile::encode(&created.talosconfig)),
    ] {
        files::write(Path::new(file), content, 0o600)?;
        eprintln!("Created {file}");
    }
    Ok(())
}

/// Commands to go on with.
fn next_text(site: &Site, configured: bool, kubernetes: bool) -> String {
    let name = &site.cluster.name;
    let all: Vec<String> = site.cluster.machines.iter().map(Machine::address).collect();
    let Some((_, first)) = site.machines().next() else { return String::new() };
    if !configured {
        return format!(
            "\nThe machines wait for their configuration. Try:\n\
             \x20   ichorctl get addresses --insecure -n {0}\n\
             \x20   ichorctl apply-config --insecure -n {0} --file controlplane.yaml\n\
             \x20   ichorctl cluster destroy --name {name}\n",
            first
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
