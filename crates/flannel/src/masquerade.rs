//! Which connections get the address of the node. Pure but for the last step.

use std::net::IpAddr;

use ichor_net::NetError;
use ichor_net::nftables::{self, Chain, Field, Set, Step};
use ipnet::IpNet;

const TABLE: &str = "flannel";
const POSTROUTING: u32 = 4;
/// Where source addresses are changed.
const SOURCE_NAT: i32 = 100;
/// Marked by the service proxy: it does the same on its own.
const PROXY_MARK: u32 = 0x4000;

/// The chain for these networks and this node's parts of them.
pub fn chain(networks: &[IpNet], subnets: &[IpNet]) -> Chain {
    let mut rules = vec![vec![
        Step::Load(Field::Mark),
        Step::Bits { mask: PROXY_MARK, xor: 0 },
        Step::Equal(PROXY_MARK.to_ne_bytes().to_vec()),
        Step::Verdict(true),
    ]];
    for network in networks {
        let v6 = network.addr().is_ipv6();
        let family = if v6 { 10 } else { 2 };
        let (from, to) = if v6 {
            (Field::Network(8, 16), Field::Network(24, 16))
        } else {
            (Field::Network(12, 4), Field::Network(16, 4))
        };
        let multicast: IpNet = if v6 { "ff00::/8" } else { "224.0.0.0/4" }.parse().unwrap_or(*network);
        let mut rule = |source: Option<(IpNet, bool)>, target: (IpNet, bool), last: Step| {
            let mut steps = vec![Step::Load(Field::Family), Step::Equal(vec![family])];
            for (field, side) in [(from, source), (to, Some(target))] {
                if let Some((net, inside)) = side {
                    steps.extend([Step::Load(field), Step::In(Set::Ranges(vec![range(net)]), !inside)]);
                }
            }
            steps.push(last);
            rules.push(steps);
        };
        // Pods see each other as they are.
        rule(Some((*network, true)), (*network, true), Step::Verdict(true));
        // Whoever comes from outside to a pod of this node is seen as it is.
        if let Some(own) = subnets.iter().find(|net| net.addr().is_ipv6() == v6) {
            rule(Some((*network, false)), (own.trunc(), true), Step::Verdict(true));
        }
        // What leaves the network leaves as the node's; multicast stays what it is.
        rule(Some((*network, true)), (multicast, false), Step::Masquerade);
        // What this node sends to pods of others comes from its end of the overlay, so that answers come back over it.
        rule(Some((*network, false)), (*network, true), Step::Masquerade);
    }
    Chain {
        name: "postrouting".to_owned(),
        kind: "nat".to_owned(),
        hook: POSTROUTING,
        priority: SOURCE_NAT,
        accept: true,
        rules,
    }
}

/// Puts the chain in place, or takes it away.
pub fn program(chain: Option<Chain>) -> Result<(), NetError> {
    nftables::program(TABLE, chain.as_slice())
}

fn range(net: IpNet) -> (Vec<u8>, Vec<u8>) {
    let bytes = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    (bytes(net.network()), bytes(net.broadcast()))
}
