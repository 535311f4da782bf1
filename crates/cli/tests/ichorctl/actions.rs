//! Actions that are followed to their end.

use expect_test::expect;
use ichor_wire::common::Data;
use ichor_wire::machine::machine_status_event::{MachineStage, MachineStatus};
use ichor_wire::machine::{
    Event, EventsRequest, MachineStatusEvent, Reboot, RebootResponse, SequenceEvent, Shutdown,
    ShutdownResponse, TaskEvent,
};
use prost::Message;
use tonic::Code;

use crate::fake::{Answer, Methods, Seen};

fn event<M: Message>(name: &str, message: &M) -> Vec<u8> {
    let data = prost_types::Any {
        type_url: format!("talos/runtime/machine.{name}"),
        value: message.encode_to_vec(),
    };
    Event { data: Some(data), actor_id: "actor".into(), ..Event::default() }.encode_to_vec()
}

fn hello() -> Vec<u8> {
    Event { id: "hello".into(), ..Event::default() }.encode_to_vec()
}

/// The first stream tells of the way down, later ones of a machine that is back.
fn events(seen: &Seen) -> Answer {
    let request: EventsRequest = seen.decode();
    if request.tail_events == 0 {
        return Answer::many([
            hello(),
            event("SequenceEvent", &SequenceEvent { sequence: "reboot".into(), action: 1, error: None }),
        ])
        .held();
    }
    let status = MachineStatus { ready: true, unmet_conditions: Vec::new() };
    let running = MachineStatusEvent { stage: MachineStage::Running.into(), status: Some(status) };
    Answer::many([hello(), event("MachineStatusEvent", &running)]).held()
}

fn boot_id(seen: &Seen) -> Answer {
    let id = if seen.before == 0 { "before\n" } else { "after\n" };
    Answer::one(&Data { metadata: None, bytes: id.as_bytes().to_vec().into() })
}

fn reboot(_: &Seen) -> Answer {
    let reply = Reboot { metadata: None, actor_id: "actor".into() };
    Answer::one(&RebootResponse { messages: vec![reply] })
}

#[test]
fn a_reboot_is_followed_until_the_machine_is_back() {
    let fake = Methods::default()
        .on("/machine.MachineService/Events", events)
        .on("/machine.MachineService/Read", boot_id)
        .on("/machine.MachineService/Reboot", reboot)
        .start(&["10.5.0.2"]);
    expect![[r#"
        --- stderr
        "10.5.0.2": waiting for actor ID
        "10.5.0.2": actor ID: actor
        "10.5.0.2": sequence: reboot action: START
        "10.5.0.2": events check condition met
        "10.5.0.2": post check passed
    "#]]
    .assert_eq(&fake.run(&["reboot", "--timeout", "20s"]).text());
    assert!(fake.calls("/machine.MachineService/Read").len() >= 2);
}

#[test]
fn a_shutdown_ends_when_services_stop() {
    let fake = Methods::default()
        .on("/machine.MachineService/Events", |_| {
            let stop = TaskEvent { task: "stopAllServices".into(), action: 0 };
            Answer::many([hello(), event("TaskEvent", &stop)]).held()
        })
        .on("/machine.MachineService/Shutdown", |_| {
            let reply = Shutdown { metadata: None, actor_id: "actor".into() };
            Answer::one(&ShutdownResponse { messages: vec![reply] })
        })
        .start(&["10.5.0.2"]);
    expect![[r#"
        --- stderr
        "10.5.0.2": waiting for actor ID
        "10.5.0.2": actor ID: actor
        "10.5.0.2": events check condition met
    "#]]
    .assert_eq(&fake.run(&["shutdown", "--timeout", "20s"]).text());
}

#[test]
fn a_refused_action_fails_once() {
    let fake = Methods::default()
        .on("/machine.MachineService/Events", events)
        .on("/machine.MachineService/Read", boot_id)
        .on("/machine.MachineService/Reboot", |_| Answer::error(Code::PermissionDenied, "not authorized"))
        .start(&["10.5.0.2"]);
    expect![[r#"
        --- stderr
        "10.5.0.2": waiting for actor ID
        "10.5.0.2": error: rpc error: code = PermissionDenied desc = not authorized
        --- exit 1
    "#]]
    .assert_eq(&fake.run(&["reboot"]).text());
}

#[test]
fn without_waiting_the_action_is_only_started() {
    let fake =
        Methods::default().on("/machine.MachineService/Reboot", reboot).start(&["10.5.0.2", "10.5.0.3"]);
    assert_eq!(fake.run(&["reboot", "--wait=false", "-m", "force"]).text(), "");
    let calls = fake.calls("/machine.MachineService/Reboot");
    let mut nodes: Vec<String> = calls.iter().map(Seen::node).collect();
    nodes.sort();
    assert_eq!(nodes, ["10.5.0.2", "10.5.0.3"]);
}

#[test]
fn a_mode_that_is_none_is_refused_before_anything_is_called() {
    let fake = Methods::default().start(&["10.5.0.2"]);
    expect![[r#"
        --- stderr
        invalid reboot mode: "hard"
          use default, powercycle or force
        --- exit 1
    "#]]
    .assert_eq(&fake.run(&["reboot", "--mode", "hard"]).text());
}

#[test]
fn reset_without_trust_cannot_be_followed() {
    let fake = Methods::default().start(&["10.5.0.2"]);
    expect![[r#"
        --- stderr
        cannot use --wait and --insecure together
          add --wait=false
        --- exit 1
    "#]]
    .assert_eq(&fake.run(&["reset", "--insecure"]).text());
}
