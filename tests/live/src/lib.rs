//! What the live suites share: clusters that clean up after themselves, processes, bounded waits.
//!
//! The suites drive `bin/ichorctl` as a person would and look at machines from outside. They need
//! root and what `make build` leaves behind; a missing piece is a failure, never a skip.

pub mod apiserver;
pub mod host;
pub mod hostile;
pub mod os;
pub mod processes;
pub mod programs;
pub mod story;
pub mod table;
pub mod vm;

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use base64::Engine as _;
use ichor_pki::Authority;
use processes::Process;

/// Longest wait for one run of `ichorctl`; creating a cluster is the slowest.
const RUN_MAX: Duration = Duration::from_secs(600);
/// Longest wait for another suite to be done with a network; the longest suites take a few minutes.
const NETWORK_MAX: Duration = Duration::from_secs(900);
/// Longest wait for what takes a moment on a quiet machine.
pub const SOON: Duration = Duration::from_secs(90);

/// The top of the repository.
pub fn root() -> PathBuf {
    std::env::var_os("ICHOR_ROOT")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../.."))
}

/// Calls `probe` until it gives a value, for at most `limit`.
pub fn wait<T>(what: &str, limit: Duration, mut probe: impl FnMut() -> Option<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        let look = Instant::now();
        if let Some(value) = probe() {
            return Ok(value);
        }
        if start.elapsed() > limit {
            bail!("{what}: nothing within {limit:?}");
        }
        std::thread::sleep(pause(start.elapsed(), look.elapsed()));
    }
}

/// How long to sleep before the next look: what is measured comes soon, what is slow is not made slower by looking.
fn pause(waited: Duration, look: Duration) -> Duration {
    const SHORT: Duration = Duration::from_millis(5);
    const LONG: Duration = Duration::from_millis(100);
    match waited {
        waited if waited < 100 * SHORT => SHORT,
        waited if waited < 20 * LONG => SHORT.max(look).min(LONG),
        _ => LONG,
    }
}

/// Repeats `attempt` until it works, for at most `limit`, and says why the last one did not.
pub fn eventually<T>(what: &str, limit: Duration, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let mut last = None;
    wait(what, limit, || attempt().map_err(|error| last = Some(error)).ok())
        .map_err(|error| last.map_or(error, |last| last.context(format!("{what}: not within {limit:?}"))))
}

/// A port of loopback that nobody has, and that no outgoing connection is given: a program that is started anew finds
/// it free again, and a client that dials it meanwhile does not find itself.
pub fn free_port() -> Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 9_000;
    let own = u16::try_from(std::process::id() % 89).unwrap_or_default() * 101;
    for _ in 0..COUNT {
        let number = FIRST + own.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
            return Ok(number);
        }
    }
    bail!("no port is free")
}

/// Waits until no other suite uses the network `10.<octet>.0.0/24`, and keeps others out until the file is closed.
fn lock_network(octet: u8) -> Result<File> {
    let path = std::env::temp_dir().join(format!("ichor-live-network-{octet}.lock"));
    let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    wait(&format!("the network 10.{octet}.0.0/24 of another suite"), NETWORK_MAX, || file.try_lock().ok())?;
    Ok(file)
}

/// A cluster of sandbox machines of one test, with a home directory of its own.
pub struct Fleet {
    name: String,
    home: tempfile::TempDir,
    octet: u8,
    image: &'static str,
    destroyed: bool,
    /// Held while the fleet uses its network: suites in other lanes may want the same one.
    _network: File,
}

/// Machines without containers, for what needs none: they are up in a moment.
const BARE: &str = "build/bare.squashfs";
/// Machines as users have them.
const WHOLE: &str = "build/rootfs.squashfs";

impl Fleet {
    /// Creates `controlplanes` and `workers` without containers on the network `10.<octet>.0.0/24`.
    pub fn create(name: &str, octet: u8, controlplanes: u8, workers: u8, more: &[&str]) -> Result<Self> {
        let fleet = Self::named(name, octet)?;
        fleet.make(controlplanes, workers, more)?;
        Ok(fleet)
    }

    /// From the start of a new machine's first process to its first answer; the machine is gone afterwards.
    ///
    /// The command that makes the machine asks it, too, less often than here: its end is not waited for.
    pub fn first_answer(name: &str, octet: u8) -> Result<Duration> {
        let fleet = Self::named(name, octet)?;
        let answered = std::thread::scope(|scope| {
            let making = scope.spawn(|| fleet.make(1, 0, &["--wait=false"]));
            wait("an answer", SOON, || fleet.ok(&["version"]).ok())?;
            let answered = processes::uptime().context("no uptime")?;
            making.join().map_err(|_| anyhow!("no machine was made"))??;
            Ok::<_, anyhow::Error>(answered)
        })?;
        let took = answered.saturating_sub(fleet.daemon("init")?.since_boot());
        fleet.destroy()?;
        Ok(took)
    }

    /// One machine that waits for its configuration; the files it could have are in the fleet's home.
    pub fn unconfigured(name: &str, octet: u8, more: &[&str]) -> Result<Self> {
        let fleet = Self::named(name, octet)?;
        let mut create = fleet.command(&["cluster", "create", "--skip-injecting-config", "--workers", "0"]);
        create.args(["--cidr", &format!("10.{octet}.0.0/24"), "--name", fleet.name()]).args(more);
        let created = create.current_dir(fleet.home()).output()?;
        ensure!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
        Ok(fleet)
    }

    /// The same with everything that Kubernetes needs; unless `more` says otherwise, waits until it is healthy.
    pub fn kubernetes(name: &str, octet: u8, controlplanes: u8, workers: u8, more: &[&str]) -> Result<Self> {
        Self::named(name, octet)?.with_kubernetes(controlplanes, workers, more)
    }

    /// The same for a fleet that has no machines yet.
    pub fn with_kubernetes(mut self, controlplanes: u8, workers: u8, more: &[&str]) -> Result<Self> {
        self.image = WHOLE;
        print!("{}", self.make(controlplanes, workers, more)?);
        Ok(self)
    }

    /// Makes the machines of a fleet that has none yet, and gives what was printed.
    pub fn make(&self, controlplanes: u8, workers: u8, more: &[&str]) -> Result<String> {
        let cidr = format!("10.{}.0.0/24", self.octet);
        let (controlplanes, workers) = (controlplanes.to_string(), workers.to_string());
        let mut args = vec!["cluster", "create", "--name", &self.name, "--cidr", &cidr];
        args.extend(["--controlplanes", &controlplanes, "--workers", &workers]);
        args.extend(more);
        self.ok(&args)
    }

    /// `kubectl` as the cluster's administrator, to its end.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        let mut command = self.kubectl_command(args);
        let output = command.stdin(Stdio::null()).output().context("start bin/kubectl; run `make build`")?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.success() {
            true => Ok(stdout),
            false => bail!("kubectl {}: {stdout}{}", args.join(" "), String::from_utf8_lossy(&output.stderr)),
        }
    }

    /// `kubectl` with the fleet's kubeconfig; gives up on an API that does not answer.
    pub fn kubectl_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "120"]).arg(root().join("bin/kubectl")).args(["--request-timeout", "20s"]);
        command.args(args).env("HOME", self.home.path()).env_remove("KUBECONFIG").current_dir(root());
        command
    }

    /// A home directory and a name, no machines yet.
    pub fn named(name: &str, octet: u8) -> Result<Self> {
        let network = lock_network(octet)?;
        let home = tempfile::Builder::new().prefix("ichor-live").tempdir()?;
        Ok(Self {
            name: format!("{name}-{}", std::process::id()),
            home,
            octet,
            image: BARE,
            destroyed: false,
            _network: network,
        })
    }

    /// The cluster's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address of machine `number`, counted from 0, control planes first.
    pub fn address(&self, number: u8) -> String {
        format!("10.{}.0.{}", self.octet, number + 2)
    }

    /// Where the host reaches machine `number`.
    pub fn loopback(&self, number: u8) -> String {
        format!("127.{}.0.{}", self.octet, number + 2)
    }

    /// Runs `ichorctl` to its end.
    pub fn run(&self, args: &[&str]) -> Result<Output> {
        let mut child = self
            .command(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("start bin/ichorctl; run `make build`")?;
        let start = Instant::now();
        // The output of these commands fits into the pipes' buffers or is read at the end; a command
        // that fills them is ended by the limit and shows up as such.
        let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
        let reader = std::thread::spawn(move || {
            let mut text = Vec::new();
            if let Some(out) = &mut out {
                let _ = std::io::Read::read_to_end(out, &mut text);
            }
            text
        });
        let errors = std::thread::spawn(move || {
            let mut text = Vec::new();
            if let Some(err) = &mut err {
                let _ = std::io::Read::read_to_end(err, &mut text);
            }
            text
        });
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if start.elapsed() > RUN_MAX {
                let _ = child.kill();
                let _ = child.wait();
                bail!("ichorctl {} did not end within {RUN_MAX:?}", args.join(" "));
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let stdout = reader.join().unwrap_or_default();
        let stderr = errors.join().unwrap_or_default();
        Ok(Output { status, stdout, stderr })
    }

    /// Runs `ichorctl` and gives its standard output; anything but success is an error.
    pub fn ok(&self, args: &[&str]) -> Result<String> {
        let output = self.run(args)?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            bail!(
                "ichorctl {}: {}\n{stdout}{}",
                args.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(stdout)
    }

    /// The same, tried until it works: for what comes a moment after something else.
    pub fn soon(&self, args: &[&str]) -> Result<String> {
        eventually(&args.join(" "), SOON, || self.ok(args))
    }

    /// Runs `ichorctl` until it prints what is `wanted`.
    pub fn says(&self, args: &[&str], wanted: impl Fn(&str) -> bool) -> Result<String> {
        eventually(&args.join(" "), SOON, || {
            let text = self.ok(args)?;
            if wanted(&text) { Ok(text) } else { bail!("{text}") }
        })
    }

    /// Runs `ichorctl` until it is refused with `word`: a machine that is busy with something else may first say that.
    /// Success is an error at once.
    pub fn refused(&self, args: &[&str], word: &str) -> Result<String> {
        let mut last = String::new();
        let found = wait(word, SOON, || {
            let told = self.fails(args);
            last = told.as_ref().map_or_else(ToString::to_string, Clone::clone);
            (told.is_err() || last.contains(word)).then_some(told)
        });
        found.with_context(|| format!("ichorctl {}: {last}", args.join(" ")))?
    }

    /// Runs `ichorctl` and gives its standard error; success is an error.
    pub fn fails(&self, args: &[&str]) -> Result<String> {
        let output = self.run(args)?;
        if output.status.success() {
            bail!("ichorctl {} succeeded: {}", args.join(" "), String::from_utf8_lossy(&output.stdout));
        }
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// `ichorctl` with the fleet's home directory.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(root().join("bin/ichorctl"));
        command.args(args).env("HOME", self.home.path()).env_remove("TALOSCONFIG").env_remove("KUBECONFIG");
        command.env("ICHOR_IMAGE", root().join(self.image)).current_dir(root());
        command
    }

    /// The authority of the cluster, taken from the configuration of its first machine.
    pub fn authority(&self) -> Authority {
        let text = self.soon(&["-n", &self.address(0), "read", "/system/state/config.yaml"]).unwrap();
        let mut lines =
            text.lines().skip_while(|line| *line != "machine:").skip_while(|line| *line != "    ca:");
        let mut value = |key: &str| {
            let line = lines.find_map(|line| line.trim().strip_prefix(key)).unwrap_or_default();
            base64::engine::general_purpose::STANDARD.decode(line.trim()).unwrap()
        };
        let (crt, key) = (value("crt:"), value("key:"));
        Authority::from_pem(crt, key).unwrap()
    }

    /// The one daemon of this name, or the youngest.
    pub fn daemon(&self, name: &str) -> Result<Process> {
        wait(name, SOON, || self.daemons(name).into_iter().next_back())
    }

    /// Every process of the cluster's machines, as the host sees them.
    pub fn processes(&self) -> Vec<Process> {
        let mut found: Vec<Process> = Vec::new();
        for supervisor in processes::with_argument(&self.name) {
            for process in processes::below(supervisor.pid) {
                if !found.iter().any(|known| known.pid == process.pid) {
                    found.push(process);
                }
            }
        }
        found
    }

    /// The processes called `name`, such as `machined`, oldest first.
    pub fn daemons(&self, name: &str) -> Vec<Process> {
        let mut found: Vec<Process> =
            self.processes().into_iter().filter(|p| p.name == name && p.state != 'Z').collect();
        // A child of init that is about to become something else is called init for a moment.
        let pids: Vec<i32> = found.iter().map(|p| p.pid).collect();
        found.retain(|p| !pids.contains(&p.parent));
        found.sort_by_key(|p| (p.started, p.pid));
        found
    }

    /// The home directory.
    pub fn home(&self) -> &std::path::Path {
        self.home.path()
    }

    /// Removes everything that stopped machines have kept, so that they start as new ones.
    pub fn forget(&self) -> Result<()> {
        let machines = self.home().join(".talos/clusters").join(&self.name).join("machines");
        for machine in std::fs::read_dir(&machines).with_context(|| format!("list {}", machines.display()))? {
            let machine = machine?.path();
            for kept in ["state", "var"].map(|kept| machine.join(kept)) {
                std::fs::remove_dir_all(&kept).with_context(|| format!("remove {}", kept.display()))?;
                std::fs::create_dir(&kept).with_context(|| format!("make {}", kept.display()))?;
            }
        }
        Ok(())
    }

    /// Destroys the cluster and says whether that went well.
    pub fn destroy(mut self) -> Result<()> {
        self.destroyed = true;
        self.ok(&["cluster", "destroy", "--name", &self.name]).map(drop)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if !self.destroyed {
            let _ = self.run(&["cluster", "destroy", "--name", &self.name.clone(), "--force"]);
        }
    }
}
