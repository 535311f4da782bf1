//! Machine configurations made on the node. Deprecated, and still asked for by older tools.

use std::time::Instant;

use jiff::Timestamp;
use tonic::{Response, Status};

use ichor_config::CommentMode;
use ichor_config::generate::{Input, Options, Secrets};
use ichor_config::model::{KeyedList, List};
use ichor_config::v1alpha1::cluster::Cni;
use ichor_config::v1alpha1::network::{Device, DhcpOptions, NetworkConfig, Route};
use ichor_ctl::Configuration;
use ichor_ctl_config::ConfigStore;
use ichor_types::{MachineType, VersionContract};
use ichor_wire::machine;

use super::machine::ApiMode;
use super::ration::Ration;
use super::reply::{blocking, chain};

/// The release such configurations are for.
const CONTRACT: VersionContract = VersionContract::new(1, 11);

/// Makes a configuration, with the secrets of this node or, while it has none, with new ones.
pub async fn generate_configuration(
    config: &ConfigStore,
    mode: ApiMode,
    keys: &Ration,
    request: machine::GenerateConfigurationRequest,
) -> Result<Response<machine::GenerateConfigurationResponse>, Status> {
    let invalid = || Status::unknown("invalid generate request");
    let machine = request.machine_config.ok_or_else(invalid)?;
    let cluster = request.cluster_config.ok_or_else(invalid)?;
    let endpoint = cluster.control_plane.as_ref().ok_or_else(invalid)?.endpoint.clone();
    if request.config_version != "v1alpha1" {
        return Err(Status::unknown(format!("unsupported config version {}", request.config_version)));
    }
    let machine_type = machine_type(machine.r#type());
    let active = match config.active() {
        Some(config) => Some(Configuration::of(&config).map_err(|error| Status::unknown(chain(&error)))?),
        None => None,
    };
    match mode {
        ApiMode::Maintenance if machine_type == MachineType::Worker => {
            return Err(Status::unknown("join config can't be generated in the maintenance mode"));
        }
        ApiMode::Configured
            if active.as_ref().is_some_and(|active| active.machine_type() == MachineType::Worker) =>
        {
            return Err(Status::unknown("config can't be generated on worker nodes"));
        }
        ApiMode::Maintenance | ApiMode::Configured => {}
    }
    let now = match request.override_time {
        Some(at) => Timestamp::new(at.seconds, at.nanos)
            .map_err(|error| Status::invalid_argument(format!("override_time: {error}")))?,
        None => Timestamp::now(),
    };
    let options = options(&machine, &cluster, &endpoint)?;
    let version = machine.kubernetes_version.trim_start_matches('v').to_owned();
    let known = active.as_ref().and_then(|active| Secrets::from_config(active));
    // New keys take seconds of a core, an RSA key among them, and in maintenance mode anybody may ask for them.
    let granted = known.is_none().then(|| keys.take(Instant::now())).transpose()?;
    let message = blocking(move || {
        let _granted = granted;
        let secrets = match known {
            Some(secrets) => secrets,
            None => Secrets::generate(now, CONTRACT).map_err(|error| Status::internal(chain(&error)))?,
        };
        let input =
            Input { cluster_name: cluster.name, endpoint, kubernetes_version: version, secrets, options };
        let failed = |error: ichor_config::generate::GenerateError| Status::unknown(chain(&error));
        let config = input.config(machine_type).map_err(failed)?.encode(CommentMode::All);
        let talosconfig = input.talosconfig(now).map_err(failed)?.to_yaml();
        Ok::<_, Status>(machine::GenerateConfiguration {
            metadata: None,
            data: vec![config.into_bytes()],
            talosconfig: talosconfig.into_bytes(),
        })
    })
    .await??;
    Ok(Response::new(machine::GenerateConfigurationResponse { messages: vec![message] }))
}

fn machine_type(asked: machine::machine_config::MachineType) -> MachineType {
    use machine::machine_config::MachineType as Wire;
    match asked {
        Wire::TypeUnknown => MachineType::Unknown,
        Wire::TypeInit => MachineType::Init,
        Wire::TypeControlPlane => MachineType::ControlPlane,
        Wire::TypeWorker => MachineType::Worker,
    }
}

fn options(
    machine: &machine::MachineConfig,
    cluster: &machine::ClusterConfig,
    endpoint: &str,
) -> Result<Options, Status> {
    let host = ichor_config::values::Url::parse(endpoint)
        .map_err(|error| Status::unknown(format!("cluster endpoint: {error}")))?
        .hostname()
        .to_owned();
    let install = machine.install_config.clone().unwrap_or_default();
    let network = cluster.cluster_network.clone().unwrap_or_default();
    let mut options = Options {
        contract: CONTRACT,
        install_disk: install.install_disk,
        install_image: install.install_image,
        network: machine.network_config.as_ref().map(network_config).unwrap_or_default(),
        cni: network.cni_config.map(|cni| Cni {
            name: cni.name,
            urls: List((!cni.urls.is_empty()).then_some(cni.urls)),
            ..Cni::default()
        }),
        allow_scheduling_on_control_planes: cluster.allow_scheduling_on_control_planes,
        endpoints: vec![host],
        ..Options::default()
    };
    if !network.dns_domain.is_empty() {
        options.dns_domain = network.dns_domain;
    }
    Ok(options)
}

fn network_config(wire: &machine::NetworkConfig) -> NetworkConfig {
    let device = |wire: &machine::NetworkDeviceConfig| Device {
        interface: wire.interface.clone(),
        cidr: wire.cidr.clone(),
        mtu: wire.mtu.into(),
        dhcp: Some(wire.dhcp),
        ignore: Some(wire.ignore),
        dhcp_options: wire
            .dhcp_options
            .as_ref()
            .map(|options| DhcpOptions { route_metric: options.route_metric, ..DhcpOptions::default() }),
        routes: List((!wire.routes.is_empty()).then(|| {
            wire.routes
                .iter()
                .map(|route| Route {
                    network: route.network.clone(),
                    gateway: route.gateway.clone(),
                    metric: route.metric,
                    ..Route::default()
                })
                .collect()
        })),
        ..Device::default()
    };
    let devices = (!wire.interfaces.is_empty()).then(|| wire.interfaces.iter().map(device).collect());
    NetworkConfig {
        hostname: wire.hostname.clone(),
        interfaces: KeyedList(List(devices)),
        ..NetworkConfig::default()
    }
}
