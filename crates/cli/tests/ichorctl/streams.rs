//! Streams: logs and kernel log, events, lists of files.

use expect_test::expect;
use ichor_wire::common::{Data, Metadata};
use ichor_wire::machine::{
    Event, FileInfo, PhaseEvent, SequenceEvent, ServiceEvent, ServiceEvents, ServiceHealth, ServiceInfo,
    ServiceList, ServiceListResponse, ServiceStateEvent,
};
use prost::Message;

use crate::fake::{Answer, Methods, Seen};

fn data(node: &str, bytes: &str, error: &str) -> Vec<u8> {
    let metadata = Metadata { hostname: node.into(), error: error.into(), status: None };
    Data { metadata: Some(metadata), bytes: bytes.as_bytes().to_vec().into() }.encode_to_vec()
}

fn event<M: Message>(node: &str, name: &str, message: &M) -> Vec<u8> {
    Event {
        metadata: Some(Metadata { hostname: node.into(), ..Metadata::default() }),
        data: Some(prost_types::Any {
            type_url: format!("talos/runtime/machine.{name}"),
            value: message.encode_to_vec(),
        }),
        id: "c1".into(),
        actor_id: "actor".into(),
    }
    .encode_to_vec()
}

fn services(_: &Seen) -> Answer {
    let now = jiff::Timestamp::now().as_second() - 34;
    let at = |seconds: i64| Some(prost_types::Timestamp { seconds, nanos: 0 });
    let event = |state: &str, msg: &str, seconds: i64| ServiceEvent {
        msg: msg.into(),
        state: state.into(),
        ts: at(seconds),
    };
    let service = |id: &str, health: ServiceHealth| ServiceInfo {
        id: id.into(),
        state: "Running".into(),
        events: Some(ServiceEvents {
            events: vec![event("Preparing", "Creating", now - 60), event("Running", "Started", now)],
        }),
        health: Some(health),
    };
    let ok = ServiceHealth { healthy: true, last_message: "fine".into(), ..ServiceHealth::default() };
    let unknown = ServiceHealth { unknown: true, ..ServiceHealth::default() };
    let services =
        vec![service("apid", ok), service("machined", unknown), service("trustd", ServiceHealth::default())];
    let list = ServiceList { metadata: None, services };
    Answer::one(&ServiceListResponse { messages: vec![list] })
}

fn node() -> Methods {
    Methods::default()
        .on("/machine.MachineService/Logs", |_| {
            Answer::many([
                data("10.5.0.2", "first li", ""),
                data("10.5.0.3", "other\n", ""),
                data("10.5.0.2", "ne\nsecond", ""),
                data("10.5.0.9", "", "rpc error: code = Unavailable desc = down"),
            ])
        })
        .on("/machine.MachineService/Events", |_| {
            Answer::many([
                Event { id: "hello".into(), ..Event::default() }.encode_to_vec(),
                event(
                    "10.5.0.2",
                    "SequenceEvent",
                    &SequenceEvent { sequence: "boot".into(), action: 1, error: None },
                ),
                event("10.5.0.2", "SurpriseEvent", &SequenceEvent::default()),
                event("10.5.0.3", "PhaseEvent", &PhaseEvent { phase: "startEverything".into(), action: 1 }),
                event(
                    "10.5.0.3",
                    "ServiceStateEvent",
                    &ServiceStateEvent {
                        service: "apid".into(),
                        action: 3,
                        message: "Started".into(),
                        health: None,
                    },
                ),
            ])
        })
        .on("/machine.MachineService/List", |_| {
            let file = |name: &str, mode: u32, link: &str| {
                FileInfo {
                    name: format!("/etc/{name}"),
                    relative_name: name.into(),
                    size: 1234,
                    mode,
                    modified: 1_735_689_600,
                    link: link.into(),
                    uid: 50,
                    ..FileInfo::default()
                }
                .encode_to_vec()
            };
            Answer::many([
                file(".", 0o755 | 1 << 31, ""),
                file("hosts", 0o644, ""),
                file("mtab", 0o777 | 1 << 27, "/proc/mounts"),
            ])
        })
        .on("/machine.MachineService/ServiceList", services)
}

#[test]
fn lines_are_put_together_for_each_machine() {
    let fake = node().start(&["10.5.0.2", "10.5.0.3", "10.5.0.9"]);
    expect![[r#"
        10.5.0.3: other
        10.5.0.2: first line
        10.5.0.2: second
        --- stderr
        ERROR: 10.5.0.9: rpc error: code = Unavailable desc = down
        --- exit 1
    "#]]
    .assert_eq(&fake.run(&["logs", "apid"]).text());
}

#[test]
fn events_take_two_lines_each_and_unknown_ones_are_skipped() {
    let fake = node().start(&["10.5.0.2", "10.5.0.3"]);
    expect![[r#"
        NODE       ID     EVENT   ACTOR   SOURCE   MESSAGE
        10.5.0.2   c1     talos/runtime/machine.SequenceEvent
        actor      boot   START
        10.5.0.3   c1                talos/runtime/machine.PhaseEvent
        actor      startEverything   STOP
        10.5.0.3   c1     talos/runtime/machine.ServiceStateEvent
        actor      apid   RUNNING: Started
    "#]]
    .assert_eq(&fake.run(&["events", "--tail", "-1"]).text());
}

#[test]
fn two_ways_to_start_exclude_each_other() {
    let fake = node().start(&["10.5.0.2"]);
    let run = fake.run(&["events", "--tail", "-1", "--since", "x"]);
    assert!(
        run.err.starts_with("only one of the flags --tail, --duration and --since can be used at once\n")
    );
    assert!(run.err.contains("Usage:"), "{}", run.err);
}

#[test]
fn files_are_listed_by_name_or_with_everything_about_them() {
    let fake = node().start(&["10.5.0.2"]);
    assert_eq!(
        fake.run(&["ls", "/etc"]).text(),
        "NODE        NAME\n127.0.0.1   .\n127.0.0.1   hosts\n127.0.0.1   mtab\n"
    );
    expect![[r#"
        NODE        MODE         UID   GID   SIZE(B)   LASTMOD             LABEL   NAME
        127.0.0.1   drwxr-xr-x   50    0     1234      Jan  1 2025 00:00           .
        127.0.0.1   -rw-r--r--   50    0     1234      Jan  1 2025 00:00           hosts
        127.0.0.1   Lrwxrwxrwx   50    0     1234      Jan  1 2025 00:00           mtab -> /proc/mounts
    "#]]
    .assert_eq(&fake.run(&["ls", "-l", "/etc"]).text());
}

#[test]
fn services_show_health_and_last_change() {
    let fake = node().start(&["10.5.0.2"]);
    let steady = |text: String| text.replace("35s", "34s").replace("1m35s", "1m34s");
    expect![[r#"
        NODE        SERVICE    STATE     HEALTH   LAST CHANGE   LAST EVENT
        127.0.0.1   apid       Running   OK       34s ago       Started
        127.0.0.1   machined   Running   ?        34s ago       Started
        127.0.0.1   trustd     Running   Fail     34s ago       Started
    "#]]
    .assert_eq(&steady(fake.run(&["services"]).text()));
    expect![[r#"
        NODE                  127.0.0.1
        ID                    apid
        STATE                 Running
        HEALTH                OK
        LAST HEALTH MESSAGE   fine
        EVENTS                [Running]: Started (34s ago)
                              [Preparing]: Creating (1m34s ago)
    "#]]
    .assert_eq(&steady(fake.run(&["service", "apid"]).text()));
    expect![[r#"
        --- stderr
        service "apidd" is not registered on any nodes
          did you mean "apid"?
        --- exit 1
    "#]]
    .assert_eq(&fake.run(&["service", "apidd"]).text());
}
