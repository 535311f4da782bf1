//! `image talos-bundle`: the images of a release, and those that extend it, as its registry lists them.

use std::collections::BTreeSet;
use std::io::Read as _;

use serde_json::Value;

use crate::failure::{Context as _, Failure};
use crate::pull::{Reference, Registry};

/// Where releases are.
pub(super) const PLACE: &str = "ghcr.io/siderolabs";
/// The images of every release, in the order they are told.
const OWN: [&str; 7] =
    ["installer", "installer-base", "imager", "talos", "talosctl-all", "overlays", "extensions"];
/// Larger lists, and larger layers around them, are none.
const LIST_MAX: u64 = 16 << 20;
const LAYER_MAX: u64 = 256 << 20;

/// One reference a line.
pub(super) async fn list(registry: &mut Registry, place: &str, tag: &str) -> Result<String, Failure> {
    let mut others = BTreeSet::new();
    let digests = file(registry, &format!("{place}/extensions:{tag}"), "image-digests").await;
    let digests =
        digests.map_err(|failure| failure.within(format!("error fetching official extensions for {tag}")))?;
    others.extend(digests.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned));
    let overlays = file(registry, &format!("{place}/overlays:{tag}"), "overlays.yaml").await;
    let overlays = overlays.and_then(|text| overlays_of(&text));
    others.extend(
        overlays.map_err(|failure| failure.within(format!("error fetching official overlays for {tag}")))?,
    );
    let own = OWN.map(|name| format!("{place}/{name}:{tag}"));
    Ok(own.into_iter().chain(others).map(|line| line + "\n").collect())
}

fn overlays_of(text: &str) -> Result<Vec<String>, Failure> {
    let documents = ichor_yaml::parse(text).context("overlays.yaml")?;
    let root = documents.first().map(|document| &document.root);
    let entries = root.and_then(|root| root.get("overlays")).and_then(ichor_yaml::Node::as_seq);
    let entries = entries.ok_or_else(|| Failure::new("overlays.yaml has no overlays"))?;
    let text = |node: &ichor_yaml::Node, key: &str| {
        let found = node.get(key).and_then(ichor_yaml::Node::as_str).map(str::to_owned);
        found.ok_or_else(|| Failure::new(format!("overlays.yaml: an overlay has no {key}")))
    };
    entries.iter().map(|node| Ok(format!("{}@{}", text(node, "image")?, text(node, "digest")?))).collect()
}

/// A text file of an image.
async fn file(registry: &mut Registry, image: &str, name: &str) -> Result<String, Failure> {
    let image = Reference::parse(image).ok_or_else(|| Failure::new(format!("\"{image}\" names no image")))?;
    let (bytes, _) = registry.manifest(&image, image.wanted()).await?;
    let parse = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).context("read the manifest");
    let mut manifest = parse(&bytes)?;
    if let Some(entries) = manifest["manifests"].as_array() {
        // What is in it is the same for every machine.
        let first = entries.iter().find(|entry| entry["platform"]["os"] == "linux").or(entries.first());
        let digest = first.and_then(|entry| entry["digest"].as_str()).unwrap_or_default().to_owned();
        let (bytes, _) = registry.manifest(&image, &digest).await?;
        manifest = parse(&bytes)?;
    }
    for layer in manifest["layers"].as_array().into_iter().flatten() {
        let size = layer["size"].as_u64().filter(|size| *size <= LAYER_MAX);
        let (Some(digest), Some(size)) = (layer["digest"].as_str(), size) else { continue };
        let mut blob = Vec::new();
        registry.blob(&image, digest, size, &mut blob).await?;
        if crate::pull::digest_of(&blob) != digest {
            return Err(Failure::new(format!("what the registry sent is not {digest}")));
        }
        if let Some(text) = unpack(&blob, name).context(digest)? {
            return Ok(text);
        }
    }
    Err(Failure::new(format!("failed to find {name} file")))
}

fn unpack(layer: &[u8], name: &str) -> std::io::Result<Option<String>> {
    let reader: Box<dyn std::io::Read> = match layer.starts_with(&[0x1f, 0x8b]) {
        true => Box::new(flate2::read::GzDecoder::new(layer)),
        false => Box::new(layer),
    };
    let mut archive = tar::Archive::new(reader.take(LAYER_MAX * 4));
    for entry in archive.entries()? {
        let entry = entry?;
        if entry.path()?.to_str().map(|path| path.trim_start_matches("./")) == Some(name) {
            let mut text = String::new();
            entry.take(LIST_MAX).read_to_string(&mut text)?;
            return Ok(Some(text));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use serde_json::json;
    use tokio::net::TcpListener;

    use super::*;
    use crate::pull::digest_of;

    /// An image with one file.
    fn image(dir: &Path, registry: &str, name: &str, file: &str, content: &str) {
        let mut archive =
            tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, file, content.as_bytes()).unwrap();
        let layer = archive.into_inner().unwrap().finish().unwrap();
        std::fs::create_dir_all(dir.join("blob")).unwrap();
        let blob = |bytes: &[u8]| {
            let digest = digest_of(bytes);
            std::fs::write(dir.join("blob").join(digest.replace(':', "-")), bytes).unwrap();
            json!({ "digest": digest, "size": bytes.len() })
        };
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({ "mediaType": kind, "config": blob(b"{}"), "layers": [blob(&layer)] });
        let place = dir.join("manifests").join(registry).join("siderolabs").join(name).join("reference");
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("v1.12.1"), manifest.to_string()).unwrap();
    }

    #[tokio::test]
    async fn a_release_lists_what_extends_it() {
        let dir = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let host = format!("127.0.0.1_{port}_");
        let digests = "ghcr.io/siderolabs/zfs:2.4@sha256:b\nghcr.io/siderolabs/amdgpu:1@sha256:a\n\n";
        image(dir.path(), &host, "extensions", "image-digests", digests);
        let overlays =
            "overlays:\n  - name: rpi\n    image: ghcr.io/siderolabs/rpi:1\n    digest: sha256:c\n";
        image(dir.path(), &host, "overlays", "./overlays.yaml", overlays);
        let layout = ichor_registry::Layout::open_flat(dir.path()).unwrap();
        let limits = ichor_registry::Limits::default();
        tokio::spawn(ichor_registry::serve(listener, Arc::new(layout), limits, std::future::pending()));
        let place = format!("127.0.0.1:{port}/siderolabs");
        let text = list(&mut Registry::new(true), &place, "v1.12.1").await.unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 10, "{text}");
        assert_eq!(lines[0], format!("{place}/installer:v1.12.1"));
        assert_eq!(
            lines[7..],
            [
                "ghcr.io/siderolabs/amdgpu:1@sha256:a",
                "ghcr.io/siderolabs/rpi:1@sha256:c",
                "ghcr.io/siderolabs/zfs:2.4@sha256:b"
            ]
        );
        let missing = list(&mut Registry::new(true), &place, "v1.12.0").await.unwrap_err().to_string();
        assert!(missing.starts_with("error fetching official extensions for v1.12.0"), "{missing}");
    }
}
