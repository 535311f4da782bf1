//! The services `auditd` and `syslogd`: what the kernel audits and what programs say with `syslog(3)`, as logs of the node.
//! Both are tasks of this process, for machines with a kernel of their own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::net::UnixDatagram;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use ichor_observe::{LogManager, LogRing, syslog};
use ichor_sys::audit::Audit;
use ichor_types::Cmdline;

use crate::reactor;
use crate::services::{BoxFuture, Health, RestartPolicy, Run, ServiceSpec};

/// The service of the kernel's audit records.
pub const AUDITD: &str = "auditd";

/// The service of the messages of programs.
pub const SYSLOGD: &str = "syslogd";

/// Where programs write to.
pub const LOG_SOCKET: &str = "/dev/log";

/// Records taken at once before other tasks get their turn.
const AUDIT_BATCH: usize = 64;

/// Attempts to take over from an earlier machined, and the pause between them.
const CLAIMS_MAX: u32 = 50;
const CLAIM_PAUSE: Duration = Duration::from_millis(100);

/// `ENOBUFS` of Linux.
const ENOBUFS: i32 = 105;

/// Whether this machine collects audit records: unless it was told not to, or its kernel has none.
pub fn is_audited(cmdline: &Cmdline) -> bool {
    if cmdline.flag("talos.auditd.disabled") {
        return false;
    }
    match Audit::probe() {
        Ok(()) => true,
        Err(error) => {
            warn!(%error, "the kernel gives no audit records; auditd does not run");
            false
        }
    }
}

/// The service `auditd`.
pub fn auditd(logs: &LogManager) -> ServiceSpec {
    let log = logs.ring(AUDITD);
    service(AUDITD, move |stop| Box::pin(follow_audit(Arc::clone(&log), stop)))
}

/// The service `syslogd`, listening at `socket`.
pub fn syslogd(logs: &LogManager, socket: impl Into<PathBuf>) -> ServiceSpec {
    let (log, socket) = (logs.ring(SYSLOGD), socket.into());
    let run = move |stop| -> BoxFuture<'static, _> {
        let (log, socket) = (Arc::clone(&log), socket.clone());
        Box::pin(async move { follow_programs(&socket, &log, stop).await })
    };
    ServiceSpec { depends: vec!["machined".to_owned()], ..service(SYSLOGD, run) }
}

fn service<F>(id: &str, run: F) -> ServiceSpec
where
    F: Fn(CancellationToken) -> BoxFuture<'static, Result<(), String>> + Send + Sync + 'static,
{
    ServiceSpec {
        // It runs, or it has ended.
        health: Some(Health::new(Arc::new(|| Box::pin(std::future::ready(Ok(())))))),
        restart: RestartPolicy::Once,
        ..ServiceSpec::new(id, Run::Task(Arc::new(run)))
    }
}

async fn follow_audit(log: Arc<LogRing>, stop: CancellationToken) -> Result<(), String> {
    let text = |error: std::io::Error| format!("read the kernel's audit records: {error}");
    let mut audit = claim(&stop).await.map_err(text)?;
    let ready = reactor::readable(&audit).map_err(text)?;
    let mut told_lost = false;
    loop {
        let mut guard = tokio::select! {
            ready = ready.readable() => ready.map_err(text)?,
            () = stop.cancelled() => break,
        };
        for _ in 0..AUDIT_BATCH {
            match audit.try_next() {
                Ok(Some(record)) => log.write_line(&record.line()),
                Ok(None) => {
                    guard.clear_ready();
                    break;
                }
                // The kernel's queue was full for a moment.
                Err(error) if error.raw_os_error() == Some(ENOBUFS) => {
                    if !told_lost {
                        warn!("audit records were lost: they come faster than they are read");
                        told_lost = true;
                    }
                }
                Err(error) => return Err(text(error)),
            }
        }
        tokio::task::yield_now().await;
    }
    audit.close().map_err(text)
}

/// Becomes the reader of the records. The kernel notices that an earlier machined is gone with the next record, which the
/// attempt itself causes.
async fn claim(stop: &CancellationToken) -> std::io::Result<Audit> {
    let mut left = CLAIMS_MAX;
    loop {
        match Audit::open() {
            Err(error)
                if error.kind() == std::io::ErrorKind::AlreadyExists && left > 0 && !stop.is_cancelled() =>
            {
                left -= 1;
                tokio::time::sleep(CLAIM_PAUSE).await;
            }
            claimed => return claimed,
        }
    }
}

async fn follow_programs(path: &Path, log: &LogRing, stop: CancellationToken) -> Result<(), String> {
    let text = |error: std::io::Error| format!("listen at {}: {error}", path.display());
    let socket = ichor_sys::log_socket::bind(path).and_then(UnixDatagram::from_std).map_err(text)?;
    let mut buffer = [0; syslog::MESSAGE_MAX];
    loop {
        let received = tokio::select! {
            received = socket.recv(&mut buffer) => received,
            () = stop.cancelled() => break,
        };
        match received {
            Ok(len) => {
                if let Some(line) = syslog::parse(&buffer[..len], Timestamp::now()) {
                    log.write_line(&line);
                }
            }
            Err(error) => return Err(text(error)),
        }
    }
    // Who writes after this has nobody to write to.
    let _ = std::fs::remove_file(path);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram as StdDatagram;

    use ichor_observe::Start;

    use super::*;

    #[tokio::test]
    async fn what_programs_say_is_in_the_log_until_the_service_stops() {
        let dir = tempfile::tempdir().unwrap();
        let (logs, path) = (LogManager::new(), dir.path().join("log"));
        let spec = syslogd(&logs, &path);
        let Run::Task(run) = &spec.run else { panic!("a task") };
        let stop = CancellationToken::new();
        let running = tokio::spawn(run(stop.clone()));
        let sender = StdDatagram::unbound().unwrap();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
        while sender.send_to(b"<30>Mar  3 12:55:18 runner[7]: Hello", &path).is_err() {
            assert!(tokio::time::Instant::now() < deadline, "nobody listens");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        sender.send_to(b"no syslog message", &path).unwrap();
        let mut reader = logs.ring(SYSLOGD).follow(Start::Oldest);
        let line = tokio::time::timeout(Duration::from_secs(10), reader.next(4096)).await.unwrap().unwrap();
        let line: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!((line["tag"].as_str(), line["content"].as_str()), (Some("runner"), Some("Hello")));
        stop.cancel();
        tokio::time::timeout(Duration::from_secs(10), running).await.unwrap().unwrap().unwrap();
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_socket_that_cannot_be_made_is_told_with_its_place() {
        let logs = LogManager::new();
        let Run::Task(run) = syslogd(&logs, "/no-such-directory/log").run else { panic!("a task") };
        let error = run(CancellationToken::new()).await.unwrap_err();
        assert!(error.starts_with("listen at /no-such-directory/log: "), "{error}");
    }

    #[test]
    fn auditing_can_be_switched_off() {
        assert!(!is_audited(&Cmdline::parse("talos.auditd.disabled=1")));
    }
}
