//! What a configuration may say and the node does not act on: one table, from which come the warnings of
//! `apply-config`, a `Diagnostics` resource on the node, and the list in `docs/status.md`.
//!
//! A test of `xtask` holds the table against the descriptions of all documents: a key is either read by some part of
//! the node or listed here.

use ichor_types::Cmdline;
use ichor_yaml::Node;

use crate::{
    diagnostic::Diagnostic,
    document::{Document, ROOT_KIND},
    documents::Documents,
    model::Path,
    validate::Mode,
};

/// Ignored fields that are reported at most; one more entry tells how many others there are.
const REPORTED_MAX: usize = 32;

/// When a field counts as used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// It is set.
    Set,
    /// It is `true`.
    True,
    /// It is `false`.
    False,
    /// It is a section whose `enabled` is `true`.
    Enabled,
    /// It is set, on a machine that the system is to be installed on.
    Installed,
    /// It is set, in a container, which has no disks of its own.
    Contained,
    /// Its list has an item that is none of these.
    OtherThan(&'static [&'static str]),
}

/// A field that the node accepts and ignores.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Kind of the document; `v1alpha1` for the root document.
    pub kind: &'static str,
    /// Dotted path as [`crate::describe::walk`] writes it, `[]` for the items of a list; empty for the whole document.
    pub path: &'static str,
    /// When it counts as used.
    pub when: When,
    /// What the node does not do.
    pub reason: &'static str,
}

const fn rule(kind: &'static str, path: &'static str, when: When, reason: &'static str) -> Rule {
    Rule { kind, path, when, reason }
}

const NO_DISKS: &str = "a container has no disks: nothing is partitioned, formatted or mounted";
const NO_ENCRYPTION: &str = "volumes are not encrypted yet; one that is to be is not made";
const NO_BOND: &str = "bonds are not created yet; the members stay single links";
const NO_WIREGUARD: &str = "WireGuard links are not created yet";
const NO_VIP: &str = "virtual addresses are not assigned to any node yet";
const NO_KUBESPAN: &str = "KubeSpan does not run yet; traffic between nodes is not encrypted by it";

/// Every ignored field of every document.
pub static RULES: &[Rule] = &[
    rule(ROOT_KIND, "machine.disks", When::Contained, NO_DISKS),
    rule(ROOT_KIND, "machine.features.apidCheckExtKeyUsage", When::False, "the check cannot be turned off"),
    rule(ROOT_KIND, "machine.features.rbac", When::False, "authorization by role cannot be turned off"),
    rule(
        ROOT_KIND,
        "machine.install.extensions",
        When::Set,
        "extensions are not added to the system that is installed; build them into the installer image",
    ),
    rule(ROOT_KIND, "machine.network.interfaces[].bond", When::Set, NO_BOND),
    rule(ROOT_KIND, "machine.network.interfaces[].vip", When::Set, NO_VIP),
    rule(ROOT_KIND, "machine.network.interfaces[].vlans[].vip", When::Set, NO_VIP),
    rule(ROOT_KIND, "machine.network.interfaces[].wireguard", When::Set, NO_WIREGUARD),
    rule(ROOT_KIND, "machine.network.kubespan", When::Enabled, NO_KUBESPAN),
    rule(ROOT_KIND, "machine.systemDiskEncryption", When::Set, NO_ENCRYPTION),
    rule("BondConfig", "", When::Set, NO_BOND),
    rule("ExistingVolumeConfig", "", When::Contained, NO_DISKS),
    rule("HCloudVIPConfig", "", When::Set, NO_VIP),
    rule("KubeSpanEndpointsConfig", "", When::Set, NO_KUBESPAN),
    rule("Layer2VIPConfig", "", When::Set, NO_VIP),
    rule("RawVolumeConfig", "", When::Contained, NO_DISKS),
    rule("RawVolumeConfig", "encryption", When::Set, NO_ENCRYPTION),
    rule("SideroLinkConfig", "", When::Set, "the SideroLink tunnel is not established yet"),
    rule("SwapVolumeConfig", "", When::Contained, NO_DISKS),
    rule("SwapVolumeConfig", "encryption", When::Set, NO_ENCRYPTION),
    rule("UserVolumeConfig", "", When::Contained, NO_DISKS),
    rule("UserVolumeConfig", "encryption", When::Set, NO_ENCRYPTION),
    rule("VolumeConfig", "", When::Contained, NO_DISKS),
    rule("VolumeConfig", "encryption", When::Set, NO_ENCRYPTION),
    rule("WireguardConfig", "", When::Set, NO_WIREGUARD),
];

/// An argument of the kernel command line that the node ignores.
#[derive(Clone, Copy, Debug)]
pub struct ArgumentRule {
    /// Its name.
    pub name: &'static str,
    /// The start of the value that is ignored; empty for any.
    pub value: &'static str,
    /// What the node does not do.
    pub reason: &'static str,
}

const fn argument(name: &'static str, value: &'static str, reason: &'static str) -> ArgumentRule {
    ArgumentRule { name, value, reason }
}

/// Every ignored argument of the kernel command line.
pub static ARGUMENTS: &[ArgumentRule] = &[
    argument("bond", "", NO_BOND),
    argument("siderolink.api", "", "the SideroLink tunnel is not established yet"),
    argument("talos.board", "", "boards have no installer of their own yet"),
    argument("talos.config", "guestinfo", "VMware guest information is not read yet"),
    argument("talos.experimental.wipe", "", "disks are not wiped yet"),
    argument("talos.unified_cgroup_hierarchy", "0", "the version of cgroups is the kernel's choice"),
];

/// Platforms whose configuration and network metadata the node reads.
pub const PLATFORMS: &[&str] = &["container", "metal", "nocloud", "sandbox"];

/// What to say of a platform that the node boots on without reading its metadata.
pub const PLATFORM_REASON: &str =
    "its metadata service is not read yet: no configuration, host name or addresses come from it";

/// Something that is set and ignored.
#[derive(Clone, Debug, PartialEq)]
pub struct IgnoredField {
    /// The document, as `Kind/name`; empty for the root document and the command line.
    pub document: String,
    /// Where in the document.
    pub path: Path,
    /// What the node does not do.
    pub reason: &'static str,
}

impl std::fmt::Display for IgnoredField {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gap = if self.document.is_empty() || self.path.0.is_empty() { "" } else { " " };
        write!(f, "{}{gap}{}: {}", self.document, self.path, self.reason)
    }
}

impl Documents {
    /// Fields that are set and that a node in this mode ignores, in the order of the documents and of [`RULES`].
    pub fn ignored(&self, mode: Mode) -> Vec<IgnoredField> {
        let mut found = Vec::new();
        for document in self.iter() {
            let kind = document.kind();
            let mut rules = RULES.iter().filter(|rule| rule.kind == kind).peekable();
            if rules.peek().is_none() {
                continue;
            }
            let tree = document.encode();
            let title = if kind == ROOT_KIND { String::new() } else { document.title() };
            for rule in rules {
                let mut note = |path: Path| {
                    found.push(IgnoredField { document: title.clone(), path, reason: rule.reason });
                };
                let steps: Vec<&str> = rule.path.split('.').filter(|step| !step.is_empty()).collect();
                visit(&tree, &steps, &Path::root(), &mut |node, path| {
                    if is_used(rule.when, node, mode) {
                        note(path.clone());
                    }
                });
            }
        }
        found
    }

    /// The same as warnings that point into the text.
    pub fn ignored_warnings(&self, mode: Mode) -> Vec<Diagnostic> {
        let all = self.ignored(mode);
        let others = all.len().saturating_sub(REPORTED_MAX);
        let documents: Vec<(String, &Document)> = self.iter().map(|found| (found.title(), found)).collect();
        let place = |field: &IgnoredField| {
            let title = if field.document.is_empty() { "v1alpha1.Config" } else { &field.document };
            let document = documents.iter().find(|(found, _)| found == title)?.1;
            Some(self.locate(document, &field.path))
        };
        let mut warnings: Vec<Diagnostic> = all
            .iter()
            .take(REPORTED_MAX)
            .map(|field| {
                let base = Diagnostic::warning(format!("{field} (accepted and not applied)"));
                let span = place(field).unwrap_or(base.span);
                Diagnostic { document: field.document.clone(), path: field.path.clone(), span, ..base }
            })
            .collect();
        if others > 0 {
            let text = format!("{others} more fields are accepted and not applied");
            warnings.push(Diagnostic::warning(text));
        }
        warnings
    }
}

/// Calls `found` for every node that a path leads to; lists are entered item by item.
fn visit(node: &Node, steps: &[&str], at: &Path, found: &mut impl FnMut(&Node, &Path)) {
    let [step, rest @ ..] = steps else { return found(node, at) };
    let (key, list) = step.strip_suffix("[]").map_or((*step, false), |key| (key, true));
    let Some(value) = node.get(key).filter(|value| !value.is_null()) else { return };
    let at = at.key(key);
    if !list {
        return visit(value, rest, &at, found);
    }
    for (index, item) in value.as_seq().unwrap_or_default().iter().enumerate() {
        visit(item, rest, &at.index(index), found);
    }
}

fn is_used(when: When, node: &Node, mode: Mode) -> bool {
    match when {
        When::Set => true,
        When::True => node.as_str() == Some("true"),
        When::False => node.as_str() == Some("false"),
        When::Enabled => node.get("enabled").and_then(Node::as_str) == Some("true"),
        When::Installed => mode.requires_install && node.as_str() != Some("false"),
        When::Contained => mode.in_container,
        When::OtherThan(known) => {
            let items = node.as_seq().unwrap_or_default().iter();
            items.filter_map(Node::as_str).any(|item| !known.contains(&item))
        }
    }
}

/// Arguments of the kernel command line that the node ignores, each with its reason.
pub fn ignored_arguments(cmdline: &Cmdline) -> Vec<String> {
    let used = ARGUMENTS.iter().filter_map(|rule| {
        let value = cmdline.all(rule.name).iter().find(|value| value.starts_with(rule.value))?;
        // Values may hold secrets; the part that decides is enough.
        let shown = if rule.value.is_empty() { String::new() } else { format!("={}", rule.value) };
        let more = if value.len() > rule.value.len() && !shown.is_empty() { "…" } else { "" };
        Some(format!("{}{shown}{more}: {}", rule.name, rule.reason))
    });
    used.collect()
}

/// What a node does not do on this platform, if it is one whose metadata it does not read.
pub fn ignored_platform(platform: &str) -> Option<String> {
    (!PLATFORMS.contains(&platform)).then(|| format!("talos.platform={platform}: {PLATFORM_REASON}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ignored(text: &str, mode: Mode) -> Vec<String> {
        let documents = Documents::load(text.as_bytes()).unwrap();
        documents.ignored(mode).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_set_and_ignored_is_named_with_its_place() {
        let text = "version: v1alpha1
debug: true
machine:
  type: worker
  files: [{path: /var/a, content: b, permissions: 0o644, op: create}]
  features: {rbac: false, apidCheckExtKeyUsage: true}
  install: {disk: /dev/sda}
  kubelet:
    extraMounts:
      - {destination: /a, type: bind, source: /a, options: [bind, rshared, rw]}
      - {destination: /b, type: bind, source: /b, options: [bind, noexec], uidMappings: [{containerID: 0, hostID: 1, size: 2}]}
  network:
    interfaces:
      - interface: eth0
        dhcp: true
      - interface: bond0
        bond: {interfaces: [eth1], mode: 802.3ad}
        vlans: [{vlanId: 7, vip: {ip: 10.0.0.1}}]
---
apiVersion: v1alpha1
kind: OOMConfig
---
apiVersion: v1alpha1
kind: BondConfig
name: bond1
links: [eth3]
";
        expect_test::expect![[r#"
            machine.features.rbac: authorization by role cannot be turned off
            machine.network.interfaces[1].bond: bonds are not created yet; the members stay single links
            machine.network.interfaces[1].vlans[0].vip: virtual addresses are not assigned to any node yet
            BondConfig/bond1: bonds are not created yet; the members stay single links"#]]
        .assert_eq(&ignored(text, Mode::CLOUD).join("\n"));
        let metal = ignored(text, Mode::METAL);
        assert!(!metal.iter().any(|line| line.starts_with("machine.install")), "{metal:#?}");
    }

    #[test]
    fn a_configuration_that_asks_for_nothing_special_is_silent() {
        let text = "version: v1alpha1\ndebug: false\nmachine:\n  type: worker\n  features: {rbac: true}\n  files: []\n  network: {kubespan: {enabled: false}}\n";
        assert_eq!(ignored(text, Mode::METAL), [""; 0]);
    }

    #[test]
    fn warnings_point_into_the_text_and_are_bounded() {
        let mut text = "version: v1alpha1\nmachine:\n  type: worker\n  features:\n    rbac: false\n  network:\n    interfaces:\n".to_owned();
        for number in 0..100 {
            text.push_str(&format!("      - interface: eth{number}\n        vip: {{ip: 10.0.0.1}}\n"));
        }
        let warnings = Documents::load(text.as_bytes()).unwrap().ignored_warnings(Mode::CLOUD);
        assert_eq!(
            warnings[0].placed(),
            "line 5, column 11: machine.features.rbac: authorization by role cannot be turned off (accepted and not applied)"
        );
        assert_eq!(warnings.len(), REPORTED_MAX + 1);
        assert_eq!(warnings.last().unwrap().placed(), "69 more fields are accepted and not applied");
    }

    #[test]
    fn arguments_are_named_without_their_values() {
        let told = |text: &str| ignored_arguments(&Cmdline::parse(text));
        assert_eq!(
            told("talos.config=guestinfo.secret siderolink.api=grpc://host?jointoken=secret"),
            [
                "siderolink.api: the SideroLink tunnel is not established yet",
                "talos.config=guestinfo…: VMware guest information is not read yet",
            ]
        );
        assert_eq!(told("talos.config=https://host/a console=ttyS0 talos.platform=metal"), [""; 0]);
        assert!(ignored_platform("aws").is_some() && ignored_platform("metal").is_none());
    }

    #[test]
    fn every_rule_names_a_field_that_exists() {
        for rule in RULES {
            let object = crate::describe::kind_object(rule.kind).expect(rule.kind);
            let known = rule.path.is_empty()
                || crate::describe::walk(object).iter().any(|(path, _)| path == rule.path);
            assert!(known, "{} {}", rule.kind, rule.path);
        }
    }
}
