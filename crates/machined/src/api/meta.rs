//! Writes and deletions of META values.

use tonic::{Response, Status};

use ichor_ctl_runtime::{Meta, MetaError};
use ichor_wire::machine;

use crate::node::Power;

/// Keys are bytes.
fn key(asked: u32) -> Result<u8, Status> {
    u8::try_from(asked).map_err(|_| Status::invalid_argument("key must be a uint8"))
}

fn status(error: MetaError) -> Status {
    match error {
        MetaError::NotFound { .. } => Status::not_found("meta key not found"),
        MetaError::NoSpace => Status::resource_exhausted("meta write failed"),
        MetaError::BadKey { .. } => Status::invalid_argument(error.to_string()),
        MetaError::Damaged { .. } => Status::failed_precondition(error.to_string()),
        error => Status::unknown(error.to_string()),
    }
}

fn require_owned(power: &Power) -> Result<(), Status> {
    match power.is_owned {
        true => Ok(()),
        false => Err(Status::failed_precondition("method is not supported in container mode")),
    }
}

/// Sets a value.
pub async fn write(
    power: &Power,
    meta: &Meta,
    request: machine::MetaWriteRequest,
) -> Result<Response<machine::MetaWriteResponse>, Status> {
    require_owned(power)?;
    meta.set(key(request.key)?, request.value).await.map_err(status)?;
    Ok(Response::new(machine::MetaWriteResponse { messages: vec![machine::MetaWrite { metadata: None }] }))
}

/// Takes a value away.
pub async fn delete(
    power: &Power,
    meta: &Meta,
    request: machine::MetaDeleteRequest,
) -> Result<Response<machine::MetaDeleteResponse>, Status> {
    require_owned(power)?;
    meta.delete(key(request.key)?).await.map_err(status)?;
    Ok(Response::new(machine::MetaDeleteResponse { messages: vec![machine::MetaDelete { metadata: None }] }))
}
