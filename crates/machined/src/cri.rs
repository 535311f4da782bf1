//! The service `cri`: the one containerd of a node, for pods and for the node's own containers.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ichor_containerd::Client;
use ichor_cosi::State;
use ichor_ctl_runtime::cri;
use ichor_resource::cri::{ImageCacheConfig, ImageCacheStatus};
use ichor_resource::files::EtcFileStatus;
use ichor_resource::network::NetworkStatus;
use ichor_sys::cgroup::Limits;

use crate::daemons::{exists, holds, own_group};
use crate::node::Host;
use crate::services::spec::Hook;
use crate::services::{Health, ProcessSpec, Run, ServiceSpec};

/// The container runtime, where the image has one.
pub const CONTAINERD: &str = "/bin/containerd";

/// Its configuration.
const CONFIG: &str = "/etc/cri/containerd.toml";

/// Its group.
const GROUP: &str = "podruntime/runtime";

const MIB: u64 = 1024 * 1024;

/// A directory of workloads: below `/var`, with mode and owner.
struct Place {
    path: &'static str,
    mode: u32,
    /// The owner, of all that is in it too.
    owner: Option<u32>,
}

const fn place(path: &'static str, mode: u32) -> Place {
    Place { path, mode, owner: None }
}

/// What workloads and their services find below `/var`, parents first.
const PLACES: [Place; 14] = [
    place("log", 0o755),
    place("log/audit", 0o700),
    Place { path: "log/audit/kube", mode: 0o700, owner: Some(65_534) },
    place("log/containers", 0o755),
    place("log/pods", 0o755),
    place("lib", 0o700),
    Place { path: "lib/etcd", mode: 0o700, owner: Some(60) },
    place("lib/containerd", 0o000),
    place("lib/kubelet", 0o700),
    place("lib/cni", 0o700),
    place("lib/kubelet/seccomp", 0o700),
    place("lib/kubelet/seccomp/profiles", 0o700),
    place("mnt", 0o755),
    place("system", 0o700),
];

/// The container runtime.
pub fn service(host: &Host, state: &State) -> ServiceSpec {
    let mut env = vec!["PATH=/usr/bin:/usr/sbin:/bin:/sbin".to_owned(), "XDG_RUNTIME_DIR=/run".to_owned()];
    // Proxies, too: it is the one that pulls images.
    env.extend(crate::environment::of(host, state));
    let process = ProcessSpec {
        path: CONTAINERD.to_owned(),
        args: [CONTAINERD, "--address", &host.paths.containerd.to_string_lossy(), "--config", CONFIG]
            .map(str::to_owned)
            .to_vec(),
        env,
        privileged: true,
        cgroup: Some(GROUP.to_owned()),
        oom_score_adj: -500,
        ..ProcessSpec::default()
    };
    let client = Client::new(&host.paths.containerd);
    let check = Health::new(Arc::new(move || {
        let client = client.clone();
        Box::pin(async move { client.serving().await.map_err(|status| status.message().to_owned()) })
    }));
    ServiceSpec {
        conditions: vec![
            holds(state, "network", "status", "network", |status: &NetworkStatus| {
                status.address_ready && status.hostname_ready && status.etc_files_ready
            }),
            exists::<EtcFileStatus>(state, "files", cri::MERGED, "container runtime configuration"),
            exists::<EtcFileStatus>(state, "files", cri::BASE_SPEC, "base of containers"),
            // Who pulls before the cache is ready pulls from elsewhere.
            holds(state, "cri", cri::IMAGE_CACHE, "image cache", |cache: &ImageCacheConfig| {
                matches!(cache.status, ImageCacheStatus::Disabled | ImageCacheStatus::Ready)
            }),
        ],
        pre: Some(before(host.paths.ephemeral.clone())),
        health: Some(check),
        ..ServiceSpec::new("cri", Run::Process(process))
    }
}

/// The group and the directories.
fn before(ephemeral: PathBuf) -> Hook {
    let group = own_group(
        GROUP,
        Limits {
            memory_min: Some(196 * MIB),
            memory_low: Some(392 * MIB),
            swap_max: Some(0),
            millicores: Some(1000),
            ..Limits::default()
        },
    );
    Arc::new(move || {
        let (group, ephemeral) = (group(), ephemeral.clone());
        Box::pin(async move {
            group.await?;
            let made = tokio::task::spawn_blocking(move || make_places(&ephemeral, Path::new("/run")));
            made.await.map_err(|error| error.to_string())?
        })
    })
}

/// Makes the directories of workloads; what is there keeps its content.
fn make_places(ephemeral: &Path, run: &Path) -> Result<(), String> {
    for place in &PLACES {
        let path = ephemeral.join(place.path);
        make(&path, place).map_err(|error| format!("make {}: {error}", path.display()))?;
    }
    let link = ephemeral.join("run");
    match symlink(run, &link) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(format!("link {}: {error}", link.display()))
        }
        _ => std::fs::create_dir_all(run.join("lock")).map_err(|error| format!("make /run/lock: {error}")),
    }
}

fn make(path: &Path, place: &Place) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(place.mode))?;
    match place.owner {
        // All below it was given with it.
        Some(owner) if std::fs::metadata(path)?.uid() != owner => give(path, owner),
        _ => Ok(()),
    }
}

/// Gives a tree away, the top last: an attempt that was cut short begins anew.
fn give(path: &Path, owner: u32) -> io::Result<()> {
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => give(&entry.path(), owner)?,
            false => std::os::unix::fs::lchown(entry.path(), Some(owner), Some(owner))?,
        }
    }
    chown(path, Some(owner), Some(owner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_have_their_modes_and_keep_their_content() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run-itself");
        std::fs::create_dir(&run).unwrap();
        let var = dir.path().join("var");
        // Giving away needs root; the table is tried without.
        for place in PLACES.iter().filter(|place| place.owner.is_none()) {
            make(&var.join(place.path), place).unwrap();
            std::fs::set_permissions(var.join(place.path), std::fs::Permissions::from_mode(0o711)).unwrap();
            make(&var.join(place.path), place).unwrap();
            let mode = std::fs::metadata(var.join(place.path)).unwrap().permissions().mode() & 0o7777;
            assert_eq!(mode, place.mode, "{}", place.path);
        }
        if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
            std::fs::create_dir_all(var.join("lib/etcd/member")).unwrap();
            make_places(&var, &run).unwrap();
            make_places(&var, &run).unwrap();
            assert_eq!(std::fs::metadata(var.join("lib/etcd/member")).unwrap().uid(), 60);
            assert_eq!(std::fs::read_link(var.join("run")).unwrap(), run);
        }
    }
}
