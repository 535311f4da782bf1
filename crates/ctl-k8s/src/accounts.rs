//! Credentials of the node API for pods: objects `ServiceAccount` of `talos.dev` become secrets with a client
//! configuration, renewed while they are there. One node of the cluster does it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ichor_config::talosconfig::{ClientConfig, Context as ClientContext};
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, weak};
use ichor_kube::{Client, Error, Event, Kind, Patch, Select, Target, Write};
use ichor_pki::{Authority, CertInfo, Leaf, PkiError, RoleSet};
use ichor_resource::kubeaccess::KubernetesAccessConfig;
use ichor_resource::secrets::{KubernetesSecret, OSRootSecret};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tracing::{debug, info, warn};

use crate::api::{Lock, Pace, Ports, Way};
use crate::kube_access::CONFIG;

/// The objects.
const ACCOUNTS: Kind = Kind::known("talos.dev", "v1alpha1", "serviceaccounts", true);
/// Who we are to the cluster.
const MANAGER: &str = "talos-sa-controller";
/// Where pods find the node API.
const ENDPOINT: &str = "talos.default";
/// The key of the secret.
const KEY: &str = "config";
/// The life of a certificate, and when it is renewed.
const LIFETIME: Duration = Duration::from_secs(6 * 60 * 60);
const RENEW: Duration = Duration::from_secs(60 * 60);
/// How often everything is looked at again: certificates age, and secrets are deleted.
const RESYNC: Duration = Duration::from_secs(60);
/// Longest wait between two attempts to lead.
const AGAIN_MAX: Duration = Duration::from_secs(30);

/// What credentials are made of and who may have them.
#[derive(Clone, PartialEq, Eq)]
struct Settings {
    kubeconfig: String,
    crt: Vec<u8>,
    key: Vec<u8>,
    roles: Vec<String>,
    namespaces: Vec<String>,
}

/// Serves the accounts while access is given.
pub struct CrdController {
    ports: Ports,
    running: Option<(Settings, JoinHandle<()>)>,
}

impl CrdController {
    /// A controller that reaches Kubernetes like this.
    pub fn new(ports: Ports) -> Self {
        Self { ports, running: None }
    }

    fn stop(&mut self) {
        if let Some((_, task)) = self.running.take() {
            task.abort();
        }
    }
}

impl Drop for CrdController {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Controller for CrdController {
    const NAME: &'static str = "kubeaccess.CRDController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<KubernetesAccessConfig>().id(CONFIG),
            weak::<KubernetesSecret>().id("k8s-certs"),
            weak::<OSRootSecret>().id("os"),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = ctx.get::<KubernetesAccessConfig>(CONFIG)?.filter(|config| config.enabled);
        let secrets = ctx.get::<KubernetesSecret>("k8s-certs")?;
        let root = ctx.get::<OSRootSecret>("os")?;
        let authority = root.as_ref().and_then(|root| root.issuing_ca.as_ref());
        let (Some(config), Some(secrets), Some(authority)) = (config, secrets, authority) else {
            self.stop();
            return Ok(());
        };
        let settings = Settings {
            kubeconfig: secrets.localhost_admin_kubeconfig.clone(),
            crt: authority.crt.to_vec(),
            key: authority.key.to_vec(),
            roles: config.allowed_api_roles.clone(),
            namespaces: config.allowed_kubernetes_namespaces.clone(),
        };
        if self.running.as_ref().is_some_and(|(known, task)| *known == settings && !task.is_finished()) {
            return Ok(());
        }
        self.stop();
        let client = (self.ports.connect)(Way::Kubeconfig(&settings.kubeconfig))?;
        let task = tokio::spawn(serve(client, settings.clone(), self.ports.accounts.clone()));
        self.running = Some((settings, task));
        Ok(())
    }
}

/// Waits to be the one that serves, and serves.
async fn serve(client: Client, settings: Settings, lock: Lock) {
    let mut pace = Pace::default();
    loop {
        match lock().await {
            Ok(_guard) => {
                let mut led = false;
                let Err(error) = lead(&client, &settings, &mut led).await;
                debug!(error = error.chain(), "accounts of pods are not served");
                if led {
                    pace.reset();
                }
            }
            Err(error) => debug!(error, "no lock for the accounts of pods"),
        }
        tokio::time::sleep(pace.next(AGAIN_MAX)).await;
    }
}

async fn lead(client: &Client, settings: &Settings, led: &mut bool) -> Result<Infallible, Error> {
    let key = |object: &Value| {
        let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
        (text("namespace"), text("name"))
    };
    let mut watch = client.watch(ACCOUNTS, "", Select::default());
    let mut accounts = BTreeMap::new();
    loop {
        let event = match accounts.is_empty() {
            true => Some(watch.next().await?),
            false => tokio::time::timeout(RESYNC, watch.next()).await.ok().transpose()?,
        };
        *led = true;
        let mut due = Vec::new();
        match event {
            Some(Event::Listed(items)) => {
                accounts = items.into_iter().map(|item| (key(&item), item)).collect();
                due.extend(accounts.keys().cloned());
            }
            Some(Event::Changed(item)) => {
                due.push(key(&item));
                accounts.insert(key(&item), item);
            }
            Some(Event::Gone(item)) => drop(accounts.remove(&key(&item))),
            None => due.extend(accounts.keys().cloned()),
        }
        for account in due.iter().filter_map(|key| accounts.get(key)) {
            match sync(client, settings, account).await {
                Err(error) if error.is_of_object() => {
                    warn!(error = error.chain(), "an account of a pod is not served");
                }
                other => other?,
            }
        }
    }
}

/// What to do about an account.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// It is refused: one word, and a sentence.
    Refused(&'static str, String),
    /// Its secret is as it should be.
    Well,
    /// Its secret is made anew, with these roles.
    Issue(RoleSet),
}

/// Judges an account and its secret. Pure.
fn judge(settings: &Settings, account: &Value, secret: Option<&Value>, now: Timestamp) -> Verdict {
    let meta = &account["metadata"];
    let text = |key: &str| meta[key].as_str().unwrap_or_default();
    let (namespace, name) = (text("namespace"), text("name"));
    if let Some(secret) = secret
        && !is_controlled_by(secret, text("uid"))
    {
        let message = format!("Secret already exists and is not managed by controller: {namespace}/{name}");
        return Verdict::Refused("ErrResourceExists", message);
    }
    let Some(roles) = account["spec"]["roles"].as_array() else {
        return Verdict::Refused("ErrRolesNotFound", "Roles not found".to_owned());
    };
    let roles: Vec<&str> = roles.iter().filter_map(Value::as_str).collect();
    if !settings.namespaces.iter().any(|allowed| allowed == namespace) {
        return Verdict::Refused("ErrNamespaceNotAllowed", format!("Namespace is not allowed: {namespace}"));
    }
    let denied: Vec<&str> =
        roles.iter().copied().filter(|role| !settings.roles.iter().any(|allowed| allowed == role)).collect();
    if !denied.is_empty() {
        return Verdict::Refused("ErrRolesNotAllowed", format!("Roles not allowed: [{}]", denied.join(" ")));
    }
    let roles = RoleSet::parse(&roles);
    let well = secret.is_some_and(|secret| is_well(settings, secret, &roles, now).unwrap_or(false));
    if well { Verdict::Well } else { Verdict::Issue(roles) }
}

fn is_controlled_by(object: &Value, uid: &str) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    owners.into_iter().any(|owner| owner["controller"] == true && owner["uid"] == uid)
}

/// Whether a secret holds what it should; nothing when it cannot be read.
fn is_well(settings: &Settings, secret: &Value, roles: &RoleSet, now: Timestamp) -> Option<bool> {
    let config = STANDARD.decode(secret["data"][KEY].as_str()?).ok()?;
    let config = ClientConfig::load(&config).ok()?;
    let context = config.select(None).ok()?;
    let info = CertInfo::parse(context.crt_pem().ok()??).ok()?;
    let left = info.not_after.duration_since(now);
    let left = Duration::try_from(left).ok()?;
    let mut organizations: Vec<&str> = info.organizations.iter().map(String::as_str).collect();
    organizations.sort_unstable();
    let mut wanted: Vec<&str> = roles.iter().collect();
    wanted.sort_unstable();
    Some(
        context.ca_pem().ok()??.as_bytes() == settings.crt
            && context.endpoints.iter().map(String::as_str).eq([ENDPOINT])
            && (RENEW..=LIFETIME).contains(&left)
            && organizations == wanted,
    )
}

/// A client configuration with a new certificate.
fn issue(settings: &Settings, roles: &RoleSet, now: Timestamp) -> Result<String, PkiError> {
    let authority = Authority::from_pem(&settings.crt, &settings.key)?;
    let pair = authority.issue(&Leaf::client("", roles.iter()).with_lifetime(LIFETIME), now)?;
    let ca = String::from_utf8_lossy(&settings.crt);
    let context = ClientContext::new(&[ENDPOINT.to_owned()], &ca, &pair.crt, &pair.key);
    Ok(ClientConfig::single("default", context).to_yaml())
}

async fn sync(client: &Client, settings: &Settings, account: &Value) -> Result<(), Error> {
    let meta = &account["metadata"];
    let text = |key: &str| meta[key].as_str().unwrap_or_default();
    let (namespace, name) = (text("namespace"), text("name"));
    let target = Target::new(Kind::SECRETS, namespace, name);
    let secret = client.find(&target).await?;
    let now = Timestamp::now();
    let failure = match judge(settings, account, secret.as_ref(), now) {
        Verdict::Well => None,
        Verdict::Refused(reason, message) => Some((reason, message)),
        Verdict::Issue(roles) => {
            let config = match issue(settings, &roles, now) {
                Ok(config) => config,
                Err(error) => {
                    warn!(%error, "no certificate for an account of a pod");
                    return Ok(());
                }
            };
            let data = json!({ KEY: STANDARD.encode(config) });
            match secret {
                Some(mut secret) => {
                    secret["data"] = data;
                    client.replace(&target, &secret, Write::by(MANAGER)).await?;
                }
                None => {
                    let secret = json!({
                        "apiVersion": "v1",
                        "kind": "Secret",
                        "metadata": { "name": name, "namespace": namespace, "ownerReferences": [owner(account)] },
                        "data": data,
                    });
                    client.create(&Kind::SECRETS, namespace, &secret, Write::by(MANAGER)).await?;
                }
            }
            info!(account = format!("{namespace}/{name}"), "credentials for a pod");
            tell(client, account, "Normal", "Synced", "Synced successfully", now).await;
            None
        }
    };
    let told = account["status"]["failureReason"].as_str();
    let wanted = failure.as_ref().map(|(_, message)| message.as_str());
    if told == wanted {
        return Ok(());
    }
    if let Some((reason, message)) = &failure {
        tell(client, account, "Warning", reason, message, now).await;
    }
    let patch = json!({ "status": { "failureReason": wanted } });
    let target = Target::new(ACCOUNTS, namespace, name);
    client.patch(&target, Patch::Merge, &patch, Write::by(MANAGER)).await.map(drop)
}

fn owner(account: &Value) -> Value {
    json!({
        "apiVersion": "talos.dev/v1alpha1",
        "kind": "ServiceAccount",
        "name": account["metadata"]["name"],
        "uid": account["metadata"]["uid"],
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

/// Leaves an event at an account. One that cannot be left is no failure.
async fn tell(client: &Client, account: &Value, kind: &str, reason: &str, message: &str, now: Timestamp) {
    let meta = &account["metadata"];
    let namespace = meta["namespace"].as_str().unwrap_or_default();
    let name = meta["name"].as_str().unwrap_or_default();
    let time = jiff::Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
    let event = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "name": format!("{name}.{:x}", now.as_nanosecond()), "namespace": namespace },
        "involvedObject": {
            "apiVersion": "talos.dev/v1alpha1", "kind": "ServiceAccount", "name": name, "namespace": namespace,
            "uid": meta["uid"], "resourceVersion": meta["resourceVersion"],
        },
        "type": kind,
        "reason": reason,
        "message": message,
        "source": { "component": MANAGER },
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    });
    if let Err(error) = client.create(&Kind::EVENTS, namespace, &event, Write::by(MANAGER)).await {
        debug!(error = error.chain(), "no event");
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use ichor_pki::KeyAlgorithm;
    use ichor_testkit::kube::Server;

    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    fn settings() -> Settings {
        let authority =
            Authority::generate(KeyAlgorithm::Ed25519, "talos", now(), Authority::TEN_YEARS).unwrap();
        Settings {
            kubeconfig: String::new(),
            crt: authority.crt_pem().as_bytes().to_vec(),
            key: authority.key_pem().into_bytes(),
            roles: vec!["os:reader".into(), "os:etcd:backup".into()],
            namespaces: vec!["kube-system".into()],
        }
    }

    fn account(namespace: &str, roles: Value) -> Value {
        json!({
            "metadata": { "name": "backup", "namespace": namespace, "uid": "1" }, "spec": { "roles": roles },
        })
    }

    #[track_caller]
    fn check(account: &Value, secret: Option<&Value>, expect: Expect) {
        expect.assert_eq(&format!("{:?}", judge(&settings(), account, secret, now())));
    }

    #[test]
    fn accounts_that_may_not_be_are_told_why() {
        let reader = json!(["os:reader"]);
        check(&account("kube-system", reader.clone()), None, expect![[r#"Issue(["os:reader"])"#]]);
        check(
            &account("shop", reader.clone()),
            None,
            expect![[r#"Refused("ErrNamespaceNotAllowed", "Namespace is not allowed: shop")"#]],
        );
        check(
            &account("kube-system", json!(["os:reader", "os:admin"])),
            None,
            expect![[r#"Refused("ErrRolesNotAllowed", "Roles not allowed: [os:admin]")"#]],
        );
        check(
            &account("kube-system", Value::Null),
            None,
            expect![[r#"Refused("ErrRolesNotFound", "Roles not found")"#]],
        );
        let foreign = json!({ "metadata": { "ownerReferences": [{ "uid": "2", "controller": true }] } });
        check(
            &account("kube-system", reader),
            Some(&foreign),
            expect![[
                r#"Refused("ErrResourceExists", "Secret already exists and is not managed by controller: kube-system/backup")"#
            ]],
        );
    }

    #[test]
    fn credentials_are_renewed_before_they_end() {
        let settings = settings();
        let roles = RoleSet::parse(["os:reader"]);
        let config = issue(&settings, &roles, now()).unwrap();
        let secret = json!({
            "metadata": { "ownerReferences": [{ "uid": "1", "controller": true }] },
            "data": { KEY: STANDARD.encode(config) },
        });
        let reader = account("kube-system", json!(["os:reader"]));
        let at = |hours: i64| now() + jiff::SignedDuration::from_hours(hours);
        let verdict = |account: &Value, hours| judge(&settings, account, Some(&secret), at(hours));
        assert_eq!(verdict(&reader, 0), Verdict::Well);
        assert_eq!(verdict(&reader, 4), Verdict::Well);
        assert_eq!(verdict(&reader, 6), Verdict::Issue(roles.clone()));
        let more = account("kube-system", json!(["os:reader", "os:etcd:backup"]));
        assert!(matches!(verdict(&more, 0), Verdict::Issue(_)));
        let other = Settings { crt: b"other".to_vec(), ..settings.clone() };
        assert_eq!(judge(&other, &reader, Some(&secret), now()), Verdict::Issue(roles));
    }

    #[tokio::test]
    async fn an_account_gets_its_secret_and_keeps_it() {
        const ACCOUNT: &str = "/apis/talos.dev/v1alpha1/namespaces/kube-system/serviceaccounts/backup";
        const SECRET: &str = "/api/v1/namespaces/kube-system/secrets/backup";
        let server = Server::new();
        let (client, settings) = (server.client(), settings());
        server.put(ACCOUNT, account("kube-system", json!(["os:reader"])));
        sync(&client, &settings, &server.object(ACCOUNT).unwrap()).await.unwrap();
        let secret = server.object(SECRET).unwrap();
        assert_eq!(secret["metadata"]["ownerReferences"][0]["uid"], "1");
        server.writes();
        sync(&client, &settings, &server.object(ACCOUNT).unwrap()).await.unwrap();
        assert_eq!(server.writes(), [""; 0]);

        server.put(ACCOUNT, account("kube-system", json!(["os:admin"])));
        sync(&client, &settings, &server.object(ACCOUNT).unwrap()).await.unwrap();
        let told = server.object(ACCOUNT).unwrap();
        assert_eq!(told["status"]["failureReason"], "Roles not allowed: [os:admin]");
        server.writes();
        sync(&client, &settings, &told).await.unwrap();
        assert_eq!(server.writes(), [""; 0], "what was told is not told again");
    }
}
