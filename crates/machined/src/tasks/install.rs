//! Tasks that put a system on disk: the first one, and those after it.

use std::sync::Arc;
use std::time::Duration;

use tracing::{error, info, warn};

use ichor_boot::cmdline::passed_on;
use ichor_config::v1alpha1::install::InstallConfig;
use ichor_cosi::State;
use ichor_ctl_block::META_LABEL;
use ichor_ctl_block::volumes::matches_disk;
use ichor_ctl_runtime::Meta;
use ichor_render::difference::{Told, cut, tell};
use ichor_resource::block::{Disk, VolumePhase, VolumeStatus};

use super::{config, failed, storage};
use crate::cri;
use crate::installer::candidate::Assessment;
use crate::installer::{self, Source, facts};
use crate::node::Node;
use crate::sequencer::TaskError;
use crate::sequencer::table::UpgradeRequest;
use crate::services::{ProcessSpec, ServiceState};
use crate::slots::{Fate, Staged};
use crate::supervisor::Supervisor;

/// The META key of a staged upgrade's image.
pub(crate) const STAGED_IMAGE: u8 = 0x07;
/// The META key of its options.
pub(crate) const STAGED_OPTIONS: u8 = 0x08;
/// An installer reads and writes a few hundred megabytes.
const INSTALLER_MAX: Duration = Duration::from_secs(20 * 60);
/// The kernel tells of new partitions at once, and the volumes follow.
const META_MAX: Duration = Duration::from_secs(45);
/// What the log has of a difference.
const IN_LOG: Told = Told { lines_max: 400, line_max: 300, context: false };
/// What whoever asked for an upgrade sees of it: events are kept, and there is room for a thousand.
const IN_EVENTS: Told = Told { lines_max: 40, line_max: 160, context: false };
/// Characters of the list of what differs.
const THINGS_MAX: usize = 300;
/// How long the container runtime may take to start.
const RUNTIME_MAX: Duration = Duration::from_secs(5 * 60);

/// After META was read at the start of the machine: what was staged is taken out of it, and the slots are continued. init
/// guards the system until it is decided that it runs.
pub(super) async fn after_meta(node: &Arc<Node>, supervisor: Supervisor) {
    let meta = &node.store.meta;
    if let (Some(image), Some(options)) = (meta.get(STAGED_IMAGE), meta.get(STAGED_OPTIONS)) {
        // First of all, so that an upgrade that crashes the machine is not tried for ever.
        let mut removed = Ok(());
        for key in [STAGED_IMAGE, STAGED_OPTIONS] {
            removed = removed.and(meta.delete(key).await);
        }
        match (removed, staged(&image, &options)) {
            (Ok(()), Some(staged)) => node.slots.set_staged(staged),
            (Ok(()), None) => error!("the staged upgrade in META cannot be read and is dropped"),
            (Err(error), _) => {
                error!(%error, "the staged upgrade cannot be taken out of META and is dropped")
            }
        }
    }
    let (slots, weak, cmdline) = (node.slots.clone(), Arc::downgrade(node), node.host.cmdline.clone());
    tokio::spawn(async move {
        match slots.continue_after_start(weak, &cmdline).await {
            Fate::Runs => supervisor.trial_decided(),
            // The guard stays: it ends a reboot that hangs.
            Fate::Restarts => {}
        }
    });
}

/// A staged upgrade, as META keeps it.
fn staged(image: &[u8], options: &[u8]) -> Option<Staged> {
    let image = String::from_utf8(image.to_vec()).ok().filter(|image| !image.is_empty())?;
    let options: serde_json::Value = serde_json::from_slice(options).ok()?;
    Some(Staged { image, force: options.get("Force")?.as_bool()? })
}

/// The options of a staged upgrade, as the original keeps them.
pub(crate) fn staged_options(force: bool) -> Vec<u8> {
    let options = serde_json::json!({
        "Pull": false, "Force": force, "Upgrade": true, "Zero": false, "ExtraKernelArgs": null,
    });
    options.to_string().into_bytes()
}

/// Whether the system is to be put on disk before it starts everything.
pub(crate) async fn is_needed(node: &Arc<Node>) -> bool {
    if !crate::families::has_disks() {
        return false;
    }
    if node.slots.disk().is_some() {
        return node.slots.staged().is_some();
    }
    let Some(config) = config::active(&node.store.state) else { return false };
    let Some(install) = config.machine().and_then(|machine| machine.install.as_ref()) else { return false };
    if install.disk.is_empty() && install.disk_selector.is_none() {
        return false;
    }
    if candidates(&node.store.state).is_empty() {
        warn!(
            "this machine has no disk to install to; it runs from memory and forgets everything when it is turned off"
        );
        return false;
    }
    match installer::source(&install.image, installer::has_media().await) {
        Ok(Source::Image(image)) if installer::is_default(&image) => {
            warn!(
                image,
                "the system is not installed: that image is another system's, and no installation media of this one are \
                 attached; it runs from memory. Attach them, or name an installer of this system in machine.install.image"
            );
            false
        }
        Ok(_) | Err(_) => true,
    }
}

/// Disks that a system can be installed to.
fn candidates(state: &State) -> Vec<Disk> {
    let all = state.list::<Disk>("runtime");
    all.iter()
        .filter(|disk| !disk.readonly && !disk.cdrom && disk.size > 0)
        .map(|disk| (**disk).clone())
        .collect()
}

/// The disk that a configuration names. One that matches nothing, or several, is refused with what there is.
fn choose(install: &InstallConfig, disks: &[Disk]) -> Result<String, String> {
    let shown = |disks: &[&Disk]| {
        let one = |disk: &&Disk| {
            let facts = [
                disk.pretty_size.as_str(),
                disk.transport.as_str(),
                disk.model.as_str(),
                disk.serial.as_str(),
            ];
            let facts: Vec<&str> = facts.into_iter().filter(|fact| !fact.is_empty()).collect();
            format!("{} ({})", disk.dev_path, facts.join(", "))
        };
        match disks {
            [] => "none".to_owned(),
            disks => disks.iter().map(one).collect::<Vec<_>>().join("; "),
        }
    };
    let all: Vec<&Disk> = disks.iter().collect();
    if let Some(selector) = &install.disk_selector {
        let expression = selector.expression()?;
        let mut found = Vec::new();
        for disk in disks {
            if matches_disk(&expression, disk, None).map_err(|error| error.to_string())? {
                found.push(disk);
            }
        }
        return match found.as_slice() {
            [one] => Ok(one.dev_path.clone()),
            [] => Err(format!("machine.install.diskSelector matches no disk; disks: {}", shown(&all))),
            several => Err(format!(
                "machine.install.diskSelector matches {} disks and has to match one: {}",
                several.len(),
                shown(several)
            )),
        };
    }
    let wanted = &install.disk;
    let is_it = |disk: &&Disk| disk.dev_path == *wanted || disk.symlinks.iter().any(|link| link == wanted);
    match disks.iter().find(is_it) {
        Some(disk) => Ok(disk.dev_path.clone()),
        None => Err(format!(
            "machine.install.disk {wanted:?} is not there or cannot be written to; disks: {}",
            shown(&all)
        )),
    }
}

/// Flags that install and upgrade share.
fn flags(node: &Node, disk: &str, install: Option<&InstallConfig>) -> Vec<String> {
    let cmdline = &node.host.cmdline;
    let own: Vec<String> =
        install.map(|install| install.extra_kernel_args.iter().cloned().collect()).unwrap_or_default();
    let mut flags = vec![
        "install".to_owned(),
        format!("--disk={disk}"),
        format!("--platform={}", node.host.platform.name),
        format!("--config={}", cmdline.first("talos.config").unwrap_or("none")),
    ];
    for argument in passed_on(cmdline, &own).into_iter().chain(own) {
        flags.extend(["--extra-kernel-arg".to_owned(), argument]);
    }
    flags
}

/// Puts the system on disk, or writes the slot of an upgrade that was staged.
pub(super) async fn install(node: &Arc<Node>) -> Result<(), TaskError> {
    if node.slots.disk().is_some() {
        let Some(Staged { image, force }) = node.slots.staged() else { return Ok(()) };
        info!(image, "the staged upgrade is installed");
        // In the log; nobody waits for this upgrade.
        prepare(node, &image, force).await.map(drop).map_err(failed)?;
        return upgrade(node, &UpgradeRequest { image, force }).await;
    }
    let config = config::active(&node.store.state).ok_or_else(|| failed("there is no configuration"))?;
    let install = config.machine().and_then(|machine| machine.install.as_ref());
    let install = install.ok_or_else(|| failed("the configuration has no machine.install"))?;
    let disk = choose(install, &candidates(&node.store.state)).map_err(failed)?;
    let wipe = install.wipe == Some(true);
    // As the original: whatever is on the disk that a configuration names for the first installation is overwritten.
    info!(disk, wipe, "installing; what is on the disk is overwritten");
    let mut flags = flags(node, &disk, Some(install));
    flags.extend(["--upgrade=false", "--force=true"].map(str::to_owned));
    flags.push(format!("--zero={wipe}"));
    let file = node.slots.installer().configuration(&config.bytes()).map_err(failed)?;
    flags.push(file.flag());
    let spec = match installer::source(&install.image, installer::has_media().await).map_err(failed)? {
        Source::Media => node.slots.installer().own(flags),
        Source::Image(image) => {
            start_runtime(node).await.map_err(failed)?;
            node.slots.installer().pull(&image, false).await.map_err(failed)?;
            node.slots.installer().contained(&image, flags).await.map_err(failed)?
        }
    };
    // META has no partition yet, so that there is none to be lent.
    node.slots.installer().run(&spec, INSTALLER_MAX).await.map(drop).map_err(failed)
}

/// Finds META of the disk that was just installed; what was set before goes there.
pub(super) async fn reload_meta(state: State, meta: Meta) -> Result<(), TaskError> {
    let ready =
        state.wait_for::<VolumeStatus>("runtime", META_LABEL, |found| found.phase == VolumePhase::Ready);
    let late = || failed("META of the new disk did not show; what was set before the installation is lost");
    tokio::time::timeout(META_MAX, ready).await.map_err(|_| late())?.map_err(failed)?;
    storage::reload_meta(state, meta, true).await
}

/// Has an installer at hand and lets it say whether it can run with the configuration of this machine, before anything
/// changes. What is to be told about it comes back, line by line; the log has more of it.
pub(crate) async fn prepare(node: &Node, image: &str, force: bool) -> Result<Vec<String>, String> {
    let installer = node.slots.installer();
    let source = installer::source(image, installer::has_media().await)?;
    if let Source::Image(image) = &source {
        start_runtime(node).await?;
        installer.pull(image, force).await?;
    }
    let candidate = installer.candidate(&source).await?;
    let help = candidate.help().await.map_err(|error| format!("{image} is no installer: {error}"))?;
    let Some(config) = config::active(&node.store.state) else { return Ok(Vec::new()) };
    let facts = facts::gather(node);
    let questions = installer.questions(&config.bytes(), &facts)?;
    let own = move || ichor_render::render(&config, &facts).rendering;
    match candidate.assess(&help, &questions, own).await {
        Ok(assessment) => {
            lines(&assessment, IN_LOG).iter().for_each(|line| info!("upgrade to {image}: {line}"));
            Ok(lines(&assessment, IN_EVENTS))
        }
        Err(error) => {
            let refused = format!(
                "the system in {image} cannot run with the configuration of this machine, or does not say whether it can: \
                 {error}"
            );
            if !force {
                return Err(refused);
            }
            warn!("{refused}; forced");
            Ok(vec![format!("forced although {refused}")])
        }
    }
}

/// What is told of a candidate that may be installed.
fn lines(assessment: &Assessment, told: Told) -> Vec<String> {
    let mut lines: Vec<String> = assessment.notes.iter().map(|note| format!("note: {note}")).collect();
    match assessment.differences.as_deref() {
        Some([]) => lines.push("the new system runs the same with this configuration".to_owned()),
        Some(differences) => {
            let things: Vec<&str> = differences.iter().map(|found| found.thing.as_str()).collect();
            let differing = format!("the new system runs differently: {}", things.join(", "));
            lines.push(cut(&differing, THINGS_MAX));
            lines.extend(tell(differences, told));
        }
        None => {}
    }
    lines
}

/// The installer that a name means, with arguments.
async fn program(node: &Node, image: &str, args: Vec<String>) -> Result<ProcessSpec, String> {
    match installer::source(image, installer::has_media().await)? {
        Source::Media => Ok(node.slots.installer().own(args)),
        Source::Image(image) => node.slots.installer().contained(&image, args).await,
    }
}

/// Writes the slot that is not in use and has it started once.
pub(super) async fn upgrade(node: &Node, request: &UpgradeRequest) -> Result<(), TaskError> {
    let disk = node.slots.disk().ok_or_else(|| failed("system disk not found"))?;
    let config = config::active(&node.store.state);
    let install = config.as_ref().and_then(|config| config.machine()?.install.as_ref());
    let mut flags = flags(node, &disk.to_string_lossy(), install);
    flags.extend(["--upgrade=true", "--force=false", "--zero=false", "--start=one-shot"].map(str::to_owned));
    let file = config.as_ref().map(|config| node.slots.installer().configuration(&config.bytes()));
    let file = file.transpose().map_err(failed)?;
    flags.extend(file.as_ref().map(|file| file.flag()));
    let spec = program(node, &request.image, flags).await.map_err(failed)?;
    node.slots.change(spec, INSTALLER_MAX).await.map(drop).map_err(failed)
}

/// Starts the container runtime, which holds images, where it does not run yet.
async fn start_runtime(node: &Node) -> Result<(), String> {
    if matches!(node.services.state("cri"), Some((ServiceState::Running, _))) {
        return Ok(());
    }
    node.services.load(cri::service(&node.host, &node.store.state));
    node.services.start("cri").map_err(|error| error.to_string())?;
    node.services.wait_up(&["cri"], RUNTIME_MAX).await.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ichor_config::v1alpha1::install::DiskSelector;
    use ichor_render::difference::Difference;

    fn disks() -> Vec<Disk> {
        let disk = |path: &str, size: u64, model: &str| Disk {
            dev_path: path.to_owned(),
            size,
            pretty_size: format!("{} GB", size / 1_000_000_000),
            model: model.to_owned(),
            transport: "virtio".to_owned(),
            symlinks: vec![format!("/dev/disk/by-id/{model}")],
            ..Disk::default()
        };
        vec![disk("/dev/vda", 10_000_000_000, "small"), disk("/dev/vdb", 50_000_000_000, "large")]
    }

    fn selecting(model: &str) -> InstallConfig {
        let selector = DiskSelector { model: model.to_owned(), ..DiskSelector::default() };
        InstallConfig {
            disk: "/dev/vda".to_owned(),
            disk_selector: Some(selector),
            ..InstallConfig::default()
        }
    }

    #[test]
    fn what_would_differ_is_told_under_its_heading() {
        let difference =
            |thing: &str, text: &str| Difference { thing: thing.to_owned(), text: text.to_owned() };
        let told = |notes: &[&str], differences| {
            let notes = notes.iter().map(|note| (*note).to_owned()).collect();
            lines(&Assessment { notes, differences }, IN_EVENTS)
        };
        assert_eq!(told(&["x"], None), ["note: x"]);
        assert_eq!(told(&[], Some(vec![])), ["the new system runs the same with this configuration"]);
        let found = vec![difference("etcd", "-image: a\n+image: b\n"), difference("kubelet", "+v: 1\n")];
        assert_eq!(
            told(&[], Some(found)),
            [
                "the new system runs differently: etcd, kubelet",
                "etcd: -image: a",
                "etcd: +image: b",
                "kubelet: +v: 1"
            ]
        );
    }

    #[test]
    fn a_disk_is_found_by_its_path_its_links_or_a_selector() {
        let named = |disk: &str| InstallConfig { disk: disk.to_owned(), ..InstallConfig::default() };
        assert_eq!(choose(&named("/dev/vdb"), &disks()).as_deref(), Ok("/dev/vdb"));
        assert_eq!(choose(&named("/dev/disk/by-id/small"), &disks()).as_deref(), Ok("/dev/vda"));
        assert_eq!(choose(&selecting("lar*"), &disks()).as_deref(), Ok("/dev/vdb"), "wins over the path");
    }

    #[test]
    fn what_matches_nothing_or_several_is_refused_with_the_candidates() {
        let error = choose(&selecting("huge"), &disks()).unwrap_err();
        assert_eq!(
            error,
            "machine.install.diskSelector matches no disk; disks: /dev/vda (10 GB, virtio, small); /dev/vdb (50 GB, virtio, large)"
        );
        let error = choose(&selecting("*"), &disks()).unwrap_err();
        assert!(
            error.starts_with("machine.install.diskSelector matches 2 disks and has to match one: /dev/vda"),
            "{error}"
        );
        let missing = InstallConfig { disk: "/dev/sda".to_owned(), ..InstallConfig::default() };
        assert!(choose(&missing, &disks()).unwrap_err().contains("disks: /dev/vda"));
        assert!(choose(&missing, &[]).unwrap_err().ends_with("disks: none"));
    }

    #[test]
    fn a_staged_upgrade_is_kept_as_the_original_keeps_it() {
        let options = staged_options(true);
        let text = String::from_utf8(options.clone()).unwrap();
        assert_eq!(text, r#"{"Pull":false,"Force":true,"Upgrade":true,"Zero":false,"ExtraKernelArgs":null}"#);
        assert_eq!(staged(b"a:1", &options), Some(Staged { image: "a:1".to_owned(), force: true }));
        for (image, options) in
            [(&b""[..], &options[..]), (b"a:1", b"{}"), (b"\xff", &options), (b"a:1", b"x")]
        {
            assert_eq!(staged(image, options), None);
        }
    }
}
