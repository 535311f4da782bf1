//! Controllers of what Kubernetes should know about the node.
//!
//! So far the wishes only: labels, annotations and taints from the configuration. Who carries them
//! to the API server comes with Kubernetes itself.

pub mod wishes;

use ichor_cosi::{RegisterError, Runtime};

/// Adds the family to a runtime.
pub fn register(runtime: &Runtime) -> Result<(), RegisterError> {
    runtime.register(wishes::NodeLabelSpecController)?;
    runtime.register(wishes::NodeAnnotationSpecController)?;
    runtime.register(wishes::NodeTaintSpecController)?;
    Ok(())
}
