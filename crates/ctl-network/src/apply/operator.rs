//! Runs operators: starts and stops those that specs ask for and publishes what they provide.

use std::collections::BTreeMap;

use ichor_cosi::{
    Context, Controller, ControllerError, Input, Output, StateError, Typed, Wake, shared, weak,
};
use ichor_resource::TypedSpec;
use ichor_resource::network::{
    AddressSpec, HostnameSpec, HostnameStatus, LinkSpec, LinkStatus, OperationalState, OperatorSpec,
    ResolverSpec, RouteSpec, TimeServerSpec,
};

use crate::ids;
use crate::link_name;
use crate::operators::{Notify, OperatorSpecs, Registry, RunningOperator, Start};
use crate::ports::Dhcp;

/// Runs operators.
#[derive(Debug)]
pub struct OperatorSpecController {
    operators: Registry,
    running: BTreeMap<String, Active>,
    wake: Option<Wake>,
    seed: u64,
}

/// An operator and what it was started for.
struct Active {
    spec: OperatorSpec,
    link_index: u32,
    operator: Box<dyn RunningOperator>,
}

impl std::fmt::Debug for Active {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Active").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl OperatorSpecController {
    /// `seed` makes transaction numbers of different machines differ.
    pub fn new<D: Dhcp>(dhcp: D, seed: u64, platform: &str) -> Self {
        Self::with(Registry::new(dhcp, platform), seed)
    }

    fn with(operators: Registry, seed: u64) -> Self {
        Self { operators, running: BTreeMap::new(), wake: None, seed }
    }

    /// Starts the operator of a spec; an error says why it cannot work.
    fn start_operator(
        &mut self,
        id: &str,
        spec: &OperatorSpec,
        link: &str,
        status: &LinkStatus,
    ) -> Result<(), String> {
        self.seed = self.seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(u64::from(status.index));
        let notify = Notify(self.wake.clone());
        let operator = self.operators.start(Start { id, spec, link, status, seed: self.seed, notify })?;
        tracing::info!(link, operator = %spec.operator, "operator started");
        let active = Active { spec: spec.clone(), link_index: status.index, operator };
        self.running.insert(id.to_owned(), active);
        Ok(())
    }
}

/// True when an operator may work on this link.
fn is_ready(spec: &OperatorSpec, link: &LinkStatus) -> bool {
    !spec.require_up || matches!(link.operational_state, OperationalState::Up | OperationalState::Unknown)
}

/// Publishes one kind of spec of all operators, each under `<operator>/<link>/<final id>`.
fn publish<T: TypedSpec>(
    ctx: &Context,
    provided: &BTreeMap<String, OperatorSpecs>,
    pick: impl Fn(&OperatorSpecs) -> &Vec<T>,
    id: impl Fn(&T) -> String,
) -> Result<(), StateError> {
    let named = provided.iter().flat_map(|(operator, specs)| {
        pick(specs).iter().map(|spec| (format!("{operator}/{}", id(spec)), spec.clone())).collect::<Vec<_>>()
    });
    ctx.publish_in(ids::CONFIG_NAMESPACE, named)
}

impl Controller for OperatorSpecController {
    const NAME: &'static str = "network.OperatorSpecController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<OperatorSpec>(), weak::<LinkStatus>(), weak::<HostnameStatus>().id(ids::HOSTNAME)]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![
            shared::<AddressSpec>(),
            shared::<LinkSpec>(),
            shared::<RouteSpec>(),
            shared::<HostnameSpec>(),
            shared::<ResolverSpec>(),
            shared::<TimeServerSpec>(),
        ]
    }

    fn start(&mut self, wake: Wake) {
        self.wake = Some(wake);
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let wanted: Vec<Typed<OperatorSpec>> =
            ctx.list::<OperatorSpec>()?.into_iter().filter(|spec| spec.meta().is_running()).collect();
        let links = ctx.list::<LinkStatus>()?;
        let link_of = |spec: &OperatorSpec| {
            let link = link_name::find_status(&links, &spec.link_name)?;
            is_ready(spec, link).then_some(link)
        };

        let is_wanted = |id: &str, active: &Active| {
            let spec = wanted.iter().find(|spec| spec.id() == id);
            spec.is_some_and(|spec| {
                *spec.spec() == active.spec
                    && link_of(spec).is_some_and(|link| link.index == active.link_index)
            })
        };
        for (_, active) in self.running.extract_if(.., |id, active| !is_wanted(id, active)) {
            active.operator.stop();
        }
        let mut troubles = Vec::new();
        for spec in &wanted {
            let Some(link) = link_of(spec) else { continue };
            if !self.running.contains_key(spec.id().as_str()) {
                troubles.extend(self.start_operator(spec.id(), spec, link.id(), link).err());
            }
        }

        let hostname = ctx.get::<HostnameStatus>(ids::HOSTNAME)?;
        let mut provided = BTreeMap::new();
        for (id, Active { operator, .. }) in &self.running {
            operator.set_hostname(hostname.as_ref().map(|status| status.spec()));
            provided.extend(operator.specs().map(|specs| (id.clone(), specs)));
            troubles.extend(operator.trouble().map(|trouble| format!("{id}: {trouble}")));
        }
        publish(ctx, &provided, |l| &l.addresses, |s: &AddressSpec| ids::address(&s.link_name, s.address))?;
        publish(ctx, &provided, |l| &l.links, |s: &LinkSpec| s.name.clone())?;
        publish(ctx, &provided, |l| &l.routes, ids::route_spec)?;
        publish(ctx, &provided, |l| &l.hostnames, |_: &HostnameSpec| ids::HOSTNAME.to_owned())?;
        publish(ctx, &provided, |l| &l.resolvers, |_: &ResolverSpec| ids::RESOLVERS.to_owned())?;
        publish(ctx, &provided, |l| &l.time_servers, |_: &TimeServerSpec| ids::TIME_SERVERS.to_owned())?;
        if !troubles.is_empty() {
            ctx.trouble(troubles.join("; "));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::{Arc, Mutex};

    use ichor_resource::network::Operator;
    use ichor_testkit::Harness;

    use super::*;
    use crate::operators::OperatorKind;

    /// A kind that provides one host name, or says why it does not.
    #[derive(Clone, Default)]
    struct Fake {
        provides: Arc<Mutex<Option<String>>>,
        started: Arc<AtomicUsize>,
        stopped: Arc<AtomicUsize>,
    }

    impl OperatorKind for Fake {
        fn start(&self, start: Start<'_>) -> Result<Box<dyn RunningOperator>, String> {
            assert_eq!((start.link, start.spec.operator), ("eth0", Operator::Vip));
            self.started.fetch_add(1, SeqCst);
            Ok(Box::new(self.clone()))
        }
    }

    impl RunningOperator for Fake {
        fn specs(&self) -> Option<OperatorSpecs> {
            let hostname = self.provides.lock().unwrap().clone()?;
            let spec = HostnameSpec { hostname, ..HostnameSpec::default() };
            Some(OperatorSpecs { hostnames: vec![spec], ..OperatorSpecs::default() })
        }

        fn trouble(&self) -> Option<String> {
            self.provides.lock().unwrap().is_none().then(|| "nothing yet".to_owned())
        }

        fn stop(self: Box<Self>) {
            self.stopped.fetch_add(1, SeqCst);
        }
    }

    #[tokio::test]
    async fn an_operator_of_any_kind_is_started_asked_and_stopped() {
        let (state, _clock) = ichor_testkit::state();
        let fake = Fake::default();
        let registry = Registry::only(Operator::Vip, fake.clone());
        let mut harness = Harness::new(&state, OperatorSpecController::with(registry, 7)).unwrap();
        let spec =
            OperatorSpec { operator: Operator::Vip, link_name: "eth0".to_owned(), ..OperatorSpec::default() };
        state.create("network", "vip/eth0", spec, "").unwrap();
        harness.reconcile().await.unwrap();
        assert_eq!(fake.started.load(SeqCst), 0, "there is no link");

        let link = LinkStatus { index: 3, ..LinkStatus::default() };
        state.create("network", "eth0", link, "").unwrap();
        harness.reconcile().await.unwrap();
        assert_eq!(fake.started.load(SeqCst), 1);
        let found = || state.find::<HostnameSpec>("network-config", "vip/eth0/hostname");
        assert!(found().is_none());

        *fake.provides.lock().unwrap() = Some("node-1".to_owned());
        harness.reconcile().await.unwrap();
        assert_eq!(found().unwrap().hostname, "node-1");
        assert_eq!((fake.started.load(SeqCst), fake.stopped.load(SeqCst)), (1, 0));

        state.modify::<LinkStatus>("network", "eth0", "", |link| link.index = 4).unwrap();
        harness.reconcile().await.unwrap();
        assert_eq!((fake.started.load(SeqCst), fake.stopped.load(SeqCst)), (2, 1), "another link");

        state.destroy::<OperatorSpec>("network", "vip/eth0", "").unwrap();
        harness.reconcile().await.unwrap();
        assert_eq!((fake.started.load(SeqCst), fake.stopped.load(SeqCst)), (2, 2));
        assert!(found().is_none());
    }
}
