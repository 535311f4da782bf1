//! What a controller declared, what it may therefore touch, and what wakes it.

use std::sync::{Arc, PoisonError, RwLock};

use crate::collection::{Subscriber, Subscription};
use crate::dependency::{Edge, EdgeKind, Input, InputKind, Output};
use crate::error::StateError;
use crate::state::State;

/// The declarations of one controller. Inputs may change while it runs.
pub(crate) struct Access {
    pub(crate) state: State,
    pub(crate) name: &'static str,
    /// The same, as the owner of resources.
    pub(crate) owner: Arc<str>,
    inputs: RwLock<Vec<Input>>,
    outputs: Vec<Output>,
}

impl Access {
    pub(crate) fn new(
        state: &State,
        name: &'static str,
        inputs: Vec<Input>,
        outputs: Vec<Output>,
    ) -> Result<Self, StateError> {
        check_inputs(name, &inputs)?;
        for register in inputs.iter().map(|input| input.register) {
            register(state);
        }
        for register in outputs.iter().map(|output| output.register) {
            register(state);
        }
        Ok(Self { state: state.clone(), name, owner: Arc::from(name), inputs: RwLock::new(inputs), outputs })
    }

    pub(crate) fn inputs(&self) -> Vec<Input> {
        self.inputs.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    #[inline]
    pub(crate) fn read(&self, namespace: &str, type_name: &str, id: Option<&str>) -> Result<(), StateError> {
        let covered = {
            let inputs = self.inputs.read().unwrap_or_else(PoisonError::into_inner);
            inputs.iter().any(|input| input.covers(namespace, type_name, id))
        };
        if covered || self.writes(type_name) {
            return Ok(());
        }
        Err(self.refuse("read", namespace, type_name, id, "an input"))
    }

    #[inline]
    pub(crate) fn write(&self, namespace: &str, type_name: &str, id: Option<&str>) -> Result<(), StateError> {
        if self.writes(type_name) {
            return Ok(());
        }
        Err(self.refuse("write", namespace, type_name, id, "an output"))
    }

    pub(crate) fn finalize(&self, namespace: &str, type_name: &str, id: &str) -> Result<(), StateError> {
        let held = {
            let inputs = self.inputs.read().unwrap_or_else(PoisonError::into_inner);
            inputs
                .iter()
                .any(|input| input.takes_finalizers() && input.covers(namespace, type_name, Some(id)))
        };
        if held {
            return Ok(());
        }
        Err(self.refuse("hold", namespace, type_name, Some(id), "a strong input"))
    }

    fn writes(&self, type_name: &str) -> bool {
        self.outputs.iter().any(|output| output.type_name == type_name)
    }

    #[cold]
    fn refuse(
        &self,
        verb: &str,
        namespace: &str,
        type_name: &str,
        id: Option<&str>,
        missing: &str,
    ) -> StateError {
        let id = id.unwrap_or("*");
        StateError::Access(format!(
            "controller {} may not {verb} {type_name}({namespace}/{id}): it is not declared as {missing}",
            self.name
        ))
    }

    /// Replaces the inputs and what wakes the controller. Says whether anything changed.
    pub(crate) fn update_inputs(
        &self,
        inputs: Vec<Input>,
        target: &Arc<dyn Subscriber>,
    ) -> Result<bool, StateError> {
        check_inputs(self.name, &inputs)?;
        for register in inputs.iter().map(|input| input.register) {
            register(&self.state);
        }
        let mut held = self.inputs.write().unwrap_or_else(PoisonError::into_inner);
        let same = held.len() == inputs.len()
            && held.iter().zip(&inputs).all(|(a, b)| a.same_place(b) && a.kind == b.kind);
        if same {
            return Ok(false);
        }
        unsubscribe(&self.state, &held, target);
        subscribe(&self.state, &inputs, target);
        *held = inputs;
        Ok(true)
    }

    pub(crate) fn subscribe(&self, target: &Arc<dyn Subscriber>) {
        let inputs = self.inputs.read().unwrap_or_else(PoisonError::into_inner);
        subscribe(&self.state, &inputs, target);
    }

    pub(crate) fn unsubscribe(&self, target: &Arc<dyn Subscriber>) {
        let inputs = self.inputs.read().unwrap_or_else(PoisonError::into_inner);
        unsubscribe(&self.state, &inputs, target);
    }

    pub(crate) fn edges(&self) -> Vec<Edge> {
        let inputs = self.inputs();
        let outputs = self.outputs.iter().map(|output| Edge {
            controller: self.name,
            kind: EdgeKind::Output(output.kind),
            namespace: String::new(),
            type_name: output.type_name,
            id: None,
        });
        let inputs = inputs.into_iter().map(|input| Edge {
            controller: self.name,
            kind: EdgeKind::Input(input.kind),
            namespace: input.namespace,
            type_name: input.type_name,
            id: input.id,
        });
        outputs.chain(inputs).collect()
    }
}

fn subscribe(state: &State, inputs: &[Input], target: &Arc<dyn Subscriber>) {
    for input in inputs {
        let destroy_ready = match input.kind {
            InputKind::DestroyReady | InputKind::QueueMappedDestroyReady => true,
            InputKind::Strong | InputKind::Weak | InputKind::QueuePrimary | InputKind::QueueMapped => false,
        };
        let kind = state.kind(&input.namespace, input.type_name);
        kind.0.subscribe(Subscription { id: input.id.clone(), destroy_ready, target: target.clone() });
    }
}

fn unsubscribe(state: &State, inputs: &[Input], target: &Arc<dyn Subscriber>) {
    for input in inputs {
        let kind = state.kind(&input.namespace, input.type_name);
        kind.0.unsubscribe(target);
    }
}

/// One place may be declared once.
fn check_inputs(name: &str, inputs: &[Input]) -> Result<(), StateError> {
    for (at, input) in inputs.iter().enumerate() {
        if inputs[..at].iter().any(|other| other.same_place(input)) {
            let id = input.id.as_deref().unwrap_or("*");
            return Err(StateError::Access(format!(
                "controller {name} declares the input {}({}/{id}) twice",
                input.type_name, input.namespace
            )));
        }
    }
    Ok(())
}
