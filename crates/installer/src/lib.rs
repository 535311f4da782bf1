//! The installer: puts the system on a disk, writes the other slot for an upgrade, and says what is started from it.
//!
//! A program that runs to its end, in the root of its container image or from installation media; `machined` starts it,
//! and the original's does, too. It prints what it does line by line, and errors as the last line.

pub mod artifacts;
pub mod blank;
pub mod check;
pub mod disk;
pub mod error;
pub mod fresh;
pub mod layout;
pub mod media;
pub mod meta;
pub mod mounts;
pub mod options;
pub mod slots;
pub mod writer;

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use ichor_block::Guid;
use ichor_boot::cmdline::{Composition, merge};
use ichor_boot::plan::disk::NewSystem;
use ichor_boot::plan::{Asset, execute};
use ichor_boot::slots::Start;
use ichor_config::Documents;
use ichor_image::Content;
use ichor_render::Facts;
use ichor_sys::boot_port::{AssetSource, BootPaths, BootPort};

use artifacts::{Artifacts, Place};
use disk::SystemDisk;
use error::{InstallError, chain};
use fresh::Fresh;
use layout::Firmware;
use meta::{DiskMeta, DiskOutside};
use mounts::Mounts;
use options::{Command, FirstStart, HELP, InstallOptions, SlotsAction};

/// What the last line of an operation on slots begins with.
pub const RESULT: &str = "result: ";
/// A configuration is not longer.
const CONFIG_MAX: u64 = 32 << 20;
/// Facts about a machine are not longer.
const FACTS_MAX: u64 = 1 << 20;
/// What is left free beside two systems.
const SPARE: u64 = 8 << 20;

/// Runs the installer with the arguments behind its name.
pub fn main(args: &[String]) -> ExitCode {
    let command = match options::parse(args) {
        Ok(command) => command,
        Err(error) => {
            eprintln!("installer: {error}");
            return ExitCode::from(2);
        }
    };
    let done = match command {
        Command::Help => {
            say(HELP.trim_end());
            Ok(())
        }
        Command::Install(options) => install(&options),
        Command::Check { machine_config, platform, facts, render } => {
            run_check(machine_config.as_deref(), &platform, facts.as_deref(), render)
        }
        Command::Slots { action, disk } => act(action, &disk::resolve(&disk)),
        Command::Reset { disk, labels, wipe } => reset(disk.as_deref(), &labels, &wipe),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The last line is what is passed on; some errors are lists of several.
            let words: Vec<String> = chain(&error).split_whitespace().map(str::to_owned).collect();
            say(&format!("error: {}", words.join(" ")));
            ExitCode::FAILURE
        }
    }
}

/// One line to whoever started this. Nobody listening is no reason to stop half-way.
fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// The machine configuration; none when nothing was given.
fn configuration(path: Option<&Path>) -> Result<Option<Documents>, InstallError> {
    let mut bytes = Vec::new();
    let read = match path {
        Some(path) => {
            std::fs::File::open(path).and_then(|file| file.take(CONFIG_MAX).read_to_end(&mut bytes))
        }
        None => io::stdin().lock().take(CONFIG_MAX).read_to_end(&mut bytes),
    };
    if let (Err(source), Some(path)) = (read, path) {
        return Err(InstallError::Disk { what: "read", path: path.to_owned(), source });
    }
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    Documents::load(&bytes).map(Some).map_err(|error| InstallError::Config(error.to_string()))
}

/// What is known of the machine; none when nothing was given.
fn facts(path: Option<&Path>) -> Result<Option<Facts>, InstallError> {
    let Some(path) = path else { return Ok(None) };
    let failed = |source| InstallError::Disk { what: "read", path: path.to_owned(), source };
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(FACTS_MAX).read_to_end(&mut bytes))
        .map_err(failed)?;
    Facts::from_json(&bytes)
        .map(Some)
        .map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidData, chain(&error))))
}

fn run_check(
    path: Option<&Path>,
    platform: &str,
    facts_path: Option<&Path>,
    render: bool,
) -> Result<(), InstallError> {
    let Some(documents) = configuration(path)? else {
        say("no configuration; nothing to check");
        return Ok(());
    };
    let found = check::examine(&documents, platform, facts(facts_path)?.as_ref());
    found.report.notes.iter().for_each(|note| say(&format!("note: {note}")));
    if !found.report.errors.is_empty() {
        return Err(InstallError::Config(found.report.errors.join("; ")));
    }
    if render {
        found.rendering.print().lines().for_each(say);
    }
    Ok(())
}

fn install(options: &InstallOptions) -> Result<(), InstallError> {
    let documents = configuration(options.machine_config.as_deref())?;
    match &documents {
        None => say("no machine configuration; it is not checked"),
        Some(documents) => {
            let report = check::check(documents, &options.platform);
            report.notes.iter().for_each(|note| say(&format!("note: {note}")));
            if !report.errors.is_empty() {
                return Err(InstallError::Config(report.errors.join("; ")));
            }
        }
    }
    let place = Place::find(Path::new("/"), options.artifacts.as_deref(), options.arch)?;
    let artifacts = Artifacts::open(&place, options.arch)?;
    say(&format!("{} {} from {place}", artifacts.name, artifacts.tag));
    let disk = disk::resolve(&options.disk);
    let cmdline = grub_cmdline(options, &artifacts, documents.as_ref());
    match options.upgrade {
        true => upgrade(options, &artifacts, &disk, cmdline),
        false => install_fresh(options, &artifacts, &disk, cmdline, documents.as_ref()),
    }
}

/// The command line for GRUB: that of the kernel image, or one that is composed for the platform.
fn grub_cmdline(options: &InstallOptions, artifacts: &Artifacts, documents: Option<&Documents>) -> String {
    let install = documents.and_then(|documents| documents.root()?.machine.as_ref()?.install.as_ref());
    let from_image =
        documents.is_none() || install.is_some_and(|install| install.grub_use_uki_cmdline == Some(true));
    let mut extra = options.extra_kernel_args.clone();
    extra.extend(options.config.iter().map(|url| format!("talos.config={url}")));
    if from_image {
        let mut cmdline = artifacts.cmdline.clone();
        // What is there already is not there twice, and one console does not replace the others.
        extra.retain(|argument| {
            let (key, value) = argument.split_once('=').unwrap_or((argument, ""));
            !cmdline.all(key).iter().any(|known| known == value)
        });
        merge(&mut cmdline, &extra);
        return cmdline.to_string();
    }
    let architecture = options.arch.to_string();
    let composition = Composition {
        platform: &options.platform,
        architecture: &architecture,
        recovers: true,
        extra: &extra,
        ..Composition::default()
    };
    composition.compose().to_string()
}

fn firmware() -> Firmware {
    if Path::new("/sys/firmware/efi").is_dir() { Firmware::Uefi } else { Firmware::Bios }
}

fn install_fresh(
    options: &InstallOptions,
    artifacts: &Artifacts,
    disk: &Path,
    cmdline: String,
    documents: Option<&Documents>,
) -> Result<(), InstallError> {
    let device = disk::open(disk, true)?;
    if let Some(found) = blank::occupied(&disk::contents(&device)?) {
        if !options.force && !options.zero {
            return Err(InstallError::NotEmpty { path: disk.to_owned(), found });
        }
        say(&format!("{} is not empty and is overwritten: {found}", disk.display()));
    }
    let mut mounts = Mounts::private(Path::new("/run/ichor-installer"))?;
    // Firmware that cannot be written to still starts what is on the disk.
    let variables = mounts.variables(true).unwrap_or_else(|error| {
        say(&format!("the variables of the firmware are not set: {}", chain(&error)));
        None
    });
    let entries = fresh::boot_entries(variables.as_deref());
    let install = documents.and_then(|documents| documents.root()?.machine.as_ref()?.install.as_ref());
    let fresh = Fresh {
        artifacts,
        arch: options.arch,
        firmware: firmware(),
        cmdline,
        legacy_bootable: install.is_some_and(|install| install.legacy_bios_support == Some(true)),
        meta: &options.meta,
        entries: &entries,
    };
    let geometry = device.geometry();
    let geometry =
        geometry.map_err(|source| InstallError::Disk { what: "look at", path: disk.to_owned(), source })?;
    let plan = fresh.plan(geometry, Guid::random)?;
    plan.write(&device, say)?;
    drop(device);
    if variables.is_some() {
        let paths = BootPaths { variables, ..BootPaths::default() };
        let mut nothing = DiskMeta::none();
        let outside = DiskOutside { meta: &mut nothing, disk: None };
        if let Err(error) = execute(&plan.variables, &mut BootPort::new(paths, outside)) {
            say(&format!("the variables of the firmware are not set: {}", chain(&error)));
        }
    }
    say(&format!("{} {} is installed on {}", artifacts.name, artifacts.tag, disk.display()));
    Ok(())
}

fn upgrade(
    options: &InstallOptions,
    artifacts: &Artifacts,
    disk: &Path,
    cmdline: String,
) -> Result<(), InstallError> {
    if options.force || options.zero {
        say("an upgrade keeps what is on the disk; --force and --zero change nothing");
    }
    let mut system = SystemDisk::open(disk, true)?;
    let source = |content: &Content| {
        let content = content.clone();
        AssetSource::new(content.len(), move || Ok(Box::new(content.reader())))
    };
    let has_boot = system.paths_mut().boot.is_some();
    let (what, place, len) = match has_boot {
        true => ("kernel and initramfs", "BOOT", artifacts.kernel.len() + artifacts.initramfs.len()),
        false => ("the kernel image", "EFI", artifacts.uki.len()),
    };
    let room = system.partition_size(place).unwrap_or_default().saturating_sub(SPARE) / 2;
    if len > room {
        return Err(InstallError::TooLarge { what, len, place, room });
    }
    system.paths_mut().assets = BTreeMap::from([
        (Asset::Uki, source(&artifacts.uki)),
        (Asset::Kernel, source(&artifacts.kernel)),
        (Asset::Initramfs, source(&artifacts.initramfs)),
    ]);
    for (key, value) in &options.meta {
        let set = system.meta_mut().set(*key, value);
        set.map_err(|source| InstallError::Disk { what: "write META of", path: disk.to_owned(), source })?;
    }
    let new = NewSystem { name: artifacts.name.clone(), tag: artifacts.tag.clone(), cmdline };
    let start = match options.start {
        FirstStart::OneShot => Start::OneShot,
        FirstStart::Default => Start::Default,
    };
    let running = system.running();
    let name = system.installed().upgrade(&new, start, &running)?;
    say(&format!("{} {} is written as {name}", artifacts.name, artifacts.tag));
    Ok(())
}

fn act(action: SlotsAction, disk: &Path) -> Result<(), InstallError> {
    let result = match action {
        SlotsAction::Show => {
            let mut system = SystemDisk::open(disk, false)?;
            let found = system.installed().read()?;
            found.record.encode().lines().for_each(say);
            return Ok(());
        }
        SlotsAction::Boot => boot(disk)?,
        SlotsAction::Commit => {
            let mut system = SystemDisk::open(disk, true)?;
            let running = system.running();
            let kept = system.installed().commit(&running)?;
            if kept { "committed" } else { "run" }.to_owned()
        }
        SlotsAction::Fail => {
            let mut system = SystemDisk::open(disk, true)?;
            let running = system.running();
            system.installed().fail(&running)?.to_string()
        }
        SlotsAction::Rollback => {
            let mut system = SystemDisk::open(disk, true)?;
            let running = system.running();
            system.installed().rollback(&running)?
        }
    };
    say(&format!("{RESULT}{result}"));
    Ok(())
}

/// Continues after a start. Most of the time there is nothing to do, and nothing is mounted for writing then.
fn boot(disk: &Path) -> Result<String, InstallError> {
    let mut system = SystemDisk::open(disk, false)?;
    let running = system.running();
    let (steps, outcome) = system.installed().decide(&running)?;
    if steps.is_empty() && !system.is_dual_boot() {
        return Ok(outcome.to_string());
    }
    drop(system);
    let mut system = SystemDisk::open(disk, true)?;
    let outcome = system.installed().boot(&running)?;
    if system.is_dual_boot() {
        say("dropping the boot loader that this machine was not started by");
        if let Err(error) = system.drop_other_loader() {
            say(&format!("the other boot loader stays: {}", chain(&error)));
        }
    }
    Ok(outcome.to_string())
}

fn reset(disk: Option<&Path>, labels: &[String], wipe: &[std::path::PathBuf]) -> Result<(), InstallError> {
    if let Some(disk) = disk {
        let disk = disk::resolve(disk);
        match labels.is_empty() {
            true => disk::wipe_whole(&disk, say)?,
            false => SystemDisk::open_to_reset(&disk, labels)?.reset(labels, say)?,
        }
    }
    for path in wipe {
        disk::wipe_whole(&disk::resolve(path), say)?;
    }
    Ok(())
}
