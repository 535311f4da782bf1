//! Why the machine went down the last time: asked for, a power cut, a panic, a watchdog, out of memory, a slot that
//! failed its trial. A classifier over what was found at the next start.
//!
//! The record of a boot is a line of text in META. It is written when machined starts (`running`), and again when the
//! machine is about to end because somebody asked for it (`ended`). A record that still says `running` at the next start
//! is the sign of an end that nobody asked for.

use crate::slots::{BootId, Failure, Other, Slots};

/// Characters of a reason or a message that are kept.
const TEXT_MAX: usize = 240;
/// Records of the kernel's crash store that are looked at.
const CRASH_RECORDS_MAX: usize = 32;

/// What META keeps of a boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootRecord {
    /// Which boot.
    pub id: BootId,
    /// How it ended, once it did.
    pub end: Option<AskedEnd>,
}

/// An end that somebody asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskedEnd {
    /// `reboot`, `shutdown`, `reset`, `upgrade`, `rollback` and so on.
    pub action: String,
    /// Who: a caller of the API, a power button, machined itself.
    pub by: String,
}

impl BootRecord {
    /// The text for META.
    pub fn encode(&self) -> String {
        let BootId(id) = self.id;
        match &self.end {
            None => format!("running {id:032x}"),
            Some(end) => format!("ended {id:032x} {} {}", word(&end.action), clean(&end.by)),
        }
    }

    /// Reads the text of META; none when it is no record.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim_end().splitn(4, ' ');
        let (state, id) = (parts.next()?, parts.next()?);
        let id = BootId(u128::from_str_radix(id, 16).ok().filter(|_| id.len() == 32)?);
        let end = match state {
            "running" => None,
            "ended" => {
                let action = parts.next()?.to_owned();
                Some(AskedEnd { action, by: parts.next().unwrap_or_default().to_owned() })
            }
            _ => return None,
        };
        Some(Self { id, end })
    }
}

/// What was found when the machine started.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// The record of the last boot; none on the first, or when META was lost.
    pub record: Option<BootRecord>,
    /// This boot.
    pub this: Option<BootId>,
    /// The texts of crashes that the kernel kept (pstore), newest first.
    pub crashes: Vec<String>,
    /// Whether the watchdog says that it restarted the machine.
    pub watchdog_fired: bool,
    /// Whether a watchdog was armed while the machine ran.
    pub watchdog_armed: bool,
    /// The slots before this boot changed them.
    pub slots: Option<Slots>,
}

/// Why the machine went down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// There was no boot before, or nothing is left of it.
    Unknown,
    /// Somebody asked for it.
    Asked(AskedEnd),
    /// It stopped in the middle of running, and nothing says why: power, or a reset button.
    PowerCut,
    /// The kernel panicked.
    Panic(String),
    /// The kernel killed what it could and had no memory left.
    OutOfMemory(String),
    /// Nobody fed the watchdog any more.
    Watchdog,
    /// A slot was on trial and did not become the default; the cause of its end is inside.
    FailedSlot(Failure, Box<Cause>),
}

impl Cause {
    /// One line for a person.
    pub fn text(&self) -> String {
        match self {
            Self::Unknown => "nothing is known of the boot before this one".into(),
            Self::Asked(end) => format!("{} was asked for by {}", end.action, end.by),
            Self::PowerCut => "the machine stopped without a word: power cut or reset".into(),
            Self::Panic(message) => format!("the kernel panicked: {message}"),
            Self::OutOfMemory(message) => format!("the machine ran out of memory: {message}"),
            Self::Watchdog => "the watchdog restarted the machine: it was not fed".into(),
            Self::FailedSlot(failure, cause) => {
                format!("an upgrade was taken back: {failure}; {}", cause.text())
            }
        }
    }
}

/// Finds the cause.
pub fn classify(facts: &Facts) -> Cause {
    let cause = end(facts);
    match failed_trial(facts) {
        Some(failure) => Cause::FailedSlot(failure, Box::new(cause)),
        None => cause,
    }
}

/// How the last boot ended. What a machine left behind on purpose counts more than what it did not get to.
fn end(facts: &Facts) -> Cause {
    for crash in facts.crashes.iter().take(CRASH_RECORDS_MAX) {
        if let Some(cause) = crash_cause(crash) {
            return cause;
        }
    }
    if facts.watchdog_fired {
        return Cause::Watchdog;
    }
    match &facts.record {
        None => Cause::Unknown,
        // Machined alone was restarted.
        Some(record) if Some(record.id) == facts.this => Cause::Unknown,
        Some(BootRecord { end: Some(end), .. }) => Cause::Asked(end.clone()),
        Some(BootRecord { end: None, .. }) => Cause::PowerCut,
    }
}

/// Whether the boot before this one was a trial that did not hold.
fn failed_trial(facts: &Facts) -> Option<Failure> {
    use crate::slots::Trial;
    match facts.slots?.other() {
        Other::Trial(Trial::Armed { by }) if Some(by) != facts.this => Some(Failure::NeverCameUp),
        Other::Trial(Trial::Started { boot }) if Some(boot) != facts.this => Some(Failure::EndedEarly),
        // Given up by the slot itself, in the boot before.
        Other::Failed { failure, by } => {
            let was_last =
                facts.record.as_ref().is_some_and(|record| record.id == by) && Some(by) != facts.this;
            was_last.then_some(failure)
        }
        Other::Empty | Other::Untested | Other::Unjudged | Other::Good | Other::Trial(_) => None,
    }
}

/// What a record of the crash store tells: the line of the panic says why.
fn crash_cause(text: &str) -> Option<Cause> {
    const PANIC: &str = "Kernel panic - not syncing: ";
    let message = text.lines().find_map(|line| Some(line.split_once(PANIC)?.1))?;
    let message = clean(message.trim_end_matches(['\r', ' ']));
    let lower = message.to_ascii_lowercase();
    if lower.contains("out of memory") || lower.contains("system is deadlocked on memory") {
        return Some(Cause::OutOfMemory(message));
    }
    // A watchdog of the kernel ends in a panic, so that its record is kept.
    if lower.contains("watchdog") && lower.contains("timeout") {
        return Some(Cause::Watchdog);
    }
    Some(Cause::Panic(message))
}

/// Without control characters, and not endless.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(TEXT_MAX).collect()
}

fn word(text: &str) -> String {
    let text: String = clean(text).chars().map(|c| if c.is_whitespace() { '-' } else { c }).collect();
    if text.is_empty() { "end".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::{Slot, Standing, Trial};

    const LAST: BootId = BootId(1);
    const THIS: BootId = BootId(2);

    fn facts(end: Option<(&str, &str)>) -> Facts {
        let end = end.map(|(action, by)| AskedEnd { action: action.into(), by: by.into() });
        Facts { record: Some(BootRecord { id: LAST, end }), this: Some(THIS), ..Facts::default() }
    }

    fn crash(message: &str) -> String {
        format!(
            "Panic#1 Part1\n<0>[  12.3] Kernel panic - not syncing: {message}\n<4>[  12.4] CPU: 0 PID: 1\n"
        )
    }

    fn on_trial(other: Other) -> Option<Slots> {
        Some(Slots::new(Slot::A, Standing::Good, other))
    }

    #[test]
    fn each_of_six_causes_is_told_from_the_others() {
        let asked = facts(Some(("reboot", "admin")));
        let cut = facts(None);
        let panic =
            Facts { crashes: vec![crash("Attempted to kill init! exitcode=0x0000000b")], ..facts(None) };
        let watchdog = Facts { watchdog_fired: true, watchdog_armed: true, ..facts(None) };
        let memory = Facts { crashes: vec![crash("System is deadlocked on memory")], ..facts(None) };
        let slot = Facts { slots: on_trial(Other::Trial(Trial::Armed { by: LAST })), ..facts(None) };
        let told: Vec<String> =
            [asked, cut, panic, watchdog, memory, slot].iter().map(|facts| classify(facts).text()).collect();
        assert_eq!(
            told,
            [
                "reboot was asked for by admin",
                "the machine stopped without a word: power cut or reset",
                "the kernel panicked: Attempted to kill init! exitcode=0x0000000b",
                "the watchdog restarted the machine: it was not fed",
                "the machine ran out of memory: System is deadlocked on memory",
                "an upgrade was taken back: it never came up; the machine stopped without a word: power cut or reset",
            ]
        );
    }

    #[test]
    fn a_crash_counts_more_than_the_reboot_that_was_under_way() {
        let facts = Facts {
            crashes: vec!["Oops#1".into(), crash("softlockup: hung tasks")],
            ..facts(Some(("reboot", "x")))
        };
        assert_eq!(classify(&facts), Cause::Panic("softlockup: hung tasks".into()));
    }

    #[test]
    fn a_failed_slot_has_the_cause_of_its_end_inside() {
        let end = facts(Some(("reboot", "machined")));
        let slots = on_trial(Other::Failed { failure: Failure::Unhealthy, by: LAST });
        let Cause::FailedSlot(Failure::Unhealthy, cause) = classify(&Facts { slots, ..end.clone() }) else {
            panic!("not told")
        };
        assert!(matches!(*cause, Cause::Asked(_)));
        // One that failed long ago is no news.
        let slots = on_trial(Other::Failed { failure: Failure::Unhealthy, by: BootId(77) });
        assert!(matches!(classify(&Facts { slots, ..end }), Cause::Asked(_)));
    }

    #[test]
    fn the_first_boot_and_a_restart_of_machined_have_no_cause() {
        assert_eq!(classify(&Facts::default()), Cause::Unknown);
        let restarted = Facts { record: Some(BootRecord { id: THIS, end: None }), ..facts(None) };
        assert_eq!(classify(&restarted), Cause::Unknown);
    }

    #[test]
    fn records_come_back_and_garbage_does_not() {
        for end in [None, Some(AskedEnd { action: "reset".into(), by: "os:admin via 10.5.0.1".into() })] {
            let record = BootRecord { id: BootId(0xabc), end };
            assert_eq!(BootRecord::parse(&record.encode()), Some(record));
        }
        for text in ["", "running", "running 12", "ended 0000000000000000000000000000000a", "x 1"] {
            assert_eq!(BootRecord::parse(text), None, "{text}");
        }
        let odd = BootRecord { id: LAST, end: Some(AskedEnd { action: "a b\n".into(), by: "c\nd".into() }) };
        assert!(!odd.encode().contains('\n'));
        assert_eq!(BootRecord::parse(&odd.encode()).unwrap().end.unwrap().action, "a-b-");
    }
}
