//! For tests only: a fake clock, single passes of controllers, fake servers, scripted bodies, bounded waits, fuzzing.

mod body;
mod clock;
mod controller;
pub mod kube;
mod loopback;
mod memory;
pub mod s3;
mod spec;
mod trustd;
mod wait;

pub use body::ScriptedBody;
pub use clock::FakeClock;
pub use controller::Harness;
pub use ichor_fuzz as fuzz;
pub use loopback::{listen_again, own_loopback};
pub use memory::anonymous_memory;
pub use spec::{A, B};
pub use trustd::FakeTrustd;
pub use wait::{WAIT_MAX, eventually, wait_for, wait_gone};

use ichor_cosi::State;

/// An empty state on a fake clock, and the clock.
pub fn state() -> (State, FakeClock) {
    let clock = FakeClock::default();
    (State::new(clock.clone()), clock)
}
