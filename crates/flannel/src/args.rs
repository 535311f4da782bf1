//! Flags of the daemon, as the original spells them. Pure.

/// What the daemon was asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Args {
    /// Give connections that leave the network the address of the node.
    pub ip_masq: bool,
    /// Links to use: names or addresses, the first that exists.
    pub iface: Vec<String>,
    /// Use the link that leads to this address.
    pub iface_can_reach: Option<String>,
    /// The address other nodes use, instead of the link's own.
    pub public_ip: Option<String>,
    /// The same for IPv6.
    pub public_ipv6: Option<String>,
    /// Where the CNI plugin reads this node's part of the network.
    pub subnet_file: String,
    /// Where the network is described.
    pub net_config_path: String,
    /// What the annotations of nodes begin with.
    pub annotation_prefix: String,
    /// A kubeconfig, outside of a pod.
    pub kubeconfig: Option<String>,
    /// Say on the node that its network is there.
    pub set_node_network_unavailable: bool,
    /// Say the version and end.
    pub version: bool,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            ip_masq: false,
            iface: Vec::new(),
            iface_can_reach: None,
            public_ip: None,
            public_ipv6: None,
            subnet_file: "/run/flannel/subnet.env".to_owned(),
            net_config_path: "/etc/kube-flannel/net-conf.json".to_owned(),
            annotation_prefix: "flannel.alpha.coreos.com".to_owned(),
            kubeconfig: None,
            set_node_network_unavailable: true,
            version: false,
        }
    }
}

/// Flags without a meaning here: settings of what works differently, and of logs.
const IGNORED: &[&str] = &[
    "iptables-resync",
    "iptables-forward-rules",
    "subnet-lease-renew-margin",
    "ip-blackhole-route",
    "alsologtostderr",
    "logtostderr",
    "log_backtrace_at",
    "log_dir",
    "log_file",
    "log_file_max_size",
    "add_dir_header",
    "one_output",
    "skip_headers",
    "skip_log_headers",
    "stderrthreshold",
    "v",
    "vmodule",
];
/// Flags of the kind that take a value only behind `=`.
const SWITCHES: &[&str] = &[
    "ip-masq",
    "kube-subnet-mgr",
    "set-node-network-unavailable",
    "version",
    "iptables-forward-rules",
    "ip-blackhole-route",
    "alsologtostderr",
    "logtostderr",
    "add_dir_header",
    "one_output",
    "skip_headers",
    "skip_log_headers",
];

/// A flag that cannot be followed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadArgs {
    /// Nobody knows it.
    #[error("unknown flag {0}")]
    Unknown(String),
    /// It lacks its value.
    #[error("flag --{0} needs a value")]
    NoValue(String),
    /// It is neither true nor false.
    #[error("flag --{0} is true or false")]
    NotBool(String),
    /// The original can, this cannot.
    #[error("{0}")]
    NotSupported(&'static str),
}

impl Args {
    /// Reads the flags.
    pub fn parse(args: &[String]) -> Result<Self, BadArgs> {
        let mut parsed = Self::default();
        let mut kube = false;
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let flag = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-'));
            let flag = flag.ok_or_else(|| BadArgs::Unknown(arg.clone()))?;
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None if SWITCHES.contains(&flag) => (flag, None),
                None => (flag, args.next().cloned()),
            };
            let text = || value.clone().ok_or_else(|| BadArgs::NoValue(name.to_owned()));
            let switch = || match value.as_deref() {
                None | Some("true" | "1" | "t") => Ok(true),
                Some("false" | "0" | "f") => Ok(false),
                Some(_) => Err(BadArgs::NotBool(name.to_owned())),
            };
            match name {
                "ip-masq" => parsed.ip_masq = switch()?,
                "kube-subnet-mgr" => kube = switch()?,
                "set-node-network-unavailable" => parsed.set_node_network_unavailable = switch()?,
                "version" => parsed.version = switch()?,
                "iface" => parsed.iface.push(text()?),
                "iface-can-reach" => parsed.iface_can_reach = Some(text()?),
                "public-ip" => parsed.public_ip = Some(text()?),
                "public-ipv6" => parsed.public_ipv6 = Some(text()?),
                "subnet-file" => parsed.subnet_file = text()?,
                "net-config-path" => parsed.net_config_path = text()?,
                "kube-annotation-prefix" => parsed.annotation_prefix = text()?,
                "kubeconfig-file" => parsed.kubeconfig = Some(text()?),
                "healthz-port" if text()? == "0" => {}
                "healthz-ip" => {}
                "iface-regex" => {
                    return Err(BadArgs::NotSupported(
                        "--iface-regex is not supported; name links with --iface",
                    ));
                }
                "healthz-port" => {
                    return Err(BadArgs::NotSupported(
                        "--healthz-port is not supported; the pod ends when it cannot go on",
                    ));
                }
                name if IGNORED.contains(&name) => {}
                name => return Err(BadArgs::Unknown(format!("--{name}"))),
            }
        }
        if !kube && !parsed.version {
            return Err(BadArgs::NotSupported(
                "networks kept in etcd are not supported; use --kube-subnet-mgr",
            ));
        }
        Ok(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Args, BadArgs> {
        Args::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn flags_of_the_manifest_and_of_people_are_read() {
        let args = parse("--ip-masq --kube-subnet-mgr").unwrap();
        assert_eq!(args, Args { ip_masq: true, ..Args::default() });
        let args = parse(
            "-kube-subnet-mgr --iface=eth0 --iface eth1 --ip-masq=false --v=4 -v 2 --public-ip 1.2.3.4",
        );
        let args = args.unwrap();
        assert_eq!(
            (args.iface, args.public_ip.as_deref()),
            (vec!["eth0".into(), "eth1".into()], Some("1.2.3.4"))
        );
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        for (text, says) in [
            ("--ip-masq", "networks kept in etcd are not supported; use --kube-subnet-mgr"),
            ("--kube-subnet-mgr --ifase=eth0", "unknown flag --ifase"),
            ("--kube-subnet-mgr eth0", "unknown flag eth0"),
            ("--kube-subnet-mgr --iface", "flag --iface needs a value"),
            ("--kube-subnet-mgr --ip-masq=perhaps", "flag --ip-masq is true or false"),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), says);
        }
    }
}
