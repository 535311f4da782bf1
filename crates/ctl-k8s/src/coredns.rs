//! The cluster's DNS: its objects. Pure.

use ichor_resource::k8s::BootstrapManifestsConfig;
use serde_json::{Value as Json, json};

use crate::manifests::{account, account_binding, rule};

/// Everything but the service.
pub fn objects(config: &BootstrapManifestsConfig) -> Vec<Json> {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": { "name": "system:coredns", "labels": { "kubernetes.io/bootstrapping": "rbac-defaults" } },
        "rules": [
            rule(&[""], &["endpoints", "services", "pods", "namespaces"], &["list", "watch"]),
            rule(&["discovery.k8s.io"], &["endpointslices"], &["list", "watch"]),
        ],
    });
    let mut bound = account_binding("system:coredns", "system:coredns", "coredns");
    bound["metadata"]["annotations"] = json!({ "rbac.authorization.kubernetes.io/autoupdate": "true" });
    bound["metadata"]["labels"] = json!({ "kubernetes.io/bootstrapping": "rbac-defaults" });
    let file = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": "coredns", "namespace": "kube-system" },
        "data": { "Corefile": corefile(&config.cluster_domain) },
    });
    vec![account("coredns"), role, bound, file, deployment(config)]
}

fn corefile(domain: &str) -> String {
    format!(
        ".:53 {{
    errors
    health {{
        lameduck 5s
    }}
    ready
    log . {{
        class error
    }}
    prometheus :9153
    kubernetes {domain} in-addr.arpa ip6.arpa {{
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }}
    forward . /etc/resolv.conf {{
        max_concurrent 1000
    }}
    cache 30 {{
        disable success {domain}
        disable denial {domain}
    }}
    loop
    reload
    loadbalance
}}
"
    )
}

fn deployment(config: &BootstrapManifestsConfig) -> Json {
    let labels = json!({ "k8s-app": "kube-dns" });
    let named = json!({ "k8s-app": "kube-dns", "kubernetes.io/name": "CoreDNS" });
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": "coredns", "namespace": "kube-system", "labels": named },
        "spec": {
            "replicas": 2,
            "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 1 } },
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": pod(config) },
        },
    })
}

fn pod(config: &BootstrapManifestsConfig) -> Json {
    let probe = |path: &str, port: u16| json!({ "path": path, "port": port, "scheme": "HTTP" });
    let port = |name: &str, number: u16, protocol: &str| json!({ "name": name, "containerPort": number, "protocol": protocol });
    json!({
        "serviceAccountName": "coredns",
        "priorityClassName": "system-cluster-critical",
        "dnsPolicy": "Default",
        "securityContext": { "seccompProfile": { "type": "RuntimeDefault" } },
        "tolerations": [
            { "key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule" },
            { "key": "node.cloudprovider.kubernetes.io/uninitialized", "operator": "Exists", "effect": "NoSchedule" },
        ],
        "affinity": { "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{
            "weight": 100,
            "podAffinityTerm": {
                "labelSelector": { "matchExpressions": [{ "key": "k8s-app", "operator": "In", "values": ["kube-dns"] }] },
                "topologyKey": "kubernetes.io/hostname",
            },
        }] } },
        "containers": [{
            "name": "coredns",
            "image": config.core_dns_image,
            "args": ["-conf", "/etc/coredns/Corefile"],
            "env": [{ "name": "GOMEMLIMIT", "value": "161MiB" }],
            "resources": { "limits": { "memory": "170Mi" }, "requests": { "cpu": "100m", "memory": "70Mi" } },
            "ports": [port("dns", 53, "UDP"), port("dns-tcp", 53, "TCP"), port("metrics", 9153, "TCP")],
            "livenessProbe": {
                "httpGet": probe("/health", 8080), "initialDelaySeconds": 60, "timeoutSeconds": 5,
                "successThreshold": 1, "failureThreshold": 5,
            },
            // The first probe comes before it is ready; at the default period the next one is ten seconds later.
            "readinessProbe": { "httpGet": probe("/ready", 8181), "periodSeconds": 2 },
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "capabilities": { "add": ["NET_BIND_SERVICE"], "drop": ["ALL"] },
                "readOnlyRootFilesystem": true,
            },
            "volumeMounts": [{ "name": "config-volume", "mountPath": "/etc/coredns", "readOnly": true }],
        }],
        "volumes": [{
            "name": "config-volume",
            "configMap": { "name": "coredns", "items": [{ "key": "Corefile", "path": "Corefile" }] },
        }],
    })
}

/// The service, at the addresses every kubelet knows.
pub fn service(config: &BootstrapManifestsConfig) -> Json {
    let addresses: Vec<&String> = [&config.dns_service_ip, &config.dns_service_ipv6]
        .into_iter()
        .filter(|address| !address.is_empty())
        .collect();
    let families: Vec<&str> =
        addresses.iter().map(|a| if a.contains(':') { "IPv6" } else { "IPv4" }).collect();
    let port = |name: &str, number: u16, protocol: &str| json!({ "name": name, "port": number, "targetPort": number, "protocol": protocol });
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "kube-dns",
            "namespace": "kube-system",
            "annotations": { "prometheus.io/port": "9153", "prometheus.io/scrape": "true" },
            "labels": {
                "k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS",
            },
        },
        "spec": {
            "selector": { "k8s-app": "kube-dns" },
            "clusterIP": addresses.first(),
            "clusterIPs": addresses,
            "ipFamilies": families,
            "ipFamilyPolicy": if families.len() > 1 { "RequireDualStack" } else { "SingleStack" },
            "ports": [port("dns", 53, "UDP"), port("dns-tcp", 53, "TCP"), port("metrics", 9153, "TCP")],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_family_or_both() {
        let mut config =
            BootstrapManifestsConfig { dns_service_ip: "10.96.0.10".into(), ..Default::default() };
        assert_eq!(service(&config)["spec"]["ipFamilyPolicy"], "SingleStack");
        config.dns_service_ipv6 = "fd00::a".into();
        let spec = &service(&config)["spec"];
        assert_eq!(spec["clusterIPs"], json!(["10.96.0.10", "fd00::a"]));
        assert_eq!(spec["ipFamilies"], json!(["IPv4", "IPv6"]));
    }

    #[test]
    fn the_domain_of_the_cluster_is_never_cached() {
        let file = corefile("k8s.example");
        assert!(
            file.contains("kubernetes k8s.example in-addr.arpa")
                && file.contains("disable denial k8s.example")
        );
    }
}
