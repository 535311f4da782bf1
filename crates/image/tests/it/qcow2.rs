//! qcow2 images, judged by qemu-img.

use std::fs::File;

use ichor_image::Content;
use ichor_image::qcow2::{self, Compression};

use crate::{noise, run, write};

/// A disk with text, noise and gaps of all sizes, of no round length.
fn disk() -> Content {
    let mut disk = Content::bytes(b"compresses well ".repeat(20_000));
    disk.append(Content::zeros(3 << 20));
    disk.append_bytes(noise(300_000, 5));
    disk.append(Content::zeros(2 << 30));
    for place in 0..50 {
        disk.append_bytes(noise(10, place));
        disk.append(Content::zeros(100_000));
    }
    disk.append_bytes(*b"end");
    disk
}

#[track_caller]
fn check(compression: Compression, most: u64) {
    let dir = tempfile::tempdir().unwrap();
    let (raw, image) = (dir.path().join("raw"), dir.path().join("image.qcow2"));
    write(&raw, &disk());
    let mut out = File::create_new(&image).unwrap();
    qcow2::write(&disk(), compression, &mut out).unwrap();
    let len = out.metadata().unwrap().len();
    assert!(len < most, "{len} bytes");
    let (raw, image) = (raw.to_str().unwrap(), image.to_str().unwrap());
    assert!(run("qemu-img", &["check", "-f", "qcow2", image]).contains("No errors were found"));
    assert!(run("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", raw, image]).contains("identical"));
    let again = dir.path().join("again");
    qcow2::write(&disk(), compression, &mut File::create_new(&again).unwrap()).unwrap();
    assert!(std::fs::read(again).unwrap() == std::fs::read(image).unwrap(), "the same twice");
}

#[test]
fn clusters_as_they_are() {
    check(Compression::None, 6 << 20);
}

#[test]
fn compressed_clusters() {
    check(Compression::Zstd, 2 << 20);
}
