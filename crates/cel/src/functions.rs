//! Standard functions: which types they take and give.

use crate::env::{Env, Function, Type};

/// The result of a call with these argument types (the target first), or why there is none.
pub(crate) fn result(env: &Env, function: &str, is_method: bool, args: &[Type]) -> Found {
    let known = names(env).contains(&function);
    if !known {
        return Found::NoFunction;
    }
    // Where a type is known only at run time, the call is decided there.
    let fits = |wanted: &Type, have: &Type| *have == Type::Dyn || wanted == have;
    let all =
        |wanted: &[Type]| wanted.len() == args.len() && wanted.iter().zip(args).all(|(w, h)| fits(w, h));
    let one = |kinds: &[Type]| kinds.iter().any(|kind| all(std::slice::from_ref(kind)));
    use Type::{Bool, Bytes, Double, Duration, Dyn, Int, String, Uint};
    let found = match (function, is_method) {
        ("size", _) if matches!(args, [String | Bytes | Type::List(_) | Type::Map(..) | Dyn]) => Some(Int),
        ("contains" | "startsWith" | "endsWith", true) if all(&[String, String]) => Some(Bool),
        ("matches", _) if all(&[String, String]) => Some(Bool),
        ("int", false) if one(&[Int, Uint, Double, String]) => Some(Int),
        ("uint", false) if one(&[Int, Uint, Double, String]) => Some(Uint),
        ("double", false) if one(&[Int, Uint, Double, String]) => Some(Double),
        ("bool", false) if one(&[Bool, String]) => Some(Bool),
        ("string", false) if one(&[Bool, Int, Uint, Double, String, Bytes, Duration]) => Some(String),
        ("bytes", false) if one(&[Bytes, String]) => Some(Bytes),
        ("duration", false) if one(&[Duration, String]) => Some(Duration),
        ("dyn", false) if args.len() == 1 => Some(Dyn),
        ("getHours" | "getMinutes" | "getSeconds" | "getMilliseconds", true) if all(&[Duration]) => Some(Int),
        ("hasValue", true) if matches!(args, [Type::Optional(_) | Dyn]) => Some(Bool),
        ("value", true) => match args {
            [Type::Optional(inner)] => Some((**inner).clone()),
            [Dyn] => Some(Dyn),
            _ => None,
        },
        ("orValue", true) => match args {
            [Type::Optional(inner), other] if fits(inner, other) => Some((**inner).clone()),
            [Dyn, _] => Some(Dyn),
            _ => None,
        },
        ("glob", false) if env.has(Function::Glob) && all(&[String, String]) => Some(Bool),
        ("mac", false) if env.has(Function::Mac) && all(&[Bytes]) => Some(String),
        _ => None,
    };
    found.map_or(Found::NoOverload, Found::Type)
}

/// What was found for a call.
pub(crate) enum Found {
    /// Its result.
    Type(Type),
    /// There is no such function.
    NoFunction,
    /// The function takes other types.
    NoOverload,
}

/// All functions that exist in an environment.
pub(crate) fn names(env: &Env) -> Vec<&'static str> {
    let mut names = vec![
        "size",
        "contains",
        "startsWith",
        "endsWith",
        "matches",
        "int",
        "uint",
        "double",
        "bool",
        "string",
        "bytes",
        "duration",
        "dyn",
        "getHours",
        "getMinutes",
        "getSeconds",
        "getMilliseconds",
        "hasValue",
        "value",
        "orValue",
    ];
    for (function, name) in [(Function::Glob, "glob"), (Function::Mac, "mac")] {
        if env.has(function) {
            names.push(name);
        }
    }
    names
}

/// True if a text fits a pattern in which `*` stands for anything.
pub(crate) fn glob(pattern: &str, text: &str) -> bool {
    if pattern.is_empty() {
        return text.is_empty();
    }
    let parts: Vec<&str> = pattern.split('*').collect();
    let [first, middle @ .., last] = &parts[..] else { return pattern == text };
    let Some(rest) = text.strip_prefix(first) else { return false };
    let Some(mut rest) = rest.strip_suffix(last) else { return false };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::glob;

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, text, want) in [
            ("WDC*", "WDC 1TB", true),
            ("*1TB", "WDC 1TB", true),
            ("W*1*B", "WDC 1TB", true),
            ("*", "", true),
            ("", "", true),
            ("", "x", false),
            ("WDC", "WDC 1TB", false),
            ("a*a", "a", false),
            ("*x*", "abc", false),
        ] {
            assert_eq!(glob(pattern, text), want, "{pattern} {text}");
        }
    }
}
