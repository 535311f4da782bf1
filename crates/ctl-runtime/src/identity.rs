//! Who this node is, from its first boot on.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, shared};
use ichor_ctl::volumes::{self, Readiness, STATE};
use ichor_resource::cluster::Identity;
use ichor_resource::files::EtcFileSpec;
use ichor_types::base62;

use crate::ports::IdentityStore;

/// The file in the state directory.
pub const IDENTITY_FILE: &str = "node-identity.yaml";

/// A file with an identity in it that cannot be one.
#[derive(Debug, thiserror::Error)]
#[error("{IDENTITY_FILE} holds no node id; remove it to get a new identity")]
struct NoIdentity;

/// Writes `Identities/local` and the specification of `/etc/machine-id`.
#[derive(Debug)]
pub struct NodeIdentityController<S> {
    store: S,
    /// Whether STATE may be a disk that has to be mounted first.
    waits: bool,
    known: Option<String>,
}

impl<S: IdentityStore> NodeIdentityController<S> {
    /// A controller that keeps the identity there.
    pub fn new(store: S) -> Self {
        Self { store, waits: false, known: None }
    }

    /// The same on a machine whose STATE may be a disk: it waits for that.
    #[must_use]
    pub fn on_volume(mut self, waits: bool) -> Self {
        self.waits = waits;
        self
    }

    /// Loads the identity, or makes one at the first boot.
    fn identity(&mut self) -> Result<String, ControllerError> {
        if let Some(known) = &self.known {
            return Ok(known.clone());
        }
        let node_id = match self.store.load(IDENTITY_FILE)? {
            Some(contents) => parse(&contents)?,
            None => {
                let node_id = base62::encode(&ichor_pki::random::bytes::<32>()?);
                self.store.create(IDENTITY_FILE, format!("nodeId: {node_id}\n").as_bytes())?;
                node_id
            }
        };
        self.known = Some(node_id.clone());
        Ok(node_id)
    }
}

/// The id in a `nodeId: …` file.
fn parse(contents: &[u8]) -> Result<String, ControllerError> {
    let text = std::str::from_utf8(contents)?;
    let value = text.lines().find_map(|line| line.trim().strip_prefix("nodeId:")).ok_or(NoIdentity)?;
    let node_id = value.trim().trim_matches(['"', '\'']);
    if node_id.is_empty() {
        return Err(NoIdentity.into());
    }
    base62::decode(node_id)?;
    Ok(node_id.to_owned())
}

/// The first half of the identity, in hex.
pub(crate) fn machine_id(node_id: &str) -> Result<String, ControllerError> {
    let bytes = base62::decode(node_id)?;
    let half = bytes.get(..16).ok_or(NoIdentity)?;
    Ok(half.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl<S: IdentityStore> Controller for NodeIdentityController<S> {
    const NAME: &'static str = "cluster.NodeIdentityController";

    fn inputs(&self) -> Vec<Input> {
        if self.waits { volumes::inputs(STATE).into() } else { Vec::new() }
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<Identity>(), shared::<EtcFileSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        // One that is made while STATE has no partition is in memory, and moves there with it.
        if self.waits
            && self.known.is_none()
            && !matches!(volumes::of(ctx, STATE)?, Readiness::Usable | Readiness::Absent)
        {
            return Ok(());
        }
        let node_id = self.identity()?;
        let contents = machine_id(&node_id)?;
        ctx.modify::<Identity>("local", |spec| spec.node_id.clone_from(&node_id))?;
        ctx.modify::<EtcFileSpec>("machine-id", |spec| {
            spec.contents = contents.clone().into();
            spec.mode = 0o444;
            "system_u:object_r:etc_t:s0".clone_into(&mut spec.selinux_label);
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_id_is_the_first_half_of_the_identity() {
        let id = machine_id("sou7yy34ykX3n373Zw1DXKb8zD7UnyKT6HT3QDsGH6L").unwrap();
        assert_eq!(id, "be871ac0d0dd31fa4caca753b0f3f1b2");
    }

    #[test]
    fn files_without_an_identity_are_errors() {
        assert_eq!(parse(b"nodeId: abc\n").unwrap(), "abc");
        assert_eq!(parse(b"nodeId: \"abc\"\n").unwrap(), "abc");
        for bad in [&b""[..], b"nodeId:\n", b"nodeId: \"\"\n", b"nodeId: a-b\n", b"\xff"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
