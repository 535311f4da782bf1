//! Who this client is.

use ichor_wire::machine::VersionInfo;

/// The API version this client speaks, which is also the version it compares machines with.
pub const TAG: &str = "v1.12.1";

/// The Kubernetes version that goes with it.
pub const KUBERNETES_VERSION: &str = "1.35.0";

/// What `version` says about the client.
pub fn version() -> VersionInfo {
    VersionInfo {
        tag: TAG.to_owned(),
        sha: option_env!("ICHOR_COMMIT").unwrap_or("undefined").to_owned(),
        built: option_env!("ICHOR_BUILT").unwrap_or_default().to_owned(),
        go_version: format!("none (Ichor {})", env!("CARGO_PKG_VERSION")),
        os: "linux".to_owned(),
        arch: arch().to_owned(),
    }
}

fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
