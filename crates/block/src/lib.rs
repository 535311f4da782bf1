//! Block devices: what the kernel shows, what is on them, partition tables, wiping, and the format of META.
//!
//! Knows the kernel and on-disk formats, and nothing of resources or configuration. What reads or writes a format works on
//! bytes that come from anywhere ([`source::Source`], [`std::io::Write`]), so that images are made and judged without a
//! device.

mod bytes;
pub mod device;
pub mod gpt;
pub mod guid;
pub mod inotify;
pub mod meta;
pub mod probe;
pub mod source;
pub mod swap;
pub mod sysfs;
pub mod uevent;
pub mod wipe;

pub use guid::Guid;
pub use source::Source;
