//! Repeats each check until it passes or its time is over, and tells what it waits for.

use std::fmt;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep, timeout};

use crate::checks::Verdict;
use crate::cluster::Check;

/// The pause after the first attempt; each further one is half as long again.
const PAUSE_FIRST: Duration = Duration::from_millis(100);

/// How a check stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Which one.
    pub check: Check,
    /// Nothing before the first attempt ended.
    pub verdict: Option<Verdict>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.verdict {
            None => "...",
            Some(Verdict::Pass) => "OK",
            Some(Verdict::Skip) => "SKIP",
            Some(Verdict::Fail(reason)) => reason,
        };
        write!(f, "waiting for {}: {state}", self.check.name())
    }
}

/// A check that did not pass in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unhealthy {
    /// Which one.
    pub check: Check,
    /// Why its last attempt failed.
    pub reason: String,
    /// How long it was tried.
    pub after: Duration,
}

impl fmt::Display for Unhealthy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "waited {}s for {}: {}", self.after.as_secs(), self.check.name(), self.reason)
    }
}

impl std::error::Error for Unhealthy {}

/// Runs the checks one after the other, each no longer than its own limit and all together no longer than `limit`.
/// Every change goes to `report`, which may end it all by answering false.
pub async fn run<'a>(
    checks: &[Check],
    limit: Duration,
    pause_max: Duration,
    attempt: impl Fn(Check) -> BoxFuture<'a, Verdict>,
    report: impl FnMut(&Report) -> bool,
) -> Result<(), Unhealthy> {
    run_within(checks, limit, Check::limit, pause_max, attempt, report).await
}

/// The same for a cluster that comes up: on a slow machine a single check may take all of `limit`.
pub async fn run_to_the_end<'a>(
    checks: &[Check],
    limit: Duration,
    pause_max: Duration,
    attempt: impl Fn(Check) -> BoxFuture<'a, Verdict>,
    report: impl FnMut(&Report) -> bool,
) -> Result<(), Unhealthy> {
    run_within(checks, limit, |_| limit, pause_max, attempt, report).await
}

async fn run_within<'a>(
    checks: &[Check],
    limit: Duration,
    limit_of: impl Fn(Check) -> Duration,
    pause_max: Duration,
    attempt: impl Fn(Check) -> BoxFuture<'a, Verdict>,
    mut report: impl FnMut(&Report) -> bool,
) -> Result<(), Unhealthy> {
    let end = Instant::now() + limit;
    for &check in checks {
        let started = Instant::now();
        let deadline = end.min(started + limit_of(check));
        let mut pause = PAUSE_FIRST;
        let mut last = Report { check, verdict: None };
        if !report(&last) {
            return Ok(());
        }
        loop {
            let verdict = match timeout(check.attempt(), attempt(check)).await {
                Ok(verdict) => verdict,
                Err(_) => Verdict::Fail(format!("no answer within {}s", check.attempt().as_secs())),
            };
            let done = !matches!(verdict, Verdict::Fail(_));
            let next = Report { check, verdict: Some(verdict) };
            if next != last && !report(&next) {
                return Ok(());
            }
            last = next;
            if done {
                break;
            }
            if Instant::now() + pause > deadline {
                let reason = match last.verdict {
                    Some(Verdict::Fail(reason)) => reason,
                    _ => String::new(),
                };
                return Err(Unhealthy { check, reason, after: started.elapsed() });
            }
            sleep(pause).await;
            pause = (pause * 3 / 2).min(pause_max);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn fail(text: &str) -> Verdict {
        Verdict::Fail(text.to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn every_change_is_told_once_and_in_order() {
        let count = AtomicUsize::new(0);
        let attempt = |check: Check| -> BoxFuture<'_, Verdict> {
            let count = count.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move {
                match (check, count) {
                    (Check::EtcdHealthy, 0..=2) => fail("10.5.0.2: starts"),
                    (Check::KubeProxy, _) => Verdict::Skip,
                    _ => Verdict::Pass,
                }
            })
        };
        let mut lines = Vec::new();
        let checks = [Check::EtcdHealthy, Check::KubeProxy];
        let second = Duration::from_secs(1);
        run(&checks, Duration::from_secs(60), second, attempt, |report| {
            lines.push(report.to_string());
            true
        })
        .await
        .unwrap();
        assert_eq!(
            lines,
            [
                "waiting for etcd to be healthy: ...",
                "waiting for etcd to be healthy: 10.5.0.2: starts",
                "waiting for etcd to be healthy: OK",
                "waiting for kube-proxy to report ready: ...",
                "waiting for kube-proxy to report ready: SKIP",
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_failure_is_in_the_error_and_the_limit_of_the_check_counts() {
        let attempt =
            |_: Check| -> BoxFuture<'_, Verdict> { Box::pin(async { fail("10.5.0.3: CPU too hot") }) };
        let day = Duration::from_secs(86_400);
        let result = run(&[Check::NoDiagnostics], day, Duration::from_secs(5), attempt, |_| true).await;
        let error = result.unwrap_err();
        assert_eq!(error.reason, "10.5.0.3: CPU too hot");
        assert!(error.after <= Duration::from_secs(60), "{:?}", error.after);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_that_comes_up_has_all_the_time_it_was_given() {
        let attempt = |_: Check| -> BoxFuture<'_, Verdict> { Box::pin(async { fail("10.5.0.3: starts") }) };
        let limit = Duration::from_secs(1200);
        let second = Duration::from_secs(1);
        let result = run_to_the_end(&[Check::NodesReport], limit, second, attempt, |_| true).await;
        let after = result.unwrap_err().after;
        assert!(after > limit - second * 2 && after <= limit, "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_hangs_is_cut() {
        let attempt = |_: Check| -> BoxFuture<'_, Verdict> { Box::pin(std::future::pending::<Verdict>()) };
        let limit = Duration::from_secs(12);
        let error = run(&[Check::ApidReady], limit, limit, attempt, |_| true).await.unwrap_err();
        assert_eq!(error.reason, "no answer within 5s");
    }
}
