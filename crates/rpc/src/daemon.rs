//! What the node's small daemons share: one thread, a log on standard error, a signal that ends them.

use std::future::Future;
use std::io;
use std::process::ExitCode;

use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{Level, error, warn};

/// Runs `work` on a single thread until it ends; SIGTERM and SIGINT cancel the token it is given.
pub fn run<W, F, E>(work: W) -> ExitCode
where
    W: FnOnce(CancellationToken) -> F,
    F: Future<Output = Result<(), E>>,
    E: std::error::Error + 'static,
{
    log_to_stderr();
    raise_descriptor_limit();
    ichor_pki::install_provider();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            error!(%error, "no runtime");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(async {
        let stop = CancellationToken::new();
        if let Err(error) = stop_on_signals(stop.clone()) {
            error!(%error, "signals are not handled");
        }
        work(stop).await
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!(error = %crate::status::chain(&error), "giving up");
            ExitCode::FAILURE
        }
    }
}

/// Two descriptors for every client: the usual limit of 1024 would be met before our own bounds are.
fn raise_descriptor_limit() {
    const WANTED: u64 = 65_536;
    let limit = getrlimit(Resource::Nofile);
    let allowed = limit.maximum.map_or(WANTED, |maximum| maximum.min(WANTED));
    if limit.current.is_some_and(|current| current < allowed) {
        let raised = Rlimit { current: Some(allowed), maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            warn!(%error, "limit on open files not raised");
        }
    }
}

fn stop_on_signals(stop: CancellationToken) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
    });
    Ok(())
}

fn log_to_stderr() {
    // The reader of the log may be gone for a while; a full pipe must lose lines, not stop the daemon.
    let stderr = io::stderr();
    let is_pipe = fstat(&stderr).is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Fifo);
    if is_pipe && let Ok(flags) = fcntl_getfl(&stderr) {
        let _ = fcntl_setfl(&stderr, flags | OFlags::NONBLOCK);
    }
    // Fails when a test has set a subscriber before.
    let _ = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(false)
        .with_target(false)
        .with_max_level(Level::INFO)
        .try_init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_tells_how_the_work_ended() {
        let show = |code: ExitCode| format!("{code:?}");
        let well = run(|stop| async move {
            assert!(!stop.is_cancelled());
            assert!(getrlimit(Resource::Nofile).current.is_none_or(|current| current >= 1024));
            Ok::<(), io::Error>(())
        });
        assert_eq!(show(well), show(ExitCode::SUCCESS));
        let badly = run(|_| async { Err(io::Error::other("no")) });
        assert_eq!(show(badly), show(ExitCode::FAILURE));
    }
}
