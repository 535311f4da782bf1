//! Whether this version can run with a machine configuration, before anything is written, and what it would run. Pure.

use ichor_config::{Documents, Mode};
use ichor_render::{Facts, Rendering, render};

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Why the system would not come up.
    pub errors: Vec<String>,
    /// What would be different from what one may expect.
    pub notes: Vec<String>,
}

/// What this version would do with a configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Examination {
    /// Whether it can run with it.
    pub report: CheckReport,
    /// What would run; nothing when it cannot.
    pub rendering: Rendering,
}

/// Checks and renders a configuration for a machine. Without facts about the machine there are stand-ins, and what is said
/// about those is not told.
pub fn examine(documents: &Documents, platform: &str, facts: Option<&Facts>) -> Examination {
    let mut report = check(documents, platform);
    if !report.errors.is_empty() {
        return Examination { report, rendering: Rendering::default() };
    }
    let standing_in = Facts { platform: platform.to_owned(), ..Facts::default() };
    let outcome = render(documents, facts.unwrap_or(&standing_in));
    report.errors = outcome.errors;
    if facts.is_some() {
        report.notes.extend(outcome.notes);
    }
    let rendering = if report.errors.is_empty() { outcome.rendering } else { Rendering::default() };
    Examination { report, rendering }
}

/// Checks a configuration for a platform.
pub fn check(documents: &Documents, platform: &str) -> CheckReport {
    let mode = match platform {
        // The system is on a disk already, or is about to be: a disk to install to is not asked for here.
        "container" => Mode::CONTAINER,
        _ => Mode::CLOUD,
    };
    let mut report = CheckReport::default();
    match documents.validate(mode) {
        Ok(warnings) => report.notes.extend(warnings.into_iter().map(|found| found.message)),
        Err(errors) => report.errors.push(errors.to_string()),
    }
    if !documents.is_complete() {
        report.notes.push(
            "the configuration has no v1alpha1 document; the machine waits in maintenance mode".to_owned(),
        );
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_that_would_fail_is_refused_with_the_reason() {
        let load = |text: &str| Documents::load(text.as_bytes()).unwrap();
        let partial = load("apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: a\n");
        let report = check(&partial, "metal");
        assert!(report.errors.is_empty() && report.notes.len() == 1, "{report:?}");
        let broken = load("version: v1alpha1\nmachine:\n    type: worker\ncluster: {}\n");
        let report = check(&broken, "metal");
        assert!(!report.errors.is_empty(), "a worker without anything to join");
    }

    const WORKER: &str = include_str!("../../config/tests/fixtures/generate/v1.12/base-worker.yaml");

    fn documents(kubelet: &str) -> Documents {
        let image = "image: ghcr.io/siderolabs/kubelet:v1.28.0";
        assert!(WORKER.contains(image));
        Documents::load(WORKER.replace(image, &format!("{image}\n        {kubelet}")).as_bytes()).unwrap()
    }

    #[test]
    fn what_is_valid_and_cannot_be_rendered_is_refused_as_well() {
        let good = examine(&documents("clusterDNS: [10.96.0.10]"), "metal", None);
        assert_eq!(good.report, CheckReport::default());
        assert!(good.rendering.get("kubelet").unwrap().contains("10.96.0.10"));

        let broken = documents("extraArgs: {kubeconfig: /x}");
        assert_eq!(check(&broken, "metal"), CheckReport::default(), "valid as such");
        let found = examine(&broken, "metal", None);
        assert_eq!(
            found.report.errors,
            [r#"machine.kubelet.extraArgs: extra arg "kubeconfig" is not allowed"#]
        );
        assert_eq!(found.rendering, Rendering::default());
    }

    #[test]
    fn nothing_is_said_about_stand_ins() {
        let elsewhere = documents("nodeIP: {validSubnets: [10.0.0.0/8]}");
        let noted = |facts: Option<&Facts>| examine(&elsewhere, "metal", facts).report.notes;
        assert!(noted(Some(&Facts::default()))[0].contains("validSubnets"));
        assert_eq!(noted(None), Vec::<String>::new());
    }
}
