//! The terminal: raw and on its second screen while the dashboard runs, as it was before afterwards.

use std::io::{self, IsTerminal as _, Write as _, stdin, stdout};
use std::sync::{Mutex, PoisonError};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Second screen, no cursor, no line wrap.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
/// All of that undone.
const LEAVE: &str = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

/// What the terminal was like, while it is ours.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// The terminal in our hands; dropping it gives it back.
pub struct Terminal(());

impl Terminal {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// When input or output is no terminal.
    pub fn open() -> io::Result<Self> {
        if !stdin().is_terminal() || !stdout().is_terminal() {
            return Err(io::Error::other("the dashboard needs a terminal"));
        }
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        let terminal = Self(());
        // A panic is told on the first screen, where it stays to be read.
        let told = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            told(panic);
        }));
        tcsetattr(stdin(), OptionalActions::Flush, &raw)?;
        terminal.write(ENTER)?;
        Ok(terminal)
    }

    /// Sends text.
    pub fn write(&self, text: &str) -> io::Result<()> {
        let mut out = stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    /// Columns and lines; the smallest usable size where the terminal does not tell.
    pub fn size(&self) -> (u16, u16) {
        match tcgetwinsize(stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
            _ => (80, 24),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal back, once.
fn restore() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        let mut out = stdout().lock();
        let _ = out.write_all(LEAVE.as_bytes());
        let _ = out.flush();
        let _ = tcsetattr(stdin(), OptionalActions::Flush, &before);
    }
}
