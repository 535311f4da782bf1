//! Errors of calls and connections as sentences with the way out.

use std::io;

use ichor_client::{DialError, NodeError, Unreachable, status_text};
use tonic::{Code, Status};

use crate::failure::{Failure, chain};
use crate::session::errors_text;

/// No endpoint could be reached.
pub fn unreachable(error: &Unreachable) -> Failure {
    let lines: Vec<String> = error.0.iter().map(ToString::to_string).collect();
    let text = match lines.as_slice() {
        [] => "no endpoint to connect to".to_owned(),
        [only] => only.clone(),
        many => format!("no endpoint could be reached: {}", many.join("; ")),
    };
    match error.0.first().and_then(dial_hint) {
        Some(hint) => Failure::new(text).hint(hint),
        None => Failure::new(text),
    }
}

fn dial_hint(error: &DialError) -> Option<&'static str> {
    match error {
        DialError::Lookup { .. } | DialError::ServerName { .. } => {
            Some("check the endpoint's name, or give an address with `-e ADDRESS`")
        }
        DialError::Tcp { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused => Some(
            "nothing listens there: is the machine up? `ichorctl cluster list` shows local ones, `-e ADDRESS` picks another endpoint",
        ),
        DialError::Tcp { .. } | DialError::Timeout { .. } => {
            Some("check that the machine is up and reachable, or pick another endpoint with `-e ADDRESS`")
        }
        DialError::Tls { source, .. } => Some(tls_hint(&chain(source))),
        DialError::Http2 { .. } => Some("is this the machine API? it listens on port 50000"),
        _ => None,
    }
}

fn tls_hint(text: &str) -> &'static str {
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if has(&["UnknownIssuer", "unknown issuer", "UnknownCA", "BadSignature"]) {
        "the certificate there is of another CA: check the context (`ichorctl config info`); a machine that waits for its configuration needs --insecure"
    } else if has(&["Expired", "expired"]) {
        "a certificate has expired: `ichorctl config info` shows yours; ask an administrator for a new one (`ichorctl config new`)"
    } else if has(&["NotValidForName", "not valid for name"]) {
        "the certificate there is for other names: add this endpoint to `machine.certSANs`, or use one of those names"
    } else if has(&["CertificateRequired", "certificate required", "BadCertificate"]) {
        "a client certificate is needed: use a context that has one (`ichorctl config contexts`)"
    } else {
        "check that the endpoint is a machine of this context (`ichorctl config info`)"
    }
}

/// A call failed as a whole.
pub fn status(doing: &str, status: &Status) -> Failure {
    let failure = Failure::new(format!("{doing}: {}", status_text(status)));
    match code_hint(status.code(), status.message()) {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// Every machine failed.
pub fn nodes(doing: &str, errors: &[NodeError]) -> Failure {
    let failure = match errors {
        [only] => Failure::new(format!("{doing}: {only}")),
        many => Failure::new(format!("{doing}: {}", errors_text(many).trim_end())),
    };
    let hint = errors.first().and_then(|error| code_hint(error.code?, &error.text));
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

fn code_hint(code: Code, message: &str) -> Option<&'static str> {
    match code {
        Code::PermissionDenied if message.contains("no request forwarding") => Some(
            "the endpoint is a worker and answers for itself only: use a control plane endpoint (`-e ADDRESS`)",
        ),
        Code::PermissionDenied if message.contains("not authorized") => Some(
            "`ichorctl config info` shows your roles; this needs a certificate with more (`ichorctl config new --roles ...`)",
        ),
        Code::Unimplemented if message.contains("maintenance mode") => Some(
            "the machine waits for its configuration: send one with `ichorctl apply-config --insecure --file FILE`",
        ),
        Code::Unimplemented => {
            Some("this machine does not offer that; `ichorctl version` shows what it runs")
        }
        Code::Unavailable => {
            Some("check that the machine is up; `ichorctl -n NODE dmesg` of a neighbour may tell why")
        }
        _ => None,
    }
}
