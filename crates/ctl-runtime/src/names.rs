//! Names that storage protocols know this machine by, as files.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, shared, weak};
use ichor_resource::cluster::Identity;
use ichor_resource::files::EtcFileSpec;

use crate::identity::machine_id;

/// Writes the specification of `/etc/iscsi/initiatorname.iscsi`.
#[derive(Debug, Default)]
pub struct IQNController;

/// Writes the specifications of `/etc/nvme/hostid` and `/etc/nvme/hostnqn`.
#[derive(Debug, Default)]
pub struct NQNController;

fn id(ctx: &Context) -> Result<Option<String>, ControllerError> {
    ctx.get::<Identity>("local")?.map(|identity| machine_id(&identity.node_id)).transpose()
}

fn publish(ctx: &Context, files: Vec<(&'static str, String)>) -> Result<(), ControllerError> {
    for (path, text) in files {
        ctx.modify::<EtcFileSpec>(path, |spec| {
            spec.contents = text.clone().into();
            spec.mode = 0o600;
            "system_u:object_r:etc_t:s0".clone_into(&mut spec.selinux_label);
        })?;
    }
    Ok(())
}

/// The UUID of a machine id: its first sixteen characters taken for bytes, as clients of the original know it.
fn uuid(machine_id: &str) -> String {
    let hex: String = machine_id.bytes().take(16).map(|byte| format!("{byte:02x}")).collect();
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    format!("{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
}

impl Controller for IQNController {
    const NAME: &'static str = "files.IQNController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<Identity>().id("local")]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<EtcFileSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let Some(id) = id(ctx)? else { return Ok(()) };
        let text = format!("InitiatorName=iqn.2017-11.dev.talos:{id}\n");
        publish(ctx, vec![("iscsi/initiatorname.iscsi", text)])
    }
}

impl Controller for NQNController {
    const NAME: &'static str = "files.NQNController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<Identity>().id("local")]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<EtcFileSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let Some(id) = id(ctx)? else { return Ok(()) };
        let uuid = uuid(&id);
        let name = format!("nqn.2017-11.dev.talos:uuid:{uuid}");
        publish(ctx, vec![("nvme/hostid", uuid), ("nvme/hostnqn", name)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uuid_is_made_of_characters() {
        assert_eq!(uuid("be871ac0d0dd31fa4caca753b0f3f1b2"), "62653837-3161-6330-6430-646433316661");
    }
}
