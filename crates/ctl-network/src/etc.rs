//! `/etc/hosts` and `/etc/resolv.conf`: their text is pure, the files are a port.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, shared, strong, weak};
use ichor_resource::config::MachineConfig;
use ichor_resource::files::{EtcFileSpec, EtcFileStatus};
use ichor_resource::network::{HostDNSConfig, HostnameStatus, NodeAddress, ResolverStatus};
use ichor_resource::value::{Ip, TextBytes};

use crate::apply::{Held, hold, release};
use crate::documents;
use crate::ids;
use crate::ports::Host;

/// Resolver libraries read no more.
const NAMESERVERS_MAX: usize = 3;
/// Where the host DNS cache listens.
const HOST_DNS: &str = "127.0.0.53";
const MODE: u32 = 0o644;
const LABEL: &str = "system_u:object_r:etc_t:s0";

/// Renders the network's files under `/etc`.
#[derive(Debug)]
pub struct EtcFileController<H> {
    /// The machine, for the pods' `resolv.conf`.
    pub host: H,
}

/// `resolv.conf` for these servers and domains.
pub fn resolv_conf<'a>(servers: impl Iterator<Item = &'a str>, search: &[String]) -> String {
    let mut text = String::new();
    for server in servers.take(NAMESERVERS_MAX) {
        text.push_str(&format!("nameserver {server}\n"));
    }
    if !search.is_empty() {
        text.push_str(&format!("\nsearch {}\n", search.join(" ")));
    }
    text
}

/// `hosts` for this machine; `extra` are addresses with their names.
pub fn hosts(hostname: &str, domain: &str, address: IpAddr, extra: &[(IpAddr, Vec<String>)]) -> String {
    let mut lines = vec![("127.0.0.1".to_owned(), "localhost".to_owned())];
    let own = match domain {
        "" => hostname.to_owned(),
        domain => format!("{hostname}.{domain} {hostname}"),
    };
    lines.push((address.to_string(), own));
    for (address, names) in [
        ("::1", "localhost ip6-localhost ip6-loopback"),
        ("ff02::1", "ip6-allnodes"),
        ("ff02::2", "ip6-allrouters"),
    ] {
        lines.push((address.to_owned(), names.to_owned()));
    }
    let mut by_address: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (address, names) in extra {
        by_address.entry(address.to_string()).or_default().extend(names.iter().map(String::as_str));
    }
    lines.extend(by_address.into_iter().map(|(address, names)| (address, names.join(" "))));

    let width = lines.iter().map(|(address, _)| address.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (address, names) in lines {
        text.push_str(&format!("{address:<width$} {names}\n"));
    }
    text
}

impl<H: Host> Controller for EtcFileController<H> {
    const NAME: &'static str = "network.EtcFileController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<MachineConfig>().id(MachineConfig::ACTIVE),
            weak::<HostnameStatus>().id(ids::HOSTNAME),
            weak::<ResolverStatus>().id(ids::RESOLVERS),
            weak::<NodeAddress>().id("default"),
            weak::<HostDNSConfig>().id("config"),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<EtcFileSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let settings = documents::settings(ctx)?;
        let mut files = Vec::new();
        let file = |text: String| EtcFileSpec {
            contents: TextBytes::from(text.into_bytes()),
            mode: MODE,
            selinux_label: LABEL.to_owned(),
        };

        if let Some(resolvers) = ctx.get::<ResolverStatus>(ids::RESOLVERS)? {
            let upstream: Vec<String> = resolvers.dns_servers.iter().map(ToString::to_string).collect();
            let dns = ctx.get::<HostDNSConfig>("config")?;
            let own = dns.as_ref().is_some_and(|dns| dns.enabled);
            let servers = if own { vec![HOST_DNS.to_owned()] } else { upstream.clone() };
            let search = &resolvers.search_domains;
            files.push(("resolv.conf", file(resolv_conf(servers.iter().map(String::as_str), search))));

            let forwarded = dns.map(|dns| dns.service_host_dns_address.clone()).unwrap_or(Ip::UNSET);
            let pods = if forwarded.is_unset() { upstream } else { vec![forwarded.to_string()] };
            let text = resolv_conf(pods.iter().map(String::as_str), search);
            self.host.write_pod_resolv_conf(text.as_bytes())?;
        }

        let hostname = ctx.get::<HostnameStatus>(ids::HOSTNAME)?;
        let default = ctx.get::<NodeAddress>("default")?;
        let address = default.and_then(|view| view.addresses.first()?.get()).map(|prefix| prefix.addr());
        if let (Some(name), Some(address)) = (hostname, address) {
            let extra = settings.map(|s| s.extra_hosts.clone()).unwrap_or_default();
            files.push(("hosts", file(hosts(&name.hostname, &name.domainname, address, &extra))));
        }
        ctx.publish(files)?;
        Ok(())
    }
}

/// Writes the files that others render.
#[derive(Debug)]
pub struct FileWriter<H> {
    /// The machine.
    pub host: H,
}

/// A file that could not be written or removed.
#[derive(Debug, thiserror::Error)]
#[error("{operation} /etc/{path}")]
struct FileError {
    operation: &'static str,
    path: String,
    #[source]
    source: std::io::Error,
}

impl<H: Host> Controller for FileWriter<H> {
    const NAME: &'static str = "files.EtcFileController";

    fn inputs(&self) -> Vec<Input> {
        vec![strong::<EtcFileSpec>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<EtcFileStatus>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let Held { running, ending } = hold::<EtcFileSpec>(ctx)?;
        let failed = |operation, path: &str, source| FileError { operation, path: path.to_owned(), source };
        let mut statuses = Vec::new();
        for spec in &running {
            // The hold that was just put on it changed the version: read it again.
            let Some(spec) = ctx.get::<EtcFileSpec>(spec.id())? else { continue };
            self.host
                .write_etc(spec.id(), &spec.contents.0, spec.mode)
                .map_err(|error| failed("write", spec.id(), error))?;
            let spec_version = spec.meta().version().to_string();
            statuses.push((spec.id().clone(), EtcFileStatus { spec_version }));
        }
        for spec in &ending {
            self.host.remove_etc(spec.id()).map_err(|error| failed("remove", spec.id(), error))?;
        }
        ctx.publish(statuses)?;
        ending.iter().try_for_each(|spec| release(ctx, spec))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn hosts_are_aligned_and_extra_ones_grouped() {
        let extra = [
            ("10.0.0.9".parse().unwrap(), vec!["b".to_owned()]),
            ("10.0.0.10".parse().unwrap(), vec!["a".to_owned(), "a2".to_owned()]),
            ("10.0.0.9".parse().unwrap(), vec!["c".to_owned()]),
        ];
        let text = hosts("node-1", "example.org", "10.5.0.2".parse().unwrap(), &extra);
        expect![[r#"
            127.0.0.1 localhost
            10.5.0.2  node-1.example.org node-1
            ::1       localhost ip6-localhost ip6-loopback
            ff02::1   ip6-allnodes
            ff02::2   ip6-allrouters
            10.0.0.10 a a2
            10.0.0.9  b c
        "#]]
        .assert_eq(&text);
    }

    #[test]
    fn a_name_without_a_domain_stands_alone() {
        let text = hosts("node-1", "", "10.5.0.2".parse().unwrap(), &[]);
        assert!(text.contains("10.5.0.2  node-1\n"), "{text}");
    }

    #[test]
    fn at_most_three_name_servers_and_the_search_list_apart() {
        let text =
            resolv_conf(["1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"].into_iter(), &["a".into(), "b".into()]);
        expect![[r#"
            nameserver 1.1.1.1
            nameserver 2.2.2.2
            nameserver 3.3.3.3

            search a b
        "#]]
        .assert_eq(&text);
        assert_eq!(resolv_conf(["1.1.1.1"].into_iter(), &[]), "nameserver 1.1.1.1\n");
    }
}
