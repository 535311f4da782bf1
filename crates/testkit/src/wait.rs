//! Waits that end: each has a bound, and says what did not come.

use std::time::Duration;

use ichor_cosi::{State, StateError, Typed};
use ichor_resource::TypedSpec;

/// No wait in a test is longer.
pub const WAIT_MAX: Duration = Duration::from_secs(10);

/// Waits until the resource is there and satisfies the condition.
///
/// # Panics
///
/// After [`WAIT_MAX`], or when the watch breaks.
#[track_caller]
pub fn wait_for<T: TypedSpec>(
    state: &State,
    namespace: &str,
    id: &str,
    condition: impl FnMut(&Typed<T>) -> bool,
) -> impl Future<Output = Typed<T>> {
    let caller = std::panic::Location::caller();
    let last = state.clone();
    let (state, namespace, id) = (state.clone(), namespace.to_owned(), id.to_owned());
    async move {
        let wait = state.wait_for::<T>(&namespace, &id, condition);
        let type_name = T::definition().type_name;
        match tokio::time::timeout(WAIT_MAX, wait).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => panic!("{caller}: {error}"),
            Err(_) => panic!(
                "{caller}: {type_name}({namespace}/{id}) did not come; it is now {:?}",
                last.find::<T>(&namespace, &id)
            ),
        }
    }
}

/// Waits until the resource is not there.
///
/// # Panics
///
/// After [`WAIT_MAX`], or when the watch breaks.
#[track_caller]
pub fn wait_gone<T: TypedSpec>(state: &State, namespace: &str, id: &str) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    let (kind, id) = (state.kind_of::<T>(namespace), id.to_owned());
    async move {
        let wait = kind.wait_for(&id, |event| event.kind == ichor_cosi::EventKind::Destroyed);
        let outcome: Result<Result<_, StateError>, _> = tokio::time::timeout(WAIT_MAX, wait).await;
        match outcome {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => panic!("{caller}: {error}"),
            Err(_) => panic!("{caller}: {:?} {id} did not go", kind.kind()),
        }
    }
}

/// Waits until the condition holds; for what is not a resource.
///
/// # Panics
///
/// After [`WAIT_MAX`].
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    let what = what.to_owned();
    async move {
        let poll = async {
            while !condition() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(WAIT_MAX, poll).await.is_err() {
            panic!("{caller}: {what} did not come true");
        }
    }
}
