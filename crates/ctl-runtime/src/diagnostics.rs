//! Warnings about set-ups that cannot work, and about what is configured and not applied.

use std::collections::BTreeMap;
use std::time::Duration;

use ichor_config::Mode;
use ichor_config::ignored::{ignored_arguments, ignored_platform};
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, shared, weak};
use ichor_ctl::{Configuration, active_input};
use ichor_resource::network::NodeAddress;
use ichor_resource::runtime::{Diagnostic, MetaLoad};
use ichor_types::Cmdline;
use tracing::{info, warn};

use crate::meta::Meta;

/// A warning that goes away by itself within this time is not reported.
const PERSISTENCE: Duration = Duration::from_secs(30);

/// Details of one diagnostic at most; the last one then says how many others there are.
const DETAILS_MAX: usize = 32;

/// Diagnostics that the original documents under this address.
const DOCUMENTED: [&str; 2] = ["address-overlap", "kubelet-csr"];

/// A warning that stays is logged this often.
const REMINDER: Duration = Duration::from_secs(5 * 60);

/// Writes `Diagnostics`.
pub struct DiagnosticsController {
    meta: Meta,
    mode: Mode,
    /// What the kernel command line asks for and this node ignores: it does not change while the machine is up.
    boot: Vec<String>,
    /// Since when each check fails.
    since: BTreeMap<&'static str, jiff::Timestamp>,
}

impl DiagnosticsController {
    /// A controller for a node on this platform, booted with these arguments, that looks at this META.
    pub fn new(meta: Meta, platform: &str, mode: Mode, cmdline: &Cmdline) -> Self {
        let mut boot = ignored_arguments(cmdline);
        boot.extend(ignored_platform(platform));
        Self { meta, mode, boot, since: BTreeMap::new() }
    }
}

impl Controller for DiagnosticsController {
    const NAME: &'static str = "runtime.DiagnosticsController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<NodeAddress>(), weak::<MetaLoad>(), active_input()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<Diagnostic>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let found = [("address-overlap", address_overlap(ctx)?), ("meta-damaged", meta_damaged(&self.meta))];
        let now = ctx.now();
        let mut reported = not_applied(ctx, self.mode, &self.boot)?;
        for (id, warning) in found {
            let Some(warning) = warning else {
                self.since.remove(id);
                continue;
            };
            let since = *self.since.entry(id).or_insert(now);
            let lasted = Duration::try_from(now.duration_since(since)).unwrap_or_default();
            match PERSISTENCE.checked_sub(lasted).filter(|left| !left.is_zero()) {
                Some(left) => ctx.requeue_after(left),
                None => reported.push((id, warning)),
            }
        }
        Ok(ctx.publish(reported)?)
    }
}

/// What configuration and kernel command line ask for and this node ignores.
fn not_applied(
    ctx: &Context,
    mode: Mode,
    boot: &[String],
) -> Result<Vec<(&'static str, Diagnostic)>, ControllerError> {
    let mut found = Vec::new();
    if let Some(documents) = Configuration::active(ctx)? {
        let fields: Vec<String> = documents.ignored(mode).iter().map(ToString::to_string).collect();
        found.extend(listed(
            "config-not-applied",
            "the machine configuration sets fields that this node ignores",
            fields,
        ));
    }
    let message = "the kernel command line asks for what this node ignores";
    found.extend(listed("cmdline-not-applied", message, boot.to_vec()));
    Ok(found)
}

/// A diagnostic with these details, if there are any.
fn listed(id: &'static str, message: &str, mut details: Vec<String>) -> Option<(&'static str, Diagnostic)> {
    let others = details.len().saturating_sub(DETAILS_MAX);
    details.truncate(DETAILS_MAX);
    if others > 0 {
        details.push(format!("and {others} more"));
    }
    (!details.is_empty()).then(|| (id, Diagnostic { message: message.to_owned(), details }))
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

/// Both copies of META are damaged.
fn meta_damaged(meta: &Meta) -> Option<Diagnostic> {
    let path = meta.damaged()?;
    Some(Diagnostic {
        message: "both copies of META are damaged, its values are not in use".to_owned(),
        details: vec![
            format!("kept unchanged at {}", path.display()),
            "reset META to start over with an empty one: reset --system-labels-to-wipe META".to_owned(),
        ],
    })
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
                let url = DOCUMENTED.contains(&id).then(|| format!("https://talos.dev/diagnostic/{id}"));
                warn!(id, details = diagnostic.details.join("; "), url, "diagnostic: {}", diagnostic.message);
            }
        }
        if !found.is_empty() {
            ctx.requeue_after(REMINDER);
        }
        Ok(())
    }
}
