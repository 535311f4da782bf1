//! What each machine waits for while a cluster comes up.

use std::convert::Infallible;
use std::time::Duration;

use futures_util::future::join_all;
use ichor_client::Client;
use ichor_config::talosconfig::ClientConfig;
use ichor_provision::Machine;
use tokio::time::{sleep, timeout};

use super::ready::{Access, State, ask, own_client};
use super::{Event, MachineState, Site};
use crate::error::Result;
use crate::event::Sink;

/// Between two rounds of questions.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a machine may take to answer one.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// The machines of a cluster, each asked at its own endpoint.
pub(super) struct Machines<'a> {
    access: Access,
    machines: Vec<(&'a Machine, Client)>,
}

impl<'a> Machines<'a> {
    /// Over the client configuration of the cluster.
    pub(super) fn new(config: &ClientConfig, site: &'a Site) -> Result<Self> {
        let access = Access::Configured(config.clone());
        let clients =
            site.machines().map(|(machine, endpoint)| Ok((machine, own_client(&access, endpoint)?)));
        let machines = clients.collect::<Result<_>>()?;
        Ok(Self { access, machines })
    }

    /// Reports every second what each machine waits for, until it is dropped.
    pub(super) async fn report(&self, events: &dyn Sink<Event>) -> Infallible {
        loop {
            sleep(PAUSE).await;
            let states = join_all(self.machines.iter().map(|(machine, client)| self.state(machine, client)));
            events.emit(Event::Machines(states.await));
        }
    }

    async fn state(&self, machine: &Machine, client: &Client) -> MachineState {
        let waits_for = match timeout(ANSWER_MAX, ask(&self.access, client)).await {
            Ok(State::Ready) => None,
            Ok(State::Waiting(text)) => Some(text),
            Err(_) => {
                client.reset().await;
                Some("no answer in time".to_owned())
            }
        };
        MachineState { name: machine.name.clone(), waits_for }
    }
}
