//! The decisions as tables, and the controller over groups that are made up.

use std::sync::{Arc, Mutex};

use ichor_resource::config::MachineConfig;
use ichor_sys::cgroup::pressure::Stall;
use ichor_testkit::Harness;

use super::*;

fn pressure(full_avg10: f64) -> Pressure {
    Pressure { full: Stall { avg10: full_avg10, ..Stall::default() }, ..Pressure::default() }
}

fn candidate(class: Class, path: &str, max: Option<u64>, current: u64) -> Candidate {
    let memory = GroupMemory { path: path.into(), max, current: Some(current), peak: None };
    Candidate { class, memory }
}

#[track_caller]
fn triggers(now: f64, before: Option<f64>, since_ms: u64, expected: bool) {
    let policy = OomPolicy::new("", "", Duration::ZERO).unwrap();
    let before = before.map(pressure);
    let context = TriggerContext::new(&pressure(now), before.as_ref(), 0.5, Duration::from_millis(since_ms));
    assert_eq!(policy.triggers(&context).unwrap(), expected, "{context:?}");
}

#[test]
fn the_usual_trigger_wants_high_and_rising_pressure_and_a_pause() {
    triggers(20.0, Some(15.0), 1000, true);
    triggers(11.0, Some(5.0), 1000, false);
    triggers(20.0, Some(20.0), 1000, false);
    triggers(20.0, Some(30.0), 1000, false);
    triggers(20.0, None, 1000, false);
    triggers(20.0, Some(15.0), 400, false);
}

#[test]
fn changes_are_told_per_second() {
    let context = TriggerContext::new(&pressure(20.0), Some(&pressure(15.0)), 0.5, Duration::ZERO);
    assert_eq!(context.numbers["d_memory_full_avg10"], 10.0);
    assert_eq!(context.numbers.len(), 16);
    assert!(context.json().contains("\"d_memory_full_avg10\":10.0"), "{}", context.json());
}

#[track_caller]
fn chosen(ranking: &str, candidates: &[Candidate], expected: Option<(&str, f64)>) {
    let policy = OomPolicy::new("", ranking, Duration::ZERO).unwrap();
    let found = policy.choose(candidates).unwrap();
    let found = found.map(|(candidate, score)| (candidate.memory.path.to_string_lossy().into_owned(), score));
    assert_eq!(found, expected.map(|(path, score)| (path.to_owned(), score)));
}

#[test]
fn workloads_without_a_limit_go_first_and_the_node_never() {
    use Class::{BestEffort, Burstable, Guaranteed, PodRuntime, System};
    let all = [
        candidate(BestEffort, "a", None, 100),
        candidate(BestEffort, "limited", Some(1000), 900),
        candidate(Burstable, "b", None, 300),
        candidate(Guaranteed, "c", None, 9000),
        candidate(PodRuntime, "kubelet", None, 9000),
        candidate(System, "apid", None, 9000),
    ];
    chosen("", &all, Some(("b", 150.0)));
    chosen("", &all[..2], Some(("a", 100.0)));
    // What scores nothing is left alone: better no action than a random one.
    chosen("", &all[3..], None);
    chosen("", &[], None);
    let equals = [candidate(BestEffort, "x", None, 5), candidate(BestEffort, "y", None, 5)];
    chosen("", &equals, Some(("x", 5.0)));
}

#[test]
fn a_ranking_of_the_configuration_counts() {
    let all = [candidate(Class::System, "apid", None, 1), candidate(Class::Burstable, "b", Some(9), 7)];
    chosen("class == System ? 10.0 : 1.0", &all, Some(("apid", 10.0)));
    chosen("double(memory_max.orValue(0u))", &all, Some(("b", 9.0)));
    chosen("path == \"b\" ? 1.5 : 0.0", &all, Some(("b", 1.5)));
}

#[derive(Clone, Default)]
struct Fake {
    samples: Arc<Mutex<VecDeque<f64>>>,
    candidates: Vec<Candidate>,
    reaped: Arc<Mutex<Vec<PathBuf>>>,
    unmeasured: bool,
}

impl OomPort for Fake {
    fn pressure(&self) -> io::Result<Pressure> {
        if self.unmeasured {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(pressure(self.samples.lock().unwrap().pop_front().unwrap_or(0.0)))
    }

    async fn candidates(&self) -> Vec<Candidate> {
        self.candidates.clone()
    }

    async fn reap(&self, group: &Path) -> io::Result<Vec<String>> {
        self.reaped.lock().unwrap().push(group.to_owned());
        Ok(vec!["eater --all".to_owned()])
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_is_killed_under_pressure_and_it_is_recorded() {
    let fake = Fake {
        candidates: vec![candidate(Class::BestEffort, "/g/eater", None, 10)],
        samples: Arc::new(Mutex::new([5.0, 20.0, 30.0, 10.0].into())),
        ..Fake::default()
    };
    let (state, _) = ichor_testkit::state();
    let mut harness = Harness::new(&state, OOMController::new(fake.clone())).unwrap();
    for expected in [0, 1, 1, 1] {
        harness.reconcile().await.unwrap();
        assert_eq!(fake.reaped.lock().unwrap().len(), expected);
        // Under half a second after the first action there is no second one.
        tokio::time::advance(Duration::from_millis(400)).await;
    }
    assert_eq!(*fake.reaped.lock().unwrap(), [PathBuf::from("/g/eater")]);
    let action = state.get::<OOMAction>("runtime", "0").unwrap();
    assert_eq!((action.score, action.processes.as_slice()), (10.0, &["eater --all".to_owned()][..]));
    assert!(action.trigger_context.contains("\"memory_full_avg10\":20.0"), "{}", action.trigger_context);
}

#[tokio::test(start_paused = true)]
async fn the_last_ten_actions_are_kept() {
    let fake = Fake { candidates: vec![candidate(Class::BestEffort, "/g/a", None, 10)], ..Fake::default() };
    let (state, _) = ichor_testkit::state();
    let text = "apiVersion: v1alpha1\nkind: OOMConfig\ntriggerExpression: 'true'\nsampleInterval: 100ms\n";
    let config = MachineConfig::new(text.as_bytes().to_vec());
    state.create("config", MachineConfig::ACTIVE, config, "").unwrap();
    let mut harness = Harness::new(&state, OOMController::new(fake)).unwrap();
    for _ in 0..12 {
        harness.reconcile().await.unwrap();
    }
    let mut ids: Vec<u32> =
        state.list::<OOMAction>("runtime").iter().map(|action| action.id().parse().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, (2..12).collect::<Vec<u32>>());
}

#[tokio::test(start_paused = true)]
async fn a_kernel_that_does_not_measure_is_no_error() {
    let (state, _) = ichor_testkit::state();
    let fake = Fake { unmeasured: true, ..Fake::default() };
    let mut harness = Harness::new(&state, OOMController::new(fake)).unwrap();
    harness.reconcile().await.unwrap();
    assert!(state.list::<OOMAction>("runtime").is_empty());
}
