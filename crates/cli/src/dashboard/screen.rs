//! A screen as a grid of cells: things are drawn into it, and only what changed is sent to the terminal. Pure.

use std::fmt::Write as _;

/// Colours, as every terminal has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Colour {
    /// What the terminal uses anyway.
    #[default]
    Default,
    /// Trouble.
    Red,
    /// Well.
    Green,
    /// Take care.
    Yellow,
    /// Graphs.
    Blue,
    /// Titles.
    Cyan,
    /// Less important.
    Grey,
}

/// How a cell looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Style {
    /// Colour of the character.
    pub colour: Colour,
    /// Brighter or thicker.
    pub bold: bool,
    /// Foreground and background swapped.
    pub reverse: bool,
}

impl Style {
    /// Plain text.
    pub const PLAIN: Self = Self { colour: Colour::Default, bold: false, reverse: false };
    /// Titles.
    pub const TITLE: Self = Self { colour: Colour::Cyan, bold: true, reverse: false };
    /// What is chosen.
    pub const CHOSEN: Self = Self { colour: Colour::Default, bold: true, reverse: true };

    /// A colour and nothing more.
    pub const fn of(colour: Colour) -> Self {
        Self { colour, bold: false, reverse: false }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cell {
    character: char,
    style: Style,
}

impl Cell {
    const EMPTY: Self = Self { character: ' ', style: Style::PLAIN };
}

/// A part of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Area {
    /// First column.
    pub x: u16,
    /// First line.
    pub y: u16,
    /// Columns.
    pub width: u16,
    /// Lines.
    pub height: u16,
}

impl Area {
    /// The upper part of `height` lines, and the rest.
    pub fn top(self, height: u16) -> (Self, Self) {
        let height = height.min(self.height);
        (Self { height, ..self }, Self { y: self.y + height, height: self.height - height, ..self })
    }

    /// The lower part of `height` lines, and the rest above it.
    pub fn bottom(self, height: u16) -> (Self, Self) {
        let height = height.min(self.height);
        (
            Self { y: self.y + self.height - height, height, ..self },
            Self { height: self.height - height, ..self },
        )
    }

    /// `count` parts side by side; the last takes what is left over.
    pub fn columns(self, count: u16) -> Vec<Self> {
        let count = count.max(1);
        let width = self.width / count;
        let part = |index: u16| Self {
            x: self.x + index * width,
            width: if index + 1 == count { self.width - index * width } else { width },
            ..self
        };
        (0..count).map(part).collect()
    }

    /// `count` parts below each other; the last takes what is left over.
    pub fn rows(self, count: u16) -> Vec<Self> {
        let count = count.max(1);
        let height = self.height / count;
        let part = |index: u16| Self {
            y: self.y + index * height,
            height: if index + 1 == count { self.height - index * height } else { height },
            ..self
        };
        (0..count).map(part).collect()
    }
}

/// The screen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Screen {
    width: u16,
    height: u16,
    cells: Vec<Cell>,
}

/// Eighths of a cell, from the bottom.
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

impl Screen {
    /// An empty screen.
    pub fn new(width: u16, height: u16) -> Self {
        Self { width, height, cells: vec![Cell::EMPTY; usize::from(width) * usize::from(height)] }
    }

    /// All of it.
    pub fn area(&self) -> Area {
        Area { x: 0, y: 0, width: self.width, height: self.height }
    }

    fn put(&mut self, x: u16, y: u16, character: char, style: Style) {
        if x < self.width && y < self.height {
            self.cells[usize::from(y) * usize::from(self.width) + usize::from(x)] = Cell { character, style };
        }
    }

    /// Text in line `line` of an area from column `column` on, cut at its end. Gives the column after it.
    pub fn text(&mut self, area: Area, column: u16, line: u16, text: &str, style: Style) -> u16 {
        if line >= area.height {
            return column;
        }
        let mut at = column;
        for character in text.chars() {
            if at >= area.width {
                break;
            }
            self.put(area.x + at, area.y + line, printable(character), style);
            at += 1;
        }
        at
    }

    /// A frame with a title; gives the area inside.
    pub fn frame(&mut self, area: Area, title: &str) -> Area {
        if area.width < 2 || area.height < 2 {
            return Area { width: 0, height: 0, ..area };
        }
        let (right, bottom) = (area.x + area.width - 1, area.y + area.height - 1);
        let style = Style::of(Colour::Grey);
        for x in area.x..=right {
            self.put(x, area.y, '─', style);
            self.put(x, bottom, '─', style);
        }
        for y in area.y..=bottom {
            self.put(area.x, y, '│', style);
            self.put(right, y, '│', style);
        }
        for (x, y, corner) in
            [(area.x, area.y, '┌'), (right, area.y, '┐'), (area.x, bottom, '└'), (right, bottom, '┘')]
        {
            self.put(x, y, corner, style);
        }
        let top = Area { x: area.x + 1, width: area.width - 2, height: 1, y: area.y };
        if !title.is_empty() {
            self.text(top, 1, 0, &format!(" {title} "), Style::TITLE);
        }
        Area { x: area.x + 1, y: area.y + 1, width: area.width - 2, height: area.height - 2 }
    }

    /// A bar that is full at 1, with its value written into it.
    pub fn gauge(&mut self, area: Area, line: u16, label: &str, share: f64, colour: Colour) {
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        let column = self.text(area, 0, line, label, Style::PLAIN);
        let value = format!(" {:>5.1}%", share * 100.0);
        let width = area.width.saturating_sub(column + value.len() as u16);
        let full = (share * f64::from(width)).round() as u16;
        for index in 0..width {
            let (character, style) =
                if index < full { ('█', Style::of(colour)) } else { ('░', Style::of(Colour::Grey)) };
            if line < area.height {
                self.put(area.x + column + index, area.y + line, character, style);
            }
        }
        self.text(area, column + width, line, &value, Style::PLAIN);
    }

    /// The newest values as bars from the bottom of an area, the last at the right; `full` fills it.
    pub fn graph(&mut self, area: Area, values: &[f64], full: f64, colour: Colour) {
        let width = usize::from(area.width);
        let shown = &values[values.len().saturating_sub(width)..];
        let offset = width - shown.len();
        for (index, value) in shown.iter().enumerate() {
            let share = if full > 0.0 && value.is_finite() { (value / full).clamp(0.0, 1.0) } else { 0.0 };
            let mut eighths = (share * f64::from(area.height) * 8.0).round() as usize;
            for line in (0..area.height).rev() {
                let part = eighths.min(8);
                eighths -= part;
                if part > 0 {
                    self.put(area.x + (offset + index) as u16, area.y + line, BARS[part], Style::of(colour));
                }
            }
        }
    }

    /// The characters, line by line, without looks.
    pub fn plain(&self) -> String {
        let width = usize::from(self.width).max(1);
        let line = |cells: &[Cell]| {
            cells.iter().map(|cell| cell.character).collect::<String>().trim_end().to_owned()
        };
        self.cells.chunks(width).map(|cells| line(cells) + "\n").collect()
    }

    /// What to send to a terminal that shows `before`, so that it shows this. Everything, when the sizes differ.
    pub fn changes(&self, before: &Self) -> String {
        let whole = (self.width, self.height) != (before.width, before.height);
        let mut out = String::new();
        if whole {
            out.push_str("\x1b[0m\x1b[2J");
        }
        let mut style = None;
        let mut cursor = None;
        for (index, cell) in self.cells.iter().enumerate() {
            let held = if whole { Cell::EMPTY } else { before.cells[index] };
            if *cell == held {
                continue;
            }
            let width = usize::from(self.width);
            let (x, y) = (index % width, index / width);
            if cursor != Some(index) {
                let _ = write!(out, "\x1b[{};{}H", y + 1, x + 1);
            }
            if style != Some(cell.style) {
                out.push_str(&code(cell.style));
                style = Some(cell.style);
            }
            out.push(cell.character);
            // After the last column terminals disagree about where the cursor is.
            cursor = (x + 1 < width).then_some(index + 1);
        }
        if style.is_some() {
            out.push_str("\x1b[0m");
        }
        out
    }
}

fn code(style: Style) -> String {
    let mut code = String::from("\x1b[0");
    if style.bold {
        code.push_str(";1");
    }
    if style.reverse {
        code.push_str(";7");
    }
    code.push_str(match style.colour {
        Colour::Default => "",
        Colour::Red => ";31",
        Colour::Green => ";32",
        Colour::Yellow => ";33",
        Colour::Blue => ";34",
        Colour::Cyan => ";36",
        Colour::Grey => ";90",
    });
    code.push('m');
    code
}

/// Characters of one column pass; others, control characters above all, would shift or command the terminal.
fn printable(character: char) -> char {
    match character {
        ' '..='~'
        | '\u{a1}'..='\u{ac}'
        | '\u{ae}'..='\u{2ff}'
        | '\u{370}'..='\u{482}'
        | '\u{2010}'..='\u{2027}' => character,
        '\u{2190}'..='\u{21ff}' | '\u{2500}'..='\u{25ff}' => character,
        '\t' => ' ',
        _ => '·',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changed_is_sent() {
        let mut before = Screen::new(10, 2);
        before.text(before.area(), 0, 0, "one", Style::PLAIN);
        let mut after = before.clone();
        assert_eq!(after.changes(&before), "");
        after.text(after.area(), 2, 0, "x", Style::of(Colour::Red));
        assert_eq!(after.changes(&before), "\x1b[1;3H\x1b[0;31mx\x1b[0m");
        assert!(after.changes(&Screen::default()).starts_with("\x1b[0m\x1b[2J"));
    }

    #[test]
    fn nothing_is_drawn_outside_and_nothing_commands_the_terminal() {
        let mut screen = Screen::new(4, 1);
        screen.text(screen.area(), 2, 0, "abc", Style::PLAIN);
        screen.text(screen.area(), 0, 7, "abc", Style::PLAIN);
        screen.text(screen.area(), 0, 0, "\x1b語", Style::PLAIN);
        assert_eq!(screen.plain(), "··ab\n");
        assert_eq!(screen.frame(Area { width: 1, height: 1, ..Area::default() }, "x").width, 0);
    }

    #[test]
    fn graphs_and_gauges_keep_to_their_area() {
        let mut screen = Screen::new(8, 2);
        screen.graph(screen.area(), &[0.0, 0.5, 1.0, f64::NAN, 9.0], 1.0, Colour::Blue);
        assert_eq!(screen.plain(), "     █ █\n    ██ █\n");
        let mut screen = Screen::new(20, 1);
        screen.gauge(screen.area(), 0, "cpu ", 0.5, Colour::Green);
        assert_eq!(screen.plain(), "cpu █████░░░░  50.0%\n");
    }
}
