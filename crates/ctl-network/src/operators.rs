//! Operators: each keeps up a part of the network configuration by itself, such as a DHCP client does.
//!
//! A kind of operator implements [`OperatorKind`]; [`Registry::new`] is the one place that lists them. What runs is a
//! [`RunningOperator`]: the controller asks it for its specs whenever it [notifies](Notify) of a change.

mod dhcp;
mod lease;

use std::fmt;

use ichor_cosi::Wake;
use ichor_resource::network::{
    AddressSpec, HostnameSpec, HostnameStatus, LinkSpec, LinkStatus, Operator, OperatorSpec, ResolverSpec,
    RouteSpec, TimeServerSpec,
};

use crate::ports::Dhcp;

/// All that an operator can provide. The controller publishes it and declares it as its outputs.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct OperatorSpecs {
    pub(crate) addresses: Vec<AddressSpec>,
    pub(crate) links: Vec<LinkSpec>,
    pub(crate) routes: Vec<RouteSpec>,
    pub(crate) hostnames: Vec<HostnameSpec>,
    pub(crate) resolvers: Vec<ResolverSpec>,
    pub(crate) time_servers: Vec<TimeServerSpec>,
}

/// Where and how an operator is started.
pub(crate) struct Start<'a> {
    /// The id of its spec.
    pub(crate) id: &'a str,
    pub(crate) spec: &'a OperatorSpec,
    /// The link's name.
    pub(crate) link: &'a str,
    pub(crate) status: &'a LinkStatus,
    /// Differs between machines and between starts.
    pub(crate) seed: u64,
    /// Called when there is something new to ask for.
    pub(crate) notify: Notify,
}

/// Wakes the controller.
#[derive(Clone, Default)]
pub(crate) struct Notify(pub(crate) Option<Wake>);

impl Notify {
    pub(crate) fn changed(&self) {
        if let Some(wake) = &self.0 {
            wake.wake();
        }
    }
}

/// One kind of operator.
pub(crate) trait OperatorKind: Send + Sync {
    /// Starts one on a link; an error says why it cannot work there.
    fn start(&self, start: Start<'_>) -> Result<Box<dyn RunningOperator>, String>;
}

/// An operator at work. It ends when it is dropped, however that comes about.
pub(crate) trait RunningOperator: Send + Sync {
    /// What it provides now; none while it has nothing.
    fn specs(&self) -> Option<OperatorSpecs>;

    /// Why it provides nothing, where it knows.
    fn trouble(&self) -> Option<String>;

    /// Tells it the machine's name, which may have changed.
    fn set_hostname(&self, _status: Option<&HostnameStatus>) {}

    /// Ends it because it is no longer wanted.
    fn stop(self: Box<Self>) {}
}

/// The kinds that there are.
pub(crate) struct Registry(Vec<(Operator, Box<dyn OperatorKind>)>);

impl Registry {
    /// All kinds, on a platform of this name.
    pub(crate) fn new<D: Dhcp>(client: D, platform: &str) -> Self {
        Self(vec![
            (Operator::Dhcp4, Box::new(dhcp::Dhcp4::new(client.clone(), platform))),
            (Operator::Dhcp6, Box::new(dhcp::Dhcp6::new(client))),
        ])
    }

    /// Starts the operator that a spec asks for.
    pub(crate) fn start(&self, start: Start<'_>) -> Result<Box<dyn RunningOperator>, String> {
        let wanted = start.spec.operator;
        match (self.0.iter().find(|(kind, _)| *kind == wanted), wanted) {
            (Some((_, kind)), _) => kind.start(start),
            (None, Operator::Vip) => {
                Err(format!("{}: virtual addresses are not implemented yet; no node gets this one", start.id))
            }
            (None, other) => Err(format!("{}: there is no operator {other}", start.id)),
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(kind, _)| kind)).finish()
    }
}

#[cfg(test)]
impl Registry {
    /// A registry of one kind.
    pub(crate) fn only(operator: Operator, kind: impl OperatorKind + 'static) -> Self {
        Self(vec![(operator, Box::new(kind))])
    }
}
