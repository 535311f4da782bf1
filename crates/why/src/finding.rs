//! What comes out: findings, each a way from a symptom to a cause, merged where the cause is the same.

/// The answer of one node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Nothing is wrong with what was asked about.
    pub healthy: bool,
    /// One sentence.
    pub summary: String,
    /// What is wrong, the worst first.
    pub findings: Vec<Finding>,
}

/// One cause, and what follows from it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Finding {
    /// A word for programs.
    pub kind: &'static str,
    /// What it is about.
    pub subject: String,
    /// The symptom in one line.
    pub summary: String,
    /// From the symptom to the cause.
    pub because: Vec<Reason>,
    /// What to do.
    pub advice: String,
    /// What else suffers from the same cause.
    pub also: Vec<String>,
}

/// One step towards the cause.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reason {
    /// What is so.
    pub text: String,
    /// Where that can be seen.
    pub evidence: String,
}

/// The end of a walk: the steps, the kind of the cause, what makes it the same cause as another one, and what
/// to do about it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Cause {
    pub(crate) kind: &'static str,
    pub(crate) root: String,
    pub(crate) steps: Vec<Reason>,
    pub(crate) advice: String,
}

impl Cause {
    /// A cause of one step.
    pub(crate) fn new(kind: &'static str, root: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { kind, root: root.into(), steps: Vec::new(), advice: advice.into() }
    }

    /// The same, one step farther from the symptom.
    pub(crate) fn step(mut self, text: impl Into<String>, evidence: impl Into<String>) -> Self {
        self.steps.push(Reason { text: text.into(), evidence: evidence.into() });
        self
    }

    /// The same with a step in front: what this is the cause of.
    pub(crate) fn behind(mut self, text: impl Into<String>, evidence: impl Into<String>) -> Self {
        self.steps.insert(0, Reason { text: text.into(), evidence: evidence.into() });
        self
    }
}

/// Collects findings; two of the same cause become one.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    found: Vec<(String, Finding)>,
}

impl Collector {
    /// Adds a symptom with its cause. The first symptom of a cause tells the story, later ones are named.
    pub(crate) fn add(&mut self, subject: impl Into<String>, summary: impl Into<String>, cause: Cause) {
        let (subject, summary) = (subject.into(), summary.into());
        if let Some((_, held)) = self.found.iter_mut().find(|(root, _)| *root == cause.root) {
            if held.subject != subject && !held.also.contains(&summary) {
                held.also.push(summary);
            }
            return;
        }
        let finding = Finding {
            kind: cause.kind,
            subject,
            summary,
            because: cause.steps,
            advice: cause.advice,
            also: Vec::new(),
        };
        self.found.push((cause.root, finding));
    }

    /// Whether a cause is known already.
    pub(crate) fn knows(&self, root: &str) -> bool {
        self.found.iter().any(|(known, _)| known == root)
    }

    pub(crate) fn finish(self) -> Vec<Finding> {
        self.found.into_iter().map(|(_, finding)| finding).collect()
    }
}

/// A length of time as one says it.
pub(crate) fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Words in one line: "a, b and c".
pub(crate) fn listed<S: AsRef<str>>(words: &[S]) -> String {
    match words {
        [] => String::new(),
        [only] => only.as_ref().to_owned(),
        [first @ .., last] => {
            let first: Vec<_> = first.iter().map(AsRef::as_ref).collect();
            format!("{} and {}", first.join(", "), last.as_ref())
        }
    }
}
