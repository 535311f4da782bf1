//! Expressions as configurations have them: what they mean and what is said about wrong ones.

use std::sync::Arc;

use expect_test::{Expect, expect};
use ichor_cel::{Env, Expression, Object, Type, Value, environments};

struct Disk;

impl Object for Disk {
    fn field(&self, name: &str) -> Option<Value> {
        Some(match name {
            "size" => Value::Uint(100_000_000_000),
            "model" => Value::string("WDC 100"),
            "transport" => Value::string("nvme"),
            "rotational" | "readonly" | "cdrom" => Value::Bool(false),
            "symlinks" => {
                Value::list([Value::string("/dev/disk/by-id/a"), Value::string("/dev/disk/by-id/b")])
            }
            "serial" | "uuid" => Value::string(""),
            _ => return None,
        })
    }
}

#[track_caller]
fn check_value(text: &str, want: &str) {
    let env = environments::disk();
    let expression = Expression::parse(text).unwrap_or_else(|error| panic!("{error}"));
    expression.check(&env).unwrap_or_else(|error| panic!("{error}"));
    let variables = [("disk", Value::Message(Arc::new(Disk))), ("system_disk", Value::Bool(false))];
    let got = match expression.eval(&env, &variables) {
        Ok(value) => format!("{value:?}"),
        Err(error) => format!("error: {error}"),
    };
    assert_eq!(got, want, "{text}");
}

#[test]
fn expressions_have_their_value() {
    for (text, want) in [
        ("disk.size > 10u * GiB", "true"),
        ("disk.size < 1u * TB && !system_disk", "true"),
        ("disk.transport == \"nvme\" && !disk.rotational", "true"),
        ("glob(\"WDC*\", disk.model)", "true"),
        ("disk.transport in [\"nvme\", \"sata\"]", "true"),
        ("disk.symlinks.exists(s, s.endsWith('b'))", "true"),
        ("disk.symlinks.all(s, s.startsWith('/dev'))", "true"),
        ("disk.symlinks.exists_one(s, s == '/dev/disk/by-id/a')", "true"),
        ("disk.symlinks.map(s, size(s))", "[17, 17]"),
        ("disk.symlinks.filter(s, s.contains('a'))", r#"["/dev/disk/by-id/a"]"#),
        ("has(disk.serial)", "false"),
        ("has(disk.model) ? 1 : 2", "1"),
        ("1 + 2 * 3 - 4 / 2 % 3", "5"),
        ("(1 + 2) * 3", "9"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("0x1F == 31 && 0x1Fu == 31u", "true"),
        ("1.5e3 > 1.0", "true"),
        ("'a' + \"b\" + r'\\n' == 'ab\\\\n'", "true"),
        ("{'a': 1, 'b': 2}['b']", "2"),
        ("{'a': 1}.a", "1"),
        ("[1, 2][1]", "2"),
        ("[1, 2][5]", "error: no such key: 5"),
        ("duration('1h') > duration('30m')", "true"),
        ("duration('1h') - duration('30m') == duration('1800s')", "true"),
        ("9223372036854775807 + 1", "error: integer overflow"),
        ("1 / 0", "error: division by zero"),
        ("false && 1 / 0 == 1", "false"),
        ("1 / 0 == 1 || true", "true"),
        ("1 / 0 == 1 || false", "error: division by zero"),
        ("disk.model.matches('^WDC [0-9]+$')", "true"),
        (
            "disk.model.matches('[')",
            "error: bad pattern: regex parse error:\n    [\n    ^\nerror: unclosed character class",
        ),
        ("int('12') + int(3u) + int(1.9)", "16"),
        ("uint(-1)", "error: integer overflow"),
        ("string(12) + string(true)", r#""12true""#),
        ("\"\\u00e9\" == 'é' && b'\\xff' != b''", "true"),
        ("// a comment\n true", "true"),
    ] {
        check_value(text, want);
    }
}

#[test]
fn default_rankings_are_understood() {
    let env = environments::oom_ranking();
    let text = "memory_max.hasValue() ? 0.0 : ({Besteffort: 1.0, Burstable: 0.5, Guaranteed: 0.0, Podruntime: 0.0, \
                System: 0.0}[class] * double(memory_current.orValue(0u)))";
    let expression = Expression::parse(text).unwrap();
    expression.check_type(&env, &Type::Double).unwrap();
    let variables = [
        ("memory_max", Value::optional(None)),
        ("memory_current", Value::optional(Some(Value::Uint(1000)))),
        ("class", Value::Int(1)),
    ];
    assert_eq!(expression.eval(&env, &variables), Ok(Value::Double(500.0)));
    let trigger =
        "memory_full_avg10 > 12.0 && d_memory_full_avg10 > 0.0 && time_since_trigger > duration(\"500ms\")";
    Expression::parse(trigger).unwrap().check_type(&environments::oom_trigger(), &Type::Bool).unwrap();
    let alias = Expression::parse("mac(link.permanent_addr) == \"00:1a:2b:3c:4d:5e\"").unwrap();
    alias.check_type(&environments::link(), &Type::Bool).unwrap();
    let volume = Expression::parse("volume.partition_label == \"MY-DATA\"").unwrap();
    volume.check_type(&environments::volume(), &Type::Bool).unwrap();
}

#[track_caller]
fn check_error(env: &Env, text: &str, expect: Expect) {
    let checked = Expression::parse(text).and_then(|expression| expression.check_type(env, &Type::Bool));
    expect.assert_eq(&checked.expect_err(text).to_string());
}

#[test]
fn mistakes_are_pointed_at() {
    let env = environments::disk();
    check_error(
        &env,
        "disk.sizee > 10u",
        expect![[r#"
        ERROR: <input>:1:5: undefined field 'sizee'
         | disk.sizee > 10u
         | ....^"#]],
    );
    check_error(
        &env,
        "disk.size > 10",
        expect![[r#"
        ERROR: <input>:1:11: found no matching overload for '_>_' applied to '(uint, int)'
         | disk.size > 10
         | ..........^"#]],
    );
    check_error(
        &env,
        "foo",
        expect![[r#"
        ERROR: <input>:1:1: undeclared reference to 'foo' (in container '')
         | foo
         | ^"#]],
    );
    check_error(&env, "disk.size", expect!["expression output type is uint, expected bool"]);
    check_error(
        &env,
        "10 * GiB",
        expect![[r#"
        ERROR: <input>:1:4: found no matching overload for '_*_' applied to '(int, uint)'
         | 10 * GiB
         | ...^"#]],
    );
    check_error(
        &env,
        "glob(\"a\")",
        expect![[r#"
        ERROR: <input>:1:5: found no matching overload for 'glob' applied to '(string)'
         | glob("a")
         | ....^"#]],
    );
    check_error(
        &env,
        "disk.model.foo()",
        expect![[r#"
        ERROR: <input>:1:15: undeclared reference to 'foo' (in container '')
         | disk.model.foo()
         | ..............^"#]],
    );
    check_error(
        &env,
        "disk.symlinks.exists(s, s == 1)",
        expect![[r#"
        ERROR: <input>:1:27: found no matching overload for '_==_' applied to '(string, int)'
         | disk.symlinks.exists(s, s == 1)
         | ..........................^"#]],
    );
    check_error(
        &env,
        "1 in disk.symlinks",
        expect![[r#"
        ERROR: <input>:1:3: found no matching overload for '@in' applied to '(int, list(string))'
         | 1 in disk.symlinks
         | ..^"#]],
    );
    check_error(
        &env,
        "disk.size == 10u && (disk.model",
        expect![[r#"
        ERROR: <input>:1:32: Syntax error: missing ')' at '<EOF>'
         | disk.size == 10u && (disk.model
         | ...............................^"#]],
    );
    check_error(
        &env,
        "true ? 1 : \"a\"",
        expect![[r#"
        ERROR: <input>:1:6: found no matching overload for '_?_:_' applied to '(bool, int, string)'
         | true ? 1 : "a"
         | .....^"#]],
    );
    check_error(
        &env,
        "-disk.size > 1u",
        expect![[r#"
        ERROR: <input>:1:1: found no matching overload for '-_' applied to '(uint)'
         | -disk.size > 1u
         | ^"#]],
    );
}

#[test]
fn hostile_texts_are_bounded() {
    let env = environments::disk();
    for text in [
        "(".repeat(5000),
        "!".repeat(5000),
        "-".repeat(5000),
        "a.".repeat(5000),
        "[".repeat(16000),
        "1+".repeat(8000),
    ] {
        assert!(Expression::parse(&text).and_then(|expression| expression.check(&env)).is_err());
    }
    assert!(Expression::parse(&" ".repeat(1 << 20)).is_err());
    // A sum of many terms is a high tree even without brackets.
    assert!(Expression::parse(&vec!["1"; 4000].join("+")).is_err());
    let most = Expression::parse(&vec!["1"; 400].join("+")).unwrap();
    assert_eq!(most.eval(&env, &()), Ok(Value::Int(400)));
    let list = format!("[{}]", vec!["1"; 2000].join(","));
    let nested = format!("{list}.all(a, {list}.all(b, {list}.all(c, a + b + c > 0)))");
    let result = Expression::parse(&nested).unwrap().eval(&env, &());
    assert_eq!(result.unwrap_err().to_string(), "more than 100000 steps");
}
