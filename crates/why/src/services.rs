//! Why a service is not up.

use crate::finding::{Cause, listed, span};
use crate::graph;
use crate::snapshot::{Service, Snapshot};

/// Restarts within this many seconds count as one story.
const RECENT: u64 = 120;
/// So many starts in that time are a crash loop, even if it runs right now.
const LOOP_MIN: usize = 3;
/// A service that runs this long after a crash has got over it.
const CALM: u64 = 30;
/// Services that wait for each other.
const DEPTH_MAX: usize = 8;
/// Log lines told.
const LINES: usize = 3;

/// What is wrong with a service: the symptom and the cause; `None` when it is well.
pub(crate) fn service(snapshot: &Snapshot, service: &Service) -> Option<(String, Cause)> {
    walk(snapshot, service, 0)
}

fn walk(snapshot: &Snapshot, service: &Service, depth: usize) -> Option<(String, Cause)> {
    let id = &service.id;
    let starts =
        service.events.iter().filter(|event| is_start(&event.message) && event.ago <= RECENT).count();
    let ended = service.events.iter().rev().find(|event| is_end(&event.message));
    if let Some(ended) = ended
        && ((starts >= LOOP_MIN && ended.ago < CALM)
            || (service.state == "Waiting" && is_end(last_message(service))))
    {
        return Some(crashing(service, starts, &ended.message, ended.ago));
    }
    match service.state.as_str() {
        "Failed" => Some((format!("{id} has failed"), failed(service))),
        "Waiting" => Some((waiting_text(service), waiting(snapshot, service, depth))),
        "Running" if service.healthy == Some(false) => {
            Some((format!("{id} runs and is not healthy"), sick(service)))
        }
        "Finished" | "Skipped" | "Running" => None,
        // Known and never started, starting, stopping: a step of a sequence that is under way.
        state => {
            let ago = service.events.last().map_or(0, |event| event.ago);
            let advice = format!("wait a little; `ichorctl service {id}` shows each step");
            let cause = Cause::new("service", format!("service {id}"), advice)
                .step(last_message(service), format!("service {id}: {state} for {}", span(ago)));
            Some((format!("{id} is not up yet ({state})"), cause))
        }
    }
}

fn is_start(message: &str) -> bool {
    message.contains(" started with PID ") || message.starts_with("Service started")
}

fn is_end(message: &str) -> bool {
    message.contains("going to restart")
}

fn last_message(service: &Service) -> &str {
    service.events.last().map_or("nothing has happened to it yet", |event| &event.message)
}

/// Why it ended, without the words around it.
fn exit_reason(message: &str) -> &str {
    let reason = message.split_once("restart forever: ").map_or(message, |(_, reason)| reason);
    reason.split_once(" (last log").map_or(reason, |(reason, _)| reason)
}

/// The last lines of its log that differ, without their times; complaints before all others.
fn last_words(service: &Service) -> Vec<&str> {
    let complains =
        |line: &&str| ["ERROR", "WARN", "panic", "rror:", "fatal"].iter().any(|word| line.contains(word));
    let mut lines: Vec<&str> = service.log.iter().map(|line| without_time(line)).collect();
    if lines.iter().any(complains) {
        lines.retain(complains);
    }
    let mut words: Vec<&str> = Vec::new();
    for line in lines.into_iter().rev() {
        if words.len() < LINES && !words.contains(&line) {
            words.insert(0, line);
        }
    }
    words
}

/// A line that begins with a date loses it: it would make equal lines differ.
fn without_time(line: &str) -> &str {
    match line.split_once(' ') {
        Some((first, rest)) if first.starts_with(|c: char| c.is_ascii_digit()) && first.contains(':') => {
            rest.trim()
        }
        _ => line,
    }
}

fn with_log(cause: Cause, service: &Service) -> Cause {
    let evidence = format!("ichorctl logs {}", service.id);
    last_words(service)
        .into_iter()
        .fold(cause, |cause, line| cause.step(format!("it wrote: {line}"), evidence.clone()))
}

fn crashing(service: &Service, starts: usize, message: &str, ago: u64) -> (String, Cause) {
    let id = &service.id;
    let reason = exit_reason(message);
    let advice = match reason {
        text if text.contains("killed") => {
            format!(
                "something kills it: look for `oom` in `ichorctl dmesg`; `ichorctl service {id}` shows each exit"
            )
        }
        _ if service.log.iter().any(|line| line.contains("already in use")) => {
            "find what else listens on that port (`ichorctl netstat -l -p`) and stop it; the service comes back by itself"
                .to_owned()
        }
        _ => format!("its own last words say what it lacks; `ichorctl logs {id}` has the rest"),
    };
    let summary = match starts {
        0 | 1 => format!("{id} ended and waits for its next start"),
        starts => format!("{id} keeps crashing: {starts} starts in the last {}", span(RECENT)),
    };
    let cause = Cause::new("crash", format!("service {id}"), advice).step(
        format!("it ended with {reason}"),
        format!("service {id}: {} ago, state {}", span(ago), service.state),
    );
    (summary, with_log(cause, service))
}

fn failed(service: &Service) -> Cause {
    let id = &service.id;
    let message = last_message(service);
    let ago = service.events.last().map_or(0, |event| event.ago);
    let advice =
        format!("start it again with `ichorctl service {id} start`, and follow `ichorctl logs {id} -f`");
    let reason = message.split_once(" (last log").map_or(message, |(reason, _)| reason);
    let cause = Cause::new("service", format!("service {id}"), advice)
        .step(reason, format!("service {id}: Failed, {} ago", span(ago)));
    with_log(cause, service)
}

fn sick(service: &Service) -> Cause {
    let id = &service.id;
    let advice =
        format!("`ichorctl logs {id}` may tell more; `ichorctl service {id} restart` starts it anew");
    let cause = Cause::new("service", format!("service {id}"), advice)
        .step(format!("its check fails: {}", service.health_message), format!("service {id}: HEALTH Fail"));
    with_log(cause, service)
}

fn waiting_text(service: &Service) -> String {
    let message = last_message(service);
    match message.strip_prefix("Waiting for ") {
        Some(what) => format!("{} waits for {what}", service.id),
        None => format!("{} waits", service.id),
    }
}

fn waiting(snapshot: &Snapshot, service: &Service, depth: usize) -> Cause {
    let id = &service.id;
    let message = last_message(service);
    let for_ = service.events.last().map_or(0, |event| event.ago);
    let evidence = format!("service {id}: Waiting for {}", span(for_));
    let pending = |name: &&String| message.contains(&format!("service {name:?}"));
    for needed in service.depends.iter().filter(pending) {
        let inner = snapshot.service(needed).filter(|_| depth < DEPTH_MAX);
        if let Some((text, cause)) = inner.and_then(|needed| walk(snapshot, needed, depth + 1)) {
            return cause.behind(text, evidence);
        }
    }
    let open: Vec<_> =
        service.conditions.iter().filter(|condition| message.contains(&condition.name)).collect();
    let causes = open
        .iter()
        .filter_map(|condition| Some((condition, graph::resource(snapshot, condition.about.as_ref()?)?)));
    // The condition nearest to a cause: others often wait for the same in a roundabout way.
    if let Some((condition, cause)) =
        causes.min_by_key(|(_, cause)| (cause.kind == "resource", cause.steps.len()))
    {
        return match open.len() {
            1 => cause,
            _ => cause.behind(format!("of these, \"{}\" is nearest to the cause", condition.name), evidence),
        };
    }
    let names: Vec<&str> = open.iter().map(|condition| condition.name.as_str()).collect();
    let advice = format!("wait a little; `ichorctl service {id}` shows each step");
    Cause::new("service", format!("service {id}"), advice).step(
        match names.is_empty() {
            true => message.to_owned(),
            false => format!("{} is about to be there", listed(&names)),
        },
        evidence,
    )
}
