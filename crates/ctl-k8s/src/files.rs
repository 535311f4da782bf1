//! Configuration files of the control plane. Pure: settings in, text out.

use ichor_resource::k8s::{AdmissionControlConfig, AuditPolicyConfig, AuthorizationConfig, SchedulerConfig};
use serde_json::{Map, Value as Json, json};

use crate::images;

/// A file of the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// The component it is for.
    pub component: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Its text: JSON, which is YAML.
    pub text: String,
}

/// All files, from the settings.
pub fn render(
    admission: &AdmissionControlConfig,
    audit: &AuditPolicyConfig,
    authorization: &AuthorizationConfig,
    scheduler: &SchedulerConfig,
) -> Vec<File> {
    let file = |component, name, content: Json| File { component, name, text: format!("{content:#}\n") };
    let api = "kube-apiserver";
    vec![
        file(api, "admission-control-config.yaml", admission_file(admission)),
        file(api, "auditpolicy.yaml", Json::Object(audit.config.0.clone())),
        file(api, "authorization-config.yaml", authorization_file(authorization)),
        file("kube-scheduler", "scheduler-config.yaml", scheduler_file(scheduler)),
    ]
}

/// The version of the files that the API server reads, a number made of what is in them: settings they do not show,
/// such as images, and files of others are no reason for it to start anew.
pub fn version(files: &[File]) -> String {
    let own = files.iter().filter(|file| file.component == "kube-apiserver");
    let all: String = own.map(|file| file.text.as_str()).collect();
    let sum = ichor_pki::sha256(all.as_bytes());
    sum.iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte)).to_string()
}

fn admission_file(admission: &AdmissionControlConfig) -> Json {
    let plugins: Vec<Json> = admission
        .config
        .iter()
        .map(|plugin| json!({ "name": plugin.name, "path": "", "configuration": plugin.configuration.0 }))
        .collect();
    json!({ "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": plugins })
}

fn authorization_file(authorization: &AuthorizationConfig) -> Json {
    let version = if images::version(&authorization.image) >= (1, 30) { "v1beta1" } else { "v1alpha1" };
    let authorizer = |authorizer: &ichor_resource::k8s::AuthorizationAuthorizersSpec| {
        let mut out = json!({ "type": authorizer.r#type, "name": authorizer.name });
        if !authorizer.webhook.0.is_empty() {
            out["webhook"] = Json::Object(authorizer.webhook.0.clone());
        }
        out
    };
    json!({
        "apiVersion": format!("apiserver.config.k8s.io/{version}"),
        "kind": "AuthorizationConfiguration",
        "authorizers": authorization.config.iter().map(authorizer).collect::<Vec<_>>(),
    })
}

fn scheduler_file(scheduler: &SchedulerConfig) -> Json {
    let mut file: Map<String, Json> = scheduler.config.0.clone();
    file.insert("apiVersion".into(), "kubescheduler.config.k8s.io/v1".into());
    file.insert("kind".into(), "KubeSchedulerConfiguration".into());
    let connection = file.entry("clientConnection").or_insert_with(|| json!({}));
    if !connection.is_object() {
        *connection = json!({});
    }
    connection["kubeconfig"] = "/system/secrets/kubernetes/kube-scheduler/kubeconfig".into();
    Json::Object(file)
}

/// How the API server encrypts secrets at rest: the newer key first, plain text readable last.
pub fn encryption(secretbox: &str, aescbc: &str) -> String {
    let key = |provider: &str, name: &str, secret: &str| {
        (!secret.is_empty()).then(|| json!({ provider: { "keys": [{ "name": name, "secret": secret }] } }))
    };
    let mut providers: Vec<Json> = key("secretbox", "key2", secretbox).into_iter().collect();
    providers.extend(key("aescbc", "key1", aescbc));
    providers.push(json!({ "identity": {} }));
    let content = json!({
        "apiVersion": "v1",
        "kind": "EncryptionConfig",
        "resources": [{ "resources": ["secrets"], "providers": providers }],
    });
    format!("{content:#}\n")
}

#[cfg(test)]
mod tests {
    use ichor_resource::k8s::AuthorizationAuthorizersSpec;
    use ichor_resource::value::Object;

    use super::*;

    #[test]
    fn files_say_what_the_settings_say() {
        let node =
            AuthorizationAuthorizersSpec { r#type: "Node".into(), name: "node".into(), ..Default::default() };
        let authorization =
            AuthorizationConfig { image: images::kubernetes("kube-apiserver"), config: vec![node] };
        let Json::Object(scheduler) = json!({ "profiles": [], "clientConnection": { "qps": 5 } }) else {
            unreachable!()
        };
        let scheduler = SchedulerConfig { config: Object(scheduler), ..Default::default() };
        let files = render(&Default::default(), &Default::default(), &authorization, &scheduler);
        let read = |name: &str| -> Json {
            serde_json::from_str(&files.iter().find(|file| file.name == name).unwrap().text).unwrap()
        };
        assert_eq!(read("authorization-config.yaml")["apiVersion"], "apiserver.config.k8s.io/v1beta1");
        assert_eq!(
            read("authorization-config.yaml")["authorizers"],
            json!([{ "type": "Node", "name": "node" }])
        );
        let scheduler = read("scheduler-config.yaml");
        assert_eq!(scheduler["clientConnection"]["qps"], 5);
        assert!(scheduler["clientConnection"]["kubeconfig"].as_str().unwrap().ends_with("/kubeconfig"));
        assert_eq!(read("admission-control-config.yaml")["plugins"], json!([]));
    }

    #[test]
    fn the_newer_key_encrypts_and_the_older_still_reads() {
        let both: Json = serde_json::from_str(&encryption("new", "old")).unwrap();
        let providers = &both["resources"][0]["providers"];
        assert_eq!(providers[0]["secretbox"]["keys"][0], json!({ "name": "key2", "secret": "new" }));
        assert_eq!(providers[1]["aescbc"]["keys"][0]["name"], "key1");
        assert_eq!(providers[2], json!({ "identity": {} }));
        let none: Json = serde_json::from_str(&encryption("", "")).unwrap();
        assert_eq!(none["resources"][0]["providers"], json!([{ "identity": {} }]));
    }
}
