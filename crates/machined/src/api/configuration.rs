//! The machine configuration through the API: apply in all modes, and client configurations.

use std::time::Duration;

use bytes::Bytes;
use tonic::{Response, Status};

use ichor_config::diff::diff;
use ichor_config::plan;
use ichor_config::{Diagnostic, Diagnostics, Documents, Mode, ValidateOptions};
use ichor_cosi::State;
use ichor_ctl::Configuration;
use ichor_ctl_config::StoreError;
use ichor_resource::config::MachineConfig;
use ichor_wire::machine;
use ichor_wire::machine::apply_configuration_request::Mode as ApplyMode;

use super::machine::ApiMode;
use super::reply::chain;
use crate::maintenance;
use crate::node::Store;
use crate::platform::{Mode as PlatformMode, Platform};
use crate::sequencer::{Request, Sequencer};
use crate::version;

/// How long a trial lasts when the request does not say.
const TRY_DEFAULT: Duration = Duration::from_secs(60);

/// The longest trial; a longer one is a mistake in the request.
const TRY_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The rules a configuration has to keep on this platform.
pub fn validation_mode(platform: &Platform) -> Mode {
    match platform.mode {
        PlatformMode::Metal => Mode::METAL,
        PlatformMode::MetalAgent => Mode::METAL_AGENT,
        PlatformMode::Cloud => Mode::CLOUD,
        PlatformMode::Container => Mode::CONTAINER,
    }
}

/// Checks the rules of a place, and what only a node knows.
pub fn validate(documents: &Documents, mode: Mode) -> Result<Vec<Diagnostic>, Diagnostics> {
    let options = ValidateOptions { deprecations: true, ..ValidateOptions::default() };
    let warnings = documents.validate_with(mode, options)?;
    documents.validate_images(version::COMPATIBLE_TAG)?;
    Ok(warnings)
}

fn internal(error: &StoreError) -> Status {
    Status::internal(chain(error))
}

/// Sets the machine configuration.
pub async fn apply_configuration(
    platform: &Platform,
    store: &Store,
    sequencer: &Sequencer,
    mode: ApiMode,
    request: machine::ApplyConfigurationRequest,
) -> Result<Response<machine::ApplyConfigurationResponse>, Status> {
    let message = match mode {
        ApiMode::Configured => apply(platform, store, sequencer, request).await?,
        ApiMode::Maintenance => hand_in(platform, &store.state, request)?,
    };
    Ok(Response::new(machine::ApplyConfigurationResponse { messages: vec![message] }))
}

/// Parses and checks; both kinds of error are the caller's.
fn checked(platform: &Platform, data: &[u8]) -> Result<(Documents, Vec<String>), Status> {
    let refused = |what: &str, problems: &Diagnostics| {
        Status::invalid_argument(format!("{what}: {}", problems.answer()))
    };
    let documents = Documents::load(data).map_err(|error| refused("failed to parse config", &error))?;
    let mode = validation_mode(platform);
    let mut warnings =
        validate(&documents, mode).map_err(|error| refused("configuration validation failed", &error))?;
    warnings.extend(documents.ignored_warnings(mode));
    Ok((documents, warnings.iter().map(Diagnostic::placed).collect()))
}

/// What an apply does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    Activate,
    Stage,
    Try(Duration),
    Reboot,
}

/// What to do about a request, and why when the request left it open.
fn decide(mode: ApplyMode, timeout: Duration, is_hot: bool, cold: &str) -> Result<(Plan, String), Status> {
    let refused = || Status::invalid_argument(cold.to_owned());
    Ok(match (mode, is_hot) {
        (ApplyMode::Reboot, _) => (Plan::Reboot, String::new()),
        (ApplyMode::Staged, _) => (Plan::Stage, String::new()),
        (ApplyMode::Auto | ApplyMode::NoReboot, true) => (Plan::Activate, String::new()),
        (ApplyMode::Auto, false) => (Plan::Reboot, format!(": {cold}")),
        (ApplyMode::Try, true) => (Plan::Try(timeout), String::new()),
        (ApplyMode::NoReboot | ApplyMode::Try, false) => return Err(refused()),
    })
}

impl Plan {
    fn mode(self) -> ApplyMode {
        match self {
            Self::Activate => ApplyMode::NoReboot,
            Self::Stage => ApplyMode::Staged,
            Self::Try(_) => ApplyMode::Try,
            Self::Reboot => ApplyMode::Reboot,
        }
    }

    fn details(self) -> String {
        match self {
            Self::Activate => "Applied configuration without a reboot".to_owned(),
            Self::Stage => "Staged configuration to be applied after the next reboot".to_owned(),
            Self::Reboot => "Applied configuration with a reboot".to_owned(),
            Self::Try(time) => format!(
                "Applied configuration without a reboot\nThe config is applied in 'try' mode and will be automatically \
                 reverted back in {}",
                ichor_types::GoDuration::from_std(time)
            ),
        }
    }
}

async fn apply(
    platform: &Platform,
    store: &Store,
    sequencer: &Sequencer,
    request: machine::ApplyConfigurationRequest,
) -> Result<machine::ApplyConfiguration, Status> {
    let asked = request.mode();
    let (documents, warnings) = checked(platform, &request.data)?;
    if !documents.is_complete() {
        return Err(Status::invalid_argument(
            "the applied machine configuration doesn't contain v1alpha1 config, did you mean to patch the machine \
             config instead?",
        ));
    }
    let timeout = try_timeout(request.try_mode_timeout.as_ref())?;
    // From here on nobody else changes the configuration: the decision stays true until it is done.
    let change = store.config.change().await;
    let active = store.config.active();
    let current = active.as_ref().and_then(|config| Configuration::of(config).ok());
    let difference = difference(current.as_deref(), &documents);
    let empty = Documents::default();
    let is_hot = plan::plan(current.as_deref().unwrap_or(&empty), &documents).is_hot();
    let cold = format!("this config change can't be applied in immediate mode\ndiff: {difference}");
    let (plan, reason) = decide(asked, timeout, is_hot, &cold)?;
    let details = format!("{}{reason}", plan.details());

    let mode_details = if request.dry_run {
        let shown = if difference.is_empty() { "No changes." } else { &difference };
        format!("Dry run summary:\n{details} (skipped in dry-run).\nConfig diff:\n\n{shown}\n")
    } else {
        let yaml = Bytes::from(request.data);
        match plan {
            Plan::Try(time) => change.try_for(&yaml, time).map_err(|error| internal(&error))?,
            Plan::Activate => {
                change.persist(&yaml).await.map_err(|error| internal(&error))?;
                change.activate(&yaml).map_err(|error| internal(&error))?;
            }
            Plan::Stage | Plan::Reboot => {
                change.persist(&yaml).await.map_err(|error| internal(&error))?;
            }
        }
        if plan == Plan::Reboot {
            sequencer.start(Request::Reboot { force: false }, true, "");
        }
        details
    };
    Ok(machine::ApplyConfiguration { metadata: None, warnings, mode: plan.mode().into(), mode_details })
}

/// What changes, with secrets out of sight; empty when nothing does.
fn difference(current: Option<&Documents>, new: &Documents) -> String {
    const HIDDEN: &str = "******";
    let empty = Documents::default();
    let current = current.unwrap_or(&empty);
    let shown = diff(&current.redacted(HIDDEN), &new.redacted(HIDDEN));
    match shown.is_empty() && current != new {
        true => "Only secrets change; they are not shown.".to_owned(),
        false => shown,
    }
}

fn try_timeout(asked: Option<&prost_types::Duration>) -> Result<Duration, Status> {
    let Some(asked) = asked else { return Ok(TRY_DEFAULT) };
    match Duration::try_from(*asked) {
        Ok(time) if time.is_zero() => Ok(TRY_DEFAULT),
        Ok(time) if time <= TRY_MAX => Ok(time),
        Ok(_) | Err(_) => {
            Err(Status::invalid_argument("try_mode_timeout must be positive and at most a day"))
        }
    }
}

/// Maintenance mode: what is handed in goes to the boot process, whatever the mode.
fn hand_in(
    platform: &Platform,
    state: &State,
    request: machine::ApplyConfigurationRequest,
) -> Result<machine::ApplyConfiguration, Status> {
    let mode = request.mode();
    match mode {
        ApplyMode::Reboot | ApplyMode::Auto | ApplyMode::Try => {}
        ApplyMode::NoReboot | ApplyMode::Staged => {
            let name = mode.as_str_name().to_ascii_lowercase().replace('_', "-");
            return Err(Status::unimplemented(format!(
                "apply configuration --mode='{name}' is not supported in maintenance mode"
            )));
        }
    }
    let (_, warnings) = checked(platform, &request.data)?;
    let mut reply = machine::ApplyConfiguration {
        metadata: None,
        warnings,
        mode: mode.into(),
        mode_details: String::new(),
    };
    if request.dry_run {
        reply.mode_details =
            "Dry run summary:\nNode is running in maintenance mode and does not have a config yet\n"
                .to_owned();
        return Ok(reply);
    }
    let yaml = Bytes::from(request.data);
    let stored = state.modify_with::<MachineConfig>(
        "config",
        MachineConfig::MAINTENANCE,
        maintenance::NAME,
        |spec, meta| {
            let (key, value) = ichor_ctl_config::store::YAML_ANNOTATION;
            meta.set_annotation(key, value);
            *spec = MachineConfig::new(yaml.clone());
        },
    );
    stored.map_err(|error| Status::internal(error.to_string()))?;
    Ok(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_avoids_the_reboot_when_it_can() {
        let minute = TRY_DEFAULT;
        assert_eq!(decide(ApplyMode::Auto, minute, true, "x").unwrap().0, Plan::Activate);
        let (cold, reason) = decide(ApplyMode::Auto, minute, false, "because").unwrap();
        assert_eq!((cold, reason.as_str()), (Plan::Reboot, ": because"));
        assert_eq!(decide(ApplyMode::Staged, minute, false, "x").unwrap().0, Plan::Stage);
        assert_eq!(decide(ApplyMode::Reboot, minute, true, "x").unwrap().0, Plan::Reboot);
    }

    #[test]
    fn a_refusal_points_at_every_place() {
        let platform = Platform { name: "sandbox".to_owned(), mode: PlatformMode::Cloud };
        let parse = checked(&platform, b"machine:\n  typo: worker\n").unwrap_err();
        assert_eq!(parse.code(), tonic::Code::InvalidArgument);
        assert!(parse.message().starts_with("failed to parse config: unknown keys found during decoding:\n"));
        assert!(parse.message().contains("\n\nline 2, column 3: "), "{}", parse.message());

        let text = b"machine:\n  type: worker\n  features:\n    nodeAddressSortAlgorithm: v9\n";
        let refused = checked(&platform, text).unwrap_err();
        assert!(refused.message().starts_with("configuration validation failed: "), "{}", refused.message());
        let local = Documents::load(text).unwrap().validate(Mode::CLOUD).unwrap_err();
        assert!(refused.message().ends_with(local.positions().trim_end()), "{}", refused.message());
        assert!(local.items.len() > 1 && local.positions().lines().count() == local.items.len());
    }

    #[test]
    fn warnings_point_and_name_what_to_use() {
        let platform = Platform { name: "sandbox".to_owned(), mode: PlatformMode::Cloud };
        let text = "machine:\n  type: worker\n  token: t\n  ca: {crt: Y2E=}\n  network:\n    hostname: a\n\
                    cluster:\n  controlPlane: {endpoint: 'https://10.0.0.1:6443'}\n";
        let (_, warnings) = checked(&platform, text.as_bytes()).unwrap();
        let want =
            "line 6, column 5: machine.network.hostname is deprecated: use a `HostnameConfig` document";
        assert_eq!(warnings, [want]);
    }

    #[test]
    fn a_field_that_the_node_ignores_is_a_warning() {
        let platform = Platform { name: "sandbox".to_owned(), mode: PlatformMode::Cloud };
        let text = "machine:\n  features:\n    rbac: false\n  type: worker\n  token: t\n  ca: {crt: Y2E=}\n\
                    cluster:\n  controlPlane: {endpoint: 'https://10.0.0.1:6443'}\n";
        let (_, warnings) = checked(&platform, text.as_bytes()).unwrap();
        let told = warnings.iter().find(|warning| warning.ends_with("(accepted and not applied)"));
        assert!(told.unwrap().starts_with("line 3, column 11: machine.features.rbac: "), "{warnings:?}");
    }

    #[test]
    fn immediate_modes_refuse_a_cold_change() {
        for mode in [ApplyMode::NoReboot, ApplyMode::Try] {
            let error = decide(mode, TRY_DEFAULT, false, "why").unwrap_err();
            assert_eq!((error.code(), error.message()), (tonic::Code::InvalidArgument, "why"));
        }
    }

    #[test]
    fn secrets_stay_out_of_differences() {
        let load = |token: &str| {
            let text = format!("version: v1alpha1\nmachine:\n  type: worker\n  token: {token}\n");
            Documents::load(text.as_bytes()).unwrap()
        };
        assert_eq!(difference(Some(&load("a")), &load("a")), "");
        assert_eq!(difference(Some(&load("a")), &load("b")), "Only secrets change; they are not shown.");
        let whole = difference(None, &load("hidden-token"));
        assert!(whole.contains("+    type: worker") && !whole.contains("hidden-token"), "{whole}");
    }

    #[test]
    fn a_trial_names_its_end() {
        assert!(Plan::Try(TRY_DEFAULT).details().ends_with("reverted back in 1m0s"));
    }

    #[test]
    fn trial_times_have_bounds() {
        let seconds = |seconds| prost_types::Duration { seconds, nanos: 0 };
        assert_eq!(try_timeout(None).unwrap(), TRY_DEFAULT);
        assert_eq!(try_timeout(Some(&seconds(0))).unwrap(), TRY_DEFAULT);
        assert_eq!(try_timeout(Some(&seconds(5))).unwrap(), Duration::from_secs(5));
        assert!(try_timeout(Some(&seconds(-5))).is_err());
        assert!(try_timeout(Some(&seconds(1 << 40))).is_err());
    }
}
