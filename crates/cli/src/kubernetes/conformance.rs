//! One run of the conformance tests: what is made in the cluster, what is seen of it, how it ended.

use std::time::Duration;

use ichor_kube::{Client, Delete, Error, Kind, Target, Write};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

/// Everything of a run is in here.
const NAMESPACE: &str = "conformance";
const POD: &str = "e2e-conformance-test";
const CONTAINER: &str = "conformance-container";
const ACCOUNT: &str = "conformance-serviceaccount";
const ROLE: &str = "conformance-serviceaccount:conformance";
const BINDING: &str = "conformance-serviceaccount-role:conformance";
/// Where the tests write, and its volume.
const RESULTS: &str = "/tmp/results";
const VOLUME: &str = "output-volume";
/// Who makes all this.
const MANAGER: &str = "ichorctl";
/// How long a pod may take to begin.
const START_MAX: Duration = Duration::from_secs(300);
/// Failures in a row of an API that was there.
const FAILURES_MAX: u32 = 30;
/// The tests see everything: so they must be allowed everything.
const CLUSTER_ROLES: Kind = Kind::known("rbac.authorization.k8s.io", "v1", "clusterroles", false);
const BINDINGS: Kind = Kind::known("rbac.authorization.k8s.io", "v1", "clusterrolebindings", false);
const ACCOUNTS: Kind = Kind::known("", "v1", "serviceaccounts", true);

/// Which tests, and how.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The image with the tests.
    pub image: String,
    /// Which tests, a regular expression.
    pub focus: String,
    /// Which of those not.
    pub skip: String,
    /// At the same time.
    pub parallel: u32,
    /// The longest run.
    pub limit: Duration,
    /// The longest clean-up.
    pub clean: Duration,
    /// Between two looks.
    pub pause: Duration,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Exit status of the tests.
    pub code: i64,
    /// The address of the machine they ran on.
    pub machine: String,
    /// Where the machine keeps what they wrote.
    pub results: String,
}

fn target(kind: Kind, namespace: &str, name: &str) -> Target {
    Target::new(kind, namespace, name)
}

fn pod(plan: &Plan) -> Value {
    let procs = if plan.parallel > 1 { format!("--procs={}", plan.parallel) } else { String::new() };
    let env = [
        ("E2E_FOCUS", plan.focus.as_str()),
        ("E2E_SKIP", &plan.skip),
        ("E2E_PROVIDER", "skeleton"),
        ("E2E_VERBOSITY", "4"),
        ("E2E_USE_GO_RUNNER", "true"),
        ("E2E_EXTRA_ARGS", ""),
        ("E2E_EXTRA_GINKGO_ARGS", &procs),
    ];
    let env: Vec<Value> = env.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": POD, "namespace": NAMESPACE },
        "spec": {
            "restartPolicy": "Never",
            "serviceAccountName": ACCOUNT,
            "tolerations": [{ "operator": "Exists" }],
            "containers": [{
                "name": CONTAINER, "image": plan.image, "imagePullPolicy": "IfNotPresent", "env": env,
                "volumeMounts": [{ "name": VOLUME, "mountPath": RESULTS }],
                "securityContext": {
                    "allowPrivilegeEscalation": false, "runAsNonRoot": true, "runAsUser": 65534,
                    "capabilities": { "drop": ["ALL"] }, "seccompProfile": { "type": "RuntimeDefault" },
                },
            }],
            "volumes": [{ "name": VOLUME, "emptyDir": {} }],
        },
    })
}

/// All that a run needs, in the order it is made.
fn objects(plan: &Plan) -> [(Kind, &'static str, Value); 5] {
    let meta = |name: &str| json!({ "name": name, "labels": { "component": "conformance" } });
    let rbac = "rbac.authorization.k8s.io";
    [
        (
            Kind::NAMESPACES,
            "",
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": meta(NAMESPACE) }),
        ),
        (
            ACCOUNTS,
            NAMESPACE,
            json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta(ACCOUNT) }),
        ),
        (
            CLUSTER_ROLES,
            "",
            json!({
                "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": meta(ROLE),
                "rules": [
                    { "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] },
                    { "nonResourceURLs": ["/metrics", "/logs", "/logs/*"], "verbs": ["get"] },
                ],
            }),
        ),
        (
            BINDINGS,
            "",
            json!({
                "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": meta(BINDING),
                "roleRef": { "apiGroup": rbac, "kind": "ClusterRole", "name": ROLE },
                "subjects": [{ "kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE }],
            }),
        ),
        (Kind::PODS, NAMESPACE, pod(plan)),
    ]
}

/// Removes what a run leaves behind and waits until it is gone.
pub async fn clean(client: &Client, plan: &Plan) -> Result<(), String> {
    let namespace = target(Kind::NAMESPACES, "", NAMESPACE);
    for one in [target(BINDINGS, "", BINDING), target(CLUSTER_ROLES, "", ROLE), namespace.clone()] {
        match client.delete(&one, Delete::default()).await {
            Ok(()) => {}
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            Err(error) => return Err(format!("clean up: {}", error.chain())),
        }
    }
    let until = Instant::now() + plan.clean;
    while client.find(&namespace).await.map_err(|error| error.chain())?.is_some() {
        if Instant::now() > until {
            return Err(format!("the namespace {NAMESPACE} does not go away"));
        }
        sleep(plan.pause).await;
    }
    Ok(())
}

/// Starts the tests, hands on what they say, and waits for their end.
pub async fn run(
    client: &Client,
    plan: &Plan,
    tell: &mut (dyn FnMut(&[u8]) + Send),
) -> Result<Outcome, String> {
    for (kind, namespace, object) in objects(plan) {
        let made = client.create(&kind, namespace, &object, Write::by(MANAGER)).await;
        made.map_err(|error| {
            format!("make {} {}: {}", object["kind"], object["metadata"]["name"], error.chain())
        })?;
    }
    started(client, plan).await?;
    let late = |_| Err(format!("the tests took longer than {}s", plan.limit.as_secs()));
    timeout(plan.limit, followed(client, plan, tell)).await.unwrap_or_else(late)
}

/// Waits until the tests run, or it is clear that they never will.
async fn started(client: &Client, plan: &Plan) -> Result<(), String> {
    let until = Instant::now() + START_MAX;
    loop {
        let pod = client.get(&target(Kind::PODS, NAMESPACE, POD)).await.map_err(|error| error.chain())?;
        let state = &pod["status"]["containerStatuses"][0]["state"];
        if state["running"].is_object() || state["terminated"].is_object() {
            return Ok(());
        }
        let reason = state["waiting"]["reason"].as_str().unwrap_or_default();
        let message = state["waiting"]["message"].as_str().unwrap_or_default();
        if ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError"]
            .contains(&reason)
        {
            return Err(format!("the machines cannot run the image {}: {reason}: {message}", plan.image));
        }
        if Instant::now() > until {
            let pending = pod["status"]["conditions"].as_array().into_iter().flatten();
            let why = pending.filter_map(|condition| condition["message"].as_str()).next().unwrap_or(reason);
            return Err(format!("the tests did not start within {}s: {why}", START_MAX.as_secs()));
        }
        sleep(plan.pause).await;
    }
}

async fn followed(
    client: &Client,
    plan: &Plan,
    tell: &mut (dyn FnMut(&[u8]) + Send),
) -> Result<Outcome, String> {
    let mut told = 0;
    let mut failures = 0;
    loop {
        // A log that broke off is read from its beginning; what was told already is left out.
        let read = log(client, &mut told, tell).await;
        let pod = match client.get(&target(Kind::PODS, NAMESPACE, POD)).await {
            Ok(pod) => pod,
            Err(error) if error.is_not_found() => return Err("the pod of the tests is gone".to_owned()),
            Err(error) => {
                failures += 1;
                if failures > FAILURES_MAX {
                    return Err(error.chain());
                }
                sleep(plan.pause).await;
                continue;
            }
        };
        failures = 0;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if let (Ok(()), Some(code)) =
            (&read, pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"].as_i64())
        {
            let uid = text(&pod["metadata"]["uid"]);
            return Ok(Outcome {
                code,
                machine: text(&pod["status"]["hostIP"]),
                results: format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/{VOLUME}"),
            });
        }
        sleep(plan.pause).await;
    }
}

async fn log(client: &Client, told: &mut usize, tell: &mut (dyn FnMut(&[u8]) + Send)) -> Result<(), String> {
    let mut chunks = client.log(NAMESPACE, POD, CONTAINER).await.map_err(|error: Error| error.chain())?;
    let mut seen = 0;
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk?;
        let new = chunk.get(told.saturating_sub(seen)..).unwrap_or_default();
        seen += chunk.len();
        if !new.is_empty() {
            tell(new);
            *told = seen;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ichor_kube::fake::Server;

    use super::*;

    const PATH: &str = "/api/v1/namespaces/conformance/pods/e2e-conformance-test";

    fn plan() -> Plan {
        Plan {
            image: "registry.k8s.io/conformance:v1.35.0".into(),
            focus: "\\[Conformance\\]".into(),
            skip: String::new(),
            parallel: 16,
            limit: Duration::from_secs(20),
            clean: Duration::from_secs(20),
            pause: Duration::from_millis(5),
        }
    }

    /// Lets the pod come to this once it is made.
    fn kubelet(server: &Server, state: Value) {
        let server = server.clone();
        tokio::spawn(async move {
            loop {
                if let Some(mut pod) = server.object(PATH) {
                    pod["status"] =
                        json!({ "hostIP": "10.5.0.3", "containerStatuses": [{ "state": state }] });
                    pod["log"] = "one\ntwo\n".into();
                    server.put(PATH, pod);
                    return;
                }
                sleep(Duration::from_millis(1)).await;
            }
        });
    }

    #[tokio::test]
    async fn a_run_is_told_and_its_end_is_known_and_nothing_stays() {
        let server = Server::new();
        let client = server.client();
        kubelet(&server, json!({ "terminated": { "exitCode": 3 } }));
        let mut text = Vec::new();
        let outcome = run(&client, &plan(), &mut |bytes| text.extend_from_slice(bytes)).await.unwrap();
        assert_eq!((outcome.code, outcome.machine.as_str()), (3, "10.5.0.3"));
        assert!(outcome.results.starts_with("/var/lib/kubelet/pods/uid-"), "{}", outcome.results);
        assert_eq!(text, b"one\ntwo\n");
        let pod = server.object(PATH).unwrap();
        let env = &pod["spec"]["containers"][0]["env"];
        assert_eq!(env[0], json!({ "name": "E2E_FOCUS", "value": "\\[Conformance\\]" }));
        assert_eq!(env[6], json!({ "name": "E2E_EXTRA_GINKGO_ARGS", "value": "--procs=16" }));
        clean(&client, &plan()).await.unwrap();
        let left = server.paths();
        assert!(
            !left.iter().any(|path| path.contains("cluster") || path.ends_with("/conformance")),
            "{left:?}"
        );
    }

    #[tokio::test]
    async fn an_image_that_cannot_be_had_is_said_at_once() {
        let server = Server::new();
        let waiting = json!({ "waiting": { "reason": "ErrImagePull", "message": "not found" } });
        kubelet(&server, waiting);
        let refused = run(&server.client(), &plan(), &mut |_| {}).await.unwrap_err();
        assert_eq!(
            refused,
            "the machines cannot run the image registry.k8s.io/conformance:v1.35.0: ErrImagePull: not found"
        );
    }

    #[tokio::test]
    async fn what_an_earlier_run_left_is_in_the_way_until_it_is_cleaned() {
        let server = Server::new();
        let client = server.client();
        client
            .create(&Kind::NAMESPACES, "", &json!({ "metadata": { "name": NAMESPACE } }), Write::by("x"))
            .await
            .unwrap();
        assert!(run(&client, &plan(), &mut |_| {}).await.unwrap_err().contains("already exists"));
        clean(&client, &plan()).await.unwrap();
        assert_eq!(server.object("/api/v1/namespaces/conformance"), None);
    }
}
