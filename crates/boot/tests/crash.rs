//! Power cuts: every prefix of the writes of every plan, and subsets of what was not flushed, is started by a reader that
//! shares no code with what wrote it. A system that is whole is always selected, and the machine goes on from there.
//!
//! `ICHOR_BOOT_SAMPLES` is the number of random subsets at each prefix (20 without it).

#[path = "crash/disk.rs"]
mod disk;
#[path = "crash/firmware.rs"]
mod firmware;

use std::collections::BTreeSet;

use ichor_boot::grub::{EnvBlock, GrubConfig};
use ichor_boot::plan::disk::{BootDisk, FirmwareEntry, GrubFiles, Loader, NewSystem, SdBootFiles};
use ichor_boot::plan::{Asset, Content, Step, Volume, execute};
use ichor_boot::record::{Record, SLOTS_KEY, UPGRADE_KEY};
use ichor_boot::sdboot::{HardDrive, LoadOption, UkiName, variable};
use ichor_boot::slots::{BootId, BootPath, Next, Start};
use ichor_fuzz::Random;

use disk::{Event, Recorder, State, Write};
use firmware::Started;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Grub,
    SdBoot,
}

impl Kind {
    fn start(self, state: &mut State) -> Result<Started, String> {
        match self {
            Self::Grub => firmware::start_grub(state),
            Self::SdBoot => firmware::start_sd_boot(state),
        }
    }

    /// What the program reads of a disk.
    fn read(self, state: &State) -> BootDisk {
        let meta = state.meta().cloned().unwrap_or_default();
        let text = |key: u8| meta.get(&key).map(|value| String::from_utf8(value.clone()).unwrap());
        let record = text(SLOTS_KEY).map(|text| Record::parse(&text).unwrap());
        let loader = match self {
            Self::Grub => {
                let file = |path: &str| state.file(Volume::Boot, path);
                let config = file("grub/grub.cfg").map(|bytes| String::from_utf8(bytes).unwrap());
                let config = config.map(|text| GrubConfig::parse(&text).unwrap());
                let env = file("grub/grubenv").and_then(|bytes| EnvBlock::parse(&bytes).ok());
                Loader::Grub(GrubFiles { config, env })
            }
            Self::SdBoot => {
                let images = state.files(Volume::Efi);
                let images =
                    images.iter().filter_map(|(path, _)| UkiName::parse(path.strip_prefix("EFI/Linux/")?));
                let text = |variable: variable::Variable| {
                    variable::decode_text(state.variables.get(&variable.file())?)
                };
                Loader::SdBoot(SdBootFiles {
                    images: images.collect(),
                    default: text(variable::Variable::EntryDefault),
                    one_shot: text(variable::Variable::EntryOneShot),
                    conf: state
                        .file(Volume::Efi, "loader/loader.conf")
                        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
                })
            }
        };
        BootDisk::read(loader, record, text(UPGRADE_KEY).as_deref()).unwrap()
    }
}

fn system(number: u32) -> NewSystem {
    NewSystem {
        name: "Talos".into(),
        tag: format!("v1.{number}.0"),
        cmdline: "talos.platform=metal a=${b}".into(),
    }
}

fn record(before: &State, steps: &[Step], number: u32) -> (State, Vec<Event>) {
    let mut recorder = Recorder::new(before.clone(), number);
    execute(steps, &mut recorder).unwrap();
    (recorder.state, recorder.events)
}

/// A disk as the original leaves it: two systems, no record, no environment block, no default in `loader.conf`.
fn original(kind: Kind) -> State {
    let mut recorder = Recorder::new(State::default(), 2);
    let write = |recorder: &mut Recorder, volume, path: &str, content| {
        execute(&[Step::Write { volume, path: path.into(), content }], recorder).unwrap();
    };
    match kind {
        Kind::Grub => {
            for (slot, number) in [("A", 2), ("B", 1)] {
                recorder.system = number;
                for (file, asset) in [("vmlinuz", Asset::Kernel), ("initramfs.xz", Asset::Initramfs)] {
                    write(&mut recorder, Volume::Boot, &format!("{slot}/{file}"), Content::Asset(asset));
                }
            }
            let entry = |slot: &str, tag: &str| {
                format!(
                    "menuentry \"{slot} - Talos {tag}\" {{\n  set gfxmode=auto\n  set gfxpayload=text\n  \
                     linux /{slot}/vmlinuz talos.platform=metal\n  initrd /{slot}/initramfs.xz\n}}\n"
                )
            };
            let text = format!(
                "set default=\"A - Talos v1.2.0\"\nset fallback=\"B - Talos v1.1.0\"\n\nset timeout=3\n\ninsmod \
                 all_video\n\nterminal_input console\nterminal_output console\n\n{}{}",
                entry("B", "v1.1.0"),
                entry("A", "v1.2.0")
            );
            write(&mut recorder, Volume::Boot, "grub/grub.cfg", Content::Bytes(text.into_bytes()));
        }
        Kind::SdBoot => {
            for number in [1, 2] {
                recorder.system = number;
                let path = format!("EFI/Linux/Talos-v1.{number}.0.efi");
                write(&mut recorder, Volume::Efi, &path, Content::Asset(Asset::Uki));
            }
            write(&mut recorder, Volume::Efi, "EFI/boot/BOOTX64.efi", Content::Asset(Asset::Loader));
            write(&mut recorder, Volume::Efi, "loader/loader.conf", Content::Bytes(b"timeout 10\n".to_vec()));
            let variable = variable::Variable::EntryDefault;
            let bytes = variable::encode_text("Talos-v1.2.0.efi");
            execute(&[Step::SetVariable { variable, bytes }], &mut recorder).unwrap();
        }
    }
    recorder.state
}

/// A plan to be cut short.
struct Scenario {
    name: String,
    kind: Kind,
    before: State,
    events: Vec<Event>,
    /// What may be started by default, all through.
    defaults: Vec<u32>,
    /// What may be started once.
    trials: Vec<u32>,
    /// Whether nothing at all may be there to start.
    is_install: bool,
}

/// The life of a disk, each plan of which becomes a scenario.
struct Life {
    kind: Kind,
    state: State,
    scenarios: Vec<Scenario>,
    boots: u128,
}

impl Life {
    fn new(kind: Kind, state: State) -> Self {
        Self { kind, state, scenarios: Vec::new(), boots: 100 }
    }

    fn add(&mut self, name: &str, steps: &[Step], number: u32, defaults: &[u32], trials: &[u32]) {
        let before = self.state.clone();
        let (after, events) = record(&before, steps, number);
        self.state = after;
        let (name, defaults, trials) =
            (format!("{:?}: {name}", self.kind), defaults.to_vec(), trials.to_vec());
        let is_install = before == State::default();
        self.scenarios.push(Scenario { name, kind: self.kind, before, events, defaults, trials, is_install });
    }

    fn boot_id(&mut self) -> BootId {
        self.boots += 1;
        BootId(self.boots)
    }

    fn install(&mut self, number: u32) {
        let loader = match self.kind {
            Kind::Grub => Loader::Grub(GrubFiles::default()),
            Kind::SdBoot => Loader::SdBoot(SdBootFiles::default()),
        };
        let drive = HardDrive { number: 1, start: 2048, len: 4096, guid: [1; 16] };
        let option = LoadOption {
            description: "Talos Linux UKI".into(),
            drive,
            file: r"\EFI\boot\BOOTX64.efi".into(),
        };
        let entry = FirmwareEntry { number: 3, delete: vec![5], option };
        let firmware = (self.kind == Kind::SdBoot).then_some(&entry);
        let (_, steps) = BootDisk::install(loader, &system(number), "amd64", firmware).unwrap();
        self.add("install", &steps, number, &[number], &[]);
    }

    /// `armed` is what an earlier upgrade has made ready to be started.
    fn upgrade(&mut self, number: u32, old: u32, armed: &[u32]) {
        let mut disk = self.kind.read(&self.state);
        let by = self.boot_id();
        let steps = disk.upgrade(&system(number), Start::OneShot, by).unwrap();
        self.add(&format!("upgrade to {number}"), &steps, number, &[old], &[armed, &[number]].concat());
        assert_eq!(self.kind.read(&self.state), disk, "the plan knows what it leaves");
    }

    /// Starts the machine through the boot loader and runs what machined does first.
    fn boot(&mut self, expected: u32, defaults: &[u32]) -> Next {
        let started = self.kind.start(&mut self.state).unwrap();
        assert_eq!(started.system, expected);
        let mut disk = self.kind.read(&self.state);
        let (steps, next) = disk.boot(Some(&started.entry), BootPath::Firmware, self.boot_id()).unwrap();
        self.add(&format!("boot of {expected}"), &steps, expected, defaults, &[]);
        next
    }

    fn commit(&mut self, next: Next, old: u32, new: u32) {
        let Next::Judge(judge) = next else { panic!("{next:?}") };
        let steps = self.kind.read(&self.state).commit(&judge).unwrap();
        self.add("commit", &steps, new, &[old, new], &[]);
    }

    fn fail(&mut self, next: Next, old: u32) {
        let Next::Judge(judge) = next else { panic!("{next:?}") };
        let (steps, next) = self.kind.read(&self.state).fail(&judge).unwrap();
        assert_eq!(next, Next::Restart);
        self.add("fail", &steps, old, &[old], &[]);
    }

    fn rollback(&mut self, defaults: &[u32], trials: &[u32]) {
        let by = self.boot_id();
        let steps = self.kind.read(&self.state).rollback(by).unwrap();
        self.add("rollback", &steps, 0, defaults, trials);
    }
}

fn scenarios(kind: Kind) -> Vec<Scenario> {
    let mut life = Life::new(kind, State::default());
    life.install(1);
    let next = life.boot(1, &[1]);
    life.commit(next, 1, 1);
    life.upgrade(2, 1, &[]);
    let next = life.boot(2, &[1]);
    life.commit(next, 1, 2);
    // Into a slot that was good.
    life.upgrade(3, 2, &[]);
    let next = life.boot(3, &[2]);
    life.fail(next, 2);
    life.boot(2, &[2]);
    // Over a failed one, and again before it was started.
    life.upgrade(4, 2, &[]);
    life.upgrade(5, 2, &[4]);
    // It never comes up.
    assert_eq!(kind.start(&mut life.state).unwrap().system, 5);
    life.boot(2, &[2]);
    // The same version once more.
    life.upgrade(2, 2, &[]);
    let next = life.boot(2, &[2]);
    life.commit(next, 2, 2);
    life.upgrade(6, 2, &[]);
    let next = life.boot(6, &[2]);
    life.commit(next, 2, 6);
    life.rollback(&[2, 6], &[]);
    life.boot(2, &[2]);
    life.upgrade(7, 2, &[]);
    life.rollback(&[2], &[7]);
    life.boot(2, &[2]);
    let steps = kind.read(&life.state).reset(&[]).unwrap();
    life.add("reset", &steps, 2, &[2], &[]);

    let mut other = Life::new(kind, original(kind));
    other.upgrade(3, 2, &[]);
    let next = other.boot(3, &[2]);
    other.commit(next, 2, 3);
    let mut unknown = Life::new(kind, original(kind));
    unknown.rollback(&[2], &[1]);
    unknown.boot(1, &[2]);
    // Run by the original: the default at once, turned around when it comes up.
    let mut foreign = Life::new(kind, original(kind));
    let by = foreign.boot_id();
    let steps = kind.read(&foreign.state).upgrade(&system(3), Start::Default, by).unwrap();
    foreign.add("upgrade run by the original", &steps, 3, &[2, 3], &[]);
    let next = foreign.boot(3, &[2, 3]);
    foreign.commit(next, 2, 3);
    [life.scenarios, other.scenarios, unknown.scenarios, foreign.scenarios].into_iter().flatten().collect()
}

/// What goes through the log of XFS.
fn is_metadata((on, write): &(Option<Volume>, Write)) -> bool {
    *on == Some(Volume::Boot) && !matches!(write, Write::Data { .. })
}

/// What a power cut leaves: as the boot loader sees it, and as the kernel does after it replayed its log.
fn crashes(
    scenario: &Scenario,
    random: &mut Random,
    samples: usize,
    mut judge: impl FnMut(State, State, String),
) {
    let mut durable = scenario.before.clone();
    let mut pending: Vec<(Option<Volume>, Write)> = Vec::new();
    judge(durable.clone(), durable.clone(), format!("{}: before", scenario.name));
    for (at, event) in scenario.events.iter().enumerate() {
        match event {
            Event::Barrier(volume) => {
                pending.retain(|(on, write)| {
                    let flushed = on == volume;
                    if flushed {
                        durable.apply(write);
                    }
                    !flushed
                });
                continue;
            }
            Event::Write(on, write) => pending.push((*on, write.clone())),
        }
        let last = pending.len() - 1;
        // Those without the last write were seen one write earlier.
        let mut subsets: BTreeSet<Vec<usize>> = BTreeSet::new();
        subsets.insert((0..=last).collect());
        subsets.insert(vec![last]);
        for one in 0..last {
            subsets.insert((0..=last).filter(|other| *other != one).collect());
            subsets.insert(vec![one, last]);
        }
        for _ in 0..samples {
            subsets.insert((0..last).filter(|_| random.chance(2)).chain([last]).collect());
        }
        for subset in subsets {
            let (mut raw, mut replayed) = (durable.clone(), durable.clone());
            // The log has everything up to some point, which is not before anything that is in its place already.
            let in_place =
                subset.iter().filter(|index| is_metadata(&pending[**index])).max().map_or(0, |at| at + 1);
            let logged = in_place + random.below(pending.len() + 1 - in_place);
            for (index, (_, write)) in pending.iter().enumerate() {
                let written = subset.contains(&index);
                if written {
                    raw.apply(write);
                }
                let found = if is_metadata(&pending[index]) { index < logged } else { written };
                if found {
                    replayed.apply(write);
                }
            }
            judge(raw, replayed, format!("{}: event {at}, {subset:?} of {}", scenario.name, last + 1));
        }
    }
}

/// Starts the machine after a power cut; gives what came up, if anything had to.
fn check(scenario: &Scenario, raw: &State, place: &str) -> Option<Started> {
    let kind = scenario.kind;
    let mut state = raw.clone();
    let started = match kind.start(&mut state) {
        Ok(started) => started,
        Err(_) if scenario.is_install => return None,
        Err(error) => panic!("{place}: {error}"),
    };
    let allowed = if started.once { &scenario.trials } else { &scenario.defaults };
    assert!(allowed.contains(&started.system), "{place}: {started:?}");
    let again = kind.start(&mut state).unwrap_or_else(|error| panic!("{place}: the second time: {error}"));
    assert!(!again.once && scenario.defaults.contains(&again.system), "{place}: the second time {again:?}");
    if kind == Kind::SdBoot && !scenario.is_install {
        let mut lost = raw.clone();
        lost.variables.clear();
        let started =
            kind.start(&mut lost).unwrap_or_else(|error| panic!("{place}: without variables: {error}"));
        // A disk of the original has no default but the variable, until the first step of ours.
        let had_default = raw.file(Volume::Efi, "loader/loader.conf").is_some_and(|conf| conf.len() > 11);
        let fine = scenario.defaults.contains(&started.system) || !had_default;
        assert!(fine, "{place}: without variables: {started:?}");
    }
    assert!(
        scenario.is_install || raw.meta().is_some() || raw.meta == scenario.before.meta,
        "{place}: META is lost"
    );
    Some(started)
}

/// The machine goes on: machined comes up, and the next upgrade works.
fn go_on(scenario: &Scenario, mut state: State, mut started: Started, place: &str) {
    let kind = scenario.kind;
    let mut boots = 1_000;
    for _ in 0..4 {
        boots += 1;
        let mut disk = kind.read(&state);
        let (steps, next) = disk.boot(Some(&started.entry), BootPath::Firmware, BootId(boots)).unwrap();
        (state, _) = record(&state, &steps, 0);
        match next {
            Next::Run => break,
            Next::Judge(judge) => {
                let steps = disk.commit(&judge).unwrap();
                (state, _) = record(&state, &steps, 0);
                break;
            }
            Next::Restart => started = kind.start(&mut state).unwrap(),
        }
    }
    let mut disk = kind.read(&state);
    let steps = disk.upgrade(&system(99), Start::OneShot, BootId(boots)).unwrap();
    (state, _) = record(&state, &steps, 99);
    let started = kind.start(&mut state).unwrap();
    assert_eq!((started.system, started.once), (99, true), "{place}: the next upgrade");
    let (steps, next) =
        kind.read(&state).boot(Some(&started.entry), BootPath::Firmware, BootId(9_999)).unwrap();
    (state, _) = record(&state, &steps, 99);
    let Next::Judge(judge) = next else { panic!("{place}: {next:?}") };
    let steps = kind.read(&state).commit(&judge).unwrap();
    (state, _) = record(&state, &steps, 99);
    assert_eq!(kind.start(&mut state).unwrap().system, 99, "{place}: after the next upgrade");
}

fn replay(kind: Kind) -> (usize, usize) {
    let samples = std::env::var("ICHOR_BOOT_SAMPLES").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let mut random = Random::new(15);
    let (mut states, mut nothing) = (0, 0);
    for scenario in scenarios(kind) {
        crashes(&scenario, &mut random, samples, |raw, mut replayed, place| {
            states += 1;
            let Some(started) = check(&scenario, &raw, &place) else {
                nothing += 1;
                return;
            };
            if started.once {
                // The boot loader changed the disk as well.
                assert!(
                    kind.start(&mut replayed).is_ok_and(|other| other.once) || kind == Kind::Grub,
                    "{place}"
                );
            }
            go_on(&scenario, replayed, started, &place);
        });
    }
    println!(
        "{kind:?}: {states} states after a power cut, {nothing} of them in an installation with nothing to start"
    );
    (states, nothing)
}

#[test]
fn a_power_cut_leaves_a_system_to_start_with_grub() {
    let (states, _) = replay(Kind::Grub);
    assert!(states >= 2_500, "{states}");
}

#[test]
fn a_power_cut_leaves_a_system_to_start_with_systemd_boot() {
    let (states, _) = replay(Kind::SdBoot);
    assert!(states >= 2_500, "{states}");
}
