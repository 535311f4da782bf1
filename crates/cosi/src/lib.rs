//! Resource state, watches and the controller runtime; the State service over gRPC.
//!
//! The state keeps every resource immutable and shared: readers get an `Arc`, writers hand in a
//! draft and get back what was stored. Calls are plain functions; only watches and controllers
//! wait.

mod access;
mod backoff;
mod clock;
mod collection;
pub mod conformance;
mod context;
mod controller;
mod core_state;
mod decode;
mod dependency;
mod encode;
mod error;
mod event;
mod handle;
mod list_cache;
mod map;
mod owner;
mod query;
mod queue;
mod remote;
mod ring;
mod runtime;
mod service;
mod state;
mod status;
mod transform;
mod typed;
mod waiters;
mod watch;

pub use clock::{Clock, SystemClock};
pub use context::Context;
pub use controller::{Controller, ControllerError, Wake};
pub use core_state::{CoreState, EventSource};
pub use decode::BadResource;
pub use dependency::{
    Edge, EdgeKind, Input, InputKind, Output, OutputKind, destroy_ready, exclusive, mapped,
    mapped_destroy_ready, primary, shared, strong, weak,
};
pub use error::{ErrorClass, Pointer, StateError};
pub use event::{Bookmark, Event, EventKind};
pub use handle::KindHandle;
pub use owner::Owner;
pub use query::{LabelOp, LabelQuery, LabelTerm, Query};
pub use queue::{Item, QController};
pub use remote::{RemoteState, RemoteWatch};
pub use ring::History;
pub use runtime::{RegisterError, Runtime};
pub use service::{AccessFilter, AccessRequest, AllowAll, ReadOnly, StateService, Verb};
pub use state::{State, StateOptions};
pub use status::{ControllerPhase, ControllerStatus};
pub use transform::{Transform, TransformController};
pub use typed::Typed;
pub use watch::{Watch, WatchIdOptions, WatchOptions};
