//! Makes clusters, brings their Kubernetes up, adds machines and removes them.
//!
//! Machines come from a [`Provider`], whose calls block; they run on threads of their own.

mod add;
mod bring_up;
mod create;
mod inherit;
mod machines;
mod ready;
mod remove;
mod site;

use std::sync::Arc;
use std::time::Duration;

use ichor_provision::{Cluster, Power, Provider, ProvisionError};
use tokio::sync::mpsc;

pub use add::{AddOptions, add};
pub use bring_up::{BringUpOptions, bring_up};
pub use create::{CreateOptions, Created, Size, create};
pub use ready::{Access, start};
pub use remove::{RemoveOptions, remove};
pub use site::{MACHINE_PORT, Site, context_of, follow};

use crate::error::{Error, Result};
use crate::event::{Silent, Sink};

/// Steps waiting to be reported; a provider reports a handful.
const STEPS: usize = 16;

/// A step of the life of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A step begins; the one before is done.
    Step(Step),
    /// What the running step waits for.
    Waiting(String),
    /// What each machine waits for; comes every second while the whole cluster is waited for.
    Machines(Vec<MachineState>),
    /// The running step is done.
    Done,
    /// A part of the way is done.
    Phase {
        /// Its name.
        name: &'static str,
        /// How long it took.
        took: Duration,
    },
    /// A machine is removed although nobody could be told that it goes.
    LeaveSkipped {
        /// The machine.
        machine: String,
        /// Why not.
        reason: String,
    },
    /// A machine is removed although its leave failed.
    LeaveFailed {
        /// Why.
        reason: String,
    },
    /// A machine is gone, its node is not.
    NodeRemains {
        /// The machine.
        machine: String,
        /// Why.
        reason: String,
    },
}

/// How far a machine is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineState {
    /// Its name.
    pub name: String,
    /// What it waits for; nothing when it is ready.
    pub waits_for: Option<String>,
}

/// What is being done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Secrets and configurations are generated.
    Generating,
    /// The provider is at work.
    Provider(String),
    /// The first control plane is waited for.
    FirstControlPlane,
    /// etcd is bootstrapped.
    Bootstrapping,
    /// A part of the cluster is waited for.
    Part(&'static str),
    /// A machine is waited for.
    Machine {
        /// Its name.
        name: String,
        /// Its address.
        address: String,
    },
    /// The configuration of the cluster is read.
    ReadingConfiguration,
    /// New machines are waited for.
    NewMachines,
    /// Whether a machine may leave is looked at.
    CheckingLeave {
        /// The machine.
        machine: String,
    },
    /// A machine leaves the cluster.
    Leaving {
        /// The machine.
        machine: String,
    },
    /// The member of a machine is removed from etcd.
    RemovingMember {
        /// The machine.
        machine: String,
    },
    /// The node of a machine is removed from Kubernetes.
    RemovingNode,
}

/// Runs a call of a provider on a thread of its own and reports its steps.
async fn provided<T: Send + 'static>(
    provider: &Arc<dyn Provider>,
    events: &dyn Sink<Event>,
    call: impl FnOnce(&dyn Provider, ichor_provision::Steps<'_>) -> std::result::Result<T, ProvisionError>
    + Send
    + 'static,
) -> Result<T> {
    let provider = Arc::clone(provider);
    let (sender, mut steps) = mpsc::channel::<String>(STEPS);
    let work = tokio::task::spawn_blocking(move || {
        call(&*provider, &mut |step| {
            let _ = sender.blocking_send(step.to_owned());
        })
    });
    while let Some(step) = steps.recv().await {
        events.emit(Event::Step(Step::Provider(step)));
    }
    match work.await {
        Ok(result) => Ok(result?),
        Err(panic) => Err(Error::state(format!("the provider of the machines failed: {panic}"))),
    }
}

/// Changes the power of the named machines, or of all at once.
pub async fn power(
    provider: &Arc<dyn Provider>,
    cluster: &str,
    machines: &[String],
    power: Power,
) -> Result<()> {
    let (cluster, machines) = (cluster.to_owned(), machines.to_owned());
    provided(provider, &Silent, move |provider, _| match machines.as_slice() {
        [] => provider.power(&cluster, None, power),
        named => named.iter().try_for_each(|machine| provider.power(&cluster, Some(machine), power)),
    })
    .await
}

/// Removes a cluster and everything of it.
pub async fn destroy(provider: &Arc<dyn Provider>, cluster: &str, events: &dyn Sink<Event>) -> Result<()> {
    let cluster = cluster.to_owned();
    provided(provider, events, move |provider, steps| provider.destroy(&cluster, steps)).await
}

/// The cluster with each machine's present status.
async fn shown(provider: &Arc<dyn Provider>, cluster: &str) -> Result<Cluster> {
    let name = cluster.to_owned();
    provided(provider, &Silent, move |provider, _| provider.show(&name)).await
}
