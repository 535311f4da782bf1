//! Which cluster this machine belongs to.

use ichor_cosi::{Context, ControllerError, Transform, TransformController, Typed};
use ichor_ctl::Configuration;
use ichor_resource::Id;
use ichor_resource::cluster::Info;
use ichor_resource::config::MachineConfig;

/// Turns the active configuration into `Infos/current`.
#[derive(Debug, Default)]
pub struct ClusterInfo;

/// Writes `Infos`.
pub type InfoController = TransformController<ClusterInfo>;

impl Transform for ClusterInfo {
    const NAME: &'static str = "cluster.InfoController";
    type Input = MachineConfig;
    type Output = Info;

    fn output_id(&self, input: &Typed<MachineConfig>) -> Option<Id> {
        let has_cluster = || {
            let documents = Configuration::of(input).ok()?;
            documents.root()?.cluster.as_ref().map(|_| ())
        };
        (*input.id() == *MachineConfig::ACTIVE && has_cluster().is_some()).then(|| "current".into())
    }

    fn transform(
        &mut self,
        _: &Context,
        input: &Typed<MachineConfig>,
        output: &mut Info,
    ) -> Result<(), ControllerError> {
        let documents = Configuration::of(input)?;
        if let Some(cluster) = documents.root().and_then(|root| root.cluster.as_ref()) {
            output.cluster_id.clone_from(&cluster.id);
            output.cluster_name.clone_from(&cluster.cluster_name);
        }
        Ok(())
    }
}
