//! Roots for the node's own containers: an image unpacked, and a place of its own to write on top.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;
use tonic::{Code, Status};

use crate::Client;

/// The snapshots that a node uses.
const SNAPSHOTTER: &str = "overlayfs";
/// Keeps a snapshot that no container of containerd's own names.
const KEEP: &str = "containerd.io/gc.root";
/// Names the image that a snapshot is a root of.
const IMAGE: &str = "ichor.image";
/// The most layers an image may have.
const LAYERS_MAX: usize = 128;
/// The directories among the options of an overlay.
const DIRECTORIES: [&str; 3] = ["lowerdir=", "upperdir=", "workdir="];

#[derive(Clone, PartialEq, prost::Message)]
struct PrepareRequest {
    #[prost(string, tag = "1")]
    snapshotter: String,
    #[prost(string, tag = "2")]
    key: String,
    #[prost(string, tag = "3")]
    parent: String,
    #[prost(map = "string, string", tag = "4")]
    labels: HashMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct KeyRequest {
    #[prost(string, tag = "1")]
    snapshotter: String,
    #[prost(string, tag = "2")]
    key: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct MountsResponse {
    #[prost(message, repeated, tag = "1")]
    mounts: Vec<Mount>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Mount {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "2")]
    source: String,
    #[prost(string, repeated, tag = "4")]
    options: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StatResponse {
    #[prost(message, optional, tag = "1")]
    info: Option<Info>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Info {
    #[prost(map = "string, string", tag = "6")]
    labels: HashMap<String, String>,
}

/// The root of a container, ready to be mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageRoot {
    /// The directory that names in the options are relative to.
    pub base: String,
    /// Options of an overlay mount, or `bind:` and a directory.
    pub options: String,
    /// What the image runs, its usual arguments included.
    pub command: Vec<String>,
    /// The environment that the image brings.
    pub env: Vec<String>,
    /// Labels of the image.
    pub labels: BTreeMap<String, String>,
}

impl Client {
    /// A fresh root of an image under `key`, in the place of an earlier one. The image is pulled and unpacked where
    /// that is still to be done.
    ///
    /// # Errors
    /// `NotFound` when the registry does not have the image.
    pub async fn root(&self, namespace: &str, reference: &str, key: &str) -> Result<ImageRoot, Status> {
        self.pull(namespace, reference).await?;
        match self.fresh(namespace, reference, key).await {
            // The image is known, and parts of it are not there: one fetched for another platform, or by a pull that
            // was cut off.
            Err(status) if status.code() == Code::NotFound => {
                self.transfer(namespace, reference).await?;
                self.fresh(namespace, reference, key).await
            }
            done => done,
        }
    }

    /// Lets a root go. One that is not there is fine.
    ///
    /// # Errors
    /// `Unavailable` when containerd does not answer, else what it says.
    pub async fn remove_root(&self, namespace: &str, key: &str) -> Result<(), Status> {
        let request = KeyRequest { snapshotter: SNAPSHOTTER.to_owned(), key: key.to_owned() };
        match self.call("/containerd.services.snapshots.v1.Snapshots/Remove", namespace, &request).await {
            Err(status) if status.code() == Code::NotFound => Ok(()),
            done => done,
        }
    }

    /// The name of the image that a root is of.
    ///
    /// # Errors
    /// `NotFound` when there is no such root.
    pub async fn root_image(&self, namespace: &str, key: &str) -> Result<String, Status> {
        let request = KeyRequest { snapshotter: SNAPSHOTTER.to_owned(), key: key.to_owned() };
        let found: StatResponse =
            self.call("/containerd.services.snapshots.v1.Snapshots/Stat", namespace, &request).await?;
        Ok(found.info.unwrap_or_default().labels.remove(IMAGE).unwrap_or_default())
    }

    async fn fresh(&self, namespace: &str, reference: &str, key: &str) -> Result<ImageRoot, Status> {
        let config = self.image_config(namespace, reference).await?;
        let parent = chain(&config).ok_or_else(|| Status::internal("the image has no layers"))?;
        self.remove_root(namespace, key).await?;
        let request = PrepareRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            key: key.to_owned(),
            parent,
            labels: HashMap::from([
                (KEEP.to_owned(), "true".to_owned()),
                (IMAGE.to_owned(), reference.to_owned()),
            ]),
        };
        let found: MountsResponse =
            self.call("/containerd.services.snapshots.v1.Snapshots/Prepare", namespace, &request).await?;
        let (base, options) = found
            .mounts
            .first()
            .and_then(mountable)
            .ok_or_else(|| Status::internal(format!("cannot mount {:?}", found.mounts)))?;
        let texts = |key: &str| -> Vec<String> {
            let list = config.get("config").and_then(|config| config.get(key)).and_then(Value::as_array);
            list.into_iter().flatten().filter_map(|text| text.as_str().map(str::to_owned)).collect()
        };
        let mut command = texts("Entrypoint");
        command.extend(texts("Cmd"));
        let labels = config.get("config").and_then(|config| config.get("Labels")).and_then(Value::as_object);
        let labels = labels.into_iter().flatten();
        let labels =
            labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect();
        Ok(ImageRoot { base, options, command, env: texts("Env"), labels })
    }
}

/// The name of the topmost layer: every layer's with all below it.
fn chain(config: &Value) -> Option<String> {
    let layers = config.get("rootfs")?.get("diff_ids")?.as_array()?;
    if layers.len() > LAYERS_MAX {
        return None;
    }
    layers.iter().try_fold(None, |below: Option<String>, layer| {
        let layer = layer.as_str()?;
        Some(Some(match below {
            None => layer.to_owned(),
            Some(below) => digest(&format!("{below} {layer}")),
        }))
    })?
}

fn digest(text: &str) -> String {
    let hex: String = ichor_pki::sha256(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// Base and options of a root; layers are named relative to the directory they share, since a kernel takes one page.
fn mountable(mount: &Mount) -> Option<(String, String)> {
    match mount.kind.as_str() {
        "bind" => return Some(("/".to_owned(), format!("bind:{}", mount.source))),
        "overlay" => {}
        _ => return None,
    }
    let lower = mount.options.iter().find_map(|option| option.strip_prefix(DIRECTORIES[0]))?;
    let first = lower.split(':').next()?;
    let inside = |base: &str| {
        let named = mount
            .options
            .iter()
            .filter_map(|option| DIRECTORIES.iter().find_map(|directory| option.strip_prefix(directory)));
        named.flat_map(|paths| paths.split(':')).all(|path| path.starts_with(base))
    };
    // `…/snapshots/7/fs`: two steps up; where something lies elsewhere, from the top.
    let shared = first.rsplitn(3, '/').nth(2).map(|base| format!("{base}/")).filter(|base| inside(base));
    let base = shared.unwrap_or_else(|| "/".to_owned());
    let relative = |paths: &str| {
        let parts: Vec<&str> =
            paths.split(':').map(|path| path.strip_prefix(&base).unwrap_or(path)).collect();
        parts.join(":")
    };
    let options: Vec<String> = mount
        .options
        .iter()
        .map(|option| match DIRECTORIES.iter().find(|directory| option.starts_with(**directory)) {
            Some(directory) => format!("{directory}{}", relative(&option[directory.len()..])),
            None => option.clone(),
        })
        .collect();
    Some((base, options.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlay(options: &[&str]) -> Mount {
        Mount {
            kind: "overlay".to_owned(),
            source: "overlay".to_owned(),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
        }
    }

    #[test]
    fn layers_are_named_from_their_common_directory() {
        let mount = overlay(&[
            "index=off",
            "workdir=/var/lib/s/snapshots/9/work",
            "upperdir=/var/lib/s/snapshots/9/fs",
            "lowerdir=/var/lib/s/snapshots/8/fs:/var/lib/s/snapshots/7/fs",
        ]);
        let (base, options) = mountable(&mount).unwrap();
        assert_eq!(base, "/var/lib/s/snapshots/");
        assert_eq!(options, "index=off,workdir=9/work,upperdir=9/fs,lowerdir=8/fs:7/fs");
        let elsewhere = overlay(&["upperdir=/b/1/fs", "lowerdir=/a/1/fs"]);
        let (base, options) = mountable(&elsewhere).unwrap();
        assert_eq!((base.as_str(), options.as_str()), ("/", "upperdir=b/1/fs,lowerdir=a/1/fs"));
        let bind = Mount { kind: "bind".into(), source: "/x".into(), options: Vec::new() };
        assert_eq!(mountable(&bind), Some(("/".into(), "bind:/x".into())));
        assert_eq!(mountable(&overlay(&[])), None);
        assert_eq!(mountable(&Mount { kind: "erofs".into(), ..Mount::default() }), None);
    }

    #[test]
    fn a_chain_names_a_layer_with_all_below_it() {
        let config = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let one = config(r#"{"rootfs":{"diff_ids":["sha256:aa"]}}"#);
        assert_eq!(chain(&one).as_deref(), Some("sha256:aa"));
        let two = config(r#"{"rootfs":{"diff_ids":["sha256:aa","sha256:bb"]}}"#);
        // sha256("sha256:aa sha256:bb")
        assert_eq!(chain(&two).unwrap(), digest("sha256:aa sha256:bb"));
        assert_eq!(chain(&config(r#"{"rootfs":{"diff_ids":[]}}"#)), None);
        assert_eq!(chain(&config(r#"{"rootfs":{"diff_ids":[7]}}"#)), None);
        assert_eq!(chain(&Value::Null), None);
    }
}
