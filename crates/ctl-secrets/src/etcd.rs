//! Certificates of etcd, on control plane machines.
//!
//! They live ten years: who renews them is whoever changes the machine's names, addresses or authority.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_pki::{Authority, ExtendedUsage, Leaf};
use ichor_resource::network::{HostnameStatus, NetworkStatus, NodeAddress};
use ichor_resource::secrets::{EtcdRootSecret, EtcdSecret};
use ichor_resource::time::TimeStatus;

use crate::id;
use crate::issue::{Memory, enciphering, issue, network_is_ready, time_is_right};
use crate::sans::{HOSTNAME, OWN_ADDRESSES, fqdn};

/// Writes `EtcdSecrets`.
#[derive(Debug)]
pub struct Etcd {
    memory: Memory<(EtcdRootSecret, Who)>,
}

impl Default for Etcd {
    fn default() -> Self {
        Self { memory: Memory::of(Authority::TEN_YEARS) }
    }
}

/// Under which names and addresses a member is met.
#[derive(Debug, Clone, PartialEq)]
struct Who {
    hostname: String,
    names: BTreeSet<String>,
    addresses: BTreeSet<IpAddr>,
}

impl Who {
    fn of(host: &HostnameStatus, node: &NodeAddress) -> Self {
        let hostname = host.hostname.trim_end_matches('.').to_owned();
        Self {
            names: [hostname.clone(), fqdn(host)].into(),
            addresses: node.addresses.iter().filter_map(|prefix| Some(prefix.get()?.addr())).collect(),
            hostname,
        }
    }

    /// For other members.
    fn peer(&self) -> Leaf {
        let leaf = Leaf::server(&self.hostname)
            .with_names(self.names.iter().cloned(), self.addresses.iter().copied());
        enciphering(Leaf { extended_usage: ExtendedUsage::Both, ..leaf }, Authority::TEN_YEARS)
    }

    /// For clients, who may come from the machine itself.
    fn server(&self) -> Leaf {
        let mut here = self.clone();
        here.names.insert("localhost".to_owned());
        if here.addresses.iter().any(IpAddr::is_ipv6) {
            here.addresses.insert(Ipv6Addr::LOCALHOST.into());
        }
        here.addresses.insert(Ipv4Addr::LOCALHOST.into());
        here.peer()
    }
}

fn client(name: &str) -> Leaf {
    enciphering(Leaf::client(name, [] as [&str; 0]), Authority::TEN_YEARS)
}

impl Controller for Etcd {
    const NAME: &'static str = "secrets.EtcdController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<EtcdRootSecret>().id(id::ETCD),
            weak::<NetworkStatus>().id("status"),
            weak::<HostnameStatus>().id(HOSTNAME),
            weak::<NodeAddress>().id(OWN_ADDRESSES),
            weak::<TimeStatus>().id("node"),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<EtcdSecret>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let Some(root) = ctx.get::<EtcdRootSecret>(id::ETCD)? else {
            self.memory.forget();
            return Ok(ctx.publish::<EtcdSecret>([] as [(&str, EtcdSecret); 0])?);
        };
        let ready = network_is_ready(ctx.get::<NetworkStatus>("status")?.as_deref())
            && time_is_right(ctx.get::<TimeStatus>("node")?.as_deref());
        let (Some(host), Some(node), true) =
            (ctx.get::<HostnameStatus>(HOSTNAME)?, ctx.get::<NodeAddress>(OWN_ADDRESSES)?, ready)
        else {
            return Ok(());
        };
        let who = Who::of(&host, &node);
        let inputs = ((*root).clone(), who.clone());
        if let Some(rest) = self.memory.good_for(&inputs, ctx.now()) {
            ctx.requeue_after(rest);
            return Ok(());
        }
        let authority = root
            .etcd_ca
            .as_ref()
            .ok_or_else(|| ControllerError::new("a control plane machine needs `cluster.etcd.ca`"))?;
        let leaves = vec![who.server(), who.peer(), client("talos"), client("kube-apiserver")];
        let mut pairs = issue(authority, leaves, ctx.now()).await?.into_iter();
        let made = EtcdSecret {
            etcd: pairs.next(),
            etcd_peer: pairs.next(),
            etcd_admin: pairs.next(),
            etcd_api_server: pairs.next(),
        };
        ctx.modify::<EtcdSecret>(id::ETCD, |spec| spec.clone_from(&made))?;
        self.memory.issued(inputs, ctx.now(), ctx);
        Ok(())
    }
}
