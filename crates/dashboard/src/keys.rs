//! Keys of a Linux terminal: bytes in raw mode become key events. Pure.
//!
//! A key that sends several bytes sends them at once; they are read at once, so an escape at the end of what was read is
//! the escape key. Unknown sequences are passed over as a whole.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

const ESCAPE: u8 = 0x1b;

/// The keys in what was read at once.
pub fn parse(bytes: &[u8]) -> Vec<KeyEvent> {
    let (mut keys, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let (key, taken) = next(rest);
        keys.extend(key);
        rest = &rest[taken.clamp(1, rest.len())..];
    }
    keys
}

/// The first key, if it is a known one, and how many bytes it has.
fn next(bytes: &[u8]) -> (Option<KeyEvent>, usize) {
    match *bytes {
        [ESCAPE, b'[', b'[', letter @ b'A'..=b'E', ..] => (Some(function(letter - b'A' + 1)), 4),
        // A broken sequence of the function keys.
        [ESCAPE, b'[', b'[', ..] => (None, bytes.len().min(4)),
        [ESCAPE, b'[', ..] => control_sequence(bytes),
        [ESCAPE, b'O', letter @ b'P'..=b'S', ..] => (Some(function(letter - b'P' + 1)), 3),
        [ESCAPE, ..] => (Some(KeyCode::Esc.into()), 1),
        [b'\r' | b'\n', ..] => (Some(KeyCode::Enter.into()), 1),
        [b'\t', ..] => (Some(KeyCode::Tab.into()), 1),
        [0x7f | 0x08, ..] => (Some(KeyCode::Backspace.into()), 1),
        [letter @ 1..=26, ..] => {
            let character = char::from(letter - 1 + b'a');
            (Some(KeyEvent::new(KeyCode::Char(character), KeyModifiers::CONTROL)), 1)
        }
        [0..0x20, ..] => (None, 1),
        [] => (None, 0),
        _ => character(bytes),
    }
}

fn function(number: u8) -> KeyEvent {
    KeyCode::F(number).into()
}

/// `ESC [ numbers letter`.
fn control_sequence(bytes: &[u8]) -> (Option<KeyEvent>, usize) {
    let Some(end) = bytes.iter().skip(2).position(|byte| (0x40..0x7f).contains(byte)) else {
        return (None, bytes.len());
    };
    let end = end + 2;
    let number =
        std::str::from_utf8(&bytes[2..end]).ok().and_then(|text| text.split(';').next()?.parse().ok());
    let code = match (bytes[end], number) {
        (b'A', _) => KeyCode::Up,
        (b'B', _) => KeyCode::Down,
        (b'C', _) => KeyCode::Right,
        (b'D', _) => KeyCode::Left,
        (b'H', _) | (b'~', Some(1 | 7)) => KeyCode::Home,
        (b'F', _) | (b'~', Some(4 | 8)) => KeyCode::End,
        (b'~', Some(3)) => KeyCode::Delete,
        (b'~', Some(5)) => KeyCode::PageUp,
        (b'~', Some(6)) => KeyCode::PageDown,
        // Numbers of function keys have gaps.
        (b'~', Some(number @ 11..=15)) => KeyCode::F(number - 10),
        (b'~', Some(number @ 17..=21)) => KeyCode::F(number - 11),
        (b'~', Some(number @ 23..=24)) => KeyCode::F(number - 12),
        (b'P'..=b'S', _) => KeyCode::F(bytes[end] - b'P' + 1),
        _ => return (None, end + 1),
    };
    (Some(code.into()), end + 1)
}

/// A character of UTF-8; bytes that are none are passed over.
fn character(bytes: &[u8]) -> (Option<KeyEvent>, usize) {
    let len = match bytes[0] {
        0..0x80 => 1,
        0xc0..0xe0 => 2,
        0xe0..0xf0 => 3,
        0xf0..0xf8 => 4,
        _ => return (None, 1),
    };
    let character = bytes.get(..len).and_then(|bytes| std::str::from_utf8(bytes).ok()?.chars().next());
    match character {
        Some(character) => (Some(KeyCode::Char(character).into()), len),
        None => (None, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(bytes: &[u8]) -> Vec<KeyCode> {
        parse(bytes).into_iter().map(|key| key.code).collect()
    }

    #[test]
    fn keys_of_the_linux_console_and_of_others() {
        use KeyCode::{
            Backspace, Char, Down, End, Enter, Esc, F, Home, Left, PageDown, PageUp, Right, Tab, Up,
        };
        for (bytes, expected) in [
            (&b"\x1b[[A"[..], F(1)),
            (b"\x1b[[E", F(5)),
            (b"\x1bOP", F(1)),
            (b"\x1b[11~", F(1)),
            (b"\x1b[14~", F(4)),
            (b"\x1b[17~", F(6)),
            (b"\x1b[24~", F(12)),
            (b"\x1b[A", Up),
            (b"\x1b[B", Down),
            (b"\x1b[C", Right),
            (b"\x1b[D", Left),
            (b"\x1b[1~", Home),
            (b"\x1b[4~", End),
            (b"\x1b[5~", PageUp),
            (b"\x1b[6~", PageDown),
            (b"\x1b", Esc),
            (b"\r", Enter),
            (b"\t", Tab),
            (b"\x7f", Backspace),
            ("ü".as_bytes(), Char('ü')),
        ] {
            assert_eq!(codes(bytes), [expected], "{bytes:?}");
        }
        let control = parse(b"\x1a");
        assert_eq!(control, [KeyEvent::new(Char('z'), KeyModifiers::CONTROL)]);
    }

    #[test]
    fn several_keys_at_once_and_nonsense_between_them() {
        use KeyCode::{Char, Down, F};
        assert_eq!(codes(b"a\x1b[B\x1b[[Bz"), [Char('a'), Down, F(2), Char('z')]);
        assert_eq!(codes(b"\x1b[99~b"), [Char('b')]);
        assert_eq!(codes(b"\x1b[1;5"), []);
        assert_eq!(codes(b"\xff\x00x\xc3"), [Char('x')]);
    }

    #[test]
    fn any_bytes_are_read_to_their_end() {
        let mut seed = 7u32;
        for _ in 0..2000 {
            let bytes: Vec<u8> = (0..9)
                .map(|_| {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    [ESCAPE, b'[', b'O', b'A', b'~', b'1', b';', (seed >> 16) as u8]
                        [(seed >> 24) as usize % 8]
                })
                .collect();
            assert!(parse(&bytes).len() <= bytes.len());
        }
    }
}
