//! Log rings, the kernel log layer and tracing set-up.
//!
//! - [`ring`]: one bounded, compressed ring per log, with readers that tail and follow;
//! - [`manager`]: the rings of a node by log id;
//! - [`kernel`]: where console lines go (`/dev/kmsg`, or a stream where there is none);
//! - [`console`]: logs of services copied there;
//! - [`layer`]: the `tracing` layer that writes both;
//! - [`persist`]: logs as files;
//! - [`ship`]: sending logs to other machines;
//! - [`syslog`]: what programs say with `syslog(3)`.

pub mod console;
pub mod kernel;
pub mod layer;
pub mod manager;
pub mod persist;
pub mod ring;
pub mod ship;
pub mod syslog;

pub use console::ConsoleLogs;
pub use kernel::{ConsoleSink, KernelSink};
pub use layer::{LogLayer, install};
pub use manager::{LogManager, LogManagerError};
pub use ring::{LogReader, LogRing, Start};
