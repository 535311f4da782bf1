//! Address filters: a list of prefixes or addresses where a leading `!` excludes.

use std::net::IpAddr;

use ipnet::IpNet;

/// Parses a prefix or a bare address (as a host prefix), keeping host bits as written.
pub fn parse_prefix_or_addr(text: &str) -> Option<IpNet> {
    match text.parse::<IpNet>() {
        Ok(net) => Some(net),
        Err(_) => text.parse::<IpAddr>().ok().map(IpNet::from),
    }
}

/// True if the entry is a prefix or address, optionally behind a `!`.
pub fn is_valid_filter(text: &str) -> bool {
    parse_prefix_or_addr(text.strip_prefix('!').unwrap_or(text)).is_some()
}

/// True if the address lies in an included prefix (or none is given) and in no excluded one.
pub fn passes(address: IpAddr, filter: &[String]) -> bool {
    let mut included = true;
    let mut seen_positive = false;
    let mut hit_positive = false;
    for entry in filter {
        match entry.strip_prefix('!') {
            Some(negative) => {
                if parse_prefix_or_addr(negative).is_some_and(|net| net.contains(&address)) {
                    included = false;
                }
            }
            None => {
                seen_positive = true;
                hit_positive |= parse_prefix_or_addr(entry).is_some_and(|net| net.contains(&address));
            }
        }
    }
    included && (hit_positive || !seen_positive)
}

/// The `n`th address of a prefix, counted from its network address.
pub fn nth_address(net: &IpNet, n: u32) -> Option<IpAddr> {
    let address = match net.network() {
        IpAddr::V4(base) => IpAddr::V4(u32::from(base).checked_add(n)?.into()),
        IpAddr::V6(base) => IpAddr::V6(u128::from(base).checked_add(u128::from(n))?.into()),
    };
    net.contains(&address).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusions_win_over_inclusions() {
        let filter = ["10.0.0.0/8".to_owned(), "!10.5.0.0/16".to_owned()];
        assert!(passes("10.1.0.1".parse().unwrap(), &filter));
        assert!(!passes("10.5.0.1".parse().unwrap(), &filter));
        assert!(!passes("192.168.0.1".parse().unwrap(), &filter));
        assert!(passes("192.168.0.1".parse().unwrap(), &["!10.0.0.0/8".to_owned()]));
    }

    #[test]
    fn service_addresses_are_counted_from_the_network() {
        let net: IpNet = "10.96.0.0/12".parse().unwrap();
        assert_eq!(nth_address(&net, 10).unwrap().to_string(), "10.96.0.10");
        assert_eq!(nth_address(&"10.0.0.0/30".parse().unwrap(), 4), None);
    }
}
