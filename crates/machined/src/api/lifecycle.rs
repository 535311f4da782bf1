//! Reboot, shutdown, reset: started in the background, followed by events.

use std::path::Path;

use tonic::{Response, Status};
use tracing::info;

use ichor_ctl_runtime::MetaError;
use ichor_resource::block::Disk;
use ichor_wire::machine;
use ichor_wire::machine::reset_request::WipeMode;

use super::machine::ApiMode;
use super::upgrade_safety;
use crate::node::{Node, Power};
use crate::sequencer::Request;
use crate::sequencer::table::{ResetRequest, UpgradeRequest};
use crate::tasks::install;
use crate::tasks::reset::labels_on;

/// System volumes that can be cleared wherever they are.
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

/// Has the earlier system started, and reboots.
pub async fn rollback(node: &Node) -> Result<Response<machine::RollbackResponse>, Status> {
    require_owned(&node.power)?;
    if node.slots.disk().is_none() {
        return Err(Status::failed_precondition("system disk not found"));
    }
    let started = node.slots.rollback().await.map_err(Status::failed_precondition)?;
    info!("rollback: the machine reboots into {started}");
    node.power.sequencer.start(Request::Reboot { force: false }, true, "");
    Ok(Response::new(machine::RollbackResponse { messages: vec![machine::Rollback { metadata: None }] }))
}

/// Has an installer of another version checked, then starts the upgrade.
pub async fn upgrade(
    node: &Node,
    mode: ApiMode,
    request: &machine::UpgradeRequest,
) -> Result<Response<machine::UpgradeResponse>, Status> {
    require_owned(&node.power)?;
    let image = &request.image;
    if ichor_containerd::reference::normalize(image).is_none() {
        return Err(Status::invalid_argument(format!(
            "error validating installer image {image:?}: invalid reference format"
        )));
    }
    if node.slots.disk().is_none() {
        return Err(Status::failed_precondition(
            "system disk not found; this node runs without an installation",
        ));
    }
    if mode == ApiMode::Maintenance && (request.preserve || request.stage || request.force) {
        return Err(Status::unimplemented(
            "upgrade --preserve, --stage, and --force are not supported in maintenance mode",
        ));
    }
    let told = install::prepare(node, image, request.force).await.map_err(Status::failed_precondition)?;
    if mode == ApiMode::Configured && !request.force {
        upgrade_safety::check(node).await?;
    }
    let wanted = UpgradeRequest { image: image.clone(), force: request.force };
    let sequence = match (mode, request.stage) {
        (ApiMode::Maintenance, _) => Request::MaintenanceUpgrade(wanted),
        (ApiMode::Configured, false) => Request::Upgrade(wanted),
        (ApiMode::Configured, true) => {
            let meta = &node.store.meta;
            let full = |error: MetaError| Status::internal(format!("stage the upgrade: {error}"));
            meta.set(install::STAGED_IMAGE, image.clone().into_bytes()).await.map_err(full)?;
            let options = install::staged_options(request.force);
            meta.set(install::STAGED_OPTIONS, options).await.map_err(full)?;
            Request::StageUpgrade
        }
    };
    let actor_id = actor_id();
    // Before the sequence, so that it is seen above its phases.
    told.into_iter().for_each(|line| node.journal.events.publish_as(&actor_id, about_upgrade(line)));
    node.power.sequencer.start(sequence, false, &actor_id);
    let ack = "Upgrade request received".to_owned();
    let message = machine::Upgrade { metadata: None, ack, actor_id };
    Ok(Response::new(machine::UpgradeResponse { messages: vec![message] }))
}

/// A line about an upgrade, as an event that clients of every version show.
fn about_upgrade(line: String) -> machine::ServiceStateEvent {
    let health = machine::ServiceHealth { healthy: true, ..machine::ServiceHealth::default() };
    machine::ServiceStateEvent {
        service: "installer".to_owned(),
        action: machine::service_state_event::Action::Running.into(),
        message: line,
        health: Some(health),
    }
}

/// Starts the reset sequence.
pub fn reset(
    node: &Node,
    mode: ApiMode,
    request: machine::ResetRequest,
) -> Result<Response<machine::ResetResponse>, Status> {
    let state = &node.store.state;
    let disk = node.slots.disk();
    let wipe = request.mode();
    check_reset(&request, &state.list::<Disk>("runtime"), disk.as_deref())?;
    let partitions: Vec<String> = request
        .system_partitions_to_wipe
        .iter()
        .filter(|spec| spec.wipe)
        .map(|spec| spec.label.clone())
        .collect();
    if mode == ApiMode::Maintenance && !request.system_partitions_to_wipe.is_empty() {
        return Err(Status::failed_precondition(
            "reset of system partitions is not supported in maintenance mode",
        ));
    }
    let known = disk.as_deref().map(|disk| labels_on(node, disk)).unwrap_or_default();
    if let Some(label) =
        partitions.iter().find(|label| !CLEARABLE.contains(&label.as_str()) && !known.contains(*label))
    {
        let there: Vec<&str> = known.iter().map(String::as_str).chain(CLEARABLE).collect();
        return Err(Status::unknown(format!(
            "reset system partition failed: volume with label {label:?} not found; there are {}",
            there.join(", ")
        )));
    }
    let actor_id = actor_id();
    let request = ResetRequest {
        // There is nothing to say goodbye to before there is a configuration.
        graceful: request.graceful && mode == ApiMode::Configured,
        reboot: request.reboot,
        mode: wipe,
        partitions,
        user_disks: request.user_disks_to_wipe,
    };
    // A machine in maintenance mode is still in its first sequence.
    node.power.sequencer.start(Request::Reset(request), mode == ApiMode::Maintenance, &actor_id);
    let message = machine::Reset { metadata: None, actor_id };
    Ok(Response::new(machine::ResetResponse { messages: vec![message] }))
}

/// Refuses a reset that contradicts itself, or names a disk that must not be wiped.
fn check_reset<D: std::ops::Deref<Target = Disk>>(
    request: &machine::ResetRequest,
    disks: &[D],
    system_disk: Option<&Path>,
) -> Result<(), Status> {
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
    for device in &request.user_disks_to_wipe {
        let refused =
            |reason: &str| Err(Status::unknown(format!("reset user disk failed: device {device} {reason}")));
        let Some(disk) = disks.iter().find(|disk| disk.dev_path == *device) else {
            return refused("wasn't found");
        };
        if disk.readonly {
            return refused("is readonly");
        }
        if system_disk == Some(Path::new(device)) {
            return refused("is a system disk");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_that_must_not_be_wiped_are_refused() {
        let disk =
            |path: &str, readonly| Box::new(Disk { dev_path: path.to_owned(), readonly, ..Disk::default() });
        let disks = [disk("/dev/vda", false), disk("/dev/vdb", false), disk("/dev/vdc", true)];
        let told = |mode: WipeMode, user: &[&str], labels: &[&str]| {
            let request = machine::ResetRequest {
                mode: mode.into(),
                user_disks_to_wipe: user.iter().map(|path| (*path).to_owned()).collect(),
                system_partitions_to_wipe: labels
                    .iter()
                    .map(|label| machine::ResetPartitionSpec { label: (*label).to_owned(), wipe: true })
                    .collect(),
                ..machine::ResetRequest::default()
            };
            let checked = check_reset(&request, &disks, Some(Path::new("/dev/vda")));
            checked.err().map(|status| status.message().to_owned()).unwrap_or_default()
        };
        assert_eq!(told(WipeMode::All, &["/dev/vdb"], &["STATE"]), "");
        assert_eq!(told(WipeMode::UserDisks, &["/dev/vdb"], &[]), "");
        for (mode, user, labels, expected) in [
            (WipeMode::SystemDisk, &["/dev/vdb"][..], &[][..], "UserDisksToWipe parameter"),
            (WipeMode::UserDisks, &[], &["STATE"], "SystemPartitionsToWipe parameter"),
            (WipeMode::All, &["/dev/vdx"], &[], "wasn't found"),
            (WipeMode::All, &["/dev/vdc"], &[], "is readonly"),
            (WipeMode::All, &["/dev/vda"], &[], "is a system disk"),
        ] {
            let text = told(mode, user, labels);
            assert!(text.ends_with(expected), "{text}");
        }
    }

    #[test]
    fn what_is_said_about_an_upgrade_is_for_who_asked_for_it() {
        use crate::events::{Events, Payload, Tail};

        let events = Events::default();
        let mut watch = events.watch(&Tail::None, Some("me"));
        events.publish_as("other", about_upgrade("kubelet: +x".to_owned()));
        events.publish_as("me", about_upgrade("etcd: +x".to_owned()));
        let Payload::ServiceState(seen) = &watch.try_next().unwrap().payload else { panic!("an event") };
        assert_eq!((seen.service.as_str(), seen.message.as_str()), ("installer", "etcd: +x"));
        assert!(watch.try_next().is_none());
    }

    #[test]
    fn actor_ids_are_uuids_and_differ() {
        let (a, b) = (actor_id(), actor_id());
        assert_ne!(a, b);
        assert_eq!(a.len(), 36);
    }
}
