//! What the kernel command line and the configuration put into the environment of services.

use ichor_cosi::State;
use ichor_ctl::Configuration;
use ichor_resource::config::MachineConfig;

use crate::node::Host;
use crate::platform::Mode;
use crate::services::{Run, ServiceSpec};

/// A proxy between the API and its callers would break both.
const PROXIES: [&str; 3] = ["http_proxy", "https_proxy", "no_proxy"];

/// The environment as `NAME=value`, what comes later wins: `talos.environment` of the kernel command line, then
/// `machine.env`.
pub fn of(host: &Host, state: &State) -> Vec<String> {
    let given = match host.platform.mode {
        // The command line of a container is its host's.
        Mode::Container => &[][..],
        Mode::Metal | Mode::MetalAgent | Mode::Cloud => host.cmdline.all("talos.environment"),
    };
    let config = state.find::<MachineConfig>("config", MachineConfig::ACTIVE);
    let documents = config.and_then(|config| Configuration::of(&config).ok());
    let machine = documents.as_ref().and_then(|documents| documents.root()?.machine.as_deref());
    let configured = machine.and_then(|machine| machine.env.0.as_ref()).into_iter().flatten();
    merge(given.iter().map(String::as_str), configured.map(|(name, value)| (name.as_str(), value.as_str())))
}

fn merge<'a>(
    given: impl Iterator<Item = &'a str>,
    configured: impl Iterator<Item = (&'a str, &'a str)>,
) -> Vec<String> {
    let mut all: Vec<(&str, &str)> = Vec::new();
    let good = |name: &str| !name.is_empty() && !name.contains(['=', '\0']);
    let given = given.filter_map(|text| text.split_once('='));
    for (name, value) in given.chain(configured).filter(|(name, value)| good(name) && !value.contains('\0')) {
        all.retain(|(known, _)| *known != name);
        all.push((name, value));
    }
    all.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

/// The same service with the node's environment, proxies left out.
pub fn with(mut service: ServiceSpec, host: &Host, state: &State) -> ServiceSpec {
    let process = match &mut service.run {
        Run::Process(process) => Some(process),
        Run::Container(container) => Some(&mut container.process),
        Run::Planned(_) | Run::Task(_) | Run::Nothing => None,
    };
    if let Some(process) = process {
        let proxy = |variable: &&String| {
            let name = variable.split('=').next().unwrap_or_default().to_ascii_lowercase();
            PROXIES.contains(&name.as_str())
        };
        let environment = of(host, state);
        process.env.extend(environment.iter().filter(|variable| !proxy(variable)).cloned());
    }
    service
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_wins_over_the_command_line() {
        let given = ["A=1", "B=2", "broken", "=x"].into_iter();
        let configured = [("A", "3=4"), ("C", ""), ("bad=name", "x"), ("D", "zero\0")].into_iter();
        assert_eq!(merge(given, configured), ["B=2", "A=3=4", "C="]);
    }
}
