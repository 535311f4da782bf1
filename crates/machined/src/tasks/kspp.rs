//! Checks that the kernel protects itself as the Kernel Self Protection Project advises.
//!
//! The parameters themselves are set by a controller; this waits until they hold. A stock kernel lacks some of them: those
//! are told and passed over, because a kernel that does not have a feature cannot be made to protect it.

use std::time::Duration;

use tracing::{info, warn};

use ichor_cosi::State;
use ichor_ctl_runtime::KSPP;
use ichor_resource::runtime::KernelParamStatus;
use ichor_types::Cmdline;

use super::failed;
use crate::sequencer::TaskError;

/// Setting them takes milliseconds.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// What the kernel command line must say.
const ARGUMENTS: [(&str, &str); 2] = [("slab_nomerge", ""), ("pti", "on")];

/// Waits for the parameters, then checks the command line.
pub(super) async fn enforce(state: State, cmdline: Cmdline) -> Result<(), TaskError> {
    let mut lacking = Vec::new();
    for (key, value) in KSPP {
        let id = format!("proc.sys.{key}");
        let settled = state.wait_for::<KernelParamStatus>("runtime", &id, |found| holds(found.spec(), value));
        match tokio::time::timeout(WAIT_MAX, settled).await {
            Ok(Ok(found)) if found.spec().unsupported => lacking.push(*key),
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(failed(error)),
            Err(_) => return Err(failed(not_held(&state, &id, value))),
        }
    }
    if !lacking.is_empty() {
        warn!("this kernel does not have these protections: {}", lacking.join(", "));
    }
    let missing = missing_arguments(&cmdline);
    if !missing.is_empty() {
        return Err(failed(format!(
            "the kernel command line lacks {}; add it and reboot",
            missing.join(" ")
        )));
    }
    info!("kernel self protection is in place");
    Ok(())
}

/// Whether a parameter is as it should be, or cannot be.
fn holds(status: &KernelParamStatus, value: &str) -> bool {
    status.unsupported || status.current == value
}

fn not_held(state: &State, id: &str, value: &str) -> String {
    let found = state.find::<KernelParamStatus>("runtime", id);
    let current = found.map_or_else(|| "not set".to_owned(), |found| format!("{:?}", found.current));
    format!("kernel parameter {id} is {current} and should be {value:?}")
}

/// What the command line must say and does not.
fn missing_arguments(cmdline: &Cmdline) -> Vec<String> {
    let missing = ARGUMENTS.iter().filter(|(key, value)| cmdline.first(key) != Some(value));
    missing
        .map(|(key, value)| if value.is_empty() { (*key).to_owned() } else { format!("{key}={value}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(text: &str) -> Vec<String> {
        missing_arguments(&Cmdline::parse(text))
    }

    #[test]
    fn the_command_line_is_checked_by_first_value() {
        assert!(missing("slab_nomerge pti=on").is_empty());
        assert!(missing("pti=on quiet slab_nomerge pti=off").is_empty());
        assert_eq!(missing("slab_nomerge pti=off"), ["pti=on"]);
        assert_eq!(missing("quiet"), ["slab_nomerge", "pti=on"]);
        assert_eq!(missing("slab_nomerge=1 pti=on"), ["slab_nomerge"]);
    }

    #[test]
    fn what_a_kernel_lacks_is_passed_over_and_another_value_is_not() {
        let status = |current: &str, unsupported: bool| KernelParamStatus {
            current: current.to_owned(),
            unsupported,
            ..KernelParamStatus::default()
        };
        assert!(holds(&status("2", false), "2"));
        assert!(holds(&status("", true), "2"));
        assert!(!holds(&status("1", false), "2"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_parameter_that_never_holds_is_named() {
        let state = State::new(ichor_cosi::SystemClock);
        let told = enforce(state, Cmdline::parse("slab_nomerge pti=on")).await.unwrap_err().to_string();
        let (key, value) = KSPP[0];
        assert!(
            told.contains(&format!("kernel parameter proc.sys.{key} is not set and should be {value:?}")),
            "{told}"
        );
    }
}
