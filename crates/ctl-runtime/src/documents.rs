//! What documents of the configuration say, as resources.

use ichor_config::Document;
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, shared};
use ichor_ctl::{Configuration, active_input};
use ichor_resource::TypedSpec;
use ichor_resource::runtime::{
    EventSinkConfig, ExtensionServiceConfig, ExtensionServiceConfigFile, KernelModuleSpec, KernelParamSpec,
    KmsgLogConfig, WatchdogTimerConfig,
};
use ichor_resource::siderolink::SiderolinkConfig;
use ichor_resource::value::Url;
use ichor_types::{Cmdline, GoDuration};

/// A watchdog that is not told otherwise waits this long.
const WATCHDOG_TIMEOUT: GoDuration = GoDuration::from_secs(60);

/// Compressed swap that is not told otherwise takes this share of memory.
const ZSWAP_PERCENT: i64 = 20;

/// A controller that turns the configuration into outputs of one type.
macro_rules! from_documents {
    ($(#[$doc:meta])* $name:ident, $controller:literal, $kind:ident::<$output:ty>, $read:expr) => {
        $(#[$doc])*
        #[derive(Debug, Default, Clone)]
        pub struct $name {
            /// The kernel command line, which says some of it too.
            pub cmdline: Cmdline,
        }

        impl Controller for $name {
            const NAME: &'static str = $controller;

            fn inputs(&self) -> Vec<Input> {
                vec![active_input()]
            }

            fn outputs(&self) -> Vec<Output> {
                vec![$kind::<$output>()]
            }

            async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
                let configuration = Configuration::active(ctx)?;
                let documents: Vec<&Document> = configuration.iter().flat_map(|all| all.iter()).collect();
                publish(ctx, $read(&self.cmdline, &documents))
            }
        }
    };
}

fn publish<T: TypedSpec>(ctx: &Context, wanted: Vec<(String, T)>) -> Result<(), ControllerError> {
    Ok(ctx.publish(wanted)?)
}

from_documents! {
    /// Writes `EventSinkConfigs`.
    EventsSinkConfigController, "runtime.EventsSinkConfigController", exclusive::<EventSinkConfig>, event_sink
}

from_documents! {
    /// Writes `KmsgLogConfigs`.
    KmsgLogConfigController, "runtime.KmsgLogConfigController", exclusive::<KmsgLogConfig>, kmsg_log
}

from_documents! {
    /// Writes `WatchdogTimerConfigs`.
    WatchdogTimerConfigController, "runtime.WatchdogTimerConfigController", exclusive::<WatchdogTimerConfig>, watchdog
}

from_documents! {
    /// Writes `KernelModuleSpecs`.
    KernelModuleConfigController, "runtime.KernelModuleConfigController", shared::<KernelModuleSpec>, modules
}

from_documents! {
    /// Writes `ExtensionServiceConfigs`.
    ExtensionServiceConfigController, "runtime.ExtensionServiceConfigController",
    exclusive::<ExtensionServiceConfig>, extension_services
}

from_documents! {
    /// Writes the `KernelParamSpecs` of compressed swap.
    ZswapConfigController, "block.ZswapConfigController", shared::<KernelParamSpec>, zswap
}

from_documents! {
    /// Writes `SiderolinkConfigs`.
    SiderolinkConfigController, "siderolink.ConfigController", exclusive::<SiderolinkConfig>, siderolink
}

fn zswap(_: &Cmdline, documents: &[&Document]) -> Vec<(String, KernelParamSpec)> {
    let config = documents.iter().find_map(|document| match document {
        Document::ZswapConfig(config) => Some(config),
        _ => None,
    });
    let Some(config) = config else { return Vec::new() };
    let switch = |on: bool| (if on { "Y" } else { "N" }).to_owned();
    let values = [
        ("enabled", switch(true)),
        ("max_pool_percent", config.max_pool_percent.unwrap_or(ZSWAP_PERCENT).to_string()),
        ("shrinker_enabled", switch(config.shrinker_enabled.unwrap_or(false))),
    ];
    let spec = |value| KernelParamSpec { value, ignore_errors: false };
    values.map(|(name, value)| (format!("sys.module.zswap.parameters.{name}"), spec(value))).into()
}

fn siderolink(cmdline: &Cmdline, documents: &[&Document]) -> Vec<(String, SiderolinkConfig)> {
    let written = documents.iter().find_map(|document| match document {
        Document::SideroLinkConfig(config) => Some(config.api_url.clone()),
        _ => None,
    });
    let given = || ichor_config::values::Url::parse(cmdline.first("siderolink.api")?).ok();
    let url: Option<ichor_config::values::Url> = written.or_else(given);
    let Some(url) = url.filter(|url| !url.host.is_empty()) else { return Vec::new() };
    let port = if url.port().is_empty() { "443" } else { url.port() };
    let spec = SiderolinkConfig {
        api_endpoint: format!("{}:{port}", url.host.strip_suffix(&format!(":{port}")).unwrap_or(&url.host)),
        host: url.hostname().to_owned(),
        join_token: url.query_value("jointoken").unwrap_or_default(),
        insecure: url.scheme == "grpc",
        tunnel: url.query_value("grpc_tunnel").is_some_and(|on| matches!(on.as_str(), "1" | "t" | "true")),
    };
    vec![("siderolink".to_owned(), spec)]
}

fn event_sink(cmdline: &Cmdline, documents: &[&Document]) -> Vec<(String, EventSinkConfig)> {
    let written = documents.iter().find_map(|document| match document {
        Document::EventSinkConfig(config) => Some(config.endpoint.clone()),
        _ => None,
    });
    let endpoint = written.or_else(|| cmdline.first("talos.events.sink").map(str::to_owned));
    let spec = endpoint.filter(|endpoint| !endpoint.is_empty()).map(|endpoint| EventSinkConfig { endpoint });
    spec.map(|spec| ("event-sink".to_owned(), spec)).into_iter().collect()
}

fn kmsg_log(cmdline: &Cmdline, documents: &[&Document]) -> Vec<(String, KmsgLogConfig)> {
    let mut destinations: Vec<Url> = Vec::new();
    let written = documents.iter().filter_map(|document| match document {
        Document::KmsgLogConfig(config) => Some(config.url.to_string()),
        _ => None,
    });
    for url in cmdline.first("talos.logging.kernel").map(str::to_owned).into_iter().chain(written) {
        if !url.is_empty() && !destinations.iter().any(|known| known.0 == url) {
            destinations.push(Url(url));
        }
    }
    if destinations.is_empty() {
        Vec::new()
    } else {
        vec![("kmsg-log".to_owned(), KmsgLogConfig { destinations })]
    }
}

fn watchdog(_: &Cmdline, documents: &[&Document]) -> Vec<(String, WatchdogTimerConfig)> {
    let found = documents.iter().find_map(|document| match document {
        Document::WatchdogTimerConfig(config) => {
            let timeout = if config.timeout.is_zero() { WATCHDOG_TIMEOUT } else { config.timeout };
            Some(WatchdogTimerConfig { device: config.device.clone(), timeout })
        }
        _ => None,
    });
    found.map(|spec| ("timer".to_owned(), spec)).into_iter().collect()
}

fn modules(_: &Cmdline, documents: &[&Document]) -> Vec<(String, KernelModuleSpec)> {
    kernel_modules(documents)
}

/// `machine.kernel.modules`.
pub fn kernel_modules(documents: &[&Document]) -> Vec<(String, KernelModuleSpec)> {
    let kernel = documents.iter().find_map(|document| match document {
        Document::Config(config) => config.machine.as_ref()?.kernel.as_ref(),
        _ => None,
    });
    let modules = kernel.map_or(&[][..], |kernel| &kernel.modules);
    let spec = |name: &String, parameters: &[String]| KernelModuleSpec {
        name: name.clone(),
        parameters: parameters.to_vec(),
    };
    modules.iter().map(|module| (module.name.clone(), spec(&module.name, &module.parameters))).collect()
}

fn extension_services(_: &Cmdline, documents: &[&Document]) -> Vec<(String, ExtensionServiceConfig)> {
    let services = documents.iter().filter_map(|document| match document {
        Document::ExtensionServiceConfig(config) => Some(config),
        _ => None,
    });
    services
        .map(|config| {
            let files = config.config_files.iter().map(|file| ExtensionServiceConfigFile {
                content: file.content.clone(),
                mount_path: file.mount_path.clone(),
            });
            let spec =
                ExtensionServiceConfig { files: files.collect(), environment: config.environment.to_vec() };
            (config.name.clone(), spec)
        })
        .collect()
}
