//! The code in the address that a machine gets its configuration from: what a person types in at the console. Pure.
//!
//! `talos.config=https://example.org/config?code=${code}` asks for it; the machine keeps it in META.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::form::Pressed;

/// The META key of the code.
pub const META_KEY: u32 = 0x0b;

/// The same as the id of a resource.
pub const META_ID: &str = "0x0b";

/// What stands for the code in an address.
const PLACEHOLDER: &str = "${code}";

/// Longest code.
const TEXT_MAX: usize = 128;

/// The field while it is open.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CodeForm {
    text: String,
    /// What came of the last attempt to save.
    pub message: String,
}

impl CodeForm {
    /// A field with the code of now.
    pub fn new(code: &str) -> Self {
        Self { text: code.to_owned(), message: String::new() }
    }

    /// What was typed so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What a key does.
    pub fn press(&mut self, key: KeyEvent) -> Pressed {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match (key.code, control) {
            (KeyCode::Esc, _) | (KeyCode::Char('c'), true) => return Pressed::Leave,
            (KeyCode::Enter, _) => return Pressed::Save,
            (KeyCode::Backspace, _) | (KeyCode::Char('h'), true) => {
                self.text.pop();
            }
            (KeyCode::Char('u'), true) => self.text.clear(),
            (KeyCode::Char(character), false) if self.text.len() < TEXT_MAX => self.text.push(character),
            _ => {}
        }
        Pressed::Stay
    }

    /// The code, empty to delete it, or what is wrong with it.
    ///
    /// # Errors
    /// When it has something in it that no address can carry as it is.
    pub fn value(&self) -> Result<&str, String> {
        let code = self.text.trim();
        match code.chars().find(|c| !c.is_ascii_graphic()) {
            None => Ok(code),
            Some(bad) => Err(format!("{bad:?} cannot be in a code: use letters, digits and signs")),
        }
    }
}

/// Whether an address wants a code: only its query can. Names of placeholders may be in either case.
pub fn is_wanted(address: &str) -> bool {
    address.split_once('?').is_some_and(|(_, query)| query.to_ascii_lowercase().contains(PLACEHOLDER))
}

/// The address with the code in it, as it is shown.
pub fn fill(address: &str, code: &str) -> String {
    let Some((base, mut rest)) = address.split_once('?') else { return address.to_owned() };
    let mut out = format!("{base}?");
    while let Some(at) = rest.to_ascii_lowercase().find(PLACEHOLDER) {
        out.push_str(&rest[..at]);
        out.push_str(code);
        rest = &rest[at + PLACEHOLDER.len()..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_wants_a_code_in_any_case_and_shows_it() {
        assert!(is_wanted("https://a/?c=${code}") && is_wanted("https://a/?c=${CODE}"));
        assert!(!is_wanted("https://a/?uuid=${uuid}") && !is_wanted("https://a/${code}?b"));
        assert_eq!(fill("https://a/?c=${Code}&d=${code}&u=${uuid}", "x1"), "https://a/?c=x1&d=x1&u=${uuid}");
        assert_eq!(fill("https://a/", "x1"), "https://a/");
    }

    #[test]
    fn a_code_is_typed_corrected_and_checked() {
        let mut form = CodeForm::new("old");
        form.press(KeyEvent::new(KeyCode::Char('u'), KeyModifiers::CONTROL));
        for character in "ab-1x".chars() {
            assert_eq!(form.press(KeyCode::Char(character).into()), Pressed::Stay);
        }
        form.press(KeyCode::Backspace.into());
        assert_eq!(form.value(), Ok("ab-1"));
        form.press(KeyCode::Char(' ').into());
        assert_eq!(form.value(), Ok("ab-1"), "spaces around it are nothing");
        form.press(KeyCode::Char('y').into());
        assert!(form.value().unwrap_err().starts_with("' ' cannot be in a code"));
        assert_eq!(form.press(KeyCode::Enter.into()), Pressed::Save);
        assert_eq!(form.press(KeyCode::Esc.into()), Pressed::Leave);
    }

    #[test]
    fn a_code_has_a_bound() {
        let mut form = CodeForm::default();
        for _ in 0..TEXT_MAX + 10 {
            form.press(KeyCode::Char('a').into());
        }
        assert_eq!(form.text().len(), TEXT_MAX);
    }
}
