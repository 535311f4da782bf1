//! Anything may stand in a selector: it is read or refused, in bounded steps, and what has a type keeps it.

use std::sync::Arc;

use ichor_cel::{EvalError, Expression, Object, Type, Value, environments};
use ichor_fuzz::{Random, Target, shape};

struct Disk;

impl Object for Disk {
    fn field(&self, name: &str) -> Option<Value> {
        Some(match name {
            "size" => Value::Uint(100_000_000_000),
            "model" | "transport" | "serial" | "uuid" => Value::string("nvme"),
            "rotational" | "readonly" | "cdrom" => Value::Bool(false),
            "symlinks" => Value::list([Value::string("/dev/a"), Value::string("/dev/b")]),
            _ => return None,
        })
    }
}

const WORDS: &[&str] = &[
    "disk",
    ".size",
    ".model",
    "system_disk",
    "1",
    "2u",
    "1.5",
    "'a'",
    "\"b\"",
    "r'\\'",
    "b'x'",
    "true",
    "null",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "?",
    " + ",
    " - ",
    " * ",
    " / ",
    " % ",
    " == ",
    " != ",
    " < ",
    " && ",
    " || ",
    "!",
    "-",
    " in ",
    "glob(",
    ".exists(s, ",
    ".all(s, ",
    ".map(s, ",
    "s",
    "size(",
    "GiB",
    "has(",
    "\\",
    "'",
    "é",
    "\n",
    "//",
];

const SEEDS: &[&str] = &[
    "disk.size > 10u * GiB && !system_disk && disk.transport in ['nvme', \"sata\"]",
    "disk.symlinks.exists(s, s.startsWith('/dev') && !s.endsWith(\"b\"))",
    "has(disk.serial) ? size(disk.model) > 3 : glob('WDC*', disk.model)",
    "disk.symlinks.map(s, size(s)).all(n, n >= 2) || disk.model.matches('^n[a-z]+$')",
    "{'a': 1, 'b': 2}['b'] + [1, 2, 3][0] * -4 == 0x1F - int('7') % 3",
    "duration('1h') > duration(\"30m\") && string(1.5e3) != 'x' && double(2u) < 3.0",
];

/// Words in a row; by chance some of them make sense.
fn sentence(random: &mut Random) -> Vec<u8> {
    let count = 1 + random.below(9);
    (0..count).flat_map(|_| random.pick(WORDS).bytes()).collect()
}

#[test]
fn fuzz_expressions() {
    let env = environments::disk();
    let variables = [("disk", Value::Message(Arc::new(Disk))), ("system_disk", Value::Bool(true))];
    let (mut parsed, mut checked) = (0, 0);
    let whole = Target::text("cel-expressions")
        .seeds(SEEDS)
        .corpus(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/cel-expressions"))
        .words(WORDS)
        .generator(sentence)
        .len_max(2048)
        .rounds(40_000)
        .run(|input| {
            let text = String::from_utf8_lossy(input);
            let expression = match Expression::parse(&text) {
                Ok(expression) => expression,
                Err(error) => {
                    assert!(error.offset.is_none_or(|at| at <= text.len()), "{text:?}: {error:?}");
                    return format!("parse {}", shape(&error.to_string()));
                }
            };
            parsed += 1;
            let kind = expression.check(&env);
            let value = expression.eval(&env, &variables);
            // What has a type has no trouble with types later on.
            if let (Ok(kind), Err(error)) = (&kind, &value) {
                let later = matches!(error, EvalError::NoOverload(_) | EvalError::NoVariable(_));
                assert!(
                    !later
                        || format!("{kind}").contains("dyn")
                        || text.contains("null")
                        || text.contains(['[', '{']),
                    "{text}: {error}"
                );
            }
            match kind {
                Ok(kind) => {
                    checked += 1;
                    assert_eq!(
                        expression.check_type(&env, &Type::Bool).is_ok(),
                        kind == Type::Bool || kind == Type::Dyn
                    );
                    let value = value.map(|_| ()).map_err(|error| shape(&error.to_string()));
                    format!("{kind} {value:?}")
                }
                Err(error) => {
                    assert!(error.offset.is_none_or(|at| at <= text.len()), "{text:?}: {error:?}");
                    format!("check {}", shape(&error.to_string()))
                }
            }
        });
    assert!(!whole || (parsed > 1000 && checked > 300), "{parsed} parsed, {checked} checked");
}
