//! Logs of services copied to the console, for those who look at a machine that does not get far enough to be asked.
//!
//! A serial line is slow, and whoever writes to the kernel log waits for it. So lines are written by one helper thread at a
//! time, in small batches, and a log that is faster than the console loses lines there and nowhere else.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::kernel::ConsoleSink;
use crate::manager::LogManager;
use crate::ring::{LogRing, Start};
use crate::ship::Lines;

/// Lines written between two looks at who else has some.
const BATCH: usize = 32;

/// Syslog level of the copies.
const PRIORITY: u8 = 6;

/// Logs that are on the console anyway. The kernel's own must never be copied: it would come back.
const ON_CONSOLE: [&str; 3] = ["kernel", crate::layer::MACHINED, crate::layer::CONTROLLER_RUNTIME];

/// Which logs are copied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// All but `except`.
    pub all: bool,
    /// Left out of `all`.
    pub except: BTreeSet<String>,
    /// Copied whatever `all` says.
    pub always: BTreeSet<String>,
}

impl Selection {
    /// Whether the log of this id is copied.
    pub fn takes(&self, id: &str) -> bool {
        let wanted = self.always.contains(id) || (self.all && !self.except.contains(id));
        wanted && !ON_CONSOLE.contains(&id)
    }
}

/// Says which logs are copied. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ConsoleLogs(Arc<watch::Sender<Selection>>);

impl Default for ConsoleLogs {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Selection::default())))
    }
}

impl ConsoleLogs {
    /// All logs but these, or none but those that are always copied.
    pub fn copy_all(&self, all: bool, except: &[&str]) {
        let except: BTreeSet<String> = except.iter().map(|id| (*id).to_owned()).collect();
        self.0.send_if_modified(|selection| {
            let changed = (selection.all, &selection.except) != (all, &except);
            (selection.all, selection.except) = (all, except);
            changed
        });
    }

    /// Copies one log from now on, whatever else is copied.
    pub fn copy_always(&self, id: &str) {
        self.0.send_if_modified(|selection| selection.always.insert(id.to_owned()));
    }

    /// What is copied now.
    pub fn selection(&self) -> Selection {
        self.0.borrow().clone()
    }

    /// Copies the selected logs, those to come included, for as long as it is polled.
    pub async fn run(&self, logs: LogManager, console: Arc<dyn ConsoleSink>) {
        // One writer at a time: more would only wait for the same line.
        let turn = Arc::new(Semaphore::new(1));
        let mut followers = JoinSet::new();
        let mut known = 0;
        loop {
            let ids = logs.grown(known).await;
            for id in ids.iter().skip(known).filter(|id| !ON_CONSOLE.contains(&id.as_str())) {
                let Ok(ring) = logs.get(id) else { continue };
                let (selected, console, turn) = (self.0.subscribe(), Arc::clone(&console), Arc::clone(&turn));
                followers.spawn(follow(id.clone(), ring, selected, console, turn));
            }
            known = ids.len();
        }
    }
}

async fn follow(
    id: String,
    ring: Arc<LogRing>,
    mut selected: watch::Receiver<Selection>,
    console: Arc<dyn ConsoleSink>,
    turn: Arc<Semaphore>,
) {
    // A log that is selected from its beginning is copied from its beginning.
    let mut start = Start::Oldest;
    loop {
        let taken = selected.borrow_and_update().takes(&id);
        if !taken {
            start = Start::End;
            if selected.changed().await.is_err() {
                return;
            }
            continue;
        }
        let mut lines = Lines::new(ring.follow(start));
        start = Start::End;
        loop {
            let first = tokio::select! {
                line = lines.next() => line,
                changed = selected.changed() => match changed {
                    Ok(()) if selected.borrow_and_update().takes(&id) => continue,
                    Ok(()) => break,
                    Err(_) => return,
                },
            };
            let Some(first) = first else { return };
            let mut batch = vec![shown(&id, &first)];
            while batch.len() < BATCH
                && let Some(Some(line)) = futures_now(lines.next()).await
            {
                batch.push(shown(&id, &line));
            }
            let lost = lines.take_lost();
            if lost > 0 {
                batch.push(format!("{id}: {lost} bytes of its log were too fast for the console"));
            }
            let Ok(_turn) = turn.acquire().await else { return };
            let console = Arc::clone(&console);
            let write = move || batch.iter().for_each(|line| console.write_line(PRIORITY, line));
            if tokio::task::spawn_blocking(write).await.is_err() {
                return;
            }
        }
    }
}

/// What a future gives at once, if anything.
async fn futures_now<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        value = future => Some(value),
        () = std::future::ready(()) => None,
    }
}

fn shown(id: &str, line: &[u8]) -> String {
    format!("{id}: {}", String::from_utf8_lossy(line).trim_end_matches(['\n', '\r']))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;

    #[derive(Default)]
    struct Console(Mutex<Vec<String>>);

    impl ConsoleSink for Console {
        fn write_line(&self, _: u8, line: &str) {
            self.0.lock().unwrap().push(line.to_owned());
        }
    }

    impl Console {
        #[track_caller]
        fn has(&self, line: &str) -> bool {
            self.0.lock().unwrap().iter().any(|shown| shown == line)
        }
    }

    async fn until(done: impl Fn() -> bool) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
        while !done() {
            assert!(tokio::time::Instant::now() < deadline, "not in time");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    #[test]
    fn what_is_on_the_console_already_is_not_copied() {
        let all = Selection { all: true, except: ["kubelet".to_owned()].into(), ..Selection::default() };
        assert!(all.takes("etcd") && !all.takes("kubelet") && !all.takes("kernel") && !all.takes("machined"));
        let one = Selection { always: ["ext-a".to_owned()].into(), ..Selection::default() };
        assert!(one.takes("ext-a") && !one.takes("etcd"));
    }

    #[tokio::test]
    async fn copying_can_be_switched_on_and_off() {
        let (logs, console, switch) =
            (LogManager::new(), Arc::new(Console::default()), ConsoleLogs::default());
        let sink: Arc<dyn ConsoleSink> = console.clone();
        let (running, all) = (switch.clone(), logs.clone());
        let task = tokio::spawn(async move { running.run(all, sink).await });
        logs.ring("etcd").write_line("quiet");
        logs.ring("kernel").write_line("never");
        tokio::time::sleep(Duration::from_millis(50)).await;
        switch.copy_all(true, &["kubelet"]);
        tokio::time::sleep(Duration::from_millis(50)).await;
        logs.ring("etcd").write_line("one");
        logs.ring("late").write_line("from its start");
        logs.ring("kubelet").write_line("left out");
        until(|| console.has("etcd: one") && console.has("late: from its start")).await;
        switch.copy_all(false, &[]);
        switch.copy_always("kubelet");
        tokio::time::sleep(Duration::from_millis(50)).await;
        logs.ring("etcd").write_line("two");
        logs.ring("kubelet").write_line("wanted");
        until(|| console.has("kubelet: wanted")).await;
        assert!(
            !["etcd: quiet", "etcd: two", "kubelet: left out", "kernel: never"]
                .iter()
                .any(|line| console.has(line))
        );
        task.abort();
    }
}
