//! Follows an action of a machine (reboot, shutdown, reset) to its end by the machine's events.

use std::future::Future;
use std::time::Duration;

use ichor_wire::machine::{Event, EventsRequest, ReadRequest};
use tonic::{Code, Status, Streaming};

use crate::client::Client;
use crate::events::{Payload, is_ready, is_running_and_ready, payload, unmet};
use crate::reply::{sort, status_text};

/// The task that ends every service; after it a machine is on its way down.
const STOP_TASK: &str = "stopAllServices";
/// The sequence after which the machine comes back.
const REBOOT_SEQUENCE: &str = "reboot";
/// Pause before the machine is asked again.
const RETRY_PAUSE: Duration = Duration::from_millis(300);
/// How long the first attempt to reach the machine may take: a machine that is on its way up swallows
/// connections, and it is up again before such an attempt would end by itself.
const ATTEMPT_FIRST: Duration = Duration::from_millis(700);
/// How long later attempts may take, each twice as long as the one before.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a machine that was told to stop must be unreachable to be taken as stopped.
const GONE_AFTER: Duration = Duration::from_secs(15);
/// The file whose content changes with every boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Which event ends the following.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// The machine runs and is ready.
    RunningAndReady,
    /// All services are being stopped.
    ServicesStopping,
}

/// What is checked once the expected event was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PostCheck {
    /// Nothing.
    None,
    /// The machine has booted again.
    Rebooted,
    /// The machine has booted again, or waits for a configuration.
    RebootedOrMaintenance,
}

/// How to follow an action.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The event to wait for.
    pub expect: Expect,
    /// The check after it.
    pub post: PostCheck,
    /// The limit for everything together.
    pub timeout: Duration,
}

/// Why an action was not seen to its end.
#[derive(Debug, thiserror::Error)]
pub enum TrackError {
    /// The machine refused a call.
    #[error("{}", status_text(.0))]
    Call(Status),
    /// The machine reported that the sequence failed.
    #[error("sequence error: {0}")]
    Sequence(String),
    /// It took too long.
    #[error("not finished within {}s; last seen: {last}", .limit.as_secs())]
    Timeout {
        /// The limit.
        limit: Duration,
        /// The last thing the machine said.
        last: String,
    },
}

/// What an event means for the one who follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Not ours, or nothing to say.
    Ignore,
    /// Show this and go on.
    Show(String),
    /// Show this; the stream will not survive, open it again.
    Reconnect(String),
    /// This is what was waited for.
    Met,
    /// The sequence failed.
    Failed(String),
}

/// Decides what an event means. `actor` filters events until the stream was lost once.
pub fn step(expect: Expect, actor: Option<&str>, event: &Event) -> Step {
    if actor.is_some_and(|actor| event.actor_id != actor) {
        return Step::Ignore;
    }
    match payload(event) {
        Payload::MachineStatus(status) => {
            if expect == Expect::RunningAndReady && is_running_and_ready(&status) {
                return Step::Met;
            }
            let stage = status.stage().as_str_name();
            Step::Show(format!("stage: {stage} ready: {} unmetCond: {}", is_ready(&status), unmet(&status)))
        }
        Payload::Task(task) => {
            let stops = task.task == STOP_TASK;
            if stops && expect == Expect::ServicesStopping {
                return Step::Met;
            }
            let text = format!("task: {} action: {}", task.task, task.action().as_str_name());
            if stops && actor.is_some() { Step::Reconnect(text) } else { Step::Show(text) }
        }
        Payload::Sequence(sequence) => {
            if let Some(error) = &sequence.error {
                return Step::Failed(error.message.clone());
            }
            let text = format!("sequence: {} action: {}", sequence.sequence, sequence.action().as_str_name());
            let leaves =
                sequence.sequence == REBOOT_SEQUENCE && actor.is_some() && expect != Expect::ServicesStopping;
            if leaves { Step::Reconnect(text) } else { Step::Show(text) }
        }
        Payload::Phase(phase) => {
            Step::Show(format!("phase: {} action: {}", phase.phase, phase.action().as_str_name()))
        }
        Payload::ServiceState(service) => {
            let healthy = service.health.as_ref().is_some_and(|health| health.healthy);
            Step::Show(format!(
                "service: {} message: {} healthy: {healthy}",
                service.service, service.message
            ))
        }
        Payload::ConfigLoadError(error) => Step::Failed(error.error),
        Payload::ConfigValidationError(error) => Step::Failed(error.error),
        Payload::Hello | Payload::Address(_) | Payload::Restart(_) | Payload::Unknown => Step::Ignore,
    }
}

/// Starts `action` on the client's machine and follows it; `report` hears every change.
///
/// `client` must be for one machine. `action` returns the actor id of the reply.
pub async fn follow<A, F>(
    client: &Client,
    plan: Plan,
    action: A,
    report: impl FnMut(&str),
) -> Result<(), TrackError>
where
    A: FnOnce(Client) -> F,
    F: Future<Output = Result<String, Status>>,
{
    let mut follower = Follower { client, plan, report, last: String::new() };
    match tokio::time::timeout(plan.timeout, follower.run(action)).await {
        Ok(result) => result,
        Err(_) => Err(TrackError::Timeout { limit: plan.timeout, last: follower.last }),
    }
}

struct Follower<'a, R> {
    client: &'a Client,
    plan: Plan,
    report: R,
    last: String,
}

impl<R: FnMut(&str)> Follower<'_, R> {
    fn say(&mut self, text: impl Into<String>) {
        let text = text.into();
        if text != self.last {
            (self.report)(&text);
            self.last = text;
        }
    }

    async fn run<A, F>(&mut self, action: A) -> Result<(), TrackError>
    where
        A: FnOnce(Client) -> F,
        F: Future<Output = Result<String, Status>>,
    {
        self.say("waiting for actor ID");
        let stream = open(self.client, 0).await.map_err(TrackError::Call)?;
        let boot_before = match self.plan.post {
            PostCheck::None => None,
            PostCheck::Rebooted | PostCheck::RebootedOrMaintenance => match boot_id(self.client).await {
                Ok(id) => Some(id),
                Err(status) if status.code() == Code::PermissionDenied => None,
                Err(status) => return Err(TrackError::Call(status)),
            },
        };
        let actor = action(self.client.clone()).await.map_err(TrackError::Call)?;
        self.say(format!("actor ID: {actor}"));
        self.events(stream, actor).await?;
        self.say("events check condition met");
        if let Some(before) = boot_before {
            self.post_check(&before).await;
            self.say("post check passed");
        }
        Ok(())
    }

    async fn events(&mut self, mut stream: Streaming<Event>, actor: String) -> Result<(), TrackError> {
        let mut actor = Some(actor);
        loop {
            match self.until_lost(&mut stream, actor.as_deref()).await? {
                Seen::Met => return Ok(()),
                Seen::Lost => {}
            }
            // A stream that stays open is one the machine waits for before it goes down.
            drop(stream);
            actor = None;
            self.client.reset().await;
            match self.reopen().await {
                Some(opened) => stream = opened,
                None => {
                    self.say("the machine is gone, taken as stopped");
                    return Ok(());
                }
            }
        }
    }

    async fn until_lost(
        &mut self,
        stream: &mut Streaming<Event>,
        actor: Option<&str>,
    ) -> Result<Seen, TrackError> {
        loop {
            let Ok(Some(event)) = stream.message().await else { return Ok(Seen::Lost) };
            let Ok((_, event)) = sort(event, "") else { return Ok(Seen::Lost) };
            match step(self.plan.expect, actor, &event) {
                Step::Ignore => {}
                Step::Show(text) => self.say(text),
                Step::Met => return Ok(Seen::Met),
                Step::Failed(text) => return Err(TrackError::Sequence(text)),
                Step::Reconnect(text) => {
                    self.say(text);
                    return Ok(Seen::Lost);
                }
            }
        }
    }

    /// Opens the stream again with full history. Nothing when a machine told to stop stays away.
    async fn reopen(&mut self) -> Option<Streaming<Event>> {
        let lost = tokio::time::Instant::now();
        let mut limit = ATTEMPT_FIRST;
        loop {
            tokio::time::sleep(RETRY_PAUSE).await;
            if let Ok(Ok(stream)) = tokio::time::timeout(limit, open(self.client, -1)).await {
                return Some(stream);
            }
            limit = ATTEMPT_TIMEOUT.min(limit * 2);
            self.say("unavailable, retrying...");
            if self.plan.expect == Expect::ServicesStopping && lost.elapsed() > GONE_AFTER {
                return None;
            }
            self.client.reset().await;
        }
    }

    /// Waits until the machine has booted again; the caller's limit ends it.
    async fn post_check(&mut self, before: &str) {
        let mut limit = ATTEMPT_FIRST;
        loop {
            let checked = tokio::time::timeout(limit, boot_id(self.client)).await;
            limit = ATTEMPT_TIMEOUT.min(limit * 2);
            if let Ok(Ok(now)) = checked
                && now != before
            {
                return;
            }
            if self.plan.post == PostCheck::RebootedOrMaintenance && in_maintenance(self.client).await {
                return;
            }
            self.client.reset().await;
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}

enum Seen {
    Met,
    Lost,
}

/// Opens the event stream and waits for its hello, so that nothing after it is missed.
async fn open(client: &Client, tail_events: i32) -> Result<Streaming<Event>, Status> {
    let request = EventsRequest { tail_events, ..EventsRequest::default() };
    let mut stream = client.machine().events(request).await?.into_inner();
    match stream.message().await? {
        Some(_) => Ok(stream),
        None => Err(Status::unavailable("the event stream ended before it began")),
    }
}

async fn boot_id(client: &Client) -> Result<String, Status> {
    let request = ReadRequest { path: BOOT_ID.to_owned() };
    let mut stream = client.machine().read(request).await?.into_inner();
    let mut content = Vec::new();
    while let Some(chunk) = stream.message().await? {
        // The real file has 37 bytes; more is not a boot id.
        if content.len() + chunk.bytes.len() > 1024 {
            break;
        }
        content.extend_from_slice(&chunk.bytes);
    }
    Ok(String::from_utf8_lossy(&content).trim().to_owned())
}

/// True when the machine answers as one that waits for a configuration.
async fn in_maintenance(client: &Client) -> bool {
    let asked =
        tokio::time::timeout(ATTEMPT_TIMEOUT, client.to(crate::Target::Endpoint).storage().disks(())).await;
    let refused =
        tokio::time::timeout(ATTEMPT_TIMEOUT, client.to(crate::Target::Endpoint).machine().version(())).await;
    matches!(asked, Ok(Ok(_))) && matches!(refused, Ok(Err(status)) if status.code() == Code::Unimplemented)
}

#[cfg(test)]
mod tests {
    use ichor_wire::common;
    use ichor_wire::machine::machine_status_event::{MachineStage, MachineStatus};
    use ichor_wire::machine::{MachineStatusEvent, SequenceEvent, TaskEvent};
    use prost::Message;

    use super::*;

    fn event<M: Message>(name: &str, actor: &str, message: &M) -> Event {
        let data = prost_types::Any {
            type_url: format!("talos/runtime/machine.{name}"),
            value: message.encode_to_vec(),
        };
        Event { data: Some(data), actor_id: actor.into(), ..Event::default() }
    }

    fn status(stage: MachineStage, ready: bool) -> MachineStatusEvent {
        let status = MachineStatus { ready, unmet_conditions: Vec::new() };
        MachineStatusEvent { stage: stage.into(), status: Some(status) }
    }

    #[test]
    fn a_machine_that_runs_but_is_not_ready_is_waited_for() {
        let running = event("MachineStatusEvent", "", &status(MachineStage::Running, false));
        assert_eq!(
            step(Expect::RunningAndReady, None, &running),
            Step::Show("stage: RUNNING ready: false unmetCond: []".into())
        );
        let ready = event("MachineStatusEvent", "", &status(MachineStage::Running, true));
        assert_eq!(step(Expect::RunningAndReady, None, &ready), Step::Met);
    }

    #[test]
    fn events_of_other_actors_are_ignored_until_the_stream_was_lost() {
        let ready = event("MachineStatusEvent", "x", &status(MachineStage::Running, true));
        assert_eq!(step(Expect::RunningAndReady, Some("me"), &ready), Step::Ignore);
        assert_eq!(step(Expect::RunningAndReady, None, &ready), Step::Met);
    }

    #[test]
    fn stopping_services_ends_a_shutdown_and_reconnects_a_reboot() {
        let stop = event("TaskEvent", "me", &TaskEvent { task: STOP_TASK.into(), action: 0 });
        assert_eq!(step(Expect::ServicesStopping, Some("me"), &stop), Step::Met);
        assert_eq!(
            step(Expect::RunningAndReady, Some("me"), &stop),
            Step::Reconnect("task: stopAllServices action: START".into())
        );
    }

    #[test]
    fn a_failed_sequence_ends_with_its_message() {
        let error = common::Error { code: 1, message: "locked".into(), details: Vec::new() };
        let failed = SequenceEvent { sequence: "reboot".into(), action: 0, error: Some(error) };
        let step = step(Expect::RunningAndReady, Some("me"), &event("SequenceEvent", "me", &failed));
        assert_eq!(step, Step::Failed("locked".into()));
    }
}
