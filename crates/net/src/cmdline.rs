//! What the kernel command line says about the network: `ip=`, `bond=`, `vlan=` and a few of ours.
//!
//! Pure: text in, values out. Any mistake refuses the whole, so that a machine never comes up with half
//! a network.

use std::net::IpAddr;

use ichor_types::Cmdline;
use ipnet::IpNet;

/// Everything the command line says about the network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkArgs {
    /// `talos.hostname=`, else the name in the first `ip=` that has one.
    pub hostname: Option<String>,
    /// One per `ip=` that says something.
    pub links: Vec<LinkArg>,
    /// Name servers of all `ip=`.
    pub dns: Vec<IpAddr>,
    /// Time servers of all `ip=`.
    pub ntp: Vec<IpAddr>,
    /// The first `bond=`.
    pub bond: Option<BondArg>,
    /// The first `vlan=`.
    pub vlan: Option<VlanArg>,
    /// Links to leave alone.
    pub ignored: Vec<String>,
}

/// One `ip=`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkArg {
    /// The link; `None` for the first that is not loopback.
    pub device: Option<String>,
    /// Static address.
    pub address: Option<IpNet>,
    /// Default gateway.
    pub gateway: Option<IpAddr>,
    /// Run DHCPv4.
    pub dhcp: bool,
    /// Position among the `ip=` arguments: later ones get a higher route metric.
    pub position: u32,
}

/// `bond=<name>[:<members>[:<options>[:<mtu>]]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BondArg {
    /// Name of the bond.
    pub name: String,
    /// Names of its members.
    pub members: Vec<String>,
    /// Options in order.
    pub options: Vec<(String, String)>,
    /// MTU; 0 when not given.
    pub mtu: u32,
}

/// `vlan=<name>:<parent>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VlanArg {
    /// The name as given, which later arguments may refer to.
    pub name: String,
    /// The link below.
    pub parent: String,
    /// VLAN number.
    pub id: u16,
}

/// A command line whose network arguments do not parse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("kernel argument {argument}: {reason}")]
pub struct BadArgument {
    /// The argument as written.
    pub argument: String,
    /// What is wrong with it.
    pub reason: String,
}

const BOND_OPTIONS: &[&str] = &[
    "mode",
    "xmit_hash_policy",
    "lacp_rate",
    "arp_validate",
    "arp_all_targets",
    "primary",
    "primary_reselect",
    "fail_over_mac",
    "ad_select",
    "miimon",
    "updelay",
    "downdelay",
    "arp_interval",
    "arp_ip_target",
    "resend_igmp",
    "min_links",
    "lp_interval",
    "packets_per_slave",
    "num_grat_arp",
    "num_unsol_na",
    "all_slaves_active",
    "use_carrier",
];
/// Longest name of a link.
const NAME_MAX: usize = 15;

impl NetworkArgs {
    /// Reads the whole command line.
    pub fn parse(cmdline: &Cmdline) -> Result<Self, BadArgument> {
        let mut args = Self::default();
        for (position, value) in (0_u32..).zip(cmdline.all("ip")) {
            parse_ip(value, position, &mut args).map_err(bad("ip", value))?;
        }
        if let Some(value) = cmdline.first("bond") {
            args.bond = Some(parse_bond(value).map_err(bad("bond", value))?);
        }
        if let Some(value) = cmdline.first("vlan") {
            args.vlan = Some(parse_vlan(value).map_err(bad("vlan", value))?);
        }
        if let Some(name) = cmdline.first("talos.hostname").filter(|name| !name.is_empty()) {
            args.hostname = Some(name.to_owned());
        }
        let ignored = cmdline.all("talos.network.interface.ignore");
        args.ignored = ignored.iter().filter(|name| !name.is_empty()).cloned().collect();
        Ok(args)
    }
}

fn bad<'a>(key: &'a str, value: &'a str) -> impl Fn(String) -> BadArgument + 'a {
    move |reason| BadArgument { argument: format!("{key}={value}"), reason }
}

fn parse_ip(value: &str, position: u32, args: &mut NetworkArgs) -> Result<(), String> {
    let fields = split_fields(value)?;
    let mut link = LinkArg { position, ..LinkArg::default() };
    match fields.as_slice() {
        // Autoconfiguration of everything is what happens anyway.
        [] | ["" | "dhcp" | "on" | "any"] => return Ok(()),
        [device, "dhcp"] => {
            link.device = Some(device_name(device)?);
            link.dhcp = true;
        }
        fields => {
            let mut address = None;
            let mut prefix_len = None;
            for (index, field) in fields.iter().enumerate().filter(|(_, f)| !f.is_empty()) {
                match index {
                    0 => address = Some(parse_address(field)?),
                    // The boot server is of no use here.
                    1 => {}
                    2 => link.gateway = Some(parse_address(field)?),
                    3 => prefix_len = Some(parse_mask(field)?),
                    4 => {
                        args.hostname.get_or_insert_with(|| (*field).to_owned());
                    }
                    5 => link.device = Some(device_name(field)?),
                    6 => link.dhcp = *field == "dhcp",
                    7 | 8 => args.dns.push(parse_address(field)?),
                    9 => args.ntp.push(parse_address(field)?),
                    _ => return Err(format!("more than 10 fields: {field:?}")),
                }
            }
            if let Some(address) = address {
                let full = if address.is_ipv4() { 32 } else { 128 };
                let prefix = IpNet::new(address, prefix_len.unwrap_or(full));
                link.address = Some(prefix.map_err(|_| format!("netmask does not fit {address}"))?);
            }
            if let (Some(gateway), Some(prefix)) = (link.gateway, link.address)
                && gateway.is_ipv4() != prefix.addr().is_ipv4()
            {
                return Err(format!("gateway {gateway} is of another family than {prefix}"));
            }
        }
    }
    args.links.push(link);
    Ok(())
}

/// Splits at colons that are not inside brackets.
fn split_fields(value: &str) -> Result<Vec<&str>, String> {
    let mut fields = Vec::new();
    let mut rest = value;
    loop {
        let (field, after) = match rest.strip_prefix('[') {
            Some(inner) => {
                let (address, after) = inner.split_once(']').ok_or_else(|| "missing `]`".to_owned())?;
                match after.strip_prefix(':') {
                    Some(after) => (address, Some(after)),
                    None if after.is_empty() => (address, None),
                    None => return Err(format!("text after `]`: {after:?}")),
                }
            }
            None => match rest.split_once(':') {
                Some((field, after)) => (field, Some(after)),
                None => (rest, None),
            },
        };
        fields.push(field);
        match after {
            Some(after) => rest = after,
            None => return Ok(fields),
        }
    }
}

fn parse_address(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| format!("bad address {text:?}"))
}

fn parse_mask(text: &str) -> Result<u8, String> {
    if let Ok(length) = text.parse() {
        return Ok(length);
    }
    ipnet::ip_mask_to_prefix(parse_address(text)?).map_err(|_| format!("bad netmask {text:?}"))
}

fn device_name(text: &str) -> Result<String, String> {
    let fits = (1..=NAME_MAX).contains(&text.len()) && !text.contains('/');
    if fits { Ok(text.to_owned()) } else { Err(format!("bad link name {text:?}")) }
}

fn parse_bond(value: &str) -> Result<BondArg, String> {
    let fields: Vec<_> = value.split(':').collect();
    if fields.len() > 4 {
        return Err("more than 4 fields".to_owned());
    }
    let field = |index: usize| fields.get(index).copied().filter(|f| !f.is_empty());
    let members = field(1).unwrap_or("eth0,eth1");
    let mut options = Vec::new();
    for option in field(2).into_iter().flat_map(|list| list.split(',')) {
        let (key, value) = option.split_once('=').ok_or_else(|| format!("option {option:?} has no value"))?;
        if !BOND_OPTIONS.contains(&key) {
            return Err(format!("unknown option {key:?}"));
        }
        options.push((key.to_owned(), value.to_owned()));
    }
    Ok(BondArg {
        name: device_name(field(0).unwrap_or("bond0"))?,
        members: members.split(',').map(device_name).collect::<Result<_, _>>()?,
        options,
        mtu: match field(3) {
            Some(mtu) => mtu.parse().map_err(|_| format!("bad mtu {mtu:?}"))?,
            None => 0,
        },
    })
}

fn parse_vlan(value: &str) -> Result<VlanArg, String> {
    let (name, parent) = value.split_once(':').ok_or_else(|| "wants <name>:<parent>".to_owned())?;
    let number = match name.rsplit_once('.') {
        Some((_, number)) => number,
        None => name.strip_prefix("vlan").ok_or_else(|| format!("no number in {name:?}"))?,
    };
    let id = number.parse().ok().filter(|id| (1..=4095).contains(id));
    Ok(VlanArg {
        name: name.to_owned(),
        parent: device_name(parent)?,
        id: id.ok_or_else(|| format!("bad vlan number {number:?}, wants 1 to 4095"))?,
    })
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    #[track_caller]
    fn check(cmdline: &str, expect: Expect) {
        let text = match NetworkArgs::parse(&Cmdline::parse(cmdline)) {
            Ok(args) => {
                let mut lines = Vec::new();
                lines.extend(args.hostname.map(|h| format!("hostname {h}")));
                for link in args.links {
                    lines.push(format!(
                        "{} address={} gateway={} dhcp={} position={}",
                        link.device.as_deref().unwrap_or("(first)"),
                        link.address.map_or_else(|| "-".into(), |a| a.to_string()),
                        link.gateway.map_or_else(|| "-".into(), |g| g.to_string()),
                        link.dhcp,
                        link.position
                    ));
                }
                lines.extend((!args.dns.is_empty()).then(|| format!("dns {:?}", args.dns)));
                lines.extend((!args.ntp.is_empty()).then(|| format!("ntp {:?}", args.ntp)));
                lines.extend(args.bond.map(|b| format!("{b:?}")));
                lines.extend(args.vlan.map(|v| format!("{v:?}")));
                lines.extend((!args.ignored.is_empty()).then(|| format!("ignore {:?}", args.ignored)));
                lines.join("\n")
            }
            Err(error) => error.to_string(),
        };
        expect.assert_eq(&text);
    }

    #[test]
    fn nothing_is_nothing() {
        check("console=ttyS0 quiet ip=dhcp ipv6.disable=1", expect![[""]]);
    }

    #[test]
    fn a_static_address_with_everything() {
        check(
            "ip=10.5.0.2::10.5.0.1:255.255.255.0:node-1:eth0:off:1.1.1.1:8.8.8.8:10.5.0.1",
            expect![[r#"
                hostname node-1
                eth0 address=10.5.0.2/24 gateway=10.5.0.1 dhcp=false position=0
                dns [1.1.1.1, 8.8.8.8]
                ntp [10.5.0.1]"#]],
        );
    }

    #[test]
    fn the_mask_may_be_a_length_or_missing() {
        check(
            "ip=10.5.0.2:::24 ip=10.6.0.2",
            expect![[r#"
                (first) address=10.5.0.2/24 gateway=- dhcp=false position=0
                (first) address=10.6.0.2/32 gateway=- dhcp=false position=1"#]],
        );
    }

    #[test]
    fn ipv6_comes_in_brackets() {
        check(
            "ip=[2001:db8::2]::[2001:db8::1]:64::eth1:none:[2606:4700::1111]",
            expect![[r#"
                eth1 address=2001:db8::2/64 gateway=2001:db8::1 dhcp=false position=0
                dns [2606:4700::1111]"#]],
        );
    }

    #[test]
    fn dhcp_for_a_link() {
        check(
            "ip=eth1:dhcp ip=:::::eth2:dhcp",
            expect![[r#"
                eth1 address=- gateway=- dhcp=true position=0
                eth2 address=- gateway=- dhcp=true position=1"#]],
        );
    }

    #[test]
    fn our_own_hostname_wins() {
        check(
            "ip=10.0.0.1::::from-ip talos.hostname=node.example.org talos.network.interface.ignore=eth3",
            expect![[r#"
                hostname node.example.org
                (first) address=10.0.0.1/32 gateway=- dhcp=false position=0
                ignore ["eth3"]"#]],
        );
    }

    #[test]
    fn bonds_and_vlans() {
        check(
            "bond=bond1:eth1,eth2:mode=802.3ad,miimon=100:9000 vlan=vlan4:bond1",
            expect![[r#"
                BondArg { name: "bond1", members: ["eth1", "eth2"], options: [("mode", "802.3ad"), ("miimon", "100")], mtu: 9000 }
                VlanArg { name: "vlan4", parent: "bond1", id: 4 }"#]],
        );
        check(
            "bond=b0 vlan=eth0.17:eth0",
            expect![[r#"
                BondArg { name: "b0", members: ["eth0", "eth1"], options: [], mtu: 0 }
                VlanArg { name: "eth0.17", parent: "eth0", id: 17 }"#]],
        );
    }

    #[test]
    fn mistakes_name_the_argument() {
        check("ip=10.5.0", expect![[r#"kernel argument ip=10.5.0: bad address "10.5.0""#]]);
        check("ip=10.0.0.1:::40", expect!["kernel argument ip=10.0.0.1:::40: netmask does not fit 10.0.0.1"]);
        check(
            "ip=10.0.0.1:::255.0.255.0",
            expect![[r#"kernel argument ip=10.0.0.1:::255.0.255.0: bad netmask "255.0.255.0""#]],
        );
        check("ip=[::1", expect!["kernel argument ip=[::1: missing `]`"]);
        check(
            "ip=10.0.0.1::[::1]",
            expect!["kernel argument ip=10.0.0.1::[::1]: gateway ::1 is of another family than 10.0.0.1/32"],
        );
        check("bond=b0::what=1", expect![[r#"kernel argument bond=b0::what=1: unknown option "what""#]]);
        check(
            "vlan=vlan5000:eth0",
            expect![[r#"kernel argument vlan=vlan5000:eth0: bad vlan number "5000", wants 1 to 4095"#]],
        );
    }
}
