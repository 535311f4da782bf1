//! Health checks: what is asked, how often.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};

use super::BoxFuture;

/// A check that can be run again and again.
pub type HealthCheck = Arc<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// A check and its timing.
#[derive(Clone)]
pub struct Health {
    /// Asks the service.
    pub check: HealthCheck,
    /// A service that is coming up may fail this long before it is news; until then it is asked often.
    pub initial: Duration,
    /// Before the second check; then twice as long each time while it comes up.
    pub eager: Duration,
    /// Between checks.
    pub period: Duration,
    /// Limit of one check.
    pub timeout: Duration,
}

impl Health {
    /// The usual timing.
    pub fn new(check: HealthCheck) -> Self {
        Self {
            check,
            initial: Duration::from_secs(1),
            eager: Duration::from_millis(2),
            period: Duration::from_secs(5),
            timeout: Duration::from_millis(500),
        }
    }

    /// Healthy when a local TCP port accepts.
    pub fn tcp(port: u16) -> Self {
        Self::new(Arc::new(move || {
            Box::pin(async move {
                match TcpStream::connect(("127.0.0.1", port)).await {
                    Ok(_) => Ok(()),
                    Err(error) => Err(format!("connect to 127.0.0.1:{port}: {error}")),
                }
            })
        }))
    }

    /// Healthy when a Unix socket accepts.
    pub fn unix(path: PathBuf) -> Self {
        Self::new(Arc::new(move || {
            let path = path.clone();
            Box::pin(async move {
                match UnixStream::connect(&path).await {
                    Ok(_) => Ok(()),
                    Err(error) => Err(format!("connect to {}: {error}", path.display())),
                }
            })
        }))
    }
}
