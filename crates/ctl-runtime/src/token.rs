//! The token that survives a reinstallation.

use ichor_config::Document;
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_ctl::{Configuration, active_input};
use ichor_resource::runtime::{MetaKey, MetaLoad, UniqueMachineToken};

/// The META key of the token.
const META_KEY: &str = "0x10";

/// Writes `UniqueMachineTokens`, once META has been read.
#[derive(Debug, Default)]
pub struct UniqueMachineTokenController;

impl Controller for UniqueMachineTokenController {
    const NAME: &'static str = "runtime.UniqueMachineTokenController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<MetaKey>().id(META_KEY), weak::<MetaLoad>(), active_input()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<UniqueMachineToken>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        if ctx.list::<MetaLoad>()?.is_empty() {
            return Ok(());
        }
        let token = match ctx.get::<MetaKey>(META_KEY)? {
            Some(key) => key.value.clone(),
            None => configured(ctx)?.unwrap_or_default(),
        };
        ctx.modify::<UniqueMachineToken>("unique-machine-token", |spec| spec.token.clone_from(&token))?;
        Ok(())
    }
}

fn configured(ctx: &Context) -> Result<Option<String>, ControllerError> {
    let Some(documents) = Configuration::active(ctx)? else { return Ok(None) };
    Ok(documents.iter().find_map(|document| match document {
        Document::SideroLinkConfig(config) => Some(config.unique_token.clone()),
        _ => None,
    }))
}
