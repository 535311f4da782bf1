//! The `tracing` layer of a node: rings for people who ask, the console for people who look.
//!
//! Lines of controllers go to the ring `controller-runtime` in the console style of the original
//! (ISO time, coloured level, message, fields as JSON); everything else goes to `machined` with a
//! microsecond stamp. Both go to the console without time and level.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::kernel::ConsoleSink;
use crate::manager::LogManager;
use crate::ring::LogRing;

/// Log id of machined itself.
pub const MACHINED: &str = "machined";

/// Log id of the controllers.
pub const CONTROLLER_RUNTIME: &str = "controller-runtime";

/// A controller's first errors are usually inputs that are not there yet: kept off the console.
const CONSOLE_QUIET_ERRORS: u32 = 4;

/// Crates whose lines are the controllers' own.
const CONTROLLER_TARGETS: [&str; 2] = ["ichor_cosi", "ichor_ctl"];

/// Our crates; libraries below them are only heard from warning level on.
const OWN_PREFIX: &str = "ichor";

/// Writes events to rings and console.
pub struct LogLayer {
    machined: Arc<LogRing>,
    controllers: Arc<LogRing>,
    console: Arc<dyn ConsoleSink>,
    level: Level,
    now: fn() -> Timestamp,
    errors: Mutex<HashMap<String, u32>>,
}

/// The controller a span belongs to.
struct ControllerName(String);

impl LogLayer {
    /// A layer that writes the rings `machined` and `controller-runtime` of `logs`.
    pub fn new(logs: &LogManager, console: Arc<dyn ConsoleSink>, level: Level) -> Self {
        Self {
            machined: logs.ring(MACHINED),
            controllers: logs.ring(CONTROLLER_RUNTIME),
            console,
            level,
            now: Timestamp::now,
            errors: Mutex::new(HashMap::new()),
        }
    }

    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        let limit =
            if metadata.target().starts_with(OWN_PREFIX) { self.level } else { self.level.min(Level::WARN) };
        *metadata.level() <= limit
    }

    /// Counts an error of a controller; true while the console should stay quiet.
    fn quiet(&self, controller: &str) -> bool {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let count = errors.entry(controller.to_owned()).or_default();
        *count = count.saturating_add(1);
        *count <= CONSOLE_QUIET_ERRORS
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for LogLayer {
    fn enabled(&self, metadata: &Metadata<'_>, _context: Context<'_, S>) -> bool {
        self.wants(metadata)
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut line = Line::default();
        attributes.record(&mut line);
        if let (Some(name), Some(span)) = (line.controller, context.span(id)) {
            span.extensions_mut().insert(ControllerName(name));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let metadata = event.metadata();
        let mut line = Line::default();
        event.record(&mut line);
        if line.controller.is_none() {
            line.controller = context.event_scope(event).and_then(|mut scope| {
                scope.find_map(|span| span.extensions().get::<ControllerName>().map(|name| name.0.clone()))
            });
        }
        let of_controller = line.controller.is_some()
            || CONTROLLER_TARGETS.iter().any(|target| metadata.target().starts_with(target));
        let text = line.render();
        let now = (self.now)();
        if of_controller {
            let stamp = now.strftime("%Y-%m-%dT%H:%M:%S.%3fZ");
            self.controllers.write_line(&format!("{stamp} {} {text}", coloured(metadata.level())));
            let error = *metadata.level() == Level::ERROR;
            if error && line.controller.as_deref().is_some_and(|name| self.quiet(name)) {
                return;
            }
        } else {
            let stamp = now.strftime("%Y/%m/%d %H:%M:%S.%6f");
            self.machined.write_line(&format!("{stamp} {text}"));
        }
        self.console.write_line(priority(metadata.level()), &text);
    }
}

/// Makes this layer the process-wide subscriber. Only the first call has an effect.
pub fn install(layer: LogLayer) {
    let subscriber = tracing_subscriber::registry().with(layer);
    let _ = tracing::subscriber::set_global_default(subscriber);
}

fn coloured(level: &Level) -> &'static str {
    match *level {
        Level::ERROR => "\x1b[31mERROR\x1b[0m",
        Level::WARN => "\x1b[33mWARN\x1b[0m",
        Level::INFO => "\x1b[34mINFO\x1b[0m",
        Level::DEBUG | Level::TRACE => "\x1b[35mDEBUG\x1b[0m",
    }
}

/// The syslog priority of a level.
fn priority(level: &Level) -> u8 {
    match *level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// One event on its way to text: the message, then the fields as a JSON object.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
    controller: Option<String>,
}

impl Line {
    fn field(&mut self, name: &str, json: &str) {
        let separator = if self.fields.is_empty() { "" } else { ", " };
        let _ = write!(self.fields, "{separator}{}: {json}", quoted(name));
    }

    fn render(&self) -> String {
        let mut text = self.message.clone();
        let mut fields = String::new();
        if let Some(controller) = &self.controller {
            let _ = write!(fields, "\"controller\": {}", quoted(controller));
        }
        if !self.fields.is_empty() {
            let separator = if fields.is_empty() { "" } else { ", " };
            let _ = write!(fields, "{separator}{}", self.fields);
        }
        if !fields.is_empty() {
            let _ = write!(text, " {{{fields}}}");
        }
        text
    }

    fn text(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = value.to_owned(),
            "controller" => self.controller = Some(value.to_owned()),
            name => self.field(name, &quoted(value)),
        }
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.field(field.name(), &value.to_string());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.field(field.name(), &value.to_string());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.field(field.name(), &value.to_string());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        let mut text = value.to_string();
        let mut cause = value.source();
        while let Some(error) = cause {
            let _ = write!(text, ": {error}");
            cause = error.source();
        }
        self.text(field, &text);
    }
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::ring::Start;

    #[derive(Default)]
    struct Console(Mutex<Vec<String>>);

    impl ConsoleSink for Console {
        fn write_line(&self, priority: u8, line: &str) {
            self.0.lock().unwrap().push(format!("{priority} {line}"));
        }
    }

    fn text(logs: &LogManager, id: &str) -> String {
        let mut reader = logs.ring(id).reader(Start::Oldest);
        let mut out = Vec::new();
        while let Some(bytes) = reader.read(4096) {
            out.extend_from_slice(&bytes);
        }
        String::from_utf8(out).unwrap()
    }

    #[track_caller]
    fn check(run: impl FnOnce(), expect: Expect) {
        let logs = LogManager::new();
        let console = Arc::new(Console::default());
        let sink: Arc<dyn ConsoleSink> = console.clone();
        let mut layer = LogLayer::new(&logs, sink, Level::INFO);
        layer.now = || Timestamp::new(1_700_000_000, 123_456_789).unwrap();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), run);
        let console = console.0.lock().unwrap().join("\n");
        expect.assert_eq(&format!(
            "machined:\n{}controllers:\n{}console:\n{console}\n",
            text(&logs, MACHINED),
            text(&logs, CONTROLLER_RUNTIME).replace('\x1b', "^["),
        ));
    }

    #[test]
    fn lines_of_machined_carry_microseconds() {
        check(
            || tracing::info!(target: "ichor_machined::x", path = "/a", count = 2, "it \"runs\""),
            expect![[r#"
                machined:
                2023/11/14 22:13:20.123456 it "runs" {"path": "/a", "count": 2}
                controllers:
                console:
                6 it "runs" {"path": "/a", "count": 2}
            "#]],
        );
    }

    #[test]
    fn lines_inside_a_controller_span_name_the_controller() {
        check(
            || {
                let span = tracing::info_span!(target: "ichor_cosi", "controller", controller = "network.X");
                let _inside = span.enter();
                tracing::warn!(target: "ichor_ctl_network", "no link");
            },
            expect![[r#"
                machined:
                controllers:
                2023-11-14T22:13:20.123Z ^[[33mWARN^[[0m no link {"controller": "network.X"}
                console:
                4 no link {"controller": "network.X"}
            "#]],
        );
    }

    #[test]
    fn the_first_errors_of_a_controller_stay_off_the_console() {
        check(
            || {
                for _ in 0..5 {
                    tracing::error!(target: "ichor_cosi", controller = "a.B", "failed");
                }
            },
            expect![[r#"
                machined:
                controllers:
                2023-11-14T22:13:20.123Z ^[[31mERROR^[[0m failed {"controller": "a.B"}
                2023-11-14T22:13:20.123Z ^[[31mERROR^[[0m failed {"controller": "a.B"}
                2023-11-14T22:13:20.123Z ^[[31mERROR^[[0m failed {"controller": "a.B"}
                2023-11-14T22:13:20.123Z ^[[31mERROR^[[0m failed {"controller": "a.B"}
                2023-11-14T22:13:20.123Z ^[[31mERROR^[[0m failed {"controller": "a.B"}
                console:
                3 failed {"controller": "a.B"}
            "#]],
        );
    }

    #[test]
    fn libraries_are_heard_from_warnings_on() {
        check(
            || {
                tracing::info!(target: "h2::proto", "frame");
                tracing::warn!(target: "h2::proto", "odd frame");
            },
            expect![[r#"
                machined:
                2023/11/14 22:13:20.123456 odd frame
                controllers:
                console:
                4 odd frame
            "#]],
        );
    }
}
