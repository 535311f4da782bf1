//! Replaces the certificate authorities of the machine API and of Kubernetes while everything goes on.
//!
//! A new authority is first accepted everywhere, then made the issuing one while the old is still accepted, and
//! only then the old one dropped. At no point does a machine meet a certificate it does not accept.

mod kubernetes;
mod machines;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ichor_client::Client;
use ichor_client::profile::{Overrides, Profile};
use ichor_config::CommentMode;
use ichor_config::generate::Secrets;
use ichor_config::talosconfig::ClientConfig;
use ichor_config::v1alpha1::Config;
use ichor_config::values::{PemBytes, PemCert, PemPair};
use ichor_health::{Kind, Topology};
use ichor_types::VersionContract;
use jiff::Timestamp;

pub use kubernetes::kubernetes;
pub use machines::{ClientContext, machines};

use crate::error::{Doing as _, Error, Problem, Result};
use crate::node_config;

/// Which certificate authority of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authority {
    /// That of the machine API.
    Machine,
    /// That of Kubernetes.
    Kubernetes,
}

/// The three changes that every machine goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The new authority is accepted.
    Accept,
    /// The new authority issues, the old one is accepted.
    Swap,
    /// The old authority is not accepted any more.
    Drop,
}

/// The certificates that a connection is verified with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Those of before.
    Existing,
    /// A client certificate of the new authority, servers of the old one.
    NewClientOldServers,
    /// Those of the new authority.
    New,
}

/// A step of a rotation. An event that carries a private key is marked; a sink that records events leaves it out.
#[derive(Debug, Clone)]
pub enum Event {
    /// The rotation of an authority begins.
    Started {
        /// Which one.
        authority: Authority,
        /// Nothing is changed.
        dry_run: bool,
    },
    /// The context of the client configuration that the rotation works with.
    ClientContext {
        /// Its name.
        name: String,
        /// Its endpoints.
        endpoints: Vec<String>,
    },
    /// The machines of the cluster.
    Topology(Topology),
    /// The present authority. Holds its private key.
    Current(Authority, PemPair),
    /// The new authority. Holds its private key.
    New(Authority, PemPair),
    /// The client configuration that goes with the new authority. Holds a private key.
    ClientConfig(Box<ClientConfig>),
    /// A client of Kubernetes is made.
    KubernetesClient(Trust),
    /// Connections are verified.
    Verifying(Authority, Trust),
    /// A machine answered.
    Verified {
        /// The machine.
        node: String,
        /// Version of its system; nothing in a dry run.
        version: Option<String>,
    },
    /// All nodes of Kubernetes are ready; how many, or nothing in a dry run.
    NodesReady(Option<usize>),
    /// A change is made on all machines.
    Changing(Authority, Change),
    /// A machine was changed.
    Changed {
        /// The machine.
        node: String,
        /// It was left as it is: a dry run.
        skipped: bool,
    },
    /// Workloads of the system are restarted, so that they accept the new authority.
    RestartingWorkloads,
    /// A workload runs anew.
    WorkloadRestarted(String),
}

/// How a rotation is done.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Report what would be done and change nothing.
    pub dry_run: bool,
    /// The comments of changed machine configurations.
    pub comments: CommentMode,
}

/// New authorities for a rotation.
pub fn new_authorities() -> Result<Secrets> {
    Secrets::generate(Timestamp::now(), VersionContract::CURRENT).doing("generate the new CAs")
}

/// A client of the current context of a client configuration.
pub fn client_of(config: &ClientConfig) -> Result<Client> {
    let profile = Profile::resolve(config, &Overrides::default()).doing("client configuration")?;
    profile.client().doing("client configuration")
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

/// The address of the first control plane.
fn first_control_plane(topology: &Topology) -> Result<&str> {
    let first = topology.control_planes().first().map(|machine| machine.address.as_str());
    first.ok_or_else(|| Error::state("there is no control plane among the machines"))
}

/// The issuing authority that a control plane has now.
async fn current(client: &Client, resource_type: &str, id: &str) -> Result<PemPair> {
    let query = node_config::query("secrets", resource_type, id);
    let resource = client.get(&query).await;
    let resource = resource.map_err(|status| Error::call("error fetching the current CA", status))?;
    let spec = ichor_health::Resource::of(&resource).spec;
    let part = |key: &str| {
        let text = spec["issuingCA"][key].as_str().unwrap_or_default();
        STANDARD.decode(text).unwrap_or_default()
    };
    let crt = part("crt");
    if crt.is_empty() {
        return Err(Problem::HiddenAuthority.into());
    }
    Ok(PemPair { crt: PemBytes(crt), key: PemBytes(part("key")) })
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
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
