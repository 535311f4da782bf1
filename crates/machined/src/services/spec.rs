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
    /// Group below the cgroup root.
    pub cgroup: Option<String>,
    /// `oom_score_adj`.
    pub oom_score_adj: i32,
    /// Directories it sees empty.
    pub masked: Vec<String>,
    /// All that it sees, as `ichor_sys::supervisor::SpawnRequest::view` has it; it is then one of our own daemons and
    /// held to what those need. Nothing stands for everything.
    pub view: Vec<String>,
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

/// What is run.
#[derive(Clone)]
pub enum Run {
    /// A process of its own.
    Process(ProcessSpec),
    /// A task of this process.
    Task(TaskRun),
    /// Nothing: the service is skipped.
    Nothing,
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
