//! What the configuration says about discovery.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ichor_config::Documents;
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive};
use ichor_ctl::{Configuration, active_input};
use ichor_resource::cluster::DiscoveryConfig;
use ichor_resource::value::IntBytes;

/// The id of the settings.
pub const ID: &str = "cluster";

/// Why discovery cannot be set up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The secret is not what it should be.
    #[error("cluster.secret is not base64 of 32 bytes")]
    Secret,
    /// The endpoint is not a URL.
    #[error("cluster.discovery.registries.service.endpoint: {0:?} is not an http or https URL")]
    Endpoint(String),
}

/// Writes `DiscoveryConfigs/cluster`.
#[derive(Debug, Default)]
pub struct ConfigController;

impl Controller for ConfigController {
    const NAME: &'static str = "cluster.ConfigController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<DiscoveryConfig>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = Configuration::active(ctx)?;
        let config = config.as_deref().filter(|config| config.cluster().is_some());
        let spec = config.map(settings).transpose()?;
        ctx.publish(spec.map(|spec| (ID, spec)))?;
        Ok(())
    }
}

fn settings(config: &Documents) -> Result<DiscoveryConfig, ConfigError> {
    let Some(cluster) = config.cluster().filter(|_| config.discovery_enabled()) else {
        return Ok(DiscoveryConfig::default());
    };
    let registries = cluster.discovery.as_ref().map(|discovery| &discovery.registries);
    let kubernetes = registries.and_then(|registries| registries.kubernetes.disabled).unwrap_or(false);
    let service = registries.map(|registries| &registries.service);
    let mut spec = DiscoveryConfig {
        discovery_enabled: true,
        registry_kubernetes_enabled: !kubernetes,
        registry_service_enabled: !service.and_then(|service| service.disabled).unwrap_or(false),
        ..DiscoveryConfig::default()
    };
    if spec.registry_service_enabled {
        let (endpoint, insecure) = endpoint(service.map_or("", |service| &service.endpoint))?;
        let key = STANDARD.decode(config.cluster_secret()).ok().filter(|key| key.len() == 32);
        spec.service_endpoint = endpoint;
        spec.service_endpoint_insecure = insecure;
        spec.service_encryption_key = IntBytes::from(key.ok_or(ConfigError::Secret)?);
        spec.service_cluster_id = config.cluster_id().to_owned();
    }
    Ok(spec)
}

/// Host and port of a service, and whether to speak without TLS. Empty is the cluster's own service.
fn endpoint(url: &str) -> Result<(String, bool), ConfigError> {
    if url.is_empty() {
        return Ok((String::new(), false));
    }
    let bad = || ConfigError::Endpoint(url.to_owned());
    let (rest, port, insecure) = match url.split_once("://") {
        Some(("https", rest)) => (rest, 443, false),
        Some(("http", rest)) => (rest, 80, true),
        _ => return Err(bad()),
    };
    let host = rest.split('/').next().unwrap_or_default();
    if host.is_empty() {
        return Err(bad());
    }
    // A bracketed IPv6 address has colons of its own.
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    Ok((if has_port { host.to_owned() } else { format!("{host}:{port}") }, insecure))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings_of(discovery: &str) -> Result<DiscoveryConfig, ConfigError> {
        let secret = STANDARD.encode([7; 32]);
        let text = format!(
            "version: v1alpha1\nmachine: {{type: worker}}\ncluster:\n  id: c\n  secret: {secret}\n  discovery: {discovery}\n"
        );
        settings(&Documents::load(text.as_bytes()).unwrap())
    }

    #[test]
    fn without_an_endpoint_the_cluster_serves_itself() {
        let spec = settings_of("{enabled: true, registries: {kubernetes: {disabled: true}}}").unwrap();
        assert!(spec.discovery_enabled && spec.registry_service_enabled && !spec.registry_kubernetes_enabled);
        assert_eq!((spec.service_endpoint.as_str(), spec.service_cluster_id.as_str()), ("", "c"));
    }

    #[test]
    fn endpoints_have_ports() {
        for (url, want) in [
            ("https://d.example/", ("d.example:443", false)),
            ("http://d.example", ("d.example:80", true)),
            ("https://d.example:3000/x", ("d.example:3000", false)),
            ("https://[fd00::1]/", ("[fd00::1]:443", false)),
            ("http://[fd00::1]:90/", ("[fd00::1]:90", true)),
        ] {
            assert_eq!(endpoint(url), Ok((want.0.to_owned(), want.1)), "{url}");
        }
        assert!(endpoint("d.example").unwrap_err().to_string().contains("\"d.example\""));
    }

    #[test]
    fn discovery_that_is_off_tells_nothing() {
        assert_eq!(settings_of("{enabled: false}").unwrap(), DiscoveryConfig::default());
        let off = settings_of("{enabled: true, registries: {service: {disabled: true}}}").unwrap();
        assert!(!off.registry_service_enabled && off.service_cluster_id.is_empty());
    }
}
