//! The program `ichorctl`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    // The supervisor of a local cluster is this program again; it must start before any thread does.
    if let Some(code) = ichor_ops::providers::PROVIDERS.helper_main(&words) {
        return code;
    }
    ichor_cli::run(&words)
}
