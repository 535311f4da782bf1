//! The controller runtime: wake-ups, access, failures.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ichor_cosi::{
    Context, Controller, ControllerError, ControllerPhase, EdgeKind, Input, InputKind, Output, OutputKind,
    RegisterError, Runtime, State, StateError, Wake, destroy_ready, exclusive, shared, strong, weak,
};
use ichor_testkit::{A, B, Harness, state, wait_for, wait_gone};

/// Copies the number of every A to a B; what else it does is up to the test.
#[derive(Default)]
struct Copy {
    passes: Arc<AtomicUsize>,
    trouble: Arc<Mutex<Option<Trouble>>>,
    hold: Option<Duration>,
}

#[derive(Clone, Copy)]
enum Trouble {
    Error,
    Panic,
}

impl Controller for Copy {
    const NAME: &'static str = "test.Copy";

    fn inputs(&self) -> Vec<Input> {
        vec![strong::<A>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<B>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        self.passes.fetch_add(1, Ordering::SeqCst);
        let trouble = *self.trouble.lock().unwrap();
        match trouble {
            Some(Trouble::Error) => return Err(ControllerError::new("no luck")),
            Some(Trouble::Panic) => panic!("bad luck"),
            None => {}
        }
        if let Some(hold) = self.hold {
            tokio::time::sleep(hold).await;
        }
        let copies = ctx.list::<A>()?.into_iter().map(|a| {
            let number = a.number;
            (a.id().clone(), B { number, ..B::default() })
        });
        ctx.publish(copies)?;
        Ok(())
    }
}

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

#[tokio::test]
async fn inputs_become_outputs_and_leave_with_them() {
    let (state, _) = state();
    set(&state, "x", 1);
    run(&state, |runtime| runtime.register(Copy::default()).unwrap());
    let b = wait_for::<B>(&state, "ns-b", "x", |b| b.number == 1).await;
    assert_eq!(b.meta().owner(), "test.Copy");
    set(&state, "x", 2);
    set(&state, "y", 3);
    wait_for::<B>(&state, "ns-b", "x", |b| b.number == 2).await;
    wait_for::<B>(&state, "ns-b", "y", |b| b.number == 3).await;
    state.destroy::<A>("ns-a", "x", "").unwrap();
    wait_gone::<B>(&state, "ns-b", "x").await;
    assert!(state.find::<B>("ns-b", "y").is_some());
}

#[tokio::test(start_paused = true)]
async fn changes_during_a_pass_make_one_more() {
    let (state, _) = state();
    let passes = Arc::new(AtomicUsize::new(0));
    let controller =
        Copy { passes: passes.clone(), hold: Some(Duration::from_millis(100)), ..Copy::default() };
    run(&state, |runtime| runtime.register(controller).unwrap());
    tokio::time::sleep(Duration::from_millis(50)).await;
    for number in 0..1000 {
        set(&state, "x", number);
    }
    wait_for::<B>(&state, "ns-b", "x", |b| b.number == 999).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(passes.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn failures_are_repeated_after_growing_pauses_and_told() {
    for trouble in [Trouble::Error, Trouble::Panic] {
        let (state, _) = state();
        let held = Arc::new(Mutex::new(Some(trouble)));
        let controller = Copy { trouble: held.clone(), ..Copy::default() };
        set(&state, "x", 7);
        let runtime = run(&state, |runtime| {
            runtime.register(controller).unwrap();
            runtime.register(Healthy).unwrap();
        });
        tokio::time::sleep(Duration::from_secs(30)).await;
        let status = runtime.status().remove(0);
        assert_eq!(status.phase, ControllerPhase::Backoff);
        // 0.5 s and half as much more each time, give or take half: 30 s hold 5 to 10 of them.
        assert!((5..=10).contains(&status.failures), "{status:?}");
        assert_eq!(status.failures_total, u64::from(status.failures));
        let (error, panics) = match trouble {
            Trouble::Error => ("no luck", 0),
            Trouble::Panic => ("panic: bad luck", status.failures_total),
        };
        assert_eq!((status.last_error.as_deref(), status.panics), (Some(error), panics));
        assert!(status.retry_at > status.last_error_at);
        assert_eq!(runtime.status().remove(1).failures_total, 0, "others are not touched");

        *held.lock().unwrap() = None;
        tokio::time::sleep(Duration::from_secs(60)).await;
        let status = runtime.status().remove(0);
        assert_eq!((status.phase, status.failures), (ControllerPhase::Idle, 0));
        assert!(state.find::<B>("ns-b", "x").is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_ends_the_rest_of_a_failed_controller_but_not_at_once() {
    let (state, _) = state();
    let (passes, held) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Some(Trouble::Error))));
    let controller = Copy { passes: passes.clone(), trouble: held.clone(), ..Copy::default() };
    run(&state, |runtime| runtime.register(controller).unwrap());
    // Long enough for pauses of many seconds.
    tokio::time::sleep(Duration::from_secs(120)).await;
    let failed = passes.load(Ordering::SeqCst);
    for number in 0..200 {
        set(&state, "x", number);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let tries = passes.load(Ordering::SeqCst) - failed;
    assert!((5..=11).contains(&tries), "{tries} tries while 2 s were full of changes");
    *held.lock().unwrap() = None;
    set(&state, "x", 1000);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(state.find::<B>("ns-b", "x").map(|b| b.number), Some(1000));
}

struct Healthy;

impl Controller for Healthy {
    const NAME: &'static str = "test.Healthy";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<A>()]
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    async fn reconcile(&mut self, _ctx: &Context) -> Result<(), ControllerError> {
        Ok(())
    }
}

/// Passes at times of its own choice, and when told from outside.
struct Timed {
    passes: Arc<AtomicUsize>,
    wake: tokio::sync::mpsc::UnboundedSender<Wake>,
}

impl Controller for Timed {
    const NAME: &'static str = "test.Timed";

    fn inputs(&self) -> Vec<Input> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    fn start(&mut self, wake: Wake) {
        self.wake.send(wake).unwrap();
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        self.passes.fetch_add(1, Ordering::SeqCst);
        ctx.requeue_after(Duration::from_secs(20));
        ctx.requeue_after(Duration::from_secs(10));
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_pass_comes_after_the_asked_time_or_when_woken() {
    let (state, _) = state();
    let passes = Arc::new(AtomicUsize::new(0));
    let (wake, mut wakes) = tokio::sync::mpsc::unbounded_channel();
    let controller = Timed { passes: passes.clone(), wake };
    run(&state, |runtime| runtime.register(controller).unwrap());
    let wake = wakes.recv().await.unwrap();
    tokio::time::sleep(Duration::from_secs(35)).await;
    assert_eq!(passes.load(Ordering::SeqCst), 4);
    wake.wake();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(passes.load(Ordering::SeqCst), 5);
    // The wake moved the next pass.
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert_eq!(passes.load(Ordering::SeqCst), 5);
}

/// Wakes itself, always.
struct Restless;

impl Controller for Restless {
    const NAME: &'static str = "test.Restless";

    fn inputs(&self) -> Vec<Input> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        ctx.wake().wake();
        Ok(())
    }
}

#[tokio::test]
async fn a_restless_controller_lets_others_run() {
    let (state, _) = state();
    set(&state, "x", 1);
    run(&state, |runtime| {
        runtime.register(Restless).unwrap();
        runtime.register(Copy::default()).unwrap();
    });
    wait_for::<B>(&state, "ns-b", "x", |b| b.number == 1).await;
}

/// Tries what it did not declare.
struct Nosy;

impl Controller for Nosy {
    const NAME: &'static str = "test.Nosy";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<A>().id("own"), strong::<A>().in_ns("other")]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<B>()]
    }

    async fn reconcile(&mut self, _ctx: &Context) -> Result<(), ControllerError> {
        Ok(())
    }
}

#[tokio::test]
async fn a_controller_touches_only_what_it_declared() {
    let (state, _) = state();
    state.create("other", "x", A::new(1), "").unwrap();
    state.create("ns-a", "own", A::new(1), "").unwrap();
    let harness = Harness::new(&state, Nosy).unwrap();
    let ctx = harness.context();

    assert!(ctx.get::<A>("own").unwrap().is_some());
    assert!(ctx.get_in::<A>("other", "x").unwrap().is_some());
    assert_eq!(ctx.list_in::<A>("other").unwrap().len(), 1);
    ctx.modify_in::<B>("anywhere", "x", |b| b.number = 1).unwrap();
    assert_eq!(ctx.list_in::<B>("anywhere").unwrap().len(), 1);
    ctx.add_finalizer_in::<A>("other", "x").unwrap();
    assert!(state.get::<A>("other", "x").unwrap().meta().has_finalizer("test.Nosy"));

    let refused = [
        ctx.get::<A>("not own").map(drop),
        ctx.list::<A>().map(drop),
        ctx.modify::<A>("own", |a| a.number = 2).map(drop),
        ctx.modify_in::<A>("other", "x", |a| a.number = 2).map(drop),
        ctx.destroy_in::<A>("other", "x"),
        ctx.add_finalizer::<A>("own"),
    ];
    for outcome in refused {
        assert!(matches!(outcome, Err(StateError::Access(_))), "{outcome:?}");
    }
    let text = ctx.get::<A>("not own").unwrap_err().to_string();
    assert_eq!(
        text,
        "controller test.Nosy may not read As.test.ichor.dev(ns-a/not own): it is not declared as an input"
    );
}

#[tokio::test]
async fn only_declared_inputs_wake() {
    let (state, _) = state();
    let harness = Harness::new(&state, Nosy).unwrap();
    set(&state, "not own", 1);
    assert!(!harness.was_woken().await);
    set(&state, "own", 1);
    assert!(harness.was_woken().await);
    assert!(!harness.was_woken().await);
    state.create("other", "x", A::new(1), "").unwrap();
    assert!(harness.was_woken().await);

    harness.context().update_inputs(vec![weak::<B>()]).unwrap();
    assert!(harness.was_woken().await, "new inputs may have changed before");
    harness.context().update_inputs(vec![weak::<B>()]).unwrap();
    assert!(!harness.was_woken().await);
    set(&state, "own", 2);
    assert!(!harness.was_woken().await);
    state.create("ns-b", "x", B::new(1), "").unwrap();
    assert!(harness.was_woken().await);

    let twice = harness.context().update_inputs(vec![weak::<B>(), strong::<B>()]);
    assert!(matches!(twice, Err(StateError::Access(_))));
}

#[tokio::test]
async fn destroy_ready_wakes_when_nobody_holds_it() {
    let (state, _) = state();
    let harness = Harness::new(&state, Nosy).unwrap();
    let inputs = vec![destroy_ready::<B>()];
    harness.context().update_inputs(inputs).unwrap();
    assert!(harness.was_woken().await);
    state.create("ns-b", "x", B::new(1), "me").unwrap();
    state.add_finalizer::<B>("ns-b", "x", "f").unwrap();
    state.teardown::<B>("ns-b", "x", "me").unwrap();
    assert!(!harness.was_woken().await);
    state.remove_finalizer::<B>("ns-b", "x", "f").unwrap();
    assert!(harness.was_woken().await);
    state.destroy::<B>("ns-b", "x", "me").unwrap();
    assert!(!harness.was_woken().await);
}

#[tokio::test]
async fn outputs_in_use_are_torn_down_and_wait() {
    let (state, _) = state();
    let mut harness = Harness::new(&state, Copy::default()).unwrap();
    set(&state, "x", 1);
    harness.reconcile().await.unwrap();
    state.add_finalizer::<B>("ns-b", "x", "user").unwrap();
    state.create("ns-b", "foreign", B::new(1), "somebody").unwrap();
    state.destroy::<A>("ns-a", "x", "").unwrap();

    harness.reconcile().await.unwrap();
    let b = state.get::<B>("ns-b", "x").unwrap();
    assert!(!b.meta().is_running());
    // Wanted again while somebody still holds the old one: an error, hence another try.
    set(&state, "x", 2);
    assert!(harness.reconcile().await.is_err());
    state.remove_finalizer::<B>("ns-b", "x", "user").unwrap();
    harness.reconcile().await.unwrap();
    let b = state.get::<B>("ns-b", "x").unwrap();
    assert!(b.meta().is_running() && b.number == 2);
    assert!(state.find::<B>("ns-b", "foreign").is_some());
}

#[test]
fn clashing_registrations_are_refused() {
    let (state, _) = state();
    let runtime = Runtime::new(state);
    runtime.register(Copy::default()).unwrap();
    assert_eq!(runtime.register(Copy::default()), Err(RegisterError::Name("test.Copy")));
    let clash = runtime.register(Nosy).unwrap_err();
    assert_eq!(
        clash.to_string(),
        "controller test.Nosy cannot write Bs.test.ichor.dev: test.Copy writes it, and both must share it"
    );
}

#[test]
fn the_graph_is_exported_with_its_numbers() {
    let (state, _) = state();
    let runtime = Runtime::new(state);
    runtime.register(Nosy).unwrap();
    runtime.register(Healthy).unwrap();
    let edges: Vec<_> = runtime
        .dependencies()
        .into_iter()
        .map(|edge| {
            let id = edge.id.map(|id| id.to_string());
            (edge.controller, edge.kind.number(), edge.namespace, edge.type_name, id)
        })
        .collect();
    let own = Some("own".to_owned());
    let (a, b) = ("As.test.ichor.dev", "Bs.test.ichor.dev");
    let expected = vec![
        ("test.Healthy", Some(2), "ns-a".to_owned(), a, None),
        ("test.Nosy", Some(3), String::new(), b, None),
        ("test.Nosy", Some(2), "ns-a".to_owned(), a, own),
        ("test.Nosy", Some(1), "other".to_owned(), a, None),
    ];
    assert_eq!(edges, expected);
    assert_eq!(EdgeKind::Output(OutputKind::Exclusive).number(), Some(0));
    assert_eq!(EdgeKind::Input(InputKind::DestroyReady).number(), Some(4));
    assert_eq!(EdgeKind::Input(InputKind::QueuePrimary).number(), None);
}

#[tokio::test]
async fn controllers_may_come_while_the_runtime_runs() {
    let (state, _) = state();
    let runtime = run(&state, |_| {});
    tokio::task::yield_now().await;
    runtime.register(Copy::default()).unwrap();
    set(&state, "x", 1);
    wait_for::<B>(&state, "ns-b", "x", |b| b.number == 1).await;
}

#[tokio::test]
async fn a_stopped_runtime_leaves_no_subscriptions() {
    let (state, _) = state();
    let runtime = Runtime::new(state.clone());
    let passes = Arc::new(AtomicUsize::new(0));
    let controller = Copy { passes: passes.clone(), ..Copy::default() };
    runtime.register(controller).unwrap();
    runtime.run(tokio::time::sleep(Duration::from_millis(20))).await;
    let before = passes.load(Ordering::SeqCst);
    assert!(before > 0);
    set(&state, "x", 1);
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(passes.load(Ordering::SeqCst), before);
}
