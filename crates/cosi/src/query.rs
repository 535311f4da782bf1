//! Which resources a list or a watch is about: labels and an expression over ids.

use ichor_resource::{Metadata, Pairs};
use regex::Regex;

/// How a label term compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelOp {
    /// The label is there.
    Exists,
    /// The label has the value.
    Equal,
    /// The label has one of the values.
    In,
    /// The label is before the value, as text.
    Less,
    /// The label is before the value or equal, as text.
    LessOrEqual,
    /// The label is below the value, as a number.
    LessNumeric,
    /// The label is at most the value, as a number.
    LessOrEqualNumeric,
}

/// One condition on one label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelTerm {
    /// The label.
    pub key: String,
    /// The comparison.
    pub op: LabelOp,
    /// What to compare with; only `In` looks past the first.
    pub values: Vec<String>,
    /// Turns the answer around. A comparison that cannot be made matches neither way.
    pub invert: bool,
}

impl LabelTerm {
    fn matches(&self, labels: &Pairs) -> bool {
        self.holds(labels).is_some_and(|holds| holds != self.invert)
    }

    /// `None` when there is nothing to compare.
    fn holds(&self, labels: &Pairs) -> Option<bool> {
        let Some(value) = labels.get(&self.key) else {
            return match self.op {
                LabelOp::Exists | LabelOp::Equal | LabelOp::In => Some(false),
                LabelOp::Less | LabelOp::LessOrEqual | LabelOp::LessNumeric | LabelOp::LessOrEqualNumeric => {
                    None
                }
            };
        };
        if self.op == LabelOp::Exists {
            return Some(true);
        }
        let Some(wanted) = self.values.first() else {
            return Some(false);
        };
        match self.op {
            LabelOp::Exists => Some(true),
            LabelOp::Equal => Some(value == wanted),
            LabelOp::In => Some(self.values.contains(value)),
            LabelOp::Less => Some(value < wanted),
            LabelOp::LessOrEqual => Some(value <= wanted),
            LabelOp::LessNumeric => Some(number(value)? < number(wanted)?),
            LabelOp::LessOrEqualNumeric => Some(number(value)? <= number(wanted)?),
        }
    }
}

/// Conditions that must all hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelQuery {
    /// The conditions; none matches everything.
    pub terms: Vec<LabelTerm>,
}

impl LabelQuery {
    fn matches(&self, labels: &Pairs) -> bool {
        self.terms.iter().all(|term| term.matches(labels))
    }
}

/// What a list or watch shows. The default shows everything.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// At least one of these must match; none matches everything.
    pub labels: Vec<LabelQuery>,
    /// Must be found somewhere in the id.
    pub id: Option<Regex>,
}

impl Query {
    /// Resources that carry this label.
    pub fn label(key: impl Into<String>) -> Self {
        Self::term(key, LabelOp::Exists, Vec::new())
    }

    fn term(key: impl Into<String>, op: LabelOp, values: Vec<String>) -> Self {
        let key = key.into();
        let terms = vec![LabelTerm { key, op, values, invert: false }];
        Self { labels: vec![LabelQuery { terms }], id: None }
    }

    /// True when everything matches.
    pub fn is_all(&self) -> bool {
        self.labels.is_empty() && self.id.is_none()
    }

    /// True when the resource with this metadata is shown.
    pub fn matches(&self, meta: &Metadata) -> bool {
        let id = self.id.as_ref().is_none_or(|regex| regex.is_match(meta.id().as_str()));
        id && (self.labels.is_empty() || self.labels.iter().any(|query| query.matches(meta.labels())))
    }
}

/// Reads a whole number with a unit: `k M G T P` count in thousands, `Ki` and so on in 1024s. Only
/// the first letters of the unit count, in either case: `10kg` is 10 000.
fn number(text: &str) -> Option<i64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '-').unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    Some(digits.parse::<i64>().ok()?.wrapping_mul(factor(unit)?))
}

fn factor(unit: &str) -> Option<i64> {
    let mut letters = unit.trim().bytes().map(|b| b.to_ascii_lowercase());
    let Some(first) = letters.next() else {
        return Some(1);
    };
    let power = match first {
        b'k' => 1,
        b'm' => 2,
        b'g' => 3,
        b't' => 4,
        b'p' => 5,
        _ => return None,
    };
    let base: i64 = if letters.next() == Some(b'i') { 1024 } else { 1000 };
    Some(base.pow(power))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Pairs {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    #[track_caller]
    fn check(op: LabelOp, values: &[&str], label: Option<&str>, plain: bool, inverted: bool) {
        let labels = label.map_or_else(Pairs::new, |value| labels(&[("key", value)]));
        for (invert, expected) in [(false, plain), (true, inverted)] {
            let term = LabelTerm {
                key: "key".to_owned(),
                op,
                values: values.iter().map(ToString::to_string).collect(),
                invert,
            };
            assert_eq!(term.matches(&labels), expected, "{term:?} on {labels:?}");
        }
    }

    #[test]
    fn terms_match_as_the_original_does() {
        use LabelOp::*;
        check(Exists, &[], Some(""), true, false);
        check(Exists, &[], None, false, true);
        check(Equal, &["a"], Some("a"), true, false);
        check(Equal, &["a"], Some("b"), false, true);
        check(Equal, &["a"], None, false, true);
        check(In, &["a", "b"], Some("b"), true, false);
        check(In, &["a", "b"], Some("c"), false, true);
        check(Less, &["b"], Some("a"), true, false);
        check(Less, &["b"], Some("b"), false, true);
        check(LessOrEqual, &["b"], Some("b"), true, false);
        check(LessNumeric, &["12000"], Some("10kg"), true, false);
        check(LessNumeric, &["9"], Some("10"), false, true);
        check(LessOrEqualNumeric, &["1Ki"], Some("1024"), true, false);
    }

    #[test]
    fn what_cannot_be_compared_matches_neither_way() {
        use LabelOp::*;
        for op in [Less, LessOrEqual, LessNumeric, LessOrEqualNumeric] {
            check(op, &["1"], None, false, false);
        }
        check(LessNumeric, &["1"], Some("one"), false, false);
        check(LessNumeric, &["one"], Some("1"), false, false);
        check(LessNumeric, &["1"], Some("1x"), false, false);
    }

    #[test]
    fn numbers_take_units() {
        let table = [
            ("5", Some(5)),
            (" -5 ", Some(-5)),
            ("2k", Some(2_000)),
            ("2 KiB", Some(2_048)),
            ("1Pi", Some(1 << 50)),
            ("", None),
            ("k", None),
            ("1-2", None),
        ];
        for (text, expected) in table {
            assert_eq!(number(text), expected, "{text:?}");
        }
    }
}
