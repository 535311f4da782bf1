//! The lives of machines, each plan of which is a scenario to be cut short.

use ichor_boot::grub::{EnvBlock, GrubConfig};
use ichor_boot::plan::disk::{BootDisk, FirmwareEntry, GrubFiles, Loader, NewSystem, SdBootFiles};
use ichor_boot::plan::{Asset, Content, Step, Volume, execute};
use ichor_boot::record::{Record, SLOTS_KEY, UPGRADE_KEY};
use ichor_boot::sdboot::{HardDrive, LoadOption, UkiName, variable};
use ichor_boot::slots::{BootId, BootPath, Next, Start};

use crate::Scenario;
use crate::disk::{Recorder, State};
use crate::firmware::{self, Started};

/// Network configuration: as long as real ones, so that META is more than a few sectors.
const NETWORK_KEY: u8 = 0x0a;
/// The image of a staged upgrade, and its options.
const STAGED: [u8; 2] = [0x07, 0x08];

/// A boot loader, and the firmware that starts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// GRUB and a BIOS.
    Grub,
    /// systemd-boot and UEFI.
    SdBoot,
}

impl Kind {
    /// Starts the machine.
    ///
    /// # Errors
    /// When nothing is there to start.
    pub fn start(self, state: &mut State) -> Result<Started, String> {
        match self {
            Self::Grub => firmware::start_grub(state),
            Self::SdBoot => firmware::start_sd_boot(state),
        }
    }

    /// What the program reads of a disk.
    ///
    /// # Panics
    /// When it is not one of a machine that can start.
    pub fn read(self, state: &State) -> BootDisk {
        let meta = state.tags();
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

/// What the kernel of a system is started with; no two systems have the same.
pub fn cmdline(number: u32) -> String {
    format!("talos.platform=metal a=${{b}} console=ttyS0 earlyprintk=ttyS0,115200 ichor.crash={number}.")
}

/// A system of this number.
pub fn system(number: u32) -> NewSystem {
    NewSystem { name: "Talos".into(), tag: format!("v1.{number}.0"), cmdline: cmdline(number) }
}

/// Carries steps out for this system.
///
/// # Panics
/// When one is not for a disk like this.
pub fn record(before: &State, steps: &[Step], number: u32) -> Recorder {
    let mut recorder = Recorder::new(before.clone(), number);
    execute(steps, &mut recorder).unwrap();
    recorder
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
            let entry = |slot: &str, number: u32| {
                format!(
                    "menuentry \"{slot} - Talos v1.{number}.0\" {{\n  set gfxmode=auto\n  set gfxpayload=text\n  \
                     linux /{slot}/vmlinuz {}\n  initrd /{slot}/initramfs.xz\n}}\n",
                    cmdline(number).replace("${b}", "\\$\\{b\\}")
                )
            };
            let text = format!(
                "set default=\"A - Talos v1.2.0\"\nset fallback=\"B - Talos v1.1.0\"\n\nset timeout=3\n\ninsmod \
                 all_video\n\nterminal_input console\nterminal_output console\n\n{}{}",
                entry("B", 1),
                entry("A", 2)
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
    recorder.set_meta(|tags| drop(tags.insert(NETWORK_KEY, vec![b'n'; 3_000])));
    recorder.state
}

/// The life of a disk, each plan of which becomes a scenario.
#[derive(Debug)]
pub struct Life {
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
        let recorder = record(&self.state, steps, number);
        self.take(name, recorder, defaults, trials);
    }

    /// Goes on with what was recorded.
    fn take(&mut self, name: &str, recorder: Recorder, defaults: &[u32], trials: &[u32]) {
        let Recorder { state, events, metas, .. } = recorder;
        let before = std::mem::replace(&mut self.state, state);
        let mut configs = vec![before.config(), self.state.config()];
        configs.dedup();
        self.scenarios.push(Scenario {
            name: format!("{:?}: {name}", self.kind),
            kind: self.kind,
            is_install: before == State::default(),
            metas: [vec![before.tags()], metas].concat(),
            configs,
            before,
            events,
            defaults: defaults.to_vec(),
            trials: trials.to_vec(),
        });
    }

    /// The configuration is replaced by one of this length.
    fn configure(&mut self, letter: u8, len: usize, default: u32, armed: &[u32]) {
        let mut recorder = Recorder::new(self.state.clone(), default);
        recorder.configure(&vec![letter; len]).unwrap();
        self.take(&format!("configuration {}", char::from(letter)), recorder, &[default], armed);
    }

    /// Values of META are set or deleted, one after the other.
    fn keys(&mut self, name: &str, changes: &[(u8, Option<&str>)], default: u32) {
        let step = |(key, value): &(u8, Option<&str>)| match value {
            Some(value) => Step::SetMeta { key: *key, value: value.as_bytes().to_vec() },
            None => Step::DeleteMeta { key: *key },
        };
        let steps: Vec<Step> = changes.iter().map(step).collect();
        self.add(name, &steps, default, &[default], &[]);
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

/// The plans of all lives of machines with this boot loader.
///
/// # Panics
/// When a machine does not live as planned.
pub fn scenarios(kind: Kind) -> Vec<Scenario> {
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
    let lives = [life, other, unknown, foreign, configured(kind)];
    lives.into_iter().flat_map(|life| life.scenarios).collect()
}

/// A machine from its installation on, with configurations and values of META before, in and after an upgrade.
fn configured(kind: Kind) -> Life {
    let network = "n".repeat(5_000);
    let mut life = Life::new(kind, State::default());
    life.install(1);
    // The configuration was in memory until the volume was there.
    life.configure(b'a', 2_000, 1, &[]);
    let next = life.boot(1, &[1]);
    life.commit(next, 1, 1);
    life.keys("network", &[(NETWORK_KEY, Some(&network)), (0x0f, Some("a uuid"))], 1);
    life.configure(b'b', 1_400, 1, &[]);
    // The upgrade is staged, the machine starts, and does it.
    life.keys("stage", &[(STAGED[0], Some("image:2")), (STAGED[1], Some("{\"Force\": false}"))], 1);
    life.boot(1, &[1]);
    life.keys("unstage", &STAGED.map(|key| (key, None)), 1);
    life.upgrade(2, 1, &[]);
    // Applied to a machine that is about to reboot into its trial.
    life.configure(b'c', 2_600, 1, &[2]);
    let next = life.boot(2, &[1]);
    life.configure(b'd', 600, 1, &[]);
    life.commit(next, 1, 2);
    life.keys("the way back is given up", &[(UPGRADE_KEY, None), (NETWORK_KEY, None)], 2);
    life.configure(b'e', 511, 2, &[]);
    life
}
