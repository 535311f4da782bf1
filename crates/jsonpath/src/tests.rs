//! Templates and what they give.

use serde_json::{Value, json};

use crate::Path;

fn store() -> Value {
    json!({
        "kind": "List",
        "labels": { "app.kubernetes.io/name": "x", "a b": 1 },
        "items": [
            { "name": "one", "port": 80, "ratio": 1e6, "tags": ["a", "b"], "on": true },
            { "name": "two", "port": 443, "tags": [], "nothing": null },
            { "name": "three", "port": 8080, "tags": ["c"], "html": "<&>" },
        ],
    })
}

#[track_caller]
fn check(template: &str, want: &str) {
    let got = Path::parse(template)
        .map_err(|error| error.to_string())
        .and_then(|path| path.text(&store()).map_err(|error| error.to_string()))
        .unwrap_or_else(|error| format!("error: {error}"));
    assert_eq!(got, want, "{template}");
}

#[test]
fn fields_and_text() {
    check("plain", "plain");
    check("{.kind}", "List");
    check("{$.kind}", "List");
    check("{ .kind }!", "List!");
    check("kind={.kind}", "kind=List");
    check(r"{.labels.app\.kubernetes\.io/name}", "x");
    check("{.labels['a b']}", "1");
    check("{.labels}", r#"{"a b":1,"app.kubernetes.io/name":"x"}"#);
    check("{.missing}", "error: missing is not found");
    check("{.kind.deeper}", "error: deeper is not found");
}

#[test]
fn lists() {
    check("{.items[0].name}", "one");
    check("{.items[-1].name}", "three");
    check("{.items[*].name}", "one two three");
    check("{.items[:].name}", "one two three");
    check("{.items[0:2].name}", "one two");
    check("{.items[1:].port}", "443 8080");
    check("{.items[::2].port}", "80 8080");
    check("{.items[-2:].port}", "443 8080");
    check("{.items[0,2].name}", "one three");
    check("{.items[0]['name','port']}", "one 80");
    check("{.items[1:1].name}", "");
    check("{.items[3].name}", "error: array index out of bounds: index 3, length 3");
    check("{.items[2:1].name}", "error: starting index 2 is greater than ending index 1");
    check("{.items[::0].name}", "error: step must be > 0");
    check("{.kind[0]}", "error: string is not array or slice");
    check("{.items[0].tags}", r#"["a","b"]"#);
    check("{.items[1].tags}", "[]");
    check("{.items[2]}", r#"{"html":"\u003c\u0026\u003e","name":"three","port":8080,"tags":["c"]}"#);
}

#[test]
fn wildcards_and_descent() {
    check("{.items[0].tags.*}", "a b");
    check("{..name}", "one two three");
    check("{.items[*].tags[*]}", "a b c");
    check("{....name}", "error: invalid multiple recursive descent");
}

#[test]
fn filters() {
    check(r#"{.items[?(@.name=="two")].port}"#, "443");
    check("{.items[?(@.port>100)].name}", "two three");
    check("{.items[?(@.port<=443)].name}", "one two");
    check("{.items[?(@.port!=80)].name}", "two three");
    check("{.items[?(@.on)].name}", "one");
    check("{.items[?(@.on==true)].name}", "error: on is not found");
    check("{.items[?(@.name=='a)]b')].port}", "");
    check("{.items[?(@.tags[?(@=='c')])].name}", "three");
    check("{.items[?(@.name==1)].port}", "error: incompatible types for comparison");
    check("{.items[?(@.name=~'x')].port}", "error: unrecognized filter operator =");
    check("{.items[?(@.name===1)].port}", "error: unrecognized filter operator ===");
    check("{.items[?(@.name==1].port}", "error: unterminated filter");
}

#[test]
fn ranges() {
    check(r#"{range .items[*]}{.name}:{.port}{"\n"}{end}"#, "one:80\ntwo:443\nthree:8080\n");
    check("{range .items[*]}[{range .tags[*]}{@},{end}]{end}.", "[a,b,][][c,].");
    check("{range .items[5:5]}{.name}{end}done", "done");
    check("{range .items[*]}{.name}", "error: unclosed range");
    check("{end}", "error: not in range, nothing to end");
}

#[test]
fn constants() {
    check(r#"{"a\tb"}{'it\'s'}"#, "a\tbit's");
    check("{1} {-2.5} {true}", "1 -2.5 true");
    check("{.items[0].ratio} {.items[1].nothing}", "1e+06 null");
}

#[test]
fn what_is_no_template_says_why() {
    check("{.kind", "error: unclosed action");
    check("{", "error: unclosed action");
    check("{.a[1}", "error: unterminated array");
    check("{.a[x]}", "error: invalid array index x");
    check("{'x}", "error: unterminated quoted string");
    check("{hello}", "error: unrecognized identifier hello");
    check("{!}", "error: unrecognized character in action: '!'");
    check(r#"{"\q"}"#, r#"error: unquote string "\q"}: invalid syntax"#);
    let deep = format!("{{.a{}{}}}", "[?(@.a".repeat(40), ")]".repeat(40));
    check(&deep, "error: filters are nested more than 16 levels deep");
}

#[test]
fn missing_keys_may_be_allowed() {
    let path = Path::parse("a{.missing}b{.items[*].html}").unwrap().allow_missing_keys();
    assert_eq!(path.text(&store()), Ok("ab<&>".into()));
    assert_eq!(Path::parse("{@}").unwrap().text(&json!("worker")), Ok("worker".into()));
}

#[test]
fn noise_never_panics() {
    let alphabet = [
        "{", "}", "[", "]", ".", "*", "?(", ")", "'", "\"", "\\", "a", "1", ":", ",", "-", "range ", "end",
        "@", "ü", "==",
    ];
    let mut state = 1u64;
    for _ in 0..20_000 {
        let mut text = String::new();
        for _ in 0..12 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            text.push_str(alphabet[(state >> 33) as usize % alphabet.len()]);
        }
        if let Ok(path) = Path::parse(&text) {
            let _ = path.text(&store());
        }
    }
}
