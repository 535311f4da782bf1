//! What a controller reads and writes, declared up front.

use ichor_resource::{Id, TypedSpec};

use crate::state::State;

/// How a controller depends on an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputKind {
    /// Triggers, and the controller may put finalizers on it.
    Strong,
    /// Triggers only.
    Weak,
    /// Triggers when the resource is tearing down and held by nobody; for own outputs.
    DestroyReady,
    /// Items of a queue, as they are.
    QueuePrimary,
    /// Turned into items of a queue.
    QueueMapped,
    /// Turned into items of a queue when tearing down and held by nobody.
    QueueMappedDestroyReady,
}

/// Something a controller reads, and that wakes it.
#[derive(Debug, Clone)]
pub struct Input {
    pub(crate) namespace: String,
    pub(crate) type_name: &'static str,
    pub(crate) id: Option<Id>,
    pub(crate) kind: InputKind,
    pub(crate) register: fn(&State),
}

impl Input {
    fn new<T: TypedSpec>(kind: InputKind) -> Self {
        let definition = T::definition();
        Self {
            namespace: definition.default_namespace.to_owned(),
            type_name: definition.type_name,
            id: None,
            kind,
            register: State::register::<T>,
        }
    }

    /// In this namespace instead of the default one.
    pub fn in_ns(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Only this id. Lists are then out of reach.
    pub fn id(mut self, id: impl Into<Id>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// The same resources, whatever the kind of dependency.
    pub(crate) fn same_place(&self, other: &Self) -> bool {
        self.namespace == other.namespace && self.type_name == other.type_name && self.id == other.id
    }

    pub(crate) fn covers(&self, namespace: &str, type_name: &str, id: Option<&str>) -> bool {
        self.type_name == type_name
            && self.namespace == namespace
            && match (&self.id, id) {
                (None, _) => true,
                (Some(own), Some(id)) => *own == *id,
                (Some(_), None) => false,
            }
    }

    pub(crate) fn takes_finalizers(&self) -> bool {
        match self.kind {
            InputKind::Strong
            | InputKind::QueuePrimary
            | InputKind::QueueMapped
            | InputKind::QueueMappedDestroyReady => true,
            InputKind::Weak | InputKind::DestroyReady => false,
        }
    }
}

/// An input the controller may put finalizers on.
pub fn strong<T: TypedSpec>() -> Input {
    Input::new::<T>(InputKind::Strong)
}

/// An input that only triggers.
pub fn weak<T: TypedSpec>() -> Input {
    Input::new::<T>(InputKind::Weak)
}

/// Own outputs that may be destroyed now.
pub fn destroy_ready<T: TypedSpec>() -> Input {
    Input::new::<T>(InputKind::DestroyReady)
}

/// Resources that a queue controller works on one by one.
pub fn primary<T: TypedSpec>() -> Input {
    Input::new::<T>(InputKind::QueuePrimary)
}

/// Resources that a queue controller turns into items.
pub fn mapped<T: TypedSpec>() -> Input {
    Input::new::<T>(InputKind::QueueMapped)
}

/// As [`mapped`], only when tearing down and held by nobody.
pub fn mapped_destroy_ready<T: TypedSpec>() -> Input {
    Input::new::<T>(InputKind::QueueMappedDestroyReady)
}

/// Whether others may write the same type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputKind {
    /// No other controller writes this type.
    Exclusive,
    /// Several do, and all say so.
    Shared,
}

/// A type a controller writes, in any namespace.
#[derive(Debug, Clone)]
pub struct Output {
    pub(crate) type_name: &'static str,
    pub(crate) kind: OutputKind,
    pub(crate) register: fn(&State),
}

/// A type only this controller writes.
pub fn exclusive<T: TypedSpec>() -> Output {
    output::<T>(OutputKind::Exclusive)
}

/// A type several controllers write.
pub fn shared<T: TypedSpec>() -> Output {
    output::<T>(OutputKind::Shared)
}

fn output<T: TypedSpec>(kind: OutputKind) -> Output {
    Output { type_name: T::definition().type_name, kind, register: State::register::<T> }
}

/// What an edge of the dependency graph means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EdgeKind {
    /// The controller reads it.
    Input(InputKind),
    /// The controller writes it.
    Output(OutputKind),
}

impl EdgeKind {
    /// The number on the wire; queue inputs have none.
    pub fn number(self) -> Option<i32> {
        match self {
            Self::Output(OutputKind::Exclusive) => Some(0),
            Self::Input(InputKind::Strong) => Some(1),
            Self::Input(InputKind::Weak) => Some(2),
            Self::Output(OutputKind::Shared) => Some(3),
            Self::Input(InputKind::DestroyReady) => Some(4),
            Self::Input(
                InputKind::QueuePrimary | InputKind::QueueMapped | InputKind::QueueMappedDestroyReady,
            ) => None,
        }
    }
}

/// One edge of the graph of controllers and resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// The controller.
    pub controller: &'static str,
    /// The direction and kind.
    pub kind: EdgeKind,
    /// The namespace; empty for outputs.
    pub namespace: String,
    /// The type.
    pub type_name: &'static str,
    /// The id, where the input names one.
    pub id: Option<Id>,
}
