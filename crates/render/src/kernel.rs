//! Kernel arguments, parameters and modules of a rendering.

use std::collections::BTreeMap;

use ichor_boot::cmdline::{Composition, passed_on};
use ichor_config::{Document, Documents};
use ichor_ctl_runtime::{configured_kernel_params, default_kernel_params, kernel_modules};
use ichor_types::Cmdline;
use ichor_yaml::Node;

use crate::hide::kernel_argument;
use crate::{Facts, Things, of_spec};

pub(crate) fn render(config: &Documents, facts: &Facts, things: &mut Things) {
    arguments(config, facts, things);
    let defaults = default_kernel_params(facts.own_kernel).into_iter().map(|(id, spec)| (id, spec.value));
    let mut parameters: BTreeMap<String, String> = defaults.collect();
    parameters.extend(configured_kernel_params(config).into_iter().map(|(id, spec)| (id, spec.value)));
    let entry = |(id, value): (String, String)| (Node::string(id), Node::string(value));
    things.add("kernel/parameters", Node::map(parameters.into_iter().map(entry).collect()));
    let documents: Vec<&Document> = config.iter().collect();
    let modules = kernel_modules(&documents);
    if !modules.is_empty() {
        let modules = modules.iter().map(|(name, spec)| (Node::string(name), of_spec(spec)));
        things.add("kernel/modules", Node::map(modules.collect()));
    }
}

/// What the installer composes for the boot loader, or adds to what the image says.
fn arguments(config: &Documents, facts: &Facts, things: &mut Things) {
    let Some(install) = config.machine().and_then(|machine| machine.install.as_ref()) else { return };
    let own: Vec<String> = install.extra_kernel_args.iter().cloned().collect();
    let mut extra = passed_on(&Cmdline::parse(&facts.cmdline), &own);
    extra.extend(own);
    // What the image says is not in the configuration.
    let of_image = install.grub_use_uki_cmdline == Some(true);
    let arguments = match of_image {
        true => extra.join(" "),
        false => {
            let composition = Composition {
                platform: &facts.platform,
                architecture: &facts.architecture,
                recovers: true,
                extra: &extra,
                ..Composition::default()
            };
            composition.compose().to_string()
        }
    };
    let arguments = arguments.split_whitespace().map(|argument| Node::string(kernel_argument(argument)));
    things.add(
        "kernel/arguments",
        Node::map(vec![
            (Node::string("addedToImage"), Node::bool(of_image)),
            (Node::string("arguments"), Node::seq(arguments.collect())),
        ]),
    );
}
