//! The rotation of the machine API's authority.

use std::time::Duration;

use ichor_client::Client;
use ichor_config::generate::Secrets;
use ichor_config::talosconfig::{ClientConfig, Context};
use ichor_config::v1alpha1::Config;
use ichor_health::Topology;
use jiff::Timestamp;
use tokio::time::{Instant, sleep};
use tonic::Code;

use super::{
    Authority, Change, Event, Options, Pairs, Trust, client_of, current, first_control_plane, text_of,
};
use crate::error::{Doing as _, Error, Result};
use crate::event::Sink;
use crate::node_config;

/// How long a machine may take to show its new certificate.
const VERIFY_MAX: Duration = Duration::from_secs(10);
const VERIFY_PAUSE: Duration = Duration::from_millis(100);
/// The new client certificate lasts a year.
const CLIENT_LIFETIME: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The context of the client configuration, which the new one takes over.
#[derive(Debug, Clone)]
pub struct ClientContext {
    /// Its name.
    pub name: String,
    /// Endpoints of the cluster.
    pub endpoints: Vec<String>,
    /// Machines that commands are for.
    pub nodes: Vec<String>,
}

/// Replaces the authority of the machine API on all machines, and returns the client configuration that goes with it.
pub async fn machines(
    client: &Client,
    topology: &Topology,
    context: &ClientContext,
    secrets: &Secrets,
    options: Options,
    events: &dyn Sink<Event>,
) -> Result<ClientConfig> {
    let rotation = Rotation { topology, options, events };
    rotation.run(client, context, secrets).await
}

struct Rotation<'a> {
    topology: &'a Topology,
    options: Options,
    events: &'a dyn Sink<Event>,
}

impl Rotation<'_> {
    async fn run(&self, client: &Client, context: &ClientContext, secrets: &Secrets) -> Result<ClientConfig> {
        let authority = Authority::Machine;
        self.events.emit(Event::Started { authority, dry_run: self.options.dry_run });
        let (name, endpoints) = (context.name.clone(), context.endpoints.clone());
        self.events.emit(Event::ClientContext { name, endpoints });
        self.events.emit(Event::Topology(self.topology.clone()));
        let first = first_control_plane(self.topology)?;
        let old = current(&client.to_node(first), "OSRootSecrets.secrets.talos.dev", "os").await?;
        self.events.emit(Event::Current(authority, old.clone()));
        let new = secrets.os_ca().doing("generate the new CA")?.clone();
        self.events.emit(Event::New(authority, new.clone()));
        let roles = ["os:admin".to_owned()];
        let issued = secrets.client_certificate(&roles, CLIENT_LIFETIME, Timestamp::now());
        let (_, issued) = issued.doing("generate the new client certificate")?;
        let (crt, key) = (text_of(issued.crt.as_ref()), text_of(issued.key.as_ref()));
        // In between, clients already show the new certificate while machines still show theirs from the old.
        let with = |ca: &[u8]| {
            let mut new = Context::new(&context.endpoints, &text_of(ca), &crt, &key);
            new.nodes = context.nodes.iter().cloned().collect();
            ClientConfig::single(&context.name, new)
        };
        let (between, after) = (with(&old.crt.0), with(&new.crt.0));
        self.events.emit(Event::ClientConfig(Box::new(after.clone())));
        let pairs = Pairs { old: old.crt.0, new };
        self.verify(client, Trust::Existing).await?;
        self.change(client, &pairs, Change::Accept).await?;
        let between = client_of(&between)?;
        self.verify(&between, Trust::NewClientOldServers).await?;
        self.change(&between, &pairs, Change::Swap).await?;
        let new_client = client_of(&after)?;
        self.verify(&new_client, Trust::New).await?;
        self.change(&new_client, &pairs, Change::Drop).await?;
        self.verify(&new_client, Trust::New).await?;
        Ok(after)
    }

    async fn change(&self, client: &Client, pairs: &Pairs, change: Change) -> Result<()> {
        self.events.emit(Event::Changing(Authority::Machine, change));
        for machine in self.topology.all() {
            let node = machine.address.clone();
            if self.options.dry_run {
                self.events.emit(Event::Changed { node, skipped: true });
                continue;
            }
            let edit = |config: &mut Config| pairs.apply(config, Authority::Machine, change, machine.kind);
            let result = node_config::change(&client.to_node(&node), self.options.comments, edit).await;
            // A change of certificates may cut the very connection it came over; then it is asked anew.
            let result = match result {
                Err(_) => {
                    client.reset().await;
                    node_config::change(&client.to_node(&node), self.options.comments, edit).await
                }
                result => result,
            };
            result.map_err(|error| error.within(format!("error patching node {node}")))?;
            self.events.emit(Event::Changed { node, skipped: false });
        }
        Ok(())
    }

    async fn verify(&self, client: &Client, trust: Trust) -> Result<()> {
        self.events.emit(Event::Verifying(Authority::Machine, trust));
        for machine in self.topology.all() {
            let node = machine.address.clone();
            if self.options.dry_run {
                self.events.emit(Event::Verified { node, version: None });
                continue;
            }
            let end = Instant::now() + VERIFY_MAX;
            let tag = loop {
                // A new connection each time: an open one says nothing about certificates.
                client.reset().await;
                match client.to_node(&node).machine().version(()).await {
                    Ok(reply) => {
                        let message = reply.into_inner().messages.into_iter().next();
                        break message.and_then(|message| message.version).map(|version| version.tag);
                    }
                    Err(status) if status.code() == Code::Unavailable && Instant::now() < end => {
                        sleep(VERIFY_PAUSE).await;
                    }
                    Err(status) => {
                        return Err(Error::call(format!("error calling version API on node {node}"), status));
                    }
                }
            };
            self.events.emit(Event::Verified { node, version: Some(tag.unwrap_or_default()) });
        }
        Ok(())
    }
}
