//! The kernel command line: keys with values that may repeat.

use std::fmt;

/// A parsed kernel command line. Keys keep the order of their first appearance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cmdline {
    parameters: Vec<(String, Vec<String>)>,
}

impl Cmdline {
    /// Splits on white space, then on the first `=`. There is no quoting; a bare key has the value `""`.
    pub fn parse(text: &str) -> Self {
        let mut cmdline = Self::default();
        for word in text.split_whitespace() {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            cmdline.append(key, value);
        }
        cmdline
    }

    /// Adds a value to a key.
    pub fn append(&mut self, key: &str, value: &str) {
        match self.parameters.iter_mut().find(|(name, _)| name == key) {
            Some((_, values)) => values.push(value.to_owned()),
            None => self.parameters.push((key.to_owned(), vec![value.to_owned()])),
        }
    }

    /// Gives a key this value alone, where it stands; at the end if it is not there yet.
    pub fn replace(&mut self, key: &str, value: &str) {
        match self.parameters.iter_mut().find(|(name, _)| name == key) {
            Some((_, values)) => *values = vec![value.to_owned()],
            None => self.append(key, value),
        }
    }

    /// Removes a key with all its values.
    pub fn remove(&mut self, key: &str) {
        self.parameters.retain(|(name, _)| name != key);
    }

    /// Removes one value of a key, and the key with its last value.
    pub fn remove_value(&mut self, key: &str, value: &str) {
        for (_, values) in self.parameters.iter_mut().filter(|(name, _)| name == key) {
            values.retain(|other| other != value);
        }
        self.parameters.retain(|(_, values)| !values.is_empty());
    }

    /// All values of a key, in order.
    pub fn all(&self, key: &str) -> &[String] {
        self.parameters.iter().find(|(name, _)| name == key).map_or(&[], |(_, values)| values)
    }

    /// The first value of a key.
    pub fn first(&self, key: &str) -> Option<&str> {
        self.all(key).first().map(String::as_str)
    }

    /// Whether a key is there and says yes; what cannot be read is no.
    pub fn flag(&self, key: &str) -> bool {
        matches!(self.first(key), Some("1" | "t" | "T" | "true" | "TRUE" | "True"))
    }
}

impl fmt::Display for Cmdline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (key, values) in &self.parameters {
            for value in values {
                match value.is_empty() {
                    true => write!(f, "{separator}{key}")?,
                    false => write!(f, "{separator}{key}={value}")?,
                }
                separator = " ";
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_accumulate_and_print_grouped() {
        let cmdline = Cmdline::parse("console=tty0 quiet ip=a=b\tconsole=ttyS0\n");
        assert_eq!(cmdline.all("console"), ["tty0", "ttyS0"]);
        assert_eq!(cmdline.first("quiet"), Some(""));
        assert_eq!(cmdline.first("ip"), Some("a=b"));
        assert_eq!(cmdline.first("none"), None);
        assert_eq!(cmdline.to_string(), "console=tty0 console=ttyS0 quiet ip=a=b");
    }

    #[test]
    fn a_key_goes_with_its_last_value() {
        let mut cmdline = Cmdline::parse("a=1 a=2 b c=3");
        cmdline.remove_value("a", "1");
        cmdline.remove("b");
        cmdline.remove_value("c", "3");
        assert_eq!(cmdline, Cmdline::parse("a=2"));
    }

    #[test]
    fn a_flag_that_cannot_be_read_is_no() {
        let cmdline = Cmdline::parse("a=1 b=yes c d=true");
        assert_eq!(["a", "b", "c", "d", "e"].map(|key| cmdline.flag(key)), [true, false, false, true, false]);
    }
}
