//! Keys out of the bytes a terminal sends. Pure.

/// A key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// A character.
    Char(char),
    /// A character with the control key.
    Control(char),
    /// F1 and so on.
    Function(u8),
    /// An arrow.
    Up,
    /// An arrow.
    Down,
    /// An arrow.
    Left,
    /// An arrow.
    Right,
    /// One page back.
    PageUp,
    /// One page on.
    PageDown,
    /// The beginning.
    Home,
    /// The end.
    End,
    /// Next field or page.
    Tab,
    /// Take it.
    Enter,
    /// Delete the character before the cursor.
    Backspace,
    /// Never mind.
    Escape,
}

/// Sequences after the escape character.
const SEQUENCES: &[(&[u8], Key)] = &[
    (b"[A", Key::Up),
    (b"[B", Key::Down),
    (b"[C", Key::Right),
    (b"[D", Key::Left),
    (b"OA", Key::Up),
    (b"OB", Key::Down),
    (b"OC", Key::Right),
    (b"OD", Key::Left),
    (b"[H", Key::Home),
    (b"[F", Key::End),
    (b"[1~", Key::Home),
    (b"[4~", Key::End),
    (b"[5~", Key::PageUp),
    (b"[6~", Key::PageDown),
    (b"OP", Key::Function(1)),
    (b"OQ", Key::Function(2)),
    (b"OR", Key::Function(3)),
    (b"OS", Key::Function(4)),
    (b"[11~", Key::Function(1)),
    (b"[12~", Key::Function(2)),
    (b"[13~", Key::Function(3)),
    (b"[14~", Key::Function(4)),
    (b"[[A", Key::Function(1)),
    (b"[[B", Key::Function(2)),
    (b"[[C", Key::Function(3)),
    (b"[[D", Key::Function(4)),
];

/// All keys in what was read at once; sequences that mean nothing here are left out.
pub fn parse(bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut rest = bytes;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match first {
            0x1b => match SEQUENCES.iter().find(|(sequence, _)| after.starts_with(sequence)) {
                Some((sequence, key)) => {
                    keys.push(*key);
                    rest = &after[sequence.len()..];
                }
                None if after.first().is_some_and(|next| matches!(next, b'[' | b'O')) => {
                    let end = after.iter().skip(1).position(|byte| (0x40..=0x7e).contains(byte));
                    rest = end.map_or(&[][..], |end| &after[end + 2..]);
                }
                None => keys.push(Key::Escape),
            },
            b'\t' => keys.push(Key::Tab),
            b'\r' | b'\n' => keys.push(Key::Enter),
            0x7f | 0x08 => keys.push(Key::Backspace),
            byte @ 0x01..=0x1a => keys.push(Key::Control(char::from(byte - 1 + b'a'))),
            byte @ b' '..=b'~' => keys.push(Key::Char(char::from(*byte))),
            _ => {}
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_all_terminals() {
        assert_eq!(
            parse(b"q\x03\x1b[A\x1bOQ\x1b[13~\x1b[[D"),
            [
                Key::Char('q'),
                Key::Control('c'),
                Key::Up,
                Key::Function(2),
                Key::Function(3),
                Key::Function(4),
            ]
        );
        assert_eq!(
            parse(b"\x1b[200;1~x\x1b\xff\t\r\x7f"),
            [Key::Char('x'), Key::Escape, Key::Tab, Key::Enter, Key::Backspace]
        );
        assert_eq!(parse(b"\x1b["), []);
    }
}
