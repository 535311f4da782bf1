//! The installer image: a layout as others read it.

use std::fs;
use std::path::Path;

use ichor_image::Content;
use ichor_image::oci::archive_layout;
use serde_json::Value;

use crate::{grub_code, parts, run};

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn blob(dir: &Path, descriptor: &Value) -> std::path::PathBuf {
    let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
    let path = dir.join("blobs/sha256").join(digest);
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes.len() as u64, descriptor["size"].as_u64().unwrap());
    let told = run("sha256sum", &[path.to_str().unwrap()]);
    assert!(told.starts_with(digest), "{told}");
    path
}

#[test]
fn the_installer_has_its_marker_and_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let layout = dir.path().join("layout");
    let image = parts()
        .installer("example.org/installer:v1", Content::bytes(*b"program"), Some(&grub_code()))
        .unwrap();
    image.write_layout(&layout).unwrap();
    assert_eq!(json(&layout.join("oci-layout"))["imageLayoutVersion"], "1.0.0");
    let index = json(&layout.join("index.json"));
    assert_eq!(index["manifests"][0]["annotations"]["io.containerd.image.name"], "example.org/installer:v1");
    let manifest = json(&blob(&layout, &index["manifests"][0]));
    let config = json(&blob(&layout, &manifest["config"]));
    assert_eq!(config["config"]["Labels"]["dev.ichor.installer"], "v1.12.1");
    assert_eq!(config["config"]["Entrypoint"][0], "/bin/installer");

    let layer = blob(&layout, &manifest["layers"][0]);
    let listed = run("tar", &["--zstd", "-tvf", layer.to_str().unwrap()]);
    for part in [
        "usr/install/amd64/systemd-boot.efi",
        "usr/install/amd64/vmlinuz.efi",
        "usr/install/amd64/systemd-stub.efi",
        "usr/install/amd64/grub-boot.img",
        "usr/install/amd64/grub-core.img",
        "-rwxr-xr-x 0/0",
    ] {
        assert!(listed.contains(part), "{part} in {listed}");
    }
    let plain = dir.path().join("plain");
    run("zstd", &["-q", "-d", layer.to_str().unwrap(), "-o", plain.to_str().unwrap()]);
    let diff = config["rootfs"]["diff_ids"][0].as_str().unwrap().strip_prefix("sha256:").unwrap().to_owned();
    assert!(run("sha256sum", &[plain.to_str().unwrap()]).starts_with(&diff));

    let pack = |name: &str| {
        let path = dir.path().join(name);
        let again = dir.path().join(format!("{name}.layout"));
        image.write_layout(&again).unwrap();
        archive_layout(&again, &mut fs::File::create(&path).unwrap()).unwrap();
        fs::read(path).unwrap()
    };
    assert!(pack("a.tar") == pack("b.tar"), "the same twice");
}
