//! The command line of etcd.

use ichor_ctl_etcd::client::SECRETS;
use ichor_ctl_etcd::member::peer_urls;
use ichor_ctl_k8s::args::{self, Args, Rules};
use ichor_ctl_k8s::images;
use ichor_etcd::{CLIENT_PORT, PEER_PORT};
use ichor_resource::etcd::EtcdSpec;
use ichor_resource::value::Ip;
use ichor_rpc::Endpoint;

/// Flags that are ours alone. How a cluster begins may be the user's.
const DENIED: &[&str] = &[
    "name",
    "data-dir",
    "auto-tls",
    "peer-auto-tls",
    "client-cert-auth",
    "peer-client-cert-auth",
    "cert-file",
    "key-file",
    "trusted-ca-file",
    "peer-trusted-ca-file",
    "peer-cert-file",
    "peer-key-file",
    "listen-peer-urls",
    "listen-client-urls",
    "experimental-initial-corrupt-check",
    "experimental-watch-progress-notify-interval",
    "experimental-compact-hash-check-enabled",
];

/// How a member without a log begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Beginning {
    /// It has one.
    Log {
        /// And forgets all other members.
        alone: bool,
    },
    /// With a new cluster of itself.
    New,
    /// With the cluster it was added to: `initial-cluster`.
    Existing(String),
}

fn urls(addresses: &[Ip], port: u16) -> String {
    let url = |ip: &Ip| Some(format!("https://{}", Endpoint::new(ip.get()?.to_string(), port)));
    addresses.iter().filter_map(url).collect::<Vec<_>>().join(",")
}

/// `initial-cluster` of this member alone.
pub fn own_cluster(spec: &EtcdSpec) -> String {
    let urls = peer_urls(&spec.advertised_addresses);
    urls.iter().map(|url| format!("{}={url}", spec.name)).collect::<Vec<_>>().join(",")
}

/// The command line, by name.
///
/// # Errors
/// When the configuration sets a flag that is the system's alone.
pub fn arguments(spec: &EtcdSpec, beginning: &Beginning) -> Result<Args, args::Denied> {
    let secret = |file: &str| format!("{SECRETS}/{file}");
    let mut ours = args::args([
        ("name", &spec.name),
        ("data-dir", "/var/lib/etcd"),
        ("auto-tls", "false"),
        ("peer-auto-tls", "false"),
        ("client-cert-auth", "true"),
        ("peer-client-cert-auth", "true"),
        ("cert-file", &secret("server.crt")),
        ("key-file", &secret("server.key")),
        ("trusted-ca-file", &secret("ca.crt")),
        ("peer-trusted-ca-file", &secret("ca.crt")),
        ("peer-cert-file", &secret("peer.crt")),
        ("peer-key-file", &secret("peer.key")),
        ("listen-peer-urls", &urls(&spec.listen_peer_addresses, PEER_PORT)),
        ("listen-client-urls", &urls(&spec.listen_client_addresses, CLIENT_PORT)),
        ("advertise-client-urls", &urls(&spec.advertised_addresses, CLIENT_PORT)),
    ]);
    // The old names are understood up to 3.6, the new ones from there on.
    ours.extend(match images::version(&spec.image) < (3, 7) {
        true => args::args([
            ("experimental-initial-corrupt-check", "true"),
            ("experimental-watch-progress-notify-interval", "5s"),
            ("experimental-compact-hash-check-enabled", "true"),
        ]),
        false => args::args([
            ("feature-gates", "InitialCorruptCheck=true,CompactHashCheck=true"),
            ("watch-progress-notify-interval", "5s"),
        ]),
    });
    let own = peer_urls(&spec.advertised_addresses).join(",");
    ours.extend(match beginning {
        Beginning::Log { alone: false } => Args::new(),
        Beginning::Log { alone: true } => args::args([("force-new-cluster", "true")]),
        Beginning::New => args::args([
            ("initial-advertise-peer-urls", &own),
            ("initial-cluster", &own_cluster(spec)),
            ("initial-cluster-state", "new"),
        ]),
        Beginning::Existing(cluster) => args::args([
            ("initial-advertise-peer-urls", &own),
            ("initial-cluster", cluster),
            ("initial-cluster-state", "existing"),
        ]),
    });
    args::merge(ours, &spec.extra_args, Rules { additive: &["feature-gates"], denied: DENIED })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn spec() -> EtcdSpec {
        let ip = |text: &str| Ip::from(text.parse::<std::net::IpAddr>().unwrap());
        EtcdSpec {
            name: "cp-1".into(),
            advertised_addresses: vec![ip("10.5.0.2"), ip("fd00::2")],
            listen_peer_addresses: vec![ip("::")],
            listen_client_addresses: vec![ip("::")],
            image: "registry.k8s.io/etcd:v3.6.7".into(),
            extra_args: BTreeMap::from([("election-timeout".into(), "5000".into())]),
        }
    }

    #[test]
    fn a_new_cluster_is_told_how_it_begins() {
        let args = args::command(&arguments(&spec(), &Beginning::New).unwrap());
        expect_test::expect![[r#"
            --advertise-client-urls=https://10.5.0.2:2379,https://[fd00::2]:2379
            --auto-tls=false
            --cert-file=/system/secrets/etcd/server.crt
            --client-cert-auth=true
            --data-dir=/var/lib/etcd
            --election-timeout=5000
            --experimental-compact-hash-check-enabled=true
            --experimental-initial-corrupt-check=true
            --experimental-watch-progress-notify-interval=5s
            --initial-advertise-peer-urls=https://10.5.0.2:2380,https://[fd00::2]:2380
            --initial-cluster=cp-1=https://10.5.0.2:2380,cp-1=https://[fd00::2]:2380
            --initial-cluster-state=new
            --key-file=/system/secrets/etcd/server.key
            --listen-client-urls=https://[::]:2379
            --listen-peer-urls=https://[::]:2380
            --name=cp-1
            --peer-auto-tls=false
            --peer-cert-file=/system/secrets/etcd/peer.crt
            --peer-client-cert-auth=true
            --peer-key-file=/system/secrets/etcd/peer.key
            --peer-trusted-ca-file=/system/secrets/etcd/ca.crt
            --trusted-ca-file=/system/secrets/etcd/ca.crt"#]]
        .assert_eq(&args.join("\n"));
    }

    #[test]
    fn a_member_with_a_log_is_told_nothing_of_the_beginning() {
        let args = arguments(&spec(), &Beginning::Log { alone: false }).unwrap();
        assert!(!args.keys().any(|name| name.starts_with("initial-") || name == "force-new-cluster"));
        let args = arguments(&spec(), &Beginning::Log { alone: true }).unwrap();
        assert_eq!(args["force-new-cluster"], "true");
    }

    #[test]
    fn the_user_may_say_how_a_cluster_begins_but_not_where_data_are() {
        let mut spec = spec();
        spec.extra_args = BTreeMap::from([("initial-cluster".into(), "x=https://x:2380".into())]);
        let args = arguments(&spec, &Beginning::New).unwrap();
        assert_eq!(args["initial-cluster"], "x=https://x:2380");
        spec.extra_args = BTreeMap::from([("data-dir".into(), "/tmp".into())]);
        let error = arguments(&spec, &Beginning::New).unwrap_err();
        assert_eq!(error.to_string(), r#"extra arg "data-dir" is not allowed"#);
    }
}
