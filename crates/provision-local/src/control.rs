//! Requests to a cluster's supervisor: one line of JSON each way over a Unix socket.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use ichor_provision::MachineStatus;
use serde::{Deserialize, Serialize};

/// The longest request or answer; a few hundred machines fit.
pub(crate) const LINE_MAX: u64 = 64 * 1024;

/// What the supervisor is asked for. A machine's name, or all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    Status,
    Start(Option<String>),
    Stop(Option<String>),
    Cut(Option<String>),
    Reset(String),
    /// The state file has other machines than before.
    Reload,
}

/// What it answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reply {
    /// Why not, if not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// All machines, in the order of the state file.
    #[serde(default)]
    pub(crate) machines: Vec<(String, MachineStatus)>,
}

/// Asks and waits for the answer, at most `timeout`.
pub(crate) fn ask(socket: &Path, request: &Request, timeout: Duration) -> io::Result<Reply> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    let mut answer = String::new();
    BufReader::new(io::Read::take(stream, LINE_MAX)).read_line(&mut answer)?;
    Ok(serde_json::from_str(&answer)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_read_as_words() {
        let check = |request: Request, text: &str| {
            assert_eq!(serde_json::to_string(&request).unwrap(), text);
            assert_eq!(serde_json::from_str::<Request>(text).unwrap(), request);
        };
        check(Request::Status, r#""status""#);
        check(Request::Stop(None), r#"{"stop":null}"#);
        check(Request::Reload, r#""reload""#);
        check(Request::Cut(Some("a".to_owned())), r#"{"cut":"a"}"#);
    }
}
