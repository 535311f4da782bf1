//! Signs certificates for joining workers.
//!
//! A worker proves that it belongs by the machine token, and gets its server certificate signed by the
//! cluster's authority, without any role in it. With the same token nodes find each other here.

mod discovery;
mod gate;
mod options;
mod service;
mod signer;

use std::process::ExitCode;

pub use ichor_rpc::options::BadOption;
pub use options::Options;
pub use service::{TrustdError, run};

/// Runs the daemon with the arguments after its name.
pub fn main(args: &[String]) -> ExitCode {
    if let Err(error) = ichor_sys::confine::lock() {
        // Better not at all than unconfined: whoever wants to know why reads this.
        eprintln!("trustd: not locked: {error}");
        return ExitCode::FAILURE;
    }
    match Options::parse(args) {
        Ok(options) => ichor_rpc::daemon::run(|stop| run(options, stop)),
        Err(error) => {
            eprintln!("trustd: {error}");
            ExitCode::from(2)
        }
    }
}
