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
    /// The original's figure, measured in this run or known.
    pub original: Option<String>,
}

impl Row {
    /// A figure that should be small.
    pub fn at_most(what: impl Into<String>, ours: f64, unit: &'static str, limit: f64) -> Self {
        Self { what: what.into(), ours, unit, limit: Some(limit), at_least: false, original: None }
    }

    /// A figure that should be large.
    pub fn at_least(what: impl Into<String>, ours: f64, unit: &'static str, limit: f64) -> Self {
        Self { what: what.into(), ours, unit, limit: Some(limit), at_least: true, original: None }
    }

    /// A figure without a limit.
    pub fn plain(what: impl Into<String>, ours: f64, unit: &'static str) -> Self {
        Self { what: what.into(), ours, unit, limit: None, at_least: false, original: None }
    }

    /// With the original's figure beside it.
    pub fn original(mut self, figure: impl Into<String>) -> Self {
        self.original = Some(figure.into());
        self
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
    /// Adds a row and shows it at once, so that a long run can be followed.
    pub fn add(&mut self, row: Row) {
        eprintln!("    {}: {} {}", row.what, short(row.ours), row.unit);
        self.0.push(row);
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
        writeln!(out, "{:width$}  {:>16}  {:>14}  {:>22}", "WHAT", "OURS", "LIMIT", "ORIGINAL")?;
        for row in &self.0 {
            let ours = format!("{} {}", short(row.ours), row.unit);
            let sign = if row.at_least { "≥" } else { "≤" };
            let limit = row.limit.map(|l| format!("{sign} {}", short(l))).unwrap_or_default();
            let verdict = if row.holds() { "" } else { "  missed" };
            let original = row.original.as_deref().unwrap_or("");
            writeln!(out, "{:width$}  {ours:>16}  {limit:>14}  {original:>22}{verdict}", row.what)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_limit_is_marked_and_counted() {
        let mut table = Table::default();
        table.add(Row::at_most("size", 3.0, "MB", 2.0).original("9 MB"));
        table.add(Row::at_least("ratio", 3.0, "×", 2.0));
        assert_eq!(table.missed(), 1);
        assert!(table.to_string().lines().nth(1).unwrap().ends_with("missed"));
        assert!(!table.to_string().lines().nth(2).unwrap().ends_with("missed"));
    }
}
