//! YAML as a node tree with positions: parse, resolve scalars, emit.
//!
//! The tree keeps what a person wrote (text, style, place), so that errors can point and typed readers
//! can decide for themselves what a scalar means. The emitter writes the look of the Go encoder: block
//! style, four spaces, literal blocks for text with line breaks, quotes only where they are needed.

mod emit;
mod error;
mod fold;
mod look;
mod node;
mod parse;
pub mod resolve;
mod tabs;

pub use emit::{EmitOptions, emit, emit_all, emit_with};
pub use error::{Error, ErrorKind};
pub use node::{Comments, Document, Node, Scalar, Span, Style, Value};
pub use parse::{Limits, parse, parse_with};
pub use resolve::{Resolved, resolve};
