//! The life of a cluster after it is up: other images of Kubernetes, and new authorities, under a client that asks
//! all the time.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ichor_live::{Fleet, root};
use serde_json::Value;

/// A second home for the images: what is pulled from there counts as another build of the same version.
const SECOND: &str = "gcr.io/second";
/// The components with an image of their own.
const COMPONENTS: [&str; 5] =
    ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"];
/// Control planes of the cluster.
const CONTROL_PLANES: u8 = 2;

/// A layout with every component a second time, under another name.
fn two_builds(dir: &Path) -> Result<PathBuf> {
    let first = root().join("build/images");
    let second = dir.join("images");
    std::fs::create_dir(&second)?;
    symlink(first.join("blobs"), second.join("blobs"))?;
    std::fs::copy(first.join("oci-layout"), second.join("oci-layout"))?;
    let mut index: Value = serde_json::from_slice(&std::fs::read(first.join("index.json"))?)?;
    let images = index["manifests"].as_array_mut().context("no images; run `make components`")?;
    let mut more = Vec::new();
    for image in images.iter() {
        let name = image["annotations"]["io.containerd.image.name"].as_str().unwrap_or_default();
        let Some((_, last)) = name.rsplit_once('/') else { continue };
        if COMPONENTS.iter().any(|component| last.split(':').next() == Some(component)) {
            let mut copy = image.clone();
            copy["annotations"]["io.containerd.image.name"] = format!("{SECOND}/{last}").into();
            more.push(copy);
        }
    }
    ensure!(more.len() == COMPONENTS.len(), "{} of the components have images", more.len());
    images.extend(more);
    std::fs::write(second.join("index.json"), serde_json::to_vec(&index)?)?;
    Ok(second)
}

/// Asks until told to stop; a question that no control plane answers within two tries is a failure.
fn ask_until(fleet: &Fleet, done: &AtomicBool) -> (u32, Vec<String>) {
    let (mut asked, mut failures) = (0_u32, Vec::new());
    while !done.load(Ordering::SeqCst) {
        asked += 1;
        let ask = |turn: u32| {
            let server = format!("https://{}:6443", fleet.loopback((turn % u32::from(CONTROL_PLANES)) as u8));
            fleet.kubectl(&["--server", &server, "get", "--raw", "/api/v1/namespaces/default"])
        };
        if ask(asked).is_err() {
            std::thread::sleep(Duration::from_secs(1));
            if let Err(error) = ask(asked + 1) {
                failures.push(format!("question {asked}: {error}"));
            }
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    (asked, failures)
}

/// Runs `change` while a client asks, and says how that went.
fn under_questions(fleet: &Fleet, what: &str, change: impl FnOnce() -> Result<()>) -> Result<Vec<String>> {
    let (done, start) = (AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        let client = scope.spawn(|| ask_until(fleet, &done));
        let changed = change();
        done.store(true, Ordering::SeqCst);
        let (asked, failures) = client.join().map_err(|_| anyhow::anyhow!("the client panicked"))?;
        println!(
            "{what}: {:.1} s, {asked} questions, {} without an answer",
            start.elapsed().as_secs_f64(),
            failures.len()
        );
        changed.map(|()| failures)
    })
}

#[test]
fn a_cluster_changes_its_images_and_its_authorities_while_it_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let images = two_builds(dir.path()).unwrap();
    let fleet =
        Fleet::kubernetes("k8s-life", 92, CONTROL_PLANES, 1, &["--images", &images.to_string_lossy()])
            .unwrap();
    let failures = under_questions(&fleet, "upgrade-k8s", || upgrade(&fleet)).unwrap();
    assert!(failures.is_empty(), "{failures:#?}");
    under_questions(&fleet, "rotate-ca", || rotate(&fleet)).unwrap();
    fleet.destroy().unwrap();
}

fn endpoint(fleet: &Fleet) -> String {
    format!("https://{}:6443", fleet.loopback(0))
}

fn upgrade(fleet: &Fleet) -> Result<()> {
    let node = fleet.address(0);
    let endpoint = endpoint(fleet);
    let of = |component: &str| format!("{SECOND}/{component}");
    let values = COMPONENTS.map(of);
    let flags = [
        "--apiserver-image",
        "--controller-manager-image",
        "--scheduler-image",
        "--proxy-image",
        "--kubelet-image",
    ];
    let mut args = vec!["-n", &node, "upgrade-k8s", "--to", "1.35.0", "--endpoint", &endpoint];
    args.extend(flags.iter().zip(&values).flat_map(|(flag, value)| [*flag, value.as_str()]));
    fleet.ok(&args)?;
    let pods = fleet.kubectl(&["get", "pods", "-n", "kube-system", "-o", "jsonpath={..image}"])?;
    for component in &COMPONENTS[..4] {
        ensure!(pods.contains(&of(component)), "{component} is not from {SECOND}: {pods}");
        ensure!(
            !pods.contains(&format!("registry.k8s.io/{component}")),
            "{component} is still the old one: {pods}"
        );
    }
    let specs = fleet.ok(&["-n", &node, "get", "kubeletspec", "-o", "yaml"])?;
    ensure!(specs.contains(&of("kubelet")), "{specs}");
    fleet.ok(&["-n", &node, "health", "--wait-timeout", "2m"]).map(drop)
}

fn rotate(fleet: &Fleet) -> Result<()> {
    let node = fleet.address(0);
    let file = fleet.home().join("rotated");
    let file = file.to_string_lossy();
    let endpoint = endpoint(fleet);
    let old = std::fs::read_to_string(fleet.home().join(".kube/config"))?;
    fleet.ok(&["-n", &node, "rotate-ca", "--dry-run=false", "--k8s-endpoint", &endpoint, "-o", &file])?;
    // The old client configuration is of no use any more, the new one is.
    fleet.fails(&["-n", &node, "version"])?;
    fleet.ok(&["--talosconfig", &file, "-n", &node, "version"])?;
    let config = fleet.home().join(".kube/config");
    fleet.ok(&["--talosconfig", &file, "-n", &node, "kubeconfig", "--force", &config.to_string_lossy()])?;
    let new = std::fs::read_to_string(&config)?;
    ensure!(new != old, "the kubeconfig did not change");
    let nodes = fleet.kubectl(&["--server", &endpoint, "get", "nodes"])?;
    ensure!(nodes.lines().filter(|line| line.contains(" Ready ")).count() == 3, "{nodes}");
    fleet.ok(&["--talosconfig", &file, "-n", &node, "health", "--wait-timeout", "3m"]).map(drop)
}
