//! Whatever containerd answers is read or refused, never with a panic.

use ichor_containerd::{fuzzing, reference};
use ichor_fuzz::{Target, shape};

#[test]
fn answers() {
    Target::binary("containerd-answers").seeds(fuzzing::seeds()).run(|input| match fuzzing::read(input) {
        Ok(found) => format!("{:?}", found.len().min(4)),
        Err(error) => shape(&error),
    });
}

#[test]
fn references() {
    let seeds = ["nginx", "ghcr.io/siderolabs/kubelet:v1.35.0", "localhost:5000/a/b@sha256:00"];
    Target::text("image-references").seeds(seeds).words(["@sha256:", ":", "/", "docker.io"]).run(|input| {
        let text = String::from_utf8_lossy(input);
        let full = reference::normalize(&text);
        if let Some(full) = &full {
            assert_eq!(reference::normalize(full).as_ref(), Some(full), "a full reference stays as it is");
        }
        full.is_some()
    });
}
