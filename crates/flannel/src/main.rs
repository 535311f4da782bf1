//! The program; see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    ichor_flannel::run(std::env::args().collect())
}
