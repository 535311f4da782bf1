//! Links, addresses, routes over netlink; DHCP and other small protocols.
