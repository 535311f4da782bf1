//! RFC 6902: operations on the JSON form of a single document.

use ichor_yaml::{EmitOptions, Node};
use serde_json::Value as Json;

use super::PatchError;
use crate::{
    documents::{parse, utf8},
    model::FreeValue,
};

/// Reads a list of operations, as JSON or YAML. Nothing at all is a list without operations.
pub(super) fn load(text: &[u8]) -> Result<json_patch::Patch, String> {
    let text = std::str::from_utf8(text).map_err(|error| error.to_string())?;
    let json_error = match serde_json::from_str::<json_patch::Patch>(text) {
        Ok(patch) => return Ok(patch),
        Err(error) => error.to_string(),
    };
    let trees = parse(text).map_err(|_| json_error.clone())?;
    let Some(tree) = trees.first().filter(|tree| !tree.is_null()) else {
        return Ok(json_patch::Patch(Vec::new()));
    };
    if tree.as_seq().is_none() {
        return Err(json_error);
    }
    serde_json::from_value(FreeValue::from_node(tree).to_json()).map_err(|error| error.to_string())
}

/// Applies operations to the text of a single document.
pub(super) fn apply(text: &[u8], patch: &json_patch::Patch) -> Result<Vec<u8>, PatchError> {
    let text = utf8(text).map_err(PatchError::Config)?;
    let trees = parse(text).map_err(PatchError::Config)?;
    let [tree] = &trees[..] else { return Err(PatchError::MultiDocument) };
    let mut json: Json = FreeValue::from_node(tree).to_json();
    json_patch::patch(&mut json, patch).map_err(|error| PatchError::Operation(error.to_string()))?;
    let node: Node = FreeValue::from_json(&json).to_node();
    Ok(ichor_yaml::emit_with(&node, EmitOptions { indent: 2, flush_lists: true, width: None }).into_bytes())
}
