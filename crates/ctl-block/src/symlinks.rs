//! Other names of devices, as the device manager gives them.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Wake, exclusive, weak};
use ichor_resource::block::BlockSymlink;
use ichor_resource::v1alpha1::Service;

use crate::ports::BlockPort;

/// The service that makes the links.
const DEVICE_MANAGER: &str = "udevd";

/// Writes `BlockSymlinks`, once the device manager has settled.
#[derive(Debug)]
pub struct SymlinksController<P> {
    port: P,
    device_manager: bool,
}

impl<P: BlockPort> SymlinksController<P> {
    /// A controller of this machine's links, of which there are none without a device manager.
    pub fn new(port: P, device_manager: bool) -> Self {
        Self { port, device_manager }
    }
}

impl<P: BlockPort> Controller for SymlinksController<P> {
    const NAME: &'static str = "block.SymlinksController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<Service>().id(DEVICE_MANAGER)]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<BlockSymlink>()]
    }

    fn start(&mut self, wake: Wake) {
        if self.device_manager {
            self.port.watch_symlinks(wake);
        }
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let settled = self.device_manager
            && ctx.get::<Service>(DEVICE_MANAGER)?.is_some_and(|service| service.running && service.healthy);
        if !settled {
            return Ok(());
        }
        let port = self.port.clone();
        let found = tokio::task::spawn_blocking(move || port.symlinks()).await??;
        let specs = found.into_iter().map(|(device, paths)| (device, BlockSymlink { paths }));
        Ok(ctx.publish(specs)?)
    }
}
