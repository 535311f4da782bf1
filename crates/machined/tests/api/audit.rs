//! The audit log of a node: through the machine socket, in maintenance mode, and from the daemons.

use std::time::Duration;

use ichor_machined::api::server::{FOR_APID, serve_runtime};
use ichor_machined::audit::LOG;
use ichor_observe::Start;
use ichor_rpc::unix::{self, Access};
use ichor_rpc::{Channel, Dialer};
use ichor_wire::ichor::node::audit_service_client::AuditServiceClient;
use ichor_wire::ichor::node::{AuditEntry, ReportRequest};
use ichor_wire::machine;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::bench::{Bench, WAIT};

/// All lines so far.
async fn lines(bench: &Bench) -> Vec<String> {
    let mut reader = bench.node.journal.logs.ring(LOG).reader(Start::Oldest);
    let mut text = Vec::new();
    while let Some(chunk) = reader.next(64 * 1024).await {
        text.extend_from_slice(&chunk);
    }
    String::from_utf8(text).unwrap().lines().map(str::to_owned).collect()
}

/// Waits for a line with all of `words`.
async fn wait(bench: &Bench, words: &[&str]) -> String {
    let found = async {
        loop {
            let lines = lines(bench).await;
            if let Some(line) = lines.iter().find(|line| words.iter().all(|word| line.contains(word))) {
                return line.clone();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    match tokio::time::timeout(WAIT, found).await {
        Ok(line) => line,
        Err(_) => panic!("no line with {words:?} among {:#?}", lines(bench).await),
    }
}

#[tokio::test]
async fn calls_and_refusals_are_written_with_the_process_that_made_them() {
    let bench = Bench::start().await;
    bench.machine().version(bench.as_reader(())).await.unwrap();
    let line = wait(&bench, &["/machine.MachineService/Version", "\"code\":\"OK\"", "os:reader"]).await;
    assert!(line.contains("\"address\":\"unix\"") && line.contains("\"uid\":"), "{line}");
    let read = machine::ReadRequest { path: "/etc/passwd".into() };
    bench.machine().read(bench.as_reader(read)).await.unwrap_err();
    wait(&bench, &["/machine.MachineService/Read", "\"code\":\"PermissionDenied\"", "\"level\":\"warn\""])
        .await;
    let read = machine::ReadRequest { path: "/no/such/file".into() };
    bench.machine().read(bench.as_admin(read)).await.unwrap_err();
    wait(&bench, &["/machine.MachineService/Read", "\"target\":\"/no/such/file\"", "NotFound"]).await;
}

#[tokio::test]
async fn what_is_in_a_request_stays_out_of_the_log() {
    let bench = Bench::start().await;
    let apply = machine::ApplyConfigurationRequest {
        data: b"machine: {token: hunter2-hunter2}".to_vec(),
        ..machine::ApplyConfigurationRequest::default()
    };
    bench.machine().apply_configuration(bench.as_admin(apply)).await.unwrap_err();
    let meta = machine::MetaWriteRequest { key: 10, value: b"hunter2-hunter2".to_vec() };
    let _ = bench.machine().meta_write(bench.as_admin(meta)).await;
    wait(&bench, &["/machine.MachineService/ApplyConfiguration"]).await;
    wait(&bench, &["/machine.MachineService/MetaWrite"]).await;
    assert!(lines(&bench).await.iter().all(|line| !line.contains("hunter2")));
}

#[tokio::test]
async fn the_log_is_streamed_by_the_api_itself() {
    let bench = Bench::start().await;
    let logs = machine::LogsRequest {
        namespace: "system".into(),
        id: LOG.into(),
        follow: true,
        tail_lines: -1,
        ..machine::LogsRequest::default()
    };
    let mut stream = bench.machine().logs(bench.as_reader(logs)).await.unwrap().into_inner();
    bench.machine().hostname(bench.as_reader(())).await.unwrap();
    let mut text = String::new();
    while !text.contains("/machine.MachineService/Hostname") {
        let data = tokio::time::timeout(WAIT, stream.message()).await.unwrap().unwrap().unwrap();
        text.push_str(&String::from_utf8_lossy(&data.bytes));
    }
    assert!(text.contains("\"msg\":\"stream opened\"") && text.contains("\"target\":\"audit\""), "{text}");
}

#[tokio::test]
async fn strangers_of_maintenance_mode_are_written_with_their_address() {
    let bench = Bench::start().await;
    let maintenance = bench.maintenance().await;
    maintenance.machine().version(()).await.unwrap_err();
    wait(
        &bench,
        &["/machine.MachineService/Version", "Unimplemented", "\"address\":\"127.0.0.1:", "\"os:reader\""],
    )
    .await;
    let apply = machine::ApplyConfigurationRequest { data: b"nonsense: [".to_vec(), ..Default::default() };
    let refused = maintenance.machine().apply_configuration(apply).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    wait(&bench, &["/machine.MachineService/ApplyConfiguration", "InvalidArgument"]).await;
}

#[tokio::test]
async fn a_daemon_tells_what_it_turned_away_and_nothing_else() {
    let bench = Bench::start().await;
    let path = bench.node.host.paths.run.join("machined/apid.sock");
    let listener = unix::bind(&path, Access::PRIVATE).unwrap();
    let (state, audit) = (bench.node.store.state.clone(), bench.node.journal.audit.clone());
    tokio::spawn(serve_runtime(state, audit, FOR_APID, listener, CancellationToken::new()));
    let mut client = AuditServiceClient::new(Channel::new(Dialer::unix(&path)));
    let entry = AuditEntry {
        caller: "- 10.0.0.9 - ".to_owned(),
        reason: "no certificate".to_owned(),
        code: 16,
        count: 500,
        ..AuditEntry::default()
    };
    client.report(ReportRequest { entries: vec![entry.clone()] }).await.unwrap();
    wait(&bench, &["handshake refused", "\"address\":\"10.0.0.9\"", "\"count\":500"]).await;
    // On the machine socket nobody may, whatever their role.
    let mut client = AuditServiceClient::new(bench.channel());
    let request = bench.as_admin(ReportRequest { entries: vec![entry] });
    assert_eq!(client.report(request).await.unwrap_err().code(), Code::Unimplemented);
}
