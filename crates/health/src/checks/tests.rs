//! Verdicts over made-up observations.

use ichor_wire::machine::{ServiceEvent, ServiceEvents, ServiceHealth};
use serde_json::json;

use super::*;

fn fail(text: &str) -> Verdict {
    Verdict::Fail(text.to_owned())
}

fn answer<T>(node: &str, value: T) -> Answer<T> {
    (node.to_owned(), Ok(value))
}

fn etcd(state: &str, healthy: bool, message: &str) -> Vec<ServiceInfo> {
    let event = ServiceEvent { msg: "Started task".into(), state: state.into(), ts: None };
    vec![ServiceInfo {
        id: "etcd".into(),
        state: state.into(),
        events: Some(ServiceEvents { events: vec![event] }),
        health: Some(ServiceHealth { healthy, last_message: message.into(), ..ServiceHealth::default() }),
    }]
}

#[test]
fn a_service_must_run_and_be_healthy_on_every_machine() {
    assert_eq!(service("etcd", &[answer("a", etcd("Running", true, ""))]), Verdict::Pass);
    let answers = [
        answer("a", etcd("Running", true, "")),
        answer("b", etcd("Running", false, "no leader")),
        answer("c", etcd("Preparing", false, "")),
        answer("d", Vec::new()),
        ("e".to_owned(), Err("connection refused".to_owned())),
    ];
    assert_eq!(
        service("etcd", &answers),
        fail(
            "b: service is not healthy: etcd (no leader); \
             c: service \"etcd\" not in expected state \"Running\": current state [Preparing] Started task; \
             d: service \"etcd\" is not there; \
             e: connection refused"
        )
    );
}

fn member(id: u64, hostname: &str, is_learner: bool) -> EtcdMember {
    EtcdMember {
        id,
        hostname: hostname.into(),
        is_learner,
        peer_urls: vec![format!("https://10.5.0.{id}:2380")],
        ..EtcdMember::default()
    }
}

#[test]
fn members_must_be_the_same_everywhere() {
    let both = vec![member(2, "cp-1", false), member(3, "cp-2", false)];
    let learner = vec![member(2, "cp-1", false), member(3, "cp-2", true)];
    assert_eq!(members_agree(&[answer("a", both.clone()), answer("b", both.clone())]), Verdict::Pass);
    assert_eq!(
        members_agree(&[answer("a", both), answer("b", learner)]),
        fail("b: knows the members [cp-1 cp-2 (learner)], while a knows [cp-1 cp-2]")
    );
    assert_eq!(members_agree(&[("a".to_owned(), Err("etcd is down".to_owned()))]), fail("a: etcd is down"));
}

#[test]
fn members_must_be_control_planes() {
    let members = answer("a", vec![member(2, "cp-1", false), member(9, "gone", false)]);
    let one = [Machine::at("10.5.0.2", Kind::ControlPlane)];
    assert_eq!(
        members_are_control_planes(&members, &one),
        fail("etcd members at [10.5.0.9] are not among the control planes at [10.5.0.2]")
    );
    let both = [one[0].clone(), Machine::at("10.5.0.9", Kind::ControlPlane)];
    assert_eq!(members_are_control_planes(&members, &both), Verdict::Pass);
    assert_eq!(host_of("https://[fd00::1]:2380"), "fd00::1");
    assert_eq!(host_of("https://10.5.0.2:2380"), "10.5.0.2");
}

#[test]
fn memory_is_judged_by_what_the_machine_is_for() {
    let machines = [Machine::at("a", Kind::ControlPlane), Machine::at("b", Kind::Worker)];
    let bytes = Some(1 << 30);
    assert_eq!(
        memory(&[answer("a", bytes), answer("b", bytes), answer("a", None)], &machines),
        fail("a: does not meet memory requirements: expected at least 1698 MiB, actual 1024 MiB")
    );
}

#[test]
fn a_small_partition_fails_and_a_machine_without_one_does_not() {
    assert_eq!(disk(&[answer("a", None), answer("b", Some(10 << 30))]), Verdict::Pass);
    assert_eq!(
        disk(&[answer("b", Some(1 << 30))]),
        fail("b: the EPHEMERAL partition is too small, expected at least 3932 MiB, actual 1024 MiB")
    );
}

#[test]
fn a_machine_that_boots_says_what_it_waits_for() {
    let booting = json!({"stage": "booting", "status": {"unmetConditions": [{"name": "services", "reason": "etcd not healthy"}]}});
    assert_eq!(
        booted(&[answer("a", json!({"stage": "running"})), answer("b", booting)]),
        fail("b: is not running but booting (services: etcd not healthy)")
    );
}

fn node(name: &str, address: &str, ready: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {}},
        "spec": {},
        "status": {
            "addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": address}],
            "conditions": [{"type": "Ready", "status": ready, "reason": "KubeletNotReady", "message": "cni plugin not initialized"}],
        },
    })
}

#[test]
fn machines_and_nodes_are_the_same_set() {
    let machines = [Machine::at("10.5.0.2", Kind::ControlPlane), Machine::at("10.5.0.3", Kind::Worker)];
    let (a, b, c) =
        (node("a", "10.5.0.2", "True"), node("b", "10.5.0.3", "True"), node("c", "10.5.0.4", "True"));
    assert_eq!(nodes_match(&machines, &[&b, &a]), Verdict::Pass);
    assert_eq!(
        nodes_match(&machines, &[&a, &c]),
        fail(r#"can't find expected node with IPs ["10.5.0.3"]; unexpected node c with IPs ["10.5.0.4"]"#)
    );
}

#[test]
fn nodes_that_are_not_ready_say_why() {
    assert_eq!(nodes_ready(&[node("a", "10.5.0.2", "True")]), Verdict::Pass);
    assert_eq!(
        nodes_ready(&[node("a", "10.5.0.2", "True"), node("b", "10.5.0.3", "False")]),
        fail("some nodes are not ready: [b (cni plugin not initialized)]")
    );
    let mut closed = node("c", "10.5.0.4", "True");
    closed["spec"]["unschedulable"] = json!(true);
    assert_eq!(nodes_schedulable(&[closed]), fail("some nodes are not schedulable: [c]"));
}

fn pod(name: &str, ready: &str, state: Value) -> Value {
    json!({
        "metadata": {"name": name},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": ready}],
            "containerStatuses": [{"state": state}],
        },
    })
}

#[test]
fn pods_of_a_workload_are_counted_without_those_that_ended() {
    let running = || json!({"running": {}});
    let good = pod("a", "True", running());
    let over = pod("b", "False", json!({"terminated": {"reason": "Completed"}}));
    let stuck = pod("c", "False", json!({"waiting": {"reason": "ImagePullBackOff"}}));
    let judge = |pods: &[Value], count| workload_pods(pods, count, "kube-system", "k8s-app=kube-dns");
    assert_eq!(judge(&[good.clone(), over.clone()], 1), Verdict::Pass);
    assert_eq!(judge(std::slice::from_ref(&good), 2), fail("expected 2 ready pods, got 1"));
    assert_eq!(
        judge(&[good.clone(), stuck.clone()], 2),
        fail("some pods are not ready: [c (ImagePullBackOff)]")
    );
    assert_eq!(
        judge(&[over], 2),
        fail(r#"no ready pods found for namespace "kube-system" and label selector "k8s-app=kube-dns""#)
    );
    assert_eq!(component("kube-apiserver", std::slice::from_ref(&good), 1), Verdict::Pass);
    assert_eq!(
        component("kube-apiserver", &[good], 3),
        fail("expected number of pods for kube-apiserver to be 3, got 1: [a]")
    );
    assert_eq!(
        component("kube-apiserver", &[stuck], 1),
        fail("some pods are not ready for kube-apiserver: [c (ImagePullBackOff)]")
    );
}

#[test]
fn static_pods_are_found_by_the_start_of_their_id() {
    let all = [
        "kube-system/kube-apiserver-a",
        "kube-system/kube-controller-manager-a",
        "kube-system/kube-scheduler-a",
    ];
    assert_eq!(static_pods(&[answer("a", all.map(str::to_owned).to_vec())]), Verdict::Pass);
    assert_eq!(
        static_pods(&[answer("a", vec![all[0].to_owned()])]),
        fail("a: missing static pods: [kube-system/kube-controller-manager kube-system/kube-scheduler]")
    );
}
