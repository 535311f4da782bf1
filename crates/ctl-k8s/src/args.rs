//! Command lines of Kubernetes programs: ours and the user's brought together. Pure.

use std::collections::BTreeMap;

/// Flags by name, without the dashes.
pub type Args = BTreeMap<String, String>;

/// A flag the user may not set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("extra arg {0:?} is not allowed")]
pub struct Denied(pub String);

/// What becomes of a flag both sides set. Those named nowhere are the user's.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules {
    /// Lists with commas: the user's values are added.
    pub additive: &'static [&'static str],
    /// Ours alone.
    pub denied: &'static [&'static str],
}

/// Adds the user's flags to ours.
pub fn merge(mut ours: Args, users: &Args, rules: Rules) -> Result<Args, Denied> {
    for (name, value) in users {
        if rules.denied.contains(&name.as_str()) {
            return Err(Denied(name.clone()));
        }
        let merged = match ours.get(name) {
            Some(have) if rules.additive.contains(&name.as_str()) => join(have, value),
            _ => value.clone(),
        };
        ours.insert(name.clone(), merged);
    }
    Ok(ours)
}

/// Two lists with commas as one, each value once.
fn join(ours: &str, users: &str) -> String {
    let mut values: Vec<&str> = Vec::new();
    for value in ours.split(',').chain(users.split(',')) {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values.join(",")
}

/// Flags as a command line has them, by name.
pub fn command(args: &Args) -> Vec<String> {
    args.iter().map(|(name, value)| format!("--{name}={value}")).collect()
}

/// Flags from pairs.
pub fn args<const N: usize>(pairs: [(&str, &str); N]) -> Args {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules { additive: &["gates"], denied: &["etcd"] };

    #[test]
    fn users_win_add_or_are_refused() {
        let ours = args([("gates", "a=1,b=2"), ("port", "1"), ("etcd", "x")]);
        let merged =
            merge(ours.clone(), &args([("gates", "b=2,c=3"), ("port", "2"), ("new", "n")]), RULES).unwrap();
        assert_eq!(command(&merged), ["--etcd=x", "--gates=a=1,b=2,c=3", "--new=n", "--port=2"]);
        let error = merge(ours, &args([("etcd", "y")]), RULES).unwrap_err();
        assert_eq!(error.to_string(), r#"extra arg "etcd" is not allowed"#);
    }
}
