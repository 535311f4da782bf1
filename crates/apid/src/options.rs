//! Where the gateway listens and whom it talks to.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use ichor_rpc::options::{self, BadOption};
use ichor_rpc::proxy::API_PORT;

/// The settings of the gateway; the defaults are those of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where clients connect.
    pub listen: SocketAddr,
    /// Where clients on the node connect.
    pub socket: PathBuf,
    /// The machine API.
    pub machine: PathBuf,
    /// The State service with the gateway's own resources.
    pub runtime: PathBuf,
    /// The port of the gateways of other nodes.
    pub peer_port: u16,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv6Addr::UNSPECIFIED, API_PORT)),
            socket: "/system/run/apid/apid.sock".into(),
            machine: "/system/run/machined/machine.sock".into(),
            runtime: "/system/run/apid/runtime.sock".into(),
            peer_port: API_PORT,
        }
    }
}

/// All options.
const KNOWN: &str = "--listen, --socket, --machine, --runtime, --peer-port";

impl Options {
    /// Reads `--option value` and `--option=value`.
    pub fn parse(args: &[String]) -> Result<Self, BadOption> {
        let mut parsed = Self::default();
        options::read(args, KNOWN, |option, value| {
            match option {
                "--listen" => parsed.listen = options::parse(option, value)?,
                "--socket" => parsed.socket = value.into(),
                "--machine" => parsed.machine = value.into(),
                "--runtime" => parsed.runtime = value.into(),
                "--peer-port" => parsed.peer_port = options::parse(option, value)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Options, BadOption> {
        Options::parse(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn without_arguments_a_node_is_meant() {
        assert_eq!(parse(&[]), Ok(Options::default()));
    }

    #[test]
    fn both_ways_to_give_a_value_work() {
        let options = parse(&["--listen", "127.0.0.1:1", "--peer-port=2"]).expect("parses");
        assert_eq!(options.listen, "127.0.0.1:1".parse().unwrap());
        assert_eq!(options.peer_port, 2);
    }

    #[test]
    fn bad_arguments_are_named() {
        let unknown = BadOption::Unknown { option: "--nope".to_owned(), known: KNOWN };
        assert_eq!(parse(&["--nope", "1"]), Err(unknown));
        assert_eq!(parse(&["--socket"]), Err(BadOption::NoValue("--socket".to_owned())));
        let error = parse(&["--peer-port", "70000"]).expect_err("too large");
        assert_eq!(error.to_string(), "--peer-port cannot be \"70000\"");
    }
}
