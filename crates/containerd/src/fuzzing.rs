//! Answers of containerd without containerd, for the tests that hand in anything.

use ichor_wire::{containerd, cri};
use prost::Message;

use crate::{Container, cri as interface, image, inspect};

/// Answers worth changing, each behind a byte that says what it answers.
pub fn seeds() -> Vec<Vec<u8>> {
    let labels = [("io.kubernetes.pod.name", "p"), ("io.kubernetes.pod.namespace", "n")];
    let container = containerd::Container {
        id: "a".into(),
        labels: labels.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect(),
        image: "nginx".into(),
        spec: Some(prost_types::Any {
            type_url: String::new(),
            value: br#"{"annotations":{"io.kubernetes.cri.sandbox-log-directory":"/x"}}"#.to_vec(),
        }),
    };
    let metric = containerd::Metric {
        id: "a".into(),
        data: Some(prost_types::Any {
            type_url: "io.containerd.cgroups.v1.Metrics".into(),
            value: containerd::MetricsV1::default().encode_to_vec(),
        }),
    };
    let status = cri::PodSandboxStatusResponse {
        info: [(
            "info".to_owned(),
            r#"{"pid":1,"runtimeSpec":{"linux":{"namespaces":[{"type":"network","path":"/x"}]}}}"#.to_owned(),
        )]
        .into_iter()
        .collect(),
    };
    let mut seeds = vec![
        containerd::ListContainersResponse { containers: vec![container] }.encode_to_vec(),
        containerd::MetricsResponse { metrics: vec![metric] }.encode_to_vec(),
        status.encode_to_vec(),
        br#"{"manifests":[{"digest":"x","size":1,"platform":{"os":"linux","architecture":"amd64"}}],"layers":[{"size":3}]}"#.to_vec(),
    ];
    for (kind, seed) in (0_u8..).zip(&mut seeds) {
        seed.insert(0, kind);
    }
    seeds
}

/// Reads an answer as the client would.
pub fn read(input: &[u8]) -> Result<Vec<Container>, String> {
    let (kind, bytes) = input.split_first().ok_or("empty")?;
    let text = |error: prost::DecodeError| error.to_string();
    match kind % 4 {
        0 => containerd::ListContainersResponse::decode(bytes)
            .map(|found| inspect::all_running(&found.containers))
            .map_err(text),
        1 => containerd::MetricsResponse::decode(bytes)
            .map(|found| {
                found.metrics.into_iter().filter_map(inspect::usage).map(|_| Container::default()).collect()
            })
            .map_err(text),
        2 => cri::PodSandboxStatusResponse::decode(bytes)
            .map(|status| vec![interface::with_info(&status.info)])
            .map_err(text),
        _ => Ok(vec![Container { pid: image::measure(bytes), ..Container::default() }]),
    }
}
