//! The role of a machine in its cluster.

use std::{fmt, str::FromStr};

/// What a machine is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MachineType {
    /// Not configured yet.
    #[default]
    Unknown,
    /// The control plane machine that starts a cluster by itself (old style).
    Init,
    /// A control plane machine.
    ControlPlane,
    /// A machine that runs workloads only.
    Worker,
}

/// A text that names no machine type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown machine type {0:?}")]
pub struct UnknownMachineType(pub String);

impl MachineType {
    /// The texts a configuration may use.
    pub const NAMES: [&'static str; 3] = ["init", "controlplane", "worker"];

    /// The canonical text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Init => "init",
            Self::ControlPlane => "controlplane",
            Self::Worker => "worker",
        }
    }

    /// True for machines that run the control plane.
    pub const fn is_control_plane(self) -> bool {
        matches!(self, Self::Init | Self::ControlPlane)
    }
}

impl fmt::Display for MachineType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for MachineType {
    type Err = UnknownMachineType;

    /// Reads the configuration spelling: `join` and the empty text mean worker.
    fn from_str(text: &str) -> Result<Self, UnknownMachineType> {
        match text {
            "init" => Ok(Self::Init),
            "controlplane" => Ok(Self::ControlPlane),
            "worker" | "join" | "" => Ok(Self::Worker),
            other => Err(UnknownMachineType(other.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn join_and_nothing_mean_worker() {
        for text in ["join", "", "worker"] {
            assert_eq!(text.parse(), Ok(MachineType::Worker));
        }
        assert_eq!("boss".parse::<MachineType>().unwrap_err().to_string(), "unknown machine type \"boss\"");
        assert!(MachineType::Init.is_control_plane() && !MachineType::Worker.is_control_plane());
    }
}
