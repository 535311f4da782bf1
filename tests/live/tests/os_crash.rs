//! Disks as power cuts leave them, started for real: states of the model of `ichor-crash` become images of whole disks, and
//! firmware, boot loader and kernel in QEMU have to start the system that the model's own reader says they will.
//!
//! `ICHOR_CRASH_SEED` chooses others.

#[path = "os_crash/image.rs"]
mod image;
#[path = "os_crash/machine.rs"]
mod machine;
#[path = "os_crash/parts.rs"]
mod parts;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ichor_boot::plan::Volume;
use ichor_crash::{Kind, Started, State, cuts, scenarios};
use ichor_fuzz::Random;
use ichor_live::root;

use image::Image;
use machine::{Until, start};
use parts::Parts;

/// Disks that are started with each firmware, and how many of them once for a trial, at most.
const DISKS: usize = 25;
const TRIALS: usize = 10;
/// Trials whose disk is started a second time.
const AGAIN: usize = 2;
/// Of one disk in so many the system has to come up to its first program; of all others the kernel is enough.
const PROGRAM_EVERY: usize = 6;
/// Firmware, boot loader and kernel are emulated, and the host may be busy.
const START_MAX: Duration = Duration::from_secs(150);
/// All of them.
const ALL_MAX: Duration = Duration::from_secs(1_800);

/// A disk, where its power was cut, and what is to be started from it.
struct Cut {
    place: String,
    state: State,
    started: Started,
}

/// Disks that look different to firmware and boot loader.
fn choose(kind: Kind, random: &mut Random) -> Vec<Cut> {
    let (mut trials, mut others) = (Vec::new(), Vec::new());
    let mut seen = std::collections::BTreeSet::new();
    for scenario in scenarios(kind).into_iter().filter(|scenario| !scenario.is_install) {
        cuts::each(&scenario, random, 2, |state, _, place| {
            let started = scenario.check(&state).unwrap_or_else(|error| panic!("{place}: {error}"));
            let looks = (state.files(Volume::Efi), state.files(Volume::Boot), state.variables.clone());
            if let Some(started) = started.filter(|_| seen.insert(looks)) {
                let list = if started.once { &mut trials } else { &mut others };
                list.push(Cut { place, state, started });
            }
        });
    }
    let mut take = |mut from: Vec<Cut>, count: usize| {
        let mut chosen = Vec::new();
        while chosen.len() < count && !from.is_empty() {
            chosen.push(from.swap_remove(random.below(from.len())));
        }
        chosen
    };
    let mut chosen = take(trials, TRIALS);
    let rest = DISKS - chosen.len();
    chosen.extend(take(others, rest));
    // In any order: whoever ends this early has seen some of both.
    take(chosen, DISKS)
}

/// Starts disks of all kinds of cuts; each has to start what was predicted.
fn replay(kind: Kind) {
    let seed = std::env::var("ICHOR_CRASH_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(50);
    println!("{kind:?}: seed {seed}");
    let mut random = Random::new(seed);
    let dir = root().join(format!("build/os/tests/crash-{kind:?}"));
    let mut parts = Parts::new(&dir);
    let (all, mut booted, mut again) = (Instant::now(), BTreeMap::<String, usize>::new(), 0);
    let cuts = choose(kind, &mut random);
    assert_eq!(cuts.len(), DISKS, "disks that look different");
    for (number, cut) in cuts.iter().enumerate() {
        assert!(
            all.elapsed() < ALL_MAX,
            "{} of {DISKS} disks in {ALL_MAX:?}",
            booted.values().sum::<usize>()
        );
        let one = Instant::now();
        let image = Image::build(kind, &cut.state, &mut parts);
        let until = if number.is_multiple_of(PROGRAM_EVERY) { Until::Program } else { Until::Kernel };
        let started = start(kind, &image, until, START_MAX);
        let system = started.unwrap_or_else(|error| panic!("{}: {error}", cut.place));
        let how = if cut.started.once { "once" } else { "default" };
        println!("{:6.1} s  {until:?} of system {system}, {how}: {}", one.elapsed().as_secs_f64(), cut.place);
        assert_eq!(system, cut.started.system, "{}: predicted was {:?}", cut.place, cut.started);
        *booted.entry(format!("system {system} {how}")).or_default() += 1;
        if cut.started.once {
            assert!(!image.is_armed(), "{}: the boot loader has not taken the entry back", cut.place);
        }
        if cut.started.once && again < AGAIN {
            let mut state = cut.state.clone();
            kind.start(&mut state).unwrap();
            let expected = kind.start(&mut state).unwrap();
            let started = start(kind, &image, Until::Kernel, START_MAX);
            let system = started.unwrap_or_else(|error| panic!("{}: {error}", cut.place));
            assert_eq!(system, expected.system, "{}: the second time", cut.place);
            again += 1;
        }
    }
    println!(
        "{kind:?}: {DISKS} disks started in {:.0} s, {again} of them twice: {booted:?}",
        all.elapsed().as_secs_f64()
    );
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn grub_starts_what_was_predicted_after_a_power_cut() {
    replay(Kind::Grub);
}

#[test]
fn systemd_boot_starts_what_was_predicted_after_a_power_cut() {
    replay(Kind::SdBoot);
}
