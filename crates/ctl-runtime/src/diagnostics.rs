//! Warnings about set-ups that cannot work, told once they have lasted.

use std::collections::BTreeMap;
use std::time::Duration;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, shared, weak};
use ichor_ctl::{Configuration, active_input};
use ichor_resource::network::NodeAddress;
use ichor_resource::runtime::Diagnostic;
use tracing::{info, warn};

/// A warning that goes away by itself within this time is not told.
const PERSISTENCE: Duration = Duration::from_secs(30);

/// A warning that stays is logged this often.
const REMINDER: Duration = Duration::from_secs(5 * 60);

/// Writes `Diagnostics`.
#[derive(Debug, Default)]
pub struct DiagnosticsController {
    /// Since when each check fails.
    since: BTreeMap<&'static str, jiff::Timestamp>,
}

impl Controller for DiagnosticsController {
    const NAME: &'static str = "runtime.DiagnosticsController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<NodeAddress>(), active_input()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<Diagnostic>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let found = [("address-overlap", address_overlap(ctx)?)];
        let now = ctx.now();
        let mut told = Vec::new();
        for (id, warning) in found {
            let Some(warning) = warning else {
                self.since.remove(id);
                continue;
            };
            let since = *self.since.entry(id).or_insert(now);
            let lasted = Duration::try_from(now.duration_since(since)).unwrap_or_default();
            match PERSISTENCE.checked_sub(lasted).filter(|left| !left.is_zero()) {
                Some(left) => ctx.requeue_after(left),
                None => told.push((id, warning)),
            }
        }
        Ok(ctx.publish(told)?)
    }
}

/// All routed addresses of the machine lie in the ranges of pods and services.
fn address_overlap(ctx: &Context) -> Result<Option<Diagnostic>, ControllerError> {
    let Some(documents) = Configuration::active(ctx)? else { return Ok(None) };
    let (Some(routed), Some(outside)) =
        (ctx.get::<NodeAddress>("routed")?, ctx.get::<NodeAddress>("routed-no-k8s")?)
    else {
        return Ok(None);
    };
    if routed.addresses.is_empty() || !outside.addresses.is_empty() {
        return Ok(None);
    }
    let list = |items: Vec<String>| items.join(" ");
    let addresses = routed.addresses.iter().map(ToString::to_string).collect();
    let ranges = |nets: Vec<ipnet::IpNet>| list(nets.iter().map(ToString::to_string).collect());
    Ok(Some(Diagnostic {
        message: "host and Kubernetes pod/service CIDR addresses overlap".to_owned(),
        details: vec![
            format!("host routed addresses: [{}]", list(addresses)),
            format!("Kubernetes pod CIDRs: [{}]", ranges(documents.pod_subnets())),
            format!("Kubernetes service CIDRs: [{}]", ranges(documents.service_subnets())),
        ],
    }))
}

/// Logs diagnostics: new ones, those that stay from time to time, and those that are gone.
#[derive(Debug, Default)]
pub struct DiagnosticsLoggerController {
    /// When each was last logged.
    logged: BTreeMap<String, jiff::Timestamp>,
}

impl Controller for DiagnosticsLoggerController {
    const NAME: &'static str = "runtime.DiagnosticsLoggerController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<Diagnostic>()]
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let now = ctx.now();
        let found = ctx.list::<Diagnostic>()?;
        self.logged.retain(|id, _| {
            let stays = found.iter().any(|diagnostic| diagnostic.id().as_str() == id);
            if !stays {
                info!(id, "diagnostic resolved");
            }
            stays
        });
        for diagnostic in &found {
            let id = diagnostic.id().as_str();
            let due = self
                .logged
                .get(id)
                .is_none_or(|at| Duration::try_from(now.duration_since(*at)).unwrap_or_default() >= REMINDER);
            if due {
                self.logged.insert(id.to_owned(), now);
                warn!(
                    id,
                    details = diagnostic.details.join("; "),
                    url = format!("https://talos.dev/diagnostic/{id}"),
                    "diagnostic: {}",
                    diagnostic.message
                );
            }
        }
        if !found.is_empty() {
            ctx.requeue_after(REMINDER);
        }
        Ok(())
    }
}
