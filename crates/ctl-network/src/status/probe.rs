//! Tries whether others can be reached.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Wake, exclusive, weak};
use ichor_resource::network::{ProbeSpec, ProbeStatus};
use ichor_types::GoDuration;
use tokio::net::TcpStream;

use crate::ports::Running;

/// No probe runs more often than this, whatever its spec says.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Taken when a spec names no timeout.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// Runs probes.
#[derive(Debug, Default)]
pub struct ProbeController {
    running: BTreeMap<String, Probe>,
    wake: Option<Wake>,
}

#[derive(Debug)]
struct Probe {
    spec: ProbeSpec,
    result: Arc<Mutex<Verdict>>,
    _task: Running,
}

/// What the tries so far say.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Verdict {
    failures: i64,
    status: Option<ProbeStatus>,
}

impl Verdict {
    /// Takes one more try in; true when the status changed. Success counts at once, failure only after as
    /// many in a row as the threshold says.
    pub(crate) fn take(&mut self, result: Result<(), String>, threshold: i64) -> bool {
        let status = match result {
            Ok(()) => {
                self.failures = 0;
                ProbeStatus { success: true, last_error: String::new() }
            }
            Err(last_error) => {
                self.failures += 1;
                if self.failures < threshold {
                    return false;
                }
                ProbeStatus { success: false, last_error }
            }
        };
        let changed = self.status.as_ref() != Some(&status);
        self.status = Some(status);
        changed
    }
}

fn duration(value: GoDuration) -> Duration {
    Duration::from_nanos(u64::try_from(value.as_nanos()).unwrap_or(0))
}

async fn try_once(endpoint: &str, limit: Duration) -> Result<(), String> {
    match tokio::time::timeout(limit, TcpStream::connect(endpoint)).await {
        Ok(Ok(_stream)) => Ok(()),
        Ok(Err(error)) => Err(format!("connect to {endpoint}: {error}")),
        Err(_) => Err(format!("connect to {endpoint}: no answer within {limit:?}")),
    }
}

impl ProbeController {
    fn start_probe(&mut self, id: &str, spec: &ProbeSpec) {
        let result = Arc::new(Mutex::new(Verdict::default()));
        let (verdict, wake) = (result.clone(), self.wake.clone());
        let limit = Some(duration(spec.tcp.timeout)).filter(|d| !d.is_zero()).unwrap_or(TIMEOUT_DEFAULT);
        let pause = duration(spec.interval).max(INTERVAL_MIN);
        let (endpoint, threshold) = (spec.tcp.endpoint.clone(), spec.failure_threshold);
        let task = tokio::spawn(async move {
            loop {
                let result = try_once(&endpoint, limit).await;
                let changed = verdict.lock().unwrap_or_else(PoisonError::into_inner).take(result, threshold);
                if let Some(wake) = wake.as_ref().filter(|_| changed) {
                    wake.wake();
                }
                tokio::time::sleep(pause).await;
            }
        });
        let probe = Probe { spec: spec.clone(), result, _task: Running::task(task) };
        self.running.insert(id.to_owned(), probe);
    }
}

impl Controller for ProbeController {
    const NAME: &'static str = "network.ProbeController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<ProbeSpec>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<ProbeStatus>()]
    }

    fn start(&mut self, wake: Wake) {
        self.wake = Some(wake);
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let specs = ctx.list::<ProbeSpec>()?;
        self.running.retain(|id, probe| {
            specs.iter().any(|spec| spec.id() == id.as_str() && *spec.spec() == probe.spec)
        });
        for spec in &specs {
            if !self.running.contains_key(spec.id().as_str()) {
                self.start_probe(spec.id(), spec);
            }
        }
        let statuses = self.running.iter().filter_map(|(id, probe)| {
            let verdict = probe.result.lock().unwrap_or_else(PoisonError::into_inner);
            Some((id.clone(), verdict.status.clone()?))
        });
        ctx.publish(statuses)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ichor_cosi::{State, SystemClock};
    use ichor_resource::network::TCPProbeSpec;

    use super::*;

    #[test]
    fn failures_count_only_in_a_row_and_success_at_once() {
        let bad = || Err("refused".to_owned());
        let mut verdict = Verdict::default();
        assert!(!verdict.take(bad(), 2));
        assert!(verdict.take(Ok(()), 2));
        assert!(!verdict.take(bad(), 2));
        assert!(verdict.take(bad(), 2));
        assert!(!verdict.take(bad(), 2), "nothing new");
        assert!(verdict.take(Ok(()), 2));
    }

    #[tokio::test]
    async fn a_listener_that_goes_away_is_noticed() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let state = State::new(SystemClock);
        let mut controller = ProbeController::default();
        let (ctx, wake) = Context::detached(&state, &controller).unwrap();
        controller.start(wake.clone());
        let spec = ProbeSpec {
            interval: GoDuration::from_nanos(1),
            failure_threshold: 1,
            tcp: TCPProbeSpec { endpoint: endpoint.clone(), timeout: GoDuration::from_nanos(1_000_000_000) },
            ..ProbeSpec::default()
        };
        let id = format!("tcp:{endpoint}");
        state.create("network", &id, spec, "").unwrap();
        let mut until = async |success: bool| {
            for _ in 0..100 {
                controller.reconcile(&ctx).await.unwrap();
                let status = state.get::<ProbeStatus>("network", &id);
                if status.is_ok_and(|status| status.success == success) {
                    return;
                }
                let _ = tokio::time::timeout(Duration::from_millis(200), wake.woken()).await;
            }
            panic!("probe never said {success}");
        };
        until(true).await;
        drop(listener);
        until(false).await;
    }
}
