//! From one version of Kubernetes to another: whether it is possible, and what must not be in use any more.

use std::fmt;

use super::Obsolete;
use crate::error::{Problem, Result};

/// The minors that upgrades are known for.
const MINORS: std::ops::RangeInclusive<u64> = 19..=35;
/// The minors this system runs.
const RUNS: std::ops::RangeInclusive<u64> = 30..=35;

/// A version; what follows the numbers is kept but does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    numbers: [u64; 3],
    text: String,
}

impl Version {
    /// Reads `v1.35.0`, `1.35.0` or `1.35`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim_start_matches('v');
        let bare = text.split(['-', '+']).next()?;
        let mut parts = bare.split('.');
        let mut next = || parts.next().map(|part| part.parse::<u64>().ok());
        let numbers = [next()??, next()??, next().unwrap_or(Some(0))?];
        if parts.next().is_some() {
            return None;
        }
        Some(Self { numbers, text: text.to_owned() })
    }

    /// The version in the tag of an image.
    pub fn of_image(image: &str) -> Option<Self> {
        let tag = image.rsplit_once(':').map(|(_, tag)| tag)?;
        Self::parse(tag.split('@').next()?)
    }

    /// The numbers, to compare.
    pub fn numbers(&self) -> [u64; 3] {
        self.numbers
    }

    fn minor(&self) -> u64 {
        self.numbers[1]
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// An upgrade.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// Where it begins.
    pub from: Version,
    /// Where it ends.
    pub to: Version,
}

impl Path {
    /// The upgrade between two versions.
    ///
    /// # Errors
    /// When one is not a version, or the upgrade skips a minor.
    pub fn new(from: &str, to: &str) -> Result<Self> {
        let parse = |end: &'static str, text: &str| {
            Version::parse(text).ok_or_else(|| Problem::BadVersion { end, text: text.to_owned() })
        };
        let path = Self { from: parse("from", from)?, to: parse("to", to)? };
        let (old, new) = (path.from.minor(), path.to.minor());
        let known = MINORS.contains(&old) && MINORS.contains(&new);
        let majors = path.from.numbers[0] == 1 && path.to.numbers[0] == 1;
        if !majors || !known || !(new == old || new == old + 1) {
            let (from, to) = (path.from.to_string(), path.to.to_string());
            return Err(Problem::UnsupportedUpgrade { path: path.to_string(), from, to }.into());
        }
        Ok(path)
    }

    /// What must not be in use any more; only a step to the next minor removes anything.
    pub fn removed(&self) -> Option<&'static Removed> {
        let next = self.to.minor() == self.from.minor() + 1;
        REMOVED.iter().find(|removed| next && removed.minor == self.to.minor())
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [[a, b, _], [c, d, _]] = [self.from.numbers, self.to.numbers];
        write!(f, "{a}.{b}->{c}.{d}")
    }
}

/// Whether a machine with this version of the system runs this version of Kubernetes.
pub fn compatible(system: &str, kubernetes: &Version) -> std::result::Result<(), String> {
    let numbers = Version::parse(system).map(|version| version.numbers);
    let Some([1, 12, _]) = numbers else {
        return Err(format!("what version {system} runs is not known here"));
    };
    if kubernetes.numbers[0] == 1 && RUNS.contains(&kubernetes.minor()) {
        return Ok(());
    }
    Err(format!("version {system} runs Kubernetes 1.{} to 1.{}, not {kubernetes}", RUNS.start(), RUNS.end()))
}

/// What a minor version no longer has.
#[derive(Debug, PartialEq, Eq)]
pub struct Removed {
    minor: u64,
    /// Feature gates of the control plane.
    gates: &'static [&'static str],
    /// Flags by component.
    flags: &'static [(&'static str, &'static str)],
    /// Kinds, as group/version and plural.
    pub kinds: &'static [(&'static str, &'static str)],
}

impl Removed {
    /// What of it a command line uses.
    pub fn used(&self, node: &str, component: &'static str, command: &[String]) -> Vec<Obsolete> {
        let flag = |name: &str| {
            command.iter().find(|word| {
                let word = word.trim_start_matches('-');
                word.split('=').next() == Some(name)
            })
        };
        let mut found: Vec<Obsolete> = self
            .flags
            .iter()
            .filter(|(of, name)| *of == component && flag(name).is_some())
            .map(|(_, flag)| Obsolete::Flag { node: node.to_owned(), component, flag })
            .collect();
        let gates = flag("feature-gates").and_then(|word| word.split_once('=')).map(|(_, gates)| gates);
        let used: Vec<&str> =
            gates.unwrap_or_default().split(',').filter_map(|gate| gate.split('=').next()).collect();
        found.extend(
            self.gates.iter().filter(|gate| used.contains(gate)).map(|gate| Obsolete::FeatureGate {
                node: node.to_owned(),
                component,
                gate,
            }),
        );
        found
    }
}

static REMOVED: &[Removed] = &[
    Removed {
        minor: 31,
        gates: &[
            "APIPriorityAndFairness",
            "CSINodeExpandSecret",
            "ConsistentHTTPGetHandlers",
            "DefaultHostNetworkHostPortsInPodTemplates",
            "ServiceNodePortStaticSubrange",
            "SkipReadOnlyValidationGCE",
        ],
        flags: &[
            ("kubelet", "keep-terminated-pod-volumes"),
            ("kubelet", "iptables-masquerade-bit"),
            ("kubelet", "iptables-drop-bit"),
            ("kube-controller-manager", "volume-host-cidr-denylist"),
            ("kube-controller-manager", "volume-host-allow-local-loopback"),
            ("kube-controller-manager", "horizontal-pod-autoscaler-upscale-delay"),
            ("kube-controller-manager", "horizontal-pod-autoscaler-downscale-delay"),
        ],
        kinds: &[],
    },
    Removed {
        minor: 32,
        gates: &[
            "AllowServiceLBStatusOnNonLB",
            "CloudDualStackNodeIPs",
            "DRAControlPlaneController",
            "HPAContainerMetrics",
            "KMSv2",
            "KMSv2KDF",
            "LegacyServiceAccountTokenCleanUp",
            "MinDomainsInPodTopologySpread",
            "NewVolumeManagerReconstruction",
            "NodeOutOfServiceVolumeDetach",
            "ServerSideApply",
            "ServerSideFieldValidation",
            "StableLoadBalancerNodeSet",
            "ValidatingAdmissionPolicy",
            "ZeroLimitedNominalConcurrencyShares",
        ],
        flags: &[],
        kinds: &[("resource.k8s.io/v1alpha3", "podschedulingcontexts")],
    },
    Removed {
        minor: 33,
        gates: &[
            "AppArmor",
            "AppArmorFields",
            "CPUManager",
            "DisableCloudProviders",
            "DisableKubeletCloudCredentialProviders",
            "JobPodFailurePolicy",
            "KubeProxyDrainingTerminatingNodes",
            "PDBUnhealthyPodEvictionPolicy",
            "PersistentVolumeLastPhaseTransitionTime",
            "VolumeCapacityPriority",
        ],
        flags: &[("kube-apiserver", "cloud-config")],
        kinds: &[],
    },
    Removed {
        minor: 34,
        gates: &["DevicePluginCDIDevices", "LegacySidecarContainers", "PodDisruptionConditions"],
        flags: &[("kubelet", "cloud-config")],
        kinds: &[],
    },
    Removed {
        minor: 35,
        gates: &["SizeMemoryBackedVolumes", "UserNamespacesHostNetworkSupport"],
        flags: &[("kubelet", "pod-infra-container-image")],
        kinds: &[],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upgrade_goes_to_the_same_or_the_next_minor() {
        for (from, to, fine) in [
            ("1.34.3", "1.35.0", true),
            ("v1.35.0", "1.35.1", true),
            ("1.35.1", "1.35.0", true),
            ("1.33.0", "1.35.0", false),
            ("1.35.0", "1.34.0", false),
            ("1.35.0", "1.36.0", false),
            ("1.18.0", "1.19.0", false),
            ("1.35", "1.35.0", true),
            ("new", "1.35.0", false),
        ] {
            assert_eq!(Path::new(from, to).is_ok(), fine, "{from} -> {to}");
        }
        let error = Path::new("1.33.0", "1.35.0").unwrap_err().to_string();
        assert!(
            error.starts_with("unsupported upgrade path 1.33->1.35 (from \"1.33.0\" to \"1.35.0\")"),
            "{error}"
        );
    }

    #[test]
    fn versions_are_read_out_of_images() {
        let text = |image: &str| Version::of_image(image).map(|version| version.to_string());
        assert_eq!(text("registry.k8s.io/kube-apiserver:v1.35.0").as_deref(), Some("1.35.0"));
        assert_eq!(text("localhost:5000/kubelet:v1.34.0-fat").as_deref(), Some("1.34.0-fat"));
        assert_eq!(text("localhost:5000/kubelet"), None);
    }

    #[test]
    fn what_a_minor_removes_is_found_on_command_lines() {
        let removed = Path::new("1.34.0", "1.35.0").unwrap().removed().unwrap();
        let command = ["kubelet", "--pod-infra-container-image=pause", "--v=2"].map(str::to_owned);
        let used = |component: &'static str, command: &[String]| -> Vec<String> {
            removed.used("a", component, command).iter().map(ToString::to_string).collect()
        };
        assert_eq!(used("kubelet", &command), ["a: kubelet: flag --pod-infra-container-image"]);
        let command = ["--feature-gates=Other=true,SizeMemoryBackedVolumes=false"].map(str::to_owned);
        assert_eq!(
            used("kube-apiserver", &command),
            ["a: kube-apiserver: feature gate SizeMemoryBackedVolumes"]
        );
        assert_eq!(Path::new("1.35.0", "1.35.1").unwrap().removed(), None);
    }

    #[test]
    fn machines_run_the_minors_of_their_version() {
        let version = |text: &str| Version::parse(text).unwrap();
        assert!(compatible("v1.12.1", &version("1.35.0")).is_ok());
        assert!(compatible("v1.12.1", &version("1.29.9")).is_err());
        assert!(compatible("v1.11.0", &version("1.34.0")).is_err());
    }
}
