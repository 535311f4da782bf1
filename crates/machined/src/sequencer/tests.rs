//! Plans, locking and the event stream of sequences.

use std::sync::Mutex;

use expect_test::{Expect, expect};
use ichor_wire::machine::reset_request::WipeMode;

use super::table::{ResetRequest, UpgradeRequest};
use super::*;
use crate::events::{Payload, Tail};

#[derive(Default)]
struct Fake {
    /// What tasks end with; others end well.
    ends: Mutex<Vec<(Task, TaskError)>>,
    /// These tasks last until cancelled.
    hang: Vec<Task>,
}

impl Tasks for Fake {
    fn run(&self, task: Task, context: TaskContext) -> BoxFuture<'static, Result<(), TaskError>> {
        if self.hang.contains(&task) {
            return Box::pin(async move {
                context.cancel.cancelled().await;
                Err(TaskError::Failed("interrupted".to_owned()))
            });
        }
        let end = self.ends.lock().unwrap().iter().find(|(name, _)| *name == task).cloned();
        Box::pin(std::future::ready(end.map_or(Ok(()), |(_, error)| Err(error))))
    }

    fn check(&self, check: Check, _request: &Request) -> bool {
        match check {
            Check::OwnsKernel
            | Check::HasUdevd
            | Check::HasDashboard
            | Check::HaltsIfInstalled
            | Check::Registers => false,
        }
    }
}

fn bench(fake: Fake) -> (Sequencer, Events) {
    let events = Events::default();
    (Sequencer::new(Arc::new(fake), events.clone(), Handle::current()), events)
}

fn story(events: &Events) -> String {
    let mut watch = events.watch(&Tail::Count(None), None);
    let mut out = String::new();
    while let Some(event) = watch.try_next() {
        let line = match &event.payload {
            Payload::Sequence(event) => match &event.error {
                None => format!("{} {}", event.action().as_str_name(), event.sequence),
                Some(error) => {
                    format!("{} {}: {}", error.code().as_str_name(), event.sequence, error.message)
                }
            },
            Payload::Phase(event) => format!("  {} {}", event.action().as_str_name(), event.phase),
            Payload::Task(event) => format!("    {} {}", event.action().as_str_name(), event.task),
            other => format!("{other:?}"),
        };
        out.push_str(&line);
        out.push('\n');
    }
    out
}

#[track_caller]
fn check_plan(request: &Request, expect: Expect) {
    let text: Vec<String> = plan(request)
        .iter()
        .map(|phase| {
            let tasks: Vec<&str> = phase.tasks.iter().map(|task| task.as_str()).collect();
            format!("{}: {}", phase.name, tasks.join(", "))
        })
        .collect();
    expect.assert_eq(&text.join("\n"));
}

fn reset(reboot: bool, mode: WipeMode, partitions: &[&str]) -> Request {
    let partitions = partitions.iter().map(|label| (*label).to_owned()).collect();
    Request::Reset(ResetRequest { graceful: true, reboot, mode, partitions, user_disks: Vec::new() })
}

fn names(request: &Request) -> Vec<&'static str> {
    plan(request).iter().map(|phase| phase.name).collect()
}

#[test]
fn a_system_is_written_before_anything_it_needs_is_stopped() {
    let upgrade = || UpgradeRequest { image: "a:1".to_owned(), force: false };
    assert!(names(&Request::Install { needed: false }).is_empty());
    let install = names(&Request::Install { needed: true });
    assert_eq!(install[..3], ["install", "meta", "saveMeta"]);
    assert_eq!(install.last(), Some(&"reboot"));
    let steps = names(&Request::Upgrade(upgrade()));
    assert_eq!(steps[..4], ["drain", "cleanup", "upgrade", "stopServices"]);
    assert_eq!(steps.last(), Some(&"reboot"));
    assert_eq!(names(&Request::MaintenanceUpgrade(upgrade())), ["upgrade", "stopEverything", "reboot"]);
    assert!(!names(&Request::StageUpgrade).contains(&"upgrade"), "at the next start");
}

#[test]
fn other_disks_are_wiped_when_they_are_named_and_meant() {
    let phases = |mode| {
        let Request::Reset(request) = reset(true, mode, &[]) else { panic!() };
        names(&Request::Reset(ResetRequest { user_disks: vec!["/dev/vdb".to_owned()], ..request }))
    };
    let wiped = |mode| phases(mode).contains(&"resetUserDisks");
    assert!(wiped(WipeMode::All) && wiped(WipeMode::UserDisks) && !wiped(WipeMode::SystemDisk));
    let only = phases(WipeMode::UserDisks);
    assert!(!only.contains(&"reset") && !only.contains(&"resetSpec"), "{only:?}");
}

#[test]
fn a_forced_reboot_does_nothing_else() {
    check_plan(&Request::Reboot { force: true }, expect!["reboot: reboot"]);
}

#[test]
fn a_shutdown_first_remembers_that_it_is_one() {
    check_plan(
        &Request::Shutdown { force: false },
        expect![[r#"
            storeShutdown: storeShutdown
            drain: cordonAndDrainNode
            cleanup: stopAllPods
            stopServices: stopServicesForUpgrade
            umount: unmountPodMounts
            unmountBind: unmountSystemDiskBindMounts
            unmountSystem: unmountEphemeralPartition
            volumeFinalize: teardownLifecycle
            stopEverything: stopAllServices
            shutdown: shutdown"#]],
    );
}

#[test]
fn a_reset_clears_what_was_named() {
    check_plan(
        &reset(true, WipeMode::All, &["STATE"]),
        expect![[r#"
            drain: cordonAndDrainNode
            cleanup: removeAllPods
            leave: leaveEtcd
            preReset: sendResetSignal
            stopServices: stopServicesForUpgrade
            umount: unmountPodMounts
            unmountBind: unmountSystemDiskBindMounts
            unmountSystem: unmountEphemeralPartition
            volumeFinalize: teardownLifecycle
            stopEverything: stopAllServices
            resetSpec: resetSystemDiskSpec
            reboot: reboot"#]],
    );
    let user_disks = plan(&reset(false, WipeMode::UserDisks, &[]));
    assert_eq!(user_disks.last().unwrap().name, "shutdown");
    assert!(!user_disks.iter().any(|phase| phase.name.starts_with("reset")));
}

#[tokio::test(start_paused = true)]
async fn a_sequence_tells_its_story_and_skips_unchecked_phases() {
    let (sequencer, events) = bench(Fake::default());
    sequencer.run(Request::Initialize, false, "").await.unwrap();
    expect![[r#"
        START initialize
          START earlyServices
            START startMachined
            STOP startMachined
          STOP earlyServices
          START meta
            START reloadMeta
            STOP reloadMeta
          STOP meta
          START config
            START loadConfig
            STOP loadConfig
          STOP config
        STOP initialize
    "#]]
    .assert_eq(&story(&events));
}

#[test]
fn a_kernel_and_its_devices_come_first_and_what_users_wrote_before_services() {
    let names = |request: &Request| plan(request).iter().map(|phase| phase.name).collect::<Vec<_>>();
    let initialize = names(&Request::Initialize);
    assert_eq!(initialize[..4], ["systemRequirements", "udevd", "earlyServices", "logServices"]);
    assert_eq!(initialize[5..], ["dashboard", "haltIfInstalled", "config"]);
    assert_eq!(
        names(&Request::Boot),
        ["memorySizeCheck", "ephemeral", "udevSetup", "userDisks", "userSetup", "startEverything"]
    );
    let forgiving = plan(&Request::Boot).iter().filter(|phase| phase.forgiving).count();
    assert_eq!(forgiving, 3, "a rule, a disk or a file that is wrong does not stop the boot");
}

#[tokio::test(start_paused = true)]
async fn a_failed_task_ends_the_sequence_and_is_fatal() {
    let broken = (Task::MemorySizeCheck, TaskError::Failed("bad name".to_owned()));
    let (sequencer, events) = bench(Fake { ends: Mutex::new(vec![broken]), ..Fake::default() });
    sequencer.run(Request::Boot, false, "").await.unwrap_err();
    let story = story(&events);
    assert!(!story.contains("startEverything"), "{story}");
    let end: Vec<&str> = story.lines().rev().take(2).collect();
    assert_eq!(
        end,
        [
            "FATAL boot: error running phase memorySizeCheck in boot sequence: task memorySizeCheck: bad name",
            "STOP boot"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_stops_gets_there_whatever_fails() {
    let ends = vec![
        (Task::StopAllServices, TaskError::Failed("stuck".to_owned())),
        (Task::Reboot, TaskError::Reboot(0x0123_4567)),
    ];
    let (sequencer, events) = bench(Fake { ends: Mutex::new(ends), ..Fake::default() });
    let error = sequencer.run(Request::Reboot { force: false }, false, "me").await.unwrap_err();
    assert_eq!(error, SequenceError::Reboot(0x0123_4567));
    assert!(story(&events).ends_with("FATAL reboot: unix.Reboot(1234567)\n"));
    let mut of_me = events.watch(&Tail::Count(None), Some("me"));
    assert!(of_me.try_next().is_some(), "events carry the actor");
}

#[tokio::test(start_paused = true)]
async fn a_second_sequence_is_refused() {
    let (sequencer, events) = bench(Fake { hang: vec![Task::LoadConfig], ..Fake::default() });
    sequencer.start(Request::Initialize, false, "");
    tokio::task::yield_now().await;
    let error = sequencer.run(Request::Reboot { force: false }, false, "").await.unwrap_err();
    assert_eq!(error.to_string(), "sequence reboot is locked: sequence initialize is running");
    assert!(story(&events).contains("LOCKED reboot: "));
}

#[tokio::test(start_paused = true)]
async fn a_reboot_takes_over_from_a_boot() {
    let (sequencer, events) = bench(Fake { hang: vec![Task::StartAllServices], ..Fake::default() });
    sequencer.start(Request::Boot, false, "");
    tokio::time::sleep(Duration::from_millis(10)).await;
    sequencer.run(Request::Reboot { force: true }, false, "").await.unwrap();
    assert!(story(&events).contains("CANCELED boot: sequence boot was canceled"), "{}", story(&events));
}

#[tokio::test(start_paused = true)]
async fn the_takeover_option_opens_every_lock() {
    let (sequencer, _events) = bench(Fake { hang: vec![Task::LoadConfig], ..Fake::default() });
    sequencer.start(Request::Initialize, false, "");
    tokio::time::sleep(Duration::from_millis(10)).await;
    sequencer.run(Request::Shutdown { force: true }, true, "").await.unwrap();
}

#[test]
fn takeover_is_a_short_list() {
    use Sequence::*;
    let all =
        [Noop, Boot, Initialize, Install, Shutdown, Upgrade, StageUpgrade, MaintenanceUpgrade, Reset, Reboot];
    let mut pairs = Vec::new();
    for running in all {
        for asked in all {
            if lock::may_take_over(running, asked) {
                pairs.push(format!("{}<{}", running.as_str(), asked.as_str()));
            }
        }
    }
    assert_eq!(
        pairs,
        [
            "boot<upgrade",
            "boot<reset",
            "boot<reboot",
            "initialize<maintenanceUpgrade",
            "reset<reboot",
            "reboot<reboot"
        ]
    );
}
