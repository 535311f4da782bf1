//! The program as a person runs it, against a node that lives in the test.

mod actions;
mod asking;
mod configuring;
mod describing;
mod fake;
mod generating;
mod injecting;
mod offline;
mod renewing;
mod run;
mod streams;
