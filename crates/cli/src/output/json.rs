//! YAML as JSON values, and JSON as the original prints it.

pub use ichor_client::json::{from_yaml, from_yaml_text};
pub use ichor_ops::yaml::{sorted, to_yaml};
use serde::Serialize as _;
use serde_json::Value;
use serde_json::ser::PrettyFormatter;

/// The text of a value: indented by `indent`, with the three characters escaped that would trouble a
/// web page, ending in a newline.
pub fn pretty(value: &Value, indent: &str) -> String {
    let mut out = Vec::new();
    let formatter = PrettyFormatter::with_indent(indent.as_bytes());
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, formatter);
    // Writing a value into memory cannot fail: its keys are strings and its numbers finite.
    let _ = value.serialize(&mut serializer);
    let mut text = String::from_utf8(out).unwrap_or_default();
    if text.contains(['<', '>', '&']) {
        text = text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
    }
    text.push('\n');
    text
}
