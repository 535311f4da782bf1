//! Adds the entries of one kubeconfig to another. No I/O here.

use std::collections::BTreeMap;

use ichor_yaml::{EmitOptions, Node, Style, Value};

use ichor_kube::manifest::to_json;

use crate::error::{Doing as _, Error, Result};

/// A list of a kubeconfig: its key, the key of an entry's content, and how people call an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    list: &'static str,
    content: &'static str,
    /// How questions call it.
    pub asked: &'static str,
    told: &'static str,
}

const CLUSTERS: Kind = Kind { list: "clusters", content: "cluster", asked: "cluster", told: "cluster" };
const USERS: Kind = Kind { list: "users", content: "user", asked: "auth", told: "auth info" };
const CONTEXTS: Kind = Kind { list: "contexts", content: "context", asked: "context", told: "context" };

/// What becomes of an entry whose name is taken by another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It takes the place.
    Overwrite,
    /// It gets a number.
    Rename,
}

/// The old text with the entries of the new one, and a line for everything that got another name.
pub fn merge<E: From<Error>>(
    old: &str,
    new: &str,
    context_name: Option<&str>,
    mut decide: impl FnMut(Kind, &str) -> std::result::Result<Decision, E>,
) -> std::result::Result<(String, Vec<String>), E> {
    let mut into = root(old).doing("read the kubeconfig that is there")?;
    let from = root(new).doing("read the machine's kubeconfig")?;
    let mut renamed = Vec::new();
    let mut clusters: BTreeMap<String, String> = BTreeMap::new();
    for (name, content) in entries(&from, CLUSTERS) {
        let taken = place(&into, CLUSTERS, name, content, &mut decide)?;
        clusters.insert(name.to_owned(), taken);
    }
    let mut users: BTreeMap<String, String> = BTreeMap::new();
    for (name, content) in entries(&from, USERS) {
        let wanted = replaced(name, &clusters);
        let taken = place(&into, USERS, &wanted, content, &mut decide)?;
        users.insert(name.to_owned(), taken);
    }
    let mut contexts = Vec::new();
    for (name, content) in entries(&from, CONTEXTS) {
        let mut content = content.clone();
        for (key, names) in [("cluster", &clusters), ("user", &users)] {
            let mapped = content.get(key).and_then(Node::as_str).and_then(|name| names.get(name));
            if let Some(mapped) = mapped.cloned() {
                set(&mut content, key, Node::string(mapped));
            }
        }
        let wanted = context_name.map_or_else(|| replaced(name, &users), str::to_owned);
        let taken = place(&into, CONTEXTS, &wanted, &content, &mut decide)?;
        contexts.push((name.to_owned(), taken, content));
    }
    let mut tell = |kind: Kind, name: &str, taken: &str| {
        if name != taken {
            renamed.push(format!("renamed {} {name:?} -> {taken:?}", kind.told));
        }
    };
    for (kind, names) in [(CLUSTERS, &clusters), (USERS, &users)] {
        for (name, content) in entries(&from, kind) {
            let taken = &names[name];
            tell(kind, name, taken);
            put(&mut into, kind, taken, content.clone());
        }
    }
    for (name, taken, content) in contexts {
        tell(CONTEXTS, &name, &taken);
        put(&mut into, CONTEXTS, &taken, content);
        set(&mut into, "current-context", Node::string(taken));
    }
    Ok((emit(into), renamed))
}

/// The text that leads to `server`, whatever it led to.
pub fn redirected(text: &str, server: &str) -> Result<String> {
    let mut root = root(text).doing("read the machine's kubeconfig")?;
    for (_, item) in entries_mut(&mut root, CLUSTERS) {
        if let Some(cluster) = value_mut(item, CLUSTERS.content) {
            set(cluster, "server", Node::string(server));
        }
    }
    Ok(emit(root))
}

/// The text without the clusters at these servers, their contexts and the users of those; nothing when there
/// are none.
pub fn without(text: &str, servers: &[String]) -> Result<Option<String>> {
    let mut root = root(text).doing("read the kubeconfig that is there")?;
    let text_of = |node: &Node, key: &str| node.get(key).and_then(Node::as_str).map(str::to_owned);
    let gone = |list: &[(&str, &Node)], key: &str, values: &[String]| -> Vec<String> {
        let is_gone = |content: &Node| text_of(content, key).is_some_and(|value| values.contains(&value));
        list.iter().filter(|(_, content)| is_gone(content)).map(|(name, _)| (*name).to_owned()).collect()
    };
    let clusters = gone(&entries(&root, CLUSTERS), "server", servers);
    if clusters.is_empty() {
        return Ok(None);
    }
    let contexts = gone(&entries(&root, CONTEXTS), "cluster", &clusters);
    let users: Vec<String> = entries(&root, CONTEXTS)
        .iter()
        .filter(|(name, _)| contexts.iter().any(|gone| gone == name))
        .filter_map(|(_, content)| text_of(content, "user"))
        .collect();
    for (kind, names) in [(CLUSTERS, &clusters), (CONTEXTS, &contexts), (USERS, &users)] {
        if let Some(Node { value: Value::Seq(items), .. }) = value_mut(&mut root, kind.list) {
            items.retain(|item| text_of(item, "name").is_none_or(|name| !names.contains(&name)));
        }
    }
    if text_of(&root, "current-context").is_some_and(|name| contexts.contains(&name)) {
        set(&mut root, "current-context", Node::string(""));
    }
    Ok(Some(emit(root)))
}

/// The form in which the tools of Kubernetes write it: keys and entries in order, lists flush.
fn emit(mut root: Node) -> String {
    for (key, value) in [("apiVersion", "v1"), ("kind", "Config")] {
        if root.get(key).is_none() {
            set(&mut root, key, Node::string(value));
        }
    }
    for kind in [CLUSTERS, USERS, CONTEXTS] {
        if let Some(Node { value: Value::Seq(items), .. }) = value_mut(&mut root, kind.list) {
            items.sort_by_key(|item| item.get("name").and_then(Node::as_str).unwrap_or_default().to_owned());
        }
    }
    sort_keys(&mut root);
    ichor_yaml::emit_with(&root, EmitOptions { indent: 2, flush_lists: true, width: None })
}

fn sort_keys(node: &mut Node) {
    match &mut node.value {
        Value::Scalar(scalar) => {
            // However it was quoted, it is written anew.
            if !matches!(scalar.style, Style::Plain | Style::Auto) {
                scalar.style = Style::Auto;
            }
        }
        Value::Seq(items) => items.iter_mut().for_each(sort_keys),
        Value::Map(entries) => {
            entries.sort_by_key(|(key, _)| key.as_str().unwrap_or_default().to_owned());
            entries.iter_mut().for_each(|(_, value)| sort_keys(value));
        }
    }
}

fn root(text: &str) -> std::result::Result<Node, ichor_yaml::Error> {
    let document = ichor_yaml::parse(text)?.into_iter().next();
    let root = document.map(|document| document.root).filter(|root| root.as_map().is_some());
    Ok(root.unwrap_or_else(|| Node::map(Vec::new())))
}

/// Names and contents of a list.
fn entries(root: &Node, kind: Kind) -> Vec<(&str, &Node)> {
    let items = root.get(kind.list).and_then(Node::as_seq).unwrap_or_default();
    items.iter().filter_map(|item| Some((item.get("name")?.as_str()?, item.get(kind.content)?))).collect()
}

/// Names and whole entries of a list.
fn entries_mut(root: &mut Node, kind: Kind) -> Vec<(String, &mut Node)> {
    let Some(Node { value: Value::Seq(items), .. }) = value_mut(root, kind.list) else { return Vec::new() };
    let named = |item: &Node| item.get("name").and_then(Node::as_str).map(str::to_owned);
    items.iter_mut().filter_map(|item| Some((named(item)?, item))).collect()
}

/// The name an entry gets: its own, unless another one has it and may keep it.
fn place<E>(
    into: &Node,
    kind: Kind,
    name: &str,
    content: &Node,
    decide: &mut impl FnMut(Kind, &str) -> std::result::Result<Decision, E>,
) -> std::result::Result<String, E> {
    let there = entries(into, kind);
    let Some((_, known)) = there.iter().find(|(taken, _)| *taken == name) else { return Ok(name.to_owned()) };
    if to_json(known) == to_json(content) || decide(kind, name)? == Decision::Overwrite {
        return Ok(name.to_owned());
    }
    let free = (1_u32..).map(|number| format!("{name}-{number}"));
    let mut free = free.filter(|name| there.iter().all(|(taken, _)| taken != name));
    Ok(free.next().unwrap_or_else(|| name.to_owned()))
}

/// `name` with every renamed part in it renamed.
fn replaced(name: &str, names: &BTreeMap<String, String>) -> String {
    names.iter().fold(name.to_owned(), |name, (old, new)| name.replace(old.as_str(), new))
}

fn set(node: &mut Node, key: &str, value: Node) {
    let Value::Map(entries) = &mut node.value else { return };
    match entries.iter_mut().find(|(name, _)| name.as_str() == Some(key)) {
        Some((_, old)) => *old = value,
        None => entries.push((Node::string(key), value)),
    }
}

fn value_mut<'a>(node: &'a mut Node, key: &str) -> Option<&'a mut Node> {
    let Value::Map(entries) = &mut node.value else { return None };
    entries.iter_mut().find(|(name, _)| name.as_str() == Some(key)).map(|(_, value)| value)
}

fn put(root: &mut Node, kind: Kind, name: &str, content: Node) {
    let item =
        Node::map(vec![(Node::string("name"), Node::string(name)), (Node::string(kind.content), content)]);
    match value_mut(root, kind.list) {
        Some(Node { value: Value::Seq(items), .. }) => {
            items.retain(|item| item.get("name").and_then(Node::as_str) != Some(name));
            items.push(item);
        }
        // An empty list may also be written as null.
        _ => set(root, kind.list, Node::seq(vec![item])),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn config(cluster: &str, server: &str) -> String {
        format!(
            "apiVersion: v1\nclusters:\n- cluster:\n    server: {server}\n  name: {cluster}\n\
             contexts:\n- context:\n    cluster: {cluster}\n    user: admin@{cluster}\n  name: admin@{cluster}\n\
             current-context: admin@{cluster}\nkind: Config\n\
             users:\n- name: admin@{cluster}\n  user:\n    token: {server}\n"
        )
    }

    #[test]
    fn a_taken_name_gets_a_number_everywhere() {
        let (text, renamed) =
            merge(&config("lab", "https://a"), &config("lab", "https://b"), None, |_, _| {
                Ok::<_, Error>(Decision::Rename)
            })
            .unwrap();
        assert_eq!(
            renamed,
            [
                r#"renamed cluster "lab" -> "lab-1""#,
                r#"renamed auth info "admin@lab" -> "admin@lab-1""#,
                r#"renamed context "admin@lab" -> "admin@lab-1""#
            ]
        );
        expect![[r#"
            apiVersion: v1
            clusters:
            - cluster:
                server: https://a
              name: lab
            - cluster:
                server: https://b
              name: lab-1
            contexts:
            - context:
                cluster: lab
                user: admin@lab
              name: admin@lab
            - context:
                cluster: lab-1
                user: admin@lab-1
              name: admin@lab-1
            current-context: admin@lab-1
            kind: Config
            users:
            - name: admin@lab
              user:
                token: https://a
            - name: admin@lab-1
              user:
                token: https://b
        "#]]
        .assert_eq(&text);
    }

    #[test]
    fn the_same_again_changes_nothing_and_force_overwrites() {
        let old = config("lab", "https://a");
        let (text, renamed) =
            merge::<Error>(&old, &old, None, |_, _| panic!("there is no conflict")).unwrap();
        assert_eq!((text, renamed), (old.clone(), Vec::new()));
        let (text, _) =
            merge(&old, &config("lab", "https://b"), None, |_, _| Ok::<_, Error>(Decision::Overwrite))
                .unwrap();
        assert_eq!(text, config("lab", "https://b"));
    }

    #[test]
    fn an_empty_file_takes_everything_and_the_context_may_be_named() {
        let (text, renamed) =
            merge("", &config("lab", "https://a"), Some("mine"), |_, _| Ok::<_, Error>(Decision::Rename))
                .unwrap();
        assert!(text.contains("current-context: mine\n"), "{text}");
        assert_eq!(renamed, [r#"renamed context "admin@lab" -> "mine""#]);
    }

    #[test]
    fn a_cluster_that_is_gone_leaves_nothing_behind() {
        let (both, _) = merge(&config("a", "https://a"), &config("b", "https://b"), None, |_, _| {
            Ok::<_, Error>(Decision::Rename)
        })
        .unwrap();
        let left = without(&both, &["https://b".to_owned()]).unwrap().unwrap();
        assert_eq!(
            left,
            config("a", "https://a").replace("current-context: admin@a", "current-context: \"\"")
        );
        assert_eq!(without(&left, &["https://b".to_owned()]).unwrap(), None);
    }

    #[test]
    fn the_server_is_replaced_and_nothing_else() {
        let text = redirected(&config("lab", "https://10.5.0.2:6443"), "https://127.5.0.2:6443").unwrap();
        let expected = config("lab", "https://10.5.0.2:6443").replacen(
            "server: https://10.5.0.2:6443",
            "server: https://127.5.0.2:6443",
            1,
        );
        assert_eq!(text, expected);
    }
}
