//! The device manager: systemd-udevd as a service of machines with a kernel of their own.
//!
//! It makes links to devices, names network links and has drivers loaded. A machine that was started from an image without
//! it, and a sandbox, whose devices are its host's, run without.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use ichor_sys::cgroup::Limits;
use ichor_sys::mount::{self, MountFlags};
use ichor_types::{Cmdline, GoDuration};

use crate::daemons::{self, MIB};
use crate::services::spec::Hook;
use crate::services::{BoxFuture, Health, HealthCheck, ProcessSpec, Run, ServiceManager, ServiceSpec};

/// The service.
pub const UDEVD: &str = "udevd";

const DAEMON: &str = "/sbin/systemd-udevd";
const CLIENT: &str = "/sbin/udevadm";

/// Where it listens once it is up.
const CONTROL: &str = "/run/udev/control";

/// Rules and the hardware database; what is written lies in memory.
const RULES_DIR: &str = "/usr/lib/udev";
const RULES_UPPER: &str = "/system/overlays/usr-lib-udev-diff";
const RULES_WORK: &str = "/system/overlays/usr-lib-udev-workdir";

/// Rules of the configuration, after all others.
const OWN_RULES: &str = "/usr/lib/udev/rules.d/99-talos.rules";

const GROUP: &str = "system/udevd";
const LIMITS: Limits = Limits {
    memory_min: Some(8 * MIB),
    memory_low: Some(16 * MIB),
    memory_max: None,
    swap_max: Some(0),
    millicores: Some(250),
    millicores_max: None,
    pids_max: None,
};

/// A machine that comes up is asked often for this long; then once in a period.
const COMING_UP_MAX: Duration = Duration::from_secs(120);
const PERIOD: Duration = Duration::from_secs(60);
const CHECK_MAX: Duration = Duration::from_secs(55);

const RELOAD: &[&str] = &["control", "--reload"];
const TRIGGERS: [&[&str]; 2] =
    [&["trigger", "--type=devices", "--action=add"], &["trigger", "--type=subsystems", "--action=add"]];
const SETTLE: &[&str] = &["settle", "--timeout=50"];

/// Whether this machine runs the device manager.
pub fn is_here() -> bool {
    ichor_sys::power::in_first_pid_namespace() && Path::new(DAEMON).exists()
}

/// Runs `udevadm`; a double stands in for it in tests.
pub trait Udevadm: Send + Sync + 'static {
    /// Runs it with these arguments to its end.
    fn run(&self, args: &[&str]) -> BoxFuture<'static, Result<(), String>>;
}

/// The program of the image, started by init.
#[derive(Clone)]
pub struct Program(pub ServiceManager);

impl Udevadm for Program {
    fn run(&self, args: &[&str]) -> BoxFuture<'static, Result<(), String>> {
        let process = ProcessSpec {
            path: CLIENT.to_owned(),
            args: std::iter::once("udevadm").chain(args.iter().copied()).map(str::to_owned).collect(),
            env: environment(),
            privileged: true,
            cgroup: Some(GROUP.to_owned()),
            ..ProcessSpec::default()
        };
        let (services, command) = (self.0.clone(), format!("udevadm {}", args.join(" ")));
        // On its own: a check that is given up must still take the exit status from init.
        let run = tokio::spawn(async move {
            services.run_once(&ServiceSpec::new("udevadm", Run::Process(process))).await
        });
        Box::pin(async move {
            match run.await {
                Ok(result) => result.map_err(|error| format!("{command}: {error}")),
                Err(error) => Err(format!("{command}: {error}")),
            }
        })
    }
}

fn environment() -> Vec<String> {
    vec!["XDG_RUNTIME_DIR=/run".to_owned(), "PATH=/usr/bin:/usr/sbin:/bin:/sbin".to_owned()]
}

/// The service. `talos.device.settle_time` holds it back for that long after the devices settled.
pub fn service(services: &ServiceManager, cmdline: &Cmdline) -> ServiceSpec {
    let process = ProcessSpec {
        path: DAEMON.to_owned(),
        args: vec![DAEMON.to_owned(), "--resolve-names=never".to_owned()],
        env: environment(),
        privileged: true,
        cgroup: Some(GROUP.to_owned()),
        ..ProcessSpec::default()
    };
    let program = Program(services.clone());
    ServiceSpec {
        pre: Some(prepare(program.clone())),
        health: Some(Health {
            check: health(program, CONTROL, settle_time(cmdline)),
            initial: COMING_UP_MAX,
            eager: Duration::from_millis(10),
            period: PERIOD,
            timeout: CHECK_MAX,
        }),
        ..ServiceSpec::new(UDEVD, Run::Process(process))
    }
}

/// How long to wait beyond the moment when devices settled.
fn settle_time(cmdline: &Cmdline) -> Duration {
    const ARGUMENT: &str = "talos.device.settle_time";
    let Some(text) = cmdline.first(ARGUMENT) else { return Duration::ZERO };
    match text.parse::<GoDuration>() {
        Ok(time) => time.to_std(),
        Err(error) => {
            warn!(%error, "{ARGUMENT}={text} is no duration such as 30s; devices get no extra time");
            Duration::ZERO
        }
    }
}

/// Makes rules writable, and the hardware database of what the image and its layers bring.
fn prepare(program: Program) -> Hook {
    let group = daemons::own_group(GROUP, LIMITS);
    Arc::new(move || {
        let (group, program) = (group(), program.clone());
        Box::pin(async move {
            group.await?;
            tokio::task::spawn_blocking(make_writable).await.map_err(|error| error.to_string())??;
            if let Err(error) = program.run(&["hwdb", "--update", "--usr"]).await {
                // It decides names of a few kinds of hardware; everything else works without.
                warn!(%error, "hardware database not built");
            }
            Ok(())
        })
    })
}

fn make_writable() -> Result<(), String> {
    let target = Path::new(RULES_DIR);
    if mount::is_mounted(target) {
        return Ok(());
    }
    for dir in [RULES_UPPER, RULES_WORK] {
        std::fs::create_dir_all(dir).map_err(|error| format!("make {dir}: {error}"))?;
    }
    let options = format!("lowerdir={RULES_DIR},upperdir={RULES_UPPER},workdir={RULES_WORK}");
    mount::mount("overlay", target, "overlay", MountFlags::NODEV, &options)
        .map_err(|error| format!("{error}: {}", error.source))
}

/// Well once every device was seen, and nothing is left to be done for a while.
fn health(program: impl Udevadm, control: &'static str, settle_time: Duration) -> HealthCheck {
    let program = Arc::new(program);
    let settled: Arc<Mutex<Option<Instant>>> = Arc::default();
    let triggered: Arc<Mutex<bool>> = Arc::default();
    Arc::new(move || {
        let (program, settled, triggered) =
            (Arc::clone(&program), Arc::clone(&settled), Arc::clone(&triggered));
        Box::pin(async move {
            if !Path::new(control).exists() {
                return Err(format!("{control} is not there"));
            }
            // Until the extra time is over there is nothing to ask.
            wait_left(&settled, settle_time)?;
            let first = !*triggered.lock().unwrap_or_else(PoisonError::into_inner);
            // One that just started has read its rules.
            let before: &[&[&str]] = if first { &TRIGGERS } else { &[RELOAD] };
            for args in before {
                program.run(args).await?;
            }
            *triggered.lock().unwrap_or_else(PoisonError::into_inner) = true;
            program.run(SETTLE).await?;
            settled.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(Instant::now);
            wait_left(&settled, settle_time)
        })
    })
}

/// Says how much of the extra time is left, once devices settled.
fn wait_left(settled: &Mutex<Option<Instant>>, settle_time: Duration) -> Result<(), String> {
    let since = *settled.lock().unwrap_or_else(PoisonError::into_inner);
    match since.and_then(|since| settle_time.checked_sub(since.elapsed())) {
        Some(left) if !left.is_zero() => Err(format!("devices get {left:?} more to settle")),
        _ => Ok(()),
    }
}

/// The text of a file with these rules: a line break inside of a rule goes on on the next line.
fn rules_text(rules: &[String]) -> String {
    rules.iter().map(|rule| rule.replace('\n', "\\\n") + "\n").collect()
}

/// Writes the rules of the configuration and, if there are any, applies them to all devices.
///
/// # Errors
/// When they cannot be written, or the device manager does not take them.
pub async fn write_rules(program: &impl Udevadm, rules: &[String]) -> Result<(), String> {
    write_rules_to(Path::new(OWN_RULES), program, rules).await
}

async fn write_rules_to(path: &Path, program: &impl Udevadm, rules: &[String]) -> Result<(), String> {
    let (file, text) = (path.to_owned(), rules_text(rules));
    tokio::task::spawn_blocking(move || std::fs::write(&file, text))
        .await
        .map_err(|error| error.to_string())?
        .map_err(|error| format!("write {}: {error}", path.display()))?;
    if rules.is_empty() {
        return Ok(());
    }
    for args in [RELOAD, TRIGGERS[0], TRIGGERS[1], SETTLE] {
        program.run(args).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes what it was run with.
    #[derive(Clone, Default)]
    struct Noted {
        runs: Arc<Mutex<Vec<String>>>,
        fails: Arc<Mutex<bool>>,
    }

    impl Noted {
        fn take(&self) -> Vec<String> {
            std::mem::take(&mut *self.runs.lock().unwrap())
        }
    }

    impl Udevadm for Noted {
        fn run(&self, args: &[&str]) -> BoxFuture<'static, Result<(), String>> {
            self.runs.lock().unwrap().push(args[0].to_owned());
            let fails = *self.fails.lock().unwrap();
            Box::pin(std::future::ready(if fails { Err("refused".to_owned()) } else { Ok(()) }))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn devices_are_triggered_once_and_settle_before_it_is_well() {
        let noted = Noted::default();
        let check = health(noted.clone(), "/dev/null", Duration::from_secs(30));
        assert!(check().await.unwrap_err().starts_with("devices get 30s more"));
        assert_eq!(noted.take(), ["trigger", "trigger", "settle"]);
        assert!(check().await.is_err() && noted.take().is_empty());
        tokio::time::advance(Duration::from_secs(31)).await;
        check().await.unwrap();
        assert_eq!(noted.take(), ["control", "settle"]);
    }

    #[tokio::test]
    async fn nothing_is_asked_before_it_listens_and_a_failed_trigger_is_done_again() {
        let noted = Noted::default();
        let absent = health(noted.clone(), "/does/not/exist", Duration::ZERO);
        assert!(absent().await.is_err() && noted.take().is_empty());
        let check = health(noted.clone(), "/dev/null", Duration::ZERO);
        *noted.fails.lock().unwrap() = true;
        assert_eq!(check().await.unwrap_err(), "refused");
        *noted.fails.lock().unwrap() = false;
        noted.take();
        check().await.unwrap();
        assert_eq!(noted.take(), ["trigger", "trigger", "settle"]);
    }

    #[tokio::test]
    async fn rules_are_written_and_applied_when_there_are_any() {
        let dir = tempfile::tempdir().unwrap();
        let (path, noted) = (dir.path().join("99-talos.rules"), Noted::default());
        write_rules_to(&path, &noted, &[]).await.unwrap();
        assert!(noted.take().is_empty() && std::fs::read(&path).unwrap().is_empty());
        let rules = ["KERNEL==\"a\", MODE=\"0660\"".to_owned(), "KERNEL==\"b\",\nMODE=\"0600\"".to_owned()];
        write_rules_to(&path, &noted, &rules).await.unwrap();
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "KERNEL==\"a\", MODE=\"0660\"\nKERNEL==\"b\",\\\nMODE=\"0600\"\n"
        );
        assert_eq!(noted.take(), ["control", "trigger", "trigger", "settle"]);
    }

    #[test]
    fn the_settle_time_is_a_duration_or_nothing() {
        let time = |text: &str| settle_time(&Cmdline::parse(text));
        assert_eq!(time("talos.device.settle_time=3m30s"), Duration::from_secs(210));
        assert_eq!(time("quiet"), Duration::ZERO);
        assert_eq!(time("talos.device.settle_time=soon"), Duration::ZERO);
    }
}
