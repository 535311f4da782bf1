//! The terminal: raw and on its alternate screen while the dashboard runs, as it was before afterwards.

use std::io::{self, IsTerminal as _, stdin, stdout};

use ichor_dashboard::Screen;
use ratatui::DefaultTerminal;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

/// The terminal while the dashboard has it; dropping it gives it back.
pub(super) struct Terminal(DefaultTerminal);

impl Terminal {
    /// Takes the terminal over. A panic gives it back before it is reported.
    ///
    /// # Errors
    /// When input or output is no terminal.
    pub(super) fn open() -> io::Result<Self> {
        if !stdin().is_terminal() || !stdout().is_terminal() {
            return Err(io::Error::other("the dashboard needs a terminal"));
        }
        ratatui::try_init().map(Self).inspect_err(|_| ratatui::restore())
    }
}

impl Screen for Terminal {
    /// Only cells that changed are sent.
    fn draw(&mut self, draw: impl FnOnce(Rect, &mut Buffer)) -> io::Result<()> {
        self.0.draw(|frame| draw(frame.area(), frame.buffer_mut())).map(drop)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.0.show_cursor();
        ratatui::restore();
    }
}
