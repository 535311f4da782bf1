//! The machine configuration through the API.

use tonic::{Response, Status};

use ichor_wire::machine;

use super::machine::ApiMode;
use crate::node::Node;

/// Sets the machine configuration.
pub async fn apply_configuration(
    _node: &Node,
    _mode: ApiMode,
    _request: machine::ApplyConfigurationRequest,
) -> Result<Response<machine::ApplyConfigurationResponse>, Status> {
    Err(Status::unimplemented("later"))
}

/// Issues a client certificate.
pub async fn generate_client_configuration(
    _node: &Node,
    _mode: ApiMode,
    _request: machine::GenerateClientConfigurationRequest,
) -> Result<Response<machine::GenerateClientConfigurationResponse>, Status> {
    Err(Status::unimplemented("later"))
}
