//! Secrets out of what was rendered.
//!
//! The configuration is redacted by its schema before it is rendered. What is left are places where the schema takes
//! anything: environments, flags, arguments of the kernel, free-form objects.

use ichor_yaml::{Node, Resolved, Value};

/// What stands in the place of a secret.
pub(crate) const HIDDEN: &str = "(hidden)";

/// How names of secrets end, in lower case and without dashes and underscores.
const SECRET_ENDINGS: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "token",
    "secret",
    "privatekey",
    "presharedkey",
    "apikey",
    "accesskey",
    "secretkey",
    "credentials",
];
/// Variables that a component is given by the system itself.
const OWN_VARIABLES: &[&str] = &["GOMEMLIMIT"];
/// Kernel arguments whose values may hold anything.
const HIDDEN_ARGUMENTS: &[&str] = &["talos.config", "talos.environment", "siderolink.api"];

/// Hides values of variables, of keys and of flags that are named like secrets.
pub(crate) fn secrets(node: &mut Node) {
    match &mut node.value {
        Value::Scalar(scalar) => {
            if let Some(shown) = flag(&scalar.text) {
                *node = Node::string(shown);
            }
        }
        Value::Seq(items) => items.iter_mut().for_each(secrets),
        Value::Map(entries) => {
            for (key, value) in entries {
                match key.as_str() {
                    Some("env") => variables(value),
                    Some(name) if is_secret(name) && is_text(value) => *value = Node::string(HIDDEN),
                    _ => {}
                }
                secrets(value);
            }
        }
    }
}

/// A kernel argument as it may be shown.
pub(crate) fn kernel_argument(argument: &str) -> String {
    match argument.split_once('=') {
        Some((key, value))
            if HIDDEN_ARGUMENTS.contains(&key) || is_secret(key) || value.contains(['?', '@']) =>
        {
            format!("{key}={HIDDEN}")
        }
        _ => argument.to_owned(),
    }
}

/// Values of `env`, in the list form of Kubernetes or as a map.
fn variables(node: &mut Node) {
    match &mut node.value {
        Value::Scalar(_) => {}
        Value::Seq(items) => {
            for item in items {
                let own = item.get("name").and_then(Node::as_str).is_some_and(is_own);
                let Value::Map(fields) = &mut item.value else { continue };
                for (key, value) in fields {
                    if key.as_str() == Some("value") && !own {
                        *value = Node::string(HIDDEN);
                    }
                }
            }
        }
        Value::Map(entries) => {
            for (key, value) in entries {
                if !key.as_str().is_some_and(is_own) {
                    *value = Node::string(HIDDEN);
                }
            }
        }
    }
}

fn is_own(variable: &str) -> bool {
    OWN_VARIABLES.contains(&variable)
}

/// `--name=value` without the value, if the name is that of a secret.
fn flag(text: &str) -> Option<String> {
    let (name, _) = text.strip_prefix("--")?.split_once('=')?;
    is_secret(name).then(|| format!("--{name}={HIDDEN}"))
}

fn is_secret(name: &str) -> bool {
    let plain: String =
        name.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect();
    SECRET_ENDINGS.iter().any(|ending| plain.ends_with(ending))
}

/// A text that says something; switches and numbers are not secret.
fn is_text(node: &Node) -> bool {
    node.as_scalar().is_some_and(|scalar| scalar.resolve() == Resolved::Str && !scalar.text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hidden(text: &str) -> String {
        let mut node = ichor_yaml::parse(text).unwrap().remove(0).root;
        secrets(&mut node);
        ichor_yaml::emit(&node)
    }

    #[test]
    fn variables_are_named_and_their_values_hidden() {
        let text = "env:\n    - name: KEY\n      value: s3cret\n    - name: GOMEMLIMIT\n      value: \"7\"\n";
        assert_eq!(hidden(text), text.replace("s3cret", HIDDEN));
        assert_eq!(hidden("env:\n    KEY: s3cret\n"), format!("env:\n    KEY: {HIDDEN}\n"));
    }

    #[test]
    fn keys_and_flags_that_are_named_like_secrets_hide_their_values() {
        for (text, expected) in [
            ("apiToken: s3cret\n", "apiToken: (hidden)\n"),
            ("privateKey: s3cret\n", "privateKey: (hidden)\n"),
            ("client_secret: s3cret\n", "client_secret: (hidden)\n"),
            ("automountServiceAccountToken: false\n", "automountServiceAccountToken: false\n"),
            ("secretName: shown\n", "secretName: shown\n"),
            ("- --webhook-token=s3cret\n", "- --webhook-token=(hidden)\n"),
            ("- --enable-bootstrap-token-auth=true\n", "- --enable-bootstrap-token-auth=true\n"),
            ("- --token-auth-file=/x\n", "- --token-auth-file=/x\n"),
        ] {
            assert_eq!(hidden(text), expected);
        }
    }

    #[test]
    fn kernel_arguments_show_no_address_with_a_token() {
        for (argument, expected) in [
            ("console=ttyS0", "console=ttyS0"),
            ("talos.config=https://a/", "talos.config=(hidden)"),
            ("siderolink.api=grpc://a", "siderolink.api=(hidden)"),
            ("x.url=https://user:pass@a/", "x.url=(hidden)"),
            ("x.url=https://a/?jointoken=7", "x.url=(hidden)"),
            ("quiet", "quiet"),
        ] {
            assert_eq!(kernel_argument(argument), expected);
        }
    }
}
