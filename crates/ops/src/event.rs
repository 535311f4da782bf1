//! How an engine reports progress: typed events, handed to whoever renders or records them.

/// Receives the events of an engine. Closures are sinks; so is [`Silent`].
///
/// `emit` is called from within the engine, so it returns quickly and never fails: progress that cannot be shown does
/// not stop an operation half-way.
pub trait Sink<E>: Send + Sync {
    /// Takes one event.
    fn emit(&self, event: E);
}

impl<E, F: Fn(E) + Send + Sync> Sink<E> for F {
    fn emit(&self, event: E) {
        self(event);
    }
}

/// Drops every event.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl<E> Sink<E> for Silent {
    fn emit(&self, _: E) {}
}
