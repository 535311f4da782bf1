//! What is read out of objects of Kubernetes.

use serde_json::Value;

/// The label of control plane nodes.
pub const CONTROL_PLANE_LABEL: &str = "node-role.kubernetes.io/control-plane";

/// The texts of a list.
pub fn texts(list: &Value) -> Vec<String> {
    let items = list.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

/// The name of an object.
pub fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// The addresses of a node: internal ones, then external ones.
pub fn node_addresses(node: &Value) -> Vec<String> {
    let all = node["status"]["addresses"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of = |kind: &str| {
        all.iter()
            .filter(|address| address["type"] == kind)
            .filter_map(|address| address["address"].as_str().map(str::to_owned))
            .collect::<Vec<_>>()
    };
    [of("InternalIP"), of("ExternalIP")].concat()
}

/// Whether a node has the label of control planes.
pub fn is_control_plane(node: &Value) -> bool {
    node["metadata"]["labels"].get(CONTROL_PLANE_LABEL).is_some()
}

/// The condition of this type.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

/// Whether the condition `Ready` is there and true.
pub fn is_ready(object: &Value) -> bool {
    condition(object, "Ready").is_some_and(|condition| condition["status"] == "True")
}

/// The name with the reason why it is not ready, as far as one is known.
pub fn unready(object: &Value) -> String {
    let name = name(object);
    let waiting =
        object["status"]["containerStatuses"].as_array().into_iter().flatten().find_map(|container| {
            let state = &container["state"];
            [&state["waiting"]["reason"], &state["terminated"]["reason"]].into_iter().find_map(Value::as_str)
        });
    let said = condition(object, "Ready")
        .and_then(|condition| ["message", "reason"].into_iter().find_map(|key| condition[key].as_str()))
        .filter(|text| !text.is_empty());
    match waiting.or(said) {
        Some(reason) => format!("{name} ({reason})"),
        None => name.to_owned(),
    }
}

/// Whether all containers of a pod have ended: what `kubectl get pods` calls completed.
pub fn is_over(pod: &Value) -> bool {
    let containers = pod["status"]["containerStatuses"].as_array().map(Vec::as_slice).unwrap_or_default();
    containers.iter().all(|container| !container["state"]["terminated"].is_null())
}
