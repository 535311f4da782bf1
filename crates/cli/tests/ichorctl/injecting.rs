//! Kubernetes manifests that get access to the machine API.

use expect_test::expect;

use crate::run::ichorctl;

const MANIFESTS: &str = r#"apiVersion: v1
kind: ConfigMap
metadata: {name: web}
data: {a: "1", b: "yes"}
---
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: prod
spec:
  template:
    spec:
      initContainers:
      - {name: first, image: i}
      containers:
      - name: a
        image: i
        volumeMounts:
        - {name: talos-secrets, mountPath: /old}
        - {name: x, mountPath: /x}
      volumes:
      - name: x
        emptyDir: {}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: night}
spec:
  schedule: "* * * * *"
  jobTemplate: {spec: {template: {spec: {containers: [{name: c, image: i}]}}}}
---
apiVersion: v1
kind: Pod
metadata: {generateName: without-a-name-}
spec: {containers: []}
"#;

#[test]
fn pods_get_a_volume_and_objects_a_service_account_once() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("in.yaml"), MANIFESTS).unwrap();
    let inject = |file: &str| {
        ichorctl(home.path(), &["inject", "serviceaccount", "-f", file, "-r", "os:reader,os:operator"])
    };
    let once = inject("in.yaml");
    expect![[r#"
        apiVersion: v1
        kind: ConfigMap
        metadata:
          name: web
        data:
          a: "1"
          b: "yes"
        ---
        apiVersion: apps/v1
        kind: Deployment
        metadata:
          name: web
          namespace: prod
        spec:
          template:
            spec:
              initContainers:
              - name: first
                image: i
                volumeMounts:
                - mountPath: /var/run/secrets/talos.dev
                  name: talos-secrets
              containers:
              - name: a
                image: i
                volumeMounts:
                - name: x
                  mountPath: /x
                - mountPath: /var/run/secrets/talos.dev
                  name: talos-secrets
              volumes:
              - name: x
                emptyDir: {}
              - name: talos-secrets
                secret:
                  secretName: web-talos-secrets
        ---
        apiVersion: talos.dev/v1alpha1
        kind: ServiceAccount
        metadata:
          name: web-talos-secrets
          namespace: prod
        spec:
          roles:
          - os:reader
          - os:operator
        ---
        apiVersion: batch/v1
        kind: CronJob
        metadata:
          name: night
        spec:
          schedule: "* * * * *"
          jobTemplate:
            spec:
              template:
                spec:
                  containers:
                  - name: c
                    image: i
                    volumeMounts:
                    - mountPath: /var/run/secrets/talos.dev
                      name: talos-secrets
                  volumes:
                  - name: talos-secrets
                    secret:
                      secretName: night-talos-secrets
        ---
        apiVersion: talos.dev/v1alpha1
        kind: ServiceAccount
        metadata:
          name: night-talos-secrets
        spec:
          roles:
          - os:reader
          - os:operator
        ---
        apiVersion: v1
        kind: Pod
        metadata:
          generateName: without-a-name-
        spec:
          containers: []
    "#]]
    .assert_eq(&once.text());
    std::fs::write(home.path().join("out.yaml"), &once.out).unwrap();
    assert_eq!(inject("out.yaml").text(), once.out);
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
