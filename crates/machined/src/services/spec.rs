//! What a service is: data, and a few hooks.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::BoxFuture;
use super::condition::Condition;
use super::health::Health;

/// Time between SIGTERM and SIGKILL unless a service says otherwise.
pub const GRACE_DEFAULT: Duration = Duration::from_secs(10);

/// What happens when a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RestartPolicy {
    /// It runs again, however it ended.
    #[default]
    Forever,
    /// It stays ended.
    Once,
    /// It runs again until it ends well.
    UntilSuccess,
}

/// Operations the API may do to a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ApiAccess {
    /// May be started.
    pub start: bool,
    /// May be stopped.
    pub stop: bool,
    /// May be restarted.
    pub restart: bool,
}

/// A process to run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProcessSpec {
    /// The executable.
    pub path: String,
    /// Arguments, the program's name first.
    pub args: Vec<String>,
    /// Environment, `KEY=value`.
    pub env: Vec<String>,
    /// User and group.
    pub uid: u32,
    /// Keeps all capabilities; otherwise none.
    pub privileged: bool,
    /// May read, compute and print, and nothing else: `ichor_sys::confine::Filter::Sealed`. Not with `privileged`.
    pub sealed: bool,
    /// Group below the cgroup root.
    pub cgroup: Option<String>,
    /// `oom_score_adj`.
    pub oom_score_adj: i32,
    /// Niceness.
    pub nice: i32,
    /// A terminal that it is given, in raw mode, where `ichor_sys::terminal::INHERITED_FD` says.
    pub terminal: Option<String>,
    /// Directories it sees empty.
    pub masked: Vec<String>,
    /// All that it sees, as `ichor_sys::supervisor::SpawnRequest::view` has it; it is then one of our own daemons and
    /// held to what those need. Nothing stands for everything.
    pub view: Vec<String>,
    /// The root of an image; filled in when a container is started.
    pub root: Option<Root>,
}

/// The root of a container: the layers of an image, and what of the machine shows in it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Root {
    /// The directory that names in the options are relative to.
    pub base: String,
    /// Options of the overlay mount, or a `bind:` and a directory that is the root already; `ro:` before them makes it
    /// read-only.
    pub options: String,
    /// What of the machine shows in it.
    pub mounts: Vec<ContainerMount>,
}

impl Root {
    /// As `ichor_sys::supervisor::SpawnRequest::root` has it.
    pub fn parts(&self) -> Vec<String> {
        let mut parts = vec![self.base.clone(), self.options.clone()];
        for mount in &self.mounts {
            let mode = match (mount.read_only, mount.shared, mount.separate) {
                (true, _, true) => 's',
                (false, _, true) => 'S',
                (true, false, false) => 'r',
                (false, false, false) => 'w',
                (true, true, false) => 'R',
                (false, true, false) => 'W',
            };
            parts.extend([format!("{mode}{}", mount.source), mount.target.clone()]);
        }
        parts
    }
}

/// A process in the root of an image; `process.path` is inside of the image.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerSpec {
    /// Its name with registry and tag, or digest.
    pub image: String,
    /// What runs in it. An empty path stands for the image's own entry point; the image's environment comes first.
    pub process: ProcessSpec,
    /// What of the machine shows in it, parents first.
    pub mounts: Vec<ContainerMount>,
}

/// A file or directory of the machine that a container sees.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerMount {
    /// Where it is on the machine. What does not exist there is left out.
    pub source: String,
    /// Where the container sees it.
    pub target: String,
    /// Without writing.
    pub read_only: bool,
    /// With all below it, and mounts made later seen on both sides.
    pub shared: bool,
    /// With all below it, and mounts made later seen on neither side; wins over `shared`.
    pub separate: bool,
}

impl ProcessSpec {
    /// How messages name it.
    pub fn describe(&self) -> String {
        let args: Vec<String> = self.args.iter().map(|arg| format!("{arg:?}")).collect();
        format!("Process([{}])", args.join(" "))
    }
}

/// An in-process service: runs until it ends by itself or the token is cancelled.
pub type TaskRun = Arc<dyn Fn(CancellationToken) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// Decides what to run each time the service starts.
pub type Plan = Arc<dyn Fn() -> BoxFuture<'static, Result<Run, String>> + Send + Sync>;

/// What is run.
#[derive(Clone)]
pub enum Run {
    /// A process of its own.
    Process(ProcessSpec),
    /// A process of its own in the root of an image.
    Container(ContainerSpec),
    /// Decided anew at every start.
    Planned(Plan),
    /// A task of this process.
    Task(TaskRun),
    /// Nothing: the service is skipped.
    Nothing,
}

impl Run {
    /// Whether it runs in the root of an image, as far as one can tell.
    pub fn is_contained(&self) -> bool {
        matches!(self, Self::Container(_) | Self::Planned(_))
    }

    /// How messages name it.
    pub fn describe(&self, id: &str) -> String {
        match self {
            Self::Process(process) => process.describe(),
            Self::Container(_) | Self::Planned(_) => format!("Containerd({id})"),
            Self::Task(_) | Self::Nothing => format!("Task({id})"),
        }
    }
}

/// A step before or after the run.
pub type Hook = Arc<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// One service.
#[derive(Clone)]
pub struct ServiceSpec {
    /// Its id, also of its log.
    pub id: String,
    /// Services that have to be up first.
    pub depends: Vec<String>,
    /// What else has to be true first.
    pub conditions: Vec<Arc<dyn Condition>>,
    /// Before the run.
    pub pre: Option<Hook>,
    /// What runs.
    pub run: Run,
    /// After the run, however it ended.
    pub post: Option<Hook>,
    /// Its health check.
    pub health: Option<Health>,
    /// What happens when the run ends.
    pub restart: RestartPolicy,
    /// What the API may do to it.
    pub api: ApiAccess,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
}

impl ServiceSpec {
    /// A service with nothing but a run.
    pub fn new(id: &str, run: Run) -> Self {
        Self {
            id: id.to_owned(),
            depends: Vec::new(),
            conditions: Vec::new(),
            pre: None,
            run,
            post: None,
            health: None,
            restart: RestartPolicy::default(),
            api: ApiAccess::default(),
            grace: GRACE_DEFAULT,
        }
    }
}
