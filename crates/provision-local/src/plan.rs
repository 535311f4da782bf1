//! What a request becomes: network, addresses, and what machines of this provider need in their configuration.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ichor_provision::{
    Cluster, ClusterRequest, Machine, MachineRequest, NewMachine, Plan, Provider as _, ProvisionError,
    check_settings,
};
use ipnet::{IpNet, Ipv4Net};

use crate::provider::{Local, need_root};
use crate::{Kind, forward, ipv4};

/// The networks offered when none is asked for: 10.5.0.0/24 and up.
const FIRST_NETWORK: u8 = 5;
const LAST_NETWORK: u8 = 89;
/// Longer, and the kernel refuses the address of a Unix socket.
const SOCKET_PATH_MAX: usize = 107;
impl<K: Kind> Local<K> {
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
        let mut cluster = Cluster::plan(K::NAME, request, IpNet::V4(cidr), "")?;
        K::resolve(request, &mut cluster)?;
        let socket = self.layout(&cluster.name)?.control();
        if socket.as_os_str().len() > SOCKET_PATH_MAX {
            let long = "the path of the state directory is too long for a socket";
            let source = io::Error::new(io::ErrorKind::InvalidFilename, long);
            return Err(ProvisionError::File { what: "use", path: socket, source });
        }
        Ok(planned::<K>(cluster, 0))
    }

    pub(crate) fn plan_machines(
        &self,
        cluster: &str,
        machines: &[MachineRequest],
    ) -> Result<Plan, ProvisionError> {
        let mut after = self.store().load(cluster)?;
        let there = after.machines.len();
        after.grow(machines)?;
        Ok(planned::<K>(after, there))
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
fn planned<K: Kind>(cluster: Cluster, from: usize) -> Plan {
    let new = |machine: &Machine| NewMachine {
        name: machine.name.clone(),
        // Machines are reached at their loopback address, which only this name makes valid.
        sans: ipv4::address(machine).map(ipv4::loopback).iter().map(ToString::to_string).collect(),
    };
    Plan {
        new: cluster.machines.iter().skip(from).map(new).collect(),
        registry: ipv4::registry(&cluster).map(|address| format!("http://{address}")),
        patches: K::patches(&cluster),
        cluster,
    }
}

/// The container images: as named, else what lies beside what machines boot.
///
/// # Errors
/// When there are none where they were named.
pub fn images(named: Option<&Path>, image: &Path) -> Result<Option<PathBuf>, ProvisionError> {
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
