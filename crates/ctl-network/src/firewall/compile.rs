//! From the rules of a chain to the steps the kernel takes. Pure.

use std::net::IpAddr;

use ichor_net::nftables::{Chain, Field, Set, Step};
use ichor_resource::network::{
    MatchOperator, NfTablesAddressMatch, NfTablesChain, NfTablesIfNameMatch, NfTablesRule, NfTablesVerdict,
};
use ichor_resource::value::IpPrefix;
use ipnet::IpNet;

/// Length of the name of a link, as the kernel compares it.
const NAME: usize = 16;
const V4: u8 = 2;
const V6: u8 = 10;

/// What a rule asks for that the kernel is not programmed with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("chain {chain}: packets cannot have their segment size clamped yet")]
pub struct Unsupported {
    chain: String,
}

/// A chain as the kernel takes it.
pub(crate) fn compile(name: &str, chain: &NfTablesChain) -> Result<Chain, Unsupported> {
    if chain.rules.iter().any(|rule| rule.clamp_mss.is_some()) {
        return Err(Unsupported { chain: name.to_owned() });
    }
    Ok(Chain {
        name: name.to_owned(),
        kind: chain.r#type.clone(),
        hook: chain.hook as u32,
        priority: chain.priority.0,
        accept: chain.policy == NfTablesVerdict::Accept,
        rules: chain.rules.iter().flat_map(rule_steps).collect(),
    })
}

/// One rule, or one for each family where addresses matter.
fn rule_steps(rule: &NfTablesRule) -> Vec<Vec<Step>> {
    let mut head = Vec::new();
    for (names, field) in [(&rule.match_iif_name, Field::InName), (&rule.match_oif_name, Field::OutName)] {
        head.extend(names.iter().flat_map(|names| name_steps(names, field)));
    }
    if let Some(mark) = &rule.match_mark {
        head.push(Step::Load(Field::Mark));
        head.push(Step::Bits { mask: mark.mask, xor: mark.xor });
        head.push(Step::Equal(mark.value.to_ne_bytes().to_vec()));
    }
    if let Some(states) = &rule.match_conntrack_state {
        let mask = states.states.iter().fold(0, |bits, state| bits | state.0.cast_unsigned());
        head.push(Step::Load(Field::ConntrackState));
        head.push(Step::Bits { mask, xor: 0 });
        head.push(Step::NotEqual(vec![0; 4]));
    }
    if let Some(layer4) = &rule.match_layer4 {
        head.push(Step::Load(Field::Protocol));
        head.push(Step::Equal(vec![u8::try_from(layer4.protocol.0).unwrap_or(0)]));
    }
    let tail = tail_steps(rule);
    if rule.match_source_address.is_none() && rule.match_destination_address.is_none() {
        return vec![head.into_iter().chain(tail).collect()];
    }
    let of_family = |family: u8| {
        let mut steps = head.clone();
        steps.extend([Step::Load(Field::Family), Step::Equal(vec![family])]);
        steps.extend(address_steps(rule.match_source_address.as_ref(), family, true)?);
        steps.extend(address_steps(rule.match_destination_address.as_ref(), family, false)?);
        steps.extend(tail.clone());
        Some(steps)
    };
    [V4, V6].into_iter().filter_map(of_family).collect()
}

fn name_steps(names: &NfTablesIfNameMatch, field: Field) -> [Step; 2] {
    let padded = |name: &String| {
        let mut bytes = name.as_bytes().to_vec();
        bytes.resize(NAME, 0);
        bytes
    };
    let values = names.interface_name.iter().map(padded).collect();
    [Step::Load(field), Step::In(Set::Values(values), names.operator == MatchOperator::NotEqual)]
}

/// What comes after the addresses.
fn tail_steps(rule: &NfTablesRule) -> Vec<Step> {
    let mut steps = Vec::new();
    if let Some(layer4) = &rule.match_layer4 {
        for (ports, offset) in [(&layer4.match_source_port, 0), (&layer4.match_destination_port, 2)] {
            let Some(ports) = ports.as_ref().filter(|ports| !ports.ranges.is_empty()) else { continue };
            let ranges = ports.ranges.iter().map(|range| (range.lo.into(), range.hi.into())).collect();
            let bytes = |port: u128| (port as u16).to_be_bytes().to_vec();
            let ranges = merge(ranges).into_iter().map(|(low, high)| (bytes(low), bytes(high))).collect();
            steps.extend([Step::Load(Field::Transport(offset, 2)), Step::In(Set::Ranges(ranges), false)]);
        }
        if let Some(icmp) = &layer4.match_icmp_type {
            let values = icmp.types.iter().map(|kind| vec![u8::try_from(kind.0).unwrap_or(0)]).collect();
            steps.extend([Step::Load(Field::Transport(0, 1)), Step::In(Set::Values(values), false)]);
        }
    }
    steps.extend(rule.match_limit.as_ref().map(|limit| Step::Limit(limit.packet_rate_per_second)));
    if let Some(mark) = &rule.set_mark {
        steps.push(Step::Load(Field::Mark));
        steps.push(Step::Bits { mask: mark.mask, xor: mark.xor });
        steps.push(Step::SetMark);
    }
    if rule.anonymous_counter {
        steps.push(Step::Count);
    }
    steps.extend(rule.verdict.map(|verdict| Step::Verdict(verdict == NfTablesVerdict::Accept)));
    steps
}

/// The steps for one address; `None` when no packet of the family can match.
fn address_steps(wanted: Option<&NfTablesAddressMatch>, family: u8, source: bool) -> Option<Vec<Step>> {
    let Some(wanted) = wanted else { return Some(Vec::new()) };
    let ranges = ranges(wanted, family);
    let everything = ranges == [(0, highest(family))];
    match (ranges.is_empty(), everything, wanted.invert) {
        (true, _, false) | (_, true, true) => return None,
        (true, _, true) | (_, true, false) => return Some(Vec::new()),
        (false, false, _) => {}
    }
    let (offset, length) = match (family, source) {
        (V4, true) => (12, 4),
        (V4, false) => (16, 4),
        (_, true) => (8, 16),
        (_, false) => (24, 16),
    };
    let bytes = |value: u128| value.to_be_bytes()[16 - length as usize..].to_vec();
    let ranges = ranges.into_iter().map(|(low, high)| (bytes(low), bytes(high))).collect();
    Some(vec![Step::Load(Field::Network(offset, length)), Step::In(Set::Ranges(ranges), wanted.invert)])
}

fn highest(family: u8) -> u128 {
    if family == V4 { u32::MAX.into() } else { u128::MAX }
}

/// First and last address of a network, as numbers.
fn bounds(net: IpNet) -> (u128, u128) {
    let number = |address: IpAddr| match address {
        IpAddr::V4(v4) => u32::from(v4).into(),
        IpAddr::V6(v6) => u128::from(v6),
    };
    (number(net.network()), number(net.broadcast()))
}

/// The addresses of a family that are included and not excluded, in order and apart.
fn ranges(wanted: &NfTablesAddressMatch, family: u8) -> Vec<(u128, u128)> {
    let of_family = |nets: &[IpPrefix]| {
        let nets = nets.iter().filter_map(IpPrefix::get).filter(|net| net.addr().is_ipv4() == (family == V4));
        merge(nets.map(bounds).collect())
    };
    let mut left = of_family(&wanted.include_subnets);
    for (low, high) in of_family(&wanted.exclude_subnets) {
        let cut = |(first, last): (u128, u128)| {
            let before = (low > first).then(|| (first, last.min(low.saturating_sub(1))));
            let after = (high < last).then(|| (first.max(high.saturating_add(1)), last));
            [before, after].into_iter().flatten()
        };
        left = left.into_iter().flat_map(cut).collect();
    }
    left
}

/// Puts ranges in order and joins those that touch.
fn merge(mut ranges: Vec<(u128, u128)>) -> Vec<(u128, u128)> {
    ranges.retain(|(low, high)| low <= high);
    ranges.sort_unstable();
    let mut merged: Vec<(u128, u128)> = Vec::new();
    for (low, high) in ranges {
        match merged.last_mut() {
            Some((_, last)) if low <= last.saturating_add(1) => *last = high.max(*last),
            Some(_) | None => merged.push((low, high)),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(include: &[&str], exclude: &[&str], invert: bool) -> NfTablesAddressMatch {
        let of = |list: &[&str]| list.iter().map(|net| net.parse().unwrap()).collect();
        NfTablesAddressMatch { include_subnets: of(include), exclude_subnets: of(exclude), invert }
    }

    #[test]
    fn ranges_are_joined_and_cut() {
        let show = |wanted: &NfTablesAddressMatch| {
            let text = |(low, high): &(u128, u128)| format!("{:08x}-{:08x}", low, high);
            ranges(wanted, V4).iter().map(text).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(show(&nets(&["10.0.0.0/9", "10.128.0.0/9", "fd00::/8"], &[], false)), "0a000000-0affffff");
        assert_eq!(
            show(&nets(&["10.0.0.0/8"], &["10.9.0.0/16", "11.0.0.0/8"], false)),
            "0a000000-0a08ffff 0a0a0000-0affffff"
        );
        assert_eq!(show(&nets(&["10.9.0.0/16"], &["10.0.0.0/8"], false)), "");
        assert_eq!(show(&nets(&["0.0.0.0/0"], &["0.0.0.0/1"], false)), "80000000-ffffffff");
    }

    #[test]
    fn a_family_that_cannot_match_has_no_rule_and_one_that_must_has_no_set() {
        let rules = |source| {
            let rule = NfTablesRule {
                match_source_address: Some(source),
                verdict: Some(NfTablesVerdict::Accept),
                ..NfTablesRule::default()
            };
            let sets = |steps: &Vec<Step>| steps.iter().filter(|step| matches!(step, Step::In(..))).count();
            rule_steps(&rule).iter().map(sets).collect::<Vec<_>>()
        };
        assert_eq!(rules(nets(&["10.0.0.0/8"], &[], false)), [1], "only IPv4");
        assert_eq!(rules(nets(&["10.0.0.0/8"], &[], true)), [1, 0], "all of IPv6 is outside");
        assert_eq!(rules(nets(&["0.0.0.0/0", "::/0"], &[], false)), [0, 0]);
        assert_eq!(rules(nets(&["0.0.0.0/0", "fd00::/8"], &[], true)), [1]);
        assert_eq!(rules(nets(&[], &[], false)), [0; 0]);
    }

    #[test]
    fn ports_that_overlap_are_one_range() {
        assert_eq!(merge(vec![(80, 90), (85, 100), (101, 101), (443, 443)]), [(80, 101), (443, 443)]);
    }
}
