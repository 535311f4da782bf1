//! Machine configurations: what commands cost, what hostile texts cost, and what a crash leaves of one being applied.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ichor_live::programs::{Run, measured, median};
use ichor_live::{Fleet, SOON, hostile, processes, root, wait};

/// `ichorctl` in a directory, without a fleet.
fn ichorctl(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(root().join("bin/ichorctl"));
    command.args(args).env("HOME", dir).env_remove("TALOSCONFIG").current_dir(dir);
    command
}

#[track_caller]
fn ok(dir: &Path, args: &[&str]) -> Run {
    let run = measured(&mut ichorctl(dir, args), false).unwrap();
    assert!(run.output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&run.output.stderr));
    run
}

/// Secrets and configurations of a cluster, generated into a directory of its own.
fn generated() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    ok(dir.path(), &["gen", "secrets"]);
    ok(dir.path(), &["gen", "config", "a", "https://10.0.0.1:6443", "--with-secrets", "secrets.yaml"]);
    dir
}

/// What a hostile text may take in the build of the tests; `make bench` holds the release build to 100 ms.
const HOSTILE_MS_MAX: f64 = 500.0;

/// The best of a few measurements, or the first within the limit: others on the machine can only make one worse.
fn best(limit: f64, mut measure: impl FnMut() -> f64) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..5 {
        best = best.min(measure());
        if best <= limit {
            break;
        }
    }
    best
}

/// `make bench` holds the release build to 6 and 10 ms. This is the build of the tests, beside other suites: enough to see
/// work that was done twice or that grows with the square of its input.
#[test]
fn commands_are_quick() {
    let dir = generated();
    let validate: &[&str] = &["validate", "-c", "controlplane.yaml", "-m", "metal"];
    let generate: &[&str] =
        &["gen", "config", "a", "https://10.0.0.1:6443", "--with-secrets", "secrets.yaml", "--force"];
    for (args, limit) in [(validate, 40.0), (generate, 80.0)] {
        let time = best(limit, || median((0..15).map(|_| ok(dir.path(), args).millis).collect()));
        println!("{}: {time:.1} ms", args[..2].join(" "));
        assert!(time <= limit, "{args:?}: {time:.1} ms, {limit} at most");
    }
    let peaks = (0..50).map(|_| measured(&mut ichorctl(dir.path(), validate), true).unwrap().peak_kib);
    let peak = peaks.max().unwrap();
    println!("validate: {peak} KiB");
    assert!((1..=24 * 1024).contains(&peak), "validate: {peak} KiB");
    let secrets = |_| ok(dir.path(), &["gen", "secrets", "-o", "-"]).millis;
    let time = best(1200.0, || median((0..9).map(secrets).collect()));
    println!("gen secrets: {time:.0} ms");
    assert!(time <= 1200.0, "gen secrets: {time:.0} ms");
}

#[test]
fn hostile_texts_cost_little_and_are_pointed_at() {
    let dir = tempfile::tempdir().unwrap();
    let args: &[&str] = &["validate", "-c", "x.yaml", "-m", "metal"];
    let mut problems = Vec::new();
    for case in hostile::cases() {
        fs::write(dir.path().join("x.yaml"), &case.text).unwrap();
        let run = || measured(&mut ichorctl(dir.path(), args), true).unwrap();
        let mut runs: Vec<Run> = (0..3).map(|_| run()).collect();
        let quickest = |runs: &[Run]| runs.iter().map(|run| run.millis).fold(f64::MAX, f64::min);
        while quickest(&runs) > HOSTILE_MS_MAX && runs.len() < 15 {
            runs.push(run());
        }
        let millis = quickest(&runs);
        let peak = runs.iter().map(|run| run.peak_kib).max().unwrap();
        println!("{}: {millis:.1} ms, {peak} KiB", case.name);
        let said = String::from_utf8_lossy(&runs[0].output.stderr).into_owned();
        let mut wrong = |what: String| problems.push(format!("{}: {what}", case.name));
        if runs[0].output.status.code() != Some(1) || !said.contains(case.says) || !said.contains("x.yaml:") {
            wrong(format!("{:?} {said:.300}", runs[0].output.status));
        }
        if said.len() > 64 * 1024 {
            wrong(format!("{} bytes are said", said.len()));
        }
        if millis > HOSTILE_MS_MAX || peak > 64 * 1024 {
            wrong(format!("{millis:.1} ms, {peak} KiB"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The file on the state volume of the first machine, as the host sees it.
fn state_file(fleet: &Fleet) -> PathBuf {
    let machines = fleet.home().join(".talos/clusters").join(fleet.name()).join("machines");
    machines.join(format!("{}-controlplane-1", fleet.name())).join("state/config.yaml")
}

fn machined(fleet: &Fleet) -> processes::Process {
    let found = || fleet.daemons("machined").into_iter().next();
    wait("machined runs", SOON, found).unwrap()
}

fn answers(fleet: &Fleet) {
    let node = fleet.address(0);
    wait("the API answers", SOON, || fleet.ok(&["-n", &node, "version"]).ok()).unwrap();
}

/// A machine that answers; whether it is ready for workloads does not matter here.
fn up(name: &str, octet: u8) -> Fleet {
    let fleet = Fleet::create(name, octet, 1, 0, &["--wait=false"]).unwrap();
    answers(&fleet);
    fleet
}

fn active(fleet: &Fleet, id: &str) -> String {
    let node = fleet.address(0);
    fleet.soon(&["-n", &node, "get", "mc", id, "-o", "jsonpath={.spec}"]).unwrap()
}

#[test]
fn a_configuration_is_whole_whenever_the_node_dies() {
    let fleet = up("apply", 32);
    let node = fleet.address(0);
    let file = state_file(&fleet);
    let base = fs::read_to_string(&file).unwrap();

    // A refusal names every place, and changes nothing.
    let wrong = fleet.home().join("wrong.yaml");
    fs::write(&wrong, base.replacen("machine:\n", "machine:\n    tpye: worker\n", 1)).unwrap();
    let told = fleet.fails(&["-n", &node, "apply-config", "-f", wrong.to_str().unwrap()]).unwrap();
    let line = base.lines().position(|line| line == "machine:").unwrap() + 2;
    assert!(told.contains(&format!("wrong.yaml:{line}:5")), "{told}");
    assert_eq!(fs::read_to_string(&file).unwrap(), base);

    // Two configurations of some size, so that writing takes a moment.
    let padding = "# ".to_owned() + &"x".repeat(120) + "\n";
    let texts =
        ["one", "two"].map(|name| format!("{base}# {name}\n{}# end of {name}\n", padding.repeat(4000)));
    let paths = ["one", "two"].map(|name| fleet.home().join(format!("{name}.yaml")));
    for (path, text) in paths.iter().zip(&texts) {
        fs::write(path, text).unwrap();
    }
    // How long a call takes that nobody disturbs; the kills are spread over a little more than that.
    let apply =
        |which: usize| ["-n", &node, "apply-config", "-m", "staged", "-f", paths[which].to_str().unwrap()];
    let start = Instant::now();
    fleet.soon(&apply(1)).unwrap();
    let whole = start.elapsed().min(Duration::from_secs(2));
    let mut seen = [0, 0];
    let mut current = fs::read_to_string(&file).unwrap();
    for round in 0..40_u32 {
        let victim = machined(&fleet);
        let which = (round % 2) as usize;
        let mut child = fleet
            .command(&apply(which))
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // From before the request arrives until after it is answered.
        std::thread::sleep(whole * (round + 2) / 30);
        assert!(processes::kill(victim.pid));
        let told_done = wait("the client ends", SOON, || child.try_wait().unwrap()).unwrap();
        let left = fs::read_to_string(&file).unwrap_or_else(|error| panic!("round {round}: {error}"));
        let known = [&current, &texts[0], &texts[1]].iter().any(|text| **text == left);
        assert!(known, "round {round}: {} bytes that nobody sent", left.len());
        if told_done.success() {
            assert!(left == texts[which], "round {round}: told as staged, and lost");
        }
        seen[usize::from(left == texts[which] && left != current)] += 1;
        current = left;
        answers(&fleet);
    }
    println!("40 kills while applying: {} before the file was replaced, {} after", seen[0], seen[1]);
    assert!(seen[1] > 0, "no round came through; the kills are too early (a call takes {whole:?})");

    // A trial does not outlive the node that holds it.
    let before = active(&fleet, "v1alpha1");
    let patch = "machine:\n  sysctls:\n    net.core.somaxconn: \"4099\"\n";
    fleet.soon(&["-n", &node, "patch", "mc", "-p", patch, "--mode", "try", "--timeout", "30m"]).unwrap();
    wait("the trial", SOON, || active(&fleet, "v1alpha1").contains("somaxconn").then_some(())).unwrap();
    assert!(!fs::read_to_string(&file).unwrap().contains("somaxconn"), "a trial is not on disk");
    assert!(processes::kill(machined(&fleet).pid));
    let start = Instant::now();
    answers(&fleet);
    wait("the configuration before the trial is back", SOON, || {
        (active(&fleet, "v1alpha1") == before).then_some(())
    })
    .unwrap();
    println!("back from a trial {:?} after the node died", start.elapsed());
    fleet.destroy().unwrap();
}

#[test]
fn a_client_certificate_is_renewed_in_time() {
    let fleet = up("renew", 32);
    let node = fleet.address(0);
    let file = |name: &str| fleet.home().join(name).to_str().unwrap().to_owned();
    let (short, gone) = (file("short"), file("gone"));
    fleet.soon(&["-n", &node, "config", "new", &short, "--crt-ttl", "1000h"]).unwrap();
    fleet.soon(&["-n", &node, "config", "new", &gone, "--crt-ttl", "2s"]).unwrap();
    let run = |talosconfig: &str, words: &[&str]| {
        let words = [&["-n", node.as_str(), "--talosconfig", talosconfig], words].concat();
        let output = fleet.run(&words).unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };

    let (answered, told) = run(&short, &["version"]);
    assert!(answered && told.contains("ends 1 month from now"), "{told}");
    let (renewed, told) = run(&short, &["config", "renew", "--crt-ttl", "8760h"]);
    assert!(renewed && told.contains("renewed the client certificate"), "{told}");
    assert_eq!(run(&short, &["version"]), (true, String::new()), "nothing to warn of any more");

    let mut automatic = fleet.command(&["-n", &node, "config", "new", &file("auto"), "--crt-ttl", "1200h"]);
    assert!(automatic.output().unwrap().status.success());
    let before = fs::read(fleet.home().join("auto")).unwrap();
    // The new one lasts as long as the old one was meant to: only a moment longer, but it is another one.
    std::thread::sleep(Duration::from_secs(2));
    let mut version = fleet.command(&["-n", &node, "--talosconfig", &file("auto"), "version"]);
    let output = version.env("ICHOR_AUTO_RENEW", "1").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_ne!(fs::read(fleet.home().join("auto")).unwrap(), before, "{output:?}");

    let (answered, told) = wait("the end of a certificate", SOON, || {
        let (answered, told) = run(&gone, &["version"]);
        (!answered).then_some((answered, told))
    })
    .unwrap();
    assert!(!answered && told.contains(" ended ") && told.contains("ichorctl gen config"), "{told}");
    fleet.destroy().unwrap();
}
