//! One line of the audit log, and the table that turns a flood of the same into a count. No I/O here.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use ichor_rpc::authorize;
use ichor_rpc::caller::Parts;
use ichor_rpc::status::go_name;
use jiff::Timestamp;
use tonic::Code;

/// Lines of one kind in one [`WINDOW`] before the rest is counted.
const BURST: u32 = 10;
/// How long counts are gathered.
const WINDOW: Duration = Duration::from_secs(10);
/// Kinds told apart at once; what comes beyond is counted together.
const KINDS_MAX: usize = 256;
/// Bytes of a method's path that are written: whoever makes one up must not fill the log with it.
const METHOD_MAX: usize = 96;

/// What there is to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A call that has ended.
    Call,
    /// A call that will go on for a while.
    Opened,
    /// A connection that came to nothing.
    Handshake,
}

/// Something that happened.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// What it is.
    pub what: What,
    /// Who, as the text of [`ichor_rpc::caller`].
    pub caller: &'a str,
    /// The gateway in between, likewise; empty when there is none.
    pub proxy: &'a str,
    /// The caller's roles, separated by commas.
    pub roles: &'a str,
    /// The method's path.
    pub method: &'a str,
    /// What was asked for, where that may be known.
    pub target: &'a str,
    /// How it ended.
    pub code: Code,
    /// Why it was turned away, where no call says so.
    pub reason: &'a str,
    /// How long it took.
    pub took: Duration,
    /// How often it happened.
    pub count: u64,
}

impl Event<'_> {
    /// What makes two events the same: everything but port, time and duration.
    fn kind(&self, state: &RandomState) -> u64 {
        // Methods that nobody serves have as many names as their caller likes.
        let method = authorize::known(self.method).unwrap_or("");
        state.hash_one((
            Parts::lasting(self.caller),
            Parts::lasting(self.proxy),
            self.roles,
            method,
            self.target,
            self.reason,
            (self.code as i32, self.what as u8),
        ))
    }

    fn is_denied(&self) -> bool {
        matches!(self.code, Code::PermissionDenied | Code::Unauthenticated)
    }

    /// The caller is on no socket of this machine.
    pub fn is_remote(&self) -> bool {
        Parts::parse(self.caller).address != "unix"
    }

    /// A short line for people, with its newline.
    pub fn brief(&self, now: Timestamp) -> String {
        let level = if self.is_denied() { "WARN" } else { "INFO" };
        let mut out = format!("{now:.3} {level} call {{\"method\": ");
        quote(&mut out, &self.method[..cut(self.method, METHOD_MAX)]);
        // Writing to a string cannot fail.
        let _ = match self.what {
            What::Opened => out.write_str(", \"code\": \"open\"}\n"),
            _ => {
                let took = self.took.as_secs_f64() * 1000.0;
                writeln!(out, ", \"code\": \"{}\", \"duration\": \"{took:.3}ms\"}}", go_name(self.code))
            }
        };
        out
    }

    /// The line, with its newline. `since` is the time of the first of several.
    pub fn line(&self, now: Timestamp, since: Option<Timestamp>) -> String {
        let mut out = String::with_capacity(320);
        // Writing to a string cannot fail.
        let _ = write!(out, "{{\"time\":\"{now:.6}\",\"level\":\"");
        out.push_str(if self.is_denied() { "warn" } else { "info" });
        out.push_str("\",\"msg\":\"");
        out.push_str(match (self.what, self.count) {
            (What::Opened, _) => "stream opened",
            (What::Handshake, _) => "handshake refused",
            (What::Call, 0 | 1) => "call",
            (What::Call, _) => "calls",
        });
        out.push('"');
        let mut text = |key: &str, value: &str| {
            if !value.is_empty() {
                let _ = write!(out, ",\"{key}\":");
                quote(&mut out, value);
            }
        };
        text("method", &self.method[..cut(self.method, METHOD_MAX)]);
        text("target", self.target);
        text("code", if self.what == What::Opened { "" } else { go_name(self.code) });
        text("reason", self.reason);
        if self.what == What::Call {
            let _ = write!(out, ",\"duration_ms\":{:.3}", self.took.as_secs_f64() * 1000.0);
        }
        if self.count > 1 {
            let _ = write!(out, ",\"count\":{}", self.count);
        }
        if let Some(since) = since {
            let _ = write!(out, ",\"since\":\"{since:.6}\"");
        }
        who(&mut out, self.caller, "");
        if !self.roles.is_empty() {
            out.push_str(",\"roles\":[");
            for (index, role) in self.roles.split(',').enumerate() {
                out.push_str(if index == 0 { "" } else { "," });
                quote(&mut out, role);
            }
            out.push(']');
        }
        if !self.proxy.is_empty() {
            who(&mut out, self.proxy, "proxy_");
        }
        out.push_str("}\n");
        out
    }
}

/// Name, credential and address of a caller or a gateway.
fn who(out: &mut String, caller: &str, prefix: &str) {
    let parts = Parts::parse(caller);
    let mut text = |key: &str, value: &str| {
        if !value.is_empty() {
            let _ = write!(out, ",\"{prefix}{key}\":");
            quote(out, value);
        }
    };
    text("name", parts.name);
    match parts.credential.strip_prefix("uid=") {
        Some(uid) => text("uid", uid),
        None => text("certificate", parts.credential),
    }
    match parts.port {
        Some(pid) if parts.address == "unix" => {
            text("address", "unix");
            text("pid", &pid.to_string());
        }
        Some(port) if parts.address.contains(':') => text("address", &format!("[{}]:{port}", parts.address)),
        Some(port) => text("address", &format!("{}:{port}", parts.address)),
        None => text("address", parts.address),
    }
}

/// A JSON string.
fn quote(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            '\0'..='\x1f' | '\x7f' => _ = write!(out, "\\u{:04x}", u32::from(character)),
            _ => out.push(character),
        }
    }
    out.push('"');
}

/// The largest length up to `max` that does not cut a character.
fn cut(text: &str, max: usize) -> usize {
    let max = max.min(text.len());
    (0..=max).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0)
}

/// Events of one kind within a window.
struct Kind {
    began: Timestamp,
    lines: u32,
    counted: Option<Counted>,
}

/// Events that were not written one by one.
struct Counted {
    count: u64,
    since: Timestamp,
    longest: Duration,
    what: What,
    caller: String,
    proxy: String,
    roles: String,
    method: String,
    target: String,
    code: Code,
    reason: String,
}

impl Counted {
    fn new(event: &Event<'_>, now: Timestamp) -> Self {
        let forget_port = |text: &str| match text {
            "" => String::new(),
            text => format!("- {}", Parts::lasting(text)),
        };
        Self {
            count: 0,
            since: now,
            longest: Duration::ZERO,
            what: event.what,
            caller: forget_port(event.caller),
            proxy: forget_port(event.proxy),
            roles: event.roles.to_owned(),
            method: event.method.to_owned(),
            target: event.target.to_owned(),
            code: event.code,
            reason: event.reason.to_owned(),
        }
    }

    fn line(&self, now: Timestamp) -> String {
        let event = Event {
            what: self.what,
            caller: &self.caller,
            proxy: &self.proxy,
            roles: &self.roles,
            method: &self.method,
            target: &self.target,
            code: self.code,
            reason: &self.reason,
            took: self.longest,
            count: self.count,
        };
        event.line(now, Some(self.since))
    }
}

/// What happened lately, by kind.
#[derive(Default)]
pub struct Table {
    hash: RandomState,
    kinds: HashMap<u64, Kind>,
    is_flush_due: bool,
}

impl Table {
    /// Takes an event: the line to write now, if any, and, when counting begins, after what time to
    /// [`Table::flush`].
    pub fn add(&mut self, event: &Event<'_>, now: Timestamp) -> (Option<String>, Option<Duration>) {
        let mut key = event.kind(&self.hash);
        if self.kinds.len() >= KINDS_MAX && !self.kinds.contains_key(&key) {
            self.kinds.retain(|_, kind| kind.counted.is_some() || !kind.is_over(now));
            if self.kinds.len() >= KINDS_MAX {
                // Too many to tell apart: together, by how they ended. Those are few.
                key = u64::from((event.code as i32).unsigned_abs()) << 2 | event.what as u64;
            }
        }
        let kind = self.kinds.entry(key).or_insert(Kind { began: now, lines: 0, counted: None });
        if kind.counted.is_none() && kind.is_over(now) {
            (kind.began, kind.lines) = (now, 0);
        }
        if kind.counted.is_none() && kind.lines < BURST {
            kind.lines += 1;
            return (Some(event.line(now, None)), None);
        }
        let counted = kind.counted.get_or_insert_with(|| Counted::new(event, now));
        counted.count += event.count.max(1);
        counted.longest = counted.longest.max(event.took);
        let wake = (!self.is_flush_due).then_some(WINDOW);
        self.is_flush_due = true;
        (None, wake)
    }

    /// The lines of all counts, and when to call again, if there is a reason to.
    pub fn flush(&mut self, now: Timestamp) -> (String, Option<Duration>) {
        let mut lines = String::new();
        for kind in self.kinds.values_mut() {
            if let Some(counted) = kind.counted.take() {
                lines.push_str(&counted.line(now));
                // A flood that goes on is counted from its first call of the next window on.
                (kind.began, kind.lines) = (now, BURST);
            }
        }
        self.kinds.retain(|_, kind| !kind.is_over(now));
        self.is_flush_due = false;
        (lines, None)
    }
}

impl Kind {
    fn is_over(&self, now: Timestamp) -> bool {
        now.duration_since(self.began).unsigned_abs() >= WINDOW
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn at(millisecond: i64) -> Timestamp {
        Timestamp::from_millisecond(1_700_000_000_000 + millisecond).unwrap()
    }

    fn event() -> Event<'static> {
        Event {
            what: What::Call,
            caller: "4242 10.5.0.1 00112233aabbccdd admin",
            proxy: "",
            roles: "os:admin,os:reader",
            method: "/machine.MachineService/Version",
            target: "",
            code: Code::Ok,
            reason: "",
            took: Duration::from_micros(1234),
            count: 1,
        }
    }

    #[test]
    fn lines_say_who_what_when_and_how_it_ended() {
        let denied = Event {
            code: Code::PermissionDenied,
            caller: "4242 fd00::1 - ",
            proxy: "50000 10.5.0.2 ff node-1",
            roles: "",
            ..event()
        };
        let local = Event { caller: "17 unix uid=0 ", target: "ku\"be\nlet", what: What::Opened, ..event() };
        let refused = Event {
            what: What::Handshake,
            caller: "- 10.0.0.9 - ",
            method: "",
            roles: "",
            code: Code::Unauthenticated,
            reason: "no certificate",
            count: 7,
            ..event()
        };
        let lines: String = [event(), denied, local, refused].map(|event| event.line(at(5), None)).concat();
        expect![[r#"
            {"time":"2023-11-14T22:13:20.005000Z","level":"info","msg":"call","method":"/machine.MachineService/Version","code":"OK","duration_ms":1.234,"name":"admin","certificate":"00112233aabbccdd","address":"10.5.0.1:4242","roles":["os:admin","os:reader"]}
            {"time":"2023-11-14T22:13:20.005000Z","level":"warn","msg":"call","method":"/machine.MachineService/Version","code":"PermissionDenied","duration_ms":1.234,"address":"[fd00::1]:4242","proxy_name":"node-1","proxy_certificate":"ff","proxy_address":"10.5.0.2:50000"}
            {"time":"2023-11-14T22:13:20.005000Z","level":"info","msg":"stream opened","method":"/machine.MachineService/Version","target":"ku\"be\u000alet","uid":"0","address":"unix","pid":"17","roles":["os:admin","os:reader"]}
            {"time":"2023-11-14T22:13:20.005000Z","level":"warn","msg":"handshake refused","code":"Unauthenticated","reason":"no certificate","count":7,"address":"10.0.0.9"}
        "#]]
        .assert_eq(&lines);
    }

    #[test]
    fn brief_lines_say_what_was_called_and_how_it_ended() {
        let denied = Event { code: Code::PermissionDenied, ..event() };
        let local = Event { caller: "17 unix uid=0 ", what: What::Opened, ..event() };
        assert!(event().is_remote() && !local.is_remote());
        let lines: String = [event(), denied, local].map(|event| event.brief(at(5))).concat();
        expect![[r#"
            2023-11-14T22:13:20.005Z INFO call {"method": "/machine.MachineService/Version", "code": "OK", "duration": "1.234ms"}
            2023-11-14T22:13:20.005Z WARN call {"method": "/machine.MachineService/Version", "code": "PermissionDenied", "duration": "1.234ms"}
            2023-11-14T22:13:20.005Z INFO call {"method": "/machine.MachineService/Version", "code": "open"}
        "#]]
        .assert_eq(&lines);
    }

    #[test]
    fn a_made_up_method_is_cut() {
        let name = "/ü".repeat(1000);
        let line = Event { method: &name, ..event() }.line(at(0), None);
        assert!(line.len() < 500, "{line}");
    }

    #[test]
    fn a_flood_becomes_a_count() {
        let mut table = Table::default();
        let mut lines = 0;
        let mut wakes = Vec::new();
        for number in 0..1000 {
            // Another connection each time: the port does not make it another caller.
            let caller = format!("{number} 10.5.0.1 00112233aabbccdd admin");
            let (line, wake) = table.add(&Event { caller: &caller, ..event() }, at(number));
            lines += u32::from(line.is_some());
            wakes.extend(wake);
        }
        assert_eq!((lines, wakes), (BURST, vec![WINDOW]));
        let (text, again) = table.flush(at(10_010));
        assert_eq!(again, None);
        expect![[r#"
            {"time":"2023-11-14T22:13:30.010000Z","level":"info","msg":"calls","method":"/machine.MachineService/Version","code":"OK","duration_ms":1.234,"count":990,"since":"2023-11-14T22:13:20.010000Z","name":"admin","certificate":"00112233aabbccdd","address":"10.5.0.1","roles":["os:admin","os:reader"]}
        "#]]
        .assert_eq(&text);
        // It goes on: counted at once. After a rest: written again.
        assert!(table.add(&event(), at(10_020)).0.is_none());
        assert_eq!(table.flush(at(20_020)).0.lines().count(), 1);
        assert!(table.add(&event(), at(40_000)).0.is_some());
    }

    #[test]
    fn another_outcome_caller_or_target_is_not_lost_in_a_flood() {
        let mut table = Table::default();
        for number in 0..100 {
            table.add(&event(), at(number));
        }
        for other in [
            Event { code: Code::PermissionDenied, ..event() },
            Event { caller: "1 10.5.0.9 00112233aabbccdd admin", ..event() },
            Event { caller: "1 10.5.0.1 ffff admin", ..event() },
            Event { method: "/machine.MachineService/Reboot", ..event() },
            Event { target: "kubelet", ..event() },
            Event { roles: "os:reader", ..event() },
        ] {
            assert!(table.add(&other, at(200)).0.is_some(), "{other:?}");
        }
    }

    #[test]
    fn callers_without_end_stay_bounded() {
        let mut table = Table::default();
        let mut lines = 0;
        for number in 0..100_000_u32 {
            let caller = format!("1 10.{}.{}.1 - ", number >> 8, number & 255);
            let method = format!("/no.Such/Method{number}");
            let flood = Event { caller: &caller, method: &method, code: Code::Unimplemented, ..event() };
            lines += usize::from(table.add(&flood, at(0)).0.is_some());
        }
        assert!(lines <= KINDS_MAX + BURST as usize, "{lines}");
        assert!(table.kinds.len() <= KINDS_MAX + 1);
        let (text, _) = table.flush(at(10_000));
        assert_eq!(text.lines().count(), 1);
        assert!(text.contains("\"count\":997"), "{text}");
    }
}
