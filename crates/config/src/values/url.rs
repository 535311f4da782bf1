//! URLs as Go reads and writes them: nothing is normalised, so that a round trip keeps the bytes.

use std::fmt;

use ichor_yaml::Node;

use crate::model::{Decoder, Field, MergeError, Shape};

/// A URL in its parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Url {
    /// The scheme in lower case, without the colon.
    pub scheme: String,
    /// What follows the scheme when no slash does (`mailto:x`).
    pub opaque: String,
    /// User and password, as written.
    pub user: Option<String>,
    /// Host and port.
    pub host: String,
    /// True if a path follows the scheme without two slashes before it.
    pub omit_host: bool,
    /// The path, escaped.
    pub path: String,
    /// True for a trailing `?` without a query.
    pub force_query: bool,
    /// The query without the question mark.
    pub query: String,
    /// The fragment without the hash.
    pub fragment: String,
}

/// A text that is not a URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("parse {text:?}: {reason}")]
pub struct BadUrl {
    /// The text.
    pub text: String,
    /// What is wrong with it.
    pub reason: String,
}

impl Url {
    /// Splits a text into the parts of a URL.
    pub fn parse(text: &str) -> Result<Self, BadUrl> {
        let bad = |reason: &str| BadUrl { text: text.to_owned(), reason: reason.to_owned() };
        if text.bytes().any(|b| b < 0x20 || b == 0x7f) {
            return Err(bad("net/url: invalid control character in URL"));
        }
        let mut url = Self::default();
        let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
        check_escapes(fragment).map_err(|reason| BadUrl { text: text.to_owned(), reason })?;
        url.fragment = escape_fragment(fragment);
        let (scheme, rest) = split_scheme(rest).map_err(bad)?;
        url.scheme = scheme.to_lowercase();
        let rest = match rest.split_once('?') {
            Some((path, "")) => {
                url.force_query = true;
                path
            }
            Some((path, query)) => {
                url.query = query.to_owned();
                path
            }
            None => rest,
        };
        if !rest.starts_with('/') {
            if !url.scheme.is_empty() {
                url.opaque = rest.to_owned();
                return Ok(url);
            }
            if rest.split('/').next().is_some_and(|segment| segment.contains(':')) {
                return Err(bad("first path segment in URL cannot contain colon"));
            }
        }
        let mut path = rest;
        if let Some(tail) = rest.strip_prefix("//")
            && (!url.scheme.is_empty() || !rest.starts_with("///"))
        {
            let (authority, after) = tail.split_at(tail.find('/').unwrap_or(tail.len()));
            let (user, host) = match authority.rsplit_once('@') {
                Some((user, host)) => {
                    (Some(user_info(user).ok_or_else(|| bad("net/url: invalid userinfo"))?), host)
                }
                None => (None, authority),
            };
            check_host(host).map_err(|reason| BadUrl { text: text.to_owned(), reason })?;
            url.user = user;
            url.host = host.to_owned();
            path = after;
        }
        url.omit_host = !url.scheme.is_empty() && rest.starts_with('/') && !rest.starts_with("//");
        check_escapes(path).map_err(|reason| BadUrl { text: text.to_owned(), reason })?;
        url.path = escape_path(path);
        Ok(url)
    }

    /// The host without port and brackets.
    pub fn hostname(&self) -> &str {
        let (host, _) = split_port(&self.host);
        host.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(host)
    }

    /// The port, empty if there is none.
    pub fn port(&self) -> &str {
        split_port(&self.host).1
    }

    /// Replaces the value of a query parameter; the whole query is written anew, sorted by key.
    pub fn redact_query(&mut self, key: &str, replacement: &str) {
        let mut pairs: Vec<(String, String)> = self
            .query
            .split('&')
            .filter(|part| !part.is_empty())
            .map(|part| {
                let (name, value) = part.split_once('=').unwrap_or((part, ""));
                (unescape_query(name), unescape_query(value))
            })
            .collect();
        if !pairs.iter().any(|(name, value)| name == key && !value.is_empty()) {
            return;
        }
        let mut replaced = false;
        pairs.retain_mut(|(name, value)| {
            if name != key {
                return true;
            }
            *value = replacement.to_owned();
            !std::mem::replace(&mut replaced, true)
        });
        pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
        let part =
            |(name, value): &(String, String)| format!("{}={}", escape_query(name), escape_query(value));
        self.query = pairs.iter().map(part).collect::<Vec<_>>().join("&");
    }
}

/// The value of one query parameter, decoded.
impl Url {
    /// The first value of a query parameter.
    pub fn query_value(&self, key: &str) -> Option<String> {
        let pairs = self.query.split('&').map(|part| part.split_once('=').unwrap_or((part, "")));
        pairs.filter(|(name, _)| unescape_query(name) == key).map(|(_, value)| unescape_query(value)).next()
    }
}

fn split_scheme(text: &str) -> Result<(&str, &str), &'static str> {
    for (i, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if i > 0 => {}
            ':' if i == 0 => return Err("missing protocol scheme"),
            ':' => return Ok((&text[..i], &text[i + 1..])),
            _ => return Ok(("", text)),
        }
    }
    Ok(("", text))
}

fn split_port(host: &str) -> (&str, &str) {
    let after_bracket = host.rfind(']').map_or(0, |at| at + 1);
    match host[after_bracket..].rfind(':') {
        Some(at) => (&host[..after_bracket + at], &host[after_bracket + at + 1..]),
        None => (host, ""),
    }
}

fn check_host(host: &str) -> Result<(), String> {
    let port = if host.starts_with('[') {
        let close = host.rfind(']').ok_or("missing ']' in host")?;
        &host[close + 1..]
    } else {
        host.find(':').map_or("", |_| &host[host.rfind(':').unwrap_or(0)..])
    };
    let digits = port.strip_prefix(':').is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
    if !port.is_empty() && !digits {
        return Err(format!("invalid port {port:?} after host"));
    }
    if let Some(c) =
        host.chars().find(|c| matches!(c, ' ' | '"' | '<' | '>' | '\\' | '^' | '`' | '{' | '|' | '}'))
    {
        return Err(format!("invalid character {:?} in host name", c.to_string()));
    }
    Ok(())
}

fn check_escapes(path: &str) -> Result<(), String> {
    for (at, _) in path.match_indices('%') {
        let digits = path.get(at + 1..at + 3).filter(|pair| pair.bytes().all(|b| b.is_ascii_hexdigit()));
        if digits.is_none() {
            let shown: String = path[at..].chars().take(3).collect();
            return Err(format!("invalid URL escape {shown:?}"));
        }
    }
    Ok(())
}

/// Escapes what may not stand in a path; a path that is fine stays as it is, others are escaped anew.
fn escape_path(path: &str) -> String {
    escape_unless_fine(path, b"", b"")
}

/// The same for a fragment, in which a question mark may stand as well.
fn escape_fragment(fragment: &str) -> String {
    escape_unless_fine(fragment, b"?", b"?!()*")
}

fn escape_unless_fine(text: &str, also_fine: &[u8], also_kept: &[u8]) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&b);
    if text.bytes().all(|b| plain(b) || b"!'()*[]%".contains(&b) || also_fine.contains(&b)) {
        return text.to_owned();
    }
    // A plus is itself here, not a space.
    escape(&unescape_query(&text.replace('+', "%2B")), |b| plain(b) || also_kept.contains(&b))
}

/// User and password, escaped anew; nothing if a sign is in them that cannot be.
fn user_info(text: &str) -> Option<String> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&b);
    if !text.bytes().all(allowed) || check_escapes(text).is_err() {
        return None;
    }
    let fine = |b: u8| b.is_ascii_alphanumeric() || b"-_.~$&+,;=".contains(&b);
    // A plus is itself here, not a space.
    let anew = |part: &str| escape(&unescape_query(&part.replace('+', "%2B")), fine);
    Some(match text.split_once(':') {
        Some((user, password)) => format!("{}:{}", anew(user), anew(password)),
        None => anew(text),
    })
}

fn escape_query(text: &str) -> String {
    escape(text, |b| b.is_ascii_alphanumeric() || b"-_.~".contains(&b) || b == b' ').replace(' ', "+")
}

fn escape(text: &str, fine: impl Fn(u8) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for b in text.bytes() {
        if fine(b) {
            out.push(char::from(b));
        } else {
            out.push_str(&format!("%{b:02X}"));
        }
    }
    out
}

fn unescape_query(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let pair = text.get(i + 1..i + 3).and_then(|pair| u8::from_str_radix(pair, 16).ok());
        match (bytes[i], pair) {
            (b'%', Some(byte)) => {
                out.push(byte);
                i += 3;
            }
            (b'+', _) => {
                out.push(b' ');
                i += 1;
            }
            (byte, _) => {
                out.push(byte);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.scheme.is_empty() {
            write!(f, "{}:", self.scheme)?;
        }
        if !self.opaque.is_empty() {
            f.write_str(&self.opaque)?;
        } else {
            let omitted = self.omit_host && self.host.is_empty() && self.user.is_none();
            if !omitted && (!self.scheme.is_empty() || !self.host.is_empty() || self.user.is_some()) {
                if !self.host.is_empty() || !self.path.is_empty() || self.user.is_some() {
                    f.write_str("//")?;
                }
                if let Some(user) = &self.user {
                    write!(f, "{user}@")?;
                }
                f.write_str(&self.host)?;
            }
            if !self.path.is_empty() && !self.path.starts_with('/') && !self.host.is_empty() {
                f.write_str("/")?;
            }
            f.write_str(&self.path)?;
        }
        if self.force_query || !self.query.is_empty() {
            write!(f, "?{}", self.query)?;
        }
        if !self.fragment.is_empty() {
            write!(f, "#{}", self.fragment)?;
        }
        Ok(())
    }
}

impl Field for Url {
    fn decode(node: &Node, decoder: &mut Decoder) -> Self {
        decoder.parsed(node, "a URL", Self::parse)
    }

    fn encode(&self) -> Node {
        Node::string(self.to_string())
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Part by part: what the patch leaves out stays.
    fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
        self.scheme.merge(&right.scheme)?;
        self.opaque.merge(&right.opaque)?;
        if right.user.is_some() {
            self.user.clone_from(&right.user);
        }
        self.host.merge(&right.host)?;
        self.path.merge(&right.path)?;
        self.omit_host = right.omit_host;
        self.force_query = right.force_query;
        self.query.merge(&right.query)?;
        self.fragment.merge(&right.fragment)
    }

    fn shape() -> Shape {
        Shape::Format("URL")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_keeps_the_bytes() {
        for text in [
            "https://base:6443",
            "https://10.0.0.1/",
            "https://siderolink.api/?jointoken=secret&user=alice",
            "grpc://[fd00::1]:8081/a%20b?x=1#f",
            "https://user:pass@host/path",
            "base:6443",
            "tcp:/only/path",
            "https://h/p?x=1#f?g",
            "/only/path",
            "",
        ] {
            assert_eq!(Url::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn bad_urls_say_why() {
        for (text, want) in [
            ("10.0.0.1:6443", "parse \"10.0.0.1:6443\": first path segment in URL cannot contain colon"),
            (":x", "parse \":x\": missing protocol scheme"),
            ("https://h:x/", "parse \"https://h:x/\": invalid port \":x\" after host"),
            ("https://h/%zz", "parse \"https://h/%zz\": invalid URL escape \"%zz\""),
        ] {
            assert_eq!(Url::parse(text).unwrap_err().to_string(), want);
        }
    }

    #[test]
    fn parts_missing_in_the_patch_stay() {
        let mut left = Url::parse("https://127.0.0.1:6643/x?y=1").unwrap();
        left.merge(&Url::parse("https://10.0.0.1").unwrap()).unwrap();
        assert_eq!(left.to_string(), "https://10.0.0.1/x?y=1");
        assert_eq!(Url::parse("https://[::1]:80").unwrap().hostname(), "::1");
        assert_eq!(Url::parse("https://[::1]:80").unwrap().port(), "80");
    }
}
