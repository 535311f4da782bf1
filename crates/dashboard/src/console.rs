//! The dashboard of a machine on its own console: a daemon of the machine, locked in like the others.
//!
//! It has the terminal that it was started with, already in raw mode, and a socket on which the machine shows what a
//! console may see. Its program is the node's; what goes wrong ends it, and it is started again.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use ichor_client::{Channel, Client, Identity};
use ichor_rpc::options::{self, BadOption};
use ratatui::backend::CrosstermBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::model::Model;
use crate::{Input, Screen, keys};

/// Between two looks at counters.
const EVERY: Duration = Duration::from_secs(3);
/// Keys that wait to be taken in; a cat on the keyboard waits, too.
const KEYS: usize = 64;
/// The name of a machine that has none yet.
const NAMELESS: &str = "this machine";
/// Clears the screen, and the same with the cursor shown.
const CLEAR: &[u8] = b"\x1b[0m\x1b[2J\x1b[H";
const LEAVE: &[u8] = b"\x1b[0m\x1b[2J\x1b[H\x1b[?25h";

/// The settings of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where the machine answers.
    pub socket: PathBuf,
    /// The address of the configuration, as the kernel was given it.
    pub config_url: Option<String>,
}

impl Options {
    /// Reads `--option value` and `--option=value`.
    ///
    /// # Errors
    /// When there is an unknown one.
    pub fn parse(args: &[String]) -> Result<Self, BadOption> {
        let mut parsed = Self { socket: "/system/run/dashboard/machine.sock".into(), config_url: None };
        options::read(args, "--socket, --config-url", |option, value| {
            match option {
                "--socket" => parsed.socket = value.into(),
                "--config-url" => parsed.config_url = Some(value.to_owned()),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(parsed)
    }
}

/// Runs the daemon with the arguments after its name.
pub fn main(args: &[String]) -> ExitCode {
    if let Err(error) = ichor_sys::confine::lock() {
        // Better not at all than unconfined: whoever wants to know why reads this.
        eprintln!("dashboard: not locked: {error}");
        return ExitCode::FAILURE;
    }
    let terminal = match ichor_sys::terminal::inherited() {
        Ok(terminal) => terminal,
        Err(error) => {
            eprintln!("dashboard: no terminal to draw on: {error}; machined starts it with one");
            return ExitCode::FAILURE;
        }
    };
    match Options::parse(args) {
        Ok(options) => ichor_rpc::daemon::run(|stop| show(options, terminal, stop)),
        Err(error) => {
            eprintln!("dashboard: {error}");
            ExitCode::from(2)
        }
    }
}

/// Shows the machine until `stop`, or until the terminal is gone.
async fn show(options: Options, terminal: OwnedFd, stop: CancellationToken) -> io::Result<()> {
    let (sender, inputs) = mpsc::channel(KEYS);
    let reading = File::from(terminal.try_clone()?);
    // Waits for keys for ever; ends with the process.
    std::thread::Builder::new().name("keys".into()).spawn(move || read_keys(reading, &sender))?;
    let client = Client::new(Channel::unix(options.socket), Identity::default());
    let model = Model::console(NAMELESS, options.config_url.as_deref());
    let mut screen = Console { terminal: File::from(terminal), drawn: None };
    let shown = tokio::select! {
        shown = crate::run(model, vec![client], EVERY, inputs, &mut screen) => shown,
        () = stop.cancelled() => Ok(()),
    };
    // Where the terminal is gone nothing is left to be cleared.
    let _ = screen.terminal.write_all(LEAVE);
    shown
}

/// Hands on what is typed until the terminal or the dashboard is gone.
fn read_keys(mut terminal: File, inputs: &mpsc::Sender<io::Result<Input>>) {
    let mut buffer = [0; 256];
    loop {
        let read = match terminal.read(&mut buffer) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other,
        };
        match read {
            Ok(len) => {
                for key in keys::parse(&buffer[..len]) {
                    if inputs.blocking_send(Ok(Input::Key(key))).is_err() {
                        return;
                    }
                }
            }
            Err(error) => {
                let _ = inputs.blocking_send(Err(error));
                return;
            }
        }
    }
}

/// A terminal that was given to this process. Its size is looked at before each drawing: no signal tells of it.
struct Console {
    terminal: File,
    drawn: Option<(Rect, Terminal<CrosstermBackend<File>>)>,
}

impl Console {
    /// What to draw with, anew when the size has changed.
    fn sized(&mut self) -> io::Result<&mut Terminal<CrosstermBackend<File>>> {
        let (columns, rows) = ichor_sys::terminal::size(&self.terminal)?;
        let area = Rect::new(0, 0, columns, rows);
        if self.drawn.as_ref().is_none_or(|(known, _)| *known != area) {
            self.terminal.write_all(CLEAR)?;
            // A fixed part of the screen, the whole of it: nothing asks the terminal for its size or cursor.
            let options = TerminalOptions { viewport: Viewport::Fixed(area) };
            let terminal =
                Terminal::with_options(CrosstermBackend::new(self.terminal.try_clone()?), options)?;
            self.drawn = Some((area, terminal));
        }
        match &mut self.drawn {
            Some((_, terminal)) => Ok(terminal),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

impl Screen for Console {
    fn draw(&mut self, draw: impl FnOnce(Rect, &mut Buffer)) -> io::Result<()> {
        self.sized()?.draw(|frame| draw(frame.area(), frame.buffer_mut())).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{Winsize, tcsetwinsize};

    use super::*;

    fn strings(args: &[&str]) -> Vec<String> {
        args.iter().map(|arg| (*arg).to_owned()).collect()
    }

    #[test]
    fn options_are_few() {
        let options =
            Options::parse(&strings(&["--socket", "/a", "--config-url=https://b/?c=${code}"])).unwrap();
        assert_eq!(
            (options.socket, options.config_url.as_deref()),
            ("/a".into(), Some("https://b/?c=${code}"))
        );
        assert!(Options::parse(&strings(&["--role=os:admin"])).is_err());
    }

    /// Both ends of a terminal: what a person has before them, and what the dashboard has.
    fn pair(columns: u16) -> (File, OwnedFd) {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let terminal = ichor_sys::terminal::open_raw(std::path::Path::new(&name)).unwrap();
        let size = Winsize { ws_col: columns, ws_row: 24, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&terminal, size).unwrap();
        (File::from(master), terminal)
    }

    /// Reads until all that was seen so far has this in it.
    fn read_until(person: &mut File, seen: &mut String, wanted: &str) {
        let mut buffer = [0; 4096];
        while !seen.contains(wanted) {
            let len = person.read(&mut buffer).unwrap();
            seen.push_str(&String::from_utf8_lossy(&buffer[..len]));
        }
    }

    /// A terminal, no machine behind the socket: it draws, takes keys, says what is wrong, and clears up.
    #[tokio::test]
    async fn a_terminal_shows_pages_and_takes_keys_while_no_machine_answers() {
        let (mut person, terminal) = pair(80);
        let options = Options { socket: "/no-such-directory/machine.sock".into(), config_url: None };
        let stop = CancellationToken::new();
        let told = stop.clone();
        let watching = std::thread::spawn(move || {
            let mut seen = String::new();
            read_until(&mut person, &mut seen, "F3");
            // Nobody leaves a console; then F2 as the Linux console sends it.
            person.write_all(b"q\x03\x1b[[B").unwrap();
            read_until(&mut person, &mut seen, "COMMAND");
            // Why the machine does not answer, as far as there is room for it.
            read_until(&mut person, &mut seen, "dialing");
            told.cancel();
            read_until(&mut person, &mut seen, "\x1b[?25h");
            seen
        });
        tokio::time::timeout(Duration::from_secs(60), show(options, terminal, stop)).await.unwrap().unwrap();
        let seen = watching.join().unwrap();
        assert!(seen.contains("Summary") && !seen.contains("URL"), "{seen:?}");
    }

    #[test]
    fn another_size_is_drawn_anew() {
        let (_person, terminal) = pair(80);
        let mut console = Console { terminal: File::from(terminal), drawn: None };
        let mut widths = Vec::new();
        for columns in [80, 132, 132] {
            let size = Winsize { ws_col: columns, ws_row: 24, ws_xpixel: 0, ws_ypixel: 0 };
            tcsetwinsize(&console.terminal, size).unwrap();
            console.draw(|area, _| widths.push(area.width)).unwrap();
        }
        assert_eq!(widths, [80, 132, 132]);
    }
}
