//! Changes the configuration of a running machine, and waits for what follows from it.

use std::time::Duration;

use ichor_client::Client;
use ichor_client::resources::{Query, Watch, proto_of, yaml_of};
use ichor_config::v1alpha1::Config;
use ichor_config::{CommentMode, Documents};
use ichor_health::Resource;
use ichor_wire::cosi::resource::EventType;
use ichor_wire::machine::{ApplyConfigurationRequest, apply_configuration_request};
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Status};

use crate::error::{Doing as _, Error, Result};

/// How long a machine that does not answer is asked again.
const RETRY_MAX: Duration = Duration::from_secs(10);
/// How long a service that is not well is waited for.
const WELL_MAX: Duration = Duration::from_secs(60);
/// Between two attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// One resource, to read or watch.
pub(crate) fn query(namespace: &str, resource_type: &str, id: &str) -> Query {
    Query {
        namespace: namespace.to_owned(),
        resource_type: resource_type.to_owned(),
        id: Some(id.to_owned()),
    }
}

/// Changes the configuration of the machine that `client` is for; false when `edit` had nothing to change.
/// No reboot is made: what cannot be changed without one is refused by the machine.
pub(crate) async fn change(
    client: &Client,
    comments: CommentMode,
    edit: impl Fn(&mut Config) -> bool,
) -> Result<bool> {
    let end = Instant::now() + RETRY_MAX;
    loop {
        match try_change(client, comments, &edit).await {
            Ok(changed) => return Ok(changed),
            Err(Problem::Here(error)) => return Err(error),
            Err(Problem::There(status)) => {
                let again = matches!(status.code(), Code::Unavailable | Code::Cancelled);
                if !again || Instant::now() > end {
                    return Err(Error::call("error patching node config", status));
                }
                sleep(RETRY_PAUSE).await;
            }
        }
    }
}

enum Problem {
    Here(Error),
    There(Status),
}

async fn try_change(
    client: &Client,
    comments: CommentMode,
    edit: &impl Fn(&mut Config) -> bool,
) -> std::result::Result<bool, Problem> {
    let active = query("config", "MachineConfigs.config.talos.dev", "v1alpha1");
    let resource = client.get(&active).await.map_err(Problem::There)?;
    let text = text_of(&resource).map_err(Problem::Here)?;
    let edited = edited(&text, comments, edit).map_err(Problem::Here)?;
    let Some(data) = edited else { return Ok(false) };
    let request = ApplyConfigurationRequest {
        data: data.into(),
        mode: apply_configuration_request::Mode::NoReboot.into(),
        ..ApplyConfigurationRequest::default()
    };
    client.machine().apply_configuration(request).await.map_err(Problem::There)?;
    Ok(true)
}

/// The text after the edit; nothing when it changed nothing.
fn edited(text: &str, comments: CommentMode, edit: &impl Fn(&mut Config) -> bool) -> Result<Option<String>> {
    let mut documents = Documents::load(text.as_bytes()).doing("read the configuration of the machine")?;
    let root =
        documents.root_mut().ok_or_else(|| Error::state("the machine has no configuration to change"))?;
    Ok(edit(root).then(|| documents.encode(comments)))
}

/// The machine configuration in a `MachineConfig` resource.
pub fn text_of(resource: &ichor_wire::cosi::resource::Resource) -> Result<String> {
    // The protobuf form has one field, the text; the YAML form has it as one string.
    if let Some(text) = proto_text(proto_of(resource)) {
        return Ok(text);
    }
    let yaml = yaml_of(resource);
    let documents = ichor_yaml::parse(yaml).doing("read the configuration")?;
    let text = documents.first().and_then(|document| document.root.as_str());
    Ok(text.unwrap_or(yaml).to_owned())
}

fn proto_text(bytes: &[u8]) -> Option<String> {
    /// `resource.config.MachineConfigSpec`.
    #[derive(prost::Message)]
    struct Spec {
        #[prost(bytes = "vec", tag = "1")]
        yaml_marshalled: Vec<u8>,
    }
    let spec = <Spec as prost::Message>::decode(bytes).ok()?;
    if spec.yaml_marshalled.is_empty() {
        return None;
    }
    String::from_utf8(spec.yaml_marshalled).ok()
}

/// A service of a machine, watched.
pub(crate) struct ServiceWatch {
    watch: Watch,
    id: &'static str,
}

impl ServiceWatch {
    /// Begins to watch a service, which must be well or become so.
    pub(crate) async fn begin(client: &Client, id: &'static str) -> Result<Self> {
        let watched = query("runtime", "Services.v1alpha1.talos.dev", id);
        let watch = client.watch(&watched).await;
        let mut watch = watch.map_err(|status| Error::call("error watching service", status))?;
        // It may still be on its way back from what was done to it last.
        let well = timeout(WELL_MAX, async {
            loop {
                let (event, service) = next(&mut watch).await?;
                if event != EventType::Destroyed && is_well(&service) {
                    return Ok::<_, Error>(());
                }
            }
        });
        well.await.map_err(|_| Error::state(format!("{id} is not healthy")))??;
        Ok(Self { watch, id })
    }

    /// Waits until the service went away, at most `down`, and came back, at most `up`. True when it did;
    /// false when it never went away.
    pub(crate) async fn restarted(mut self, down: Duration, up: Duration) -> Result<bool> {
        let gone = timeout(down, async {
            loop {
                let (event, spec) = next(&mut self.watch).await?;
                // A restart may be so quick that only the state in between is seen.
                if event == EventType::Destroyed || !is_well(&spec) {
                    return Ok::<_, Error>(());
                }
            }
        });
        match gone.await {
            Ok(result) => result?,
            Err(_) => return Ok(false),
        }
        let back = timeout(up, async {
            loop {
                let (event, spec) = next(&mut self.watch).await?;
                if event != EventType::Destroyed && is_well(&spec) {
                    return Ok(true);
                }
            }
        });
        back.await.unwrap_or_else(|_| {
            Err(Error::state(format!("{} did not come back within {}s", self.id, up.as_secs())))
        })
    }
}

fn is_well(service: &Resource) -> bool {
    service.spec["running"] == true && service.spec["healthy"] == true
}

/// The next change of a watched resource.
pub(crate) async fn next(watch: &mut Watch) -> Result<(EventType, Resource)> {
    match watch.next().await {
        Ok(Some(event)) => {
            let resource = event.resource.as_ref().map(Resource::of);
            let empty =
                || Resource { id: String::new(), version: String::new(), spec: serde_json::Value::Null };
            Ok((event.event_type(), resource.unwrap_or_else(empty)))
        }
        Ok(None) => Err(Error::state("the machine ended the watch")),
        Err(status) => Err(Error::call("the watch broke", status)),
    }
}
