//! What a new cluster is given: the objects without which no node can join and no pod finds another. Pure.

use ichor_resource::k8s::BootstrapManifestsConfig;
use serde_json::{Value as Json, json};

/// Where a pod finds its service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The token with which kubelets join.
#[derive(Debug, Clone, Copy)]
pub struct Token<'a> {
    /// Its public half.
    pub id: &'a str,
    /// Its secret half.
    pub secret: &'a str,
}

/// All manifests by id, each a list of objects.
pub fn render(config: &BootstrapManifestsConfig, token: Token<'_>) -> Vec<(String, Vec<Json>)> {
    let mut all = vec![
        ("00-kubelet-bootstrapping-token", vec![bootstrap_token(token)]),
        (
            "01-csr-node-bootstrap",
            vec![binding(
                "system-bootstrap-node-bootstrapper",
                "system:node-bootstrapper",
                &["system:bootstrappers:nodes", "system:nodes"],
            )],
        ),
        (
            "01-csr-approver-role-binding",
            vec![binding(
                "system-bootstrap-approve-node-client-csr",
                "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
                &["system:bootstrappers:nodes"],
            )],
        ),
        (
            "01-csr-renewal-role-binding",
            vec![binding(
                "system-bootstrap-node-renewal",
                "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
                &["system:nodes"],
            )],
        ),
        ("11-kube-config-in-cluster", vec![kubeconfig(&config.server)]),
        ("11-talos-node-rbac-template", node_roles()),
    ];
    if config.flannel_enabled {
        all.push(("05-flannel", crate::flannel::objects(config)));
    }
    if config.proxy_enabled {
        all.push(("10-kube-proxy", proxy(config)));
    }
    if config.core_dns_enabled {
        all.push(("11-core-dns", crate::coredns::objects(config)));
        all.push(("11-core-dns-svc", vec![crate::coredns::service(config)]));
    }
    if config.talos_api_service_enabled {
        all.push(("13-talos-service-account-crd", vec![service_account_type()]));
    }
    let mut all: Vec<(String, Vec<Json>)> =
        all.into_iter().map(|(id, objects)| (id.to_owned(), objects)).collect();
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    all
}

fn bootstrap_token(token: Token<'_>) -> Json {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": format!("bootstrap-token-{}", token.id), "namespace": "kube-system" },
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": token.id,
            "token-secret": token.secret,
            "usage-bootstrap-authentication": "true",
            "auth-extra-groups": "system:bootstrappers:nodes",
        },
    })
}

/// Gives a role to groups.
fn binding(name: &str, role: &str, groups: &[&str]) -> Json {
    let group =
        |group: &&str| json!({ "kind": "Group", "name": group, "apiGroup": "rbac.authorization.k8s.io" });
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": { "name": name },
        "subjects": groups.iter().map(group).collect::<Vec<_>>(),
        "roleRef": { "kind": "ClusterRole", "name": role, "apiGroup": "rbac.authorization.k8s.io" },
    })
}

/// Gives a role to a service account of `kube-system`.
pub(crate) fn account_binding(name: &str, role: &str, account: &str) -> Json {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": { "name": name },
        "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": "kube-system" }],
        "roleRef": { "kind": "ClusterRole", "name": role, "apiGroup": "rbac.authorization.k8s.io" },
    })
}

/// A service account in `kube-system`.
pub(crate) fn account(name: &str) -> Json {
    json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name, "namespace": "kube-system" } })
}

/// A rule of a role.
pub(crate) fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> Json {
    json!({ "apiGroups": groups, "resources": resources, "verbs": verbs })
}

/// What pods of the host network use to find the API.
fn kubeconfig(server: &str) -> Json {
    let content = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "local",
            "cluster": { "server": server, "certificate-authority": format!("{ACCOUNT}/ca.crt") },
        }],
        "users": [{ "name": "service-account", "user": { "tokenFile": format!("{ACCOUNT}/token") } }],
        "contexts": [{ "name": "local", "context": { "cluster": "local", "user": "service-account" } }],
        "current-context": "local",
    });
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": "kubeconfig-in-cluster", "namespace": "kube-system" },
        "data": { "kubeconfig": format!("{content:#}\n") },
    })
}

/// Nodes may look for the addresses of the API.
fn node_roles() -> Vec<Json> {
    let labels = json!({ "kubernetes.io/bootstrapping": "rbac-defaults" });
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": { "name": "system:talos-nodes", "labels": labels },
        "rules": [rule(&["discovery.k8s.io"], &["endpointslices"], &["get", "list", "watch"])],
    });
    let mut bound = binding("system:talos-nodes", "system:talos-nodes", &["system:nodes"]);
    bound["metadata"]["labels"] = labels;
    vec![role, bound]
}

fn proxy(config: &BootstrapManifestsConfig) -> Vec<Json> {
    let mut command = vec!["/usr/local/bin/kube-proxy".to_owned()];
    command.extend(config.proxy_args.iter().cloned());
    let labels = json!({ "tier": "node", "k8s-app": "kube-proxy" });
    let field =
        |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let set = json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": { "name": "kube-proxy", "namespace": "kube-system", "labels": labels },
        "spec": {
            "selector": { "matchLabels": labels },
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 1 } },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "priorityClassName": "system-cluster-critical",
                    "hostNetwork": true,
                    "serviceAccountName": "kube-proxy",
                    "tolerations": [
                        { "effect": "NoSchedule", "operator": "Exists" },
                        { "effect": "NoExecute", "operator": "Exists" },
                    ],
                    "containers": [{
                        "name": "kube-proxy",
                        "image": config.proxy_image,
                        "command": command,
                        "env": [field("NODE_NAME", "spec.nodeName"), field("POD_IP", "status.podIP")],
                        "securityContext": { "privileged": true },
                        "volumeMounts": [
                            { "name": "lib-modules", "mountPath": "/lib/modules", "readOnly": true },
                            { "name": "ssl-certs-host", "mountPath": "/etc/ssl/certs", "readOnly": true },
                            { "name": "kubeconfig", "mountPath": "/etc/kubernetes", "readOnly": true },
                        ],
                    }],
                    "volumes": [
                        { "name": "lib-modules", "hostPath": { "path": "/usr/lib/modules" } },
                        { "name": "ssl-certs-host", "hostPath": { "path": "/etc/ssl/certs" } },
                        { "name": "kubeconfig", "configMap": { "name": "kubeconfig-in-cluster" } },
                    ],
                },
            },
        },
    });
    vec![set, account("kube-proxy"), account_binding("kube-proxy", "system:node-proxier", "kube-proxy")]
}

/// The type with which pods ask for access to the machine API.
fn service_account_type() -> Json {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": "serviceaccounts.talos.dev" },
        "spec": {
            "group": "talos.dev",
            "scope": "Namespaced",
            "names": {
                "kind": "ServiceAccount", "listKind": "ServiceAccountList", "plural": "serviceaccounts",
                "singular": "serviceaccount", "shortNames": ["tsa"],
            },
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "properties": {
                        "spec": {
                            "type": "object",
                            "properties": { "roles": { "type": "array", "items": { "type": "string" } } },
                        },
                        "status": { "type": "object", "properties": { "failureReason": { "type": "string" } } },
                    },
                } },
            }],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn config() -> BootstrapManifestsConfig {
        BootstrapManifestsConfig {
            server: "https://127.0.0.1:7445".into(),
            cluster_domain: "cluster.local".into(),
            pod_cidrs: vec!["10.244.0.0/16".into()],
            proxy_enabled: true,
            proxy_image: "proxy:v1.35.0".into(),
            proxy_args: vec!["--proxy-mode=nftables".into()],
            core_dns_enabled: true,
            core_dns_image: "dns:v1".into(),
            dns_service_ip: "10.96.0.10".into(),
            flannel_enabled: true,
            flannel_image: "flannel:v1".into(),
            flannel_kube_service_host: "127.0.0.1".into(),
            flannel_kube_service_port: "7445".into(),
            ..Default::default()
        }
    }

    const TOKEN: Token<'_> = Token { id: "abcdef", secret: "0123456789abcdef" };

    fn ids(config: &BootstrapManifestsConfig) -> Vec<String> {
        render(config, TOKEN).into_iter().map(|(id, _)| id).collect()
    }

    #[test]
    fn a_cluster_is_given_what_the_configuration_leaves_on() {
        assert_eq!(
            ids(&config()),
            [
                "00-kubelet-bootstrapping-token",
                "01-csr-approver-role-binding",
                "01-csr-node-bootstrap",
                "01-csr-renewal-role-binding",
                "05-flannel",
                "10-kube-proxy",
                "11-core-dns",
                "11-core-dns-svc",
                "11-kube-config-in-cluster",
                "11-talos-node-rbac-template"
            ]
        );
        let bare = BootstrapManifestsConfig {
            proxy_enabled: false,
            core_dns_enabled: false,
            flannel_enabled: false,
            talos_api_service_enabled: true,
            ..config()
        };
        let ids = ids(&bare);
        assert!(ids.contains(&"13-talos-service-account-crd".to_owned()));
        assert!(!ids.iter().any(|id| id.contains("flannel") || id.contains("dns") || id.contains("proxy")));
    }

    #[test]
    fn every_object_names_its_kind_and_itself() {
        for (id, objects) in render(&config(), TOKEN) {
            for object in objects {
                let text = |path: &str| {
                    object.pointer(path).and_then(Json::as_str).is_some_and(|text| !text.is_empty())
                };
                assert!(text("/apiVersion") && text("/kind") && text("/metadata/name"), "{id}: {object}");
            }
        }
    }

    #[test]
    fn the_token_is_the_one_kubelets_have() {
        let (_, objects) = &render(&config(), TOKEN)[0];
        assert_eq!(objects[0]["metadata"]["name"], "bootstrap-token-abcdef");
        assert_eq!(objects[0]["stringData"]["token-secret"], "0123456789abcdef");
    }

    #[test]
    fn pods_reach_the_api_through_the_local_balancer() {
        let manifests = render(&config(), TOKEN);
        let (_, objects) = manifests.iter().find(|(id, _)| id == "11-kube-config-in-cluster").unwrap();
        let kubeconfig: Json =
            serde_json::from_str(objects[0]["data"]["kubeconfig"].as_str().unwrap()).unwrap();
        assert_eq!(kubeconfig["clusters"][0]["cluster"]["server"], "https://127.0.0.1:7445");
    }
}
