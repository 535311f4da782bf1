//! The certificate authorities that every program on the machine trusts, as one file.

use std::io;
use std::path::PathBuf;

use ichor_config::Document;
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, shared};
use ichor_ctl::{Configuration, active_input};
use ichor_resource::files::EtcFileSpec;

/// The file programs read, below `/etc`.
const BUNDLE: &str = "ssl/certs/ca-certificates.crt";

/// The bundle that the image brings.
pub const BUILT_IN_ROOTS: &str = "/etc/ssl/certs/ca-certificates";

/// Writes the specification of the bundle: what the image brings, then what the configuration adds.
#[derive(Debug)]
pub struct TrustedRoots {
    built_in: PathBuf,
}

impl TrustedRoots {
    /// `built_in` is the bundle of the image.
    pub fn new(built_in: impl Into<PathBuf>) -> Self {
        Self { built_in: built_in.into() }
    }
}

impl Controller for TrustedRoots {
    const NAME: &'static str = "secrets.TrustedRootsController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<EtcFileSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let built_in = match std::fs::read_to_string(&self.built_in) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error.into()),
        };
        let documents = Configuration::active(ctx)?;
        let extra = documents.iter().flat_map(|all| all.iter()).filter_map(|document| match document {
            Document::TrustedRootsConfig(config) => {
                Some((config.name.as_str(), config.certificates.as_str()))
            }
            _ => None,
        });
        let bundle = bundle(&built_in, extra);
        ctx.modify::<EtcFileSpec>(BUNDLE, |spec| {
            spec.contents = bundle.clone().into();
            spec.mode = 0o644;
            "system_u:object_r:etc_t:s0".clone_into(&mut spec.selinux_label);
        })?;
        Ok(())
    }
}

/// One text of all, a blank line between two, each added set under its name.
fn bundle<'a>(built_in: &str, extra: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut parts = vec![built_in.trim_end_matches('\n').to_owned()];
    parts.extend(extra.map(|(name, certificates)| {
        format!("{name}\n{}\n{}", "=".repeat(name.chars().count()), certificates.trim_matches('\n'))
    }));
    parts.retain(|part| !part.is_empty());
    let mut text = parts.join("\n\n");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_authorities_stand_under_their_names() {
        expect_test::expect![[r#"
            # built in

            mine
            ====
            PEM 1

            yours
            =====
            PEM 2
        "#]]
        .assert_eq(&bundle("# built in\n", [("mine", "PEM 1\n"), ("yours", "\nPEM 2")].into_iter()));
        assert_eq!(bundle("", std::iter::empty()), "\n");
    }
}
