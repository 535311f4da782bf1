//! The service `registryd`: the images of the node's cache, served to containerd as a mirror of everything.

use std::path::Path;
use std::sync::Arc;

use ichor_ctl_runtime::cri::Registryd;
use ichor_registry::{Layout, small};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::services::{Health, Run, ServiceManager, ServiceSpec};

/// Its name.
const REGISTRYD: &str = "registryd";

/// Where it listens, for this machine alone.
const PORT: u16 = 3172;

/// Connections at the same time: containerd pulls a few layers at once.
const CONNECTIONS_MAX: usize = 16;

/// Starts the service for the controller of the cache.
pub fn port(services: ServiceManager) -> Registryd {
    Arc::new(move |roots| {
        let roots = roots.to_vec();
        let run = move |stop| {
            let roots = roots.clone();
            Box::pin(serve(roots, stop)) as crate::services::BoxFuture<'static, _>
        };
        let spec = ServiceSpec {
            health: Some(Health::tcp(PORT)),
            ..ServiceSpec::new(REGISTRYD, Run::Task(Arc::new(run)))
        };
        services.load(spec);
        services.start(REGISTRYD).map_err(|error| error.to_string())
    })
}

async fn serve(roots: Vec<String>, stop: CancellationToken) -> Result<(), String> {
    let read = tokio::task::spawn_blocking(move || {
        // A root that cannot be read is no reason to withhold the other, nor to stop the machine.
        let open = |root: &String| match Layout::open_flat(Path::new(root)) {
            Ok(layout) => Some(layout),
            Err(error) => {
                warn!(root, %error, "image cache not readable");
                None
            }
        };
        roots.iter().filter_map(open).collect::<Vec<Layout>>()
    });
    let layouts = Arc::new(read.await.map_err(|error| error.to_string())?);
    let images: usize = layouts.iter().map(|layout| layout.images().count()).sum();
    let listener = TcpListener::bind(("127.0.0.1", PORT)).await.map_err(|error| error.to_string())?;
    info!(images, "serving the image cache");
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accepted = async {
            let place = places.clone().acquire_owned().await;
            listener.accept().await.map(|(stream, _)| (stream, place))
        };
        let (stream, place) = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            accepted = accepted => accepted.map_err(|error| error.to_string())?,
        };
        let layouts = layouts.clone();
        let Ok(stream) = stream.into_std() else { continue };
        tokio::task::spawn_blocking(move || {
            // Who goes away in the middle comes back with what is missing.
            let _ = stream.set_nonblocking(false).and_then(|()| small::connection(&stream, &layouts));
            drop(place);
        });
    }
}
