//! The commonest controller: each input becomes one output.

use std::future::Future;

use hashbrown::HashSet;

use ichor_resource::{Id, TypedSpec};

use crate::context::Context;
use crate::controller::{Controller, ControllerError};
use crate::dependency::{Input, InputKind, Output, destroy_ready, exclusive, strong, weak};
use crate::handle::KindHandle;
use crate::typed::Typed;

/// How one type becomes another. Wrap it in [`TransformController`].
pub trait Transform: Send + 'static {
    /// The name of the controller.
    const NAME: &'static str;
    /// Hold inputs until their outputs are gone.
    const FINALIZERS: bool = false;
    /// What it reads.
    type Input: TypedSpec;
    /// What it writes, alone.
    type Output: TypedSpec;

    /// Where the inputs are.
    fn input_namespace(&self) -> &str {
        Self::Input::definition().default_namespace
    }

    /// Where the outputs go.
    fn output_namespace(&self) -> &str {
        Self::Output::definition().default_namespace
    }

    /// Other things it reads.
    fn extra_inputs(&self) -> Vec<Input> {
        Vec::new()
    }

    /// The id of the output for this input, or `None` when there is to be none.
    fn output_id(&self, input: &Typed<Self::Input>) -> Option<Id>;

    /// Fills in the output, which may hold what the last pass left.
    fn transform(
        &mut self,
        ctx: &Context,
        input: &Typed<Self::Input>,
        output: &mut Self::Output,
    ) -> Result<(), ControllerError>;
}

/// Runs a [`Transform`] over all inputs.
#[derive(Debug, Default)]
pub struct TransformController<T>(pub T);

impl<T: Transform> Controller for TransformController<T> {
    const NAME: &'static str = T::NAME;

    fn inputs(&self) -> Vec<Input> {
        let source = if T::FINALIZERS { strong::<T::Input>() } else { weak::<T::Input>() };
        let own = destroy_ready::<T::Output>().in_ns(self.0.output_namespace());
        debug_assert_eq!(own.kind, InputKind::DestroyReady);
        let mut inputs = vec![source.in_ns(self.0.input_namespace()), own];
        inputs.extend(self.0.extra_inputs());
        inputs
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<T::Output>()]
    }

    fn reconcile(&mut self, ctx: &Context) -> impl Future<Output = Result<(), ControllerError>> + Send {
        std::future::ready(self.pass(ctx))
    }
}

impl<T: Transform> TransformController<T> {
    fn pass(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let source = self.0.input_namespace().to_owned();
        let target = self.0.output_namespace().to_owned();
        let outputs = ctx.outputs::<T::Output>(&target)?;
        let mut wanted = HashSet::new();
        let mut leaving = Vec::new();
        let mut failed = None;
        for input in ctx.list_in::<T::Input>(&source)? {
            if !input.meta().is_running() {
                leaving.push(input);
                continue;
            }
            let Some(id) = self.0.output_id(&input) else {
                continue;
            };
            // One bad input must not keep the others from their outputs.
            if let Err(error) = self.one(ctx, &source, &outputs, &input, &id) {
                failed.get_or_insert(error);
            }
            wanted.insert(id);
        }
        ctx.keep_only::<T::Output>(&target, |id| wanted.contains(id))?;
        if T::FINALIZERS {
            for input in leaving {
                self.release(ctx, &source, &target, &input)?;
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn one(
        &mut self,
        ctx: &Context,
        source: &str,
        outputs: &KindHandle,
        input: &Typed<T::Input>,
        id: &Id,
    ) -> Result<(), ControllerError> {
        if T::FINALIZERS && !input.meta().has_finalizer(T::NAME) {
            ctx.add_finalizer_in::<T::Input>(source, input.id())?;
        }
        let stored = outputs.find(id).and_then(Typed::<T::Output>::new);
        let mut output = stored.as_deref().cloned().unwrap_or_default();
        self.0.transform(ctx, input, &mut output)?;
        // The common case in a list of many: this one did not change.
        let unchanged = stored.is_some_and(|stored| {
            *stored == output && stored.meta().is_running() && stored.meta().owner() == T::NAME
        });
        if !unchanged {
            ctx.put(outputs.kind().namespace(), id, output)?;
        }
        Ok(())
    }

    /// Lets an input go once its output is gone.
    fn release(
        &self,
        ctx: &Context,
        source: &str,
        target: &str,
        input: &Typed<T::Input>,
    ) -> Result<(), ControllerError> {
        let held = match self.0.output_id(input) {
            Some(id) => ctx.get_in::<T::Output>(target, &id)?.is_some(),
            None => false,
        };
        if !held && input.meta().has_finalizer(T::NAME) {
            ctx.remove_finalizer_in::<T::Input>(source, input.id())?;
        }
        Ok(())
    }
}
