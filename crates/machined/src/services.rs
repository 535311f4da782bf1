//! Services of a node: what they need, how they run, how they are.
//!
//! [`record`] is the pure part: states, events, health. [`manager`] holds the table and starts one
//! task per service; [`runner`] is what that task does. Processes come from a [`port::ProcessPort`],
//! on a node the connection to init, so a new machined finds the ones its predecessor started.

pub mod backoff;
pub mod condition;
pub mod health;
pub mod manager;
pub mod port;
pub mod record;
mod runner;
pub mod spec;
#[cfg(test)]
mod tests;

pub use condition::{About, Condition, condition, condition_about};
pub use health::{Health, HealthCheck};
pub use manager::{ServiceError, ServiceManager};
pub use port::{ExitKind, ImagePort, Process, ProcessPort, SpawnError};
pub use record::{Record, ServiceState};
pub use spec::{
    ApiAccess, ContainerMount, ContainerSpec, Plan, ProcessSpec, RestartPolicy, Root, Run, ServiceSpec,
};

/// A boxed future, for ports and hooks that are held as values.
pub type BoxFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;
