//! What the controllers touch outside of the state, as small traits.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ichor_cosi::Wake;
use ichor_net::NetError;
use ichor_net::address::Address;
use ichor_net::link::ethtool::{self, Driver, Ethernet, Mode};
use ichor_net::link::{Bridge, Link, Vlan};
use ichor_net::nftables::Chain;
use ichor_net::route::Route;
use ichor_net::watch::Topics;
use ichor_net::{dhcp4, dhcp6};

/// The kernel's network configuration.
pub trait Kernel: Clone + Send + Sync + 'static {
    /// All links.
    fn links(&self) -> impl Future<Output = Result<Vec<Link>, NetError>> + Send;

    /// All addresses.
    fn addresses(&self) -> impl Future<Output = Result<Vec<Address>, NetError>> + Send;

    /// All routes.
    fn routes(&self) -> impl Future<Output = Result<Vec<Route>, NetError>> + Send;

    /// What drivers say about a link.
    fn hardware(&self, link: &str) -> LinkHardware;

    /// What the driver of an ethernet link says about its settings.
    fn ethernet(&self, link: &str) -> io::Result<Ethernet>;

    /// Changes settings of an ethernet link.
    fn change_ethernet(&self, link: &str, change: &ethtool::Change) -> io::Result<()>;

    /// Changes a link.
    fn change_link(
        &self,
        name: &str,
        change: &LinkChange,
    ) -> impl Future<Output = Result<(), NetError>> + Send;

    /// Assigns an address.
    fn add_address(&self, link: &str, address: &Address)
    -> impl Future<Output = Result<(), NetError>> + Send;

    /// Takes an address away.
    fn remove_address(
        &self,
        link: &str,
        address: &Address,
    ) -> impl Future<Output = Result<(), NetError>> + Send;

    /// Tells the neighbours of an IPv4 address.
    fn announce(&self, link: &Link, address: std::net::Ipv4Addr) -> io::Result<()>;

    /// Asks the neighbours whether one of them has an IPv4 address; bounded.
    fn probe(
        &self,
        link: &Link,
        address: std::net::Ipv4Addr,
    ) -> impl Future<Output = io::Result<Option<[u8; 6]>>> + Send;

    /// Replaces a table of the packet filter by one with these chains.
    fn filter(&self, table: &str, chains: &[Chain]) -> Result<(), NetError>;

    /// Installs a route.
    fn add_route(&self, route: &Route) -> impl Future<Output = Result<(), NetError>> + Send;

    /// Removes a route.
    fn remove_route(&self, route: &Route) -> impl Future<Output = Result<(), NetError>> + Send;

    /// Calls `wake` after changes of these kinds, from now on.
    fn watch(&self, topics: Topics, wake: Wake);
}

/// What drivers and the bus say about a link; empty where they say nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkHardware {
    /// The driver.
    pub driver: Option<Driver>,
    /// Speed, duplex, port.
    pub mode: Option<Mode>,
    /// PCI vendor and device numbers.
    pub pci: Option<(u16, u16)>,
}

/// A change of one link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkChange {
    /// Make it.
    Create(NewLink),
    /// Remove it.
    Delete,
    /// Bring it up or down.
    Up(bool),
    /// Set its packet size.
    Mtu(u32),
    /// Set its hardware address.
    HardwareAddr(Vec<u8>),
    /// Set its multicast flag.
    Multicast(bool),
    /// Set its alias, or remove it.
    Alias(String),
    /// Make it a member of another link, or of none.
    Master(Option<String>),
    /// Set what a bridge does.
    Bridge(Bridge),
}

/// A link to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewLink {
    /// A bridge.
    Bridge,
    /// A dummy.
    Dummy,
    /// A VLAN on the named link.
    Vlan(String, Vlan),
}

/// The machine itself.
pub trait Host: Clone + Send + Sync + 'static {
    /// Sets the kernel's host and domain name.
    fn set_hostname(&self, hostname: &str, domain: &str) -> io::Result<()>;

    /// Writes a file that shows under `/etc`.
    fn write_etc(&self, path: &str, contents: &[u8], mode: u32) -> io::Result<()>;

    /// Removes such a file.
    fn remove_etc(&self, path: &str) -> io::Result<()>;

    /// Reads a file of the state directory; `None` when there is none.
    fn read_state(&self, name: &str) -> io::Result<Option<String>>;

    /// Writes a file of the state directory, whole or not at all.
    fn write_state(&self, name: &str, contents: &[u8], mode: u32) -> io::Result<()>;

    /// Writes the `resolv.conf` that pods get.
    fn write_pod_resolv_conf(&self, contents: &[u8]) -> io::Result<()>;
}

/// Runs DHCP clients.
pub trait Dhcp: Clone + Send + Sync + 'static {
    /// Starts a DHCPv4 client that calls `on_event` until the handle is dropped.
    fn start(
        &self,
        link: &str,
        link_index: u32,
        config: dhcp4::Config,
        hostname: tokio::sync::watch::Receiver<dhcp4::client::Hostname>,
        on_event: Arc<dyn Fn(dhcp4::Event) + Send + Sync>,
    ) -> Running;

    /// Starts a DHCPv6 client that calls `on_event` until the handle is dropped.
    fn start6(
        &self,
        link: &str,
        link_index: u32,
        config: dhcp6::Config,
        on_event: Arc<dyn Fn(dhcp6::Event) + Send + Sync>,
    ) -> Running;
}

/// Something that runs until this is dropped.
#[derive(Debug)]
pub struct Running(Option<tokio::task::JoinHandle<()>>);

impl Running {
    /// Owns a task.
    pub fn task(task: tokio::task::JoinHandle<()>) -> Self {
        Self(Some(task))
    }

    /// Owns nothing; for fakes.
    pub fn nothing() -> Self {
        Self(None)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// Lets bursts through and then slows down: changes of a busy network must not keep the node busy.
#[derive(Debug)]
pub(crate) struct Throttle {
    tokens: u32,
    refilled: tokio::time::Instant,
}

impl Throttle {
    /// Changes passed on at once, enough for everything that happens at boot.
    const BURST: u32 = 32;
    /// One more every so often.
    const EVERY: Duration = Duration::from_millis(100);

    pub(crate) fn new() -> Self {
        Self { tokens: Self::BURST, refilled: tokio::time::Instant::now() }
    }

    /// Returns at once while there are tokens.
    pub(crate) async fn pass(&mut self) {
        let now = tokio::time::Instant::now();
        let earned = (now - self.refilled).as_millis() / Self::EVERY.as_millis();
        if let Ok(earned @ 1..) = u32::try_from(earned) {
            self.tokens = self.tokens.saturating_add(earned).min(Self::BURST);
            self.refilled = now;
        }
        match self.tokens.checked_sub(1) {
            Some(left) => self.tokens = left,
            None => tokio::time::sleep(Self::EVERY).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_and_then_ten_a_second() {
        let began = tokio::time::Instant::now();
        let mut throttle = Throttle::new();
        for _ in 0..Throttle::BURST {
            throttle.pass().await;
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        for _ in 0..20 {
            throttle.pass().await;
        }
        assert!(began.elapsed() >= Duration::from_millis(900), "{:?}", began.elapsed());
    }
}
