//! A host and a port.

use std::fmt;

/// Where something listens: an address or a name, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The host; IPv6 addresses without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Endpoint {
    /// At this host and port.
    pub fn new(host: impl ToString, port: u16) -> Self {
        Self { host: host.to_string(), port }
    }

    /// The text of it, without the port when that is the usual one.
    pub fn short(&self, usual: u16) -> String {
        if self.port == usual { self.host.clone() } else { self.to_string() }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_port_is_left_out_and_ipv6_has_brackets() {
        assert_eq!(Endpoint::new("10.5.0.2", 50000).short(50000), "10.5.0.2");
        assert_eq!(Endpoint::new("fd00::2", 50000).short(50000), "fd00::2");
        assert_eq!(Endpoint::new("127.0.0.1", 40123).short(50000), "127.0.0.1:40123");
        assert_eq!(Endpoint::new("fd00::2", 6443).to_string(), "[fd00::2]:6443");
    }
}
