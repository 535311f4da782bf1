//! Every case of the conformance suite, against the local state and through the wire format.

use ichor_cosi::{AllowAll, RemoteState, State, StateOptions, StateService, SystemClock, conformance};

fn open_state() -> State {
    let options = StateOptions { unregistered_types: true, ..StateOptions::default() };
    State::with_options(SystemClock, options)
}

#[tokio::test]
async fn the_local_state_conforms() {
    let failures = conformance::run(&open_state()).await;
    assert!(failures.is_empty(), "{failures:#?}");
}

#[tokio::test]
async fn the_state_conforms_through_the_service() {
    // The client talks to the service itself: all of the wire format, no socket.
    let remote = RemoteState::new(StateService::new(open_state(), AllowAll));
    let failures = conformance::run(&remote).await;
    assert!(failures.is_empty(), "{failures:#?}");
}
