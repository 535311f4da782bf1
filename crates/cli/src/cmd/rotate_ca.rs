//! `rotate-ca`: replaces the authorities of the machine API and of Kubernetes while everything goes on.
//!
//! A new authority is first accepted everywhere, then made the issuing one while the old is still accepted, and
//! only then the old one dropped. At no point does a machine meet a certificate it does not accept.

use std::path::Path;
use std::time::Duration;

use ichor_client::profile::{Overrides, Profile};
use ichor_client::{Client, status_text};
use ichor_config::generate::Secrets;
use ichor_config::talosconfig::{ClientConfig, Context};
use ichor_config::v1alpha1::Config;
use ichor_config::values::{PemBytes, PemCert, PemPair};
use ichor_health::{Kind, Topology, objects};
use ichor_kube::{Kind as Kinds, Select};
use ichor_types::VersionContract;
use jiff::Timestamp;
use tokio::time::{Instant, sleep};
use tonic::Code;

use super::upgrade_k8s::{CONFIG_TEXT_FLAGS, comments};
use crate::failure::{Context as _, Failure, chain};
use crate::fleet;
use crate::kubernetes::patience::patiently;
use crate::kubernetes::{settled, workloads};
use crate::node_config::{self, ServiceWatch};
use crate::parse::Call;
use crate::session::{Session, block_on};
use crate::table::{Command, Complete, Flag, Group};
use crate::{files, print, profile};

/// How long a machine may take to show its new certificate.
const VERIFY_MAX: Duration = Duration::from_secs(10);
const VERIFY_PAUSE: Duration = Duration::from_millis(100);
/// How long all nodes may take to be ready again.
const READY_MAX: Duration = Duration::from_secs(3 * 60);
/// How long the kubelet may take to go away, and to come back. It goes when the pods of the control plane are new.
const KUBELET_DOWN_MAX: Duration = Duration::from_secs(60);
const KUBELET_UP_MAX: Duration = Duration::from_secs(5 * 60);
/// The new client certificate lasts a year.
const CLIENT_LIFETIME: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// `rotate-ca`.
pub static ROTATE_CA: Command = Command {
    name: "rotate-ca",
    group: Group::Machines,
    about: "Replace the CAs of the machine API and of Kubernetes",
    long: "Makes new authorities for the machine API and for Kubernetes and brings them to all machines in three\n\
           steps, each on all machines: the new one is accepted, becomes the issuing one, and the old one is\n\
           dropped. The new client configuration goes to the file of --output. Without --dry-run=false nothing\n\
           changes.",
    examples: &["rotate-ca", "rotate-ca --dry-run=false", "rotate-ca --dry-run=false --kubernetes=false"],
    flags: &[
        Flag::list("control-plane-nodes", "control plane machines, when they are not to be discovered"),
        Flag::switch("dry-run", "show what would be done").default("true"),
        Flag::text("init-node", "the first control plane machine of old clusters"),
        Flag::text("k8s-endpoint", "address of the Kubernetes API"),
        Flag::switch("kubernetes", "replace the CA of Kubernetes").default("true"),
        Flag::text("output", "file of the new client configuration")
            .short('o')
            .default("talosconfig")
            .complete(Complete::File),
        Flag::switch("talos", "replace the CA of the machine API").default("true"),
        Flag::list("worker-nodes", "worker machines, when they are not to be discovered"),
    ],
    shared_flags: CONFIG_TEXT_FLAGS,
    run: Some(run),
    ..Command::EMPTY
};

/// Which authority of a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Authority {
    Machine,
    Kubernetes,
}

/// The three changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Accept,
    Swap,
    Drop,
}

/// Old and new.
struct Pairs {
    old: Vec<u8>,
    new: PemPair,
}

impl Pairs {
    /// Makes a change to the configuration of a machine; false when it is made already.
    fn apply(&self, config: &mut Config, authority: Authority, change: Change, kind: Kind) -> bool {
        let before = config.clone();
        let (ca, accepted) = match authority {
            Authority::Machine => {
                let machine = config.machine.get_or_insert_default();
                (&mut machine.ca, machine.accepted_cas.items_mut())
            }
            Authority::Kubernetes => {
                let cluster = config.cluster.get_or_insert_default();
                (&mut cluster.ca, cluster.accepted_cas.items_mut())
            }
        };
        let cert = |bytes: &[u8]| PemCert { crt: PemBytes(bytes.to_vec()) };
        let without = |accepted: &mut Vec<PemCert>, bytes: &[u8]| accepted.retain(|ca| ca.crt.0 != bytes);
        match change {
            Change::Accept => {
                without(accepted, &self.new.crt.0);
                accepted.push(cert(&self.new.crt.0));
            }
            Change::Swap => {
                without(accepted, &self.new.crt.0);
                without(accepted, &self.old);
                accepted.push(cert(&self.old));
                let mut pair = self.new.clone();
                if kind == Kind::Worker {
                    pair.key = PemBytes(Vec::new());
                }
                *ca = Some(pair);
            }
            Change::Drop => without(accepted, &self.old),
        }
        *config != before
    }
}

fn run(call: &Call) -> Result<(), Failure> {
    if !call.on("talos") && !call.on("kubernetes") {
        return Ok(());
    }
    block_on(rotate(call))
}

fn say(line: &str) -> Result<(), Failure> {
    print(&format!("{line}\n"))
}

const DRY_RUN_HINT: &str = "> Dry-run mode enabled, no changes were made to the cluster, re-run with `--dry-run=false` to apply the changes.";

async fn rotate(call: &Call) -> Result<(), Failure> {
    let hosts = profile::load(call)?.hosts();
    let session = Session::open(call).await?;
    let cluster = fleet::open(call, &session, &hosts, call.text("k8s-endpoint")).await?;
    if cluster.topology.control_planes().is_empty() {
        return Err(Failure::new("there is no control plane among the machines"));
    }
    let secrets =
        Secrets::generate(Timestamp::now(), VersionContract::CURRENT).context("generate the new CAs")?;
    let mut client = session.endpoint();
    let dry_run = call.on("dry-run");
    if call.on("talos") {
        let rotation = Machines { call, topology: &cluster.topology, dry_run };
        let config = rotation
            .run(&session, &secrets)
            .await
            .map_err(|failure| failure.within("error rotating Talos CA"))?;
        if dry_run {
            say(DRY_RUN_HINT)?;
        } else {
            let output = call.text("output");
            say(&format!("> Writing new talosconfig to {output:?}"))?;
            files::write(Path::new(output), &profile::encode(&config), 0o600)?;
            client = client_of(&config)?;
        }
    }
    if call.on("kubernetes") {
        let session = Session::over_client(client, session.nodes.clone(), true);
        let rotated = kubernetes(call, &session, &cluster.topology, &hosts, &secrets, dry_run).await;
        rotated.map_err(|failure| failure.within("error rotating Kubernetes CA"))?;
        if dry_run {
            say(DRY_RUN_HINT)?;
        } else {
            say(
                "> Kubernetes CA rotation done, new 'kubeconfig' can be fetched with `ichorctl kubeconfig`.",
            )?;
        }
    }
    Ok(())
}

fn client_of(config: &ClientConfig) -> Result<Client, Failure> {
    let failed = |error: &dyn std::error::Error| Failure::new(chain(error));
    let profile = Profile::resolve(config, &Overrides::default()).map_err(|error| failed(&error))?;
    profile.client().map_err(|error| failed(&error))
}

fn topology_text(topology: &Topology) -> Result<(), Failure> {
    let list = |machines: &[ichor_health::Machine]| {
        machines.iter().map(|machine| format!("{:?}", machine.address)).collect::<Vec<_>>().join(" ")
    };
    say("> Cluster topology:")?;
    say(&format!("  - control plane nodes: [{}]", list(topology.control_planes())))?;
    say(&format!("  - worker nodes: [{}]", list(topology.workers())))
}

fn show(title: &str, pair: &PemPair) -> Result<(), Failure> {
    let encode = |bytes: &[u8]| {
        use base64::Engine as _;
        base64::engine::general_purpose::STANDARD.encode(bytes)
    };
    say(&format!("> {title}:"))?;
    say(&format!("  crt: {}", encode(&pair.crt.0)))?;
    say(&format!("  key: {}", encode(&pair.key.0)))
}

/// The issuing authority that a control plane has now.
async fn current(client: &Client, resource_type: &str, id: &str) -> Result<PemPair, Failure> {
    let query = node_config::query("secrets", resource_type, id);
    let resource = client.get(&query).await;
    let resource = resource
        .map_err(|status| Failure::new(format!("error fetching the current CA: {}", status_text(&status))))?;
    let spec = ichor_health::Resource::of(&resource).spec;
    let part = |key: &str| {
        use base64::Engine as _;
        let text = spec["issuingCA"][key].as_str().unwrap_or_default();
        base64::engine::general_purpose::STANDARD.decode(text).unwrap_or_default()
    };
    let crt = part("crt");
    if crt.is_empty() {
        return Err(
            Failure::new("the machine does not tell its current CA").hint("the role os:admin is needed")
        );
    }
    Ok(PemPair { crt: PemBytes(crt), key: PemBytes(part("key")) })
}

/// The rotation of the machine API's authority.
struct Machines<'a> {
    call: &'a Call,
    topology: &'a Topology,
    dry_run: bool,
}

impl Machines<'_> {
    async fn run(&self, session: &Session, secrets: &Secrets) -> Result<ClientConfig, Failure> {
        let (config, _) = profile::open(self.call)?;
        let (name, context) = profile::context(&config, self.call.some_text("context"))?;
        let mut endpoints = self.call.list("endpoints");
        if endpoints.is_empty() {
            endpoints = context.endpoints.iter().cloned().collect();
        }
        let nodes = context.nodes.clone();
        say(&format!("> Starting Talos API PKI rotation, dry-run mode {}...", self.dry_run))?;
        say(&format!("> Using config context: {name:?}"))?;
        let quoted: Vec<String> = endpoints.iter().map(|endpoint| format!("{endpoint:?}")).collect();
        say(&format!("> Using Talos API endpoints: [{}]", quoted.join(" ")))?;
        topology_text(self.topology)?;
        let old_client = session.endpoint();
        let first = &self.topology.control_planes()[0].address;
        let old = current(&old_client.to_node(first), "OSRootSecrets.secrets.talos.dev", "os").await?;
        show("Current Talos CA", &old)?;
        let new = secrets.os_ca().context("generate the new CA")?.clone();
        show("New Talos CA", &new)?;
        say("> Generating new talosconfig:")?;
        let roles = ["os:admin".to_owned()];
        let issued = secrets.client_certificate(&roles, CLIENT_LIFETIME, Timestamp::now());
        let (_, issued) = issued.context("generate the new client certificate")?;
        let (crt, key) = (text_of(issued.crt.as_ref()), text_of(issued.key.as_ref()));
        // In between, clients already show the new certificate while machines still show theirs from the old.
        let with = |ca: &[u8]| {
            let mut context = Context::new(&endpoints, &text_of(ca), &crt, &key);
            context.nodes.clone_from(&nodes);
            ClientConfig::single(name, context)
        };
        let (between, after) = (with(&old.crt.0), with(&new.crt.0));
        say(&String::from_utf8_lossy(&profile::encode(&after)))?;
        let pairs = Pairs { old: old.crt.0, new };
        self.verify(&old_client, "existing PKI").await?;
        self.change(&old_client, &pairs, Change::Accept, "> Adding new Talos CA as accepted...").await?;
        let between = client_of(&between)?;
        self.verify(&between, "new client cert, but old server CA").await?;
        let text = "> Making new Talos CA the issuing CA, old Talos CA the accepted CA...";
        self.change(&between, &pairs, Change::Swap, text).await?;
        let new_client = client_of(&after)?;
        self.verify(&new_client, "new PKI").await?;
        let text = "> Removing old Talos CA from the accepted CAs...";
        self.change(&new_client, &pairs, Change::Drop, text).await?;
        self.verify(&new_client, "new PKI").await?;
        Ok(after)
    }

    async fn change(
        &self,
        client: &Client,
        pairs: &Pairs,
        change: Change,
        text: &str,
    ) -> Result<(), Failure> {
        say(text)?;
        for machine in self.topology.all() {
            let address = &machine.address;
            if self.dry_run {
                say(&format!("  - {address}: skipped (dry-run)"))?;
                continue;
            }
            let edit = |config: &mut Config| pairs.apply(config, Authority::Machine, change, machine.kind);
            let result = node_config::change(&client.to_node(address), comments(self.call), edit).await;
            // A change of certificates may cut the very connection it came over; then it is asked anew.
            let result = match result {
                Err(_) => {
                    client.reset().await;
                    node_config::change(&client.to_node(address), comments(self.call), edit).await
                }
                result => result,
            };
            result.map_err(|failure| failure.within(format!("error patching node {address}")))?;
            say(&format!("  - {address}: OK"))?;
        }
        Ok(())
    }

    async fn verify(&self, client: &Client, label: &str) -> Result<(), Failure> {
        say(&format!("> Verifying connectivity with {label}:"))?;
        for machine in self.topology.all() {
            let address = &machine.address;
            if self.dry_run {
                say(&format!("  - {address}: OK (dry-run)"))?;
                continue;
            }
            let end = Instant::now() + VERIFY_MAX;
            let tag = loop {
                // A new connection each time: an open one says nothing about certificates.
                client.reset().await;
                match client.to_node(address).machine().version(()).await {
                    Ok(reply) => {
                        let message = reply.into_inner().messages.into_iter().next();
                        break message.and_then(|message| message.version).map(|version| version.tag);
                    }
                    Err(status) if status.code() == Code::Unavailable && Instant::now() < end => {
                        sleep(VERIFY_PAUSE).await;
                    }
                    Err(status) => {
                        return Err(Failure::new(format!(
                            "error calling version API on node {address}: {}",
                            status_text(&status)
                        )));
                    }
                }
            };
            say(&format!("  - {address}: OK (version {})", tag.unwrap_or_default()))?;
        }
        Ok(())
    }
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

async fn kubernetes(
    call: &Call,
    session: &Session,
    topology: &Topology,
    hosts: &[String],
    secrets: &Secrets,
    dry_run: bool,
) -> Result<(), Failure> {
    say(&format!("> Starting Kubernetes API PKI rotation, dry-run mode {dry_run}..."))?;
    topology_text(topology)?;
    let client = session.endpoint();
    let fleet = fleet::over(fleet::access(session), topology.clone(), hosts, call.text("k8s-endpoint"))?;
    say("> Building current Kubernetes client...")?;
    fleet
        .kubernetes
        .client()
        .await
        .map_err(|error| Failure::new(format!("error fetching kubeconfig: {error}")))?;
    let first = &topology.control_planes()[0].address;
    let old = current(&client.to_node(first), "KubernetesRootSecrets.secrets.talos.dev", "k8s").await?;
    show("Current Kubernetes CA", &old)?;
    let new = secrets.kubernetes_ca().context("generate the new CA")?.clone();
    show("New Kubernetes CA", &new)?;
    let pairs = Pairs { old: old.crt.0, new };
    ready(&fleet, "existing PKI", dry_run).await?;
    for (change, text) in [
        (Change::Accept, "> Adding new Kubernetes CA as accepted..."),
        (Change::Swap, "> Making new Kubernetes CA the issuing CA, old Kubernetes CA the accepted CA..."),
        (Change::Drop, "> Removing old Kubernetes CA from the accepted CAs..."),
    ] {
        say(text)?;
        for machine in in_order(topology, change) {
            let address = &machine.address;
            if dry_run {
                say(&format!("  - {address}: skipped (dry-run)"))?;
                continue;
            }
            let client = client.to_node(address);
            let edit = |config: &mut Config| pairs.apply(config, Authority::Kubernetes, change, machine.kind);
            let patched = async {
                let control_plane = machine.kind == Kind::ControlPlane;
                let before = if control_plane { settled::wanted(&fleet, address).await? } else { Vec::new() };
                let watch = ServiceWatch::begin(&client, "kubelet").await?;
                if node_config::change(&client, comments(call), edit).await? {
                    watch.restarted(KUBELET_DOWN_MAX, KUBELET_UP_MAX).await?;
                    // The next machine waits for this one's pods, so that there is always an API that answers.
                    if control_plane {
                        settled::settle(&fleet, address, &before).await?;
                    }
                }
                Ok::<_, Failure>(())
            };
            patched.await.map_err(|failure| failure.within(format!("error patching node {address}")))?;
            say(&format!("  - {address}: OK"))?;
        }
        if change == Change::Accept && !dry_run {
            say("> Restarting workloads of the system, so that they accept the new CA...")?;
            let stamp = Timestamp::now().to_string();
            for workload in workloads::refresh(&fleet, first, &pairs.new.crt.0, &stamp).await? {
                say(&format!("  - {workload}: OK"))?;
            }
        }
        if change == Change::Swap {
            say("> Building new Kubernetes client...")?;
            fleet.kubernetes.forget().await;
        }
        if change != Change::Accept {
            ready(&fleet, "new PKI", dry_run).await?;
        }
    }
    Ok(())
}

/// Control planes come first, but for the last change: then the kubelets of workers get their new certificates while
/// those of before still count everywhere.
fn in_order(topology: &Topology, change: Change) -> Vec<&ichor_health::Machine> {
    let (control_planes, workers) = (topology.control_planes(), topology.workers());
    match change {
        Change::Accept | Change::Swap => control_planes.iter().chain(workers).collect(),
        Change::Drop => workers.iter().chain(control_planes).collect(),
    }
}

/// All nodes are ready, as asked through the API.
async fn ready(fleet: &fleet::Fleet, label: &str, dry_run: bool) -> Result<(), Failure> {
    say(&format!("> Verifying connectivity with {label}..."))?;
    if dry_run {
        return say(" - OK (dry-run mode)");
    }
    let count = patiently(fleet, READY_MAX, async |client| {
        let nodes = client.list(&Kinds::NODES, "", Select::default()).await?.items;
        let unready: Vec<String> =
            nodes.iter().filter(|node| !objects::is_ready(node)).map(objects::unready).collect();
        let missing = || format!("nodes not ready: [{}]", unready.join(" "));
        Ok(if unready.is_empty() { Ok(nodes.len()) } else { Err(missing()) })
    });
    say(&format!(" - OK ({} nodes ready)", count.await?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(config: &Config) -> Vec<String> {
        let machine = config.machine.as_ref().unwrap();
        machine.accepted_cas.iter().map(|ca| text_of(&ca.crt.0)).collect()
    }

    #[test]
    fn the_three_changes_lead_from_the_old_authority_to_the_new_one() {
        let pair = |crt: &str, key: &str| PemPair { crt: PemBytes(crt.into()), key: PemBytes(key.into()) };
        let pairs = Pairs { old: b"old".to_vec(), new: pair("new", "key") };
        for (kind, key) in [(Kind::ControlPlane, "key"), (Kind::Worker, "")] {
            let mut config = Config::default();
            config.machine.get_or_insert_default().ca = Some(pair("old", ""));
            let mut apply = |change| {
                let changed = pairs.apply(&mut config, Authority::Machine, change, kind);
                let again = pairs.apply(&mut config, Authority::Machine, change, kind);
                assert!(changed && !again, "{change:?} is made once");
                (accepted(&config), config.machine.clone().unwrap().ca.unwrap())
            };
            assert_eq!(apply(Change::Accept), (vec!["new".to_owned()], pair("old", "")));
            assert_eq!(apply(Change::Swap), (vec!["old".to_owned()], pair("new", key)));
            assert_eq!(apply(Change::Drop), (Vec::new(), pair("new", key)));
        }
    }
}
