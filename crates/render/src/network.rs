//! The network of a rendering.

use std::collections::BTreeMap;

use ichor_config::Documents;
use ichor_ctl_network::documents::Selected;
use ichor_ctl_network::rendering::{self, NetworkFacts};
use ichor_resource::Spec;
use ichor_resource::network::ConfigLayer;
use ichor_types::Cmdline;
use ichor_yaml::Node;

use crate::{Facts, HostName, Things, of_spec};

/// Adds the network, and says what the machine is called.
pub(crate) fn render(config: &Documents, facts: &Facts, things: &mut Things) -> HostName {
    let found = rendering::render(
        config,
        &NetworkFacts {
            cmdline: Cmdline::parse(&facts.cmdline),
            links: facts.links.clone(),
            selected: Selected {
                links: facts.selected_links.clone(),
                members: facts.selected_members.clone(),
            },
            node_id: facts.node_id.clone(),
            default_address: facts.default_address,
        },
    );
    things.notes.extend(found.notes);
    let named: [(&str, Option<&dyn Spec>); 3] = [
        ("hostname", found.hostname.as_ref().map(|spec| spec as &dyn Spec)),
        ("resolvers", found.resolvers.as_ref().map(|spec| spec as &dyn Spec)),
        ("time-servers", found.time_servers.as_ref().map(|spec| spec as &dyn Spec)),
    ];
    for (name, spec) in named {
        if let Some(spec) = spec {
            things.add(format!("network/{name}"), of_spec(spec));
        }
    }
    all(things, "links", &found.links);
    all(things, "addresses", &found.addresses);
    all(things, "routes", &found.routes);
    all(things, "operators", &found.operators);
    match found.hostname {
        // A lease or the platform may have given the machine a better name than one that was made up.
        Some(spec) if spec.layer > ConfigLayer::Default => {
            HostName { hostname: spec.hostname, domain: spec.domainname }
        }
        Some(_) | None => HostName { hostname: facts.hostname.clone(), domain: facts.domain.clone() },
    }
}

fn all<T: Spec>(things: &mut Things, name: &str, specs: &BTreeMap<String, T>) {
    if !specs.is_empty() {
        let entries = specs.iter().map(|(id, spec)| (Node::string(id), of_spec(spec)));
        things.add(format!("network/{name}"), Node::map(entries.collect()));
    }
}
