//! One service's state, its history and its health. Pure.

use std::collections::VecDeque;

use jiff::Timestamp;

use ichor_wire::machine;
use ichor_wire::machine::service_state_event::Action;

/// Events kept per service.
pub const EVENTS_MAX: usize = 64;

/// Where a service is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServiceState {
    /// Known, not started.
    #[default]
    Initialized,
    /// Pre-step and runner are being made.
    Preparing,
    /// Waits for its conditions, or for the next attempt.
    Waiting,
    /// Runs.
    Running,
    /// Was told to stop.
    Stopping,
    /// Ended well.
    Finished,
    /// Ended badly.
    Failed,
    /// Has nothing to run.
    Skipped,
    /// Was told to start.
    Starting,
}

impl ServiceState {
    /// The text clients show.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Initialized => "Initialized",
            Self::Preparing => "Preparing",
            Self::Waiting => "Waiting",
            Self::Running => "Running",
            Self::Stopping => "Stopping",
            Self::Finished => "Finished",
            Self::Failed => "Failed",
            Self::Skipped => "Skipped",
            Self::Starting => "Starting",
        }
    }

    fn action(self) -> Action {
        match self {
            Self::Initialized => Action::Initialized,
            Self::Preparing => Action::Preparing,
            Self::Waiting => Action::Waiting,
            Self::Running => Action::Running,
            Self::Stopping => Action::Stopping,
            Self::Finished => Action::Finished,
            Self::Failed => Action::Failed,
            Self::Skipped => Action::Skipped,
            Self::Starting => Action::Starting,
        }
    }
}

/// What is known of a service's health.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HealthState {
    /// Unknown before the first check.
    pub healthy: Option<bool>,
    /// What the last check said.
    pub message: String,
    /// When `healthy` last changed.
    pub changed: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    state: ServiceState,
    message: String,
    at: Timestamp,
}

/// State, history and health of one service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    id: String,
    state: ServiceState,
    message: String,
    events: VecDeque<Entry>,
    health: HealthState,
    has_check: bool,
}

impl Record {
    /// A service that is known and nothing more.
    pub fn new(id: &str, has_check: bool) -> Self {
        Self {
            id: id.to_owned(),
            state: ServiceState::Initialized,
            message: String::new(),
            events: VecDeque::new(),
            health: HealthState::default(),
            has_check,
        }
    }

    /// The service's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Where it is in its life.
    pub fn state(&self) -> ServiceState {
        self.state
    }

    /// The message of the last change.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Its health.
    pub fn health(&self) -> &HealthState {
        &self.health
    }

    /// Up: others may depend on it.
    pub fn is_up(&self) -> bool {
        match self.state {
            ServiceState::Skipped | ServiceState::Finished => true,
            ServiceState::Running => !self.has_check || self.health.healthy == Some(true),
            ServiceState::Initialized
            | ServiceState::Preparing
            | ServiceState::Waiting
            | ServiceState::Stopping
            | ServiceState::Failed
            | ServiceState::Starting => false,
        }
    }

    /// Down: nothing of it runs and nothing will by itself.
    pub fn is_down(&self) -> bool {
        matches!(self.state, ServiceState::Failed | ServiceState::Finished | ServiceState::Skipped)
    }

    /// Moves to a state. Returns the event to publish, or nothing when neither state nor message
    /// changed.
    pub fn update(
        &mut self,
        state: ServiceState,
        message: String,
        now: Timestamp,
    ) -> Option<machine::ServiceStateEvent> {
        if self.state == state && self.message == message && !self.events.is_empty() {
            return None;
        }
        let was_running = self.state == ServiceState::Running;
        self.state = state;
        self.message.clone_from(&message);
        if was_running
            && state != ServiceState::Running
            && self.health.healthy != Some(false)
            && self.has_check
        {
            self.set_health(Some(false), "service not running".to_owned(), now);
        }
        if state == ServiceState::Starting {
            self.set_health(None, String::new(), now);
        }
        self.push(state, message, now);
        Some(self.event())
    }

    /// Notes the result of a health check. Returns the event to publish on the first result and on
    /// every flip.
    pub fn check(
        &mut self,
        result: Result<(), String>,
        now: Timestamp,
    ) -> Option<machine::ServiceStateEvent> {
        if self.state != ServiceState::Running {
            return None;
        }
        let healthy = result.is_ok();
        let flipped = self.health.healthy != Some(healthy);
        let text = result.err().unwrap_or_default();
        if !flipped {
            self.health.message = text;
            return None;
        }
        let message = if healthy {
            "Health check successful".to_owned()
        } else {
            format!("Health check failed: {text}")
        };
        self.set_health(Some(healthy), text, now);
        self.message.clone_from(&message);
        self.push(self.state, message, now);
        Some(self.event())
    }

    /// The wire form for service lists.
    pub fn info(&self) -> machine::ServiceInfo {
        let events = self
            .events
            .iter()
            .map(|entry| machine::ServiceEvent {
                msg: entry.message.clone(),
                state: entry.state.as_str().to_owned(),
                ts: Some(timestamp(entry.at)),
            })
            .collect();
        machine::ServiceInfo {
            id: self.id.clone(),
            state: self.state.as_str().to_owned(),
            events: Some(machine::ServiceEvents { events }),
            health: Some(self.wire_health()),
        }
    }

    fn set_health(&mut self, healthy: Option<bool>, message: String, now: Timestamp) {
        if self.health.healthy != healthy {
            self.health.changed = Some(now);
        }
        self.health.healthy = healthy;
        self.health.message = message;
    }

    fn push(&mut self, state: ServiceState, message: String, at: Timestamp) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(Entry { state, message, at });
    }

    fn event(&self) -> machine::ServiceStateEvent {
        machine::ServiceStateEvent {
            service: self.id.clone(),
            action: self.state.action().into(),
            message: self.message.clone(),
            health: Some(self.wire_health()),
        }
    }

    fn wire_health(&self) -> machine::ServiceHealth {
        machine::ServiceHealth {
            unknown: self.health.healthy.is_none(),
            healthy: self.health.healthy == Some(true),
            last_message: self.health.message.clone(),
            last_change: self.health.changed.map(timestamp),
        }
    }
}

/// The protobuf form of a time.
pub fn timestamp(at: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: at.as_second(), nanos: at.subsec_nanosecond() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn running(has_check: bool) -> Record {
        let mut record = Record::new("apid", has_check);
        record.update(ServiceState::Starting, "Starting service".into(), at(1));
        record.update(ServiceState::Running, "Process started".into(), at(2));
        record
    }

    #[test]
    fn without_a_check_running_is_up() {
        assert!(running(false).is_up());
        assert!(!running(true).is_up());
    }

    #[test]
    fn the_first_result_and_every_flip_are_events() {
        let mut record = running(true);
        let event = record.check(Ok(()), at(3)).unwrap();
        assert_eq!(event.message, "Health check successful");
        assert!(record.is_up());
        assert!(record.check(Ok(()), at(4)).is_none());
        let event = record.check(Err("connection refused".into()), at(5)).unwrap();
        assert_eq!(event.message, "Health check failed: connection refused");
        assert!(!record.is_up());
        assert_eq!(record.health().changed, Some(at(5)));
    }

    #[test]
    fn a_service_that_stops_running_is_not_healthy() {
        let mut record = running(true);
        record.check(Ok(()), at(3));
        record.update(ServiceState::Stopping, "Sending SIGTERM".into(), at(4));
        assert_eq!(record.health().healthy, Some(false));
        assert_eq!(record.health().message, "service not running");
        assert!(record.check(Ok(()), at(5)).is_none(), "a late result changes nothing");
    }

    #[test]
    fn the_history_is_bounded_and_skips_repeats() {
        let mut record = running(false);
        assert!(record.update(ServiceState::Running, "Process started".into(), at(9)).is_none());
        for n in 0..200 {
            record.update(ServiceState::Waiting, n.to_string(), at(n));
        }
        let events = record.info().events.unwrap().events;
        assert_eq!(events.len(), EVENTS_MAX);
        assert_eq!(events.last().unwrap().msg, "199");
    }

    #[test]
    fn down_is_failed_finished_or_skipped() {
        let mut record = running(false);
        for (state, down) in [
            (ServiceState::Failed, true),
            (ServiceState::Finished, true),
            (ServiceState::Skipped, true),
            (ServiceState::Waiting, false),
            (ServiceState::Stopping, false),
        ] {
            record.update(state, String::new(), at(1));
            assert_eq!(record.is_down(), down, "{state:?}");
        }
    }
}
