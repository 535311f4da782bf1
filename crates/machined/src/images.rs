//! Roots of the node's own containers, from the images that containerd holds.

use std::path::PathBuf;

use ichor_containerd::{Client, ImageRoot, SYSTEM, reference};

use crate::services::{BoxFuture, ContainerMount, ContainerSpec, ImagePort, ProcessSpec, Root};

/// Where programs are when neither image nor service says so.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

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
}

impl Images {
    /// Those of the containerd at this socket.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { client: Client::new(socket) }
    }
}

impl ImagePort for Images {
    fn prepare(&self, id: &str, spec: &ContainerSpec) -> BoxFuture<'static, Result<ProcessSpec, String>> {
        let (client, id, spec) = (self.client.clone(), id.to_owned(), spec.clone());
        Box::pin(async move {
            let image = reference::normalize(&spec.image)
                .ok_or_else(|| format!("{:?} is not the name of an image", spec.image))?;
            let root = client.root(SYSTEM, &image, &id).await;
            let root =
                root.map_err(|status| format!("failed to pull image {image:?}: {}", status.message()))?;
            complete(spec, root)
        })
    }
}

/// The process with what the image says of it.
fn complete(spec: ContainerSpec, image: ImageRoot) -> Result<ProcessSpec, String> {
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
    // `/dev` of its own stands for all that is in it.
    let taken = |target: &str| {
        let covers = |mount: &ContainerMount| {
            target == mount.target || (target.starts_with("/dev/") && mount.target == "/dev")
        };
        spec.mounts.iter().any(covers)
    };
    let usual = USUAL.iter().filter(|(_, path)| !taken(path)).map(|(mode, path)| ContainerMount {
        source: (*path).to_owned(),
        target: (*path).to_owned(),
        read_only: matches!(*mode, "r" | "R"),
        shared: matches!(*mode, "R" | "W"),
    });
    let mounts = usual.chain(spec.mounts.iter().cloned()).collect();
    process.root = Some(Root { base: image.base, options: image.options, mounts });
    Ok(process)
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

    #[test]
    fn the_usual_view_gives_way() {
        let mount =
            ContainerMount { source: "/dev".into(), target: "/dev".into(), read_only: false, shared: true };
        let spec = ContainerSpec { mounts: vec![mount], ..ContainerSpec::default() };
        let root = complete(spec, image()).unwrap().root.unwrap();
        let targets: Vec<&str> = root.mounts.iter().map(|mount| mount.target.as_str()).collect();
        assert_eq!(targets, ["/proc", "/sys", "/etc/hosts", "/etc/resolv.conf", "/dev"]);
        assert!(root.mounts[1].read_only && root.mounts[1].shared);
    }
}
