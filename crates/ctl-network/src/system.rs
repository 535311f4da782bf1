//! The real ports: netlink, sysfs, `/etc`, DHCP sockets.

use std::fs;
use std::future::Future;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ichor_cosi::Wake;
use ichor_net::address::{self, Address};
use ichor_net::link::ethtool::{self, Ethernet, Ethtool};
use ichor_net::link::{self, Link};
use ichor_net::route::{self, Route};
use ichor_net::watch::{Topics, Watcher};
use ichor_net::{NetError, Netlink, arp, dhcp4, dhcp6, nftables};
use rustix::mount::MountFlags;

use crate::ports::{Dhcp, Host, Kernel, LinkChange, LinkHardware, NewLink, Running, Throttle};

/// Pause before a watch that failed is opened again.
const WATCH_RETRY: Duration = Duration::from_secs(1);
/// First and longest pause before a DHCP client that failed is started again.
const DHCP_RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// The kernel, for the network namespace of the thread that opened it.
#[derive(Debug, Clone)]
pub struct SystemKernel {
    netlink: Arc<Netlink>,
    ethtool: Arc<Ethtool>,
}

impl SystemKernel {
    /// Opens the sockets.
    pub fn open() -> Result<Self, NetError> {
        let ethtool = Ethtool::open().map_err(|source| NetError::Open { what: "ethtool socket", source })?;
        Ok(Self { netlink: Arc::new(Netlink::open()?), ethtool: Arc::new(ethtool) })
    }
}

impl Kernel for SystemKernel {
    async fn links(&self) -> Result<Vec<Link>, NetError> {
        link::list(&self.netlink).await
    }

    async fn addresses(&self) -> Result<Vec<Address>, NetError> {
        address::list(&self.netlink).await
    }

    async fn routes(&self) -> Result<Vec<Route>, NetError> {
        route::list(&self.netlink).await
    }

    fn hardware(&self, link: &str) -> LinkHardware {
        let device = Path::new("/sys/class/net").join(link).join("device");
        let number = |file: &str| {
            let text = fs::read_to_string(device.join(file)).ok()?;
            u16::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
        };
        LinkHardware {
            driver: self.ethtool.driver(link).ok(),
            mode: self.ethtool.mode(link).ok(),
            pci: number("vendor").zip(number("device")),
        }
    }

    fn ethernet(&self, link: &str) -> io::Result<Ethernet> {
        self.ethtool.ethernet(link)
    }

    fn change_ethernet(&self, link: &str, change: &ethtool::Change) -> io::Result<()> {
        self.ethtool.change(link, change)
    }

    async fn change_link(&self, name: &str, change: &LinkChange) -> Result<(), NetError> {
        let netlink = &self.netlink;
        match change {
            LinkChange::Create(NewLink::Bridge) => link::create_bridge(netlink, name).await,
            LinkChange::Create(NewLink::Dummy) => link::create_dummy(netlink, name).await,
            LinkChange::Create(NewLink::Vlan(parent, vlan)) => {
                link::create_vlan(netlink, name, parent, *vlan).await
            }
            LinkChange::Delete => link::delete(netlink, name).await,
            LinkChange::Up(up) => link::set_up(netlink, name, *up).await,
            LinkChange::Mtu(mtu) => link::set_mtu(netlink, name, *mtu).await,
            LinkChange::HardwareAddr(address) => link::set_hardware_addr(netlink, name, address).await,
            LinkChange::Multicast(on) => link::set_multicast(netlink, name, *on).await,
            LinkChange::Alias(alias) => link::set_alias(netlink, name, alias).await,
            LinkChange::Master(master) => link::set_master(netlink, name, master.as_deref()).await,
            LinkChange::Bridge(bridge) => link::set_bridge(netlink, name, *bridge).await,
        }
    }

    async fn add_address(&self, link: &str, address: &Address) -> Result<(), NetError> {
        address::add(&self.netlink, link, address).await
    }

    async fn remove_address(&self, link: &str, address: &Address) -> Result<(), NetError> {
        address::remove(&self.netlink, link, address).await
    }

    fn announce(&self, link: &Link, address: Ipv4Addr) -> io::Result<()> {
        arp::announce(link.index, ethernet(link)?, address)
    }

    async fn probe(&self, link: &Link, address: Ipv4Addr) -> io::Result<Option<[u8; 6]>> {
        arp::probe(link.index, ethernet(link)?, address).await
    }

    fn filter(&self, table: &str, chains: &[nftables::Chain]) -> Result<(), NetError> {
        nftables::program(table, chains)
    }

    async fn add_route(&self, route: &Route) -> Result<(), NetError> {
        route::add(&self.netlink, route).await
    }

    async fn remove_route(&self, route: &Route) -> Result<(), NetError> {
        route::remove(&self.netlink, route).await
    }

    fn watch(&self, topics: Topics, wake: Wake) {
        // Opened before this returns, so that the first listing misses nothing.
        let mut opened = Watcher::open(topics);
        tokio::spawn(async move {
            let mut throttle = Throttle::new();
            loop {
                match &mut opened {
                    Ok(watcher) => match watcher.changed().await {
                        Ok(()) => {
                            wake.wake();
                            throttle.pass().await;
                        }
                        Err(error) => opened = Err(error),
                    },
                    Err(error) => {
                        tracing::warn!(%error, "network changes are not seen");
                        tokio::time::sleep(WATCH_RETRY).await;
                        opened = Watcher::open(topics);
                        wake.wake();
                    }
                }
            }
        });
    }
}

fn ethernet(link: &Link) -> io::Result<[u8; 6]> {
    <[u8; 6]>::try_from(link.hardware_addr.as_slice()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// This machine's name and files.
#[derive(Debug, Clone)]
pub struct SystemHost {
    etc: PathBuf,
    shadow: PathBuf,
    pod_resolv_conf: PathBuf,
    state: PathBuf,
}

impl Default for SystemHost {
    fn default() -> Self {
        Self {
            etc: "/etc".into(),
            shadow: "/system/etc".into(),
            pod_resolv_conf: "/system/resolved/resolv.conf".into(),
            state: "/system/state".into(),
        }
    }
}

impl SystemHost {
    /// With other directories than the usual ones.
    pub fn new(etc: PathBuf, shadow: PathBuf, pod_resolv_conf: PathBuf, state: PathBuf) -> Self {
        Self { etc, shadow, pod_resolv_conf, state }
    }
}

impl Host for SystemHost {
    fn set_hostname(&self, hostname: &str, domain: &str) -> io::Result<()> {
        ichor_net::hostname::set(hostname, domain)
    }

    fn write_etc(&self, path: &str, contents: &[u8], mode: u32) -> io::Result<()> {
        let shadow = self.shadow.join(path);
        let shown = self.etc.join(path);
        write_in_place(&shadow, contents, mode)?;
        if same_file(&shadow, &shown) {
            return Ok(());
        }
        show(&shadow, &shown)
    }

    fn remove_etc(&self, path: &str) -> io::Result<()> {
        let shadow = self.shadow.join(path);
        let shown = self.etc.join(path);
        if same_file(&shadow, &shown) {
            match fs::symlink_metadata(&shown)?.is_symlink() {
                true => fs::remove_file(&shown)?,
                false => rustix::mount::unmount(&shown, rustix::mount::UnmountFlags::DETACH)?,
            }
        }
        match fs::remove_file(&shadow) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    fn read_state(&self, name: &str) -> io::Result<Option<String>> {
        match fs::read_to_string(self.state.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            result => result.map(Some),
        }
    }

    fn write_state(&self, name: &str, contents: &[u8], mode: u32) -> io::Result<()> {
        ichor_sys::file::replace_if_changed(&self.state.join(name), contents, mode, None).map(drop)
    }

    fn write_pod_resolv_conf(&self, contents: &[u8]) -> io::Result<()> {
        write_in_place(&self.pod_resolv_conf, contents, 0o644)
    }
}

/// Writes through the inode that others have bound: a new file would leave them with the old one.
fn write_in_place(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    if fs::read(path).is_ok_and(|held| held == contents) {
        return fs::set_permissions(path, fs::Permissions::from_mode(mode));
    }
    let mut file = fs::OpenOptions::new().create(true).truncate(true).write(true).mode(mode).open(path)?;
    file.write_all(contents)?;
    file.set_permissions(fs::Permissions::from_mode(mode))
}

fn same_file(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    matches!((id(one), id(other)), (Ok(one), Ok(other)) if one == other)
}

/// Makes a file appear in `/etc`: bound over what is there, or as a link where `/etc` can be written.
fn show(shadow: &Path, shown: &Path) -> io::Result<()> {
    if !shown.exists() {
        if let Some(parent) = shown.parent() {
            fs::create_dir_all(parent)?;
        }
        return match std::os::unix::fs::symlink(shadow, shown) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            result => result,
        };
    }
    rustix::mount::mount_bind(shadow, shown)?;
    // A bind mount takes its flags in a second call; without them it is only less strict.
    let read_only = MountFlags::BIND | MountFlags::RDONLY;
    if let Err(error) = rustix::mount::mount_remount(shown, read_only, c"") {
        tracing::debug!(path = %shown.display(), %error, "file can be written");
    }
    Ok(())
}

/// DHCP clients on real sockets.
#[derive(Debug, Clone, Default)]
pub struct SystemDhcp {
    directory: Option<PathBuf>,
}

impl SystemDhcp {
    /// Clients that keep their leases in a directory, so that they survive a crash of this program. It must not
    /// outlive a boot.
    pub fn keeping(directory: PathBuf) -> Self {
        Self { directory: Some(directory) }
    }

    fn kept(&self, operator: &str, link: &str) -> Option<Kept> {
        Some(Kept(self.directory.as_ref()?.join(format!("{operator}-{link}"))))
    }
}

/// A lease that is forgotten when its client is stopped on purpose: the link may be in another network by the
/// time the client starts again. A crash does not get here.
struct Kept(PathBuf);

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Runs a client again and again, after ever longer pauses.
async fn keep_running<F: Future<Output = io::Error>>(
    link: &str,
    mut run: impl FnMut() -> F,
    on_failure: impl Fn(String),
) {
    let (mut pause, longest) = DHCP_RETRY;
    loop {
        let began = tokio::time::Instant::now();
        let error = run().await;
        tracing::debug!(link, %error, "dhcp client failed");
        on_failure(error.to_string());
        if began.elapsed() > longest {
            pause = DHCP_RETRY.0;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

impl Dhcp for SystemDhcp {
    fn start(
        &self,
        link: &str,
        link_index: u32,
        mut config: dhcp4::Config,
        hostname: tokio::sync::watch::Receiver<dhcp4::client::Hostname>,
        on_event: Arc<dyn Fn(dhcp4::Event) + Send + Sync>,
    ) -> Running {
        let (link, kept) = (link.to_owned(), self.kept("dhcp4", link));
        config.keep = kept.as_ref().map(|kept| kept.0.clone());
        Running::task(tokio::spawn(async move {
            let _kept = kept;
            let run = || dhcp4::run(&link, link_index, config.clone(), hostname.clone(), |e| on_event(e));
            let failed = |reason| {
                on_event(dhcp4::Event::Lost);
                on_event(dhcp4::Event::Silent(reason));
            };
            keep_running(&link, run, failed).await;
        }))
    }

    fn start6(
        &self,
        link: &str,
        link_index: u32,
        mut config: dhcp6::Config,
        on_event: Arc<dyn Fn(dhcp6::Event) + Send + Sync>,
    ) -> Running {
        let (link, kept) = (link.to_owned(), self.kept("dhcp6", link));
        config.keep = kept.as_ref().map(|kept| kept.0.clone());
        Running::task(tokio::spawn(async move {
            let _kept = kept;
            let run = || dhcp6::run(&link, link_index, config.clone(), |event| on_event(event));
            let failed = |reason| {
                on_event(dhcp6::Event::Lost);
                on_event(dhcp6::Event::Silent(reason));
            };
            keep_running(&link, run, failed).await;
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_rewritten_through_its_inode() {
        let directory = std::env::temp_dir().join(format!("ichor-etc-{}", std::process::id()));
        let host = SystemHost::new(
            directory.join("etc"),
            directory.join("shadow"),
            directory.join("resolved/resolv.conf"),
            directory.clone(),
        );
        host.write_etc("hosts", b"one\n", 0o644).unwrap();
        let shown = directory.join("etc/hosts");
        let inode = fs::metadata(&shown).unwrap().ino();
        host.write_etc("hosts", b"two, and longer\n", 0o600).unwrap();
        assert_eq!(fs::read(&shown).unwrap(), b"two, and longer\n");
        let meta = fs::metadata(&shown).unwrap();
        assert_eq!((meta.ino(), meta.permissions().mode() & 0o777), (inode, 0o600));
        host.remove_etc("hosts").unwrap();
        assert!(!shown.exists());
        host.remove_etc("hosts").unwrap();
        host.write_pod_resolv_conf(b"nameserver 1.1.1.1\n").unwrap();
        fs::remove_dir_all(&directory).unwrap();
    }
}
