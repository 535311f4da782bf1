//! Whether this version can run with a machine configuration, before anything is written. Pure.

use ichor_config::{Documents, Mode};

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Why the system would not come up.
    pub errors: Vec<String>,
    /// What would be different from what one may expect.
    pub notes: Vec<String>,
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
}
