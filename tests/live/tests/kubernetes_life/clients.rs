//! Clients that ask a cluster all the time and keep to the rules: one that goes on with what it has, one that fetches
//! its kubeconfig anew, one that knows both authorities of the machines.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ichor_kube::{Access, Client, Endpoint};
use ichor_live::Fleet;

/// Between two questions.
const PAUSE: Duration = Duration::from_millis(200);
/// Before the second try.
const RETRY: Duration = Duration::from_secs(1);
/// An answer on a busy machine takes no longer.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// A kubeconfig is fetched this often.
const FETCH: Duration = Duration::from_secs(3);

/// Somebody who asks.
pub(crate) trait Asks: Sync {
    /// Asks for the first or the second time.
    fn ask(&self, question: u32, second: bool) -> Result<()>;
}

/// Runs `change` while a client asks; a question without an answer at the second try is a failure.
pub(crate) fn under_questions(
    what: &str,
    client: &impl Asks,
    change: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let (done, start) = (AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask_until(client, &done));
        let changed = change();
        done.store(true, Ordering::SeqCst);
        let (asked, second, failures) = asking.join().map_err(|_| anyhow::anyhow!("the client panicked"))?;
        println!(
            "{what}: {:.1} s, {asked} questions, {second} at the second try, {} without an answer",
            start.elapsed().as_secs_f64(),
            failures.len()
        );
        changed?;
        ensure!(failures.is_empty(), "{what}: questions without an answer: {failures:#?}");
        ensure!(asked > second, "{what}: the client could never ask");
        Ok(())
    })
}

fn ask_until(client: &impl Asks, done: &AtomicBool) -> (u32, u32, Vec<String>) {
    let (mut asked, mut second, mut failures) = (0_u32, 0_u32, Vec::new());
    let start = Instant::now();
    while !done.load(Ordering::SeqCst) {
        asked += 1;
        if let Err(first) = client.ask(asked, false) {
            second += 1;
            std::thread::sleep(RETRY);
            if let Err(error) = client.ask(asked, true) {
                let at = start.elapsed().as_secs_f64();
                failures.push(format!("question {asked} at {at:.1} s: {first:#}; then {error:#}"));
            }
        }
        std::thread::sleep(PAUSE);
    }
    (asked, second, failures)
}

/// A client of Kubernetes that turns to one control plane after the other.
pub(crate) struct Kubeconfig<'a> {
    fleet: &'a Fleet,
    control_planes: u8,
    /// Who is asked for a new kubeconfig, if anybody is.
    talosconfig: Option<&'a str>,
    text: Mutex<(String, Instant)>,
    runtime: tokio::runtime::Runtime,
}

impl<'a> Kubeconfig<'a> {
    /// The administrator; with a client configuration of the machines it fetches its kubeconfig anew.
    pub(crate) fn of(fleet: &'a Fleet, control_planes: u8, talosconfig: Option<&'a str>) -> Result<Self> {
        let text = std::fs::read_to_string(fleet.home().join(".kube/config"))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { fleet, control_planes, talosconfig, text: Mutex::new((text, Instant::now())), runtime })
    }

    /// The kubeconfig, a new one when it is time or when it failed.
    fn text(&self, failed: bool) -> String {
        let mut kept = self.text.lock().unwrap();
        if let Some(talosconfig) = self.talosconfig
            && (failed || kept.1.elapsed() > FETCH)
        {
            let node = self.fleet.address(0);
            let args = ["--talosconfig", talosconfig, "-n", &node, "kubeconfig", "--merge=false", "-"];
            if let Ok(text) = self.fleet.ok(&args) {
                *kept = (text, Instant::now());
            }
        }
        kept.0.clone()
    }
}

impl Asks for Kubeconfig<'_> {
    fn ask(&self, question: u32, second: bool) -> Result<()> {
        let number = (question + u32::from(second)) % u32::from(self.control_planes);
        let mut access = Access::from_kubeconfig(&self.text(second))?;
        access.endpoint = Endpoint::new(self.fleet.loopback(u8::try_from(number)?), 6443);
        // A new connection each time: an open one says nothing about certificates.
        let client = Client::new(&access)?;
        let path = "/api/v1/namespaces/default";
        let host = access.endpoint.to_string();
        self.runtime.block_on(async {
            let answer = tokio::time::timeout(ANSWER_MAX, client.read(path)).await;
            let answer = answer.with_context(|| format!("{host}: no answer"))?;
            answer.map_err(|error| anyhow::anyhow!("{host}: {}", error.chain()))?;
            Ok(())
        })
    }
}

/// What a run of `rotate-ca` says about the new authority.
pub(crate) struct Bundles {
    output: PathBuf,
}

impl Bundles {
    /// Of the run with this output.
    pub(crate) fn told_in(output: &Path) -> Self {
        Self { output: output.to_owned() }
    }

    /// The new client configuration with both authorities, once it is told.
    fn both(&self, old: &str) -> Option<String> {
        let text = std::fs::read_to_string(&self.output).ok()?;
        let (_, rest) = text.split_once("> Generating new talosconfig:\n")?;
        let (config, _) = rest.split_once("\n> Verifying")?;
        let authority = |config: &str| {
            let line = config.lines().find(|line| line.trim_start().starts_with("ca: "))?;
            let encoded = line.trim_start().strip_prefix("ca: ")?.trim().to_owned();
            Some((STANDARD.decode(&encoded).ok()?, encoded))
        };
        let ((old, _), (new, encoded)) = (authority(old)?, authority(config)?);
        Some(config.replace(&encoded, &STANDARD.encode([old, new].concat())))
    }
}

/// A client of the machine API that has its credentials of before, and those of after as soon as they are told.
pub(crate) struct Machines<'a> {
    fleet: &'a Fleet,
    machines: u8,
    bundles: Bundles,
    old: String,
    path: PathBuf,
}

impl<'a> Machines<'a> {
    /// A client that turns to one machine after the other.
    pub(crate) fn new(fleet: &'a Fleet, machines: u8, bundles: Bundles) -> Result<Self> {
        let old = std::fs::read_to_string(fleet.home().join(".talos/config"))?;
        Ok(Self { fleet, machines, bundles, old, path: fleet.home().join("both") })
    }
}

impl Asks for Machines<'_> {
    fn ask(&self, question: u32, _second: bool) -> Result<()> {
        let node = self.fleet.address(u8::try_from(question % u32::from(self.machines))?);
        let before = match self.fleet.ok(&["-n", &node, "version"]) {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        let Some(both) = self.bundles.both(&self.old) else { bail!("{before}; and nothing else is known") };
        std::fs::write(&self.path, both)?;
        let after = self.fleet.ok(&["--talosconfig", &self.path.to_string_lossy(), "-n", &node, "version"]);
        after.map(drop).map_err(|error| error.context(format!("after: {before}")))
    }
}
