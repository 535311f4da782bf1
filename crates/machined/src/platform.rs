//! Where this node runs: the platform and what it may do there.

use ichor_types::Cmdline;

/// What kind of place a platform is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Bare metal: wants an installation.
    Metal,
    /// Bare metal under an agent.
    MetalAgent,
    /// A virtual machine, a cloud instance or a sandbox.
    Cloud,
    /// A container of somebody else's.
    Container,
}

impl Mode {
    /// The text clients see.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Metal => "metal",
            Self::MetalAgent => "metal-agent",
            Self::Cloud => "cloud",
            Self::Container => "container",
        }
    }

    /// Whether the machine can be rebooted and shut down from inside.
    pub fn owns_power(self) -> bool {
        match self {
            Self::Metal | Self::MetalAgent | Self::Cloud => true,
            Self::Container => false,
        }
    }
}

/// A platform by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Platform {
    /// Its name, such as `metal` or `sandbox`.
    pub name: String,
    /// What kind of place it is.
    pub mode: Mode,
}

/// Platforms where a cloud or a hypervisor provides the machine. `sandbox` is ours: a machine made of
/// namespaces.
const CLOUDS: [&str; 17] = [
    "akamai",
    "aws",
    "azure",
    "cloudstack",
    "digital-ocean",
    "exoscale",
    "gcp",
    "hcloud",
    "nocloud",
    "opennebula",
    "openstack",
    "oracle",
    "sandbox",
    "scaleway",
    "upcloud",
    "vmware",
    "vultr",
];

/// Why the platform is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlatformError {
    /// Nothing names it.
    #[error("failed to determine platform; set `talos.platform` on the kernel command line")]
    Undetermined,
    /// The name means nothing to us.
    #[error("unknown platform: \"{name}\"")]
    Unknown {
        /// The name given.
        name: String,
    },
}

/// What detection looks at.
#[derive(Debug, Clone, Copy, Default)]
pub struct Signs<'a> {
    /// The container marker file is there.
    pub container_marker: bool,
    /// The agent marker file is there.
    pub agent_marker: bool,
    /// `PLATFORM` in the environment.
    pub environment: Option<&'a str>,
}

/// Decides the platform.
pub fn detect(signs: Signs<'_>, cmdline: &Cmdline) -> Result<Platform, PlatformError> {
    let platform = |name: &str, mode| Ok(Platform { name: name.to_owned(), mode });
    if signs.container_marker {
        return platform("container", Mode::Container);
    }
    let named = signs.environment.filter(|name| !name.is_empty());
    let name = named.or(cmdline.first("talos.platform")).ok_or(PlatformError::Undetermined)?;
    match name {
        "metal" if signs.agent_marker => platform(name, Mode::MetalAgent),
        "metal" => platform(name, Mode::Metal),
        "equinixMetal" | "packet" => platform("equinixMetal", Mode::Metal),
        "container" => platform(name, Mode::Container),
        name if CLOUDS.contains(&name) => platform(name, Mode::Cloud),
        name => Err(PlatformError::Unknown { name: name.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    #[track_caller]
    fn check(signs: Signs<'_>, cmdline: &str, expect: Expect) {
        let text = match detect(signs, &Cmdline::parse(cmdline)) {
            Ok(platform) => format!("{} {}", platform.name, platform.mode.as_str()),
            Err(error) => format!("error: {error}"),
        };
        expect.assert_eq(&text);
    }

    #[test]
    fn the_command_line_names_the_platform() {
        check(Signs::default(), "talos.platform=metal", expect!["metal metal"]);
        check(Signs::default(), "talos.platform=sandbox", expect!["sandbox cloud"]);
        check(Signs::default(), "talos.platform=packet", expect!["equinixMetal metal"]);
        check(Signs::default(), "talos.platform=moon", expect![[r#"error: unknown platform: "moon""#]]);
        check(
            Signs::default(),
            "quiet",
            expect!["error: failed to determine platform; set `talos.platform` on the kernel command line"],
        );
    }

    #[test]
    fn environment_and_markers_go_first() {
        let env = Signs { environment: Some("aws"), ..Signs::default() };
        check(env, "talos.platform=metal", expect!["aws cloud"]);
        let marked = Signs { container_marker: true, ..env };
        check(marked, "talos.platform=metal", expect!["container container"]);
        let agent = Signs { agent_marker: true, ..Signs::default() };
        check(agent, "talos.platform=metal", expect!["metal metal-agent"]);
    }
}
