//! Tables as the original client aligns them: a gap of three spaces, no borders, and a column that is as
//! wide as its widest cell among neighbouring rows that have it.
//!
//! The last cell of a row ends the line: it is never padded and makes no column wider. A row without a column
//! therefore ends that column, and rows after it start a new one with a width of its own.

use std::fmt::Write as _;

/// Spaces between columns.
const GAP: usize = 3;

/// Rows of cells on their way to the terminal.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table that starts with these headings.
    pub fn with_header<T: Into<String>>(header: impl IntoIterator<Item = T>) -> Self {
        let mut table = Self::default();
        table.row(header);
        table
    }

    /// Adds a row; it may be shorter than others. Line ends inside a cell become spaces.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(|cell| one_line(cell.into())).collect());
    }

    /// True when there is nothing to print.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The lines so far; rows after this are aligned among themselves.
    pub fn take(&mut self) -> String {
        let rows = std::mem::take(&mut self.rows);
        let widths = widths(&rows);
        let mut out = String::new();
        for (row, widths) in rows.iter().zip(&widths) {
            for (index, cell) in row.iter().enumerate() {
                match widths.get(index) {
                    Some(width) => {
                        let _ = write!(out, "{cell:width$}");
                    }
                    None => out.push_str(cell),
                }
            }
            out.push('\n');
        }
        out
    }
}

/// For every row the widths of its cells, the last one's left out.
fn widths(rows: &[Vec<String>]) -> Vec<Vec<usize>> {
    let mut widths: Vec<Vec<usize>> = rows.iter().map(|row| vec![0; row.len().saturating_sub(1)]).collect();
    let columns = widths.iter().map(Vec::len).max().unwrap_or_default();
    for column in 0..columns {
        let mut start = 0;
        while start < rows.len() {
            let length = widths[start..].iter().take_while(|row| row.len() > column).count();
            let block = start..start + length;
            let widest = rows[block.clone()].iter().map(|row| row[column].chars().count()).max();
            for row in &mut widths[block] {
                row[column] = widest.unwrap_or_default() + GAP;
            }
            start += length.max(1);
        }
    }
    widths
}

fn one_line(cell: String) -> String {
    if !cell.contains(['\n', '\t', '\r']) {
        return cell;
    }
    cell.replace("\r\n", " ").replace(['\n', '\t', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::Table;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::with_header(["NODE", "SERVICE", "STATE"]);
        table.row(["10.5.0.2", "apid", "Running"]);
        table.row(["10.5.0.30", "machined", "Running"]);
        expect![[r#"
            NODE        SERVICE    STATE
            10.5.0.2    apid       Running
            10.5.0.30   machined   Running
        "#]]
        .assert_eq(&table.take());
    }

    #[test]
    fn the_last_cell_pushes_nothing() {
        let mut table = Table::with_header(["A", "B"]);
        table.row(["a rather long cell"]);
        table.row(["x", "y"]);
        expect![[r#"
            A   B
            a rather long cell
            x   y
        "#]]
        .assert_eq(&table.take());
    }

    #[test]
    fn a_short_row_ends_the_columns_it_lacks() {
        let mut table = Table::with_header(["NODE", "ID", "EVENT", "ACTOR"]);
        table.row(["10.5.0.2", "dbso03hsdrpg", "machine.SequenceEvent"]);
        table.row(["", "boot", "STOP"]);
        expect![[r#"
            NODE       ID             EVENT   ACTOR
            10.5.0.2   dbso03hsdrpg   machine.SequenceEvent
                       boot           STOP
        "#]]
        .assert_eq(&table.take());
    }

    #[test]
    fn rows_after_a_print_are_aligned_among_themselves() {
        let mut table = Table::with_header(["NODE", "ID"]);
        table.row(["10.5.0.200", "x"]);
        table.take();
        table.row(["n", "y"]);
        assert_eq!(table.take(), "n   y\n");
    }

    #[test]
    fn a_cell_stays_on_its_line() {
        let mut table = Table::default();
        table.row(["a\nb", "c"]);
        assert_eq!(table.take(), "a b   c\n");
    }
}
