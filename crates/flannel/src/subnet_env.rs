//! `subnet.env`: what the daemon tells the CNI plugin. Pure.

use ipnet::IpNet;

/// This node's part of the network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubnetEnv {
    /// Addresses of all pods.
    pub networks: Vec<IpNet>,
    /// Addresses of pods here, one for each network; the address is that of the bridge.
    pub subnets: Vec<IpNet>,
    /// Largest packet.
    pub mtu: u32,
    /// The daemon masquerades.
    pub ip_masq: bool,
}

impl SubnetEnv {
    /// As the file has it.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for v6 in [false, true] {
            let name = if v6 { "FLANNEL_IPV6_" } else { "FLANNEL_" };
            let of = |nets: &[IpNet]| nets.iter().find(|net| net.addr().is_ipv6() == v6).copied();
            if let (Some(network), Some(subnet)) = (of(&self.networks), of(&self.subnets)) {
                text.push_str(&format!("{name}NETWORK={network}\n{name}SUBNET={subnet}\n"));
            }
        }
        text.push_str(&format!("FLANNEL_MTU={}\nFLANNEL_IPMASQ={}\n", self.mtu, self.ip_masq));
        text
    }

    /// Reads the file.
    ///
    /// # Errors
    /// The line that makes no sense, or what is missing.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut env = Self::default();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let bad = || format!("line {line:?} makes no sense");
            let (key, value) = line.split_once('=').ok_or_else(bad)?;
            // The original allows several IPv6 networks; this program writes one.
            let nets =
                || value.split(',').map(str::parse).collect::<Result<Vec<IpNet>, _>>().map_err(|_| bad());
            match key {
                "FLANNEL_NETWORK" | "FLANNEL_IPV6_NETWORK" => env.networks.extend(nets()?),
                "FLANNEL_SUBNET" | "FLANNEL_IPV6_SUBNET" => env.subnets.extend(nets()?),
                "FLANNEL_MTU" => env.mtu = value.parse().map_err(|_| bad())?,
                "FLANNEL_IPMASQ" => env.ip_masq = value.parse().map_err(|_| bad())?,
                _ => {}
            }
        }
        match (env.networks.is_empty() || env.subnets.is_empty(), env.mtu) {
            (true, _) => Err("there is no network in it".to_owned()),
            (_, 0) => Err("FLANNEL_MTU is missing".to_owned()),
            _ => Ok(env),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let env = SubnetEnv {
            networks: vec!["10.244.0.0/16".parse().unwrap(), "fd00::/56".parse().unwrap()],
            subnets: vec!["10.244.1.1/24".parse().unwrap(), "fd00::1/64".parse().unwrap()],
            mtu: 1450,
            ip_masq: true,
        };
        let text = env.text();
        assert_eq!(
            text,
            "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_IPV6_NETWORK=fd00::/56\n\
             FLANNEL_IPV6_SUBNET=fd00::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
        );
        assert_eq!(SubnetEnv::parse(&text).unwrap(), env);
    }

    #[test]
    fn nonsense_is_named() {
        for (text, says) in [
            ("", "there is no network in it"),
            ("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n", "FLANNEL_MTU is missing"),
            ("FLANNEL_MTU=many", "line \"FLANNEL_MTU=many\" makes no sense"),
            ("hello", "line \"hello\" makes no sense"),
        ] {
            assert_eq!(SubnetEnv::parse(text).unwrap_err(), says);
        }
    }
}
