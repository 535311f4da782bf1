//! What can go wrong between here and the server, and what the server says.

use std::fmt;
use std::time::Duration;

use ichor_rpc::dial::DialError;
use serde_json::Value;

/// A call that did not succeed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No connection.
    #[error("connect to {server}: {cause}")]
    Connect {
        /// Whom to.
        server: String,
        /// Why not. No source: its own text holds its cause.
        cause: DialError,
    },
    /// Not in time.
    #[error("{what}: no answer within {seconds} s")]
    Timeout {
        /// The call.
        what: String,
        /// How long it could have taken.
        seconds: u64,
    },
    /// The connection broke under the call.
    #[error("{what}: {text}")]
    Broken {
        /// The call.
        what: String,
        /// How.
        text: String,
    },
    /// More than anybody asked for.
    #[error("{what}: the answer is larger than {limit} bytes")]
    TooLarge {
        /// The call.
        what: String,
        /// The most it may be.
        limit: usize,
    },
    /// An answer that is no JSON.
    #[error("{what}: the answer is no JSON")]
    Json {
        /// The call.
        what: String,
        /// Where it stops making sense.
        #[source]
        source: serde_json::Error,
    },
    /// The server says no.
    #[error("{what}: {status}")]
    Refused {
        /// The call.
        what: String,
        /// What it says.
        status: Box<Status>,
    },
    /// The server does not know such objects (yet).
    #[error("the server knows no {kind} in {api_version}")]
    NoKind {
        /// As manifests name the group and version.
        api_version: String,
        /// As manifests name the kind.
        kind: String,
    },
    /// An object without what makes it addressable.
    #[error("an object lacks {0}")]
    Nameless(&'static str),
}

impl Error {
    /// The reason the server gave, such as `NotFound`; empty when the server did not speak.
    pub fn reason(&self) -> &str {
        self.status().map_or("", |status| status.reason.as_str())
    }

    /// What the server said, if it did.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Refused { status, .. } => Some(status),
            _ => None,
        }
    }

    fn code(&self) -> u16 {
        self.status().map_or(0, |status| status.code)
    }

    /// There is no such object.
    pub fn is_not_found(&self) -> bool {
        self.code() == 404
    }

    /// There is such an object already.
    pub fn is_already_exists(&self) -> bool {
        self.reason() == "AlreadyExists"
    }

    /// Somebody else changed the object meanwhile, or owns what was to be changed.
    pub fn is_conflict(&self) -> bool {
        self.code() == 409 && !self.is_already_exists()
    }

    /// The caller may not.
    pub fn is_forbidden(&self) -> bool {
        self.code() == 403
    }

    /// The version asked for is too old.
    pub fn is_gone(&self) -> bool {
        self.code() == 410
    }

    /// Too much at once, or a disruption budget that is used up.
    pub fn is_too_many(&self) -> bool {
        self.code() == 429
    }

    /// Whether the object itself is at fault, so that other objects may fare better: everything the server
    /// refuses for good, and kinds it does not know.
    pub fn is_of_object(&self) -> bool {
        match self {
            Self::Refused { status, .. } => {
                (400..500).contains(&status.code) && !matches!(status.code, 401 | 408 | 429)
            }
            Self::NoKind { .. } | Self::Nameless(_) | Self::TooLarge { .. } => true,
            Self::Connect { .. } | Self::Timeout { .. } | Self::Broken { .. } | Self::Json { .. } => false,
        }
    }

    /// The error and all its causes on one line.
    pub fn chain(&self) -> String {
        chain(self)
    }
}

/// An error and its causes on one line.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// The server's own words about a failure.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// As HTTP counts.
    pub code: u16,
    /// One word, such as `Conflict`.
    pub reason: String,
    /// For people.
    pub message: String,
    /// The details: field and message of each cause.
    pub causes: Vec<(String, String)>,
    /// When to try again, if the server says so.
    pub retry_after: Option<Duration>,
}

impl Status {
    /// Reads a `Status` object; whatever else the body is becomes the message.
    pub fn read(code: u16, body: &[u8]) -> Self {
        /// A page of a proxy is no message.
        const TEXT_MAX: usize = 512;
        match serde_json::from_slice::<Value>(body) {
            Ok(value) if value["kind"] == "Status" => Self::from_value(code, &value),
            _ => {
                let text = String::from_utf8_lossy(&body[..body.len().min(TEXT_MAX)]).trim().to_owned();
                Self { code, message: text, ..Self::default() }
            }
        }
    }

    /// A `Status` object, as answers and watches carry it.
    pub fn from_value(code: u16, value: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let causes = value["details"]["causes"].as_array().into_iter().flatten();
        Self {
            code: value["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(code),
            reason: text(&value["reason"]),
            message: text(&value["message"]),
            causes: causes.map(|cause| (text(&cause["field"]), text(&cause["message"]))).collect(),
            retry_after: value["details"]["retryAfterSeconds"].as_u64().map(Duration::from_secs),
        }
    }

    /// The managers that own what an apply wanted to change, each once.
    pub fn conflicting_managers(&self) -> Vec<&str> {
        let mut found: Vec<&str> = self
            .causes
            .iter()
            .filter_map(|(_, message)| message.strip_prefix("conflict with \"")?.split('"').next())
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.message.is_empty(), self.reason.is_empty()) {
            (false, _) => f.write_str(&self.message),
            (true, false) => f.write_str(&self.reason),
            (true, true) => write!(f, "the server answered {}", self.code),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_s_words_are_taken_apart() {
        let body = br#"{"kind":"Status","code":409,"reason":"Conflict","message":"Apply failed with 2 conflicts",
            "details":{"retryAfterSeconds":3,"causes":[
              {"reason":"FieldManagerConflict","message":"conflict with \"argocd\" using apps/v1","field":".spec.a"},
              {"reason":"FieldManagerConflict","message":"conflict with \"talos\"","field":".spec.b"},
              {"reason":"FieldManagerConflict","message":"conflict with \"argocd\"","field":".spec.c"}]}}"#;
        let status = Status::read(409, body);
        assert_eq!(status.conflicting_managers(), ["argocd", "talos"]);
        assert_eq!(status.retry_after, Some(Duration::from_secs(3)));
        let error = Error::Refused { what: "apply".into(), status: status.into() };
        assert!(error.is_conflict() && error.is_of_object() && !error.is_already_exists());
    }

    #[test]
    fn a_page_that_is_no_status_is_shown_as_it_is() {
        assert_eq!(Status::read(502, b"bad gateway\n").to_string(), "bad gateway");
        assert_eq!(Status::read(503, b"").to_string(), "the server answered 503");
    }
}
