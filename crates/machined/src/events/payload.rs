//! What an event can say. Clients that follow an action stop at a type they do not know, so this
//! list is closed.

use prost::Message;
use prost_types::Any;

use ichor_wire::machine;

/// The message inside an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Payload {
    /// A sequence began, ended or failed.
    Sequence(machine::SequenceEvent),
    /// A phase began or ended.
    Phase(machine::PhaseEvent),
    /// A task began or ended.
    Task(machine::TaskEvent),
    /// A service changed its state.
    ServiceState(machine::ServiceStateEvent),
    /// The configuration could not be loaded.
    ConfigLoadError(machine::ConfigLoadErrorEvent),
    /// The configuration is not valid.
    ConfigValidationError(machine::ConfigValidationErrorEvent),
    /// Host name or addresses changed.
    Address(machine::AddressEvent),
    /// The stage or readiness of the machine changed.
    MachineStatus(machine::MachineStatusEvent),
    /// The machine is about to restart.
    Restart(machine::RestartEvent),
}

impl Payload {
    /// The wire form: type URL and bytes.
    pub fn encode(&self) -> Any {
        let (name, value) = match self {
            Self::Sequence(event) => ("SequenceEvent", event.encode_to_vec()),
            Self::Phase(event) => ("PhaseEvent", event.encode_to_vec()),
            Self::Task(event) => ("TaskEvent", event.encode_to_vec()),
            Self::ServiceState(event) => ("ServiceStateEvent", event.encode_to_vec()),
            Self::ConfigLoadError(event) => ("ConfigLoadErrorEvent", event.encode_to_vec()),
            Self::ConfigValidationError(event) => ("ConfigValidationErrorEvent", event.encode_to_vec()),
            Self::Address(event) => ("AddressEvent", event.encode_to_vec()),
            Self::MachineStatus(event) => ("MachineStatusEvent", event.encode_to_vec()),
            Self::Restart(event) => ("RestartEvent", event.encode_to_vec()),
        };
        Any { type_url: format!("talos/runtime/machine.{name}"), value }
    }
}

macro_rules! from_wire {
    ($($message:ident => $variant:ident),* $(,)?) => {$(
        impl From<machine::$message> for Payload {
            fn from(event: machine::$message) -> Self {
                Self::$variant(event)
            }
        }
    )*};
}

from_wire! {
    SequenceEvent => Sequence,
    PhaseEvent => Phase,
    TaskEvent => Task,
    ServiceStateEvent => ServiceState,
    ConfigLoadErrorEvent => ConfigLoadError,
    ConfigValidationErrorEvent => ConfigValidationError,
    AddressEvent => Address,
    MachineStatusEvent => MachineStatus,
    RestartEvent => Restart,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_url_names_the_message() {
        let any = Payload::from(machine::RestartEvent { cmd: 0x0123_4567 }).encode();
        assert_eq!(any.type_url, "talos/runtime/machine.RestartEvent");
        assert_eq!(machine::RestartEvent::decode(&any.value[..]).unwrap().cmd, 0x0123_4567);
    }
}
