//! When a system on trial is good: its services are up, the kubelet is healthy and, on a control plane, etcd, and that
//! lasts; all of it within a deadline counted from the start of the machine.
//!
//! A machine without a configuration has neither kubelet nor etcd: there it is enough that the machine API answers, which
//! is what a person needs to go on.

use std::time::Duration;

use ichor_types::Cmdline;

/// How long a system has to become healthy unless something else was asked for.
pub const DEADLINE: Duration = Duration::from_secs(10 * 60);
/// What can be asked for at least; nobody gets healthy faster than that on slow hardware.
pub const DEADLINE_MIN: Duration = Duration::from_secs(60);
/// What can be asked for at most: the original's limit for a boot.
pub const DEADLINE_MAX: Duration = Duration::from_secs(70 * 60);
/// The kernel argument that asks for another deadline, in seconds.
pub const DEADLINE_ARGUMENT: &str = "ichor.trial_deadline";

/// The deadline that a command line asks for, within its limits.
pub fn deadline(cmdline: &Cmdline) -> Duration {
    let asked = cmdline.first(DEADLINE_ARGUMENT).and_then(|text| text.parse().ok());
    asked.map_or(DEADLINE, Duration::from_secs).clamp(DEADLINE_MIN, DEADLINE_MAX)
}

/// How long it has to stay healthy: a service that is restarted all the time is up now and then.
pub const STEADY: Duration = Duration::from_secs(15);

/// What machine this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// No configuration yet.
    Maintenance,
    /// Runs workloads.
    Worker,
    /// Runs the control plane.
    ControlPlane,
}

/// A service as its manager sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceHealth {
    /// Its name.
    pub id: String,
    /// Whether it runs, or is done where it is meant to end.
    pub is_up: bool,
    /// What its own check says; none when it has none.
    pub is_healthy: Option<bool>,
}

impl ServiceHealth {
    fn is_good(&self) -> bool {
        self.is_up && self.is_healthy != Some(false)
    }
}

/// One look at the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// What machine this is.
    pub role: Role,
    /// Whether the machine API answers.
    pub api_answers: bool,
    /// All services that are meant to run.
    pub services: Vec<ServiceHealth>,
    /// Since the start of the machine.
    pub uptime: Duration,
}

/// What is to be done about the slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Not yet; this is what is missing.
    Wait(Vec<String>),
    /// Keep it.
    Good,
    /// The deadline passed, and this was missing.
    Bad(Vec<String>),
}

/// Watches a system on trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watch {
    deadline: Duration,
    good_since: Option<Duration>,
}

impl Watch {
    /// A watch with this deadline, within its limits.
    pub fn new(deadline: Duration) -> Self {
        Self { deadline: deadline.clamp(DEADLINE_MIN, DEADLINE_MAX), good_since: None }
    }

    /// When the slot is given up, counted from the start of the machine.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Takes one more look. Once it is healthy shortly before the deadline it gets the time to show that it stays so.
    pub fn observe(&mut self, observation: &Observation) -> Verdict {
        let missing = missing(observation);
        if missing.is_empty() {
            let since = *self.good_since.get_or_insert(observation.uptime);
            if observation.uptime.saturating_sub(since) >= STEADY {
                return Verdict::Good;
            }
            return match since <= self.deadline {
                true => Verdict::Wait(vec!["to stay healthy".into()]),
                false => Verdict::Bad(vec!["healthy only after the deadline".into()]),
            };
        }
        self.good_since = None;
        match observation.uptime < self.deadline {
            true => Verdict::Wait(missing),
            false => Verdict::Bad(missing),
        }
    }
}

/// What a healthy machine of this kind has and this one has not.
pub fn missing(observation: &Observation) -> Vec<String> {
    let mut missing = Vec::new();
    if !observation.api_answers {
        missing.push("the machine API does not answer".to_owned());
    }
    let required: &[&str] = match observation.role {
        // What else runs there is not needed to configure it.
        Role::Maintenance => return missing,
        Role::Worker => &["kubelet"],
        Role::ControlPlane => &["kubelet", "etcd"],
    };
    for id in required {
        if !observation.services.iter().any(|service| service.id == *id) {
            missing.push(format!("service {id} is not there"));
        }
    }
    for service in observation.services.iter().filter(|service| !service.is_good()) {
        let what = if service.is_up { "is not healthy" } else { "is not up" };
        missing.push(format!("service {} {what}", service.id));
    }
    // Up is not enough for these two.
    for service in &observation.services {
        if required.contains(&service.id.as_str()) && service.is_up && service.is_healthy.is_none() {
            missing.push(format!("service {} has not been checked yet", service.id));
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(id: &str, is_up: bool, is_healthy: Option<bool>) -> ServiceHealth {
        ServiceHealth { id: id.into(), is_up, is_healthy }
    }

    fn look(role: Role, seconds: u64, services: &[ServiceHealth]) -> Observation {
        let uptime = Duration::from_secs(seconds);
        Observation { role, api_answers: true, services: services.to_vec(), uptime }
    }

    fn well() -> Vec<ServiceHealth> {
        vec![
            service("apid", true, None),
            service("etcd", true, Some(true)),
            service("kubelet", true, Some(true)),
        ]
    }

    #[test]
    fn a_control_plane_is_good_when_kubelet_and_etcd_are_healthy_for_a_while() {
        let mut watch = Watch::new(DEADLINE);
        let look = |seconds| look(Role::ControlPlane, seconds, &well());
        assert!(matches!(watch.observe(&look(40)), Verdict::Wait(_)));
        assert!(matches!(watch.observe(&look(54)), Verdict::Wait(_)));
        assert_eq!(watch.observe(&look(55)), Verdict::Good);
    }

    #[test]
    fn health_that_comes_and_goes_does_not_count() {
        let mut watch = Watch::new(DEADLINE);
        let sick = [service("kubelet", false, None)];
        let good = [service("kubelet", true, Some(true))];
        for seconds in (0..600).step_by(10) {
            let services = if seconds % 20 == 0 { &good } else { &sick };
            assert!(
                matches!(watch.observe(&look(Role::Worker, seconds, services)), Verdict::Wait(_)),
                "{seconds}"
            );
        }
        assert_eq!(
            watch.observe(&look(Role::Worker, 610, &sick)),
            Verdict::Bad(vec!["service kubelet is not up".into()])
        );
    }

    #[test]
    fn each_missing_thing_is_named() {
        let mut observation = look(
            Role::ControlPlane,
            5,
            &[
                service("kubelet", true, None),
                service("trustd", true, Some(false)),
                service("cri", false, None),
            ],
        );
        observation.api_answers = false;
        assert_eq!(
            missing(&observation),
            [
                "the machine API does not answer",
                "service etcd is not there",
                "service trustd is not healthy",
                "service cri is not up",
                "service kubelet has not been checked yet",
            ]
        );
        let worker = look(Role::Worker, 5, &[service("kubelet", true, Some(true))]);
        assert!(missing(&worker).is_empty(), "no etcd on a worker");
        let maintenance = look(Role::Maintenance, 5, &[service("kubelet", false, None)]);
        assert!(missing(&maintenance).is_empty());
    }

    #[test]
    fn healthy_at_the_last_moment_may_show_that_it_stays_so_and_later_may_not() {
        let mut watch = Watch::new(DEADLINE);
        assert!(matches!(watch.observe(&look(Role::ControlPlane, 599, &well())), Verdict::Wait(_)));
        assert!(matches!(watch.observe(&look(Role::ControlPlane, 605, &well())), Verdict::Wait(_)));
        assert_eq!(watch.observe(&look(Role::ControlPlane, 614, &well())), Verdict::Good);
        let mut late = Watch::new(DEADLINE);
        assert!(matches!(late.observe(&look(Role::ControlPlane, 601, &well())), Verdict::Bad(_)));
    }

    #[test]
    fn a_deadline_has_limits() {
        assert_eq!(Watch::new(Duration::ZERO).deadline(), DEADLINE_MIN);
        assert_eq!(Watch::new(Duration::MAX).deadline(), DEADLINE_MAX);
    }
}
