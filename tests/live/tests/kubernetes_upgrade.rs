//! From one minor version of Kubernetes to the next, with a change of the configuration in between. Needs what
//! `make test-upgrade` builds.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ichor_live::{Fleet, root, wait};
use serde_json::Value;

/// Longest wait for what follows from a change by itself.
const SOON: Duration = Duration::from_secs(180);
/// The version after.
const AFTER: &str = "1.35.0";
/// The components whose images carry the version.
const COMPONENTS: [&str; 4] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy"];
/// Control planes and workers of the cluster.
const MACHINES: (u8, u8) = (2, 1);

/// The version before, as the components are pinned.
fn before() -> Result<String> {
    let text = std::fs::read_to_string(root().join("components/versions"))?;
    let found = text.lines().find_map(|line| line.strip_prefix("kubernetes-before=v"));
    found.map(str::to_owned).context("components/versions: no kubernetes-before")
}

/// One layout with the images of both versions.
fn both(dir: &Path) -> Result<PathBuf> {
    let out = dir.join("images");
    let blobs = out.join("blobs/sha256");
    std::fs::create_dir_all(&blobs)?;
    let mut index = Value::Null;
    for layout in ["build/images", "build/images-before"].map(|layout| root().join(layout)) {
        let text = std::fs::read(layout.join("index.json")).context("no images; run `make test-upgrade`")?;
        let more: Value = serde_json::from_slice(&text)?;
        for blob in std::fs::read_dir(layout.join("blobs/sha256"))? {
            let blob = blob?;
            // What does not depend on the version is in both.
            if !blobs.join(blob.file_name()).exists() {
                symlink(blob.path(), blobs.join(blob.file_name()))?;
            }
        }
        std::fs::copy(layout.join("oci-layout"), out.join("oci-layout"))?;
        let names: Vec<Value> = images(&index).iter().map(|image| image["annotations"].clone()).collect();
        let new: Vec<Value> =
            images(&more).iter().filter(|image| !names.contains(&image["annotations"])).cloned().collect();
        match index["manifests"].as_array_mut() {
            Some(known) => known.extend(new),
            None => index = more,
        }
    }
    std::fs::write(out.join("index.json"), serde_json::to_vec(&index)?)?;
    Ok(out)
}

fn images(index: &Value) -> &[Value] {
    index["manifests"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Tries until it works, and says why it does not.
fn soon<T>(what: &str, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let mut last = None;
    let found = wait(what, SOON, || attempt().map_err(|error| last = Some(error)).ok());
    found.map_err(|error| last.map_or(error, |last| last.context(what.to_owned())))
}

/// Every component on every machine has this version.
fn has_version(fleet: &Fleet, version: &str) -> Result<()> {
    let nodes =
        fleet.kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].status.nodeInfo.kubeletVersion}"])?;
    let all = nodes.split_whitespace().filter(|found| *found == format!("v{version}")).count();
    ensure!(all == usize::from(MACHINES.0 + MACHINES.1), "kubelets: {nodes}");
    let pods = fleet.kubectl(&[
        "get",
        "pods",
        "-n",
        "kube-system",
        "-o",
        "jsonpath={.items[*].spec.containers[*].image}",
    ])?;
    for component in COMPONENTS {
        let mut found = pods.split_whitespace().filter(|image| image.contains(component)).peekable();
        ensure!(found.peek().is_some(), "no {component}: {pods}");
        ensure!(found.all(|image| image.ends_with(&format!(":v{version}"))), "{component}: {pods}");
    }
    for number in 0..MACHINES.0 {
        let server = format!("https://{}:6443", fleet.loopback(number));
        let text = fleet.kubectl(&["--server", &server, "get", "--raw", "/version"])?;
        ensure!(text.contains(&format!("\"v{version}\"")), "{server}: {text}");
    }
    Ok(())
}

#[test]
fn a_cluster_goes_from_one_minor_version_to_the_next() {
    let before = before().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let images = both(dir.path()).unwrap();
    let more = ["--images", &images.to_string_lossy(), "--kubernetes-version", &before];
    let fleet = Fleet::kubernetes("k8s-up", 91, MACHINES.0, MACHINES.1, &more).unwrap();
    soon("all of the old version", || has_version(&fleet, &before)).unwrap();
    fleet.kubectl(&["create", "configmap", "kept", "--from-literal=key=value"]).unwrap();
    // A change of the configuration in between.
    let worker = fleet.address(MACHINES.0);
    let patch = r#"{"machine": {"nodeLabels": {"ichor.dev/kept": "yes"}}}"#;
    fleet.ok(&["-n", &worker, "patch", "mc", "--patch", patch]).unwrap();
    let labelled = || {
        let nodes = fleet.kubectl(&["get", "nodes", "-l", "ichor.dev/kept=yes", "-o", "name"])?;
        ensure!(nodes.lines().count() == 1, "{nodes}");
        Ok(())
    };
    soon("the label of the configuration", labelled).unwrap();

    let node = fleet.address(0);
    let text = fleet.ok(&["-n", &node, "upgrade-k8s", "--to", AFTER]).unwrap();
    assert!(
        text.contains(&format!("automatically detected the lowest Kubernetes version {before}")),
        "{text}"
    );
    soon("all of the new version", || has_version(&fleet, AFTER)).unwrap();
    soon("the label is still there", labelled).unwrap();
    let kept = || {
        let value = fleet.kubectl(&["get", "configmap", "kept", "-o", "jsonpath={.data.key}"])?;
        ensure!(value == "value", "{value}");
        Ok(())
    };
    soon("data of before", kept).unwrap();
    fleet.ok(&["-n", &node, "health", "--wait-timeout", "5m"]).unwrap();
    fleet.destroy().unwrap();
}
