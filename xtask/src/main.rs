//! Chores of the project: `cargo xtask <chore>`.

mod compat;
mod conformance;
mod fields;
mod image;
mod images;
mod profile;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask <chore>

chores:
  compat       write docs/compatibility.md and the list of ignored settings in docs/status.md
  conformance  table of a run of Kubernetes' conformance tests: RESULTS [EXPECTED]
  image        build build/rootfs.squashfs, the root image of a node
  images       build build/images, the container images of a cluster as an OCI layout
  profile      read the counters of an instrumented process: TEMPLATE PROGRAM PID OUT
  tidy         check layering, module docs, file length, banned imports and words
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.first().map(String::as_str) {
        Some("compat") => compat::run(&root()).and_then(|()| fields::run(&root())),
        Some("conformance") => conformance::run(&root(), &args[1..]),
        Some("image") => image::run(&root(), &args[1..]),
        Some("images") => images::run(&root(), &args[1..]),
        Some("profile") => profile::run(&args[1..]),
        Some("tidy") => {
            tidy::run(&root()).and_then(|()| compat::check(&root())).and_then(|()| fields::check(&root()))
        }
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The top of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_owned()
}
