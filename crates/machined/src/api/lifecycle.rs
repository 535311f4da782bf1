//! Reboot, shutdown, reset: started in the background, followed by events.

use tonic::{Response, Status};

use ichor_cosi::State;
use ichor_resource::block::{Disk, SystemDisk};
use ichor_wire::machine;
use ichor_wire::machine::reset_request::WipeMode;

use crate::node::Power;
use crate::sequencer::Request;
use crate::sequencer::table::ResetRequest;

/// Id of the one system disk.
const SYSTEM_DISK: &str = "system-disk";

/// System volumes a node without disks can clear.
const CLEARABLE: [&str; 2] = ["STATE", "EPHEMERAL"];

fn require_owned(power: &Power) -> Result<(), Status> {
    match power.is_owned {
        true => Ok(()),
        false => Err(Status::failed_precondition("method is not supported in container mode")),
    }
}

/// A fresh id for the events of one call.
pub fn actor_id() -> String {
    // The kernel makes random UUIDs; reading one does not block.
    let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    match uuid.trim() {
        "" => format!("{:032x}", jiff::Timestamp::now().as_nanosecond().unsigned_abs()),
        uuid => uuid.to_owned(),
    }
}

/// Starts the reboot sequence.
pub fn reboot(
    power: &Power,
    request: machine::RebootRequest,
) -> Result<Response<machine::RebootResponse>, Status> {
    require_owned(power)?;
    let force = request.mode() == machine::reboot_request::Mode::Force;
    let actor_id = actor_id();
    power.sequencer.start(Request::Reboot { force }, false, &actor_id);
    let message = machine::Reboot { metadata: None, actor_id };
    Ok(Response::new(machine::RebootResponse { messages: vec![message] }))
}

/// Starts the shutdown sequence, taking over whatever runs.
pub fn shutdown(
    power: &Power,
    request: machine::ShutdownRequest,
) -> Result<Response<machine::ShutdownResponse>, Status> {
    require_owned(power)?;
    let actor_id = actor_id();
    power.sequencer.start(Request::Shutdown { force: request.force }, true, &actor_id);
    let message = machine::Shutdown { metadata: None, actor_id };
    Ok(Response::new(machine::ShutdownResponse { messages: vec![message] }))
}

/// Goes back to the version before. There is none without an installation.
pub fn rollback(power: &Power, state: &State) -> Result<Response<machine::RollbackResponse>, Status> {
    require_owned(power)?;
    match state.find::<SystemDisk>("runtime", SYSTEM_DISK) {
        None => Err(Status::failed_precondition("system disk not found")),
        Some(_) => Err(Status::unimplemented("rollbacks come with installation, which is not there yet")),
    }
}

/// Installs another version.
pub fn upgrade(
    power: &Power,
    state: &State,
    request: &machine::UpgradeRequest,
) -> Result<Response<machine::UpgradeResponse>, Status> {
    require_owned(power)?;
    let image = &request.image;
    if ichor_containerd::reference::normalize(image).is_none() {
        return Err(Status::invalid_argument(format!(
            "error validating installer image {image:?}: invalid reference format"
        )));
    }
    match state.find::<SystemDisk>("runtime", SYSTEM_DISK) {
        None => {
            Err(Status::failed_precondition("system disk not found; this node runs without an installation"))
        }
        Some(_) => Err(Status::unimplemented("upgrades come with installation, which is not there yet")),
    }
}

/// Starts the reset sequence, as far as this node can: its volumes are directories.
pub fn reset(
    power: &Power,
    state: &State,
    request: machine::ResetRequest,
) -> Result<Response<machine::ResetResponse>, Status> {
    let mode = request.mode();
    let conflict = |mode: &str, parameter: &str| {
        Err(Status::unknown(format!(
            "reset failed: invalid input, wipe mode {mode} doesn't support {parameter} parameter"
        )))
    };
    if !request.user_disks_to_wipe.is_empty() && mode == WipeMode::SystemDisk {
        return conflict("SYSTEM_DISK", "UserDisksToWipe");
    }
    if !request.system_partitions_to_wipe.is_empty() && mode == WipeMode::UserDisks {
        return conflict("USER_DISKS", "SystemPartitionsToWipe");
    }
    if let Some(device) = request
        .user_disks_to_wipe
        .iter()
        .find(|device| !state.list::<Disk>("runtime").iter().any(|disk| disk.dev_path == **device))
    {
        return Err(Status::unknown(format!("reset user disk failed: device {device} wasn't found")));
    }
    if !request.user_disks_to_wipe.is_empty() || mode == WipeMode::UserDisks {
        return Err(Status::unimplemented("wiping user disks is not supported yet"));
    }
    let partitions: Vec<String> = request
        .system_partitions_to_wipe
        .iter()
        .filter(|spec| spec.wipe)
        .map(|spec| spec.label.clone())
        .collect();
    if let Some(label) = partitions.iter().find(|label| !CLEARABLE.contains(&label.as_str())) {
        return Err(Status::unimplemented(format!(
            "this node has no partition {label:?} to wipe; it can clear STATE and EPHEMERAL"
        )));
    }
    let actor_id = actor_id();
    let request = ResetRequest { graceful: request.graceful, reboot: request.reboot, mode, partitions };
    power.sequencer.start(Request::Reset(request), false, &actor_id);
    let message = machine::Reset { metadata: None, actor_id };
    Ok(Response::new(machine::ResetResponse { messages: vec![message] }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actor_ids_are_uuids_and_differ() {
        let (a, b) = (actor_id(), actor_id());
        assert_ne!(a, b);
        assert_eq!(a.len(), 36);
    }
}
