//! What the daemons tell: handshakes that came to nothing, calls they answered themselves.

use std::time::Duration;

use ichor_wire::ichor::node::audit_service_server::AuditService;
use ichor_wire::ichor::node::{AuditEntry, ReportRequest, ReportResponse};
use tonic::{Code, Request, Response, Status};

use super::Audit;
use super::record::{Event, What};

/// Entries of one report that are read; a daemon of ours sends fewer.
const ENTRIES_MAX: usize = 128;

/// Takes the reports of one daemon, on its own socket.
pub struct Reports(pub Audit);

#[tonic::async_trait]
impl AuditService for Reports {
    async fn report(&self, request: Request<ReportRequest>) -> Result<Response<ReportResponse>, Status> {
        self.take(&request.get_ref().entries);
        Ok(Response::new(ReportResponse {}))
    }
}

impl Reports {
    /// Writes down what a daemon, or a server of this process, has counted.
    pub fn take(&self, entries: &[AuditEntry]) {
        for entry in entries.iter().take(ENTRIES_MAX) {
            self.0.tell(&Event {
                what: if entry.method.is_empty() { What::Handshake } else { What::Call },
                caller: &entry.caller,
                proxy: "",
                roles: "",
                method: &entry.method,
                target: &entry.target,
                code: Code::from_i32(entry.code.cast_signed()),
                reason: &entry.reason,
                took: Duration::ZERO,
                count: entry.count,
            });
        }
    }
}
