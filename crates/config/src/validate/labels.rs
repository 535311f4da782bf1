//! Labels, annotations and taints of Kubernetes nodes.

use super::Report;
use crate::model::{Map, Path};

const ANNOTATIONS_MAX: usize = 256 << 10;
const RESERVED: [&str; 3] =
    ["talos.dev/owned-labels", "talos.dev/owned-annotations", "talos.dev/owned-taints"];
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub(super) fn check_labels(report: &mut Report<'_>, path: &Path, labels: &Map<String>) {
    for (key, value) in labels.iter() {
        for error in [qualified_name(key), label_value(value)].into_iter().filter_map(Result::err) {
            report.error(&path.key(key), format!("invalid machine node labels: {error}"));
        }
    }
}

pub(super) fn check_annotations(report: &mut Report<'_>, path: &Path, annotations: &Map<String>) {
    let mut size = 0;
    for (key, value) in annotations.iter() {
        size += key.len() + value.len();
        let at = path.key(key);
        if let Err(error) = qualified_name(key) {
            report.error(&at, format!("invalid machine node annotations: {error}"));
        }
        if RESERVED.contains(&key.as_str()) {
            report.error(&at, format!("invalid machine node annotations: annotation {key:?} is reserved"));
        }
    }
    if size > ANNOTATIONS_MAX {
        let message = format!("total annotation size exceeds limit of {ANNOTATIONS_MAX} bytes");
        report.error(path, format!("invalid machine node annotations: {message}"));
    }
}

pub(super) fn check_taints(report: &mut Report<'_>, path: &Path, taints: &Map<String>) {
    for (key, taint) in taints.iter() {
        let (value, effect) = match taint.split_once(':') {
            Some((value, effect)) => (Some(value), effect),
            None => (None, taint.as_str()),
        };
        let checked = qualified_name(key)
            .and_then(|()| match EFFECTS.contains(&effect) {
                true => Ok(()),
                false => Err(format!("invalid taint effect: {effect:?}")),
            })
            .and_then(|()| value.map_or(Ok(()), label_value));
        if let Err(error) = checked {
            let known = EFFECTS.contains(&effect);
            let help = crate::suggest::did_you_mean(effect, EFFECTS.into_iter()).filter(|_| !known);
            report.error_with_help(&path.key(key), format!("invalid machine node taints: {error}"), help);
        }
    }
}

fn qualified_name(text: &str) -> Result<(), String> {
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts[..] {
        [name] => name,
        ["", _] => return Err(format!("prefix cannot be empty: {text:?}")),
        [prefix, name] => {
            subdomain(prefix).map_err(|error| format!("prefix {prefix:?} is invalid: {error}"))?;
            name
        }
        _ => return Err(format!("invalid format: too many slashes: {text:?}")),
    };
    if name.is_empty() {
        Err(format!("name cannot be empty: {text:?}"))
    } else if name.len() > 63 {
        Err(format!("name is too long: {text:?} (limit is 63)"))
    } else if !is_name(name) {
        Err(format!("name {name:?} is invalid"))
    } else {
        Ok(())
    }
}

fn label_value(value: &str) -> Result<(), String> {
    if value.len() > 63 {
        Err(format!("label value length exceeds limit of 63: {value:?}"))
    } else if !value.is_empty() && !is_name(value) {
        Err(format!("label value {value:?} is invalid"))
    } else {
        Ok(())
    }
}

/// Letters and digits at both ends, dots, dashes and underscores between.
fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()].iter().all(|b| b.is_some_and(u8::is_ascii_alphanumeric));
    ends && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}

fn subdomain(text: &str) -> Result<(), String> {
    if text.len() > 253 {
        return Err(format!("domain name length exceeds limit of 253: {text:?}"));
    }
    let fine = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let label = |label: &str| {
        let bytes = label.as_bytes();
        let ends = [bytes.first(), bytes.last()].iter().all(|b| b.is_some_and(fine));
        ends && bytes.iter().all(|b| fine(b) || *b == b'-')
    };
    match text.split('.').all(label) {
        true => Ok(()),
        false => Err(format!("domain doesn't match required format: {text:?}")),
    }
}
