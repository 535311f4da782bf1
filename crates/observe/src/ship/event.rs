//! A line of a log as an event, and its JSON form.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value};

/// Numbers of seconds beyond the year 3000 are milliseconds.
const YEAR_3000: f64 = 32_503_680_000.0;

/// How grave an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// For who looks for something.
    Debug,
    /// The usual.
    Info,
    /// Somebody should look.
    Warn,
    /// Something failed.
    Error,
    /// A bug.
    DPanic,
    /// A bug that ended something.
    Panic,
    /// The end.
    Fatal,
}

impl Level {
    const ALL: [Self; 7] =
        [Self::Debug, Self::Info, Self::Warn, Self::Error, Self::DPanic, Self::Panic, Self::Fatal];

    /// The text receivers see.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
            Self::DPanic => "dpanic",
            Self::Panic => "panic",
            Self::Fatal => "fatal",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        if text == "warning" {
            return Some(Self::Warn);
        }
        Self::ALL.into_iter().find(|level| level.as_str() == text)
    }
}

/// What is sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// When.
    pub time: Timestamp,
    /// How grave.
    pub level: Level,
    /// What.
    pub message: String,
    /// The log it is from, if it is from one.
    pub service: Option<String>,
    /// Everything else.
    pub fields: Map<String, Value>,
}

impl Event {
    /// Reads a line: JSON, text with JSON behind it, or just text.
    pub fn parse(line: &str, now: Timestamp) -> Self {
        let (text, fields) = split(line);
        let mut event =
            Self { time: now, level: Level::Info, message: text.to_owned(), service: None, fields };
        for key in ["time", "ts"] {
            if let Some(time) = event.fields.get(key).and_then(time) {
                event.time = time;
                event.fields.shift_remove(key);
                break;
            }
        }
        if let Some(level) = event.fields.get("level").and_then(|level| Level::parse(level.as_str()?)) {
            event.level = level;
            event.fields.shift_remove("level");
        }
        if let Some(message) = event.take_text("msg") {
            if !event.message.is_empty() {
                event.message.push(' ');
            }
            event.message.push_str(&message);
        }
        if let Some(error) = event.take_text("err") {
            event.level = event.level.max(Level::Warn);
            event.message.push_str(": ");
            event.message.push_str(&error);
        }
        event
    }

    /// The same, marked as a line of this log.
    #[must_use]
    pub fn of_service(mut self, id: &str) -> Self {
        self.service = Some(id.to_owned());
        self
    }

    fn take_text(&mut self, key: &str) -> Option<String> {
        let text = self.fields.get(key)?.as_str()?.to_owned();
        self.fields.shift_remove(key);
        Some(text)
    }

    /// One JSON object, keys in order, without a newline. Tags win over everything.
    pub fn encode(&self, tags: &BTreeMap<String, String>) -> Vec<u8> {
        let mut object: BTreeMap<&str, Value> =
            self.fields.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
        object.insert("msg", self.message.as_str().into());
        object.insert("talos-time", self.time.to_string().into());
        object.insert("talos-level", self.level.as_str().into());
        if let Some(service) = &self.service {
            object.insert("talos-service", service.as_str().into());
        }
        object.extend(tags.iter().map(|(key, value)| (key.as_str(), Value::from(value.as_str()))));
        // A map of strings and values always has a JSON form.
        serde_json::to_vec(&object).unwrap_or_default()
    }
}

/// The text in front and the object behind it.
fn split(line: &str) -> (&str, Map<String, Value>) {
    if let Some(at) = line.find('{')
        && let Ok(Value::Object(fields)) = serde_json::from_str(&line[at..])
    {
        return (line[..at].trim(), fields);
    }
    (line, Map::new())
}

/// A time as programs write it.
fn time(value: &Value) -> Option<Timestamp> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => {
            let seconds = number.as_f64()?;
            let seconds = if seconds > YEAR_3000 { seconds / 1000.0 } else { seconds };
            // Float to integer saturates, and the library refuses what is no time.
            Timestamp::from_microsecond((seconds * 1e6) as i64).ok()
        }
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    #[track_caller]
    fn check(line: &str, expect: Expect) {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let tags = BTreeMap::from([("rack".to_owned(), "7".to_owned())]);
        let event = Event::parse(line, now).of_service("svc");
        expect.assert_eq(&String::from_utf8(event.encode(&tags)).unwrap());
    }

    #[test]
    fn text_is_a_message_of_now() {
        check(
            "[talos] hello",
            expect![[
                r#"{"msg":"[talos] hello","rack":"7","talos-level":"info","talos-service":"svc","talos-time":"2023-11-14T22:13:20Z"}"#
            ]],
        );
    }

    #[test]
    fn json_brings_its_own_time_level_and_fields() {
        check(
            r#"{"level":"warning","ts":"2024-01-02T03:04:05.5Z","msg":"took long","ms":12}"#,
            expect![[
                r#"{"ms":12,"msg":"took long","rack":"7","talos-level":"warn","talos-service":"svc","talos-time":"2024-01-02T03:04:05.5Z"}"#
            ]],
        );
        check(
            r#"{"time":1700000000500.0,"level":"loud","msg":"x"}"#,
            expect![[
                r#"{"level":"loud","msg":"x","rack":"7","talos-level":"info","talos-service":"svc","talos-time":"2023-11-14T22:13:20.5Z"}"#
            ]],
        );
    }

    #[test]
    fn text_before_json_and_errors_end_up_in_the_message() {
        check(
            r#"controller failed {"err":"no route","component":"net"}"#,
            expect![[
                r#"{"component":"net","msg":"controller failed: no route","rack":"7","talos-level":"warn","talos-service":"svc","talos-time":"2023-11-14T22:13:20Z"}"#
            ]],
        );
        check(
            r#"broken {"json": "#,
            expect![[
                r#"{"msg":"broken {\"json\": ","rack":"7","talos-level":"info","talos-service":"svc","talos-time":"2023-11-14T22:13:20Z"}"#
            ]],
        );
    }

    #[test]
    fn tags_win() {
        check(
            r#"{"rack":"mine","msg":"x","ts":true}"#,
            expect![[
                r#"{"msg":"x","rack":"7","talos-level":"info","talos-service":"svc","talos-time":"2023-11-14T22:13:20Z","ts":true}"#
            ]],
        );
    }
}
