//! Resource state, watches and the controller runtime; the State service over gRPC.
//!
//! The state keeps every resource immutable and shared: readers get an `Arc`, writers hand in a
//! draft and get back what was stored. Calls are plain functions; only watches and controllers
//! wait.

mod clock;
mod collection;
mod error;
mod event;
mod handle;
mod map;
mod owner;
mod query;
mod ring;
mod state;
mod typed;
mod waiters;
mod watch;

pub use clock::{Clock, SystemClock};
pub use error::{Pointer, StateError};
pub use event::{Bookmark, Event, EventKind};
pub use handle::KindHandle;
pub use owner::Owner;
pub use query::{LabelOp, LabelQuery, LabelTerm, Query};
pub use ring::History;
pub use state::{State, StateOptions};
pub use typed::Typed;
pub use watch::{Watch, WatchIdOptions, WatchOptions};
