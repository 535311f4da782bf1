//! Questions about the node itself.

use ichor_resource::time::TimeStatus;
use ichor_wire::ichor::node::node_service_client::NodeServiceClient;
use ichor_wire::ichor::node::{Why, WhyRequest};
use tonic::Code;

use super::bench::Bench;

async fn ask(bench: &Bench, target: &str, id: &str) -> Result<Why, tonic::Status> {
    let request = WhyRequest { target: target.into(), id: id.into(), namespace: String::new() };
    let reply = NodeServiceClient::new(bench.channel()).why(bench.as_reader(request)).await?.into_inner();
    assert_eq!(reply.messages.len(), 1, "one element for each machine, as gateways expect");
    Ok(reply.messages.into_iter().next().unwrap())
}

#[tokio::test]
async fn a_reader_may_ask_and_nobody_else_without_a_role() {
    let bench = Bench::start().await;
    let request = tonic::Request::new(WhyRequest::default());
    let refused = NodeServiceClient::new(bench.channel()).why(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    // A node without controllers knows neither its time nor its network.
    let why = ask(&bench, "", "").await.unwrap();
    assert!(!why.healthy);
    assert!(why.findings.iter().all(|finding| !finding.advice.is_empty()), "{why:?}");
}

#[tokio::test]
async fn resources_are_found_by_every_name_they_have() {
    let bench = Bench::start().await;
    for name in ["timestatus", "TimeStatuses", "timestatuses.v1alpha1.talos.dev"] {
        let why = ask(&bench, name, "node").await.unwrap();
        assert_eq!(why.findings[0].summary, "TimeStatuses/node is not there", "{name}");
    }
    assert_eq!(ask(&bench, "timestatus/node", "").await.unwrap().findings.len(), 1);
    bench
        .node
        .store
        .state
        .create("runtime", "node", TimeStatus { synced: true, ..TimeStatus::default() }, "x")
        .unwrap();
    let why = ask(&bench, "timestatus", "node").await.unwrap();
    assert!(why.healthy && why.summary.starts_with("TimeStatuses/node is there: written by x"), "{why:?}");
}

#[tokio::test]
async fn names_that_do_not_exist_and_questions_that_are_too_long() {
    let bench = Bench::start().await;
    assert_eq!(ask(&bench, "nonsense", "").await.unwrap_err().code(), Code::NotFound);
    assert_eq!(ask(&bench, "service", "nonsense").await.unwrap_err().code(), Code::NotFound);
    assert_eq!(ask(&bench, &"x".repeat(1000), "").await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn how_the_last_boot_ended_is_told() {
    let bench = Bench::start().await;
    let early = ask(&bench, "last-boot", "").await.unwrap();
    assert!(early.healthy && early.summary.contains("ask again"), "{early:?}");
    bench.node.power.last_boot.learn(&bench.node.journal.logs, false).await;
    let why = ask(&bench, "last-boot", "").await.unwrap();
    assert_eq!(why.summary, "nothing is known of the boot before this one");
}
