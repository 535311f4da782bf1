//! What there is to know about machine configurations: differences, keys, schema, problems for programs.

use expect_test::expect;
use serde_json::Value;
use tempfile::TempDir;

use crate::run::{Run, ichorctl};

const OLD: &str = "version: v1alpha1
machine:
    type: worker
    certSANs:
        - a
        - b
    nodeLabels:
        keep: 'yes'
        gone: 'yes'
    network:
        hostname: one
";

const NEW: &str = "# words do not count
version: v1alpha1
machine:
    type: worker
    certSANs: [b, c]
    nodeLabels: {keep: 'yes'}
    network:
        hostname: two
---
apiVersion: v1alpha1
kind: WatchdogTimerConfig
device: /dev/watchdog0
";

fn home(files: &[(&str, &str)]) -> TempDir {
    let home = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(home.path().join(name), text).unwrap();
    }
    home
}

#[test]
fn a_difference_is_a_patch_that_leads_from_one_file_to_the_other() {
    let home = home(&[("old.yaml", OLD), ("new.yaml", NEW)]);
    let run = |words: &[&str]| ichorctl(home.path(), words);
    let diff = run(&["config", "diff", "old.yaml", "new.yaml"]);
    expect![[r#"
        machine:
            certSANs:
                $patch: delete
            nodeLabels:
                gone:
                    $patch: delete
        ---
        apiVersion: v1alpha1
        kind: WatchdogTimerConfig
        device: /dev/watchdog0
        ---
        machine:
            network:
                hostname: two
            certSANs:
                - b
                - c
        --- exit 1
    "#]]
    .assert_eq(&diff.text());
    std::fs::write(home.path().join("patch.yaml"), &diff.out).unwrap();
    let patched =
        run(&["machineconfig", "patch", "old.yaml", "--patch", "@patch.yaml", "-o", "patched.yaml"]);
    assert_eq!(patched.text(), "");
    assert_eq!(run(&["config", "diff", "patched.yaml", "new.yaml"]).text(), "");
    assert_eq!(run(&["config", "diff", "new.yaml", "patched.yaml"]).text(), "");
}

#[test]
fn files_that_cannot_be_compared_are_neither_equal_nor_different() {
    let bad = "version: v1alpha1\nmachine:\n    tokn: x\n";
    let part = "apiVersion: v1alpha1\nkind: WatchdogTimerConfig\ndevice: /dev/watchdog0\n";
    let home = home(&[("old.yaml", OLD), ("bad.yaml", bad), ("part.yaml", part)]);
    let diff = |old: &str, new: &str| ichorctl(home.path(), &["config", "diff", old, new]);
    let start = |run: Run| format!("{} {}", run.code, run.err.lines().next().unwrap_or_default());
    expect!["2 open none.yaml: no such file or directory"].assert_eq(&start(diff("old.yaml", "none.yaml")));
    expect!["2 no patch leads there: the root document cannot be deleted"]
        .assert_eq(&start(diff("old.yaml", "part.yaml")));
    expect!["2 only one of the two can be standard input"].assert_eq(&start(diff("-", "-")));
    expect!["2 accepts 2 arg(s), received 1"]
        .assert_eq(&start(ichorctl(home.path(), &["config", "diff", "old.yaml"])));
    expect![[r#"
        --- stderr
        error: unknown key "tokn" in machine
          --> bad.yaml:3:5
           |
         3 |     tokn: x
           |     ^^^^
          = did you mean "token"?
        --- exit 2
    "#]]
    .assert_eq(&diff("old.yaml", "bad.yaml").text());
}

#[test]
fn keys_are_explained_and_misspelt_ones_are_guessed() {
    let home = home(&[]);
    let explain = |path: &str| ichorctl(home.path(), &["config", "explain", path]).text();
    expect![[r#"
        KEY:     machine.network.interfaces[0].dhcpOptions
        TYPE:    DhcpOptions

            Details of DHCP.

        KEYS:
            routeMetric  Metric of the routes that DHCP gives.
            ipv4         Ask for an IPv4 address.
            ipv6         Ask for an IPv6 address.
            duidv6       Identifier of this client for IPv6, in hex.
    "#]]
    .assert_eq(&explain("machine.network.interfaces[0].dhcpOptions"));
    expect![[r#"
        --- stderr
        no key "netwrok" in machine
          did you mean "network"?
        --- exit 1
    "#]]
    .assert_eq(&explain("machine.netwrok.interfaces"));
    expect![[r#"
        --- stderr
        no key "banana" in machine
          `ichorctl config explain` lists where paths start
        --- exit 1
    "#]]
    .assert_eq(&explain("machine.banana"));
    let all = ichorctl(home.path(), &["config", "explain"]);
    assert_eq!(all.code, 0);
    for (name, ..) in ichor_config::describe::all_kinds().skip(1) {
        assert!(all.out.contains(&format!("\n    {name} ")), "{name}: {}", all.out);
    }
    let complete =
        |partial: &str| ichorctl(home.path(), &["__complete", "config", "explain", partial]).text();
    assert_eq!(complete("machine.net"), "machine.network\n:words\n");
    assert_eq!(complete("HostnameConfig.a"), "HostnameConfig.auto\n:words\n");
}

#[test]
fn the_schema_is_printed_as_the_library_makes_it() {
    let run = ichorctl(home(&[]).path(), &["config", "schema"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    let schema: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(schema, ichor_config::describe::schema());
}

#[test]
fn problems_are_written_for_programs_too() {
    let home = home(&[
        ("bad.yaml", "version: v1alpha1\nmachine:\n    type: worker\n    tokn: x\n"),
        ("torn.yaml", "machine: [\n"),
    ]);
    let validate = |file: &str, more: &[&str]| {
        let words = [&["validate", "-m", "container", "-o", "json", "-c", file], more].concat();
        ichorctl(home.path(), &words)
    };
    expect![[r#"
        {
            "file": "bad.yaml",
            "valid": false,
            "problems": [
                {
                    "severity": "error",
                    "stage": "unknown-key",
                    "document": "v1alpha1.Config",
                    "path": "machine.tokn",
                    "line": 4,
                    "column": 5,
                    "message": "unknown key \"tokn\" in machine",
                    "help": "did you mean \"token\"?"
                }
            ]
        }
        --- exit 1
    "#]]
    .assert_eq(&validate("bad.yaml", &[]).text());
    let torn = validate("torn.yaml", &[]);
    let answer: Value = serde_json::from_str(&torn.out).unwrap();
    assert_eq!(
        (torn.code, &answer["valid"], &answer["problems"][0]["stage"]),
        (1, &false.into(), &"syntax".into())
    );
    assert!(answer["problems"][0]["line"].as_u64() >= Some(1), "{answer}");

    let made = ichorctl(
        home.path(),
        &["gen", "config", "lab", "https://10.5.0.2:6443", "--with-docs=false", "--with-examples=false"],
    );
    assert_eq!(made.code, 0, "{made:?}");
    let good = validate("worker.yaml", &[]);
    let answer: Value = serde_json::from_str(&good.out).unwrap();
    assert_eq!((good.code, &answer["valid"]), (0, &true.into()), "{answer}");
    assert_eq!(validate("none.yaml", &[]).code, 1);
    assert!(validate("bad.yaml", &["-o", "xml"]).err.starts_with("unknown output format: \"xml\"\n"));
}
