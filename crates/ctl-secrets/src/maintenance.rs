//! Certificates of the maintenance service: an authority made once per boot, and a server certificate.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_pki::{Authority, KeyAlgorithm};
use ichor_resource::secrets::{CertSAN, MaintenanceRootSecret, MaintenanceServiceCertificate};
use ichor_resource::time::TimeStatus;

use crate::id;
use crate::issue::{LIFETIME, Memory, issue, pem, server};

/// Writes `MaintenanceRootSecrets`.
#[derive(Debug, Default)]
pub struct MaintenanceRoot;

impl Controller for MaintenanceRoot {
    const NAME: &'static str = "secrets.MaintenanceRootController";

    fn inputs(&self) -> Vec<Input> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<MaintenanceRootSecret>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        if ctx.get::<MaintenanceRootSecret>(id::MAINTENANCE)?.is_some() {
            return Ok(());
        }
        let authority = Authority::generate(KeyAlgorithm::Ed25519, "talos", ctx.now(), LIFETIME)?;
        ctx.modify::<MaintenanceRootSecret>(id::MAINTENANCE, |spec| {
            spec.ca = Some(pem(authority.to_pair()));
        })?;
        Ok(())
    }
}

/// Writes `MaintenanceServiceCertificates`.
#[derive(Debug, Default)]
pub struct Maintenance {
    memory: Memory<(MaintenanceRootSecret, CertSAN)>,
}

impl Controller for Maintenance {
    const NAME: &'static str = "secrets.MaintenanceController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<MaintenanceRootSecret>().id(id::MAINTENANCE),
            weak::<CertSAN>().id(id::MAINTENANCE),
            weak::<TimeStatus>().id("node"),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<MaintenanceServiceCertificate>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let (Some(root), Some(names)) =
            (ctx.get::<MaintenanceRootSecret>(id::MAINTENANCE)?, ctx.get::<CertSAN>(id::MAINTENANCE)?)
        else {
            return Ok(());
        };
        let inputs = ((*root).clone(), (*names).clone());
        if let Some(rest) = self.memory.good_for(&inputs, ctx.now()) {
            ctx.requeue_after(rest);
            return Ok(());
        }
        let Some(authority) = root.ca.as_ref() else { return Ok(()) };
        let server = issue(authority, vec![server(&names)], ctx.now()).await?.pop();
        ctx.modify::<MaintenanceServiceCertificate>(id::MAINTENANCE, |spec| {
            spec.ca.clone_from(&root.ca);
            spec.server.clone_from(&server);
        })?;
        self.memory.issued(inputs, ctx.now(), ctx);
        Ok(())
    }
}
