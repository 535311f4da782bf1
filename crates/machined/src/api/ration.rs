//! Costly work for callers who need not be anybody: one at a time, and not too often.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tonic::Status;

/// So many may follow each other at once.
const BURST: u32 = 3;
/// One more is granted after this long.
const INTERVAL: Duration = Duration::from_secs(10);

/// Grants the right to begin. Clones are one.
#[derive(Debug, Clone)]
pub struct Ration {
    what: &'static str,
    book: Arc<Mutex<Book>>,
}

#[derive(Debug, Default)]
struct Book {
    running: bool,
    /// When all of [`BURST`] are there again.
    full: Option<Instant>,
}

/// The right to do the work; given back when it is dropped.
#[derive(Debug)]
pub struct Granted(Ration);

impl Ration {
    /// For work that is called `what` in answers.
    pub fn new(what: &'static str) -> Self {
        Self { what, book: Arc::default() }
    }

    /// Takes the right to begin now.
    ///
    /// # Errors
    /// `ResourceExhausted` while it is being done, or when it was done too often.
    pub fn take(&self, now: Instant) -> Result<Granted, Status> {
        let mut book = self.book();
        if book.running {
            return Err(Status::resource_exhausted(format!(
                "{} is under way for another caller; try again in a few seconds",
                self.what
            )));
        }
        let full = book.full.map_or(now, |full| full.max(now)) + INTERVAL;
        if let Some(wait) = (full - now).checked_sub(INTERVAL * BURST).filter(|wait| !wait.is_zero()) {
            return Err(Status::resource_exhausted(format!(
                "{} was asked for too often; try again in {} s",
                self.what,
                wait.as_secs() + 1
            )));
        }
        (book.running, book.full) = (true, Some(full));
        drop(book);
        Ok(Granted(self.clone()))
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        self.0.book().running = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_not_too_often() {
        let (ration, now) = (Ration::new("making keys"), Instant::now());
        let text =
            |result: Result<Granted, Status>| result.map(drop).map_err(|status| status.message().to_owned());
        let granted = ration.take(now).unwrap();
        assert_eq!(
            text(ration.take(now)),
            Err("making keys is under way for another caller; try again in a few seconds".to_owned())
        );
        drop(granted);
        for _ in 1..BURST {
            ration.take(now).unwrap();
        }
        assert_eq!(
            text(ration.take(now)),
            Err("making keys was asked for too often; try again in 11 s".to_owned())
        );
        assert!(ration.take(now + INTERVAL - Duration::from_secs(1)).is_err());
        ration.take(now + INTERVAL).unwrap();
        assert!(ration.take(now + INTERVAL).is_err());
    }
}
