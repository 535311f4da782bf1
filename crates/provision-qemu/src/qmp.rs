//! The machine protocol of QEMU: what is said to a monitor, and what its events mean. No I/O here.

use ichor_provision_local::{POWERED_OFF, REBOOTED};
use serde_json::{Value, json};

/// The longest line that is read; QEMU's own are far shorter.
pub(crate) const LINE_MAX: usize = 64 << 10;

/// Ends the negotiation; nothing else is accepted before.
pub(crate) fn hello() -> String {
    command("qmp_capabilities", None)
}

/// Presses the power button.
pub(crate) fn press_power() -> String {
    command("system_powerdown", None)
}

/// A line for the monitor of people.
pub(crate) fn human(line: &str) -> String {
    command("human-monitor-command", Some(json!({"command-line": line})))
}

fn command(name: &str, arguments: Option<Value>) -> String {
    let mut call = json!({"execute": name});
    if let Some(arguments) = arguments {
        call["arguments"] = arguments;
    }
    format!("{call}\n")
}

/// Why a machine went down, if a line says so.
pub(crate) fn shutdown_reason(line: &[u8]) -> Option<String> {
    let event: Value = serde_json::from_slice(line).ok()?;
    if event["event"] != "SHUTDOWN" {
        return None;
    }
    event["data"]["reason"].as_str().map(str::to_owned)
}

/// The answer to a command, if a line is one: its text, or why not.
pub(crate) fn answer(line: &[u8]) -> Option<Result<String, String>> {
    let reply: Value = serde_json::from_slice(line).ok()?;
    if let Some(error) = reply.get("error") {
        return Some(Err(error["desc"].as_str().unwrap_or("refused").to_owned()));
    }
    let value = reply.get("return")?;
    Some(Ok(value.as_str().unwrap_or_default().to_owned()))
}

/// What the end of QEMU means for its machine: `code` is how the process ended, `reason` what it said before.
pub(crate) fn verdict(code: i32, reason: Option<&str>) -> i32 {
    match (code, reason) {
        (0, Some("guest-reset" | "host-qmp-system-reset" | "subsystem-reset")) => REBOOTED,
        (0, Some("guest-panic") | None) => 1,
        (0, Some(_)) => POWERED_OFF,
        (code, _) => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_lines_of_json() {
        assert_eq!(press_power(), "{\"execute\":\"system_powerdown\"}\n");
        let line = human("savevm a");
        assert!(line.ends_with('\n') && line.lines().count() == 1, "{line}");
        let call: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(call["execute"], "human-monitor-command");
        assert_eq!(call["arguments"], json!({"command-line": "savevm a"}));
    }

    #[test]
    fn only_the_end_of_a_machine_is_told_from_other_lines() {
        let reason = |line: &str| shutdown_reason(line.as_bytes());
        let down = r#"{"timestamp": {"seconds": 1}, "event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-reset"}}"#;
        assert_eq!(reason(down).as_deref(), Some("guest-reset"));
        for other in [r#"{"QMP": {}}"#, r#"{"return": {}}"#, r#"{"event": "RESET"}"#, "", "{", "[]", "\u{0}"]
        {
            assert_eq!(reason(other), None, "{other}");
        }
    }

    #[test]
    fn answers_carry_text_or_a_reason() {
        assert_eq!(answer(br#"{"return": "done"}"#), Some(Ok("done".into())));
        assert_eq!(answer(br#"{"return": {}}"#), Some(Ok(String::new())));
        assert_eq!(answer(br#"{"error": {"class": "X", "desc": "no"}}"#), Some(Err("no".into())));
        assert_eq!(answer(br#"{"event": "STOP"}"#), None);
    }

    #[test]
    fn a_machine_reboots_stops_or_crashes() {
        assert_eq!(verdict(0, Some("guest-reset")), REBOOTED);
        assert_eq!(verdict(0, Some("guest-shutdown")), POWERED_OFF);
        assert_eq!(verdict(0, Some("host-qmp-quit")), POWERED_OFF);
        assert_eq!(verdict(0, Some("guest-panic")), 1);
        assert_eq!(verdict(0, None), 1, "QEMU went without a word");
        assert_eq!(verdict(137, Some("guest-reset")), 137);
    }
}
