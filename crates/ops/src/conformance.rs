//! Runs the conformance tests of Kubernetes in a cluster.

use std::time::Duration;

use ichor_kube::{Client, Delete, Error as KubeError, Kind, Target, Write};
use ichor_wire::machine::ReadRequest;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::error::{Error, Problem, Result};
use crate::event::Sink;
use crate::fleet::Fleet;

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

/// The image with the tests.
pub const IMAGE: &str = "registry.k8s.io/conformance:v1.35.0";
const CONFORMANCE: &str = r"\[Conformance\]";
const SERIAL: &str = r"\[Serial\]";
/// How many tests at the same time, when nobody says.
const PARALLEL: u32 = 16;
const MINUTE: Duration = Duration::from_secs(60);
/// The basic tests: that pods and services work.
const BASIC: [&str; 3] = [
    "Pods should be submitted and removed",
    "Services should serve a basic endpoint from pods",
    "Services should be able to change the type from ExternalName to ClusterIP",
];
/// The files that a certification needs.
const RESULT_FILES: [&str; 2] = ["e2e.log", "junit_01.xml"];
/// The largest of them.
const RESULT_MAX: usize = 256 << 20;

/// Which tests, and how.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What tells it from the other plans of a command.
    pub name: &'static str,
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
    /// Fetch the files that the tests write.
    pub results: bool,
    /// Print each test when it ends, with what it did.
    pub verbose: bool,
}

impl Plan {
    fn new(name: &'static str, image: &str, focus: &str, skip: &str, parallel: u32, minutes: u32) -> Self {
        Self {
            name,
            image: image.to_owned(),
            focus: focus.to_owned(),
            skip: skip.to_owned(),
            parallel,
            limit: MINUTE * minutes,
            clean: MINUTE * 5,
            pause: Duration::from_secs(1),
            results: false,
            verbose: false,
        }
    }

    /// All conformance tests: most of them side by side, then those that need the cluster for themselves.
    pub fn fast(image: &str) -> Vec<Self> {
        vec![
            Self::new("parallel", image, CONFORMANCE, SERIAL, PARALLEL, 60),
            Self::new("serial", image, r"\[Serial\].*\[Conformance\]", "", 1, 60),
        ]
    }

    /// The same of the tests that `focus`, a regular expression, names.
    pub fn focused(image: &str, focus: &str) -> Vec<Self> {
        let serial = format!(r"{SERIAL}.*({focus})|({focus}).*{SERIAL}");
        vec![
            Self::new("parallel", image, focus, SERIAL, PARALLEL, 60),
            Self::new("serial", image, &serial, "", 1, 60),
        ]
    }

    /// All conformance tests one by one, with the files of a certification.
    pub fn certified(image: &str) -> Vec<Self> {
        vec![Self { results: true, ..Self::new("certified", image, CONFORMANCE, "", 1, 120) }]
    }

    /// The version of the tests, as the tag of the image says.
    pub fn version(&self) -> &str {
        let tag = self.image.rsplit_once(':').map_or("", |(_, tag)| tag);
        tag.strip_prefix('v').unwrap_or(tag)
    }

    /// A few tests that show that pods and services work.
    pub fn basic() -> Self {
        Self { clean: MINUTE * 3, ..Self::new("basic", IMAGE, &BASIC.join("|"), "", 2, 10) }
    }
}

/// A step of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The tests are started.
    Started {
        /// Of this version.
        version: String,
        /// Which ones.
        focus: String,
    },
    /// Output of the tests.
    Output(Vec<u8>),
    /// The tests ended.
    Finished {
        /// How long they took.
        after: Duration,
    },
    /// The tests passed.
    Passed,
}

/// A file that the tests wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultFile {
    /// Its name.
    pub name: &'static str,
    /// Its content.
    pub content: Vec<u8>,
}

/// A run that came to its end, well or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Exit status of the tests: 0 when all passed.
    code: i64,
    /// The files of the tests, when the plan wants them.
    pub files: Vec<ResultFile>,
}

impl Run {
    /// An error when tests failed.
    pub fn passed(&self) -> Result<()> {
        if self.code == 0 { Ok(()) } else { Err(Problem::TestsFailed { code: self.code }.into()) }
    }
}

/// Runs tests in the cluster, from cleaning up after an earlier run to cleaning up after this one.
pub async fn run(
    machines: &ichor_client::Client,
    fleet: &Fleet,
    plan: &Plan,
    events: &dyn Sink<Event>,
) -> Result<Run> {
    let client = fleet.kubernetes.client().await.map_err(Error::state)?;
    clean(&client, plan).await?;
    events.emit(Event::Started { version: plan.version().to_owned(), focus: plan.focus.clone() });
    let start = Instant::now();
    let ended = tests(&client, plan, events).await;
    let fetched = match &ended {
        Ok(outcome) if plan.results => fetch(machines, outcome).await,
        _ => Ok(Vec::new()),
    };
    let cleaned = clean(&client, plan).await;
    let code = ended?.code;
    events.emit(Event::Finished { after: start.elapsed() });
    let run = Run { code, files: fetched? };
    if run.code == 0 {
        events.emit(Event::Passed);
    }
    cleaned.map(|()| run)
}

/// Fetches what the tests wrote from the machine they ran on.
async fn fetch(machines: &ichor_client::Client, outcome: &Outcome) -> Result<Vec<ResultFile>> {
    let mut files = Vec::new();
    for name in RESULT_FILES {
        let failed = |status| Error::call(format!("read {name} of the tests"), status);
        let request = ReadRequest { path: format!("{}/{name}", outcome.results) };
        let stream = machines.to_node(&outcome.machine).machine().read(request).await;
        let mut stream = stream.map_err(failed)?.into_inner();
        let mut content = Vec::new();
        while let Some(message) = stream.message().await.map_err(failed)? {
            let (_, data) = ichor_client::sort(message, &outcome.machine)
                .map_err(|error| Problem::Node { doing: format!("read {name} of the tests"), error })?;
            content.extend_from_slice(&data.bytes);
            if content.len() > RESULT_MAX {
                return Err(Error::state(format!("{name} of the tests is larger than {RESULT_MAX} bytes")));
            }
        }
        files.push(ResultFile { name, content });
    }
    Ok(files)
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Outcome {
    /// Exit status of the tests.
    code: i64,
    /// The address of the machine they ran on.
    machine: String,
    /// Where the machine keeps what they wrote.
    results: String,
}

fn target(kind: Kind, namespace: &str, name: &str) -> Target {
    Target::new(kind, namespace, name)
}

fn pod(plan: &Plan) -> Value {
    let procs = (plan.parallel > 1).then(|| format!("--procs={}", plan.parallel));
    let verbose = plan.verbose.then(|| "-v".to_owned());
    let extra: Vec<String> = procs.into_iter().chain(verbose).collect();
    let extra = extra.join(" ");
    let env = [
        ("E2E_FOCUS", plan.focus.as_str()),
        ("E2E_SKIP", &plan.skip),
        ("E2E_PROVIDER", "skeleton"),
        ("E2E_VERBOSITY", "4"),
        ("E2E_USE_GO_RUNNER", "true"),
        ("E2E_EXTRA_ARGS", ""),
        ("E2E_EXTRA_GINKGO_ARGS", &extra),
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
async fn clean(client: &Client, plan: &Plan) -> Result<()> {
    let namespace = target(Kind::NAMESPACES, "", NAMESPACE);
    for one in [target(BINDINGS, "", BINDING), target(CLUSTER_ROLES, "", ROLE), namespace.clone()] {
        match client.delete(&one, Delete::default()).await {
            Ok(()) => {}
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            Err(error) => return Err(refused("clean up", &error)),
        }
    }
    let until = Instant::now() + plan.clean;
    while client.find(&namespace).await.map_err(|error| refused("clean up", &error))?.is_some() {
        if Instant::now() > until {
            return Err(Error::state(format!("the namespace {NAMESPACE} does not go away")));
        }
        sleep(plan.pause).await;
    }
    Ok(())
}

fn refused(doing: impl Into<String>, error: &KubeError) -> Error {
    Problem::Kubernetes { doing: doing.into(), reason: error.chain() }.into()
}

/// Starts the tests, reports their output, and waits for their end.
async fn tests(client: &Client, plan: &Plan, events: &dyn Sink<Event>) -> Result<Outcome> {
    for (kind, namespace, object) in objects(plan) {
        let made = client.create(&kind, namespace, &object, Write::by(MANAGER)).await;
        made.map_err(|error| {
            refused(format!("make {} {}", object["kind"], object["metadata"]["name"]), &error)
        })?;
    }
    started(client, plan).await?;
    let late = |_| Err(Error::state(format!("the tests took longer than {}s", plan.limit.as_secs())));
    timeout(plan.limit, followed(client, plan, events)).await.unwrap_or_else(late)
}

/// Waits until the tests run, or it is clear that they never will.
async fn started(client: &Client, plan: &Plan) -> Result<()> {
    let until = Instant::now() + START_MAX;
    loop {
        let pod = client.get(&target(Kind::PODS, NAMESPACE, POD)).await;
        let pod = pod.map_err(|error| refused("look at the tests", &error))?;
        let state = &pod["status"]["containerStatuses"][0]["state"];
        if state["running"].is_object() || state["terminated"].is_object() {
            return Ok(());
        }
        let reason = state["waiting"]["reason"].as_str().unwrap_or_default();
        let message = state["waiting"]["message"].as_str().unwrap_or_default();
        if ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError"]
            .contains(&reason)
        {
            let text = format!("the machines cannot run the image {}: {reason}: {message}", plan.image);
            return Err(Error::state(text));
        }
        if Instant::now() > until {
            let pending = pod["status"]["conditions"].as_array().into_iter().flatten();
            let why = pending.filter_map(|condition| condition["message"].as_str()).next().unwrap_or(reason);
            let what = format!("the tests did not start within {}s", START_MAX.as_secs());
            return Err(Error::timeout(what, why));
        }
        sleep(plan.pause).await;
    }
}

async fn followed(client: &Client, plan: &Plan, events: &dyn Sink<Event>) -> Result<Outcome> {
    let mut told = 0;
    let mut failures = 0;
    loop {
        // A log that broke off is read from its beginning; what was told already is left out.
        let read = log(client, &mut told, events).await;
        let pod = match client.get(&target(Kind::PODS, NAMESPACE, POD)).await {
            Ok(pod) => pod,
            Err(error) if error.is_not_found() => return Err(Error::state("the pod of the tests is gone")),
            Err(error) => {
                failures += 1;
                if failures > FAILURES_MAX {
                    return Err(refused("look at the tests", &error));
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

async fn log(client: &Client, told: &mut usize, events: &dyn Sink<Event>) -> std::result::Result<(), String> {
    let mut chunks = client.log(NAMESPACE, POD, CONTAINER).await.map_err(|error| error.chain())?;
    let mut seen = 0;
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk?;
        let new = chunk.get(told.saturating_sub(seen)..).unwrap_or_default();
        seen += chunk.len();
        if !new.is_empty() {
            events.emit(Event::Output(new.to_vec()));
            *told = seen;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ichor_testkit::kube::Server;

    use super::*;
    use crate::event::Silent;

    const PATH: &str = "/api/v1/namespaces/conformance/pods/e2e-conformance-test";

    fn plan() -> Plan {
        Plan {
            name: "test",
            image: "registry.k8s.io/conformance:v1.35.0".into(),
            focus: "\\[Conformance\\]".into(),
            skip: String::new(),
            parallel: 16,
            limit: Duration::from_secs(20),
            clean: Duration::from_secs(20),
            pause: Duration::from_millis(5),
            results: false,
            verbose: false,
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
        let text = std::sync::Mutex::new(Vec::new());
        let sink = |event: Event| {
            let Event::Output(bytes) = event else { return };
            text.lock().unwrap().extend_from_slice(&bytes);
        };
        let outcome = tests(&client, &plan(), &sink).await.unwrap();
        assert_eq!((outcome.code, outcome.machine.as_str()), (3, "10.5.0.3"));
        assert!(outcome.results.starts_with("/var/lib/kubelet/pods/uid-"), "{}", outcome.results);
        assert_eq!(text.into_inner().unwrap(), b"one\ntwo\n");
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

    #[test]
    fn tests_that_need_the_cluster_for_themselves_run_last_and_alone() {
        let [side_by_side, alone] = &Plan::focused(IMAGE, "Pods")[..] else { panic!("two plans") };
        assert_eq!((side_by_side.focus.as_str(), side_by_side.skip.as_str()), ("Pods", r"\[Serial\]"));
        assert_eq!(alone.focus, r"\[Serial\].*(Pods)|(Pods).*\[Serial\]");
        assert_eq!(alone.parallel, 1);
        assert_eq!(alone.version(), "1.35.0");
    }

    #[tokio::test]
    async fn an_image_that_cannot_be_had_is_said_at_once() {
        let server = Server::new();
        let waiting = json!({ "waiting": { "reason": "ErrImagePull", "message": "not found" } });
        kubelet(&server, waiting);
        let refused = tests(&server.client(), &plan(), &Silent).await.unwrap_err();
        assert_eq!(
            refused.to_string(),
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
        assert!(tests(&client, &plan(), &Silent).await.unwrap_err().to_string().contains("already exists"));
        clean(&client, &plan()).await.unwrap();
        assert_eq!(server.object("/api/v1/namespaces/conformance"), None);
    }
}
