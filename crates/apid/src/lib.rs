//! The mTLS gateway of a node: routes and fans out raw frames. machined decides who may call a method; the gateway
//! decides whom a call may be forwarded to.
//!
//! It reads its certificates, the node's names and the members of the cluster from machined over a Unix socket, keeps
//! serving with the last ones when machined is away, and finds it again when it is back.

mod facts;
mod gateway;
mod options;

use std::process::ExitCode;

pub use gateway::{ApidError, run};
pub use ichor_rpc::options::BadOption;
pub use options::Options;

/// Runs the daemon with the arguments after its name.
pub fn main(args: &[String]) -> ExitCode {
    if let Err(error) = ichor_sys::confine::lock() {
        // Better not at all than unconfined: whoever wants to know why reads this.
        eprintln!("apid: not locked: {error}");
        return ExitCode::FAILURE;
    }
    match Options::parse(args) {
        Ok(options) => ichor_rpc::daemon::run(|stop| run(options, stop)),
        Err(error) => {
            eprintln!("apid: {error}");
            ExitCode::from(2)
        }
    }
}
