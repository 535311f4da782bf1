//! Kernel packages, made by dpkg-deb.

use std::fs;
use std::path::Path;

use ichor_image::kernel::{is_package, unpack};
use ichor_image::modules::Modules;

use crate::run;

fn package(dir: &Path, compression: &str, files: &[(&str, &[u8])]) -> std::path::PathBuf {
    let tree = dir.join(format!("tree-{compression}"));
    let put = |path: &str, bytes: &[u8]| {
        let path = tree.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    };
    put(
        "DEBIAN/control",
        b"Package: linux-image-1\nVersion: 1\nArchitecture: amd64\nMaintainer: a <a@b>\nDescription: x\n",
    );
    for (path, bytes) in files {
        put(path, bytes);
    }
    let package = dir.join(format!("{compression}.deb"));
    let compression = format!("-Z{compression}");
    run(
        "dpkg-deb",
        &["--build", "--root-owner-group", &compression, tree.to_str().unwrap(), package.to_str().unwrap()],
    );
    package
}

#[test]
fn kernel_and_modules_come_out_of_a_package() {
    let dir = tempfile::tempdir().unwrap();
    let module = ichor_image::elf::sample::module(&["depends="]);
    let files: &[(&str, &[u8])] = &[
        ("boot/vmlinuz-6.1.0", b"kernel"),
        ("boot/System.map-6.1.0", b"map"),
        ("lib/modules/6.1.0/kernel/drivers/block/loop.ko", &module),
        ("usr/share/doc/x", b"doc"),
    ];
    for compression in ["xz", "gzip", "zstd", "none"] {
        let package = package(dir.path(), compression, files);
        assert!(is_package(&package));
        let out = dir.path().join(format!("out-{compression}"));
        let image = unpack(&package, &out).unwrap();
        assert_eq!(fs::read(image).unwrap(), b"kernel", "{compression}");
        let modules = Modules::find(&out).unwrap().first(true).unwrap();
        assert_eq!(modules.len(), 1);
        assert!(!out.join("usr").exists() && !out.join("boot/System.map-6.1.0").exists());
    }
}

#[test]
fn another_package_and_a_cut_off_one_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let other = package(dir.path(), "xz", &[("usr/share/doc/x", b"doc")]);
    let error = unpack(&other, &dir.path().join("out")).unwrap_err().to_string();
    assert!(error.ends_with("no boot/vmlinuz-* in it; give a linux-image package"), "{error}");
    let whole = fs::read(&other).unwrap();
    for len in [4, 8, 40, 100, whole.len() - 50] {
        fs::write(&other, &whole[..len]).unwrap();
        assert!(unpack(&other, &dir.path().join("out")).is_err(), "{len} bytes");
    }
    fs::write(&other, b"text").unwrap();
    assert!(!is_package(&other));
}
