//! What a request becomes: network, image, addresses, and what machines of this provider need in their configuration.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use ichor_provision::{
    Cluster, ClusterRequest, Machine, MachineRequest, NewMachine, Plan, Provider as _, ProvisionError,
    check_settings,
};
use ipnet::{IpNet, Ipv4Net};

use crate::provider::{Sandbox, need_root};
use crate::{forward, ipv4};

/// The networks offered when none is asked for: 10.5.0.0/24 and up.
const FIRST_NETWORK: u8 = 5;
const LAST_NETWORK: u8 = 89;
/// Longer, and the kernel refuses the address of a Unix socket.
const SOCKET_PATH_MAX: usize = 107;
/// Names the root image where a request does not.
const IMAGE_VARIABLE: &str = "ICHOR_IMAGE";
/// Where the root image lies beside the program.
const IMAGE_PLACES: [&str; 3] =
    ["rootfs.squashfs", "../build/rootfs.squashfs", "../share/ichor/rootfs.squashfs"];

/// Machines share the disk of this host: a kubelet that wants a tenth of it free would evict all pods on a full one.
const SHARED_DISK: &str = "machine: {kubelet: {extraConfig: {evictionHard: {memory.available: 100Mi, \
    nodefs.available: 1Gi, imagefs.available: 1Gi}, imageGCHighThresholdPercent: 100}}}";

impl Sandbox {
    pub(crate) fn plan_cluster(&self, request: &ClusterRequest) -> Result<Plan, ProvisionError> {
        check_settings(request, self.settings())?;
        let cidr = match ipv4::wanted(&request.cidrs)? {
            Some(cidr) => cidr,
            None => self.free_network().ok_or(ProvisionError::NoFreeNetwork)?,
        };
        if self.store().names()?.contains(&request.name) {
            return Err(ProvisionError::Exists { name: request.name.clone() });
        }
        need_root("making a cluster")?;
        let named = image(request.image.as_deref());
        let found = fs::canonicalize(&named).ok();
        let found = found.filter(|path| path.is_file() && File::open(path).is_ok());
        let image = found.ok_or(ProvisionError::NoImage { path: named })?;
        let text = image.to_str().ok_or_else(|| ProvisionError::NoImage { path: image.clone() })?;
        let mut cluster = Cluster::plan(Self::NAME, request, IpNet::V4(cidr), text)?;
        cluster.images = images(request.images.as_deref(), &image)?;
        let socket = self.layout(&cluster.name)?.control();
        if socket.as_os_str().len() > SOCKET_PATH_MAX {
            let long = "the path of the state directory is too long for a socket";
            let source = io::Error::new(io::ErrorKind::InvalidFilename, long);
            return Err(ProvisionError::File { what: "use", path: socket, source });
        }
        Ok(planned(cluster, 0))
    }

    pub(crate) fn plan_machines(
        &self,
        cluster: &str,
        machines: &[MachineRequest],
    ) -> Result<Plan, ProvisionError> {
        let mut after = self.store().load(cluster)?;
        let there = after.machines.len();
        after.grow(machines)?;
        Ok(planned(after, there))
    }

    /// A network that no cluster in the store uses and whose first loopback address is free.
    pub fn free_network(&self) -> Option<Ipv4Net> {
        let clusters = self.store().list().unwrap_or_default();
        let taken: Vec<IpNet> = clusters.into_iter().flat_map(|cluster| cluster.network.cidrs).collect();
        let is_taken = |network: &Ipv4Net| {
            let network = IpNet::V4(*network);
            taken.iter().any(|other| other.contains(&network) || network.contains(other))
        };
        (FIRST_NETWORK..=LAST_NETWORK)
            .filter_map(|second| Ipv4Net::new([10, second, 0, 0].into(), 24).ok())
            .filter(|network| !is_taken(network))
            .find(|network| {
                let first = network.hosts().nth(1).map(ipv4::loopback);
                first.is_some_and(|address| std::net::TcpListener::bind((address, forward::PORTS[0])).is_ok())
            })
    }
}

/// The plan of a cluster whose machines from `from` on are new.
fn planned(cluster: Cluster, from: usize) -> Plan {
    let new = |machine: &Machine| NewMachine {
        name: machine.name.clone(),
        // Machines are reached at their loopback address, which only this name makes valid.
        sans: ipv4::address(machine).map(ipv4::loopback).iter().map(ToString::to_string).collect(),
    };
    Plan {
        new: cluster.machines.iter().skip(from).map(new).collect(),
        registry: ipv4::registry(&cluster).map(|address| format!("http://{address}")),
        patches: vec![SHARED_DISK.to_owned()],
        cluster,
    }
}

/// The root image: as named, else what lies near the program.
fn image(named: Option<&str>) -> PathBuf {
    let named = named.map(PathBuf::from);
    if let Some(path) = named.or_else(|| std::env::var_os(IMAGE_VARIABLE).map(PathBuf::from)) {
        return std::path::absolute(&path).unwrap_or(path);
    }
    let program = std::env::current_exe().unwrap_or_default();
    let beside = program.parent().unwrap_or(Path::new("."));
    let found = IMAGE_PLACES.iter().map(|place| beside.join(place)).find(|path| path.exists());
    let path = found.unwrap_or_else(|| PathBuf::from("build/rootfs.squashfs"));
    path.canonicalize().or_else(|_| std::path::absolute(&path)).unwrap_or(path)
}

/// The container images: as named, else what lies beside the root image.
fn images(named: Option<&Path>, image: &Path) -> Result<Option<PathBuf>, ProvisionError> {
    let whole = |path: &Path| fs::canonicalize(path).ok().filter(|path| path.join("index.json").is_file());
    match named {
        // The supervisor works from another directory, and says so late.
        Some(path) => match whole(path) {
            Some(found) => Ok(Some(found)),
            None => Err(ProvisionError::NoImages { path: std::path::absolute(path).unwrap_or(path.into()) }),
        },
        None => Ok(whole(&image.with_file_name("images"))),
    }
}
