//! What is run when the member starts.

use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::Path;

use ichor_cosi::State;
use ichor_ctl_etcd::client::SECRETS;
use ichor_ctl_etcd::member::peer_urls;
use ichor_ctl_k8s::args;
use ichor_render::etcd::{Beginning, arguments, own_cluster};
use ichor_resource::config::MachineType;
use ichor_resource::etcd::{EtcdSpec, PKIStatus};
use ichor_types::MachineType as Role;
use tracing::info;

use super::{Data, ETCD, GROUP, Intent, UID, Wanted, join};
use crate::services::{ContainerMount, ContainerSpec, ProcessSpec, Run, ServiceManager, ServiceSpec};

/// What belongs to a restore that is going on, inside of the data directory.
pub const RESTORE: &str = ".restore";

/// The program in its image.
const PROGRAM: &str = "/usr/local/bin/etcd";

/// The program that works on files of members that do not run.
const OFFLINE: &str = "/usr/local/bin/etcdutl";

/// Cipher suites of TLS 1.2.
const CIPHERS: &str = "ETCD_CIPHER_SUITES=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,\
TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,\
TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305,\
TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305";

/// Decides what the member runs with.
#[derive(Clone)]
pub struct Planner {
    /// Resources of the node.
    pub state: State,
    /// Where the program that restores runs.
    pub services: ServiceManager,
    /// What a member without data does.
    pub wanted: Wanted,
    /// Where its data are.
    pub data: Data,
    /// The machine's own environment.
    pub environment: Vec<String>,
}

impl Planner {
    /// What runs now. Waits for certificates, and for a cluster to join.
    pub async fn plan(self) -> Result<Run, String> {
        let text = |error: ichor_cosi::StateError| error.to_string();
        self.state.wait_for::<PKIStatus>("etcd", ETCD, |status| status.ready).await.map_err(text)?;
        make_directory(&self.data.dir)
            .map_err(|error| format!("make {}: {error}", self.data.dir.display()))?;
        let wanted = self.wanted.get();
        if !self.data.has_log()
            && let Intent::Recover { skip_hash_check } = wanted
        {
            self.restore(skip_hash_check).await?;
        }
        let (beginning, id) = match (self.data.has_log(), wanted) {
            (true, wanted) => (Beginning::Log { alone: wanted == Intent::Alone }, None),
            (false, Intent::Bootstrap) => (Beginning::New, None),
            (false, Intent::Recover { .. }) => return Err("the restored snapshot has no log".to_owned()),
            (false, Intent::Join) if self.begins_by_itself().await => (Beginning::New, None),
            (false, Intent::Join | Intent::Alone) => {
                self.ready_to_join().await?;
                let joined = join::join(&self.state, |reason| self.services.tell(ETCD, reason)).await?;
                (Beginning::Existing(joined.cluster), Some(joined.id))
            }
        };
        info!(?beginning, "etcd starts");
        let spec = self.state.get::<EtcdSpec>("etcd", ETCD).map_err(text)?;
        // Whoever joined, now or before a restart, may have to be let in yet.
        tokio::spawn(join::promote(self.state.clone(), id));
        Ok(Run::Container(self.member(&spec, &beginning)?))
    }

    /// A machine of the type `init` needs no bootstrap, unless there is a cluster it can join.
    async fn begins_by_itself(&self) -> bool {
        let role = self.state.find::<MachineType>("config", MachineType::ID);
        role.is_some_and(|role| role.machine_type == Role::Init)
            && super::other_cluster(&self.state, false).await.is_none()
    }

    fn member(&self, spec: &EtcdSpec, beginning: &Beginning) -> Result<ContainerSpec, String> {
        let args = arguments(spec, beginning).map_err(|error| format!("cluster.etcd.extraArgs: {error}"))?;
        Ok(self.container(spec, PROGRAM, ETCD, args::command(&args)))
    }

    /// A learner that cannot start would keep all others from joining, so what it needs is there first.
    async fn ready_to_join(&self) -> Result<(), String> {
        let spec = self.state.get::<EtcdSpec>("etcd", ETCD).map_err(|error| error.to_string())?;
        let member = self.member(&spec, &Beginning::Existing(String::new()))?;
        self.services.prepare_image(ETCD, &member).await
    }

    fn container(&self, spec: &EtcdSpec, path: &str, name: &str, args: Vec<String>) -> ContainerSpec {
        let mut env = self.environment.clone();
        env.push(CIPHERS.to_owned());
        if cfg!(target_arch = "aarch64") {
            env.push("ETCD_UNSUPPORTED_ARCH=arm64".to_owned());
        }
        let mount = |path: String, read_only| ContainerMount {
            source: path.clone(),
            target: path,
            read_only,
            ..ContainerMount::default()
        };
        ContainerSpec {
            image: spec.image.clone(),
            process: ProcessSpec {
                path: path.to_owned(),
                args: [name.to_owned()].into_iter().chain(args).collect(),
                env,
                uid: UID,
                cgroup: Some(GROUP.to_owned()),
                oom_score_adj: -998,
                ..ProcessSpec::default()
            },
            mounts: vec![
                mount(SECRETS.to_owned(), true),
                mount(self.data.dir.to_string_lossy().into(), false),
            ],
        }
    }

    /// Makes data of the uploaded snapshot: a cluster of this member alone. They count once they are whole.
    async fn restore(&self, skip_hash_check: bool) -> Result<(), String> {
        let spec = self.state.get::<EtcdSpec>("etcd", ETCD).map_err(|error| error.to_string())?;
        let (fresh, snapshot) = (self.data.dir.join(RESTORE), self.data.dir.join(format!("{RESTORE}.db")));
        self.take_upload(&fresh, &snapshot)
            .map_err(|error| format!("there is no snapshot to recover from: {error}"))?;
        let path = |path: &Path| path.to_string_lossy().into_owned();
        let mut args = ["snapshot", "restore"].map(str::to_owned).to_vec();
        args.push(path(&snapshot));
        args.extend([
            format!("--data-dir={}", path(&fresh)),
            format!("--name={}", spec.name),
            format!("--initial-cluster={}", own_cluster(&spec)),
            format!("--initial-advertise-peer-urls={}", peer_urls(&spec.advertised_addresses).join(",")),
        ]);
        if skip_hash_check {
            args.push("--skip-hash-check".to_owned());
        }
        let container = self.container(&spec, OFFLINE, "etcdutl", args);
        let services = self.services.clone();
        // A task of its own: a restore that has begun comes to its end.
        let restored = tokio::spawn(async move {
            services.run_once(&ServiceSpec::new("etcdutl", Run::Container(container))).await
        });
        restored
            .await
            .map_err(|error| error.to_string())?
            .map_err(|error| format!("restore the snapshot: {error}"))?;
        let put_in_place = || -> io::Result<()> {
            ichor_sys::file::rename(&fresh.join("member"), &self.data.dir.join("member"))?;
            std::fs::remove_dir_all(&fresh)?;
            std::fs::remove_file(&snapshot)
        };
        put_in_place().map_err(|error| format!("put the restored data in place: {error}"))?;
        info!("etcd was restored from a snapshot");
        Ok(())
    }

    /// Moves the upload to where etcd sees it, and clears what an earlier attempt left.
    fn take_upload(&self, fresh: &Path, snapshot: &Path) -> io::Result<()> {
        match std::fs::remove_dir_all(fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        match ichor_sys::file::rename(&self.data.upload, snapshot) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        chown(snapshot, Some(UID), Some(UID))
    }
}

fn make_directory(dir: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700))?;
    chown(dir, Some(UID), Some(UID))
}
