//! The default network: its objects. Pure.

use ichor_resource::k8s::BootstrapManifestsConfig;
use serde_json::{Value as Json, json};

use crate::manifests::{account, account_binding, rule};

/// The port of the overlay; the one the firewall rules of the system know.
const PORT: u16 = 4789;

/// All objects.
pub fn objects(config: &BootstrapManifestsConfig) -> Vec<Json> {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": { "name": "flannel" },
        "rules": [
            rule(&[""], &["pods"], &["get"]),
            rule(&[""], &["nodes"], &["get", "list", "watch"]),
            rule(&[""], &["nodes/status"], &["patch"]),
        ],
    });
    let files = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "kube-flannel-cfg", "namespace": "kube-system",
            "labels": { "k8s-app": "flannel", "tier": "node" },
        },
        "data": {
            "cni-conf.json": format!("{:#}\n", cni()),
            "net-conf.json": format!("{:#}\n", network(&config.pod_cidrs)),
        },
    });
    vec![role, account_binding("flannel", "flannel", "flannel"), account("flannel"), files, daemons(config)]
}

fn cni() -> Json {
    json!({
        "name": "cbr0",
        "cniVersion": "1.0.0",
        "plugins": [
            { "type": "flannel", "delegate": { "hairpinMode": true, "isDefaultGateway": true } },
            { "type": "portmap", "capabilities": { "portMappings": true } },
        ],
    })
}

/// Which networks pods are in, and how they are joined.
fn network(cidrs: &[String]) -> Json {
    let of = |v6: bool| cidrs.iter().find(|cidr| cidr.contains(':') == v6);
    let mut network = json!({ "Backend": { "Type": "vxlan", "Port": PORT } });
    match of(false) {
        Some(cidr) => network["Network"] = json!(cidr),
        None => network["EnableIPv4"] = json!(false),
    }
    if let Some(cidr) = of(true) {
        network["IPv6Network"] = json!(cidr);
        network["EnableIPv6"] = json!(true);
    }
    network
}

fn daemons(config: &BootstrapManifestsConfig) -> Json {
    let labels = json!({ "k8s-app": "flannel", "tier": "node" });
    let field =
        |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let mut env = vec![
        field("POD_NAME", "metadata.name"),
        field("POD_NAMESPACE", "metadata.namespace"),
        json!({ "name": "EVENT_QUEUE_DEPTH", "value": "5000" }),
        json!({ "name": "CONT_WHEN_CACHE_NOT_READY", "value": "false" }),
    ];
    if !config.flannel_kube_service_host.is_empty() {
        env.push(json!({ "name": "KUBERNETES_SERVICE_HOST", "value": config.flannel_kube_service_host }));
        env.push(json!({ "name": "KUBERNETES_SERVICE_PORT", "value": config.flannel_kube_service_port }));
    }
    let mut args = vec!["--ip-masq".to_owned(), "--kube-subnet-mgr".to_owned()];
    args.extend(config.flannel_extra_args.iter().cloned());
    let mount = |name: &str, path: &str| json!({ "name": name, "mountPath": path });
    let host = |name: &str, path: &str| json!({ "name": name, "hostPath": { "path": path } });
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": { "name": "kube-flannel", "namespace": "kube-system", "labels": labels },
        "spec": {
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{ "matchExpressions": [
                            { "key": "kubernetes.io/os", "operator": "In", "values": ["linux"] },
                        ] }],
                    } } },
                    "priorityClassName": "system-node-critical",
                    "hostNetwork": true,
                    "serviceAccountName": "flannel",
                    "tolerations": [
                        { "effect": "NoSchedule", "operator": "Exists" },
                        { "effect": "NoExecute", "operator": "Exists" },
                    ],
                    "initContainers": [{
                        "name": "install-config",
                        "image": config.flannel_image,
                        "command": ["cp"],
                        "args": ["-f", "/etc/kube-flannel/cni-conf.json", "/etc/cni/net.d/10-flannel.conflist"],
                        "volumeMounts": [mount("cni", "/etc/cni/net.d"), mount("flannel-cfg", "/etc/kube-flannel/")],
                    }],
                    "containers": [{
                        "name": "kube-flannel",
                        "image": config.flannel_image,
                        "command": ["/opt/bin/flanneld"],
                        "args": args,
                        "resources": { "requests": { "cpu": "100m", "memory": "50Mi" } },
                        "securityContext": {
                            "privileged": false, "capabilities": { "add": ["NET_ADMIN", "NET_RAW"] },
                        },
                        "env": env,
                        "volumeMounts": [mount("run", "/run/flannel"), mount("flannel-cfg", "/etc/kube-flannel/")],
                    }],
                    "volumes": [
                        host("run", "/run/flannel"),
                        host("cni", "/etc/cni/net.d"),
                        { "name": "flannel-cfg", "configMap": { "name": "kube-flannel-cfg" } },
                    ],
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_either_family() {
        let cidrs = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            network(&cidrs(&["10.244.0.0/16"])),
            json!({ "Backend": { "Type": "vxlan", "Port": 4789 }, "Network": "10.244.0.0/16" })
        );
        let six = network(&cidrs(&["fd00::/56"]));
        assert_eq!((&six["EnableIPv4"], &six["IPv6Network"]), (&json!(false), &json!("fd00::/56")));
        assert_eq!(network(&cidrs(&["fd00::/56", "10.0.0.0/8"]))["Network"], "10.0.0.0/8");
    }
}
