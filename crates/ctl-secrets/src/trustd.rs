//! The certificate of trustd, on control plane machines.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_pki::{KeyUsage, Leaf};
use ichor_resource::config::MachineType;
use ichor_resource::network::NetworkStatus;
use ichor_resource::secrets::{CertSAN, OSRootSecret, TrustdCertificate};
use ichor_resource::time::TimeStatus;

use crate::id;
use crate::issue::{Memory, issue, network_is_ready, server};

/// Writes `TrustdCertificates`.
#[derive(Debug, Default)]
pub struct Trustd {
    memory: Memory<(OSRootSecret, CertSAN)>,
}

impl Controller for Trustd {
    const NAME: &'static str = "secrets.TrustdController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<NetworkStatus>().id("status"),
            weak::<OSRootSecret>().id(id::OS),
            weak::<CertSAN>().id(id::API),
            weak::<MachineType>().id(MachineType::ID),
            weak::<TimeStatus>().id("node"),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<TrustdCertificate>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let control_plane = ctx
            .get::<MachineType>(MachineType::ID)?
            .is_some_and(|machine| machine.machine_type.is_control_plane());
        if !control_plane {
            self.memory.forget();
            return Ok(ctx.publish::<TrustdCertificate>([] as [(&str, TrustdCertificate); 0])?);
        }
        let ready = network_is_ready(ctx.get::<NetworkStatus>("status")?.as_deref());
        let (Some(root), Some(names), true) =
            (ctx.get::<OSRootSecret>(id::OS)?, ctx.get::<CertSAN>(id::API)?, ready)
        else {
            return Ok(());
        };
        let inputs = ((*root).clone(), (*names).clone());
        if let Some(rest) = self.memory.good_for(&inputs, ctx.now()) {
            ctx.requeue_after(rest);
            return Ok(());
        }
        let authority = root
            .issuing_ca
            .as_ref()
            .ok_or_else(|| ControllerError::new("a control plane machine needs the key of `machine.ca`"))?;
        let leaf = Leaf { key_usage: KeyUsage::SignatureAndEncipherment, ..server(&names) };
        let server = issue(authority, vec![leaf], ctx.now()).await?.pop();
        ctx.modify::<TrustdCertificate>(id::TRUSTD, |spec| {
            spec.accepted_cas.clone_from(&root.accepted_cas);
            spec.server.clone_from(&server);
        })?;
        self.memory.issued(inputs, ctx.now(), ctx);
        Ok(())
    }
}
