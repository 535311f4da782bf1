//! Messages of `syslog(3)`, as RFC 3164 and RFC 5424 have them, made one JSON object each.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::civil::DateTime;
use serde_json::Value;

/// Bytes of a message that are looked at; the rest is cut.
pub const MESSAGE_MAX: usize = 1024;

/// The largest priority: facility 23, severity 7.
const PRIORITY_MAX: u16 = 191;

/// What a message without them gets.
const NO_HOSTNAME: &str = "localhost";
const NO_TAG: &str = "unknown";

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// What a message says, in the order in which it is written.
type Parts = BTreeMap<&'static str, Value>;

/// The JSON line of a message; none for one that has neither form. `now` gives the year, which the older form lacks.
pub fn parse(message: &[u8], now: Timestamp) -> Option<String> {
    let text = String::from_utf8_lossy(&message[..message.len().min(MESSAGE_MAX)]);
    let text = text.trim_end_matches(['\0', '\n', '\r']);
    let (priority, rest) = text.strip_prefix('<')?.split_once('>')?;
    let plain = !priority.is_empty() && priority.len() <= 3 && priority.bytes().all(|b| b.is_ascii_digit());
    let priority = priority.parse::<u16>().ok().filter(|number| plain && *number <= PRIORITY_MAX)?;
    let mut parts = match rest.split_once(' ') {
        Some((version, rest)) if is_version(version) => newer(version, rest)?,
        _ => older(rest, now)?,
    };
    parts.extend([
        ("priority", priority.into()),
        ("facility", (priority >> 3).into()),
        ("severity", (priority & 7).into()),
    ]);
    serde_json::to_string(&parts).ok()
}

fn is_version(word: &str) -> bool {
    (1..=2).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_digit())
}

/// `Feb 16 17:54:19 [hostname ][tag[pid]: ]content`.
fn older(text: &str, now: Timestamp) -> Option<Parts> {
    let (stamp, rest) = text.split_at_checked(15)?;
    let timestamp = stamp_of(stamp, now)?;
    let rest = rest.strip_prefix(' ').unwrap_or(rest);
    let (hostname, tag, content) = match tagged(rest) {
        Some((tag, content)) => (NO_HOSTNAME, tag, content),
        None => match rest.split_once(' ').and_then(|(host, rest)| Some((host, tagged(rest)?))) {
            Some((hostname, (tag, content))) => (hostname, tag, content),
            None => (NO_HOSTNAME, NO_TAG, rest),
        },
    };
    Some(Parts::from([
        ("timestamp", timestamp.into()),
        ("hostname", hostname.into()),
        ("tag", tag.into()),
        ("content", content.into()),
    ]))
}

/// Reads `Mmm dd hh:mm:ss`, of the current year.
fn stamp_of(text: &str, now: Timestamp) -> Option<String> {
    let (month, rest) = (text.get(..3)?, text.get(3..)?.strip_prefix(' ')?);
    let month = i8::try_from(MONTHS.iter().position(|name| *name == month)?).ok()? + 1;
    let (day, time) = (rest.get(..2)?, rest.get(2..)?.strip_prefix(' ')?);
    let number = |text: &str| text.trim_start().parse::<i8>().ok();
    let mut parts = time.split(':');
    let (hour, minute, second) = (parts.next()?, parts.next()?, parts.next()?);
    let year = now.to_zoned(jiff::tz::TimeZone::UTC).year();
    let date =
        DateTime::new(year, month, number(day)?, number(hour)?, number(minute)?, number(second)?, 0).ok()?;
    Some(format!("{date}Z"))
}

/// `tag[pid]: content` or `tag: content`.
fn tagged(text: &str) -> Option<(&str, &str)> {
    let word_end = text.find(' ').unwrap_or(text.len());
    let word = text[..word_end].strip_suffix(':')?;
    let tag = match word.split_once('[') {
        Some((tag, pid)) if pid.ends_with(']') => tag,
        Some(_) => return None,
        None => word,
    };
    (!tag.is_empty()).then(|| (tag, text[word_end..].trim_start_matches(' ')))
}

/// `1 <time> <host> <app> <process> <message id> <structured data>[ <message>]`, after the version.
fn newer(version: &str, text: &str) -> Option<Parts> {
    let mut fields = text.splitn(6, ' ');
    let mut field = || fields.next();
    let (timestamp, hostname, app) = (field()?, field()?, field()?);
    let (process, id, rest) = (field()?, field()?, field()?);
    let timestamp = match timestamp {
        "-" => "0001-01-01T00:00:00Z",
        stamp => stamp.parse::<Timestamp>().is_ok().then_some(stamp)?,
    };
    let (data, message) = rest.split_at(data_len(rest)?);
    Some(Parts::from([
        ("version", version.parse::<u8>().ok()?.into()),
        ("timestamp", timestamp.into()),
        ("hostname", hostname.into()),
        ("app_name", app.into()),
        ("proc_id", process.into()),
        ("msg_id", id.into()),
        ("structured_data", data.into()),
        ("message", message.strip_prefix(' ').unwrap_or(message).into()),
    ]))
}

/// Length of `-` or of one or more `[…]`, in which quotes hide brackets.
fn data_len(text: &str) -> Option<usize> {
    if text == "-" || text.starts_with("- ") {
        return Some(1);
    }
    let (mut inside, mut quoted, mut escaped) = (false, false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' if inside => quoted = !quoted,
            _ if quoted => {}
            b'[' if !inside => inside = true,
            b']' if inside => inside = false,
            _ if inside => {}
            _ => return (at > 0 && byte == b' ').then_some(at),
        }
    }
    (!inside && !text.is_empty()).then_some(text.len())
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    #[track_caller]
    fn check(message: &str, expect: Expect) {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        expect.assert_eq(&parse(message.as_bytes(), now).unwrap_or_default());
    }

    #[test]
    fn the_older_form_with_and_without_host_and_tag() {
        check(
            "<4>Feb 16 17:54:19 time=\"2024-02-16T17:54:19Z\" level=warning",
            expect![[
                r#"{"content":"time=\"2024-02-16T17:54:19Z\" level=warning","facility":0,"hostname":"localhost","priority":4,"severity":4,"tag":"unknown","timestamp":"2023-02-16T17:54:19Z"}"#
            ]],
        );
        check(
            "<30>Mar  3 12:55:18 runner[834097]: Hello, world!\n",
            expect![[
                r#"{"content":"Hello, world!","facility":3,"hostname":"localhost","priority":30,"severity":6,"tag":"runner","timestamp":"2023-03-03T12:55:18Z"}"#
            ]],
        );
        check(
            "<30>Mar  3 12:55:18 web-1 runner: Hello",
            expect![[
                r#"{"content":"Hello","facility":3,"hostname":"web-1","priority":30,"severity":6,"tag":"runner","timestamp":"2023-03-03T12:55:18Z"}"#
            ]],
        );
    }

    #[test]
    fn the_newer_form() {
        check(
            r#"<165>1 2003-10-11T22:14:15.003Z host.example.com evntslog - ID47 [a@1 iut="3]\"" b="4"][c@2] An entry"#,
            expect![[
                r#"{"app_name":"evntslog","facility":20,"hostname":"host.example.com","message":"An entry","msg_id":"ID47","priority":165,"proc_id":"-","severity":5,"structured_data":"[a@1 iut=\"3]\\\"\" b=\"4\"][c@2]","timestamp":"2003-10-11T22:14:15.003Z","version":1}"#
            ]],
        );
        check(
            "<14>1 - - app 12 - - text",
            expect![[
                r#"{"app_name":"app","facility":1,"hostname":"-","message":"text","msg_id":"-","priority":14,"proc_id":"12","severity":6,"structured_data":"-","timestamp":"0001-01-01T00:00:00Z","version":1}"#
            ]],
        );
    }

    #[test]
    fn what_has_neither_form_is_dropped() {
        for message in [
            "",
            "hello",
            "<>Feb 16 17:54:19 x",
            "<192>Feb 16 17:54:19 x",
            "<+1>Feb 16 17:54:19 x",
            "<1>Feb 30 17:54:19 x",
            "<1>Foo 16 17:54:19 x",
            "<1>é",
            "<1>1 not-a-time host app - - - text",
            "<1>1 2003-10-11T22:14:15Z host app - - [open",
            "<1>1 2003-10-11T22:14:15Z host app - - text",
        ] {
            check(message, expect![""]);
        }
    }

    #[test]
    fn random_bytes_do_no_harm() {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let seeds: [&[u8]; 2] =
            [b"<30>Mar  3 12:55:18 h r[1]: x", b"<165>1 2003-10-11T22:14:15.003Z h e - I [a@1 b=\"c\"] m"];
        for seed in seeds {
            for at in 0..seed.len() {
                for byte in [0, b' ', b'[', b']', b'"', b'\\', 0xff] {
                    let mut message = seed.to_vec();
                    message[at] = byte;
                    let _ = parse(&message, now);
                    let _ = parse(&message[..at], now);
                }
            }
        }
    }
}
