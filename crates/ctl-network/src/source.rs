//! Sources: what defaults, the kernel command line and the machine configuration want, as layered specs.

pub mod address;
pub mod cmdline;
pub mod hostname;
pub mod link;
pub mod operator;
pub mod platform;
pub mod resolver;
pub mod route;
pub mod time_server;
pub mod vip;
