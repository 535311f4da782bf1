//! The salt of disk encryption keys, from the first boot on.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, shared};
use ichor_ctl::volumes::{self, Readiness, STATE};
use ichor_resource::secrets::EncryptionSalt;

use crate::ports::IdentityStore;

/// The file in the state directory.
const SALT_FILE: &str = "encryption-salt.yaml";

const SALT_LEN: usize = 32;

/// A file with a salt in it that is none.
#[derive(Debug, thiserror::Error)]
#[error("{SALT_FILE} holds no salt; without the right one encrypted disks cannot be opened")]
struct NoSalt;

/// Writes `EncryptionSalts/salt`.
#[derive(Debug)]
pub struct EncryptionSaltController<S> {
    store: S,
    /// Whether STATE may be a disk that has to be mounted first.
    waits: bool,
    done: bool,
}

impl<S: IdentityStore> EncryptionSaltController<S> {
    /// A controller that keeps the salt there.
    pub fn new(store: S) -> Self {
        Self { store, waits: false, done: false }
    }

    /// The same on a machine whose STATE may be a disk: it waits for that.
    #[must_use]
    pub fn on_volume(mut self, waits: bool) -> Self {
        self.waits = waits;
        self
    }

    fn salt(&self) -> Result<Vec<u8>, ControllerError> {
        if let Some(contents) = self.store.load(SALT_FILE)? {
            return Ok(parse(&contents).ok_or(NoSalt)?);
        }
        let salt = ichor_pki::random::bytes::<SALT_LEN>()?;
        self.store.create(SALT_FILE, print(&salt).as_bytes())?;
        Ok(salt.to_vec())
    }
}

/// The salt as a list of numbers.
fn print(salt: &[u8]) -> String {
    let mut text = "diskSalt:\n".to_owned();
    for byte in salt {
        text.push_str(&format!("    - {byte}\n"));
    }
    text
}

fn parse(contents: &[u8]) -> Option<Vec<u8>> {
    let documents = ichor_yaml::parse(std::str::from_utf8(contents).ok()?).ok()?;
    let numbers = documents.first()?.root.get("diskSalt")?.as_seq()?;
    let salt: Option<Vec<u8>> = numbers.iter().map(|number| number.as_str()?.parse().ok()).collect();
    salt.filter(|salt| salt.len() == SALT_LEN && salt.iter().any(|byte| *byte != 0))
}

impl<S: IdentityStore> Controller for EncryptionSaltController<S> {
    const NAME: &'static str = "secrets.EncryptionSaltController";

    fn inputs(&self) -> Vec<Input> {
        if self.waits { volumes::inputs(STATE).into() } else { Vec::new() }
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<EncryptionSalt>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let is_ready = || -> Result<bool, ControllerError> {
            let found = volumes::of(ctx, STATE)?;
            Ok(matches!(found, Readiness::Usable | Readiness::Absent))
        };
        if !self.done && (!self.waits || is_ready()?) {
            let salt = self.salt()?;
            ctx.modify::<EncryptionSalt>("salt", |spec| spec.disk_salt = salt.clone().into())?;
            self.done = true;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_salt_comes_back_and_bad_ones_are_refused() {
        let salt: Vec<u8> = (1..=32).collect();
        assert_eq!(parse(print(&salt).as_bytes()), Some(salt));
        for bad in ["", "diskSalt: []\n", "diskSalt:\n  - 1\n", &print(&[0; 32]), &print(&[7; 31])] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
