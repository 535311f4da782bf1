//! Errors of calls and connections as sentences with the way out.

use std::io;

use ichor_client::{DialError, NodeError, Unreachable, status_text};
use ichor_config::patch::PatchError;
use tonic::{Code, Status};

use ichor_ops::Problem;
use ichor_ops::providers::PROVIDERS;
use ichor_provision::ProvisionError;

use crate::failure::{Failure, chain};
use crate::machineconfig;
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

/// Engines say what went wrong; what to do about it in terms of this program is added here.
impl From<ichor_ops::Error> for Failure {
    fn from(error: ichor_ops::Error) -> Self {
        let failure = match error.problem() {
            Problem::Unreachable(cause) => return unreachable(cause),
            Problem::Patch { name, text, source } => match &**source {
                PatchError::Config(problems) => return machineconfig::pointed(problems, name, text),
                other => return Self::new(format!("apply the patch: {}", chain(other))),
            },
            _ => Self::new(chain(&error)).whole(),
        };
        let hint = match error.problem() {
            Problem::Provision(ProvisionError::UnknownProvider { .. }) => Some(format!(
                "use {}; sandbox is the default and needs neither a container engine nor KVM",
                PROVIDERS.names().collect::<Vec<_>>().join(" or ")
            )),
            Problem::NoControlPlaneRuns { cluster } => {
                Some(format!("start them with `ichorctl cluster start --name {cluster}`"))
            }
            other => hint(other).map(str::to_owned),
        };
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

fn hint(problem: &Problem) -> Option<&'static str> {
    match problem {
        Problem::Call { status, .. } => code_hint(status.code(), status.message()),
        Problem::Node { error, .. } => error.code.and_then(|code| code_hint(code, &error.text)),
        Problem::BadEndpoint(_) => Some("use https://HOST:PORT"),
        Problem::NoMembers => Some("name the machines with --control-plane-nodes and --worker-nodes"),
        Problem::Provision(ProvisionError::NoFreeNetwork) => {
            Some("remove a cluster with `ichorctl cluster destroy`, or choose a network with --cidr")
        }
        Problem::Unhealthy(_) => Some("the machines go on; look again with `ichorctl health --server=false`"),
        Problem::MachineNotReady { .. } => {
            Some("the machine goes on; look at it with `ichorctl cluster show` and `ichorctl dmesg`")
        }
        Problem::NoContext { .. } => Some("name the file that has it with --talosconfig"),
        Problem::NetworkOverlap { .. } => Some(
            "choose another with --cidr, such as 10.5.0.0/24, or change cluster.network with --config-patch",
        ),
        Problem::OnlyControlPlane { .. } => Some(
            "add another one first with `ichorctl cluster add`, or remove all with `ichorctl cluster destroy`",
        ),
        Problem::QuorumLost { .. } => {
            Some("bring them back or remove them first; --force removes it all the same")
        }
        Problem::NotLeft { .. } => {
            Some("it goes on; look at it with `ichorctl dmesg`, or remove it with --force")
        }
        _ => None,
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
