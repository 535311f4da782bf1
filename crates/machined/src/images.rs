//! Roots of the node's own containers, from the images that containerd holds.

use std::path::PathBuf;

use tracing::warn;

use ichor_containerd::{Client, ImageRoot, SYSTEM, reference};

use crate::services::{BoxFuture, ContainerMount, ContainerSpec, ImagePort, ProcessSpec, Root};

/// Where programs are when neither image nor service says so.
pub(crate) const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What every container sees of the machine, unless it sees something else in the place. The machine's own `/proc`,
/// not a new one: what covers parts of it is there for a reason.
const USUAL: [(&str, &str); 9] = [
    ("W", "/proc"),
    ("w", "/dev/null"),
    ("w", "/dev/zero"),
    ("w", "/dev/full"),
    ("w", "/dev/random"),
    ("w", "/dev/urandom"),
    ("R", "/sys"),
    ("r", "/etc/hosts"),
    ("r", "/etc/resolv.conf"),
];

/// The images of the node's own namespace.
pub struct Images {
    client: Client,
    memory: Memory,
}

impl Images {
    /// Those of the containerd at this socket. The last roots are remembered in the directory `memory`, which must not
    /// survive a reboot.
    pub fn new(socket: impl Into<PathBuf>, memory: impl Into<PathBuf>) -> Self {
        Self { client: Client::new(socket), memory: Memory(memory.into()) }
    }
}

/// Roots that were made, so that a service starts again while containerd does not answer: etcd must not depend on it.
#[derive(Clone)]
struct Memory(PathBuf);

impl Memory {
    fn keep(&self, id: &str, image: &str, root: &ImageRoot) -> std::io::Result<()> {
        let text = serde_json::json!([image, root.base, root.options, root.command, root.env]).to_string();
        std::fs::create_dir_all(&self.0)?;
        ichor_sys::file::replace(&self.0.join(id), text.as_bytes(), 0o600)
    }

    fn recall(&self, id: &str, image: &str) -> Option<ImageRoot> {
        let text = std::fs::read(self.0.join(id)).ok()?;
        let parts: Vec<serde_json::Value> = serde_json::from_slice(&text).ok()?;
        let [of, base, options, command, env] = parts.as_slice() else { return None };
        let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        let texts =
            |value: &serde_json::Value| value.as_array()?.iter().map(text).collect::<Option<Vec<_>>>();
        (of.as_str() == Some(image)).then_some(())?;
        Some(ImageRoot {
            base: text(base)?,
            options: text(options)?,
            command: texts(command)?,
            env: texts(env)?,
            // Looked at before an image is used for the first time, never again.
            labels: std::collections::BTreeMap::new(),
        })
    }
}

impl ImagePort for Images {
    fn prepare(&self, id: &str, spec: &ContainerSpec) -> BoxFuture<'static, Result<ProcessSpec, String>> {
        let (client, memory, id, spec) =
            (self.client.clone(), self.memory.clone(), id.to_owned(), spec.clone());
        Box::pin(async move {
            let image = reference::normalize(&spec.image)
                .ok_or_else(|| format!("{:?} is not the name of an image", spec.image))?;
            let mut root = client.root(SYSTEM, &image, &id).await;
            match &root {
                Ok(root) => {
                    if let Err(error) = memory.keep(&id, &image, root) {
                        warn!(service = id, %error, "the root of a container is not remembered");
                    }
                }
                Err(status) if status.code() == tonic::Code::Unavailable => {
                    if let Some(known) = memory.recall(&id, &image) {
                        warn!(service = id, "containerd does not answer; the root of before is used again");
                        root = Ok(known);
                    }
                }
                Err(_) => {}
            }
            let root =
                root.map_err(|status| format!("failed to pull image {image:?}: {}", status.message()))?;
            complete(spec, root)
        })
    }
}

/// The process with what the image says of it.
pub(crate) fn complete(spec: ContainerSpec, image: ImageRoot) -> Result<ProcessSpec, String> {
    let mut process = spec.process;
    if process.path.is_empty() {
        process.path =
            image.command.first().cloned().ok_or_else(|| format!("image {:?} runs nothing", spec.image))?;
        process.args = image.command.into_iter().chain(std::mem::take(&mut process.args)).collect();
    }
    let name = |variable: &str| variable.split('=').next().unwrap_or_default().to_owned();
    let mut env = image.env;
    if !env.iter().chain(&process.env).any(|variable| variable.starts_with("PATH=")) {
        env.push(PATH.to_owned());
    }
    env.retain(|variable| !process.env.iter().any(|own| name(own) == name(variable)));
    env.append(&mut process.env);
    process.env = env;
    let mounts = with_usual(&spec.mounts);
    process.root = Some(Root { base: image.base, options: image.options, mounts });
    Ok(process)
}

/// These mounts with the usual ones before them, unless they see something else in the place.
pub(crate) fn with_usual(mounts: &[ContainerMount]) -> Vec<ContainerMount> {
    // `/dev` of its own stands for all that is in it.
    let taken = |target: &str| {
        let covers = |mount: &ContainerMount| {
            target == mount.target || (target.starts_with("/dev/") && mount.target == "/dev")
        };
        mounts.iter().any(covers)
    };
    let usual = USUAL.iter().filter(|(_, path)| !taken(path)).map(|(mode, path)| ContainerMount {
        source: (*path).to_owned(),
        target: (*path).to_owned(),
        read_only: matches!(*mode, "r" | "R"),
        shared: matches!(*mode, "R" | "W"),
        separate: false,
    });
    usual.chain(mounts.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> ImageRoot {
        ImageRoot {
            base: "/s/".into(),
            options: "lowerdir=1/fs".into(),
            command: vec!["/run-me".into(), "--by=default".into()],
            env: vec!["PATH=/image".into(), "LEVEL=low".into()],
            labels: std::collections::BTreeMap::new(),
        }
    }

    #[test]
    fn the_service_wins_over_the_image() {
        let process = ProcessSpec { env: vec!["LEVEL=high".into()], ..ProcessSpec::default() };
        let spec = ContainerSpec { process, ..ContainerSpec::default() };
        let process = complete(spec.clone(), image()).unwrap();
        assert_eq!(process.path, "/run-me");
        assert_eq!(process.args, ["/run-me", "--by=default"]);
        assert_eq!(process.env, ["PATH=/image", "LEVEL=high"]);
        let nothing = ImageRoot { command: Vec::new(), env: Vec::new(), ..image() };
        assert_eq!(complete(spec.clone(), nothing.clone()).unwrap_err(), "image \"\" runs nothing");
        let own = ProcessSpec { path: "/own".into(), args: vec!["own".into()], ..ProcessSpec::default() };
        let process = complete(ContainerSpec { process: own, ..spec }, nothing).unwrap();
        assert_eq!((process.path.as_str(), process.args), ("/own", vec!["own".to_owned()]));
        assert_eq!(process.env, [PATH]);
    }

    #[tokio::test]
    async fn a_root_is_used_again_while_containerd_is_away() {
        let dir = tempfile::tempdir().unwrap();
        let images = Images::new(dir.path().join("no.sock"), dir.path().join("memory"));
        let spec = ContainerSpec { image: "ghcr.io/x/y:1".into(), ..ContainerSpec::default() };
        assert!(images.prepare("etcd", &spec).await.unwrap_err().starts_with("failed to pull image"));
        images.memory.keep("etcd", "ghcr.io/x/y:1", &image()).unwrap();
        let process = images.prepare("etcd", &spec).await.unwrap();
        assert_eq!((process.path.as_str(), process.root.unwrap().base.as_str()), ("/run-me", "/s/"));
        let other = ContainerSpec { image: "ghcr.io/x/y:2".into(), ..spec };
        assert!(images.prepare("etcd", &other).await.is_err());
    }

    #[test]
    fn the_usual_view_gives_way() {
        let mount = ContainerMount {
            source: "/dev".into(),
            target: "/dev".into(),
            shared: true,
            ..ContainerMount::default()
        };
        let spec = ContainerSpec { mounts: vec![mount], ..ContainerSpec::default() };
        let root = complete(spec, image()).unwrap().root.unwrap();
        let targets: Vec<&str> = root.mounts.iter().map(|mount| mount.target.as_str()).collect();
        assert_eq!(targets, ["/proc", "/sys", "/etc/hosts", "/etc/resolv.conf", "/dev"]);
        assert!(root.mounts[1].read_only && root.mounts[1].shared);
    }
}
