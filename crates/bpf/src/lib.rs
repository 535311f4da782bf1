//! Classic BPF, the filter language of packet sockets: listings as `tcpdump -dd` prints them, a compiler for
//! everyday expressions, the checks the kernel makes, and an interpreter.
//!
//! ```
//! use ichor_bpf::{LinkType, compile, run, verify};
//!
//! let program = compile("icmp or arp", LinkType::Ethernet).unwrap();
//! verify(&program).unwrap();
//! assert_eq!(run(&program, &[0; 60]), 0);
//! ```

mod code;
mod compile;
mod expression;
mod instruction;
mod link;
mod listing;
mod run;
mod verify;

pub use compile::{CompileError, compile};
pub use instruction::Instruction;
pub use link::LinkType;
pub use listing::{ListingError, format, parse};
pub use run::run;
pub use verify::{BadProgram, LEN_MAX, verify};
