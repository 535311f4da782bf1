//! Images: which there are, and one more.

use ichor_types::deadlines::CALL_CONTAINERD_PULL;
use ichor_wire::containerd::{
    Image as Wire, ImageStore, ListImagesRequest, ListImagesResponse, OciRegistry, Platform,
    ReadContentRequest, ReadContentResponse, TransferRequest, image_store, oci_registry,
};
use ichor_wire::cri::{ImageSpec, PullImageRequest};
use prost::Message;
use serde_json::Value;
use tonic::{Code, Status};

use crate::{Client, KUBERNETES};

/// The longest manifest that is read.
const MANIFEST_MAX: i64 = 4 << 20;
/// Where the configuration of registries is.
const HOSTS: &str = "/etc/cri/conf.d/hosts";

/// An image.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    /// Its name.
    pub name: String,
    /// The digest of its manifest.
    pub digest: String,
    /// When it was pulled.
    pub created: Option<prost_types::Timestamp>,
    media_type: String,
    own_size: i64,
}

impl From<Wire> for Image {
    fn from(wire: Wire) -> Self {
        let target = wire.target.unwrap_or_default();
        Self {
            name: wire.name,
            digest: target.digest,
            created: wire.created_at,
            media_type: target.media_type,
            own_size: target.size,
        }
    }
}

#[derive(Clone, PartialEq, Message)]
struct DeleteImageRequest {
    #[prost(string, tag = "1")]
    name: String,
}

impl Client {
    /// Forgets an image; containerd removes what nothing else needs. One that is not there is fine.
    ///
    /// # Errors
    /// `Unavailable` when containerd does not answer, else what it says.
    pub async fn remove_image(&self, namespace: &str, name: &str) -> Result<(), Status> {
        let request = DeleteImageRequest { name: name.to_owned() };
        match self.call("/containerd.services.images.v1.Images/Delete", namespace, &request).await {
            Err(status) if status.code() == Code::NotFound => Ok(()),
            done => done,
        }
    }

    /// All images of a namespace.
    ///
    /// # Errors
    /// `Unavailable` when containerd does not answer, else what it says.
    pub async fn images(&self, namespace: &str) -> Result<Vec<Image>, Status> {
        self.images_like(namespace, Vec::new()).await
    }

    async fn images_like(&self, namespace: &str, filters: Vec<String>) -> Result<Vec<Image>, Status> {
        let request = ListImagesRequest { filters };
        let found: ListImagesResponse =
            self.call("/containerd.services.images.v1.Images/List", namespace, &request).await?;
        Ok(found.images.into_iter().map(Image::from).collect())
    }

    /// Bytes of an image: its manifest for this platform, configuration and layers.
    ///
    /// # Errors
    /// When its manifest is not there or cannot be read.
    pub async fn image_size(&self, namespace: &str, image: &Image) -> Result<i64, Status> {
        let mut total = image.own_size;
        let mut manifest = self.content(namespace, &image.digest).await?;
        if image.media_type.contains("index") || image.media_type.contains("manifest.list") {
            let chosen = choose(&manifest).ok_or_else(|| Status::not_found("no image for this platform"))?;
            total = total.saturating_add(chosen.1);
            manifest = self.content(namespace, &chosen.0).await?;
        }
        Ok(total.saturating_add(parts_size(&manifest)))
    }

    /// Pulls an image, unless it is there already.
    ///
    /// # Errors
    /// `NotFound` when the registry does not have it.
    pub async fn pull(&self, namespace: &str, reference: &str) -> Result<(), Status> {
        let there = self.images_like(namespace, vec![format!("name=={reference:?}")]).await?;
        if !there.is_empty() {
            return Ok(());
        }
        if namespace == KUBERNETES {
            // This way uses the mirrors and credentials configured for Kubernetes.
            let request = PullImageRequest { image: Some(ImageSpec { image: reference.to_owned() }) };
            return self
                .call_within("/runtime.v1.ImageService/PullImage", "", &request, CALL_CONTAINERD_PULL)
                .await;
        }
        self.transfer(namespace, reference).await
    }

    /// Fetches what is missing of an image and unpacks it.
    pub(crate) async fn transfer(&self, namespace: &str, reference: &str) -> Result<(), Status> {
        let source = OciRegistry {
            reference: reference.to_owned(),
            resolver: Some(oci_registry::Resolver { host_dir: HOSTS.to_owned() }),
        };
        let platform = platform();
        let destination = ImageStore {
            name: reference.to_owned(),
            platforms: vec![platform.clone()],
            unpacks: vec![image_store::Unpack { platform: Some(platform), snapshotter: String::new() }],
        };
        let request = TransferRequest {
            source: Some(any("containerd.types.transfer.OCIRegistry", &source)),
            destination: Some(any("containerd.types.transfer.ImageStore", &destination)),
        };
        self.call_within(
            "/containerd.services.transfer.v1.Transfer/Transfer",
            namespace,
            &request,
            CALL_CONTAINERD_PULL,
        )
        .await
    }

    /// The configuration of an image for this platform.
    pub(crate) async fn image_config(&self, namespace: &str, reference: &str) -> Result<Value, Status> {
        let found = self.images_like(namespace, vec![format!("name=={reference:?}")]).await?;
        let image =
            found.first().ok_or_else(|| Status::not_found(format!("image {reference:?} is not there")))?;
        let mut manifest = self.content(namespace, &image.digest).await?;
        if manifest.get("manifests").is_some() {
            let (digest, _) =
                choose(&manifest).ok_or_else(|| Status::not_found("no image for this platform"))?;
            manifest = self.content(namespace, &digest).await?;
        }
        let config = manifest.get("config").and_then(|config| config.get("digest")).and_then(Value::as_str);
        let config =
            config.ok_or_else(|| Status::internal(format!("image {reference:?} has no settings")))?;
        self.content(namespace, config).await
    }

    async fn content(&self, namespace: &str, digest: &str) -> Result<Value, Status> {
        let request = ReadContentRequest { digest: digest.to_owned(), offset: 0, size: MANIFEST_MAX };
        let parts: Vec<ReadContentResponse> =
            self.calls("/containerd.services.content.v1.Content/Read", namespace, &request).await?;
        let bytes: Vec<u8> = parts.into_iter().flat_map(|part| part.data).collect();
        serde_json::from_slice(&bytes)
            .map_err(|error| Status::internal(format!("cannot read the manifest {digest}: {error}")))
    }
}

/// Reads a manifest as a pull would, and gives something that depends on all of it.
pub(crate) fn measure(bytes: &[u8]) -> u32 {
    let manifest: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let chosen = choose(&manifest).map_or(0, |(_, size)| size);
    u32::try_from(parts_size(&manifest).saturating_add(chosen)).unwrap_or(u32::MAX)
}

fn any(type_url: &str, message: &impl Message) -> prost_types::Any {
    prost_types::Any { type_url: type_url.to_owned(), value: message.encode_to_vec() }
}

fn platform() -> Platform {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    Platform { os: "linux".to_owned(), architecture: architecture.to_owned(), variant: String::new() }
}

/// Digest and size of the manifest for this platform in a list of manifests.
fn choose(index: &Value) -> Option<(String, i64)> {
    let wanted = platform();
    let fits = |manifest: &&Value| {
        let platform = manifest.get("platform");
        let is = |key: &str, value: &str| {
            platform.and_then(|platform| platform.get(key)).is_some_and(|found| found == value)
        };
        is("os", &wanted.os) && is("architecture", &wanted.architecture)
    };
    let manifest = index.get("manifests")?.as_array()?.iter().find(fits)?;
    Some((manifest.get("digest")?.as_str()?.to_owned(), size(manifest)))
}

fn size(descriptor: &Value) -> i64 {
    descriptor.get("size").and_then(Value::as_i64).unwrap_or(0).max(0)
}

/// Configuration and layers of one manifest.
fn parts_size(manifest: &Value) -> i64 {
    let layers = manifest.get("layers").and_then(Value::as_array);
    let layers = layers.into_iter().flatten().map(size).fold(0_i64, i64::saturating_add);
    layers.saturating_add(manifest.get("config").map_or(0, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_of_this_platform_is_chosen_and_its_parts_add_up() {
        let platform = platform();
        let index: Value = serde_json::from_str(&format!(
            r#"{{"manifests":[{{"digest":"sha256:other","size":1,"platform":{{"os":"plan9","architecture":"mips"}}}},
                {{"digest":"sha256:ours","size":7,"platform":{{"os":"linux","architecture":"{}"}}}}]}}"#,
            platform.architecture
        ))
        .unwrap();
        assert_eq!(choose(&index), Some(("sha256:ours".to_owned(), 7)));
        let manifest = r#"{"config":{"size":10},"layers":[{"size":20},{"size":-5},{"size":"x"}]}"#;
        assert_eq!(parts_size(&serde_json::from_str(manifest).unwrap()), 30);
        assert_eq!(choose(&Value::Null), None);
        assert_eq!(parts_size(&Value::Null), 0);
    }
}
