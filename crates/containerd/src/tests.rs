//! The client against a containerd that answers from a table.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use ichor_rpc::Raw;
use ichor_rpc::server::{Grpc, Limits, serve_unix};
use ichor_wire::{containerd, cri};
use prost::Message;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{Code, Status};

use crate::{Client, Driver, KUBERNETES, Metrics, SYSTEM};

type Answers = HashMap<String, Result<Vec<Bytes>, Status>>;
type Calls = Arc<Mutex<Vec<(String, String, Bytes)>>>;

struct Fake {
    client: Client,
    calls: Calls,
    _dir: tempfile::TempDir,
    _stop: DropGuard,
}

struct Answer {
    path: String,
    answers: Arc<Answers>,
    calls: Calls,
}

impl tonic::server::ServerStreamingService<Bytes> for Answer {
    type Response = Bytes;
    type ResponseStream = stream::Iter<std::vec::IntoIter<Result<Bytes, Status>>>;
    type Future = Ready<Result<tonic::Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        let namespace = request.metadata().get("containerd-namespace").and_then(|value| value.to_str().ok());
        let namespace = namespace.unwrap_or_default().to_owned();
        self.calls.lock().unwrap().push((self.path.clone(), namespace, request.into_inner()));
        let answer = self.answers.get(&self.path).cloned();
        let answer = answer.unwrap_or_else(|| Err(Status::unimplemented(self.path.clone())));
        ready(answer.map(|messages| {
            let messages: Vec<_> = messages.into_iter().map(Ok).collect();
            tonic::Response::new(stream::iter(messages))
        }))
    }
}

impl Fake {
    fn start(answers: impl IntoIterator<Item = (&'static str, Result<Vec<Bytes>, Status>)>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("containerd.sock");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let stop = CancellationToken::new();
        let answers: Arc<Answers> =
            Arc::new(answers.into_iter().map(|(path, answer)| (path.to_owned(), answer)).collect());
        let calls = Calls::default();
        let recorded = calls.clone();
        tokio::spawn(serve_unix(listener, Limits::default(), stop.clone(), move |peer| {
            let (answers, calls) = (answers.clone(), recorded.clone());
            let service = tower::service_fn(move |request: http::Request<_>| {
                let path = request.uri().path().to_owned();
                let answer = Answer { path, answers: answers.clone(), calls: calls.clone() };
                async move {
                    Ok::<_, Infallible>(tonic::server::Grpc::new(Raw).server_streaming(answer, request).await)
                }
            });
            Grpc::new(service, peer)
        }));
        Self { client: Client::new(path), calls, _dir: dir, _stop: stop.drop_guard() }
    }

    fn sent(&self, path: &str) -> (String, Bytes) {
        let calls = self.calls.lock().unwrap();
        let (_, namespace, body) = calls.iter().find(|(called, _, _)| called == path).unwrap();
        (namespace.clone(), body.clone())
    }
}

fn one(message: &impl Message) -> Result<Vec<Bytes>, Status> {
    Ok(vec![message.encode_to_vec().into()])
}

const LIST: &str = "/containerd.services.containers.v1.Containers/List";
const TASKS: &str = "/containerd.services.tasks.v1.Tasks/List";
const IMAGES: &str = "/containerd.services.images.v1.Images/List";

fn pod_labels(container: Option<&str>) -> HashMap<String, String> {
    let mut labels = HashMap::from([
        ("io.kubernetes.pod.name".to_owned(), "web".to_owned()),
        ("io.kubernetes.pod.namespace".to_owned(), "default".to_owned()),
    ]);
    labels.extend(container.map(|name| ("io.kubernetes.container.name".to_owned(), name.to_owned())));
    labels
}

fn spec(json: &str) -> Option<prost_types::Any> {
    Some(prost_types::Any { type_url: String::new(), value: json.as_bytes().to_vec() })
}

fn pod() -> [(&'static str, Result<Vec<Bytes>, Status>); 4] {
    let container = |id: &str, labels, json: &str| containerd::Container {
        id: id.into(),
        labels,
        image: "docker.io/library/nginx:1".into(),
        spec: spec(json),
    };
    let containers = vec![
        container(
            "sandbox",
            pod_labels(None),
            r#"{"annotations":{"io.kubernetes.cri.sandbox-log-directory":"/var/log/pods/web"}}"#,
        ),
        container("idle", HashMap::new(), "{}"),
        container("inner", pod_labels(Some("nginx")), "not json"),
    ];
    let task = |id: &str, pid| containerd::Task {
        id: id.into(),
        pid,
        status: containerd::TaskStatus::Running.into(),
        stderr: String::new(),
    };
    let image = containerd::Image {
        name: "docker.io/library/nginx:1".into(),
        target: Some(containerd::Descriptor { digest: "sha256:1".into(), ..Default::default() }),
        created_at: None,
    };
    let metric = containerd::MetricsV2 {
        cpu: Some(containerd::metrics_v2::Cpu { usage_usec: 2 }),
        memory: Some(containerd::metrics_v2::Memory { usage: 3 }),
    };
    let data = prost_types::Any {
        type_url: "io.containerd.cgroups.v2.Metrics".into(),
        value: metric.encode_to_vec(),
    };
    [
        (LIST, one(&containerd::ListContainersResponse { containers })),
        (TASKS, one(&containerd::ListTasksResponse { tasks: vec![task("sandbox", 7), task("inner", 8)] })),
        (IMAGES, one(&containerd::ListImagesResponse { images: vec![image] })),
        (
            "/containerd.services.tasks.v1.Tasks/Metrics",
            one(&containerd::MetricsResponse {
                metrics: vec![containerd::Metric { id: "inner".into(), data: Some(data) }],
            }),
        ),
    ]
}

#[tokio::test]
async fn containers_with_a_process_are_listed_by_pod() {
    let fake = Fake::start(pod());
    let found = fake.client.containers(Driver::Containerd, KUBERNETES).await.unwrap();
    let shown: Vec<(&str, &str, u32)> =
        found.iter().map(|found| (found.display.as_str(), found.pod.as_str(), found.pid)).collect();
    assert_eq!(shown, [("default/web", "default/web", 7), ("default/web:nginx", "default/web", 8)]);
    assert!(found[0].sandbox && !found[1].sandbox);
    assert_eq!(found[1].image, "docker.io/library/nginx:1");
    assert_eq!((found[1].name.as_str(), found[1].status.as_str()), ("nginx", "RUNNING"));
    assert_eq!(found[1].metrics, Some(Metrics { memory: 3, cpu: 2000 }));
    assert_eq!(fake.sent(LIST).0, KUBERNETES);
}

#[tokio::test]
async fn one_container_has_a_log_and_can_be_ended() {
    let mut answers: Vec<_> = pod().into_iter().collect();
    answers.push(("/containerd.services.tasks.v1.Tasks/Kill", one(&())));
    let fake = Fake::start(answers);
    let id = "default/web:nginx";
    let found = fake.client.container(Driver::Containerd, KUBERNETES, id).await.unwrap();
    // The table ignores the filter, so the first container comes; what was asked for is what counts.
    let found = found.unwrap();
    let request = containerd::ListContainersRequest::decode(fake.sent(LIST).1).unwrap();
    assert!(request.filters[0].ends_with("labels.\"io.kubernetes.container.name\"==\"nginx\""));
    fake.client.stop(Driver::Containerd, KUBERNETES, &found).await.unwrap();
    let (namespace, body) = fake.sent("/containerd.services.tasks.v1.Tasks/Kill");
    let kill = containerd::KillRequest::decode(body).unwrap();
    assert_eq!((namespace.as_str(), kill.container_id.as_str(), kill.signal), (KUBERNETES, "sandbox", 15));
}

#[tokio::test]
async fn pods_come_through_the_runtime_interface() {
    let sandbox = cri::PodSandbox {
        id: "s1".into(),
        metadata: Some(cri::PodSandboxMetadata {
            name: "web".into(),
            uid: "u1".into(),
            namespace: "default".into(),
        }),
        state: 0,
    };
    let container = cri::Container {
        id: "0123456789abcdef".into(),
        pod_sandbox_id: "s1".into(),
        metadata: Some(cri::ContainerMetadata { name: "nginx".into() }),
        image_ref: "sha256:1".into(),
        state: 1,
        labels: pod_labels(Some("nginx")),
    };
    let info = |text: &str| HashMap::from([("info".to_owned(), text.to_owned())]);
    let stats = cri::ContainerStats {
        attributes: Some(cri::ContainerAttributes { id: container.id.clone() }),
        cpu: Some(cri::CpuUsage { usage_core_nano_seconds: Some(cri::UInt64Value { value: 5 }) }),
        memory: Some(cri::MemoryUsage { working_set_bytes: Some(cri::UInt64Value { value: 6 }) }),
    };
    let image = cri::Image { id: "sha256:1".into(), repo_tags: vec!["nginx:1".into()] };
    let fake = Fake::start([
        (
            "/runtime.v1.RuntimeService/ListPodSandbox",
            one(&cri::ListPodSandboxResponse { items: vec![sandbox] }),
        ),
        (
            "/runtime.v1.RuntimeService/PodSandboxStatus",
            one(&cri::PodSandboxStatusResponse { info: info(r#"{"pid":40,"image":"pause"}"#) }),
        ),
        (
            "/runtime.v1.RuntimeService/ListContainers",
            one(&cri::ListContainersResponse { containers: vec![container] }),
        ),
        (
            "/runtime.v1.RuntimeService/ContainerStatus",
            one(&cri::ContainerStatusResponse {
                status: Some(cri::ContainerStatus { log_path: "/var/log/pods/x/0.log".into() }),
                info: info(r#"{"pid":41}"#),
            }),
        ),
        (
            "/runtime.v1.RuntimeService/ListContainerStats",
            one(&cri::ListContainerStatsResponse { stats: vec![stats] }),
        ),
        ("/runtime.v1.ImageService/ListImages", one(&cri::ListImagesResponse { images: vec![image] })),
        ("/runtime.v1.RuntimeService/StopContainer", one(&())),
    ]);
    let found = fake.client.containers(Driver::Cri, KUBERNETES).await.unwrap();
    assert_eq!((found[0].display.as_str(), found[0].uid.as_str(), found[0].pid), ("default/web", "u1", 40));
    assert_eq!(found[0].status, "SANDBOX_READY");
    assert_eq!(found[1].display, "default/web:nginx:0123456789ab");
    assert_eq!((found[1].image.as_str(), found[1].status.as_str()), ("nginx:1", "CONTAINER_RUNNING"));
    assert_eq!(found[1].metrics, Some(Metrics { memory: 6, cpu: 5 }));
    let one = fake.client.container(Driver::Cri, KUBERNETES, "default/web:nginx").await.unwrap().unwrap();
    assert_eq!(one.log, Some(PathBuf::from("/var/log/pods/x/0.log")));
    fake.client.stop(Driver::Cri, KUBERNETES, &one).await.unwrap();
    assert_eq!(fake.client.container(Driver::Cri, KUBERNETES, "no-slash").await.unwrap(), None);
}

/// One container that ended in between took the whole list along.
#[tokio::test]
async fn what_ends_while_pods_are_listed_is_left_out() {
    let sandbox = |id: &str| cri::PodSandbox { id: id.into(), ..Default::default() };
    let container =
        cri::Container { id: "gone".into(), pod_sandbox_id: "stays".into(), ..Default::default() };
    let list = "/runtime.v1.RuntimeService/ListPodSandbox";
    let look = "/runtime.v1.RuntimeService/PodSandboxStatus";
    let answers = |answer| {
        [
            (list, one(&cri::ListPodSandboxResponse { items: vec![sandbox("stays")] })),
            (look, answer),
            (
                "/runtime.v1.RuntimeService/ListContainers",
                one(&cri::ListContainersResponse { containers: vec![container.clone()] }),
            ),
            ("/runtime.v1.RuntimeService/ContainerStatus", Err(Status::not_found("gone"))),
            ("/runtime.v1.RuntimeService/ListContainerStats", one(&())),
            ("/runtime.v1.ImageService/ListImages", one(&())),
        ]
    };
    let fake = Fake::start(answers(one(&cri::PodSandboxStatusResponse::default())));
    let found = fake.client.containers(Driver::Cri, KUBERNETES).await.unwrap();
    assert_eq!(found.iter().map(|found| found.id.as_str()).collect::<Vec<_>>(), ["stays"]);
    let fake = Fake::start(answers(Err(Status::not_found("gone"))));
    assert!(fake.client.containers(Driver::Cri, KUBERNETES).await.unwrap().is_empty());
}

#[tokio::test]
async fn images_have_sizes_and_are_pulled_once() {
    let image = containerd::Image {
        name: "registry.k8s.io/pause:3.10".into(),
        target: Some(containerd::Descriptor {
            media_type: "application/vnd.oci.image.manifest.v1+json".into(),
            digest: "sha256:1".into(),
            size: 100,
        }),
        created_at: None,
    };
    let part = |text: &str| -> Bytes {
        containerd::ReadContentResponse { offset: 0, data: text.as_bytes().to_vec() }.encode_to_vec().into()
    };
    let manifest = vec![part(r#"{"config":{"size":10},"la"#), part(r#"yers":[{"size":20}]}"#)];
    let there = containerd::ListImagesResponse { images: vec![image] };
    let fake =
        Fake::start([(IMAGES, one(&there)), ("/containerd.services.content.v1.Content/Read", Ok(manifest))]);
    let images = fake.client.images(SYSTEM).await.unwrap();
    assert_eq!(fake.client.image_size(SYSTEM, &images[0]).await.unwrap(), 130);
    fake.client.pull(SYSTEM, "registry.k8s.io/pause:3.10").await.unwrap();

    let nothing = containerd::ListImagesResponse { images: Vec::new() };
    let fake = Fake::start([
        (IMAGES, one(&nothing)),
        ("/containerd.services.transfer.v1.Transfer/Transfer", one(&())),
        ("/runtime.v1.ImageService/PullImage", Err(Status::not_found("no such image"))),
    ]);
    fake.client.pull(SYSTEM, "ghcr.io/x/y:1").await.unwrap();
    let (_, body) = fake.sent("/containerd.services.transfer.v1.Transfer/Transfer");
    let request = containerd::TransferRequest::decode(body).unwrap();
    let source = request.source.unwrap();
    assert_eq!(source.type_url, "containerd.types.transfer.OCIRegistry");
    assert_eq!(containerd::OciRegistry::decode(&*source.value).unwrap().reference, "ghcr.io/x/y:1");
    let missing = fake.client.pull(KUBERNETES, "ghcr.io/x/y:1").await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
}

#[tokio::test]
async fn an_image_is_forgotten_in_its_namespace() {
    const DELETE: &str = "/containerd.services.images.v1.Images/Delete";
    let fake = Fake::start([(DELETE, Ok(vec![Bytes::new()]))]);
    fake.client.remove_image(SYSTEM, "ghcr.io/x/y:1").await.unwrap();
    let (namespace, body) = fake.sent(DELETE);
    assert_eq!((namespace.as_str(), &body[..]), (SYSTEM, &b"\x0a\x0dghcr.io/x/y:1"[..]));
    let gone = Fake::start([(DELETE, Err(Status::not_found("no such image")))]);
    gone.client.remove_image(SYSTEM, "x").await.unwrap();
    let refused = Fake::start([(DELETE, Err(Status::permission_denied("no")))]);
    refused.client.remove_image(SYSTEM, "x").await.unwrap_err();
}

#[tokio::test]
async fn nobody_there_is_unavailable_and_nonsense_is_an_error() {
    let absent = Client::new("/no/such/containerd.sock");
    let error = absent.containers(Driver::Containerd, SYSTEM).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.message().contains("dial unix /no/such/containerd.sock"), "{error}");

    let fake = Fake::start([(LIST, Ok(vec![Bytes::from_static(&[0xff; 9])]))]);
    let error = fake.client.containers(Driver::Containerd, SYSTEM).await.unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    let error = fake.client.containers(Driver::Containerd, "two\nlines").await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn an_answer_without_end_is_cut() {
    let endless = vec![Bytes::from(vec![0; 1 << 20]); 20];
    let fake =
        Fake::start([("/containerd.services.content.v1.Content/Read", Ok(endless)), (IMAGES, one(&()))]);
    let image: crate::Image = containerd::Image::default().into();
    let read = tokio::time::timeout(Duration::from_secs(20), fake.client.image_size(SYSTEM, &image));
    assert_eq!(read.await.unwrap().unwrap_err().code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn a_root_is_made_of_the_layers_of_an_image() {
    let image = containerd::Image {
        name: "ghcr.io/x/y:1".into(),
        target: Some(containerd::Descriptor { digest: "sha256:1".into(), ..Default::default() }),
        created_at: None,
    };
    // The table answers every read alike: this is manifest and configuration in one.
    let content = r#"{"config":{"digest":"sha256:2","Entrypoint":["/y"],"Cmd":["-v"],"Env":["A=1"]},
        "rootfs":{"diff_ids":["sha256:aa"]}}"#;
    let content = containerd::ReadContentResponse { offset: 0, data: content.as_bytes().to_vec() };
    // Field 1: a mount with kind, source and one option.
    let mount: &[u8] = b"\x0a\x07overlay\x12\x01o\x22\x10lowerdir=/s/1/fs";
    let mut mounts = vec![0x0a, mount.len() as u8];
    mounts.extend_from_slice(mount);
    let fake = Fake::start([
        (IMAGES, one(&containerd::ListImagesResponse { images: vec![image] })),
        ("/containerd.services.content.v1.Content/Read", one(&content)),
        ("/containerd.services.snapshots.v1.Snapshots/Remove", Err(Status::not_found("no snapshot"))),
        ("/containerd.services.snapshots.v1.Snapshots/Prepare", Ok(vec![mounts.into()])),
    ]);
    let root = fake.client.root(SYSTEM, "ghcr.io/x/y:1", "kubelet").await.unwrap();
    assert_eq!(root.command, ["/y", "-v"]);
    assert_eq!(root.env, ["A=1"]);
    assert_eq!((root.base.as_str(), root.options.as_str()), ("/s/", "lowerdir=1/fs"));
    let (namespace, body) = fake.sent("/containerd.services.snapshots.v1.Snapshots/Prepare");
    assert_eq!(namespace, SYSTEM);
    let body = String::from_utf8_lossy(&body).into_owned();
    assert!(body.contains("kubelet") && body.contains("sha256:aa") && body.contains("gc.root"), "{body}");
}

#[tokio::test]
async fn layers_that_are_gone_are_fetched_once_more() {
    let image = containerd::Image { name: "ghcr.io/x/y:1".into(), target: None, created_at: None };
    let fake = Fake::start([
        (IMAGES, one(&containerd::ListImagesResponse { images: vec![image] })),
        ("/containerd.services.content.v1.Content/Read", Err(Status::not_found("content sha256:1"))),
        ("/containerd.services.transfer.v1.Transfer/Transfer", Err(Status::unavailable("no registry"))),
    ]);
    let error = fake.client.root(SYSTEM, "ghcr.io/x/y:1", "kubelet").await.unwrap_err();
    assert_eq!(error.message(), "no registry");
}

#[tokio::test]
async fn pods_of_the_nodes_network_stop_last() {
    let sandbox = |id: &str| cri::PodSandbox { id: id.into(), metadata: None, state: 0 };
    let items = vec![sandbox("one"), sandbox("two")];
    let fake = Fake::start([
        ("/runtime.v1.RuntimeService/ListPodSandbox", one(&cri::ListPodSandboxResponse { items })),
        // status.linux.namespaces.options.network = NODE, for both.
        (
            "/runtime.v1.RuntimeService/PodSandboxStatus",
            Ok(vec![Bytes::from_static(b"\x0a\x08\x32\x06\x0a\x04\x12\x02\x08\x02")]),
        ),
        ("/runtime.v1.RuntimeService/StopPodSandbox", one(&())),
        ("/runtime.v1.RuntimeService/RemovePodSandbox", Err(Status::not_found("gone"))),
    ]);
    fake.client.stop_pods(true).await.unwrap();
    let calls = fake.calls.lock().unwrap();
    let count = |name: &str| calls.iter().filter(|(path, _, _)| path.ends_with(name)).count();
    assert_eq!((count("StopPodSandbox"), count("RemovePodSandbox")), (2, 2));
}
