//! Rules of the `cluster` section.

use ichor_types::subnet;

use super::{
    Report,
    text::{check_endpoint, is_dns_name},
};
use crate::{
    model::Path,
    v1alpha1::{
        ClusterConfig,
        cluster::{Cni, Discovery},
        control_plane::{ApiServer, Etcd, Resources},
    },
    values::Url,
};

/// Where the discovery service is unless a configuration says otherwise.
const DISCOVERY_ENDPOINT: &str = "https://discovery.talos.dev/";

pub(super) fn check(report: &mut Report<'_>, cluster: Option<&ClusterConfig>, is_control_plane: bool) {
    let path = Path::of("cluster");
    let Some(cluster) = cluster else {
        report.error(&path, "cluster instructions are required");
        return;
    };
    let endpoint_path = Path::of("cluster.controlPlane.endpoint");
    let endpoint = cluster.control_plane.as_ref().and_then(|control_plane| control_plane.endpoint.as_ref());
    let Some(endpoint) = endpoint else {
        report.error(&endpoint_path, "cluster controlplane endpoint is required");
        return;
    };
    if let Err(error) = check_endpoint(&endpoint.to_string()) {
        report.error(&endpoint_path, format!("invalid controlplane endpoint: {error}"));
    }
    if let Some(network) = &cluster.network
        && !network.dns_domain.is_empty()
        && !is_dns_name(&network.dns_domain)
    {
        let message = format!("{:?} is not a valid DNS name", network.dns_domain);
        report.error(&Path::of("cluster.network.dnsDomain"), message);
    }
    if let Some(provider) = &cluster.external_cloud_provider {
        let manifests = Path::of("cluster.externalCloudProvider.manifests");
        if provider.enabled != Some(true) && !provider.manifests.is_empty() {
            report.error(&manifests, "external cloud provider is disabled, but manifests are provided");
        } else {
            for (i, url) in provider.manifests.iter().enumerate() {
                if let Err(error) = check_endpoint(url) {
                    let message = format!("invalid external cloud provider manifest url {url:?}: {error}");
                    report.error(&manifests.index(i), message);
                }
            }
        }
    }
    match &cluster.etcd {
        Some(etcd) if is_control_plane => check_etcd(report, &path.key("etcd"), etcd),
        Some(_) => report.error(&path.key("etcd"), "etcd config is only allowed on control plane machines"),
        None => {}
    }
    if cluster.ca.as_ref().is_some_and(|ca| !ca.key.0.is_empty()) && !is_control_plane {
        let message = "cluster CA key is not allowed on non-controlplane nodes (.cluster.ca)";
        report.error(&Path::of("cluster.ca.key"), message);
    }
    check_inline_manifests(report, cluster);
    if let Some(discovery) = &cluster.discovery {
        check_discovery(report, cluster, discovery);
    }
    if let Some(server) = &cluster.api_server {
        check_api_server(report, server);
    }
    let components = [
        (
            "controllerManager",
            "controller-manager",
            cluster.controller_manager.as_ref().map(|c| &c.resources),
        ),
        ("scheduler", "scheduler", cluster.scheduler.as_ref().map(|c| &c.resources)),
    ];
    for (key, name, resources) in components {
        check_resources(report, &path.key(key).key("resources"), name, resources.and_then(Option::as_ref));
    }
}

fn check_etcd(report: &mut Report<'_>, path: &Path, etcd: &Etcd) {
    if etcd.ca.is_none() {
        report.error(&path.key("ca"), "key/cert combination should not be empty");
    }
    if !etcd.subnet.is_empty() && !etcd.advertised_subnets.is_empty() {
        report.error(&path.key("subnet"), "etcd subnet can't be set when advertised subnets are set");
    }
    let lists = [
        ("advertisedSubnets", "advertised", &etcd.advertised_subnets),
        ("listenSubnets", "listen", &etcd.listen_subnets),
    ];
    for (key, name, list) in lists {
        for (i, text) in list.iter().enumerate() {
            if !subnet::is_valid_filter(text) {
                let text = text.strip_prefix('!').unwrap_or(text);
                report.error(&path.key(key).index(i), format!("etcd {name} subnet is not valid: {text:?}"));
            }
        }
    }
}

fn check_inline_manifests(report: &mut Report<'_>, cluster: &ClusterConfig) {
    let path = Path::of("cluster.inlineManifests");
    for (i, manifest) in cluster.inline_manifests.iter().enumerate() {
        let at = path.index(i).key("name");
        if manifest.name.trim().is_empty() {
            report.error(&at, "inline manifest name can't be empty");
        }
        if cluster.inline_manifests[..i].iter().any(|earlier| earlier.name == manifest.name) {
            report.error(&at, format!("inline manifest name {:?} is duplicate", manifest.name));
        }
    }
}

fn check_discovery(report: &mut Report<'_>, cluster: &ClusterConfig, discovery: &Discovery) {
    let service = &discovery.registries.service;
    if discovery.enabled != Some(true) || service.disabled == Some(true) {
        return;
    }
    let path = Path::of("cluster.discovery.registries.service.endpoint");
    let endpoint = if service.endpoint.is_empty() { DISCOVERY_ENDPOINT } else { &service.endpoint };
    match Url::parse(endpoint) {
        Err(error) => {
            report.error(&path, format!("cluster discovery service registry endpoint is invalid: {error}"));
        }
        Ok(url) if url.scheme.is_empty() && !url.path.starts_with('/') => {
            let message = format!("parse {endpoint:?}: invalid URI for request");
            report.error(&path, format!("cluster discovery service registry endpoint is invalid: {message}"));
        }
        Ok(url) if !matches!(url.path.as_str(), "" | "/") => {
            report.error(&path, "cluster discovery service path should be empty");
        }
        Ok(_) => {}
    }
    for (key, value) in [("id", &cluster.id), ("secret", &cluster.secret)] {
        if value.is_empty() {
            let message = format!("cluster discovery service requires .cluster.{key}");
            report.error(&Path::of("cluster").key(key), message);
        }
    }
}

fn check_api_server(report: &mut Report<'_>, server: &ApiServer) {
    let path = Path::of("cluster.apiServer");
    if server.authorization_config.is_present() {
        for (key, _) in server.extra_args.iter() {
            let message = if key == "authorization-mode" {
                "authorization-mode cannot be used in conjunction with AuthorizationConfig, use eitherr \
                 AuthorizationConfig or authorization-mode"
            } else if key.starts_with("authorization-webhook-") {
                "authorization-webhook-* flags cannot be used in conjunction with AuthorizationConfig, use \
                 either AuthorizationConfig or authorization-webhook-* flags"
            } else {
                continue;
            };
            report.error(&path.key("extraArgs").key(key), message);
        }
    }
    for (i, authorizer) in server.authorization_config.iter().enumerate() {
        let types = ["Node", "RBAC", "Webhook"];
        let (key, message) = if authorizer.authorizer_type.is_empty() {
            ("type", "authorizer type must be set".to_owned())
        } else if authorizer.name.is_empty() {
            ("name", "authorizer name must be set".to_owned())
        } else if !types.contains(&authorizer.authorizer_type.as_str()) {
            let kind = &authorizer.authorizer_type;
            (
                "type",
                format!("authorizer type {kind} is not allowed, allowed types are [{}]", types.join(" ")),
            )
        } else {
            continue;
        };
        let at = path.key("authorizationConfig").index(i).key(key);
        report.error(&at, format!("apiserver authorization config validation failed: {message}"));
    }
    check_resources(report, &path.key("resources"), "apiserver", server.resources.as_ref());
}

fn check_resources(report: &mut Report<'_>, path: &Path, component: &str, resources: Option<&Resources>) {
    let Some(resources) = resources else { return };
    for (key, list) in [("requests", &resources.requests), ("limits", &resources.limits)] {
        for (name, _) in list.entries().filter(|(name, _)| !matches!(name.as_str(), "cpu" | "memory")) {
            let message =
                format!("{component} resource validation failed: unsupported pod resource {name:?}");
            report.error(&path.key(key).key(name), message);
        }
    }
}

/// Rules of the network plugin, for control plane machines.
pub(super) fn check_cni(report: &mut Report<'_>, cni: Option<&Cni>) {
    let path = Path::of("cluster.network.cni");
    let Some(cni) = cni else { return };
    let flannel_args = cni.flannel.as_ref().is_some_and(|flannel| !flannel.extra_args.is_empty());
    let name = cni.name.as_str();
    match name {
        "flannel" | "none" if !cni.urls.is_empty() => {
            report.error(&path.key("urls"), format!("\"urls\" field should be empty for {name:?} CNI"));
        }
        "custom" if cni.urls.is_empty() => {
            report.warn(&path.key("urls"), format!("\"urls\" field should not be empty for {name:?} CNI"));
        }
        "flannel" | "none" | "custom" => {}
        _ => {
            let message = "cni name should be one of [\"flannel\", \"custom\", \"none\"]";
            let help = crate::suggest::did_you_mean(name, ["flannel", "custom", "none"].into_iter());
            report.error_with_help(&path.key("name"), message, help);
            return;
        }
    }
    if name != "flannel" && flannel_args {
        let message = format!("\"flanneldExtraArgs\" field should be empty for {name:?} CNI");
        report.error(&path.key("flannel"), message);
    }
    if name == "custom" {
        for (i, url) in cni.urls.iter().enumerate() {
            if let Err(error) = check_endpoint(url) {
                report.error(&path.key("urls").index(i), error);
            }
        }
    }
}
