//! Measures the store and the controller runtime. Prints one figure a line: `name value unit`, the
//! median over runs.
//!
//! The loads are those of the benchmark of the original that `make bench` runs beside it: 100 000
//! creations, updates and reads over 10 000 objects, 1 000 watches of one kind, a controller that
//! turns each A into a B. `bench store` measures the store alone.

use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ichor_cosi::{
    Context, ControllerError, KindHandle, Query, Runtime, State, StateError, SystemClock, Transform,
    TransformController, Typed, Watch, WatchOptions,
};
use ichor_resource::{Id, Resource};
use ichor_testkit::{A, B};
use tokio::runtime::Builder;
use tokio::sync::mpsc;

const RUNS: usize = 7;
const CREATES: usize = 100_000;
const OBJECTS: usize = 10_000;
const WATCHES: usize = 1_000;
/// Enough that pages of memory are counted, not noise.
const WATCHES_WEIGHED: usize = 20_000;
const ROUNDS: usize = 200;
const PASSES: usize = 1_000;

type Outcome<T> = Result<T, StateError>;

fn main() -> Outcome<()> {
    let what = std::env::args().nth(1);
    match what.as_deref() {
        Some("kind") => return one_thread().block_on(weigh(kind)),
        Some("one") => return one_thread().block_on(weigh(one)),
        Some("store") => return store(),
        _ => {}
    }
    store()?;
    one_thread().block_on(async {
        fan_out("fanout-1000", kind).await?;
        fan_out("fanout-1000-one-id", one).await?;
        burst(kind).await
    })?;
    print("watcher-bytes", weigh_apart("kind"), "bytes");
    print("watcher-one-id-bytes", weigh_apart("one"), "bytes");
    one_thread().block_on(controller())
}

/// As in the node: controllers share one thread, and another one serves all watches.
fn one_thread() -> tokio::runtime::Runtime {
    match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => panic!("no runtime: {error}"),
    }
}

fn print(name: &str, value: f64, unit: &str) {
    println!("{name} {value:.6} {unit}");
}

fn percentile(mut values: Vec<f64>, part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * part) as usize;
    values.get(at.min(values.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

fn median(values: Vec<f64>) -> f64 {
    percentile(values, 0.5)
}

fn per_second(count: usize, since: Instant) -> f64 {
    count as f64 / since.elapsed().as_secs_f64()
}

fn id(number: usize) -> String {
    format!("id-{number:07}")
}

fn filled(count: usize) -> Outcome<(State, KindHandle)> {
    let state = State::new(SystemClock);
    let kind = state.kind_of::<A>("ns-a");
    for number in 0..count {
        state.create("ns-a", &id(number), A::new(number as i64), "")?;
    }
    Ok((state, kind))
}

/// Edits a copy of the contents, as every writer does.
fn next(current: &Resource) -> Resource {
    let mut draft = current.clone();
    if let Some(spec) = current.downcast::<A>() {
        let mut spec = spec.clone();
        spec.number += 1;
        draft.set_spec(Arc::new(spec));
    }
    draft
}

#[derive(Default)]
struct Rates {
    create: Vec<f64>,
    update: Vec<f64>,
    update_with: Vec<f64>,
    get: Vec<f64>,
    get_handle: Vec<f64>,
    list: Vec<f64>,
    query: Vec<f64>,
    destroy: Vec<f64>,
}

fn store() -> Outcome<()> {
    let mut rates = Rates::default();
    // The heap of the original stays from run to run. Freeing one block of this size makes ours stay,
    // too; otherwise most of a creation is the kernel clearing pages.
    drop(black_box(vec![1_u8; 31 << 20]));
    for _ in 0..RUNS {
        create_and_destroy(&mut rates)?;
    }
    for _ in 0..RUNS {
        update_and_read(&mut rates)?;
    }
    print("create", median(rates.create), "ops/s");
    print("update", median(rates.update), "ops/s");
    print("update-with-conflicts", median(rates.update_with), "ops/s");
    print("get", median(rates.get), "ops/s");
    print("get-by-handle", median(rates.get_handle), "ops/s");
    print("destroy", median(rates.destroy), "ops/s");
    print("list-10000", median(rates.list), "ms");
    print("list-label-1000-of-10000", median(rates.query), "ms");
    Ok(())
}

fn create_and_destroy(rates: &mut Rates) -> Outcome<()> {
    let ids: Vec<_> = (0..CREATES).map(id).collect();
    let specs: Vec<_> = (0..CREATES).map(|number| A::new(number as i64)).collect();
    let state = State::new(SystemClock);
    let kind = state.kind_of::<A>("ns-a");
    let start = Instant::now();
    for (id, spec) in ids.iter().zip(specs) {
        kind.create(kind.draft(id, Arc::new(spec)), "")?;
    }
    rates.create.push(per_second(CREATES, start));
    let start = Instant::now();
    for id in &ids {
        kind.destroy(id, "")?;
    }
    rates.destroy.push(per_second(CREATES, start));
    Ok(())
}

fn update_and_read(rates: &mut Rates) -> Outcome<()> {
    let ids: Vec<_> = (0..OBJECTS).map(id).collect();
    let (state, kind) = filled(OBJECTS)?;
    let mut held = kind.list();
    let start = Instant::now();
    for number in 0..CREATES {
        let slot = &mut held[number % OBJECTS];
        *slot = kind.update(next(slot), "", Some(ichor_resource::Phase::Running))?;
    }
    rates.update.push(per_second(CREATES, start));
    let start = Instant::now();
    for number in 0..CREATES {
        state.update_with::<A>("ns-a", &ids[number % OBJECTS], "", |spec, _| spec.number += 1)?;
    }
    rates.update_with.push(per_second(CREATES, start));
    let start = Instant::now();
    for number in 0..CREATES * 5 {
        black_box(state.get::<A>("ns-a", &ids[number % OBJECTS])?);
    }
    rates.get.push(per_second(CREATES * 5, start));
    let start = Instant::now();
    for number in 0..CREATES * 5 {
        black_box(kind.find(&ids[number % OBJECTS]));
    }
    rates.get_handle.push(per_second(CREATES * 5, start));

    for _ in 0..5 {
        let start = Instant::now();
        let list = state.list::<A>("ns-a");
        rates.list.push(start.elapsed().as_secs_f64() * 1e3);
        assert_eq!(black_box(list).len(), OBJECTS);
    }
    for number in (0..OBJECTS).step_by(10) {
        state.update_with::<A>("ns-a", &ids[number], "", |_, meta| meta.set_label("tenth", ""))?;
    }
    let query = Query::label("tenth");
    for _ in 0..5 {
        let start = Instant::now();
        let list = state.query::<A>("ns-a", &query);
        rates.query.push(start.elapsed().as_secs_f64() * 1e3);
        assert_eq!(black_box(list).len(), OBJECTS / 10);
    }
    Ok(())
}

fn one(state: &State) -> Outcome<Watch> {
    state.watch_id::<A>("ns-a", &id(0))
}

fn kind(state: &State) -> Outcome<Watch> {
    state.watch::<A>("ns-a", WatchOptions::with_contents())
}

/// The number of the newest A an event shows.
async fn next_number(watch: &mut Watch) -> Option<i64> {
    let event = watch.next().await?;
    event.resource.downcast::<A>().map(|spec| spec.number)
}

async fn fan_out(name: &str, open: fn(&State) -> Outcome<Watch>) -> Outcome<()> {
    let (state, _) = filled(1)?;
    let (done, mut seen) = mpsc::unbounded_channel();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..WATCHES {
        let (mut watch, done) = (open(&state)?, done.clone());
        tasks.spawn(async move {
            loop {
                if next_number(&mut watch).await.is_some_and(|number| number >= 1000) {
                    let _ = done.send(Instant::now());
                }
            }
        });
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    let (mut last, mut calls) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let start = Instant::now();
        let number = 1000 + round as i64;
        state.update_with::<A>("ns-a", &id(0), "", |spec, _| spec.number = number)?;
        calls.push(start.elapsed().as_secs_f64() * 1e6);
        let mut latest = start;
        for _ in 0..WATCHES {
            if let Some(at) = seen.recv().await {
                latest = latest.max(at);
            }
        }
        last.push(latest.duration_since(start).as_secs_f64() * 1e6);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    print(&format!("{name}-last"), median(last), "us");
    print(&format!("{name}-update-call"), median(calls), "us");
    Ok(())
}

/// Memory a waiting watch takes, its task included.
async fn weigh(open: fn(&State) -> Outcome<Watch>) -> Outcome<()> {
    let (state, _) = filled(1)?;
    let before = resident();
    for _ in 0..WATCHES_WEIGHED {
        let mut watch = open(&state)?;
        tokio::spawn(async move { while watch.next().await.is_some() {} });
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    println!("{}", (resident() - before) / WATCHES_WEIGHED as f64);
    Ok(())
}

/// In a process of its own, whose memory nothing else has used before.
fn weigh_apart(what: &str) -> f64 {
    let run = std::env::current_exe().and_then(|this| Command::new(this).arg(what).output());
    let text = run.map(|done| done.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.trim().parse().unwrap_or(f64::NAN)
}

fn resident() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(f64::NAN);
    pages * 4096.0
}

/// Deliveries per second when updates follow each other at once.
async fn burst(open: fn(&State) -> Outcome<Watch>) -> Outcome<()> {
    const UPDATES: i64 = 200;
    let mut rates = Vec::new();
    for _ in 0..RUNS {
        let (state, _) = filled(1)?;
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..WATCHES {
            let mut watch = open(&state)?;
            tasks.spawn(async move { while next_number(&mut watch).await != Some(UPDATES) {} });
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        let start = Instant::now();
        for number in 1..=UPDATES {
            state.update_with::<A>("ns-a", &id(0), "", |spec, _| spec.number = number)?;
        }
        while tasks.join_next().await.is_some() {}
        rates.push(per_second(WATCHES * UPDATES as usize, start));
    }
    print("fanout-1000-burst", median(rates), "deliveries/s");
    Ok(())
}

struct Copy;

impl Transform for Copy {
    const NAME: &'static str = "bench.Copy";
    type Input = A;
    type Output = B;

    fn output_id(&self, input: &Typed<A>) -> Option<Id> {
        Some(input.id().clone())
    }

    fn transform(&mut self, _ctx: &Context, input: &Typed<A>, output: &mut B) -> Result<(), ControllerError> {
        output.text.clone_from(&input.text);
        output.number = input.number;
        output.list.clone_from(&input.list);
        Ok(())
    }
}

async fn controller() -> Outcome<()> {
    let state = State::new(SystemClock);
    let runtime = Runtime::new(state.clone());
    if let Err(error) = runtime.register(TransformController(Copy)) {
        return Err(StateError::Edit(error.to_string()));
    }
    let running = runtime.clone();
    let task = tokio::spawn(async move { running.run(std::future::pending()).await });
    let mut seen = state.watch::<B>("ns-b", WatchOptions::new())?;
    tokio::time::sleep(Duration::from_millis(50)).await;

    state.create("ns-a", &id(0), A::new(0), "")?;
    seen.next().await;
    let mut times = Vec::new();
    for number in 0..PASSES as i64 {
        let start = Instant::now();
        state.update_with::<A>("ns-a", &id(0), "", |spec, _| spec.number = 5000 + number)?;
        while let Some(event) = seen.next().await {
            let spec = event.resource.downcast::<B>();
            if spec.is_some_and(|spec| spec.number == 5000 + number) {
                break;
            }
        }
        times.push(start.elapsed().as_secs_f64() * 1e6);
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    print("controller-median-us", median(times.clone()), "us");
    print("controller-p99-us", percentile(times, 0.99), "us");

    let mut times = Vec::new();
    for number in 1..=PASSES {
        let start = Instant::now();
        state.create("ns-a", &id(number), A::new(0), "")?;
        seen.next().await;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    print("controller-create-1-to-1000-median", median(times), "us");
    task.abort();
    Ok(())
}
