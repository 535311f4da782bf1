//! Power cuts: every prefix of the writes of every plan, and subsets of what was not flushed, is started by a reader that
//! shares no code with what wrote it. A system that is whole is always selected, META holds old or new values that go with
//! it, the configuration is the old or the new one, and the machine goes on from there, also after a second power cut.
//!
//! `ICHOR_BOOT_SAMPLES` is the number of random subsets at each prefix (20 without it).

use ichor_boot::plan::execute;
use ichor_boot::slots::{BootId, BootPath, Next, Start};
use ichor_crash::disk::{Recorder, State};
use ichor_crash::life::{record, system};
use ichor_crash::{Kind, Scenario, Started, cuts, meta, scenarios};
use ichor_fuzz::Random;

/// One state in so many is cut a second time.
const AGAIN: usize = 100;

/// The machine goes on: machined comes up, and the next upgrade works.
fn go_on(scenario: &Scenario, mut state: State, mut started: Started, place: &str) {
    let kind = scenario.kind;
    let mut boots = 1_000;
    for _ in 0..4 {
        boots += 1;
        let mut disk = kind.read(&state);
        let (steps, next) = disk.boot(Some(&started.entry), BootPath::Firmware, BootId(boots)).unwrap();
        state = record(&state, &steps, 0).state;
        match next {
            Next::Run => break,
            Next::Judge(judge) => {
                let steps = disk.commit(&judge).unwrap();
                state = record(&state, &steps, 0).state;
                break;
            }
            Next::Restart => started = kind.start(&mut state).unwrap(),
        }
    }
    let mut disk = kind.read(&state);
    let steps = disk.upgrade(&system(99), Start::OneShot, BootId(boots)).unwrap();
    state = record(&state, &steps, 99).state;
    let started = kind.start(&mut state).unwrap();
    assert_eq!((started.system, started.once), (99, true), "{place}: the next upgrade");
    let (steps, next) =
        kind.read(&state).boot(Some(&started.entry), BootPath::Firmware, BootId(9_999)).unwrap();
    state = record(&state, &steps, 99).state;
    let Next::Judge(judge) = next else { panic!("{place}: {next:?}") };
    let steps = kind.read(&state).commit(&judge).unwrap();
    state = record(&state, &steps, 99).state;
    assert_eq!(kind.start(&mut state).unwrap().system, 99, "{place}: after the next upgrade");
    let mut recorder = Recorder::new(state, 99);
    recorder.configure(b"the next configuration").unwrap();
    let config = recorder.state.config();
    assert_eq!(config.as_deref(), Some(&b"the next configuration"[..]), "{place}: the next configuration");
}

/// What a machine writes after a power cut, to be cut short once more: what machined does first, the next upgrade, and a
/// configuration.
fn second(scenario: &Scenario, state: State, started: &Started, place: &str) -> Scenario {
    let kind = scenario.kind;
    let mut disk = kind.read(&state);
    let (mut steps, next) = disk.boot(Some(&started.entry), BootPath::Firmware, BootId(2_000)).unwrap();
    if next != Next::Restart {
        steps.extend(disk.upgrade(&system(98), Start::OneShot, BootId(2_000)).unwrap());
    }
    let mut recorder = Recorder::new(state.clone(), 98);
    execute(&steps, &mut recorder).unwrap();
    recorder.configure(&[b'z'; 1_100]).unwrap();
    Scenario {
        name: format!("{place}, and again"),
        metas: [vec![state.tags()], recorder.metas].concat(),
        configs: vec![state.config(), recorder.state.config()],
        before: state,
        events: recorder.events,
        trials: [&scenario.trials[..], &[98]].concat(),
        ..scenario.clone()
    }
}

/// How many states there were.
#[derive(Debug, Default)]
struct Count {
    states: usize,
    nothing: usize,
    again: usize,
}

fn replay(kind: Kind) -> Count {
    let samples = std::env::var("ICHOR_BOOT_SAMPLES").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let (mut random, mut others) = (Random::new(15), Random::new(16));
    let mut count = Count::default();
    for scenario in scenarios(kind) {
        cuts::each(&scenario, &mut random, samples, |raw, mut replayed, place| {
            count.states += 1;
            let Some(started) = scenario.check(&raw).unwrap_or_else(|error| panic!("{place}: {error}"))
            else {
                count.nothing += 1;
                return;
            };
            assert!(scenario.configs.contains(&replayed.config()), "{place}: the configuration is mixed");
            if started.once {
                // The boot loader changed the disk as well.
                assert!(
                    kind.start(&mut replayed).is_ok_and(|other| other.once) || kind == Kind::Grub,
                    "{place}"
                );
            }
            if others.chance(AGAIN) && !scenario.is_install {
                let second = second(&scenario, replayed.clone(), &started, &place);
                cuts::each(&second, &mut others, 1, |raw, _, place| {
                    count.again += 1;
                    second.check(&raw).unwrap_or_else(|error| panic!("{place}: {error}"));
                });
            }
            go_on(&scenario, replayed, started, &place);
        });
        let finished = cuts::finished(&scenario);
        let (name, config, values) = (&scenario.name, scenario.configs.last(), scenario.metas.last());
        assert_eq!(Some(&finished.config()), config, "{name}: told as done, and lost");
        assert_eq!(meta::read(&finished).unwrap().as_ref(), values, "{name}: told as done, and lost");
    }
    println!(
        "{kind:?}: {} states after a power cut, {} of them in an installation with nothing to start, and {} after a \
         second power cut",
        count.states, count.nothing, count.again
    );
    count
}

#[test]
fn a_power_cut_leaves_a_system_to_start_with_grub() {
    let count = replay(Kind::Grub);
    assert!(count.states >= 2_500 && count.again >= 2_500, "{count:?}");
}

#[test]
fn a_power_cut_leaves_a_system_to_start_with_systemd_boot() {
    let count = replay(Kind::SdBoot);
    assert!(count.states >= 2_500 && count.again >= 2_500, "{count:?}");
}
