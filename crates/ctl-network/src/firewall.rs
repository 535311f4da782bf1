//! The ingress firewall: what the configuration lets in, as chains, and the kernel programmed with them.

use ichor_config::Document;
use ichor_config::kinds::firewall::{DefaultAction, NetworkRuleConfig, Protocol as RuleProtocol};
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, shared, weak};
use ichor_ctl::Configuration;
use ichor_net::nftables::Chain;
use ichor_resource::network::{
    ConntrackState, ICMPType, MatchOperator, NfTablesAddressMatch, NfTablesChain, NfTablesChainHook,
    NfTablesChainPriority, NfTablesConntrackStateMatch, NfTablesICMPTypeMatch, NfTablesIfNameMatch,
    NfTablesLayer4Match, NfTablesLimitMatch, NfTablesPortMatch, NfTablesRule, NfTablesVerdict, NodeAddress,
    PortRange, Protocol,
};
use ichor_resource::value::IpPrefix;
use ipnet::IpNet;

use crate::documents;
use crate::host_dns::SERVICE;
use crate::ports::Kernel;
use crate::settings::Settings;
use crate::trouble::Troubles;

pub mod compile;

use compile::compile;

/// Our table; whatever is in it is ours.
const TABLE: &str = "talos";
/// Links that are always let in.
const TRUSTED: [&str; 3] = ["lo", "siderolink", "kubespan"];
/// ICMP packets a second.
const ICMP_RATE: u64 = 5;
/// The addresses that pods reach the node's own ports at.
const ADDRESSES: &str = "routed-no-k8s";
const DNS: u16 = 53;

/// Publishes chains.
#[derive(Debug, Default)]
pub struct NfTablesChainConfigController;

/// What the firewall documents say.
#[derive(Debug, Default)]
pub(crate) struct Firewall<'a> {
    block: bool,
    rules: Vec<&'a NetworkRuleConfig>,
}

impl<'a> Firewall<'a> {
    fn read(documents: impl Iterator<Item = &'a Document>) -> Self {
        let mut firewall = Self::default();
        for document in documents {
            match document {
                Document::NetworkDefaultActionConfig(action) => {
                    firewall.block = action.ingress == DefaultAction::Block;
                }
                Document::NetworkRuleConfig(rule) => firewall.rules.push(rule),
                _ => {}
            }
        }
        firewall
    }
}

fn rule(verdict: NfTablesVerdict) -> NfTablesRule {
    NfTablesRule { anonymous_counter: true, verdict: Some(verdict), ..NfTablesRule::default() }
}

fn trusted() -> NfTablesRule {
    let names = NfTablesIfNameMatch {
        interface_name: TRUSTED.map(str::to_owned).to_vec(),
        operator: MatchOperator::Equal,
    };
    NfTablesRule { match_iif_name: Some(names), ..rule(NfTablesVerdict::Accept) }
}

fn states(list: &[ConntrackState]) -> Option<NfTablesConntrackStateMatch> {
    Some(NfTablesConntrackStateMatch { states: list.to_vec() })
}

fn within(nets: &[IpNet]) -> Option<NfTablesAddressMatch> {
    let include_subnets = nets.iter().map(|net| IpPrefix::from(*net)).collect();
    Some(NfTablesAddressMatch { include_subnets, ..NfTablesAddressMatch::default() })
}

fn protocol(protocol: Protocol) -> NfTablesLayer4Match {
    NfTablesLayer4Match { protocol, ..NfTablesLayer4Match::default() }
}

fn ports(of: Protocol, ranges: Vec<PortRange>) -> Option<NfTablesLayer4Match> {
    Some(NfTablesLayer4Match { match_destination_port: Some(NfTablesPortMatch { ranges }), ..protocol(of) })
}

/// What one document matches: sources and ports. Where all is let in, everybody else is kept out.
fn configured(config: &NetworkRuleConfig, block: bool) -> NfTablesRule {
    let mut sources = NfTablesAddressMatch { invert: !block, ..NfTablesAddressMatch::default() };
    for ingress in config.ingress.0.iter() {
        sources.include_subnets.extend(ingress.subnet.0.map(IpPrefix::from));
        sources.exclude_subnets.extend(ingress.except.0.map(IpPrefix::from));
    }
    let ranges = config.port_selector.ports.0.iter();
    let ranges = ranges.map(|range| PortRange { lo: range.low, hi: range.high }).collect();
    let match_layer4 = match config.port_selector.protocol {
        RuleProtocol::Tcp => ports(Protocol::TCP, ranges),
        RuleProtocol::Udp => ports(Protocol::UDP, ranges),
        RuleProtocol::Icmp => Some(protocol(Protocol::ICMP)),
        RuleProtocol::IcmpV6 => Some(protocol(Protocol::ICMPV6)),
        RuleProtocol::Unset => None,
    };
    let verdict = if block { NfTablesVerdict::Accept } else { NfTablesVerdict::Drop };
    NfTablesRule { match_source_address: Some(sources), match_layer4, ..rule(verdict) }
}

/// The chain before a packet is delivered.
fn ingress(firewall: &Firewall<'_>, settings: &Settings) -> NfTablesChain {
    use NfTablesVerdict::{Accept, Drop};
    let mut rules = vec![trusted()];
    if firewall.block {
        let held = states(&[ConntrackState::ESTABLISHED, ConntrackState::RELATED]);
        rules.push(NfTablesRule { match_conntrack_state: held, ..rule(Accept) });
        let bad = states(&[ConntrackState::INVALID]);
        rules.push(NfTablesRule { match_conntrack_state: bad, ..rule(Drop) });
        let types = vec![
            ICMPType::TIMESTAMP_REQUEST,
            ICMPType::TIMESTAMP_REPLY,
            ICMPType::ADDRESS_MASK_REQUEST,
            ICMPType::ADDRESS_MASK_REPLY,
        ];
        let telling = NfTablesLayer4Match {
            match_icmp_type: Some(NfTablesICMPTypeMatch { types }),
            ..protocol(Protocol::ICMP)
        };
        rules.push(NfTablesRule { match_layer4: Some(telling), ..rule(Drop) });
        for kind in [Protocol::ICMP, Protocol::ICMPV6] {
            rules.push(NfTablesRule {
                match_layer4: Some(protocol(kind)),
                match_limit: Some(NfTablesLimitMatch { packet_rate_per_second: ICMP_RATE }),
                ..rule(Accept)
            });
        }
        let cluster = &settings.kubernetes_subnets;
        if settings.host_dns.forward_kube_dns && !cluster.is_empty() {
            let dns = within(&[IpNet::from(std::net::IpAddr::V4(SERVICE))]);
            for kind in [Protocol::UDP, Protocol::TCP] {
                rules.push(NfTablesRule {
                    match_source_address: within(cluster),
                    match_destination_address: dns.clone(),
                    match_layer4: ports(kind, vec![PortRange { lo: DNS, hi: DNS }]),
                    ..rule(Accept)
                });
            }
        }
        if !cluster.is_empty() {
            rules.push(NfTablesRule {
                match_source_address: within(cluster),
                match_destination_address: within(cluster),
                ..rule(Accept)
            });
        }
    }
    rules.extend(firewall.rules.iter().map(|config| configured(config, firewall.block)));
    NfTablesChain {
        r#type: "filter".to_owned(),
        hook: NfTablesChainHook::Input,
        priority: NfTablesChainPriority(NfTablesChainPriority::MANGLE.0 + 10),
        policy: if firewall.block { Drop } else { Accept },
        rules,
    }
}

/// The chain before addresses are translated: a port of the node must not be reached through a service.
fn prerouting(firewall: &Firewall<'_>, addresses: &[IpNet]) -> NfTablesChain {
    use NfTablesVerdict::{Accept, Drop};
    let new = || states(&[ConntrackState::NEW]);
    let own: Vec<_> = addresses.iter().map(|net| IpNet::from(net.addr())).collect();
    let elsewhere = within(&own).map(|own| NfTablesAddressMatch { invert: true, ..own });
    let mut rules = vec![trusted(), NfTablesRule { match_destination_address: elsewhere, ..rule(Accept) }];
    for config in &firewall.rules {
        rules.push(NfTablesRule { match_conntrack_state: new(), ..configured(config, firewall.block) });
    }
    if firewall.block {
        for kind in [Protocol::TCP, Protocol::UDP] {
            rules.push(NfTablesRule {
                match_conntrack_state: new(),
                match_layer4: Some(protocol(kind)),
                ..rule(Drop)
            });
        }
    }
    NfTablesChain {
        r#type: "filter".to_owned(),
        hook: NfTablesChainHook::Prerouting,
        priority: NfTablesChainPriority(NfTablesChainPriority::NAT_DEST.0 - 10),
        policy: Accept,
        rules,
    }
}

/// All chains; none when everything is let in.
pub(crate) fn decide(
    firewall: &Firewall<'_>,
    settings: &Settings,
    addresses: &[IpNet],
) -> Vec<(&'static str, NfTablesChain)> {
    if !firewall.block && firewall.rules.is_empty() {
        return Vec::new();
    }
    let mut chains = vec![("ingress", ingress(firewall, settings))];
    if !addresses.is_empty() {
        chains.push(("prerouting", prerouting(firewall, addresses)));
    }
    chains
}

impl Controller for NfTablesChainConfigController {
    const NAME: &'static str = "network.NfTablesChainConfigController";

    fn inputs(&self) -> Vec<Input> {
        vec![documents::input(), weak::<NodeAddress>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<NfTablesChain>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = Configuration::active(ctx)?;
        let firewall = Firewall::read(config.iter().flat_map(|config| config.iter()));
        let settings = documents::settings(ctx)?.unwrap_or_default();
        let view = ctx.get::<NodeAddress>(ADDRESSES)?;
        let addresses: Vec<_> =
            view.iter().flat_map(|view| view.addresses.iter().filter_map(IpPrefix::get)).collect();
        ctx.publish(decide(&firewall, &settings, &addresses))?;
        Ok(())
    }
}

/// Programs the kernel with all chains there are, in one table.
#[derive(Debug)]
pub struct NfTablesChainController<K> {
    kernel: K,
    troubles: Troubles,
    /// What the kernel was last programmed with.
    held: Option<Vec<Chain>>,
}

impl<K> NfTablesChainController<K> {
    /// Programs this kernel.
    pub fn new(kernel: K) -> Self {
        Self { kernel, troubles: Troubles::default(), held: None }
    }
}

impl<K: Kernel> Controller for NfTablesChainController<K> {
    const NAME: &'static str = "network.NfTablesChainController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<NfTablesChain>()]
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let mut chains = Vec::new();
        for chain in ctx.list::<NfTablesChain>()?.iter().filter(|chain| chain.meta().is_running()) {
            match compile(chain.id(), chain) {
                Ok(chain) => chains.push(chain),
                Err(error) => self.troubles.refused(error),
            }
        }
        if self.held.as_ref() != Some(&chains) {
            match self.kernel.filter(TABLE, &chains) {
                Ok(()) => {
                    if !chains.is_empty() || self.held.is_some() {
                        tracing::info!(chains = chains.len(), "programmed the firewall");
                    }
                    self.held = Some(chains);
                }
                Err(error) => {
                    self.held = None;
                    self.troubles.refused(error);
                }
            }
        }
        self.troubles.show(ctx);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use ichor_config::Documents;

    use super::*;

    #[track_caller]
    fn check(yaml: &str, expect: Expect) {
        let documents = Documents::load(yaml.as_bytes()).unwrap();
        let firewall = Firewall::read(documents.iter());
        let mut settings =
            Settings { kubernetes_subnets: vec!["10.244.0.0/16".parse().unwrap()], ..Settings::default() };
        settings.host_dns.forward_kube_dns = true;
        let mut text = String::new();
        for (id, chain) in decide(&firewall, &settings, &["10.5.0.2/24".parse().unwrap()]) {
            text.push_str(&format!("{id}: {} {} {}\n", chain.hook, chain.priority.0, chain.policy));
            for rule in &chain.rules {
                let mut words = Vec::new();
                let nets =
                    |list: &[IpPrefix]| list.iter().map(ToString::to_string).collect::<Vec<_>>().join("+");
                words.extend(rule.match_iif_name.as_ref().map(|m| m.interface_name.join("+")));
                words.extend(
                    rule.match_conntrack_state
                        .as_ref()
                        .map(|m| m.states.iter().map(ToString::to_string).collect::<Vec<_>>().join("+")),
                );
                for (word, address) in
                    [("from", &rule.match_source_address), ("to", &rule.match_destination_address)]
                {
                    words.extend(address.as_ref().map(|a| {
                        let not = if a.invert { "not " } else { "" };
                        format!("{word} {not}{}-{}", nets(&a.include_subnets), nets(&a.exclude_subnets))
                    }));
                }
                words.extend(rule.match_layer4.as_ref().map(|l| {
                    let ports = l.match_destination_port.iter().flat_map(|p| p.ranges.iter());
                    let ports: Vec<_> = ports.map(|r| format!("{}-{}", r.lo, r.hi)).collect();
                    let types = l.match_icmp_type.iter().flat_map(|t| t.types.iter()).count();
                    format!("{} {} {types}", l.protocol, ports.join(","))
                }));
                words.extend(rule.match_limit.as_ref().map(|l| format!("{}/s", l.packet_rate_per_second)));
                words.extend(rule.verdict.map(|v| v.to_string()));
                text.push_str(&format!("  {}\n", words.join(" | ")));
            }
        }
        expect.assert_eq(&text);
    }

    const RULE: &str = "apiVersion: v1alpha1\nkind: NetworkRuleConfig\nname: kubelet\nportSelector: {ports: [10250, 30000-32767], protocol: tcp}\ningress:\n    - subnet: 10.0.0.0/8\n      except: 10.9.0.0/16\n";

    #[test]
    fn without_documents_there_are_no_chains() {
        check("apiVersion: v1alpha1\nkind: NetworkDefaultActionConfig\ningress: accept\n", expect![[""]]);
    }

    #[test]
    fn where_all_is_let_in_rules_keep_others_out() {
        check(
            RULE,
            expect![[r#"
            ingress: input -140 accept
              lo+siderolink+kubespan | accept
              from not 10.0.0.0/8-10.9.0.0/16 | tcp 10250-10250,30000-32767 0 | drop
            prerouting: prerouting -110 accept
              lo+siderolink+kubespan | accept
              to not 10.5.0.2/32- | accept
              new | from not 10.0.0.0/8-10.9.0.0/16 | tcp 10250-10250,30000-32767 0 | drop
        "#]],
        );
    }

    #[test]
    fn where_all_is_kept_out_rules_let_in() {
        let yaml =
            format!("apiVersion: v1alpha1\nkind: NetworkDefaultActionConfig\ningress: block\n---\n{RULE}");
        check(
            &yaml,
            expect![[r#"
            ingress: input -140 drop
              lo+siderolink+kubespan | accept
              established+related | accept
              invalid | drop
              icmp  4 | drop
              icmp  0 | 5/s | accept
              icmpv6  0 | 5/s | accept
              from 10.244.0.0/16- | to 169.254.116.108/32- | udp 53-53 0 | accept
              from 10.244.0.0/16- | to 169.254.116.108/32- | tcp 53-53 0 | accept
              from 10.244.0.0/16- | to 10.244.0.0/16- | accept
              from 10.0.0.0/8-10.9.0.0/16 | tcp 10250-10250,30000-32767 0 | accept
            prerouting: prerouting -110 accept
              lo+siderolink+kubespan | accept
              to not 10.5.0.2/32- | accept
              new | from 10.0.0.0/8-10.9.0.0/16 | tcp 10250-10250,30000-32767 0 | accept
              new | tcp  0 | drop
              new | udp  0 | drop
        "#]],
        );
    }
}
