//! TOML of the container runtime's files: parse, merge, render in the layout of containerd's own tools.
//!
//! Tables merge key by key, arrays are joined, anything else is replaced by what comes later.

use toml_edit::{Array, ArrayOfTables, Decor, DocumentMut, Key};
pub use toml_edit::{Item, Table, Value};

/// Why a text is not TOML, and on which line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct TomlError {
    line: usize,
    what: String,
}

/// Parses a document. Inline tables become tables, so that parts of either form merge.
pub fn parse(text: &str) -> Result<Table, TomlError> {
    let document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        TomlError { line: before.matches('\n').count() + 1, what: error.message().to_owned() }
    })?;
    Ok(expanded(document.as_table().clone()))
}

fn expanded(table: Table) -> Table {
    let expand = |item: Item| match item.into_table().map_err(Item::into_array_of_tables) {
        Ok(table) => Item::Table(expanded(table)),
        Err(Ok(tables)) => Item::ArrayOfTables(tables.into_iter().map(expanded).collect()),
        Err(Err(other)) => other,
    };
    table.into_iter().map(|(key, item)| (key, expand(item))).collect()
}

/// Merges `later` into `table`.
pub fn merge(table: &mut Table, later: Table) {
    for (key, item) in later {
        match (table.get_mut(&key), item) {
            (Some(Item::Table(held)), Item::Table(more)) => merge(held, more),
            (Some(Item::ArrayOfTables(held)), Item::ArrayOfTables(more)) => held.extend(more),
            (Some(Item::Value(Value::Array(held))), Item::Value(Value::Array(more))) => held.extend(more),
            (_, item) => drop(table.insert(&key, item)),
        }
    }
}

/// Renders a document: keys sorted, values before tables, each level indented by two spaces, literal strings.
pub fn render(table: Table) -> String {
    DocumentMut::from(styled(table, 0)).to_string()
}

fn styled(table: Table, depth: usize) -> Table {
    let indent = "  ".repeat(depth);
    let mut entries: Vec<(String, Item)> = table.into_iter().collect();
    entries.sort_by(|(a, x), (b, y)| (!x.is_value(), a).cmp(&(!y.is_value(), b)));
    let mut out = Table::new();
    for (at, (name, item)) in entries.into_iter().enumerate() {
        let mut first = at == 0;
        let mut nested = |table| {
            let mut table = styled(table, depth + 1);
            let gap = if std::mem::take(&mut first) { "" } else { "\n" };
            *table.decor_mut() = Decor::new(format!("{gap}{indent}"), "");
            table
        };
        let mut key = literal_key(&name);
        let item = match item {
            Item::None => continue,
            Item::Table(table) => Item::Table(nested(table)),
            Item::ArrayOfTables(list) => {
                Item::ArrayOfTables(list.into_iter().map(nested).collect::<ArrayOfTables>())
            }
            Item::Value(value) => {
                *key.leaf_decor_mut() = Decor::new(&indent, " ");
                Item::Value(literal(value))
            }
        };
        out.insert_formatted(&key, item);
    }
    out
}

/// A value without the spaces and comments around it; text in single quotes where it can be.
fn literal(value: Value) -> Value {
    let mut value = match value {
        Value::String(text) => {
            let text = text.into_value();
            single_quoted(&text).and_then(|quoted| quoted.parse().ok()).unwrap_or_else(|| text.into())
        }
        Value::Array(list) => Value::Array(list.into_iter().map(literal).collect::<Array>()),
        Value::InlineTable(table) => {
            table.into_iter().map(|(key, value)| (literal_key(&key), literal(value))).collect()
        }
        other => other,
    };
    value.decor_mut().clear();
    value
}

fn literal_key(name: &str) -> Key {
    let bare = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    let quoted = if bare { None } else { single_quoted(name) };
    let parsed = quoted.and_then(|quoted| Key::parse(&quoted).ok()).and_then(|mut keys| keys.pop());
    parsed.unwrap_or_else(|| Key::new(name))
}

fn single_quoted(text: &str) -> Option<String> {
    (!text.contains('\'') && !text.chars().any(char::is_control)).then(|| format!("'{text}'"))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn parts_become_one_document() {
        let mut all = Table::new();
        for part in [
            "version = 2\ndisabled_plugins = ['a']\n[plugins.\"io.x.cri\".containerd.runtimes.runc]\n    runtime_type = \"io.containerd.runc.v2\"\n    discard = true # a word\n",
            "[plugins]\n  [plugins.\"io.x.cri\"]\n    [plugins.\"io.x.cri\".registry]\n      config_path = '/etc/hosts'\n      [plugins.\"io.x.cri\".registry.configs]\n",
            "disabled_plugins = [\n  'b',\n]\n[metrics]\n  address = \"0.0.0.0:11234\"\n[plugins]\n   [plugins.'io.x.cri']\n    image = \"it's\"\n",
        ] {
            merge(&mut all, parse(part).unwrap());
        }
        let text = render(all);
        expect![[r#"
            disabled_plugins = ['a', 'b']
            version = 2

            [metrics]
              address = '0.0.0.0:11234'

            [plugins]
              [plugins.'io.x.cri']
                image = "it's"

                [plugins.'io.x.cri'.containerd]
                  [plugins.'io.x.cri'.containerd.runtimes]
                    [plugins.'io.x.cri'.containerd.runtimes.runc]
                      discard = true
                      runtime_type = 'io.containerd.runc.v2'

                [plugins.'io.x.cri'.registry]
                  config_path = '/etc/hosts'

                  [plugins.'io.x.cri'.registry.configs]
        "#]]
        .assert_eq(&text);
        assert_eq!(render(parse(&text).unwrap()), text);
    }

    #[test]
    fn all_kinds_of_values_are_read() {
        let text = "a.b = 1.5\nc = \"x\\u0041\\n\"\nd = '''\nraw\\\n'''\ne = { f = [1, 2], 'g h' = -1 }\n[[t]]\nx = 1\n[[t]]\nx = 2979-05-27 07:32:00Z\n";
        let rendered = render(parse(text).unwrap());
        expect![[r#"
            c = """
            xA
            """
            d = '''
            raw\
            '''

            [a]
              b = 1.5

            [e]
              f = [1, 2]
              'g h' = -1

            [[t]]
              x = 1

            [[t]]
              x = 2979-05-27 07:32:00Z
        "#]]
        .assert_eq(&rendered);
        assert_eq!(render(parse(&rendered).unwrap()), rendered);
    }

    #[test]
    fn inline_tables_merge_with_tables() {
        let mut all = parse("a = { b = { c = 1 } }\nl = [{ x = 1 }]\n").unwrap();
        merge(&mut all, parse("[a.b]\nd = 2\n[[l]]\nx = 2\n").unwrap());
        expect![[r#"
            [a]
              [a.b]
                c = 1
                d = 2

            [[l]]
              x = 1

            [[l]]
              x = 2
        "#]]
        .assert_eq(&render(all));
    }

    #[test]
    fn errors_name_the_line() {
        let error = |text: &str| parse(text).unwrap_err().to_string();
        for (text, line) in [
            ("a = 1\nb", 2),
            ("a = 1\na = 2", 2),
            ("a = 1\n[b\n", 2),
            ("a = 1\n[a.b]\n", 2),
            ("a = \"\\q\"", 1),
            ("a = @", 1),
            ("a = '' b", 1),
        ] {
            assert!(error(text).starts_with(&format!("line {line}: ")), "{text:?}: {}", error(text));
        }
        assert!(parse(&"[".repeat(100_000)).is_err());
        assert!(parse(&format!("a = {}", "[".repeat(100_000))).is_err());
    }
}
