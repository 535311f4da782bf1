//! The machine that runs out of memory: what stops before the kernel has to choose.
//!
//! The kernel says how much time tasks lose waiting for memory. An expression decides when that is too much, another one
//! which group of processes goes. Both decisions are pure functions here; [`OomPort`] reads and kills.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use ichor_cel::{Env, EvalError, Expression, Value, Variables, environments};
use ichor_config::Document;
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive};
use ichor_ctl::{Configuration, active_input};
use ichor_resource::runtime::OOMAction;
use ichor_sys::cgroup::pressure::{GroupMemory, Pressure, groups_below, reap};
use ichor_types::GoDuration;
use tokio::time::Instant;
use tracing::{info, warn};

/// Actions that are remembered.
const ACTIONS_MAX: usize = 10;

/// How often the kernel is asked, and the least that a configuration can ask for.
const SAMPLE: Duration = Duration::from_millis(500);
const SAMPLE_MIN: Duration = Duration::from_millis(50);

/// A kernel that does not measure pressure is asked this often.
const UNMEASURED_PAUSE: Duration = Duration::from_secs(300);

/// When to act, unless the configuration says otherwise.
pub const TRIGGER: &str =
    r#"memory_full_avg10 > 12.0 && d_memory_full_avg10 > 0.0 && time_since_trigger > duration("500ms")"#;

/// Which group goes, unless the configuration says otherwise: workloads without a limit of their own, those first that
/// asked for nothing.
pub const RANKING: &str = "memory_max.hasValue() ? 0.0 : \
     (class == Besteffort ? 1.0 : class == Burstable ? 0.5 : 0.0) * double(memory_current.orValue(0u))";

static TRIGGER_ENV: LazyLock<Env> = LazyLock::new(environments::oom_trigger);
static RANKING_ENV: LazyLock<Env> = LazyLock::new(environments::oom_ranking);

/// What kind of group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i64)]
pub enum Class {
    /// Pods that asked for nothing.
    BestEffort = 0,
    /// Pods that asked for less than they may use.
    Burstable = 1,
    /// Pods that asked for all they may use.
    Guaranteed = 2,
    /// etcd, kubelet, containerd.
    PodRuntime = 3,
    /// The node's own.
    System = 4,
}

/// Parents of the groups that can go.
const PARENTS: [(&str, Class); 5] = [
    ("kubepods/besteffort", Class::BestEffort),
    ("kubepods/burstable", Class::Burstable),
    ("kubepods/guaranteed", Class::Guaranteed),
    ("podruntime", Class::PodRuntime),
    ("system", Class::System),
];

/// A group that can go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Its kind.
    pub class: Class,
    /// Its memory.
    pub memory: GroupMemory,
}

/// Reads pressure and groups, and kills.
pub trait OomPort: Send + Sync + 'static {
    /// The pressure now.
    fn pressure(&self) -> io::Result<Pressure>;

    /// All groups that can go.
    fn candidates(&self) -> impl Future<Output = Vec<Candidate>> + Send;

    /// Kills the processes of a group; gives their command lines.
    fn reap(&self, group: &Path) -> impl Future<Output = io::Result<Vec<String>>> + Send;
}

/// The groups of this machine.
#[derive(Debug, Clone)]
pub struct SystemGroups {
    /// Where they are mounted.
    pub root: PathBuf,
}

impl OomPort for SystemGroups {
    fn pressure(&self) -> io::Result<Pressure> {
        Pressure::read(&self.root)
    }

    async fn candidates(&self) -> Vec<Candidate> {
        let root = self.root.clone();
        let look = move || {
            let below = |(parent, class): (&str, Class)| {
                groups_below(&root.join(parent)).into_iter().map(move |memory| Candidate { class, memory })
            };
            PARENTS.into_iter().flat_map(below).collect()
        };
        tokio::task::spawn_blocking(look).await.unwrap_or_default()
    }

    async fn reap(&self, group: &Path) -> io::Result<Vec<String>> {
        let group = group.to_owned();
        tokio::task::spawn_blocking(move || reap(&group)).await.map_err(io::Error::other)?
    }
}

/// What a trigger can look at.
#[derive(Debug, Clone, PartialEq)]
pub struct TriggerContext {
    numbers: BTreeMap<&'static str, f64>,
    since: Duration,
}

impl TriggerContext {
    /// The values of two samples that lie `seconds` apart; without an earlier one nothing changes.
    pub fn new(now: &Pressure, before: Option<&Pressure>, seconds: f64, since: Duration) -> Self {
        let read = |sample: &Pressure| {
            let (some, full) = (sample.some, sample.full);
            [some.avg10, some.avg60, some.avg300, some.total, full.avg10, full.avg60, full.avg300, full.total]
        };
        let (values, old) = (read(now), read(before.unwrap_or(now)));
        let change = |at: usize| if seconds > 0.0 { (values[at] - old[at]) / seconds } else { 0.0 };
        let plain = VALUES.iter().enumerate().map(|(at, (name, _))| (*name, values[at]));
        let changes = VALUES.iter().enumerate().map(|(at, (_, name))| (*name, change(at)));
        Self { numbers: plain.chain(changes).collect(), since }
    }

    fn json(&self) -> String {
        let mut fields: serde_json::Map<String, serde_json::Value> =
            self.numbers.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
        let since = u64::try_from(self.since.as_nanos()).unwrap_or(u64::MAX);
        fields.insert("time_since_trigger".to_owned(), since.into());
        serde_json::Value::Object(fields).to_string()
    }
}

/// A value, and how it changes in a second.
const VALUES: [(&str, &str); 8] = [
    ("memory_some_avg10", "d_memory_some_avg10"),
    ("memory_some_avg60", "d_memory_some_avg60"),
    ("memory_some_avg300", "d_memory_some_avg300"),
    ("memory_some_total", "d_memory_some_total"),
    ("memory_full_avg10", "d_memory_full_avg10"),
    ("memory_full_avg60", "d_memory_full_avg60"),
    ("memory_full_avg300", "d_memory_full_avg300"),
    ("memory_full_total", "d_memory_full_total"),
];

impl Variables for TriggerContext {
    fn variable(&self, name: &str) -> Option<Value> {
        match name {
            "time_since_trigger" => Some(Value::Duration(GoDuration::from_std(self.since))),
            name => self.numbers.get(name).map(|value| Value::Double(*value)),
        }
    }
}

impl Variables for Candidate {
    fn variable(&self, name: &str) -> Option<Value> {
        let optional = |number: Option<u64>| Value::optional(number.map(Value::Uint));
        match name {
            "memory_max" => Some(optional(self.memory.max)),
            "memory_current" => Some(optional(self.memory.current)),
            "memory_peak" => Some(optional(self.memory.peak)),
            "path" => Some(Value::string(self.memory.path.to_string_lossy())),
            "class" => Some(Value::Int(self.class as i64)),
            _ => None,
        }
    }
}

/// When to act and on what.
#[derive(Debug, Clone)]
pub struct OomPolicy {
    trigger: Expression,
    ranking: Expression,
    /// How often to look.
    pub sample: Duration,
}

/// An expression of the configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OomError {
    /// It cannot be read; validation lets none through.
    #[error("OOMConfig: {text:?}: {reason}")]
    Parse {
        /// The expression.
        text: String,
        /// Why not.
        reason: String,
    },
    /// It has no value here.
    #[error("OOMConfig: {text:?} has no value: {reason}; correct the expression")]
    Eval {
        /// The expression.
        text: String,
        /// Why not.
        reason: String,
    },
}

impl OomPolicy {
    /// Empty texts stand for the defaults, zero for the usual interval.
    ///
    /// # Errors
    /// For a text that is no expression.
    pub fn new(trigger: &str, ranking: &str, sample: Duration) -> Result<Self, OomError> {
        let parse = |text: &str, default: &str| {
            let text = if text.is_empty() { default } else { text };
            Expression::parse(text)
                .map_err(|error| OomError::Parse { text: text.to_owned(), reason: error.to_string() })
        };
        let sample = if sample.is_zero() { SAMPLE } else { sample.max(SAMPLE_MIN) };
        Ok(Self { trigger: parse(trigger, TRIGGER)?, ranking: parse(ranking, RANKING)?, sample })
    }

    /// Whether it is time to act.
    ///
    /// # Errors
    /// When the trigger has no value.
    pub fn triggers(&self, context: &TriggerContext) -> Result<bool, OomError> {
        let value = self.trigger.eval(&TRIGGER_ENV, context);
        Ok(matches!(value.map_err(|error| no_value(&self.trigger, &error))?, Value::Bool(true)))
    }

    /// The group that goes, with its score: the highest, as long as it is above zero. Among equals the first.
    ///
    /// # Errors
    /// When the ranking has no value.
    pub fn choose<'a>(&self, candidates: &'a [Candidate]) -> Result<Option<(&'a Candidate, f64)>, OomError> {
        let mut best: Option<(&Candidate, f64)> = None;
        for candidate in candidates {
            let value = self.ranking.eval(&RANKING_ENV, candidate);
            let score = match value.map_err(|error| no_value(&self.ranking, &error))? {
                Value::Double(score) => score,
                _ => 0.0,
            };
            if score > best.map_or(0.0, |(_, score)| score) {
                best = Some((candidate, score));
            }
        }
        Ok(best)
    }
}

fn no_value(expression: &Expression, error: &EvalError) -> OomError {
    OomError::Eval { text: expression.text().to_owned(), reason: error.to_string() }
}

/// Ends groups of processes before memory runs out, and writes `OOMActions`.
pub struct OOMController<P> {
    port: P,
    /// Read again only when the configuration says something else.
    policy: Option<(OomTexts, OomPolicy)>,
    last: Option<(Instant, Pressure)>,
    acted: Option<Instant>,
    actions: VecDeque<(u64, OOMAction)>,
    next_id: u64,
    told_unmeasured: bool,
}

impl<P: OomPort> OOMController<P> {
    /// A controller of these groups.
    pub fn new(port: P) -> Self {
        Self {
            port,
            policy: None,
            last: None,
            acted: None,
            actions: VecDeque::new(),
            next_id: 0,
            told_unmeasured: false,
        }
    }

    /// Takes a sample; a kernel that has none is told of once.
    fn sample(&mut self) -> Option<Pressure> {
        match self.port.pressure() {
            Ok(pressure) => Some(pressure),
            Err(error) => {
                if !self.told_unmeasured {
                    warn!(%error, "the kernel does not measure memory pressure; start it with psi=1");
                    self.told_unmeasured = true;
                }
                None
            }
        }
    }

    async fn act(&mut self, policy: &OomPolicy, context: &TriggerContext) -> Result<(), OomError> {
        let candidates = self.port.candidates().await;
        let chosen = policy.choose(&candidates)?;
        let (score, processes) = match chosen {
            Some((candidate, score)) => {
                let group = &candidate.memory.path;
                warn!(group = %group.display(), score, "memory runs out; killing a group of processes");
                let processes = self.port.reap(group).await.unwrap_or_else(|error| {
                    warn!(group = %group.display(), %error, "group not killed");
                    Vec::new()
                });
                (score, processes)
            }
            None => {
                info!("memory runs out, and no group of processes may be killed for it");
                (0.0, Vec::new())
            }
        };
        let action = OOMAction { trigger_context: context.json(), score, processes };
        self.actions.push_back((self.next_id, action));
        self.next_id += 1;
        if self.actions.len() > ACTIONS_MAX {
            self.actions.pop_front();
        }
        Ok(())
    }
}

/// What a configuration says of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct OomTexts {
    trigger: String,
    ranking: String,
    sample: Duration,
}

impl OomTexts {
    fn of(configuration: Option<&Configuration>) -> Self {
        let mut documents = configuration.into_iter().flat_map(|all| all.iter());
        let texts = documents.find_map(|document| match document {
            Document::OOMConfig(config) => Some(Self {
                trigger: config.trigger_expression.0.clone(),
                ranking: config.cgroup_ranking_expression.0.clone(),
                sample: config.sample_interval.to_std(),
            }),
            _ => None,
        });
        texts.unwrap_or_default()
    }
}

impl<P> OOMController<P> {
    fn policy(&mut self, configuration: Option<&Configuration>) -> Result<OomPolicy, OomError> {
        let texts = OomTexts::of(configuration);
        match &self.policy {
            Some((of, policy)) if *of == texts => Ok(policy.clone()),
            _ => {
                let policy = OomPolicy::new(&texts.trigger, &texts.ranking, texts.sample)?;
                self.policy = Some((texts, policy.clone()));
                Ok(policy)
            }
        }
    }
}

impl<P: OomPort> Controller for OOMController<P> {
    const NAME: &'static str = "runtime.OOMController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<OOMAction>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let policy = self.policy(Configuration::active(ctx)?.as_ref())?;
        let Some(pressure) = self.sample() else {
            ctx.requeue_after(UNMEASURED_PAUSE);
            return Ok(());
        };
        let now = Instant::now();
        let began = self.last.map_or(now, |(at, _)| at);
        let seconds = now.duration_since(began).as_secs_f64();
        let since = self.acted.map_or(Duration::MAX / 4, |at| now.duration_since(at));
        let before = self.last.as_ref().map(|(_, pressure)| pressure);
        let context = TriggerContext::new(&pressure, before, seconds, since);
        self.last = Some((now, pressure));
        ctx.requeue_after(policy.sample);
        if policy.triggers(&context)? {
            self.acted = Some(now);
            self.act(&policy, &context).await?;
            ctx.publish(self.actions.iter().map(|(id, action)| (id.to_string(), action.clone())))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
