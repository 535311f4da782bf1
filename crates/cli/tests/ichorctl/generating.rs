//! Configurations made, patched and checked without a machine.

use expect_test::expect;
use ichor_config::talosconfig::ClientConfig;
use tempfile::TempDir;

use crate::run::{Run, ichorctl};

/// A directory with a secrets bundle, which takes a while to make.
fn with_secrets() -> &'static TempDir {
    static HOME: std::sync::OnceLock<TempDir> = std::sync::OnceLock::new();
    HOME.get_or_init(|| {
        let home = tempfile::tempdir().unwrap();
        let run = ichorctl(home.path(), &["gen", "secrets"]);
        assert_eq!(run.text(), "");
        home
    })
}

fn generate(output: &str, more: &[&str]) -> Run {
    let home = with_secrets();
    let mut words = vec![
        "gen",
        "config",
        "lab",
        "https://10.5.0.2:6443",
        "--with-secrets",
        "secrets.yaml",
        "--output",
        output,
    ];
    words.extend(more);
    ichorctl(home.path(), &words)
}

#[test]
fn a_cluster_starts_from_three_files() {
    let run = generate("three", &[]);
    expect![[r#"
        --- stderr
        generating PKI and tokens
        Created three/controlplane.yaml
        Created three/worker.yaml
        Created three/talosconfig
    "#]]
    .assert_eq(&run.text());
    let home = with_secrets().path();
    for (file, mode) in [("controlplane.yaml", "metal"), ("worker.yaml", "cloud")] {
        let run = ichorctl(home, &["validate", "--config", &format!("three/{file}"), "--mode", mode]);
        assert_eq!(run.text(), format!("three/{file} is valid for {mode} mode\n"));
    }
    let client = ClientConfig::load(&std::fs::read(home.join("three/talosconfig")).unwrap()).unwrap();
    assert_eq!(client.context, "lab");
    let info = ichorctl(home, &["config", "info", "--talosconfig", "three/talosconfig"]);
    assert!(info.out.contains("Roles:               os:admin\n"), "{}", info.out);
    assert!(info.out.contains("Certificate expires: 1"), "{}", info.out);
}

#[test]
fn files_that_exist_are_not_touched() {
    assert_eq!(generate("twice", &[]).code, 0);
    expect![[r#"
        --- stderr
        file "twice/controlplane.yaml" already exists, use --force to overwrite
        --- exit 1
    "#]]
    .assert_eq(&generate("twice", &[]).text());
    assert_eq!(generate("twice", &["--force"]).code, 0);
}

#[test]
fn one_type_goes_to_standard_output() {
    let run = generate("-", &["-t", "worker", "--with-docs=false", "--with-examples=false"]);
    assert!(run.out.starts_with("version: v1alpha1\n"), "{}", run.out);
    assert!(run.out.contains("    type: worker\n"), "{}", run.out);
    let run = generate("-", &[]);
    assert!(run.err.starts_with("can't use multiple output types with stdout\n"), "{}", run.err);
}

#[test]
fn no_type_at_all_is_refused_and_makes_no_files() {
    for empty in [["-t", ""], ["--output-types", ","]] {
        let run = generate("none", &empty);
        assert_eq!(run.text(), "--- stderr\nat least one output type must be specified\n--- exit 1\n");
        assert!(!with_secrets().path().join("none").exists());
    }
}

#[test]
fn common_patches_come_before_those_of_a_role() {
    let run = generate(
        "-",
        &[
            "-t",
            "worker",
            "--with-docs=false",
            "--with-examples=false",
            "--config-patch",
            "{\"machine\": {\"install\": {\"disk\": \"/dev/one\"}}}",
            "--config-patch-worker",
            "{\"machine\": {\"install\": {\"disk\": \"/dev/two\"}}}",
        ],
    );
    assert!(run.out.contains("disk: /dev/two"), "{}{}", run.out, run.err);
}

#[test]
fn an_endpoint_that_is_no_url_is_put_right() {
    let home = tempfile::tempdir().unwrap();
    let error = |endpoint: &str| ichorctl(home.path(), &["gen", "config", "lab", endpoint]).err;
    expect![[r#"
        no scheme and port specified for the cluster endpoint URL
          try: "https://10.5.0.2:6443"
    "#]]
    .assert_eq(&error("10.5.0.2"));
    expect![[r#"
        the control plane endpoint URL should have scheme "https", not "http"
          try: "https://10.5.0.2:6443"
    "#]]
    .assert_eq(&error("http://10.5.0.2:6443"));
}

#[test]
fn a_configuration_file_is_patched() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("a.yaml"), "version: v1alpha1\nmachine:\n    type: worker\n").unwrap();
    let patch = "{\"machine\": {\"token\": \"x.y\"}}";
    expect![[r#"
        version: v1alpha1
        machine:
            type: worker
            token: x.y
            certSANs: []
        cluster: null

    "#]]
    .assert_eq(&ichorctl(home.path(), &["machineconfig", "patch", "a.yaml", "-p", patch]).text());
    let run = ichorctl(home.path(), &["mc", "patch", "a.yaml", "-p", "{\"machine\": {\"tokn\": \"x\"}}"]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("tokn"), "{}", run.err);
}

#[test]
fn a_configuration_that_breaks_the_rules_points_at_the_place() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(
        home.path().join("a.yaml"),
        "version: v1alpha1\nmachine:\n    type: worker\n    tokn: x\n",
    )
    .unwrap();
    let run = ichorctl(home.path(), &["validate", "-c", "a.yaml", "-m", "metal"]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("a.yaml:4:5"), "{}", run.err);
    let run = ichorctl(home.path(), &["validate", "-c", "a.yaml"]);
    assert!(run.err.starts_with("required flag(s) \"mode\" not set\n"), "{}", run.err);
    let run = ichorctl(home.path(), &["validate", "-c", "a.yaml", "-m", "moon"]);
    assert!(run.err.starts_with("unknown runtime mode: \"moon\"\n"), "{}", run.err);
}

#[test]
fn when_one_file_cannot_be_written_none_is() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    assert_eq!(ichorctl(home, &["gen", "secrets"]).code, 0);
    let words = [
        "gen",
        "config",
        "lab",
        "https://10.5.0.2:6443",
        "--with-secrets",
        "secrets.yaml",
        "-o",
        "out",
        "--force",
    ];
    std::fs::create_dir_all(home.join("out/worker.yaml")).unwrap();
    let refused = ichorctl(home, &words);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains("write out/worker.yaml: is a directory"), "{refused:?}");
    let left: Vec<_> =
        std::fs::read_dir(home.join("out")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["worker.yaml"], "nothing else is there");
}

#[test]
fn a_missing_or_incomplete_bundle_never_leads_to_new_secrets() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let with =
        |file| ichorctl(home, &["gen", "config", "lab", "https://10.5.0.2:6443", "--with-secrets", file]);
    let missing = with("secrets.yaml");
    assert!(
        missing.code == 1 && missing.err.starts_with("open secrets.yaml: no such file or directory"),
        "{missing:?}"
    );
    std::fs::write(home.join("empty.yaml"), "").unwrap();
    assert!(with("empty.yaml").err.contains("secrets bundle is empty"));
    std::fs::write(home.join("part.yaml"), "cluster: {id: a}\n").unwrap();
    let part = with("part.yaml");
    assert!(
        part.code == 1 && part.err.contains("certs is required") && !part.err.contains("generating"),
        "{part:?}"
    );
    assert!(!home.join("controlplane.yaml").exists());

    // A worker's configuration does not have them all.
    assert_eq!(ichorctl(home, &["gen", "config", "lab", "https://10.5.0.2:6443"]).code, 0);
    let worker = ichorctl(home, &["gen", "secrets", "--from-controlplane-config", "worker.yaml"]);
    assert!(worker.code == 1 && worker.err.contains("does not have all secrets"), "{worker:?}");
    let whole = ichorctl(home, &["gen", "secrets", "--from-controlplane-config", "controlplane.yaml"]);
    assert_eq!((whole.code, home.join("secrets.yaml").exists()), (0, true), "{whole:?}");
    let nowhere = ichorctl(home, &["gen", "secrets", "-o", "no/where/secrets.yaml"]);
    assert!(nowhere.code == 1 && !home.join("no").exists(), "{nowhere:?}");
}

#[test]
fn a_mistake_in_a_patch_is_pointed_at_before_keys_are_made() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    std::fs::write(home.join("p.yaml"), "machine:\n  kubelet:\n    imagge: a\n").unwrap();
    let refused =
        ichorctl(home, &["gen", "config", "lab", "https://10.5.0.2:6443", "--config-patch", "@p.yaml"]);
    expect![[r#"
        --- stderr
        error: unknown key "imagge" in machine.kubelet
          --> p.yaml:3:5
           |
         3 |     imagge: a
           |     ^^^^^^
          = did you mean "image"?
        --- exit 1
    "#]]
    .assert_eq(&refused.text());
    let inline = ichorctl(home, &["machineconfig", "patch", "p.yaml", "-p", "machine: {tpye: worker}"]);
    assert!(inline.code == 1 && inline.err.contains("--> patch 1:1:11"), "{inline:?}");
    let file = ichorctl(home, &["machineconfig", "patch", "p.yaml", "-p", "machine: {type: worker}"]);
    assert!(file.code == 1 && file.err.contains("--> p.yaml:3:5"), "{file:?}");
    let missing = ichorctl(home, &["machineconfig", "patch", "p.yaml", "-p", "@nothing"]);
    assert!(missing.err.starts_with("open nothing: no such file or directory"), "{missing:?}");
}

#[test]
fn keys_for_secure_boot_are_made_and_enrolled() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let missing = ichorctl(home, &["gen", "secureboot", "database"]);
    assert!(missing.code == 1 && missing.err.contains("_out/uki-signing-cert.pem"), "{missing:?}");
    assert_eq!(ichorctl(home, &["gen", "secureboot", "uki", "--common-name", "Lab"]).code, 0);
    assert_eq!(ichorctl(home, &["gen", "secureboot", "pcr"]).code, 0);
    assert_eq!(ichorctl(home, &["gen", "secureboot", "database"]).code, 0);
    let read = |name: &str| std::fs::read(home.join("_out").join(name)).unwrap();
    let certificate = ichor_pki::CertInfo::parse(read("uki-signing-cert.pem")).unwrap();
    assert_eq!(certificate.organizations, ["Lab"]);
    let der = read("uki-signing-cert.der");
    for name in ["db.auth", "KEK.auth", "PK.auth"] {
        let variable = read(name);
        assert!(variable.ends_with(&der), "{name} ends with the certificate that it enrolls");
    }
    assert!(
        String::from_utf8(read("pcr-signing-key.pem"))
            .unwrap()
            .starts_with("-----BEGIN RSA PRIVATE KEY-----")
    );
    let again = ichorctl(home, &["gen", "secureboot", "pcr"]);
    assert!(again.code == 1 && again.err.contains("already exists, use --force"), "{again:?}");
    let known =
        ichorctl(home, &["gen", "secureboot", "database", "--force", "--include-well-known-uefi-certs"]);
    assert!(known.code == 1 && known.err.contains("not part of this program"), "{known:?}");

    assert_eq!(ichorctl(home, &["gen", "keypair", "--organization", "pair", "--ip", "1.2.3.4"]).code, 0);
    let pair = ichor_pki::CertInfo::parse(std::fs::read(home.join("pair.crt")).unwrap()).unwrap();
    assert_eq!(pair.addresses, ["1.2.3.4".parse::<std::net::IpAddr>().unwrap()]);
}
