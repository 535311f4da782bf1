//! Resources read from the wire.

use std::sync::Arc;

use ichor_resource::{BadMetadata, DecodeError, Kind, Metadata, Nanos, Phase, Resource, Spec, Version};
use ichor_wire::cosi::resource as wire;

/// Why a resource on the wire was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadResource {
    /// No metadata.
    #[error("metadata is missing")]
    NoMetadata,
    /// No spec.
    #[error("spec is missing")]
    NoSpec,
    /// Version or phase are not what they can be.
    #[error(transparent)]
    Metadata(#[from] BadMetadata),
    /// The contents do not decode.
    #[error(transparent)]
    Spec(#[from] DecodeError),
    /// Of another kind than the one asked for.
    #[error("resource is a {0}")]
    OtherKind(String),
}

/// Reads metadata into a draft of the kind it names. `kind` is shared when it is that kind.
pub(crate) fn metadata(meta: &wire::Metadata, kind: &Arc<Kind>) -> Result<Metadata, BadResource> {
    if meta.namespace != kind.namespace() || meta.r#type != kind.type_name() {
        let text = format!("{}/{}", meta.namespace, meta.r#type);
        return Err(BadResource::OtherKind(text));
    }
    let mut out = Metadata::new(kind.clone(), &*meta.id);
    out.set_version(Version::parse(&meta.version)?);
    out.set_phase(Phase::parse(&meta.phase)?);
    out.set_owner(Some(Arc::from(&*meta.owner)));
    let time = |time: &Option<prost_types::Timestamp>| {
        time.as_ref().map_or(Nanos(0), |time| Nanos::join(time.seconds, time.nanos))
    };
    out.set_times(time(&meta.created), time(&meta.updated));
    for finalizer in &meta.finalizers {
        out.add_finalizer(finalizer);
    }
    for (key, value) in &meta.labels {
        out.set_label(key, value);
    }
    for (key, value) in &meta.annotations {
        out.set_annotation(key, value);
    }
    Ok(out)
}

/// Reads a whole resource; `spec` makes the contents.
pub(crate) fn resource(
    resource: &wire::Resource,
    kind: &Arc<Kind>,
    spec: impl FnOnce(&wire::Spec) -> Result<Arc<dyn Spec>, DecodeError>,
) -> Result<Resource, BadResource> {
    let meta = resource.metadata.as_ref().ok_or(BadResource::NoMetadata)?;
    let contents = resource.spec.as_ref().ok_or(BadResource::NoSpec)?;
    Ok(Resource::new(metadata(meta, kind)?, spec(contents)?))
}
