//! Waits until the machines of a cluster answer and are ready.

use std::sync::Arc;
use std::time::Duration;

use ichor_client::profile::insecure;
use ichor_client::resources::yaml_of;
use ichor_client::{Client, status_text};
use ichor_config::talosconfig::ClientConfig;
use ichor_provision::{Machine, MachineStatus, Power, Provider};
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use super::site::client;
use super::{Event, Site, Step, context_of, provided, shown};
use crate::error::{Doing as _, Problem, Result};
use crate::event::{Silent, Sink};
use crate::node_config::query;

/// Between two questions; a machine boots in a tenth of a second.
const PAUSE: Duration = Duration::from_millis(20);
/// The first question: a machine without a network yet swallows it, and has one before an answer could come.
const ASK_FIRST: Duration = Duration::from_millis(200);
/// Later questions, each half as long again as the one before.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// How the machines of a cluster are asked.
pub enum Access {
    /// Through this configuration, which has the cluster as its current context.
    Configured(ClientConfig),
    /// The machines wait for their configuration.
    Maintenance,
}

impl Access {
    /// The context of the cluster, found by its endpoints; without one the machines can only be asked
    /// whether they wait for a configuration.
    pub fn find(config: &ClientConfig, site: &Site) -> Self {
        context_of(config, site).map_or(Self::Maintenance, Self::Configured)
    }

    /// Waits until all machines of a cluster are ready.
    pub async fn wait(&self, site: &Site, limit: Duration, events: &dyn Sink<Event>) -> Result<()> {
        wait(self, site, &[], limit, events, async |_| {}).await
    }
}

/// Starts the named machines, or all, and waits until they are ready if a limit is given.
pub async fn start(
    provider: &Arc<dyn Provider>,
    cluster: &str,
    machines: &[String],
    wait_for: Option<(&ClientConfig, Duration)>,
    events: &dyn Sink<Event>,
) -> Result<()> {
    super::power(provider, cluster, machines, Power::On).await?;
    events.emit(Event::Done);
    let Some((config, limit)) = wait_for else { return Ok(()) };
    let site = Site::new(&**provider, shown(provider, cluster).await?);
    let access = Access::find(config, &site);
    // A machine that was still going down when it was to start has gone down since.
    let again = async |machine: &Machine| {
        let (cluster, machine) = (cluster.to_owned(), machine.name.clone());
        let restarted = provided(provider, &Silent, move |provider, _| {
            let shown = provider.show(&cluster)?;
            match shown.machine(&machine)?.status {
                MachineStatus::Stopped => provider.power(&cluster, Some(&machine), Power::On),
                _ => Ok(()),
            }
        });
        // It is asked for again.
        let _ = restarted.await;
    };
    wait(&access, &site, machines, limit, events, again).await
}

/// Waits for every machine in turn, or for the named ones; they all boot at the same time. `silent` hears of a machine
/// that does not answer.
pub(super) async fn wait(
    access: &Access,
    site: &Site,
    named: &[String],
    limit: Duration,
    events: &dyn Sink<Event>,
    silent: impl AsyncFn(&Machine),
) -> Result<()> {
    let deadline = Instant::now() + limit;
    let machines = site.machines().filter(|(own, _)| named.is_empty() || named.contains(&own.name));
    for (machine, endpoint) in machines {
        let (name, address) = (machine.name.clone(), machine.address());
        events.emit(Event::Step(Step::Machine { name, address }));
        let client = own_client(access, endpoint)?;
        let mut patience = ASK_FIRST;
        loop {
            let last = match timeout(patience, ask(access, &client)).await {
                Ok(State::Ready) => break,
                Ok(State::Waiting(text)) => text,
                Err(_) => String::from("no answer in time"),
            };
            if Instant::now() > deadline {
                return Err(Problem::MachineNotReady {
                    machine: machine.name.clone(),
                    address: machine.address(),
                    after: limit,
                    reason: last,
                }
                .into());
            }
            events.emit(Event::Waiting(last));
            if patience == ASK_TIMEOUT {
                silent(machine).await;
            }
            patience = ASK_TIMEOUT.min(patience * 3 / 2);
            client.reset().await;
            sleep(PAUSE).await;
        }
    }
    events.emit(Event::Done);
    Ok(())
}

/// Whether a machine is where it should be.
pub(super) enum State {
    /// It is.
    Ready,
    /// What it waits for.
    Waiting(String),
}

/// A machine is asked at its own endpoint: control planes answer for themselves, workers too.
pub(super) fn own_client(access: &Access, endpoint: String) -> Result<Client> {
    match access {
        Access::Configured(config) => client(config, vec![endpoint]),
        Access::Maintenance => insecure(&[endpoint], &[]).doing("client"),
    }
}

/// Asks a machine for its stage and what keeps it from the next one.
pub(super) async fn ask(access: &Access, client: &Client) -> State {
    if let Err(error) = client.connect().await {
        return State::Waiting(error.to_string());
    }
    let resource = match client.get(&query("runtime", "MachineStatuses.runtime.talos.dev", "machine")).await {
        Ok(resource) => resource,
        Err(status) => return State::Waiting(status_text(&status)),
    };
    let spec = ichor_health::spec::parse(yaml_of(&resource));
    let stage = spec["stage"].as_str().unwrap_or("unknown");
    match access {
        Access::Maintenance if stage == "maintenance" => State::Ready,
        Access::Configured(_) if stage == "running" && spec["status"]["ready"] == true => State::Ready,
        Access::Configured(_) | Access::Maintenance => State::Waiting(waits(stage, &spec)),
    }
}

/// The stage of a machine and its conditions that are not met, with their reasons.
fn waits(stage: &str, spec: &Value) -> String {
    let unmet = spec["status"]["unmetConditions"].as_array().into_iter().flatten();
    let text = |condition: &Value| match (condition["name"].as_str(), condition["reason"].as_str()) {
        (Some(name), Some(reason)) if !reason.is_empty() => Some(format!("{name}: {reason}")),
        (name, _) => name.map(str::to_owned),
    };
    let unmet: Vec<String> = unmet.filter_map(text).collect();
    match unmet.is_empty() {
        true => stage.to_owned(),
        false => format!("{stage}, waits for {}", unmet.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_machine_that_waits_names_its_stage_and_each_condition_with_its_reason() {
        let spec = json!({"status": {"unmetConditions": [
            {"name": "services", "reason": "etcd not healthy"},
            {"name": "nodeReady", "reason": ""},
        ]}});
        assert_eq!(waits("booting", &spec), "booting, waits for services: etcd not healthy; nodeReady");
        assert_eq!(waits("booting", &json!({})), "booting");
    }
}
