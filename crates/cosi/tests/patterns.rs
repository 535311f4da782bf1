//! Ready-made controllers: transforms and queues.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ichor_cosi::{
    Context, ControllerError, Input, Item, Output, QController, Runtime, State, Transform,
    TransformController, Typed, mapped, primary, shared,
};
use ichor_resource::Id;
use ichor_testkit::{A, B, Harness, eventually, state, wait_for};

/// A runtime in the background; ends with the test.
fn run(state: &State, register: impl FnOnce(&Runtime)) -> Runtime {
    let runtime = Runtime::new(state.clone());
    register(&runtime);
    let running = runtime.clone();
    tokio::spawn(async move { running.run(std::future::pending()).await });
    runtime
}

fn set(state: &State, id: &str, number: i64) {
    state.modify::<A>("ns-a", id, "", |spec| spec.number = number).unwrap();
}

/// Doubles numbers, and holds its inputs while it does.
struct Double;

impl Transform for Double {
    const NAME: &'static str = "test.Double";
    const FINALIZERS: bool = true;
    type Input = A;
    type Output = B;

    fn output_id(&self, input: &Typed<A>) -> Option<Id> {
        (input.number != 0).then(|| input.id().clone())
    }

    fn transform(&mut self, _ctx: &Context, input: &Typed<A>, output: &mut B) -> Result<(), ControllerError> {
        if input.number < 0 {
            return Err(ControllerError::new("negative"));
        }
        output.number = input.number * 2;
        Ok(())
    }
}

#[tokio::test]
async fn a_transform_keeps_outputs_in_step_with_inputs() {
    let (state, _) = state();
    let mut harness = Harness::new(&state, TransformController(Double)).unwrap();
    for (id, number) in [("x", 1), ("y", 2), ("z", 0), ("bad", -1)] {
        set(&state, id, number);
    }
    let failed = harness.reconcile().await;
    assert_eq!(failed.unwrap_err().to_string(), "negative");
    let outputs = |state: &State| -> Vec<_> {
        let list = state.list::<B>("ns-b");
        list.iter().map(|b| (b.id().to_string(), b.number)).collect()
    };
    assert_eq!(outputs(&state), [("x".to_owned(), 2), ("y".to_owned(), 4)]);
    set(&state, "bad", 5);
    set(&state, "y", 0);
    harness.reconcile().await.unwrap();
    assert_eq!(outputs(&state), [("bad".to_owned(), 10), ("x".to_owned(), 2)]);

    // The input stays until its output is gone, and that stays while somebody holds it.
    assert_eq!(state.teardown::<A>("ns-a", "x", ""), Ok(false));
    state.add_finalizer::<B>("ns-b", "x", "user").unwrap();
    harness.reconcile().await.unwrap();
    assert!(state.get::<A>("ns-a", "x").unwrap().meta().has_finalizer("test.Double"));
    state.remove_finalizer::<B>("ns-b", "x", "user").unwrap();
    assert!(harness.was_woken().await);
    harness.reconcile().await.unwrap();
    assert_eq!(outputs(&state), [("bad".to_owned(), 10)]);
    state.destroy::<A>("ns-a", "x", "").unwrap();
}

/// A queue that copies numbers, fails on odd ones while told to, and maps every B to "mapped".
#[derive(Default)]
struct Queue {
    log: Arc<Mutex<Vec<String>>>,
    fail: Arc<std::sync::atomic::AtomicBool>,
}

impl QController for Queue {
    const NAME: &'static str = "test.Queue";

    fn inputs(&self) -> Vec<Input> {
        vec![primary::<A>(), mapped::<B>().in_ns("source")]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<B>()]
    }

    fn concurrency(&self) -> usize {
        3
    }

    fn map(&self, _ctx: &Context, changed: &Item) -> Result<Vec<Item>, ControllerError> {
        let kind = Arc::new(ichor_resource::Kind::new("ns-a", "As.test.ichor.dev"));
        let id = Id::new(&format!("mapped-{}", changed.id));
        Ok(vec![Item { kind, id }])
    }

    async fn reconcile(&self, ctx: &Context, item: &Item) -> Result<(), ControllerError> {
        self.log.lock().unwrap().push(item.id.to_string());
        let Some(a) = ctx.get::<A>(&item.id)? else {
            return Ok(());
        };
        if a.number % 2 == 1 && self.fail.load(Ordering::SeqCst) {
            return Err(ControllerError::new("odd"));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        ctx.modify::<B>(&item.id, |b| b.number = a.number)?;
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_queue_works_items_off_one_by_one_and_retries_only_the_bad() {
    let (state, _) = state();
    let controller = Queue::default();
    let (log, fail) = (controller.log.clone(), controller.fail.clone());
    fail.store(true, Ordering::SeqCst);
    for number in 0..10 {
        set(&state, &number.to_string(), number);
    }
    let runtime = run(&state, |runtime| runtime.register_queue(controller).unwrap());
    wait_for::<B>(&state, "ns-b", "8", |b| b.number == 8).await;
    assert_eq!(state.list::<B>("ns-b").len(), 5);
    let status = runtime.status().remove(0);
    assert!(status.failures_total >= 5, "{status:?}");
    let error = status.last_error.unwrap_or_default();
    assert!(error.starts_with("As.test.ichor.dev(ns-a/") && error.ends_with("): odd"), "{error}");

    fail.store(false, Ordering::SeqCst);
    for odd in [1, 3, 5, 7, 9] {
        wait_for::<B>(&state, "ns-b", &odd.to_string(), |b| b.number == odd).await;
    }
    let log = log.lock().unwrap();
    let tries = |id: &str| log.iter().filter(|tried| *tried == id).count();
    assert_eq!(tries("8"), 1);
    assert!(tries("9") >= 2);
}

#[tokio::test(start_paused = true)]
async fn a_queue_maps_other_inputs_to_items() {
    let (state, _) = state();
    state.create("source", "old", B::new(1), "").unwrap();
    let controller = Queue::default();
    let log = controller.log.clone();
    run(&state, |runtime| runtime.register_queue(controller).unwrap());
    tokio::time::sleep(Duration::from_millis(1)).await;
    state.create("source", "new", B::new(1), "").unwrap();
    eventually("both are mapped", || *log.lock().unwrap() == ["mapped-old", "mapped-new"]).await;
}
