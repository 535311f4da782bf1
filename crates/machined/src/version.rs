//! What this build calls itself.

use ichor_wire::machine;

/// The API version we speak, as the tag clients compare with their own. They parse it as semver and
/// warn, or refuse, when it differs from theirs by more than they allow.
pub const COMPATIBLE_TAG: &str = "v1.12.1";

/// The commit, from the build.
pub const COMMIT: &str = match option_env!("ICHOR_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

/// When it was built, from the build.
pub const BUILT: &str = match option_env!("ICHOR_BUILT") {
    Some(built) => built,
    None => "",
};

/// The processor architecture in the words of clients.
pub const ARCHITECTURE: &str = if cfg!(target_arch = "x86_64") {
    "amd64"
} else if cfg!(target_arch = "aarch64") {
    "arm64"
} else {
    std::env::consts::ARCH
};

/// The wire form.
pub fn info() -> machine::VersionInfo {
    machine::VersionInfo {
        tag: COMPATIBLE_TAG.to_owned(),
        sha: COMMIT.to_owned(),
        built: BUILT.to_owned(),
        go_version: concat!("rust", env!("CARGO_PKG_RUST_VERSION")).to_owned(),
        os: "linux".to_owned(),
        arch: ARCHITECTURE.to_owned(),
    }
}
