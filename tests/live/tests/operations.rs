//! What a cluster's keeper does: images out of a machine's own cache, nodes that find each other through Kubernetes,
//! runs of the conformance tests.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ichor_live::{Fleet, eventually, root, wait};
use serde_json::{Value, json};

/// For whatever a machine does by itself.
const SOON: Duration = Duration::from_secs(120);
/// For a machine that restarts.
const BOOT_MAX: Duration = Duration::from_secs(180);

const PATCH: &str = "\
machine:
  features:
    imageCache:
      localEnabled: true
cluster:
  discovery:
    enabled: true
    registries:
      kubernetes:
        disabled: false
";

/// An image that no registry has.
const CACHED: &str = "cache.test/only/here:v1";

#[test]
fn a_cluster_is_kept() {
    let fleet = Fleet::named("operations", 94).unwrap();
    let patch = fleet.home().join("patch.yaml");
    std::fs::write(&patch, PATCH).unwrap();
    let patch = format!("@{}", patch.display());
    let fleet = fleet.with_kubernetes(2, 0, &["--config-patch", &patch]).unwrap();
    registry_of_nodes(&fleet).context("nodes find each other through Kubernetes").unwrap();
    conformance(&fleet).context("conformance").unwrap();
    image_cache(&fleet).context("the image cache").unwrap();
    fleet.destroy().unwrap();
}

fn on(fleet: &Fleet, number: u8, args: &[&str]) -> Result<String> {
    let (loopback, address) = (fleet.loopback(number), fleet.address(number));
    fleet.ok(&[["-e", &loopback, "-n", &address].as_slice(), args].concat())
}

fn registry_of_nodes(fleet: &Fleet) -> Result<()> {
    for (number, other) in [(0, 1), (1, 0)] {
        wait("the other node in the registry", SOON, || {
            let seen =
                on(fleet, number, &["get", "affiliates", "--namespace", "cluster-raw", "-o", "yaml"]).ok()?;
            let found = seen.split("\nnode: ").find(|one| one.contains("id: k8s/"))?;
            found.contains(&fleet.address(other)).then_some(())
        })?;
    }
    let nodes = eventually("the nodes", SOON, || fleet.kubectl(&["get", "nodes", "-o", "json"]))?;
    let nodes: Value = serde_json::from_str(&nodes)?;
    for node in nodes["items"].as_array().into_iter().flatten() {
        let notes = &node["metadata"]["annotations"];
        let own = notes["networking.talos.dev/self-ips"].as_str().unwrap_or_default();
        ensure!(own.contains("10.94.0."), "{notes}");
        ensure!(notes["networking.talos.dev/api-server-port"] == "6443", "{notes}");
    }
    Ok(())
}

/// The images of the tests are not here: one that is not there is named, and one that fails is told.
fn conformance(fleet: &Fleet) -> Result<()> {
    let run = ["-n", &fleet.address(0), "conformance", "kubernetes", "--image"];
    let missing = [run.as_slice(), &["registry.k8s.io/conformance:none"]].concat();
    fleet.refused(&missing, "the machines cannot run the image registry.k8s.io/conformance:none")?;
    // A program that may not write says so and ends.
    let args = [run.as_slice(), &["registry.k8s.io/etcd:v3.6.7"]].concat();
    let output = eventually("a run that fails", SOON, || {
        let output = fleet.run(&args)?;
        match String::from_utf8_lossy(&output.stderr).contains("tests failed: code 1") {
            true => Ok(output),
            false => bail!("{}", String::from_utf8_lossy(&output.stderr)),
        }
    })?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(!output.status.success(), "{out}{err}");
    ensure!(
        out.contains("running tests: \\[Conformance\\]") && out.contains("tests finished after"),
        "{out}"
    );
    eventually("nothing left of it", SOON, || {
        let left = fleet.kubectl(&["get", "namespaces,clusterroles", "-o", "name"])?;
        ensure!(!left.contains("conformance"), "{left}");
        Ok(())
    })
}

fn image_cache(fleet: &Fleet) -> Result<()> {
    let machine = format!("{}-controlplane-2", fleet.name());
    let status = |number| on(fleet, number, &["get", "imagecacheconfig", "image-cache", "-o", "yaml"]);
    let off = eventually("a cache that is off", SOON, || status(1))?;
    ensure!(off.contains("status: disabled"), "{off}");
    fleet.refused(&["-n", &fleet.address(1), "image", "pull", CACHED], "cache.test")?;
    let place = fleet.home().join(".talos/clusters").join(fleet.name()).join("machines").join(&machine);
    ensure!(place.is_dir(), "{} is no machine", place.display());
    make_cache(&place.join("imagecache"))?;
    eventually("a reboot", SOON, || on(fleet, 1, &["reboot", "--wait=false"]))?;
    wait("a cache that is ready", BOOT_MAX, || {
        status(1)
            .ok()
            .filter(|text| text.contains("status: ready") && text.contains("/system/imagecache/disk"))
    })?;
    wait("containerd", BOOT_MAX, || {
        let services = on(fleet, 1, &["services"]).ok()?;
        let well = |name: &str| {
            services.lines().any(|line| line.contains(&format!(" {name} ")) && line.contains("Running   OK"))
        };
        (well("cri") && well("registryd")).then_some(())
    })?;
    wait("an image out of the cache", SOON, || on(fleet, 1, &["image", "pull", CACHED]).ok())?;
    let images = eventually("images", SOON, || on(fleet, 1, &["image", "ls"]))?;
    ensure!(images.contains("cache.test/only/here:v1"), "{images}");
    Ok(())
}

/// Makes a flat cache with the smallest of our images under a name of its own.
fn make_cache(cache: &Path) -> Result<()> {
    let layout = root().join("build/images");
    let read = |digest: &Value| {
        let digest = digest.as_str().unwrap_or_default().replace(':', "/");
        std::fs::read(layout.join("blobs").join(&digest)).with_context(|| digest)
    };
    let index: Value = serde_json::from_slice(&std::fs::read(layout.join("index.json"))?)?;
    let entries = index["manifests"].as_array().into_iter().flatten();
    let wanted = json!("registry.k8s.io/pause:3.10");
    let entry = entries
        .into_iter()
        .find(|entry| entry["annotations"]["io.containerd.image.name"] == wanted)
        .context("no pause image in build/images; run `make components`")?;
    let manifest = read(&entry["digest"])?;
    let tags = cache.join("manifests/cache.test/only/here/reference");
    std::fs::create_dir_all(&tags)?;
    std::fs::create_dir_all(cache.join("blob"))?;
    std::fs::write(tags.join("v1"), &manifest)?;
    let manifest: Value = serde_json::from_slice(&manifest)?;
    let layers = manifest["layers"].as_array().into_iter().flatten();
    for part in layers.chain([&manifest["config"]]) {
        let name = part["digest"].as_str().unwrap_or_default().replace(':', "-");
        std::fs::write(cache.join("blob").join(name), read(&part["digest"])?)?;
    }
    Ok(())
}
