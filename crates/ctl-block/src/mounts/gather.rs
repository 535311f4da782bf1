//! From requests of many to one request for each volume.

use std::collections::BTreeMap;

use ichor_cosi::{
    Context, Controller, ControllerError, Input, Output, Typed, destroy_ready, exclusive, strong, weak,
};
use ichor_resource::block::{
    MountRequest, VolumeMountRequest, VolumeMountStatus, VolumePhase, VolumeStatus, VolumeType,
};

/// Writes `MountRequests`.
#[derive(Debug, Default)]
pub struct MountRequestController;

/// One who needs a volume.
struct Asking<'a> {
    id: &'a str,
    request: &'a VolumeMountRequest,
}

/// The requests for each volume. A volume inside a directory that is a volume too needs that as well.
fn gather<'a>(
    asking: impl Iterator<Item = Asking<'a>>,
    volumes: &BTreeMap<String, VolumeStatus>,
    is_available: impl Fn(&str) -> bool,
) -> BTreeMap<String, MountRequest> {
    let mut wanted: BTreeMap<String, MountRequest> = BTreeMap::new();
    for Asking { id, request } in asking {
        let volume = request.volume_id.as_str();
        let Some(status) = volumes.get(volume).filter(|_| is_available(volume)) else { continue };
        let parent = status.mount_spec.parent_id.clone();
        let entry = wanted.entry(volume.to_owned()).or_insert_with(|| MountRequest {
            volume_id: volume.to_owned(),
            parent_id: parent.clone(),
            // Read-only and detached as long as all agree.
            read_only: true,
            detached: true,
            ..MountRequest::default()
        });
        entry.read_only &= request.read_only;
        entry.detached &= request.detached;
        entry.requesters.push(request.requester.clone());
        entry.requester_ids.push(id.to_owned());
    }
    let mut parents: Vec<(String, String)> =
        wanted.values().map(|child| (child.parent_id.clone(), child.volume_id.clone())).collect();
    while let Some((id, child)) = parents.pop() {
        // Volumes on disks are mounted for those who ask for them by name.
        let Some(status) = volumes.get(&id).filter(|status| status.r#type == VolumeType::Directory) else {
            continue;
        };
        let parent = status.mount_spec.parent_id.clone();
        if parent.is_empty() || !is_available(&id) {
            continue;
        }
        let entry = wanted.entry(id.clone()).or_insert_with(|| MountRequest {
            volume_id: id.clone(),
            parent_id: parent.clone(),
            ..MountRequest::default()
        });
        if !entry.requesters.contains(&child) {
            entry.requesters.push(child);
            parents.push((parent, id));
        }
    }
    wanted
}

impl Controller for MountRequestController {
    const NAME: &'static str = "block.MountRequestController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            strong::<VolumeMountRequest>(),
            weak::<VolumeMountStatus>(),
            weak::<VolumeStatus>(),
            destroy_ready::<MountRequest>(),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<MountRequest>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let requests = ctx.list::<VolumeMountRequest>()?;
        let told = ctx.list::<VolumeMountStatus>()?;
        let statuses = ctx.list::<VolumeStatus>()?;
        let made = ctx.list::<MountRequest>()?;
        let volumes: BTreeMap<String, VolumeStatus> =
            statuses.iter().map(|status| (status.id().to_string(), status.spec().clone())).collect();
        // Until it was told that the mount is there nothing holds the requester; then the status has to go first.
        let is_active = |request: &Typed<VolumeMountRequest>| {
            request.meta().is_running() || told.iter().any(|status| status.id() == request.id())
        };
        let is_available = |id: &str| {
            let is_kept = made.iter().any(|request| request.id() == id && request.meta().is_running());
            let status = statuses.iter().find(|status| status.id() == id);
            status.is_some_and(|status| {
                status.meta().is_running() && (is_kept || status.phase == VolumePhase::Ready)
            })
        };
        let asking = requests
            .iter()
            .filter(|request| is_active(request))
            .map(|request| Asking { id: request.id(), request: request.spec() });
        let wanted = gather(asking, &volumes, is_available);
        for request in requests.iter().filter(|request| request.meta().is_running()) {
            ctx.add_finalizer::<VolumeMountRequest>(request.id())?;
        }
        for (id, spec) in &wanted {
            // One that is on its way out comes back when it is gone.
            if made.iter().all(|request| request.id().as_str() != id.as_str() || request.meta().is_running())
            {
                ctx.modify::<MountRequest>(id, |stored| stored.clone_from(spec))?;
            }
        }
        ctx.keep_only::<MountRequest>("runtime", |id| wanted.contains_key(id.as_str()))?;
        let left = ctx.list::<MountRequest>()?;
        for request in requests.iter().filter(|request| !request.meta().is_running()) {
            let is_listed = left.iter().any(|made| {
                made.volume_id == request.volume_id
                    && (!made.meta().is_running()
                        || made.requester_ids.iter().any(|id| request.id() == id.as_str()))
            });
            if !is_listed {
                ctx.remove_finalizer::<VolumeMountRequest>(request.id())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ichor_resource::block::MountSpec;

    use super::*;

    #[test]
    fn requests_for_a_volume_are_one_and_read_only_when_all_agree() {
        let status = |r#type, parent: &str| VolumeStatus {
            r#type,
            mount_spec: MountSpec { parent_id: parent.into(), ..MountSpec::default() },
            ..VolumeStatus::default()
        };
        let volumes = BTreeMap::from([
            ("EPHEMERAL".to_owned(), status(VolumeType::Partition, "")),
            ("/var/mnt".to_owned(), status(VolumeType::Directory, "EPHEMERAL")),
            ("u-a".to_owned(), status(VolumeType::Partition, "/var/mnt")),
        ]);
        let request = |read_only, requester: &str| VolumeMountRequest {
            volume_id: "u-a".into(),
            read_only,
            requester: requester.into(),
            ..VolumeMountRequest::default()
        };
        let (first, second) = (request(true, "one"), request(false, "two"));
        let both = [Asking { id: "1", request: &first }, Asking { id: "2", request: &second }];
        let found = gather(both.into_iter(), &volumes, |_| true);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["/var/mnt", "u-a"], "EPHEMERAL is asked for by name");
        assert!(!found["u-a"].read_only);
        assert_eq!(found["u-a"].requesters, ["one", "two"]);
        assert_eq!(found["/var/mnt"].requesters, ["u-a"]);
        let one = [Asking { id: "1", request: &first }];
        assert!(gather(one.into_iter(), &volumes, |_| true)["u-a"].read_only);
        let one = [Asking { id: "1", request: &first }];
        assert!(gather(one.into_iter(), &volumes, |id| id == "/var/mnt").is_empty());
    }
}
