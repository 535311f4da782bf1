//! Kubernetes manifests that get access to the machine API.

use expect_test::expect;

use crate::run::ichorctl;

/// Objects of every kind with pods, and others between them.
const GIVEN: &str = include_str!("manifests/given.yaml");
/// What the original client makes of them.
const INJECTED: &str = include_str!("manifests/injected.yaml");

#[test]
fn manifests_come_out_as_the_original_writes_them() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("in.yaml"), GIVEN).unwrap();
    let inject = |file: &str| {
        ichorctl(home.path(), &["inject", "serviceaccount", "-f", file, "-r", "os:reader,os:operator"])
    };
    let once = inject("in.yaml");
    assert_eq!(once.code, 0, "{}", once.err);
    assert_eq!(once.out, INJECTED);
    std::fs::write(home.path().join("out.yaml"), &once.out).unwrap();
    assert_eq!(inject("out.yaml").out, once.out, "the second time changes nothing");
}

#[test]
fn what_the_types_do_not_know_is_kept_and_what_does_not_fit_is_told() {
    let home = tempfile::tempdir().unwrap();
    let manifests = "\
kind: Pod
apiVersion: v1
metadata: {name: new, finalizers: []}
spec: {aboutToBeInvented: {b: 1, a: [x]}, containers: [{name: c, alsoNew: false}]}
---
kind: Pod
apiVersion: v1
metadata: {name: wrong}
spec: {containers: [{name: c, image: [i]}]}
---
kind: Note
when: 2024-01-02
";
    std::fs::write(home.path().join("in.yaml"), manifests).unwrap();
    let run = ichorctl(home.path(), &["inject", "tsa", "-f", "in.yaml"]);
    expect![[r#"
        apiVersion: v1
        kind: Pod
        metadata:
          name: new
        spec:
          aboutToBeInvented:
            a:
            - x
            b: 1
          containers:
          - alsoNew: false
            name: c
            resources: {}
            volumeMounts:
            - mountPath: /var/run/secrets/talos.dev
              name: talos-secrets
          volumes:
          - name: talos-secrets
            secret:
              secretName: new-talos-secrets
        status: {}
        ---
        apiVersion: talos.dev/v1alpha1
        kind: ServiceAccount
        metadata:
            name: new-talos-secrets
        spec:
            roles:
                - os:reader
        ---
        apiVersion: v1
        kind: Pod
        metadata:
            name: wrong
        spec:
            containers:
                - image:
                    - i
                  name: c
        ---
        kind: Note
        when: "2024-01-02"
        ---

        --- stderr
        WARNING: in.yaml: line 6: Pod wrong gets no access: spec.containers[0].image is not a text
    "#]]
    .assert_eq(&run.text());
}

#[test]
fn what_is_no_manifest_is_refused_and_no_file_shows_help() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("list.yaml"), "a: 1\n---\n[1, 2]\n").unwrap();
    let run = ichorctl(home.path(), &["inject", "tsa", "-f", "list.yaml"]);
    assert_eq!(run.text(), "--- stderr\nlist.yaml: line 3: a manifest is a mapping\n--- exit 1\n");
    let run = ichorctl(home.path(), &["inject", "serviceaccount"]);
    assert_eq!(run.code, 0);
    assert!(run.out.contains("Usage:\n  ichorctl inject serviceaccount [flags]\n"), "{}", run.out);
}
