//! Forms of single values: endpoints, addresses, keys.

use std::net::IpAddr;

use base64::{Engine, engine::general_purpose::STANDARD};
use ipnet::IpNet;

use crate::values::{Url, base64_error};

/// Checks a URL that names a host, the way control plane endpoints are checked.
pub fn check_endpoint(text: &str) -> Result<(), String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    if url.host.matches(':').count() > 2 && !(url.host.contains('[') && url.host.contains(']')) {
        return Err("IPv6 addresses MUST be enclosed by square brackets".to_owned());
    }
    if url.hostname().is_empty() {
        return Err("hostname must not be blank".to_owned());
    }
    match url.port() {
        "" => Ok(()),
        port => match port.parse::<u32>() {
            Ok(1..=65535) => Ok(()),
            Ok(_) => Err("port number must be between 1 and 65535".to_owned()),
            Err(_) => Err("port number must be numeric".to_owned()),
        },
    }
}

/// Checks an address with or without a prefix length.
pub(super) fn check_ip_or_cidr(text: &str) -> Result<(), String> {
    if text.contains('/') {
        return check_cidr(text);
    }
    text.parse::<IpAddr>().map(|_| ()).map_err(|_| format!("failed to parse IP address {text:?}"))
}

/// Checks a prefix.
pub(super) fn check_cidr(text: &str) -> Result<(), String> {
    text.parse::<IpNet>().map(|_| ()).map_err(|_| format!("invalid CIDR address: {text}"))
}

/// Checks a WireGuard key: base64 of 32 bytes.
pub(super) fn check_wireguard_key(key: &str) -> Result<(), String> {
    match STANDARD.decode(key) {
        Err(error) => Err(base64_error(key.len(), &error)),
        Ok(raw) if raw.len() != 32 => Err(format!("wrong key {key:?} length: {}", raw.len())),
        Ok(_) => Ok(()),
    }
}

/// True for names of domains as the cluster DNS takes them.
pub(super) fn is_dns_name(name: &str) -> bool {
    if name.is_empty() || name.len() - name.matches('.').count() > 255 {
        return false;
    }
    let body = name.strip_suffix(['.', '_']).unwrap_or(name);
    let label = |label: &str| {
        let first = label.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
        let rest = label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        first && rest && label.len() <= 63
    };
    body.split('.').all(label) || name.split('.').all(label)
}

/// Splits `host:port`; brackets around the host are taken off.
pub(super) fn split_host_port(text: &str) -> Result<(&str, &str), String> {
    let fail = |why: &str| Err(format!("address {text}: {why}"));
    let Some(colon) = text.rfind(':') else { return fail("missing port in address") };
    if let Some(inner) = text.strip_prefix('[') {
        let Some(end) = inner.find(']') else { return fail("missing ']' in address") };
        return match inner[end + 1..].strip_prefix(':') {
            Some(port) => Ok((&inner[..end], port)),
            None => fail("missing port in address"),
        };
    }
    let host = &text[..colon];
    if host.contains(':') { fail("too many colons in address") } else { Ok((host, &text[colon + 1..])) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_need_a_host_and_a_sane_port() {
        for (text, want) in [
            ("https://10.0.0.1:6443", Ok(())),
            ("https://[::1]:6443/x", Ok(())),
            ("https://:6443", Err("hostname must not be blank")),
            ("https://h:0", Err("port number must be between 1 and 65535")),
            ("https://h:70000", Err("port number must be between 1 and 65535")),
            ("host:6443", Err("hostname must not be blank")),
        ] {
            assert_eq!(check_endpoint(text), want.map_err(str::to_owned), "{text}");
        }
    }

    #[test]
    fn dns_names_are_labels_with_dots() {
        for name in ["cluster.local", "a_b.c-d", "x.", "example.com_"] {
            assert!(is_dns_name(name), "{name}");
        }
        for name in ["", "-a", "a..b", "a b"] {
            assert!(!is_dns_name(name), "{name}");
        }
    }
}
