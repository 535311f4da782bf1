//! The socket of the local balancer in front of the Kubernetes API, kept by init over the death of machined: clients
//! that come meanwhile wait in its queue instead of being refused.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use ichor_ctl_k8s::prism::Listen;
use tracing::warn;

use crate::supervisor::Supervisor;

/// What init calls it.
pub const KEPT: &str = "kubeprism";

/// The socket, in use or found from before.
pub struct KeptListener {
    supervisor: Supervisor,
    socket: Mutex<Option<TcpListener>>,
}

impl KeptListener {
    /// With what init kept, if anything.
    pub fn new(supervisor: Supervisor, kept: Option<OwnedFd>) -> Self {
        Self { supervisor, socket: Mutex::new(kept.map(TcpListener::from)) }
    }
}

impl Listen for KeptListener {
    fn bind(&self, address: SocketAddr) -> io::Result<TcpListener> {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = socket.as_ref()
            && kept.local_addr().is_ok_and(|at| at == address)
        {
            return kept.try_clone();
        }
        *socket = None;
        let fresh = TcpListener::bind(address)?;
        if let Err(error) = self.supervisor.keep(KEPT, fresh.as_fd()) {
            warn!(%error, "init does not keep the socket of the balancer");
        }
        socket.insert(fresh).try_clone()
    }

    fn release(&self) {
        *self.socket.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.supervisor.drop_kept(KEPT);
    }
}
