//! Who a call comes from, as a gateway tells the machine behind it and the gateways of other nodes.
//!
//! The text is `<port> <address> <credential> <name>`: `-` stands for nothing, the credential is the start of the
//! certificate's SHA-256 fingerprint or `uid=<n>`, and the name is the certificate's common name with everything
//! but plain characters written as `%XX`. The port comes first because it is the one part that changes between two
//! connections of the same caller.

use std::fmt::Write as _;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::peer::PeerIdentity;

/// The caller of a forwarded call. Only gateways write it; what clients send under this name is dropped.
pub const CALLER: HeaderName = HeaderName::from_static("ichor-caller");
/// The gateway of the other node that forwarded a call in the caller's name.
pub const PROXY: HeaderName = HeaderName::from_static("ichor-proxy");

/// Bytes of a name that travel on; common names have at most 64 by their standard.
const NAME_MAX: usize = 64;

/// The text for a peer.
pub fn text(peer: &PeerIdentity) -> String {
    let mut out = String::with_capacity(64);
    // Writing to a string cannot fail.
    let _ = match (peer.address, peer.credentials) {
        (Some(address), _) => write!(out, "{} {}", address.port(), address.ip()),
        (None, Some(process)) => write!(out, "{} unix", process.pid.unwrap_or(0)),
        (None, None) => write!(out, "- unix"),
    };
    let _ = match peer.credentials {
        Some(process) => write!(out, " uid={} ", process.uid),
        None if peer.fingerprint.is_empty() => write!(out, " - "),
        None => write!(out, " {} ", peer.fingerprint),
    };
    for byte in peer.common_name.bytes().take(NAME_MAX) {
        match byte {
            b'%' | b'"' | b'\\' => _ = write!(out, "%{byte:02X}"),
            b'!'..=b'~' => out.push(char::from(byte)),
            _ => _ = write!(out, "%{byte:02X}"),
        }
    }
    out
}

/// The same as a header value, made once for a connection.
pub(crate) fn header_value(peer: &PeerIdentity) -> HeaderValue {
    HeaderValue::from_str(&text(peer)).unwrap_or_else(|_| HeaderValue::from_static("- - - "))
}

/// Writes who calls: a gateway may name another caller and is then named itself, everyone else is the caller.
pub(crate) fn write(headers: &mut HeaderMap, peer: &HeaderValue, is_gateway: bool) {
    if is_gateway && headers.contains_key(&CALLER) {
        headers.insert(PROXY, peer.clone());
    } else {
        headers.insert(CALLER, peer.clone());
        headers.remove(PROXY);
    }
}

/// The parts of the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts<'a> {
    /// Port, or process id on a Unix socket.
    pub port: Option<u32>,
    /// Address, or `unix`.
    pub address: &'a str,
    /// Fingerprint of the certificate, or `uid=<n>`; empty for a stranger.
    pub credential: &'a str,
    /// Common name of the certificate, escaped.
    pub name: &'a str,
}

impl<'a> Parts<'a> {
    /// Takes a text apart; of a text that is none of ours what can be read is kept.
    pub fn parse(text: &'a str) -> Self {
        let mut words = text.splitn(4, ' ');
        let port = words.next().and_then(|word| word.parse().ok());
        let mut word =
            || Some(words.next().unwrap_or_default()).filter(|word| *word != "-").unwrap_or_default();
        Self { port, address: word(), credential: word(), name: word() }
    }

    /// What of a text stays the same for all connections of a caller.
    pub fn lasting(text: &str) -> &str {
        text.split_once(' ').map_or(text, |(_, rest)| rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::PeerCredentials;

    fn tcp(name: &str, fingerprint: &str) -> PeerIdentity {
        PeerIdentity {
            address: Some("10.5.0.1:4242".parse().unwrap()),
            common_name: name.to_owned(),
            fingerprint: fingerprint.to_owned(),
            ..PeerIdentity::default()
        }
    }

    #[test]
    fn a_text_is_taken_apart_as_it_was_made() {
        let process = PeerCredentials { uid: 50, gid: 50, pid: Some(7) };
        let unix = PeerIdentity { credentials: Some(process), ..PeerIdentity::default() };
        for (peer, expected) in [
            (tcp("admin", "0011223344556677"), "4242 10.5.0.1 0011223344556677 admin"),
            (tcp("", ""), "4242 10.5.0.1 - "),
            (tcp("a b\n\"ü", "00"), "4242 10.5.0.1 00 a%20b%0A%22%C3%BC"),
            (unix, "7 unix uid=50 "),
        ] {
            let made = text(&peer);
            assert_eq!(made, expected);
            assert!(HeaderValue::from_str(&made).is_ok());
        }
        let parts = Parts::parse("4242 10.5.0.1 - ");
        assert_eq!(parts, Parts { port: Some(4242), address: "10.5.0.1", credential: "", name: "" });
        assert_eq!(Parts::parse(""), Parts::default());
        assert_eq!(Parts::lasting("1 a b c d"), Parts::lasting("2 a b c d"));
    }

    #[test]
    fn a_long_name_is_cut() {
        assert_eq!(text(&tcp(&"n".repeat(5000), "00")).len(), "4242 10.5.0.1 00 ".len() + NAME_MAX);
    }

    #[test]
    fn only_gateways_name_another() {
        let own = HeaderValue::from_static("1 a b c");
        let forged = || {
            let mut headers = HeaderMap::new();
            headers.append(CALLER, HeaderValue::from_static("2 root"));
            headers.append(CALLER, HeaderValue::from_static("3 root"));
            headers.append(PROXY, HeaderValue::from_static("4 nobody"));
            headers
        };
        let mut headers = forged();
        write(&mut headers, &own, false);
        assert_eq!(headers.get_all(CALLER).iter().collect::<Vec<_>>(), ["1 a b c"]);
        assert!(!headers.contains_key(PROXY));
        let mut headers = forged();
        write(&mut headers, &own, true);
        assert_eq!(headers.get(CALLER).unwrap(), "2 root");
        assert_eq!(headers.get_all(PROXY).iter().collect::<Vec<_>>(), ["1 a b c"]);
        let mut headers = HeaderMap::new();
        write(&mut headers, &own, true);
        assert_eq!(headers.get(CALLER).unwrap(), "1 a b c");
    }
}
