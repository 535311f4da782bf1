//! What a service waits for before it starts.

use std::sync::Arc;

use super::BoxFuture;

/// Something that has to be true first.
pub trait Condition: Send + Sync {
    /// What it is, for "Waiting for …".
    fn describe(&self) -> String;

    /// Ends once it is true.
    fn wait(&self) -> BoxFuture<'static, ()>;
}

/// A condition made of a name and a function.
pub fn condition<F>(name: &str, wait: F) -> Arc<dyn Condition>
where
    F: Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static,
{
    Arc::new(FnCondition { name: name.to_owned(), wait })
}

struct FnCondition<F> {
    name: String,
    wait: F,
}

impl<F> Condition for FnCondition<F>
where
    F: Fn() -> BoxFuture<'static, ()> + Send + Sync,
{
    fn describe(&self) -> String {
        self.name.clone()
    }

    fn wait(&self) -> BoxFuture<'static, ()> {
        (self.wait)()
    }
}
