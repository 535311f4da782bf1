//! The program as a person runs it, against a node that lives in the test.

mod actions;
mod asking;
mod fake;
mod offline;
mod run;
mod streams;
