//! Controllers of links, addresses, routes, host name, resolvers and their status.
//!
//! Sources write what they want into `network-config`, each in its layer; merge controllers fold the layers
//! into `network`; appliers make the kernel so; statuses show what the kernel has. [`register`] adds the
//! whole family to a runtime.

pub mod alias;
pub mod apply;
pub mod documents;
pub mod etc;
pub mod ethernet;
pub mod firewall;
mod gate;
pub mod host_dns;
mod ids;
mod link_name;
pub mod merge;
pub mod nocloud;
mod operators;
pub mod platform_yaml;
pub mod ports;
pub mod rendering;
pub mod settings;
pub mod source;
pub mod status;
pub mod system;
mod trouble;

use std::sync::Arc;

use ichor_cosi::{RegisterError, Runtime};
use ichor_net::NetError;
use ichor_net::cmdline::NetworkArgs;
use ichor_net::dns::Forwarder;
use ichor_resource::network::{
    AddressSpec, HostnameSpec, LinkSpec, OperatorSpec, ResolverSpec, RouteSpec, TimeServerSpec,
};
use ichor_types::Cmdline;

pub use gate::DevicesGate;
use merge::MergeController;
use ports::{Dhcp, Host, Kernel};
use source::cmdline::CmdlineSource;
use status::event::OnAddresses;
use system::{SystemDhcp, SystemHost, SystemKernel};

/// Where leases survive a crash of this program, and no reboot.
const LEASES: &str = "/system/run/dhcp";

/// Everything the family touches outside of the state.
pub struct Ports<K, H, D> {
    /// The kernel's network.
    pub kernel: K,
    /// The machine's name and files.
    pub host: H,
    /// DHCP clients.
    pub dhcp: D,
    /// What the kernel command line says about the network.
    pub cmdline: NetworkArgs,
    /// Whether links wait for the device manager.
    pub devices: DevicesGate,
    /// The platform's name.
    pub platform: String,
    /// Reads what the platform has for this machine, where that is a platform with files.
    pub seed: Option<nocloud::ReadSeed>,
    /// Told when the node's name or addresses change.
    pub on_addresses: Option<OnAddresses>,
    /// Seed of what must differ between machines but need not be secret.
    pub random: u64,
}

impl Ports<SystemKernel, SystemHost, SystemDhcp> {
    /// The real ones, for the network namespace of the calling thread and the given kernel command line.
    ///
    /// Network arguments that do not parse are left out as a whole, and told in the log.
    pub fn system(cmdline: &Cmdline) -> Result<Self, NetError> {
        let args = NetworkArgs::parse(cmdline).unwrap_or_else(|error| {
            tracing::error!(%error, "network arguments of the kernel command line are ignored");
            NetworkArgs::default()
        });
        let mut seed = [0; 8];
        if rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::NONBLOCK).is_err() {
            seed = u64::from(std::process::id()).to_ne_bytes();
        }
        Ok(Self {
            kernel: SystemKernel::open()?,
            host: SystemHost::default(),
            dhcp: SystemDhcp::keeping(LEASES.into()),
            cmdline: args,
            devices: DevicesGate::WAIT,
            platform: cmdline.first("talos.platform").unwrap_or_default().to_owned(),
            seed: None,
            on_addresses: None,
            random: u64::from_ne_bytes(seed),
        })
    }
}

impl<K, H, D> Ports<K, H, D> {
    /// Lets the platform's files be read by `read`.
    pub fn with_seed(mut self, read: nocloud::ReadSeed) -> Self {
        self.seed = Some(read);
        self
    }

    /// Tells `listener` the host name and addresses of this node, now and whenever they change.
    pub fn on_addresses(mut self, listener: impl Fn(&str, &[String]) + Send + Sync + 'static) -> Self {
        self.on_addresses = Some(Arc::new(listener));
        self
    }
}

/// Adds all controllers of the family to a runtime.
pub fn register<K: Kernel, H: Host, D: Dhcp>(
    runtime: &Runtime,
    ports: Ports<K, H, D>,
) -> Result<(), RegisterError> {
    let Ports { kernel, host, dhcp, cmdline, devices, platform, seed, on_addresses, random } = ports;
    let cmdline = CmdlineSource::new(cmdline);

    runtime.register(status::link::LinkStatusController::new(kernel.clone(), devices))?;
    runtime.register(status::address::AddressStatusController { kernel: kernel.clone() })?;
    runtime.register(status::route::RouteStatusController { kernel: kernel.clone() })?;
    runtime.register(status::link::HardwareAddrController)?;
    runtime.register(status::node_address::NodeAddressController)?;
    runtime.register(status::node_address::NodeAddressSortAlgorithmController)?;
    runtime.register(status::node_address::AddressFilterController)?;
    runtime.register(status::network::StatusController)?;
    runtime.register(status::probe::ProbeController::default())?;
    if let Some(on_addresses) = on_addresses {
        runtime.register(status::event::AddressEventController::new(on_addresses))?;
    }

    runtime.register(documents::devices::DeviceConfigController)?;
    runtime.register(source::link::LinkConfigController { cmdline: cmdline.clone() })?;
    runtime.register(source::address::AddressConfigController { cmdline: cmdline.clone() })?;
    runtime.register(source::route::RouteConfigController { cmdline: cmdline.clone() })?;
    runtime.register(source::operator::OperatorConfigController { cmdline: cmdline.clone() })?;
    runtime.register(source::hostname::HostnameConfigController { cmdline: cmdline.clone() })?;
    runtime.register(source::resolver::ResolverConfigController { cmdline: cmdline.clone() })?;
    runtime.register(source::vip::OperatorVIPConfigController { cmdline: cmdline.clone() })?;
    runtime.register(source::time_server::TimeServerConfigController { cmdline })?;
    runtime.register(firewall::NfTablesChainConfigController)?;
    runtime.register(firewall::NfTablesChainController::new(kernel.clone()))?;
    runtime.register(alias::LinkAliasConfigController)?;
    runtime.register(alias::LinkAliasSpecController::new(kernel.clone(), devices))?;
    runtime.register(ethernet::EthernetConfigController)?;
    runtime.register(ethernet::EthernetSpecController::new(kernel.clone(), devices))?;
    runtime.register(ethernet::EthernetStatusController::new(kernel.clone(), devices))?;
    runtime.register(source::platform::PlatformConfigController::new(&platform, seed))?;
    runtime.register(source::platform::PlatformConfigApplyController)?;
    runtime.register(source::platform::PlatformConfigLoadController { host: host.clone() })?;
    runtime.register(source::platform::PlatformConfigStoreController { host: host.clone() })?;

    runtime.register(MergeController::<AddressSpec>::new())?;
    runtime.register(MergeController::<HostnameSpec>::new())?;
    runtime.register(MergeController::<LinkSpec>::new())?;
    runtime.register(MergeController::<OperatorSpec>::new())?;
    runtime.register(MergeController::<ResolverSpec>::new())?;
    runtime.register(MergeController::<RouteSpec>::new())?;
    runtime.register(MergeController::<TimeServerSpec>::new())?;

    runtime.register(apply::link::LinkSpecController::new(kernel.clone(), devices))?;
    runtime.register(apply::address::AddressSpecController::new(kernel.clone()))?;
    runtime.register(apply::route::RouteSpecController::new(kernel))?;
    runtime.register(apply::host::HostnameSpecController { host: host.clone() })?;
    runtime.register(apply::host::ResolverSpecController)?;
    runtime.register(apply::host::TimeServerSpecController)?;
    runtime.register(apply::operator::OperatorSpecController::new(dhcp, random, &platform))?;
    let forwarder = Arc::new(Forwarder::default());
    runtime.register(host_dns::HostDNSConfigController)?;
    runtime.register(host_dns::DNSUpstreamController::new(forwarder.clone()))?;
    runtime.register(host_dns::DNSResolveCacheController::new(forwarder))?;
    runtime.register(etc::EtcFileController { host: host.clone() })?;
    runtime.register(etc::FileWriter { host })?;
    Ok(())
}
