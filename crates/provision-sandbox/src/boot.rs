//! One boot of one machine: its namespaces, its network link, its first process.
//!
//! The process has one thread and lives as long as the machine: it hands SIGTERM on to the machine's init, its
//! death is the machine's, and its exit code says how the machine ended.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use ichor_net::{Netlink, link};
use ichor_provision::{Cluster, Machine};
use ichor_provision_local::{Layout, SetupError, exit_code, ipv4};
use ichor_sys::cgroup::{Cgroups, Limits};
use ichor_sys::credentials::{self, Capabilities};
use ichor_sys::namespace::{self, Namespaces};
use ichor_sys::signal::{self, Signals};

use crate::cgroups::Hierarchies;
use crate::layout::Paths as _;
use crate::{cgroups as tree, rootfs, scope};

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
const SIGCHLD: i32 = 17;

/// What a machine could use to change the host, whatever it mounts: loading code, setting the clock.
const TAKEN: Capabilities = Capabilities::from_bits(
    Capabilities::SYS_MODULE.bits()
        | Capabilities::SYS_TIME.bits()
        // CAP_SYS_RAWIO, CAP_MAC_OVERRIDE, CAP_MAC_ADMIN, CAP_WAKE_ALARM
        | 1 << 17 | 1 << 32 | 1 << 33 | 1 << 35,
);

/// How long the link of the boot before may take to go away.
const LINK_ATTEMPTS: u32 = 200;
const LINK_PAUSE: Duration = Duration::from_millis(10);

pub(crate) fn main(dir: &Path, machine: &str) -> ExitCode {
    match boot(&Layout::new(dir), machine) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("[sandbox] machine did not start: {}", error.sentence());
            ExitCode::FAILURE
        }
    }
}

fn boot(layout: &Layout, name: &str) -> Result<ExitCode, SetupError> {
    signal::set_parent_death_signal(SIGKILL).map_err(SetupError::step("follow the supervisor"))?;
    let cluster = layout.load()?;
    let machine = cluster.machine(name)?;
    // Before the first child, so that no signal is missed.
    let signals = Signals::collect(&[SIGTERM, SIGCHLD]).map_err(SetupError::step("collect signals"))?;
    let group = prepare_group(layout, &cluster, machine)?;
    connect(&cluster, machine)?;
    let kinds = Namespaces::MOUNT.union(Namespaces::UTS).union(Namespaces::IPC).union(Namespaces::PID);
    namespace::unshare(kinds).map_err(SetupError::step("make namespaces"))?;
    let pid = namespace::fork(|| {
        let error = match first_process(layout, &cluster, machine, &group) {
            Ok(never) => match never {},
            Err(error) => error,
        };
        eprintln!("[sandbox] machine did not start: {}", error.sentence());
        1
    })
    .map_err(SetupError::step("fork"))?;
    Ok(ExitCode::from(wait(pid, &signals)?))
}

/// The machine's group in every hierarchy, empty of what an earlier boot left.
fn prepare_group(layout: &Layout, cluster: &Cluster, machine: &Machine) -> Result<Group, SetupError> {
    let place = layout.cgroups();
    let cgroups = Cgroups::detect(&place).map_err(SetupError::file("read", &place))?;
    let name = format!("{}/{}", scope::machines(layout, &cluster.name), machine.name);
    let _ = cgroups.kill(&name);
    cgroups.remove(&name).map_err(SetupError::step("clear the cgroup of the boot before"))?;
    let wanted = machine.resources;
    let limits = Limits { memory_max: wanted.memory, millicores_max: wanted.millicores, ..Limits::default() };
    cgroups.create(&name, &limits).map_err(SetupError::step("make a cgroup"))?;
    tree::check_controllers(&cgroups, &name)?;
    // The host's disks and kernel log are out of reach: by the devices controller of v1, or by a program on v2.
    let devices = place.join("devices").join(&name).join("devices.deny");
    if devices.exists() {
        for rule in ["b *:* rw", "c 1:11 w"] {
            fs::write(&devices, rule).map_err(SetupError::file("write", &devices))?;
        }
    }
    if cgroups.layout() == ichor_sys::cgroup::Layout::Unified
        && let Some(root) = cgroups.roots().first()
        && let Err(error) = ichor_sys::device_guard::guard(&root.join(&name))
    {
        eprintln!("[sandbox] privileged containers could use block devices of this host: {error}");
    }
    let unified = Hierarchies::of_host()?.open_unified(&layout.unified());
    if let Some(unified) = &unified {
        let _ = unified.kill(&name);
        unified
            .remove(&name)
            .and_then(|()| unified.create(&name, &Limits::default()))
            .map_err(SetupError::step("make a cgroup"))?;
    }
    // Whatever a machine mounts, the host's settings stay the host's.
    let place = unified.as_ref().or(Some(&cgroups)).and_then(|tree| tree.roots().first());
    let guarded = place.map_or(Ok(()), |root| ichor_sys::sysctl_guard::guard(&root.join(&name)));
    if let Err(error) = guarded {
        eprintln!("[sandbox] privileged containers could change settings of this host's kernel: {error}");
    }
    Ok(Group { cgroups, unified, name })
}

struct Group {
    cgroups: Cgroups,
    unified: Option<Cgroups>,
    name: String,
}

/// Moves this process into a new network namespace with one link, `eth0`, to the cluster's bridge.
fn connect(cluster: &Cluster, machine: &Machine) -> Result<(), SetupError> {
    let fleet = Netlink::open()?;
    namespace::unshare(Namespaces::NET).map_err(SetupError::step("make a network namespace"))?;
    let own = namespace::own_net().map_err(SetupError::step("open the network namespace"))?;
    let address = ipv4::address(machine)?;
    let [.., third, fourth] = address.octets();
    let port = format!("m{third}.{fourth}");
    let runtime =
        tokio::runtime::Builder::new_current_thread().build().map_err(SetupError::step("make a runtime"))?;
    runtime.block_on(async {
        use std::os::fd::AsFd;
        let mut attempt = 0;
        loop {
            // The other end of the boot before goes with its namespace, which the kernel clears in its own time.
            let _ = link::delete(&fleet, &port).await;
            match link::create_veth_pair(&fleet, &port, "eth0", Some(own.as_fd())).await {
                Ok(()) => break,
                Err(error) if attempt >= LINK_ATTEMPTS => return Err(SetupError::from(error)),
                Err(_) => std::thread::sleep(LINK_PAUSE),
            }
            attempt += 1;
        }
        link::set_mtu(&fleet, &port, cluster.network.mtu).await?;
        link::set_master(&fleet, &port, Some(ichor_provision_local::BRIDGE)).await?;
        link::set_up(&fleet, &port, true).await?;
        let inside = Netlink::open()?;
        link::set_hardware_addr(&inside, "eth0", &ipv4::hardware(address, 0)).await?;
        link::set_mtu(&inside, "eth0", cluster.network.mtu).await?;
        Ok(())
    })
}

enum Never {}

/// In the new namespaces: the machine's cgroup, root and limits, then its init.
fn first_process(
    layout: &Layout,
    cluster: &Cluster,
    machine: &Machine,
    group: &Group,
) -> Result<Never, SetupError> {
    signal::set_parent_death_signal(SIGKILL).map_err(SetupError::step("follow the boot process"))?;
    // 0 is the writer itself, whatever its number is in which namespace.
    group.cgroups.add(&group.name, 0).map_err(SetupError::step("enter the cgroup"))?;
    if let Some(unified) = &group.unified {
        unified.add(&group.name, 0).map_err(SetupError::step("enter the cgroup"))?;
    }
    namespace::unshare(Namespaces::CGROUP).map_err(SetupError::step("make a cgroup namespace"))?;
    rootfs::enter(layout, cluster, machine)?;
    ichor_sys::host::set_hostname("localhost").map_err(SetupError::step("set the host name"))?;
    credentials::limit_bounding_set(Capabilities::ALL.without(TAKEN))
        .map_err(SetupError::step("drop capabilities"))?;
    let _ = rustix::process::setsid();
    signal::reset();
    let error = namespace::exec(Path::new("/sbin/init"), &["/sbin/init"], &["TERM=linux", "HOME=/"]);
    Err(SetupError::file("start", "/sbin/init")(error))
}

/// Waits for the machine's end; a code as shells have it.
fn wait(pid: i32, signals: &Signals) -> Result<u8, SetupError> {
    loop {
        ichor_sys::poll::readable(signals, Duration::from_secs(60))
            .map_err(SetupError::step("wait for the machine"))?;
        while let Some(number) = signals.try_next() {
            if number == SIGTERM {
                let _ = signal::send(pid, SIGTERM);
            }
        }
        while let Some((ended, status)) = signal::reap_any() {
            if ended == pid {
                return Ok(u8::try_from(exit_code(status)).unwrap_or(1));
            }
        }
    }
}
