//! Waits until the machines of a local cluster answer and are ready.

use std::time::Duration;

use ichor_client::profile::{Overrides, Profile};
use ichor_client::resources::{Query, yaml_of};
use ichor_client::{Client, profile};
use ichor_config::talosconfig::ClientConfig;
use ichor_provision::{Cluster, Machine, MachineKind};
use tokio::time::{Instant, sleep, timeout};

use crate::failure::{Failure, chain};
use crate::output::json::from_yaml_text;
use crate::term::Progress;

/// Between two questions; a machine boots in a tenth of a second.
const PAUSE: Duration = Duration::from_millis(20);
/// The first question: a machine without a network yet swallows it, and has one before an answer could come.
const ASK_FIRST: Duration = Duration::from_millis(200);
/// Later questions, each half as long again as the one before.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// How the machines are reached.
pub enum Access {
    /// Through this configuration, which has the cluster as its current context.
    Configured(ClientConfig),
    /// The machines wait for their configuration.
    Maintenance,
}

impl Access {
    /// The context of the cluster, found by its endpoints; without one the machines can only be asked
    /// whether they wait for a configuration.
    pub fn find(config: &ClientConfig, cluster: &Cluster) -> Self {
        let ours: Vec<String> = cluster.machines.iter().map(|machine| machine.loopback.to_string()).collect();
        let found = config.contexts.iter().find(|(_, context)| {
            !context.endpoints.is_empty() && context.endpoints.iter().all(|endpoint| ours.contains(endpoint))
        });
        match found {
            Some((name, _)) => Self::Configured(ClientConfig { context: name.clone(), ..config.clone() }),
            None => Self::Maintenance,
        }
    }
}

/// Waits for every machine in turn; they all boot at the same time. `silent` hears of a machine that does
/// not answer.
pub async fn wait(
    access: &Access,
    machines: &[Machine],
    limit: Duration,
    progress: &mut Progress,
    mut silent: impl FnMut(&Machine),
) -> Result<(), Failure> {
    let deadline = Instant::now() + limit;
    for machine in machines {
        progress.step(format!("waiting for {} ({})", machine.name, machine.address));
        let client = client(access, machine)?;
        let mut patience = ASK_FIRST;
        loop {
            let last = match timeout(patience, ask(access, &client, machine)).await {
                Ok(State::Ready) => break,
                Ok(State::Waiting(text)) => text,
                Err(_) => String::from("no answer in time"),
            };
            if Instant::now() > deadline {
                progress.failed();
                return Err(Failure::new(format!(
                    "{} ({}) was not ready within {}s: {last}",
                    machine.name,
                    machine.address,
                    limit.as_secs()
                ))
                .hint("the machine goes on; look at it with `ichorctl cluster show` and `ichorctl dmesg`"));
            }
            progress.tick(&last);
            if patience == ASK_TIMEOUT {
                silent(machine);
            }
            patience = ASK_TIMEOUT.min(patience * 3 / 2);
            client.reset().await;
            sleep(PAUSE).await;
        }
    }
    progress.done();
    Ok(())
}

enum State {
    Ready,
    Waiting(String),
}

/// A machine is asked at its own endpoint: control planes answer for themselves, workers too.
fn client(access: &Access, machine: &Machine) -> Result<Client, Failure> {
    let failed = |error: &dyn std::error::Error| Failure::new(chain(error));
    match access {
        Access::Configured(config) => {
            let overrides =
                Overrides { endpoints: vec![machine.loopback.to_string()], ..Overrides::default() };
            let profile = Profile::resolve(config, &overrides).map_err(|error| failed(&error))?;
            profile.client().map_err(|error| failed(&error))
        }
        Access::Maintenance => {
            profile::insecure(&[machine.loopback.to_string()], &[]).map_err(|error| failed(&error))
        }
    }
}

async fn ask(access: &Access, client: &Client, machine: &Machine) -> State {
    if let Err(error) = client.connect().await {
        return State::Waiting(error.to_string());
    }
    let query = Query {
        namespace: "runtime".to_owned(),
        resource_type: "MachineStatuses.runtime.talos.dev".to_owned(),
        id: Some("machine".to_owned()),
    };
    let resource = match client.get(&query).await {
        Ok(resource) => resource,
        Err(status) => return State::Waiting(ichor_client::status_text(&status)),
    };
    let spec = from_yaml_text(yaml_of(&resource)).unwrap_or_default();
    let stage = spec["stage"].as_str().unwrap_or("unknown").to_owned();
    match access {
        Access::Maintenance if stage == "maintenance" => State::Ready,
        Access::Configured(_) if stage == "running" && spec["status"]["ready"] == true => State::Ready,
        Access::Configured(_) | Access::Maintenance => {
            let unmet = spec["status"]["unmetConditions"].as_array().cloned().unwrap_or_default();
            let names: Vec<&str> = unmet.iter().filter_map(|condition| condition["name"].as_str()).collect();
            let kind = if machine.kind == MachineKind::Worker { "worker" } else { "control plane" };
            State::Waiting(format!("{kind} is {stage}, waits for [{}]", names.join(" ")))
        }
    }
}
