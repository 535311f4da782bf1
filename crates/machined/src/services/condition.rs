//! What a service waits for before it starts.

use std::sync::Arc;

use super::BoxFuture;

/// Something that has to be true first.
pub trait Condition: Send + Sync {
    /// What it is, for "Waiting for …".
    fn describe(&self) -> String;

    /// Ends once it is true.
    fn wait(&self) -> BoxFuture<'static, ()>;

    /// The resource it is about, where it is about one.
    fn about(&self) -> Option<About> {
        None
    }
}

/// Namespace, type and id of a resource.
pub type About = (&'static str, &'static str, &'static str);

/// A condition made of a name and a function.
pub fn condition<F>(name: &str, wait: F) -> Arc<dyn Condition>
where
    F: Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static,
{
    Arc::new(FnCondition { name: name.to_owned(), about: None, wait })
}

/// A condition about one resource.
pub fn condition_about<F>(name: &str, about: About, wait: F) -> Arc<dyn Condition>
where
    F: Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static,
{
    Arc::new(FnCondition { name: name.to_owned(), about: Some(about), wait })
}

struct FnCondition<F> {
    name: String,
    about: Option<About>,
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

    fn about(&self) -> Option<About> {
        self.about
    }
}
