//! The service `registryd`: the images of the node's cache, served to containerd as a mirror of everything.
//!
//! Every process of the machine can connect to it, those of pods on the host's network included. It has a thread and a
//! runtime of its own, so that nothing its callers do takes a thread from the node.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ichor_ctl_runtime::cri::Registryd;
use ichor_registry::{Layout, Limits, serve_all};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::services::{Health, Run, ServiceManager, ServiceSpec};

/// Its name.
const REGISTRYD: &str = "registryd";

/// Where it listens, for this machine alone.
const PORT: u16 = 3172;

/// Connections at the same time: containerd pulls a few layers at once. Each holds a piece of a file or two.
const LIMITS: Limits =
    Limits { connections: 64, request: Duration::from_secs(60), piece: Duration::from_secs(60) };

/// Threads that read files.
const READERS_MAX: usize = 4;

/// Starts the service for the controller of the cache.
pub fn port(services: ServiceManager) -> Registryd {
    Arc::new(move |roots| {
        let roots = roots.to_vec();
        let run = move |stop| {
            let roots = roots.clone();
            Box::pin(serve(roots, PORT, stop)) as crate::services::BoxFuture<'static, _>
        };
        let spec = ServiceSpec {
            health: Some(Health::tcp(PORT)),
            ..ServiceSpec::new(REGISTRYD, Run::Task(Arc::new(run)))
        };
        services.load(spec);
        services.start(REGISTRYD).map_err(|error| error.to_string())
    })
}

/// Serves the caches at `roots` on a port of loopback until `stop`.
///
/// # Errors
/// When there is no thread, or the port is taken.
pub async fn serve(roots: Vec<String>, port: u16, stop: CancellationToken) -> Result<(), String> {
    let (done, ended) = oneshot::channel();
    let work = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(READERS_MAX)
            .thread_keep_alive(Duration::from_secs(1))
            .build();
        let served = match runtime {
            Ok(runtime) => runtime.block_on(listen(&roots, port, stop)),
            Err(error) => Err(error.to_string()),
        };
        // Who waited is gone when the node is.
        let _ = done.send(served);
    };
    let thread = std::thread::Builder::new().name(REGISTRYD.to_owned());
    thread.spawn(work).map_err(|error| format!("start a thread: {error}"))?;
    ended.await.unwrap_or_else(|_| Err("the thread of the server panicked".to_owned()))
}

/// On the server's own thread, where reading the index may block.
async fn listen(roots: &[String], port: u16, stop: CancellationToken) -> Result<(), String> {
    // A root that cannot be read is no reason to withhold the other, nor to stop the machine.
    let open = |root: &String| match Layout::open_flat(Path::new(root)) {
        Ok(layout) => Some(Arc::new(layout)),
        Err(error) => {
            warn!(root, %error, "image cache not readable");
            None
        }
    };
    let layouts: Vec<Arc<Layout>> = roots.iter().filter_map(open).collect();
    let images: usize = layouts.iter().map(|layout| layout.images().count()).sum();
    let listener = TcpListener::bind(("127.0.0.1", port)).await.map_err(|error| error.to_string())?;
    info!(images, "serving the image cache");
    serve_all(listener, layouts, LIMITS, stop.cancelled()).await;
    Ok(())
}
