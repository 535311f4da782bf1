//! URLs: one text on the wire, their parts in YAML.

use std::fmt;

use super::wire::{put_bytes, put_nested};
use super::{Field, Reader, Sampler, Value, WireError, Yaml};

/// A URL, kept as text.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Url(pub String);

impl From<&str> for Url {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<String> for Url {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The parts YAML shows.
#[derive(Debug, Default, PartialEq)]
struct Parts {
    scheme: String,
    opaque: String,
    user: bool,
    host: String,
    path: String,
    raw_path: String,
    force_query: bool,
    raw_query: String,
    fragment: String,
    raw_fragment: String,
}

impl Parts {
    fn of(text: &str) -> Self {
        let mut parts = Self::default();
        let (text, fragment) = text.split_once('#').unwrap_or((text, ""));
        (parts.fragment, parts.raw_fragment) = decoded(fragment, "!$&'()*+,-./:;=?@_~");
        let mut rest = text;
        if let Some((scheme, tail)) = text.split_once(':') {
            let letters = scheme.bytes().enumerate().all(|(i, b)| {
                b.is_ascii_alphabetic() || i > 0 && (b.is_ascii_digit() || b"+-.".contains(&b))
            });
            if !scheme.is_empty() && letters {
                parts.scheme = scheme.to_ascii_lowercase();
                rest = tail;
            }
        }
        match rest.split_once('?') {
            Some((path, "")) => {
                parts.force_query = true;
                rest = path;
            }
            Some((path, query)) => {
                query.clone_into(&mut parts.raw_query);
                rest = path;
            }
            None => {}
        }
        if !rest.starts_with('/') && !parts.scheme.is_empty() {
            rest.clone_into(&mut parts.opaque);
            return parts;
        }
        if let Some(tail) = rest.strip_prefix("//") {
            let (authority, path) = tail.find('/').map_or((tail, ""), |at| tail.split_at(at));
            let host = match authority.rsplit_once('@') {
                Some((_, host)) => {
                    parts.user = true;
                    host
                }
                None => authority,
            };
            parts.host = percent_decode(host);
            rest = path;
        }
        (parts.path, parts.raw_path) = decoded(rest, "$&+,-./:;=@_~");
        parts
    }
}

/// The decoded text, and the text as written where encoding again would give another one.
fn decoded(raw: &str, safe: &str) -> (String, String) {
    let text = percent_decode(raw);
    let mut again = String::with_capacity(raw.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || safe.as_bytes().contains(&byte) {
            again.push(char::from(byte));
        } else {
            again.push_str(&format!("%{byte:02X}"));
        }
    }
    let raw = if again == raw { String::new() } else { raw.to_owned() };
    (text, raw)
}

fn percent_decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        rest = match tail {
            [a, b, tail @ ..] if *byte == b'%' && a.is_ascii_hexdigit() && b.is_ascii_hexdigit() => {
                out.push(hex(*a) << 4 | hex(*b));
                tail
            }
            _ => {
                out.push(*byte);
                tail
            }
        };
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn hex(digit: u8) -> u8 {
    char::from(digit).to_digit(16).unwrap_or(0) as u8
}

impl Value for Url {
    fn proto_type() -> String {
        "common.URL".into()
    }

    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        put_nested(tag, out, |out| {
            if !self.0.is_empty() {
                put_bytes(1, self.0.as_bytes(), out);
            }
        });
    }

    fn merge(&mut self, field: Field<'_>) -> Result<(), WireError> {
        let mut reader = Reader::new(field.bytes()?);
        while let Some((tag, field)) = reader.next_field()? {
            if tag == 1 {
                field.text()?.clone_into(&mut self.0);
            }
        }
        Ok(())
    }

    fn yaml(&self, yaml: &mut Yaml<'_>) {
        let parts = Parts::of(&self.0);
        let mut frame = yaml.begin();
        for (key, value) in [("scheme", &parts.scheme), ("opaque", &parts.opaque)] {
            yaml.key(&mut frame, key);
            yaml.string(value);
        }
        yaml.key(&mut frame, "user");
        yaml.plain(if parts.user { "{}" } else { "null" });
        for (key, value) in [("host", &parts.host), ("path", &parts.path), ("rawpath", &parts.raw_path)] {
            yaml.key(&mut frame, key);
            yaml.string(value);
        }
        yaml.key(&mut frame, "omithost");
        yaml.plain("false");
        yaml.key(&mut frame, "forcequery");
        parts.force_query.yaml(yaml);
        for (key, value) in [
            ("rawquery", &parts.raw_query),
            ("fragment", &parts.fragment),
            ("rawfragment", &parts.raw_fragment),
        ] {
            yaml.key(&mut frame, key);
            yaml.string(value);
        }
        yaml.end_map(frame);
    }

    fn sample(sampler: &mut Sampler) -> Self {
        Self(format!("https://10.5.0.{}:6443/a%20b?c=d#e", sampler.number()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_those_of_the_original() {
        let parts = Parts::of("https://user:pw@example.com:6443/a%20b/c%2Fd?q=1#frag");
        assert_eq!(parts.scheme, "https");
        assert!(parts.user);
        assert_eq!(parts.host, "example.com:6443");
        assert_eq!((parts.path.as_str(), parts.raw_path.as_str()), ("/a b/c/d", "/a%20b/c%2Fd"));
        assert_eq!((parts.raw_query.as_str(), parts.fragment.as_str()), ("q=1", "frag"));
        assert_eq!(Parts::of("tcp://[fdae::1]:4242/").host, "[fdae::1]:4242");
        assert_eq!(Parts::of("mailto:a@b").opaque, "a@b");
    }
}
