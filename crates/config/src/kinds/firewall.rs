//! The ingress firewall.

use crate::{
    model::{List, Replace, choices, section},
    values::{PortRange, Prefix},
};

choices! {
    /// What happens to traffic that no rule names.
    pub enum DefaultAction {
        Accept = "accept",
        Block = "block",
    }
}

section! {
    /// What happens to traffic that no rule names.
    pub struct NetworkDefaultActionConfig {
        /// `accept` or `block`.
        @always
        @example("ingress: block")
        "ingress" => ingress: DefaultAction,
    }
}

choices! {
    /// Protocol of a rule.
    pub enum Protocol {
        Unset = "",
        Icmp = "icmp",
        Tcp = "tcp",
        Udp = "udp",
        IcmpV6 = "icmpv6",
    }
}

section! {
    /// Lets traffic in, by port and source.
    pub struct NetworkRuleConfig {
        /// Name of the rule.
        @always
        "name" => name: String,
        /// The ports.
        @always
        "portSelector" => port_selector: PortSelector,
        /// The sources.
        @always
        "ingress" => ingress: Replace<List<IngressRule>>,
    }
}

section! {
    /// Ports of a protocol.
    pub struct PortSelector {
        /// Ports and ranges of ports.
        @always
        @example("ports:\n    - 53\n    - 8000-9000")
        "ports" => ports: Replace<List<PortRange>>,
        /// `tcp`, `udp`, `icmp` or `icmpv6`.
        @always
        "protocol" => protocol: Protocol,
    }
}

section! {
    /// Sources that are let in.
    pub struct IngressRule {
        /// The network.
        @always
        "subnet" => subnet: Prefix,
        /// The part of it that is not.
        "except" => except: Prefix,
    }
}
