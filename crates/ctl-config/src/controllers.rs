//! The controllers: who asks for a configuration gets one; the role of the machine follows from it.

mod acquire;
mod machine_type;

pub use acquire::{AcquireController, AcquirePort};
pub use machine_type::MachineTypeController;

/// A boxed future, for ports that are held as values.
pub type BoxFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;
