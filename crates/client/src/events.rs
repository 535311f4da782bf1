//! Events of a machine: what happened, and to whom it belongs.

use ichor_wire::machine::{
    AddressEvent, ConfigLoadErrorEvent, ConfigValidationErrorEvent, Event, MachineStatusEvent, PhaseEvent,
    RestartEvent, SequenceEvent, ServiceStateEvent, TaskEvent, machine_status_event::MachineStage,
};
use prost::Message;

/// What every type URL of an event starts with.
pub const TYPE_PREFIX: &str = "talos/runtime/";

/// What an event carries.
#[derive(Debug, Clone, PartialEq)]
pub enum Payload {
    /// The first message of every stream: the stream is set up.
    Hello,
    /// A sequence starts, stops or fails.
    Sequence(SequenceEvent),
    /// A phase of a sequence starts or stops.
    Phase(PhaseEvent),
    /// A task of a phase starts or stops.
    Task(TaskEvent),
    /// A service changes.
    ServiceState(ServiceStateEvent),
    /// A configuration could not be read.
    ConfigLoadError(ConfigLoadErrorEvent),
    /// A configuration is not valid.
    ConfigValidationError(ConfigValidationErrorEvent),
    /// The machine's name and addresses.
    Address(AddressEvent),
    /// The machine's stage and what it still waits for.
    MachineStatus(MachineStatusEvent),
    /// The machine restarts.
    Restart(RestartEvent),
    /// Of a type this client has no words for.
    Unknown,
}

/// Reads the payload of an event. One that does not decode is unknown.
pub fn payload(event: &Event) -> Payload {
    let Some(data) = &event.data else { return Payload::Hello };
    if data.type_url.is_empty() {
        return Payload::Hello;
    }
    decode(data.type_url.strip_prefix(TYPE_PREFIX).unwrap_or_default(), &data.value)
        .unwrap_or(Payload::Unknown)
}

fn decode(name: &str, value: &[u8]) -> Option<Payload> {
    Some(match name {
        "machine.SequenceEvent" => Payload::Sequence(SequenceEvent::decode(value).ok()?),
        "machine.PhaseEvent" => Payload::Phase(PhaseEvent::decode(value).ok()?),
        "machine.TaskEvent" => Payload::Task(TaskEvent::decode(value).ok()?),
        "machine.ServiceStateEvent" => Payload::ServiceState(ServiceStateEvent::decode(value).ok()?),
        "machine.ConfigLoadErrorEvent" => Payload::ConfigLoadError(ConfigLoadErrorEvent::decode(value).ok()?),
        "machine.ConfigValidationErrorEvent" => {
            Payload::ConfigValidationError(ConfigValidationErrorEvent::decode(value).ok()?)
        }
        "machine.AddressEvent" => Payload::Address(AddressEvent::decode(value).ok()?),
        "machine.MachineStatusEvent" => Payload::MachineStatus(MachineStatusEvent::decode(value).ok()?),
        "machine.RestartEvent" => Payload::Restart(RestartEvent::decode(value).ok()?),
        _ => return None,
    })
}

impl Payload {
    /// Where the event comes from and what it says, for a table.
    pub fn describe(&self) -> Option<(String, String)> {
        Some(match self {
            Payload::Hello | Payload::Unknown => return None,
            Payload::Sequence(event) => {
                let text = match &event.error {
                    Some(error) => format!("error: {}", error.message),
                    None => event.action().as_str_name().to_owned(),
                };
                (event.sequence.clone(), text)
            }
            Payload::Phase(event) => (event.phase.clone(), event.action().as_str_name().to_owned()),
            Payload::Task(event) => (event.task.clone(), event.action().as_str_name().to_owned()),
            Payload::ServiceState(event) => {
                (event.service.clone(), format!("{}: {}", event.action().as_str_name(), event.message))
            }
            Payload::ConfigLoadError(event) => ("error".to_owned(), event.error.clone()),
            Payload::ConfigValidationError(event) => ("error".to_owned(), event.error.clone()),
            Payload::Address(event) => {
                (event.hostname.clone(), format!("ADDRESSES: {}", event.addresses.join(",")))
            }
            Payload::MachineStatus(event) => (
                event.stage().as_str_name().to_owned(),
                format!("ready: {}, unmet conditions: {}", is_ready(event), unmet(event)),
            ),
            Payload::Restart(event) => (String::new(), format!("cmd: {}", event.cmd)),
        })
    }
}

/// True when the machine says that it is ready.
pub fn is_ready(event: &MachineStatusEvent) -> bool {
    event.status.as_ref().is_some_and(|status| status.ready)
}

/// True when the machine runs and is ready.
pub fn is_running_and_ready(event: &MachineStatusEvent) -> bool {
    event.stage() == MachineStage::Running && is_ready(event)
}

/// What the machine still waits for, by name.
pub fn unmet(event: &MachineStatusEvent) -> String {
    let conditions = event.status.iter().flat_map(|status| &status.unmet_conditions);
    let names: Vec<&str> = conditions.map(|condition| condition.name.as_str()).collect();
    format!("[{}]", names.join(" "))
}
