//! Tables whose columns are as wide as their widest cell, with a gap of three spaces and no borders.

use std::fmt::Write as _;

/// Spaces between columns.
const GAP: usize = 3;

/// Rows of cells on their way to the terminal.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    widths: Vec<usize>,
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
        let cells: Vec<String> = cells.into_iter().map(|cell| one_line(cell.into())).collect();
        for (index, cell) in cells.iter().enumerate() {
            // The last cell of a row ends the line and pushes nothing to the right of it.
            if index + 1 == cells.len() {
                break;
            }
            let width = cell.chars().count();
            match self.widths.get_mut(index) {
                Some(known) => *known = width.max(*known),
                None => self.widths.push(width),
            }
        }
        self.rows.push(cells);
    }

    /// True when there is nothing to print.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The lines so far. Later rows keep at least the widths of these, so a watch stays aligned.
    pub fn take(&mut self) -> String {
        let mut out = String::new();
        for row in std::mem::take(&mut self.rows) {
            for (index, cell) in row.iter().enumerate() {
                if index + 1 == row.len() {
                    out.push_str(cell);
                } else {
                    let width = self.widths[index] + GAP;
                    let _ = write!(out, "{cell:width$}");
                }
            }
            out.push('\n');
        }
        out
    }
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
    fn later_rows_keep_the_widths_of_earlier_ones() {
        let mut table = Table::with_header(["NODE", "ID"]);
        table.row(["10.5.0.200", "x"]);
        table.take();
        table.row(["n", "y"]);
        assert_eq!(table.take(), "n            y\n");
    }

    #[test]
    fn a_cell_stays_on_its_line() {
        let mut table = Table::default();
        table.row(["a\nb", "c"]);
        assert_eq!(table.take(), "a b   c\n");
    }
}
