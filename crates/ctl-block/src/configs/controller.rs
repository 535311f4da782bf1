//! Publishes the volumes of the system.

use std::path::PathBuf;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, destroy_ready, shared, weak};
use ichor_ctl::{Configuration, active_input};
use ichor_resource::block::{VolumeConfig, VolumePhase, VolumeStatus};

use super::system::{self, META, Place};
use crate::system_disk::META_HOLDER;

/// The label of volumes that belong to the system.
const SYSTEM_VOLUME: &str = "talos.dev/system-volume";

/// Writes the `VolumeConfigs` of META, STATE and EPHEMERAL: partitions of the system disk where META was found and is
/// used, directories on a machine that runs from memory. Until that is known there is only META.
#[derive(Debug)]
pub struct VolumeConfigController {
    state: PathBuf,
    ephemeral: PathBuf,
    place: Option<Place>,
}

impl VolumeConfigController {
    /// A controller of volumes that are seen at these directories.
    pub fn new(state: PathBuf, ephemeral: PathBuf) -> Self {
        Self { state, ephemeral, place: None }
    }

    /// Where the volumes are. A disk that comes while the machine runs from memory is not taken for its own: META has
    /// to be held by those who read it.
    fn place(&mut self, ctx: &Context) -> Result<Option<Place>, ControllerError> {
        if let Some(meta) = ctx.get::<VolumeStatus>(META)? {
            let is_held = meta.meta().finalizers().iter().any(|holder| holder == META_HOLDER);
            match meta.phase {
                VolumePhase::Ready if is_held => self.place = Some(Place::Disk),
                VolumePhase::Missing => self.place = self.place.or(Some(Place::Memory)),
                _ => {}
            }
        }
        Ok(self.place)
    }
}

impl Controller for VolumeConfigController {
    const NAME: &'static str = "block.VolumeConfigController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input(), weak::<VolumeStatus>().id(META), destroy_ready::<VolumeConfig>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<VolumeConfig>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let configuration = Configuration::active(ctx)?;
        let mut wanted = vec![(META, system::meta())];
        if let Some(place) = self.place(ctx)? {
            let documents = configuration.as_deref();
            wanted.extend(system::volumes(place, &self.state, &self.ephemeral, documents));
        }
        for (id, spec) in &wanted {
            ctx.modify_with::<VolumeConfig>("runtime", id, |stored, metadata| {
                stored.clone_from(spec);
                metadata.set_label(SYSTEM_VOLUME, "");
            })?;
        }
        Ok(ctx.keep_only::<VolumeConfig>("runtime", |id| wanted.iter().any(|(name, _)| id == *name))?)
    }
}
