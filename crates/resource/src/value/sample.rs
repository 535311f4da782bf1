//! Values for tests: deterministic, never zero, different from each other.

/// Hands out values for [`super::Value::sample`].
#[derive(Debug, Clone, Default)]
pub struct Sampler(u32);

/// Texts with every need for quotes that a YAML writer can meet.
const TEXTS: [&str; 14] = [
    "plain",
    "two words",
    "yes",
    "10",
    "with: colon",
    "line one\nline two\n",
    "",
    "#comment",
    "0x1F",
    "ümläut",
    "tab\tbed",
    "no newline\nat the end",
    "2024-01-02",
    "- dash",
];

impl Sampler {
    /// A sampler that starts at its own point of the sequence.
    pub fn new(seed: u32) -> Self {
        Self(seed)
    }

    /// A small positive number that fits every integer type.
    pub fn number(&mut self) -> u8 {
        self.0 = self.0.wrapping_add(1);
        (self.0 % 120 + 1) as u8
    }

    /// A text for the key of a mapping: one line.
    pub fn key(&mut self) -> String {
        self.text().replace('\n', " ").trim_end().to_owned()
    }

    /// A text; every call another one.
    pub fn text(&mut self) -> String {
        let number = usize::from(self.number());
        match TEXTS[number % TEXTS.len()] {
            "" => "value".to_owned(),
            text => {
                format!("{text}{}", if number.is_multiple_of(3) { number.to_string() } else { String::new() })
            }
        }
    }
}
