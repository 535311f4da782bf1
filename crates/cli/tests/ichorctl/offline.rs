//! Commands that need no machine: the call itself, the client configuration, keys, completion.

use expect_test::{Expect, expect};
use tempfile::TempDir;

use crate::run::ichorctl;

fn home() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[track_caller]
fn first_line(words: &[&str], expect: Expect) {
    let run = ichorctl(home().path(), words);
    assert_eq!(run.code, 1, "{run:?}");
    expect.assert_eq(run.err.lines().next().unwrap_or_default());
}

#[test]
fn a_call_that_makes_no_sense_is_told_why() {
    first_line(
        &["verison"],
        expect![[r#"unknown command "verison" for "ichorctl"; did you mean "version"?"#]],
    );
    first_line(&["banana"], expect![[r#"unknown command "banana" for "ichorctl""#]]);
    first_line(&["config", "banana"], expect![[r#"unknown command "banana" for "ichorctl config""#]]);
    first_line(&["version", "--clinet"], expect!["unknown flag: --clinet; did you mean --client?"]);
    first_line(&["version", "-z"], expect!["unknown shorthand flag: 'z' in -z"]);
    first_line(&["version", "-n"], expect!["flag needs an argument: -n"]);
    first_line(
        &["version", "x"],
        expect![[r#"unknown command "x" for "ichorctl version": it takes no arguments"#]],
    );
    first_line(&["logs"], expect!["accepts 1 arg(s), received 0"]);
    first_line(&["get"], expect!["accepts between 1 and 2 arg(s), received 0"]);
    first_line(&["config", "endpoint"], expect!["requires at least 1 arg(s), only received 0"]);
    first_line(
        &["logs", "x", "--tail", "y"],
        expect![[r#"invalid argument "y" for "--tail" flag: not a whole number of 32 bits"#]],
    );
    first_line(
        &["reboot", "--timeout", "soon"],
        expect![[r#"invalid argument "soon" for "--timeout" flag: not a duration such as 30s or 1h30m"#]],
    );
    first_line(
        &["reboot", "--wait=perhaps"],
        expect![[r#"invalid argument "perhaps" for "--wait" flag: not true or false"#]],
    );
    first_line(&["cluster", "create", "docker"], expect![[r#"provider "docker" is not offered yet"#]]);
    first_line(
        &["cluster", "create", "--controlplanes", "0"],
        expect!["a cluster needs a control plane machine: --controlplanes must be at least 1"],
    );
    first_line(&["cluster", "create", "--cidr", "10.5/8"], expect![[r#""10.5/8" is not a network"#]]);
    first_line(
        &["cluster", "show", "--name", "none"],
        expect!["there is no cluster none; `ichorctl cluster list` shows those that are"],
    );
    first_line(&["gen", "ca"], expect![[r#"required flag(s) "organization" not set"#]]);
}

#[test]
fn without_a_client_configuration_the_way_to_one_is_shown() {
    first_line(&["version"], expect!["failed to determine endpoints: talos config file is empty"]);
    first_line(&["version", "-e", "127.0.0.1:1"], expect!["talos config file is empty"]);
    let home = home();
    ichorctl(home.path(), &["config", "add", "a"]);
    let run = ichorctl(home.path(), &["-n", "10.5.0.2", "memory"]);
    assert!(run.err.starts_with("default context"), "{}", run.err);
    ichorctl(home.path(), &["config", "context", "a"]);
    let run = ichorctl(home.path(), &["-n", "10.5.0.2", "memory"]);
    assert!(run.err.starts_with("failed to determine endpoints"), "{}", run.err);
    ichorctl(home.path(), &["config", "endpoint", "127.0.0.1:1"]);
    let run = ichorctl(home.path(), &["memory"]);
    assert!(run.err.starts_with("nodes are not set for the command"), "{}", run.err);
}

#[test]
fn contexts_are_added_listed_switched_and_removed() {
    let home = home();
    let run = |words: &[&str]| ichorctl(home.path(), words).text();
    assert_eq!(run(&["config", "add", "one"]), "");
    assert_eq!(run(&["config", "add", "two"]), "");
    assert_eq!(run(&["config", "context", "one"]), "");
    assert_eq!(run(&["config", "endpoint", "10.5.0.2", "10.5.0.3"]), "");
    assert_eq!(run(&["config", "node", "a", "b", "c", "d", "--context", "two"]), "");
    expect![[r#"
        CURRENT   NAME   ENDPOINTS           NODES
        *         one    10.5.0.2,10.5.0.3   
                  two                        a,b,c,...
    "#]]
    .assert_eq(&run(&["config", "contexts"]));
    expect![[r#"
        Current context:     one
        Nodes:               not defined
        Endpoints:           10.5.0.2, 10.5.0.3
    "#]]
    .assert_eq(&run(&["config", "info"]));
    expect![[r#"
        --- stderr
        skipping removal of current context "one"; switch to another one first
        removed context "two"
    "#]]
    .assert_eq(&run(&["config", "remove", "*", "-y"]));
    expect![[r#"
        --- stderr
        context "tow" does not exist
          `ichorctl config contexts` lists them
        --- exit 1
    "#]]
    .assert_eq(&run(&["config", "context", "tow"]));
}

#[test]
fn merging_a_file_numbers_names_that_are_taken() {
    let home = home();
    let other = home.path().join("other");
    std::fs::write(&other, "context: a\ncontexts:\n    a:\n        endpoints:\n            - 10.5.0.2\n")
        .unwrap();
    assert_eq!(ichorctl(home.path(), &["config", "merge", "other"]).text(), "");
    expect![[r#"
        --- stderr
        renamed talosconfig context "a" -> "a-1"
    "#]]
    .assert_eq(&ichorctl(home.path(), &["config", "merge", "other"]).text());
    expect![[r#"
        context: a-1
        contexts:
            a:
                endpoints:
                    - 10.5.0.2
            a-1:
                endpoints:
                    - 10.5.0.2
    "#]]
    .assert_eq(&std::fs::read_to_string(home.path().join(".talos/config")).unwrap());
}

#[test]
fn the_client_configuration_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = home();
    ichorctl(home.path(), &["config", "add", "a"]);
    let mode = |path: &str| std::fs::metadata(home.path().join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(".talos/config"), 0o600);
    assert_eq!(mode(".talos"), 0o700);
}

#[test]
fn a_certificate_is_made_from_an_authority_and_a_request() {
    let home = home();
    let run = |words: &[&str]| assert_eq!(ichorctl(home.path(), words).text(), "", "{words:?}");
    run(&["gen", "ca", "--organization", "talos"]);
    run(&["gen", "key", "--name", "me"]);
    run(&["gen", "csr", "--key", "me.key", "--ip", "10.5.0.2", "--roles", "os:reader,os:operator"]);
    run(&["gen", "crt", "--ca", "talos", "--csr", "me.csr", "--name", "me"]);
    let crt = std::fs::read(home.path().join("me.crt")).unwrap();
    let mut info = ichor_pki::CertInfo::parse(&crt).unwrap();
    info.organizations.sort();
    assert_eq!(info.organizations, ["os:operator", "os:reader"]);
    assert!(info.is_client_only());
    let hash = std::fs::read_to_string(home.path().join("talos.sha256")).unwrap();
    assert!(hash.starts_with("sha256:") && hash.len() == 7 + 64, "{hash}");
    expect![[r#"
        --- stderr
        file "me.key" already exists, use --force to overwrite
        --- exit 1
    "#]]
    .assert_eq(&ichorctl(home.path(), &["gen", "key", "--name", "me"]).text());
}

#[test]
fn words_are_completed_from_the_table() {
    let home = home();
    let complete = |words: &[&str]| {
        let words: Vec<&str> = ["__complete"].into_iter().chain(words.iter().copied()).collect();
        ichorctl(home.path(), &words).text()
    };
    assert_eq!(
        complete(&["vers"]),
        "version\tPrint the versions of this client and of the machines\n:words\n"
    );
    assert_eq!(complete(&["reboot", "--mode", ""]), "default\npowercycle\nforce\n:words\n");
    assert_eq!(complete(&["reboot", "--mode=p"]), "--mode=powercycle\n:words\n");
    assert_eq!(
        complete(&["-n", "x", "get", "--outp"]),
        "--output\ttable, yaml, json or jsonpath=EXPRESSION\n:words\n"
    );
    assert_eq!(complete(&["apply-config", "-f", ""]), ":files\n");
    assert_eq!(complete(&["completion", ""]), "bash\nfish\nzsh\n:words\n");
    ichorctl(home.path(), &["config", "add", "first"]);
    assert_eq!(complete(&["config", "context", "f"]), "first\n:words\n");
}

#[test]
fn bash_completes_with_the_code_it_is_given() {
    let home = home();
    let code = ichorctl(home.path(), &["completion", "bash"]);
    assert_eq!(code.code, 0);
    let program = env!("CARGO_BIN_EXE_ichorctl");
    let complete = |words: &[&str]| {
        let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        let script = format!(
            "{}\nCOMP_WORDS=('{program}' {}); COMP_CWORD={}; _ichorctl; printf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
            code.out,
            quoted.join(" "),
            words.len()
        );
        let mut bash = std::process::Command::new("bash");
        let output =
            bash.arg("-c").arg(script).current_dir(home.path()).env("HOME", home.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(complete(&["vers"]), "version\n");
    assert_eq!(complete(&["reboot", "--mode", "p"]), "powercycle\n");
    assert_eq!(complete(&["reboot", "--mode", "=", "p"]), "powercycle\n");
    assert_eq!(complete(&["reboot", "--mode", "="]), "default\npowercycle\nforce\n");
    std::fs::write(home.path().join("worker.yaml"), "").unwrap();
    assert_eq!(complete(&["validate", "-c", "work"]), "worker.yaml\n");
    first_line(&["completion", "tcsh"], expect![[r#"unsupported shell: "tcsh""#]]);
}

#[test]
fn every_command_has_help() {
    fn visit(path: &mut Vec<&'static ichor_cli::table::Command>) {
        let command = path[path.len() - 1];
        assert!(!command.about.is_empty(), "{}", command.name);
        assert!(command.run.is_some() || !command.subcommands.is_empty(), "{}", command.name);
        let help = ichor_cli::help::help(path);
        assert!(help.contains("Usage:"), "{}", command.name);
        let mut letters = std::collections::BTreeSet::new();
        let mut names = std::collections::BTreeSet::new();
        for flag in ichor_cli::table::flags_of(path) {
            assert!(names.insert(flag.name), "{}: --{} twice", command.name, flag.name);
            if let Some(letter) = flag.short {
                assert!(letters.insert(letter), "{}: -{letter} twice", command.name);
            }
            assert!(!flag.help.is_empty() && !flag.help.ends_with('.'), "{}: --{}", command.name, flag.name);
        }
        for sub in command.subcommands {
            path.push(sub);
            visit(path);
            path.pop();
        }
    }
    visit(&mut vec![&ichor_cli::cmd::ROOT]);
}

#[test]
fn the_reference_page_is_what_the_table_says() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    let written = std::fs::read_to_string(page).unwrap_or_default();
    let wanted = ichor_cli::help::reference(&ichor_cli::cmd::ROOT);
    assert!(
        written == wanted,
        "docs/cli.md is out of date; write it anew with `ichorctl docs > docs/cli.md`"
    );
}
