//! Publishes which services run, as resources.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Wake, exclusive};
use ichor_resource::v1alpha1::Service;

use crate::services::manager::ServiceView;
use crate::services::{ServiceManager, ServiceState};

/// Keeps one `Service` resource per running service.
pub struct ServiceController {
    services: ServiceManager,
}

impl ServiceController {
    /// A controller over the service table.
    pub fn new(services: ServiceManager) -> Self {
        Self { services }
    }
}

/// The resource of a service; there is one only while it runs.
fn resource(view: &ServiceView) -> Option<(String, Service)> {
    (view.state == ServiceState::Running).then(|| {
        let spec =
            Service { running: true, healthy: view.healthy == Some(true), unknown: view.healthy.is_none() };
        (view.id.clone(), spec)
    })
}

impl Controller for ServiceController {
    const NAME: &'static str = "v1alpha1.ServiceController";

    fn inputs(&self) -> Vec<Input> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<Service>()]
    }

    fn start(&mut self, wake: Wake) {
        let mut changed = self.services.subscribe();
        tokio::spawn(async move {
            while changed.changed().await.is_ok() {
                wake.wake();
            }
        });
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        ctx.publish(self.services.views().iter().filter_map(resource))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_running_services_have_a_resource() {
        let view = |state, healthy| ServiceView { id: "apid".into(), state, healthy };
        assert_eq!(resource(&view(ServiceState::Waiting, None)), None);
        let (_, spec) = resource(&view(ServiceState::Running, None)).unwrap();
        assert!(spec.running && spec.unknown && !spec.healthy);
        let (_, spec) = resource(&view(ServiceState::Running, Some(true))).unwrap();
        assert!(spec.healthy && !spec.unknown);
    }
}
