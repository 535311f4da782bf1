//! Where a client connects: `host`, `host:port`, `[v6]:port` or a URL, reduced to host and port.

pub use ichor_rpc::Endpoint;

/// The port of the machine API.
pub const API_PORT: u16 = 50000;

/// An endpoint that has no meaning.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("endpoint \"{text}\" is not a host or host:port")]
pub struct BadEndpoint {
    /// The text as written.
    pub text: String,
}

/// Reads an endpoint. Without a port it is 50000, for an `https://` URL 443.
pub fn parse(text: &str) -> Result<Endpoint, BadEndpoint> {
    let bad = || BadEndpoint { text: text.to_owned() };
    let (rest, default_port) = match text.split_once("://") {
        Some(("https", rest)) => (rest.split('/').next().unwrap_or(rest), 443),
        Some((_, rest)) => (rest.split('/').next().unwrap_or(rest), API_PORT),
        None => (text, API_PORT),
    };
    let (host, port) = if let Some(bracketed) = rest.strip_prefix('[') {
        let (host, after) = bracketed.split_once(']').ok_or_else(bad)?;
        (host, after.strip_prefix(':'))
    } else {
        match rest.split_once(':') {
            // More than one colon without brackets is an IPv6 address.
            Some((_, more)) if more.contains(':') => (rest, None),
            Some((host, port)) => (host, Some(port)),
            None => (rest, None),
        }
    };
    let port = match port {
        Some(port) => port.parse().map_err(|_| bad())?,
        None => default_port,
    };
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c == '/') {
        return Err(bad());
    }
    Ok(Endpoint::new(host, port))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn every_spelling_becomes_host_and_port() {
        for (text, want) in [
            ("10.5.0.2", "10.5.0.2:50000"),
            ("node.example.org:443", "node.example.org:443"),
            ("fd00::1", "[fd00::1]:50000"),
            ("[fd00::1]:6000", "[fd00::1]:6000"),
            ("[fd00::1]", "[fd00::1]:50000"),
            ("https://api.example.org", "api.example.org:443"),
            ("https://api.example.org:50000/x", "api.example.org:50000"),
        ] {
            let read = parse(text).map(|endpoint| endpoint.to_string());
            assert_eq!(read.as_deref(), Ok(want), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", ":50000", "host:port", "[::1", "a b"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
