//! The descriptions of all documents, to be read by people and programs.

mod explain;
mod markdown;
mod schema;

pub use explain::{Explanation, UnknownPath, explain};
pub use markdown::{Page, pages};
pub use schema::schema;

use crate::{
    document::{KINDS, ROOT_KIND},
    model::{FieldInfo, ObjectInfo, Shape},
    v1alpha1,
};

/// The root document and all other kinds with their descriptions; the root document goes by `v1alpha1`.
pub fn all_kinds() -> impl Iterator<Item = (&'static str, &'static ObjectInfo, bool)> {
    let root = std::iter::once((ROOT_KIND, &v1alpha1::Config::INFO, false));
    root.chain(KINDS.iter().map(|info| (info.kind, info.object, info.named)))
}

/// The description of a kind.
pub fn kind_object(kind: &str) -> Option<&'static ObjectInfo> {
    all_kinds().find(|(name, ..)| *name == kind).map(|(_, object, _)| object)
}

/// The object that a value consists of, through lists and maps.
pub fn object_of(shape: &Shape) -> Option<&'static ObjectInfo> {
    match shape {
        Shape::Object(info) => Some(info),
        Shape::List(item, _) => object_of(item),
        Shape::Map(value) => object_of(value),
        Shape::String
        | Shape::Bool
        | Shape::Integer { .. }
        | Shape::Format(_)
        | Shape::Choice(_)
        | Shape::Size
        | Shape::Free => None,
    }
}

/// Every key of an object and what is below it, as dotted paths; lists add `[]`, maps add `{}`.
pub fn walk(info: &'static ObjectInfo) -> Vec<(String, &'static FieldInfo)> {
    fn visit(info: &'static ObjectInfo, prefix: &str, out: &mut Vec<(String, &'static FieldInfo)>) {
        for field in info.fields {
            let path =
                if prefix.is_empty() { field.key.to_owned() } else { format!("{prefix}.{}", field.key) };
            out.push((path.clone(), field));
            let mut shape = (field.shape)();
            let mut below = path;
            loop {
                shape = match shape {
                    Shape::List(item, _) => {
                        below.push_str("[]");
                        *item
                    }
                    Shape::Map(value) => {
                        below.push_str("{}");
                        *value
                    }
                    Shape::Object(info) => {
                        visit(info, &below, out);
                        break;
                    }
                    _ => break,
                };
            }
        }
    }
    let mut out = Vec::new();
    visit(info, "", &mut out);
    out
}

/// Keys that may follow a dotted path, for completion: kinds and root keys at the start.
pub fn complete(path: &str) -> Vec<&'static str> {
    let (before, last) = path.rsplit_once('.').unwrap_or(("", path));
    let fields = |info: &'static ObjectInfo| info.fields.iter().map(|field| field.key).collect::<Vec<_>>();
    let candidates = if before.is_empty() {
        let kinds = KINDS.iter().map(|info| info.kind);
        fields(&v1alpha1::Config::INFO).into_iter().chain(kinds).collect()
    } else {
        match explain(before) {
            Ok(explanation) => explanation.object.map(fields).unwrap_or_default(),
            Err(_) => Vec::new(),
        }
    };
    candidates.into_iter().filter(|key| key.starts_with(last)).collect()
}
