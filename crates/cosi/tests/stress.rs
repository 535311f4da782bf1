//! The invariants of the store under load: several writers, many watches, for a bounded time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ichor_cosi::{
    Event, EventKind, History, KindHandle, State, StateOptions, SystemClock, Watch, WatchIdOptions,
    WatchOptions,
};
use ichor_resource::{Resource, Version};
use ichor_testkit::A;

const WRITERS: u64 = 4;
const IDS: u64 = 64;
const TIME: Duration = Duration::from_millis(1500);

#[derive(Default)]
struct Counts {
    writes: AtomicU64,
    stale_refused: AtomicU64,
    foreign_refused: AtomicU64,
    deliveries: AtomicU64,
    overruns: AtomicU64,
    resumed: AtomicU64,
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// xorshift64; prints as its seed when a test fails.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn id(number: u64) -> String {
    format!("id-{number:03}")
}

/// Writes at random; each call that succeeds must have had the right to.
fn write(kind: &KindHandle, seed: u64, stop: &AtomicBool, counts: &Counts) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    while !stop.load(Ordering::Relaxed) {
        let id = id(random.below(IDS));
        let Some(current) = kind.find(&id) else {
            let _ = kind.create(kind.draft(&id, Arc::new(A::new(0))), "owner");
            continue;
        };
        let version = current.meta().version();
        match random.below(20) {
            0 => {
                let _ = kind.destroy(&id, "owner");
            }
            1 => {
                assert!(kind.destroy(&id, "other").is_err(), "another owner destroyed");
                add(&counts.foreign_refused);
            }
            2 if version > Version::FIRST => {
                let mut draft = Resource::clone(&current);
                draft.meta_mut().set_version(Version::new(version.number() - 1));
                // A new life may have reached exactly this version: only then may it succeed.
                if let Ok(stored) = kind.update(draft, "owner", None) {
                    assert_ne!(stored.meta().created(), current.meta().created());
                }
                add(&counts.stale_refused);
            }
            _ => {
                let mut draft = Resource::clone(&current);
                draft.set_spec(Arc::new(A::new(random.below(1000) as i64)));
                if let Ok(stored) = kind.update(draft, "owner", None) {
                    assert_eq!(stored.meta().version(), version.next());
                }
            }
        }
        add(&counts.writes);
    }
}

/// What a watch knows from the events alone, and checks each new one against.
#[derive(Default)]
struct Replica {
    held: HashMap<String, Arc<Resource>>,
    next: Option<i64>,
}

impl Replica {
    fn apply(&mut self, event: &Event, kind_watch: bool) {
        let id = event.resource.id().to_string();
        let meta = event.resource.meta();
        if let Some(bookmark) = event.bookmark {
            let position = position(bookmark.to_bytes());
            if let Some(next) = self.next
                && kind_watch
            {
                assert_eq!(position, next, "an event was skipped");
            }
            self.next = Some(position + 1);
        }
        match event.kind {
            EventKind::Created => {
                // Bootstrap shows any version; a creation in the history is the first.
                assert!(event.bookmark.is_none() || meta.version() == Version::FIRST);
                let before = self.held.insert(id, event.resource.clone());
                assert!(before.is_none(), "created twice");
            }
            EventKind::Updated => {
                let old = event.old.as_ref().expect("an update has an old resource");
                assert_eq!(meta.version(), old.meta().version().next());
                assert_eq!(meta.created(), old.meta().created());
                let before = self.held.insert(id, event.resource.clone());
                let before = before.expect("updated before it was created");
                assert!(Arc::ptr_eq(&before, old), "not the resource of the last event");
            }
            EventKind::Destroyed => {
                let before = self.held.remove(&id);
                // The first event of an id watch may say that there is nothing.
                if meta.version() != Version::UNDEFINED {
                    let before = before.expect("destroyed before it was created");
                    assert!(Arc::ptr_eq(&before, &event.resource));
                }
            }
            EventKind::Bootstrapped | EventKind::Errored | EventKind::Noop => {}
        }
    }

    fn check(&self, kind: &KindHandle, only: Option<&str>) {
        let mut list = kind.list();
        list.retain(|resource| only.is_none_or(|id| *resource.id() == *id));
        let expected: BTreeMap<_, _> = self.held.iter().collect();
        assert_eq!(list.len(), expected.len());
        for (resource, (id, held)) in list.iter().zip(expected) {
            assert_eq!(resource.id(), id.as_str());
            assert!(Arc::ptr_eq(resource, held));
        }
    }
}

fn position(bookmark: [u8; 16]) -> i64 {
    let (_, position) = bookmark.split_at(8);
    i64::from_be_bytes(position.try_into().expect("eight bytes"))
}

fn with_contents(kind: &KindHandle) -> Watch {
    kind.watch(WatchOptions::with_contents()).expect("a watch")
}

/// How a watch of the kind goes about it.
#[derive(Clone, Copy)]
enum Style {
    Single,
    Batched,
    /// Drops the watch now and then and resumes from the last bookmark.
    Resuming,
    /// Sleeps now and then, so that it is overrun.
    Slow,
}

async fn watch_kind(kind: KindHandle, style: Style, done: Arc<AtomicBool>, counts: Arc<Counts>) {
    let mut watch = with_contents(&kind);
    let mut replica = Replica::default();
    let mut seen = 0_u64;
    while !done.load(Ordering::Relaxed) {
        let waited = tokio::time::timeout(Duration::from_millis(50), async {
            match style {
                Style::Batched => watch.next_batch().await,
                Style::Single | Style::Resuming | Style::Slow => watch.next().await.map(|event| vec![event]),
            }
        });
        let Ok(batch) = waited.await else { continue };
        let batch = batch.expect("a watch ends only after an error");
        counts.deliveries.fetch_add(batch.len() as u64, Ordering::Relaxed);
        seen += batch.len() as u64;
        let mut broken = false;
        for event in &batch {
            broken |= event.kind == EventKind::Errored;
            replica.apply(event, true);
        }
        if broken {
            assert!(watch.next().await.is_none(), "an error comes last");
            add(&counts.overruns);
            (watch, replica) = (with_contents(&kind), Replica::default());
        }
        match style {
            Style::Slow if seen % 5000 < batch.len() as u64 => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Style::Resuming if seen.is_multiple_of(100) => {
                let bookmark = batch.last().and_then(|event| event.bookmark);
                let options = WatchOptions { bookmark, ..WatchOptions::new() };
                if let (Some(_), Ok(resumed)) = (bookmark, kind.watch(options)) {
                    watch = resumed;
                    add(&counts.resumed);
                }
            }
            Style::Single | Style::Batched | Style::Resuming | Style::Slow => {}
        }
    }
    // The writers are gone: what is left must lead to the list.
    while let Some(event) = watch.try_next() {
        if event.kind == EventKind::Errored {
            (watch, replica) = (with_contents(&kind), Replica::default());
            continue;
        }
        replica.apply(&event, true);
    }
    replica.check(&kind, None);
}

async fn watch_id(kind: KindHandle, id: String, done: Arc<AtomicBool>, counts: Arc<Counts>) {
    let open = || kind.watch_id(&id, &WatchIdOptions::default()).expect("a watch");
    let (mut watch, mut replica) = (open(), Replica::default());
    let mut last = false;
    loop {
        let event = match tokio::time::timeout(Duration::from_millis(50), watch.next()).await {
            Ok(event) => event.expect("a watch ends only after an error"),
            Err(_) if last => break,
            Err(_) => {
                last = done.load(Ordering::Relaxed);
                continue;
            }
        };
        add(&counts.deliveries);
        assert!(event.kind == EventKind::Errored || event.resource.id() == id.as_str());
        if event.kind == EventKind::Errored {
            add(&counts.overruns);
            (watch, replica) = (open(), Replica::default());
            continue;
        }
        replica.apply(&event, false);
    }
    replica.check(&kind, Some(&id));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invariants_hold_under_load() {
    let state = State::new(SystemClock);
    let kind = state.kind_of::<A>("ns");
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let counts = Arc::new(Counts::default());

    let styles = [Style::Single, Style::Batched, Style::Resuming, Style::Slow];
    let mut watches = tokio::task::JoinSet::new();
    for number in 0..32 {
        let style = styles[number % styles.len()];
        watches.spawn(watch_kind(kind.clone(), style, done.clone(), counts.clone()));
    }
    for number in 0..16 {
        watches.spawn(watch_id(kind.clone(), id(number), done.clone(), counts.clone()));
    }
    let writers: Vec<_> = (0..WRITERS)
        .map(|seed| {
            let (kind, stop, counts) = (kind.clone(), stop.clone(), counts.clone());
            std::thread::spawn(move || write(&kind, seed, &stop, &counts))
        })
        .collect();
    tokio::time::sleep(TIME).await;
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.join().expect("a writer");
    }
    done.store(true, Ordering::Relaxed);
    while let Some(watch) = watches.join_next().await {
        watch.expect("a watch");
    }

    let list = kind.list();
    assert!(list.windows(2).all(|pair| pair[0].id() < pair[1].id()));
    for counter in [
        &counts.writes,
        &counts.stale_refused,
        &counts.foreign_refused,
        &counts.deliveries,
        &counts.overruns,
        &counts.resumed,
    ] {
        assert!(counter.load(Ordering::Relaxed) > 0, "the load did not reach everything");
    }
}

/// No timeouts here: a wake-up that is lost hangs the test, and the bound around it says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_wake_up_is_lost_in_a_burst() {
    const WATCHES: usize = 200;
    const UPDATES: u64 = 5000;
    let options = StateOptions {
        // Nobody is overrun, so everybody must see everything.
        history: History { initial: 8, max: 8192, gap: 4 },
        ..StateOptions::default()
    };
    let state = State::with_options(SystemClock, options);
    state.create("ns", "x", A::new(0), "").expect("a resource");
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..WATCHES {
        let mut watch = if number % 2 == 0 {
            state.watch::<A>("ns", WatchOptions::new())
        } else {
            state.watch_id::<A>("ns", "x")
        }
        .expect("a watch");
        tasks.spawn(async move {
            loop {
                let event = watch.next().await.expect("no overrun");
                if event.resource.meta().version() == Version::new(UPDATES + 1) {
                    return;
                }
            }
        });
    }
    let writer = state.clone();
    let start = Instant::now();
    let write = tokio::task::spawn_blocking(move || {
        for number in 1..=UPDATES {
            writer.modify::<A>("ns", "x", "", |spec| spec.number = number as i64).expect("a write");
            if number % 64 == 0 {
                // Lets watches reach the end and wait, again and again.
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    });
    let all = async {
        write.await.expect("the writer");
        while let Some(watch) = tasks.join_next().await {
            watch.expect("a watch");
        }
    };
    let bounded = tokio::time::timeout(Duration::from_secs(20), all).await;
    assert!(bounded.is_ok(), "a watch still waits after {:?}", start.elapsed());
}
