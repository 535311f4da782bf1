//! Requests to init without init, for the tests that hand in anything.

use super::client::{Seq, SpawnRequest};
use super::exec::Plan;
use super::wire::Frame;
use crate::fdpass::Fds;

/// The bytes of a spawn request.
pub fn spawn(request: &SpawnRequest) -> Vec<u8> {
    let (frame, tail) = request.encode(Seq(7)).unwrap_or_else(|error| panic!("{error}"));
    [&frame.encode()[..], &tail].concat()
}

/// Whether init would start something for these bytes; nothing is started.
pub fn is_plan(message: &[u8]) -> bool {
    Frame::decode(message)
        .is_some_and(|(frame, tail)| Plan::new(&frame, tail, &Fds::default(), &[]).is_some())
}
