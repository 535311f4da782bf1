//! Upgrades to systems that do not work: the machine returns to its last good one by itself, knows what failed, and refuses to
//! go back to it. Their installers are pulled from the registry of the cluster.

#[path = "os_bad/images.rs"]
mod images;

use std::time::Duration;

use ichor_live::os::{Life, STEP_MAX};
use ichor_live::wait;

use images::Bad;

/// The network of these tests.
const OCTET: u8 = 88;
/// How long a system that hangs is left alone: nothing comes of it.
const LEFT_ALONE: Duration = Duration::from_secs(30);

/// What the console said since the bad system was started; nothing before that.
fn since_start(console: &str, bad: Bad) -> Option<String> {
    let marker = bad.marker();
    let mut lines =
        console.lines().skip_while(|line| !(line.contains("ommand line:") && line.contains(&marker)));
    lines.next().map(|_| lines.collect::<Vec<_>>().join("\n"))
}

#[track_caller]
fn seen(life: &Life, what: &str, bad: Bad, wanted: &[&str]) {
    let found = wait(what, STEP_MAX, || {
        let text = since_start(&life.console_text(), bad)?;
        wanted.iter().all(|word| text.contains(word)).then_some(())
    });
    found.unwrap_or_else(|error| {
        let since = since_start(&life.console_text(), bad).unwrap_or_default();
        panic!("{bad:?}: {error}: {wanted:?}{}\nsince its start:\n{since}", life.console())
    });
    life.told(what);
}

/// Upgrades to a bad system and waits until the good one is back.
fn returns_from(life: &Life, bad: Bad) {
    println!("{bad:?}");
    let before = life.boot_id();
    life.node(&["upgrade", "--image", &bad.installer(), "--wait=false"]).unwrap();
    life.told("upgrade was taken");
    seen(life, "the bad system was started", bad, &[]);
    match bad {
        Bad::HangsBeforeInit => {
            seen(life, "its first program runs", bad, &["Run /init as init process"]);
            std::thread::sleep(LEFT_ALONE);
            assert!(life.node(&["version"]).is_err(), "a machine that hangs answers");
            life.power_cycle();
        }
        Bad::InitPanics => {
            seen(life, "the kernel panicked", bad, &["Kernel panic", "Attempted to kill init"])
        }
        Bad::MachinedHangs => seen(life, "init restarted the machine", bad, &["machined makes no progress"]),
        Bad::KubeletUnhealthy => {
            seen(life, "machined gave it up", bad, &["this system is not healthy", "service kubelet"]);
        }
    }

    // Whatever answers now, the bad system or the good one: the good one is waited for.
    let good = wait("the good system", STEP_MAX, || {
        let line = life.node(&["read", "/proc/cmdline"]).ok().filter(|line| line.contains("talos."))?;
        let boot = life.node(&["read", "/proc/sys/kernel/random/boot_id"]).ok()?;
        (!line.contains(&bad.marker()) && boot.trim() != before.trim()).then_some(line)
    });
    let line = good.unwrap_or_else(|error| panic!("{bad:?}: {error}{}", life.console()));
    assert!(!line.contains("halt_if_installed"), "started from the medium: {line}");
    life.told("runs the good system again");

    let failure = match bad {
        Bad::KubeletUnhealthy => "failed-unhealthy",
        Bad::HangsBeforeInit | Bad::InitPanics | Bad::MachinedHangs => "failed-never-came-up",
    };
    life.slots("the slot is marked as failed", |text| {
        text.lines().any(|line| line.starts_with("A default good"))
            && text.lines().any(|line| line.starts_with("B ") && line.contains(failure))
    });
    life.ready();
    let refused = life.node(&["rollback"]).map_err(|error| format!("{error:#}"));
    assert!(refused.as_ref().is_err_and(|error| error.contains("failed its trial")), "{refused:?}");
    let why = life.node(&["why", "--last-boot"]).unwrap_or_else(|error| format!("{error:#}"));
    assert!(why.contains("an upgrade was taken back"), "{why}");
    println!("{why}");
}

fn returns(name: &str, is_uefi: bool) {
    let life = Life::begin(name, OCTET, is_uefi, &images::layout(name));
    life.install();
    for bad in Bad::ALL {
        returns_from(&life, bad);
    }
    life.fleet.destroy().unwrap();
}

#[test]
fn a_machine_returns_from_systems_that_do_not_work_by_uefi() {
    returns("bad-uefi", true);
}

#[test]
fn a_machine_returns_from_systems_that_do_not_work_by_bios() {
    returns("bad-bios", false);
}
