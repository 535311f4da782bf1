//! Whether containerd serves.

use tonic::Status;

use crate::Client;

/// `grpc.health.v1.HealthCheckRequest`, about the whole server.
#[derive(Clone, PartialEq, prost::Message)]
struct HealthRequest {}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, PartialEq, prost::Message)]
struct HealthResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// The one good status.
const SERVING: i32 = 1;

impl Client {
    /// Asks containerd whether it serves.
    ///
    /// # Errors
    /// `Unavailable` when it does not.
    pub async fn serving(&self) -> Result<(), Status> {
        let answer: HealthResponse = self.call("/grpc.health.v1.Health/Check", "", &HealthRequest {}).await?;
        match answer.status {
            SERVING => Ok(()),
            other => Err(Status::unavailable(format!("unexpected serving status: {other}"))),
        }
    }
}
