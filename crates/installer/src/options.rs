//! What the installer is asked for. Flags are spelled as the original's: `--disk=/dev/vda` or `--disk /dev/vda`, and
//! switches also as `--force=false`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ichor_image::Arch;

/// What the help of a program contains that can render.
pub const RENDERS: &str = "--render ";

/// What `--help` prints.
pub const HELP: &str = "\
Puts the operating system on a disk.

Usage:
  installer install --disk DEVICE [flags]     the machine configuration is read from standard input
  installer check [flags]                     whether this version can run with a machine configuration, and with
                                              --render what it would run
  installer slots boot|show|commit|fail|rollback --disk DEVICE
  installer reset --disk DEVICE [--label LABEL]...

Flags of install:
      --arch string                  amd64 or arm64
      --config string                value of talos.config, `none` for none
      --disk string                  the disk to install to
      --extra-kernel-arg strings     argument for the kernel; -key removes one
      --force                        install although the disk is not empty; what is on it is lost
      --meta strings                 value of META as key=value
      --platform string              platform of the kernel command line (default \"metal\")
      --upgrade                      write the slot that is not in use, keep everything else
      --zero                         wipe the disk first
      --artifacts string             directory of kernel image and boot loaders
      --machine-config string        file with the machine configuration, instead of standard input
      --start string                 how an upgrade is started: one-shot or default (default \"default\")

Flags of check:
      --platform string              platform of the machine (default \"metal\")
      --machine-config string        file with the machine configuration, instead of standard input
      --render                       print what would run: a YAML document for each thing, without secrets
      --facts string                 file with what the machine knows of itself, as JSON; without it there are stand-ins
";

/// How a system that was written is started for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FirstStart {
    /// As the default at once: for machines whose running system knows nothing of trials.
    #[default]
    Default,
    /// Once; it becomes the default when it was healthy.
    OneShot,
}

/// An installation or an upgrade.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstallOptions {
    /// The disk.
    pub disk: PathBuf,
    /// `metal`, `nocloud` and so on.
    pub platform: String,
    /// `talos.config`, if it is set.
    pub config: Option<String>,
    /// Writes the slot that is not in use.
    pub upgrade: bool,
    /// Installs over what is there.
    pub force: bool,
    /// Wipes first.
    pub zero: bool,
    /// Arguments for the kernel.
    pub extra_kernel_args: Vec<String>,
    /// Values of META.
    pub meta: BTreeMap<u8, Vec<u8>>,
    /// The kind of processor.
    pub arch: Arch,
    /// Where the parts are; none looks for them.
    pub artifacts: Option<PathBuf>,
    /// Where the machine configuration is; none reads standard input.
    pub machine_config: Option<PathBuf>,
    /// How an upgrade is started.
    pub start: FirstStart,
}

/// An operation on the slots of an installed disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotsAction {
    /// Continues after a start of the machine.
    Boot,
    /// Says what is there.
    Show,
    /// Keeps the running system.
    Commit,
    /// Gives the running system up.
    Fail,
    /// Goes back to the earlier system.
    Rollback,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Prints the help.
    Help,
    /// Installs or upgrades.
    Install(Box<InstallOptions>),
    /// Whether this version can run with a configuration.
    Check {
        /// Where the configuration is; none reads standard input.
        machine_config: Option<PathBuf>,
        /// The platform, which decides what a configuration has to have.
        platform: String,
        /// Where the facts about the machine are; none uses stand-ins.
        facts: Option<PathBuf>,
        /// Prints what would run.
        render: bool,
    },
    /// An operation on slots.
    Slots {
        /// Which.
        action: SlotsAction,
        /// Of this disk.
        disk: PathBuf,
    },
    /// Clears partitions, or the whole disk.
    Reset {
        /// The system disk; none when only other disks are wiped.
        disk: Option<PathBuf>,
        /// Only these partitions.
        labels: Vec<String>,
        /// Other disks that are wiped as a whole.
        wipe: Vec<PathBuf>,
    },
}

/// What is wrong with the arguments.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}; `installer --help` lists what there is")]
pub struct UsageError(String);

/// Flags by name, in the order they were given.
#[derive(Default)]
struct Flags(Vec<(String, String)>);

impl Flags {
    fn last(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.last(name).filter(|value| !value.is_empty()).map(PathBuf::from)
    }

    fn switch(&self, name: &str) -> Result<bool, UsageError> {
        match self.last(name) {
            None => Ok(false),
            Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(true),
            Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(false),
            Some(other) => Err(UsageError(format!("--{name} is true or false, not {other:?}"))),
        }
    }
}

/// Flags that need no value.
const SWITCHES: &[&str] = &["upgrade", "force", "zero", "bootloader", "render", "help"];
/// All others.
const VALUES: &[&str] = &[
    "disk",
    "platform",
    "config",
    "extra-kernel-arg",
    "meta",
    "arch",
    "board",
    "artifacts",
    "machine-config",
    "facts",
    "start",
    "label",
    "wipe-disk",
];

/// Reads the arguments that follow the program's name.
///
/// # Errors
/// When they make no sense.
pub fn parse(args: &[String]) -> Result<Command, UsageError> {
    let (words, flags) = split(args)?;
    if flags.switch("help")? {
        return Ok(Command::Help);
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] | ["help"] => Ok(Command::Help),
        ["install"] => install(&flags).map(|options| Command::Install(Box::new(options))),
        ["check"] => Ok(Command::Check {
            machine_config: flags.path("machine-config"),
            platform: flags.last("platform").unwrap_or("metal").to_owned(),
            facts: flags.path("facts"),
            render: flags.switch("render")?,
        }),
        ["slots", action] => {
            let action = match *action {
                "boot" => SlotsAction::Boot,
                "show" => SlotsAction::Show,
                "commit" => SlotsAction::Commit,
                "fail" => SlotsAction::Fail,
                "rollback" => SlotsAction::Rollback,
                other => return Err(UsageError(format!("slots cannot {other:?}"))),
            };
            Ok(Command::Slots { action, disk: disk(&flags)? })
        }
        ["reset"] => Ok(Command::Reset {
            disk: flags.path("disk"),
            labels: flags.all("label").map(str::to_owned).collect(),
            wipe: flags.all("wipe-disk").map(PathBuf::from).collect(),
        }),
        other => Err(UsageError(format!("unknown command {:?}", other.join(" ")))),
    }
}

fn disk(flags: &Flags) -> Result<PathBuf, UsageError> {
    flags.path("disk").ok_or_else(|| UsageError("--disk is missing".to_owned()))
}

fn install(flags: &Flags) -> Result<InstallOptions, UsageError> {
    let arch = flags.last("arch").unwrap_or(default_arch());
    let arch =
        Arch::parse(arch).ok_or_else(|| UsageError(format!("--arch is amd64 or arm64, not {arch:?}")))?;
    let start = match flags.last("start") {
        None | Some("default") => FirstStart::Default,
        Some("one-shot") => FirstStart::OneShot,
        Some(other) => return Err(UsageError(format!("--start is one-shot or default, not {other:?}"))),
    };
    let mut meta = BTreeMap::new();
    for entry in flags.all("meta") {
        let (key, value) = meta_value(entry)?;
        meta.insert(key, value);
    }
    Ok(InstallOptions {
        disk: disk(flags)?,
        platform: flags.last("platform").unwrap_or("metal").to_owned(),
        config: flags.last("config").filter(|value| !matches!(*value, "" | "none")).map(str::to_owned),
        upgrade: flags.switch("upgrade")?,
        force: flags.switch("force")?,
        zero: flags.switch("zero")?,
        extra_kernel_args: flags.all("extra-kernel-arg").map(str::to_owned).collect(),
        meta,
        arch,
        artifacts: flags.path("artifacts"),
        machine_config: flags.path("machine-config"),
        start,
    })
}

/// The architecture of this program.
fn default_arch() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

/// `KEY=VALUE` with a number as Go writes them.
fn meta_value(entry: &str) -> Result<(u8, Vec<u8>), UsageError> {
    let bad = |reason: &str| UsageError(format!("--meta {entry:?}: {reason}"));
    let (key, value) = entry.split_once('=').ok_or_else(|| bad("it is KEY=VALUE"))?;
    let parsed = match key.to_ascii_lowercase() {
        key if key.starts_with("0x") => u8::from_str_radix(&key[2..], 16),
        key if key.starts_with("0o") => u8::from_str_radix(&key[2..], 8),
        key if key.starts_with("0b") => u8::from_str_radix(&key[2..], 2),
        key => key.parse(),
    };
    match parsed {
        Ok(0) | Err(_) => Err(bad("keys are 0x01 to 0xff")),
        Ok(key) => Ok((key, value.as_bytes().to_vec())),
    }
}

fn split(args: &[String]) -> Result<(Vec<String>, Flags), UsageError> {
    let (mut words, mut flags) = (Vec::new(), Flags::default());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let name = match arg.as_str() {
            "-h" => "help",
            other => match other.strip_prefix("--") {
                Some(name) => name,
                None => {
                    words.push(arg.clone());
                    continue;
                }
            },
        };
        let (name, value) = match name.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (name, None),
        };
        let value = match value {
            Some(value) => value,
            None if SWITCHES.contains(&name) => "true".to_owned(),
            None => args.next().cloned().ok_or_else(|| UsageError(format!("--{name} needs a value")))?,
        };
        if !SWITCHES.contains(&name) && !VALUES.contains(&name) {
            return Err(UsageError(format!("unknown flag --{name}")));
        }
        flags.0.push((name.to_owned(), value));
    }
    Ok((words, flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Command, UsageError> {
        parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn the_call_of_the_original_is_understood() {
        let Command::Install(options) = of("install --disk=/dev/vda --platform=metal --config=none --upgrade=true \
             --force=true --zero=false --extra-kernel-arg console=ttyS0 --extra-kernel-arg net.ifnames=0 --meta 0xa=x")
        .unwrap() else {
            panic!()
        };
        assert_eq!(options.disk, PathBuf::from("/dev/vda"));
        assert_eq!((options.upgrade, options.force, options.zero), (true, true, false));
        assert_eq!((options.config.as_deref(), options.platform.as_str()), (None, "metal"));
        assert_eq!(options.extra_kernel_args, ["console=ttyS0", "net.ifnames=0"]);
        assert_eq!(options.meta, BTreeMap::from([(10, b"x".to_vec())]));
        assert_eq!(options.start, FirstStart::Default);
    }

    #[test]
    fn check_renders_when_asked_and_help_says_that_it_can() {
        let check = |facts: Option<&str>, render| Command::Check {
            machine_config: Some(PathBuf::from("/c")),
            platform: "nocloud".to_owned(),
            facts: facts.map(PathBuf::from),
            render,
        };
        let plain = "check --platform=nocloud --machine-config=/c";
        assert_eq!(of(plain), Ok(check(None, false)));
        assert_eq!(of(&format!("{plain} --render --facts=/f")), Ok(check(Some("/f"), true)));
        assert!(HELP.contains(RENDERS), "whoever runs an upgrade looks for it");
    }

    #[test]
    fn help_is_help_wherever_it_stands() {
        for text in ["--help", "install --help", "-h", "", "help"] {
            assert_eq!(of(text), Ok(Command::Help), "{text:?}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (text, expected) in [
            ("install", "--disk is missing"),
            ("install --disk", "--disk needs a value"),
            ("install --disk x --arch z80", "--arch is amd64 or arm64, not \"z80\""),
            ("install --disk x --force=maybe", "--force is true or false, not \"maybe\""),
            ("install --disk x --nonsense=1", "unknown flag --nonsense"),
            ("install --disk x --meta 0x100=a", "--meta \"0x100=a\": keys are 0x01 to 0xff"),
            ("install --disk x --meta a", "--meta \"a\": it is KEY=VALUE"),
            ("slots dance --disk x", "slots cannot \"dance\""),
            ("dance", "unknown command \"dance\""),
        ] {
            let error = of(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
