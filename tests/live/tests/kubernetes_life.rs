//! The life of a cluster after it is up: other images of Kubernetes, and new authorities, under clients that ask all
//! the time.

#[path = "kubernetes_life/clients.rs"]
mod clients;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clients::{Bundles, Kubeconfig, Machines, under_questions};
use ichor_live::{Fleet, root, wait};
use serde_json::Value;

/// A second home for the images: what is pulled from there counts as another build of the same version.
const SECOND: &str = "gcr.io/second";
/// The components with an image of their own.
const COMPONENTS: [&str; 5] =
    ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"];
/// Control planes of the cluster, unless `ICHOR_CONTROL_PLANES` says otherwise: a client whose first one is busy finds the
/// second.
const CONTROL_PLANES: u8 = 2;
/// Longest wait for a change of the whole cluster on a machine with other things to do.
const CHANGE_MAX: Duration = Duration::from_secs(900);
/// Longest wait for what follows from it by itself.
const SOON: Duration = Duration::from_secs(120);

fn control_planes() -> u8 {
    let wanted = std::env::var("ICHOR_CONTROL_PLANES").ok();
    wanted.map_or(CONTROL_PLANES, |text| text.parse().expect("ICHOR_CONTROL_PLANES is a small number"))
}

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

#[test]
fn a_cluster_changes_its_images_and_its_authorities_while_it_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let images = two_builds(dir.path()).unwrap();
    let fleet =
        Fleet::kubernetes("k8s-life", 92, control_planes(), 1, &["--images", &images.to_string_lossy()])
            .unwrap();
    let kubeconfig = Kubeconfig::of(&fleet, control_planes(), None).unwrap();
    under_questions("upgrade-k8s", &kubeconfig, || upgrade(&fleet)).unwrap();
    let talosconfig = rotate_machines(&fleet).unwrap();
    let kubeconfig = Kubeconfig::of(&fleet, control_planes(), Some(&talosconfig)).unwrap();
    under_questions("rotate-ca of Kubernetes", &kubeconfig, || rotate_kubernetes(&fleet, &talosconfig))
        .unwrap();
    fleet.destroy().unwrap();
}

/// A run of `ichorctl` with its output in a file, so that others can read along.
struct Run {
    child: Child,
    output: PathBuf,
    start: Instant,
}

impl Run {
    fn start(fleet: &Fleet, name: &str, args: &[&str]) -> Result<Self> {
        let output = fleet.home().join(name);
        let file = std::fs::File::create(&output)?;
        let mut command = fleet.command(args);
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        Ok(Self {
            child: command.spawn().context("start bin/ichorctl; run `make build`")?,
            output,
            start: Instant::now(),
        })
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.output).unwrap_or_default()).into_owned()
    }

    /// Waits for its end, which must be a good one.
    fn end(mut self) -> Result<String> {
        let ended = wait("the end of ichorctl", CHANGE_MAX, || self.child.try_wait().ok().flatten());
        let text = self.text();
        match ended {
            Ok(status) if status.success() => Ok(text),
            Ok(status) => bail!("ichorctl: {status}\n{text}"),
            Err(error) => Err(error.context(text)),
        }
    }

    /// Kills it once it has said this.
    fn break_off_at(mut self, words: &str) -> Result<()> {
        let found = wait(words, CHANGE_MAX, || {
            let ended = self.child.try_wait().is_ok_and(|status| status.is_some());
            (ended || self.text().contains(words)).then_some(ended)
        });
        ensure!(!found?, "it ended too early:\n{}", self.text());
        println!("broken off after {:.1} s", self.start.elapsed().as_secs_f64());
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Tries until it works, and says why it does not.
fn soon<T>(what: &str, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let mut last = None;
    let found = wait(what, SOON, || attempt().map_err(|error| last = Some(error)).ok());
    found.map_err(|error| last.map_or(error, |last| last.context(what.to_owned())))
}

fn upgrade(fleet: &Fleet) -> Result<()> {
    let node = fleet.address(0);
    let of = |component: &str| format!("{SECOND}/{component}");
    let values = COMPONENTS.map(of);
    let flags = [
        "--apiserver-image",
        "--controller-manager-image",
        "--scheduler-image",
        "--proxy-image",
        "--kubelet-image",
    ];
    let mut args = vec!["-n", &node, "upgrade-k8s", "--to", "1.35.0"];
    args.extend(flags.iter().zip(&values).flat_map(|(flag, value)| [*flag, value.as_str()]));
    // The first try ends in the middle, as when somebody closes the lid.
    Run::start(fleet, "upgrade-1", &args)?.break_off_at("\": successfully updated")?;
    let text = Run::start(fleet, "upgrade-2", &args)?.end()?;
    ensure!(text.contains("going on with an upgrade that was broken off"), "{text}");
    let again = format!(" > {node:?}: waiting for kube-apiserver pod update");
    ensure!(!text.contains(&again), "what was done is done again:\n{text}");
    // What the command waited for needs no more time; a mirror pod of before may be on its way out.
    soon("all images are the new ones", || {
        let pods = fleet.kubectl(&["get", "pods", "-n", "kube-system", "-o", "jsonpath={..image}"])?;
        for component in &COMPONENTS[..4] {
            ensure!(pods.contains(&of(component)), "{component} is not from {SECOND}: {pods}");
            let old = format!("registry.k8s.io/{component}");
            ensure!(!pods.contains(&old), "{component} is still the old one: {pods}");
        }
        Ok(())
    })?;
    for number in 0..=control_planes() {
        let specs = fleet.ok(&["-n", &fleet.address(number), "get", "kubeletspec", "-o", "yaml"])?;
        ensure!(specs.contains(&of("kubelet")), "{specs}");
    }
    fleet.ok(&["-n", &node, "health", "--wait-timeout", "5m"]).map(drop)
}

/// Replaces the authority of the machines, and gives the new client configuration.
fn rotate_machines(fleet: &Fleet) -> Result<String> {
    let node = fleet.address(0);
    let file = fleet.home().join("rotated").to_string_lossy().into_owned();
    let args = ["-n", &node, "rotate-ca", "--dry-run=false", "--kubernetes=false", "-o", &file];
    let run = Run::start(fleet, "rotate-1", &args)?;
    let clients = Machines::new(fleet, control_planes() + 1, Bundles::told_in(&run.output))?;
    under_questions("rotate-ca of the machines", &clients, || run.end().map(drop))?;
    // The old client configuration is of no use any more, the new one is.
    fleet.fails(&["-n", &node, "version"])?;
    fleet.ok(&["--talosconfig", &file, "-n", &node, "version"])?;
    Ok(file)
}

fn rotate_kubernetes(fleet: &Fleet, talosconfig: &str) -> Result<()> {
    let node = fleet.address(0);
    let config = fleet.home().join(".kube/config");
    let old = std::fs::read_to_string(&config)?;
    let args = ["--talosconfig", talosconfig, "-n", &node, "rotate-ca", "--dry-run=false", "--talos=false"];
    let text = Run::start(fleet, "rotate-2", &args)?.end()?;
    ensure!(text.contains("kube-proxy: OK"), "{text}");
    soon("a kubeconfig of before is refused", || {
        ensure!(fleet.kubectl(&["get", "nodes"]).is_err(), "it still works");
        Ok(())
    })?;
    let path = config.to_string_lossy();
    let server = format!("https://{}:6443", fleet.loopback(0));
    fleet.ok(&["--talosconfig", talosconfig, "-n", &node, "kubeconfig", "--force", &path])?;
    ensure!(std::fs::read_to_string(&config)? != old, "the kubeconfig did not change");
    soon("all nodes are ready", || {
        let nodes = fleet.kubectl(&["--server", &server, "get", "nodes"])?;
        let ready = nodes.lines().filter(|line| line.contains(" Ready ")).count();
        ensure!(ready == usize::from(control_planes()) + 1, "{nodes}");
        Ok(())
    })?;
    fleet.ok(&["--talosconfig", talosconfig, "-n", &node, "health", "--wait-timeout", "5m"]).map(drop)
}
