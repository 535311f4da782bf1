//! Any line of a log becomes an event with a JSON form, whatever a service writes.

use std::collections::BTreeMap;

use ichor_fuzz::Target;
use ichor_observe::ship::Event;
use jiff::Timestamp;

#[test]
fn lines_of_logs() {
    let seeds = [
        r#"{"level":"warning","ts":"2024-01-02T03:04:05.5Z","msg":"took long","ms":12}"#,
        r#"failed {"time":1700000000500.0,"err":"no route","msg":"x","nested":{"a":[1,null]}}"#,
        "plain text",
    ];
    Target::text("log-lines").seeds(seeds).run(|input| {
        let line = String::from_utf8_lossy(input);
        let event = Event::parse(&line, Timestamp::UNIX_EPOCH).of_service("svc");
        let json = event.encode(&BTreeMap::new());
        assert!(!json.contains(&b'\n'), "one line");
        let back: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(back["talos-service"], "svc");
        (event.level as u8, event.fields.len().min(6), event.time == Timestamp::UNIX_EPOCH)
    });
}
