//! Appliers: make the kernel what merged specs say.

use ichor_cosi::{Context, StateError, Typed};
use ichor_resource::TypedSpec;

pub mod address;
pub mod host;
pub mod link;
pub mod operator;
pub mod route;

/// Merged specs by where they are in their life.
pub(crate) struct Held<T> {
    /// In force, and held by us.
    pub(crate) running: Vec<Typed<T>>,
    /// To be undone, then let go with [`release`].
    pub(crate) ending: Vec<Typed<T>>,
}

/// Lists specs and puts our hold on those in force, so that none goes before it is undone.
pub(crate) fn hold<T: TypedSpec>(ctx: &Context) -> Result<Held<T>, StateError> {
    let mut held = Held { running: Vec::new(), ending: Vec::new() };
    for spec in ctx.list::<T>()? {
        let ours = spec.meta().has_finalizer(ctx.name());
        match (spec.meta().is_running(), ours) {
            (true, true) => held.running.push(spec),
            (true, false) => match ctx.add_finalizer::<T>(spec.id()) {
                Ok(()) => held.running.push(spec),
                // It went, or is going, since it was listed: that wakes us again.
                Err(StateError::NotFound(_)) => {}
                Err(error) => return Err(error),
            },
            (false, true) => held.ending.push(spec),
            (false, false) => {}
        }
    }
    Ok(held)
}

/// Lets go of a spec that was undone.
pub(crate) fn release<T: TypedSpec>(ctx: &Context, spec: &Typed<T>) -> Result<(), StateError> {
    match ctx.remove_finalizer::<T>(spec.id()) {
        Err(StateError::NotFound(_)) => Ok(()),
        result => result,
    }
}
