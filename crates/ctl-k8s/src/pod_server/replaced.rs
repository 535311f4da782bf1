//! Pods that take the place of others of the same name.
//!
//! Kubelet tells pods apart by their uid. Here it is made from the pod itself, so that an annotation can change while
//! the pod stays the same one: such a change makes kubelet try again at once to start a pod whose place was taken.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value as Json;

/// Changes often come in twos and threes; they are served together when none came for this long.
const SETTLED: Duration = Duration::from_millis(300);
/// Nobody waits longer for changes to end.
const SETTLED_MAX: Duration = Duration::from_secs(2);
/// Kubelet asks for the list no more often.
const AGAIN: Duration = Duration::from_secs(1);
/// Kubelet ends a pod within half a minute; by then the new one has its place.
const ATTEMPTS_MAX: u32 = 40;
/// What changes with every attempt.
const ATTEMPT: &str = "ichor.dev/attempt";

/// Which pods are served, and which of them still wait for their places.
#[derive(Debug, Default)]
pub(super) struct Replaced {
    /// The uids by namespace and name.
    served: BTreeMap<String, String>,
    waiting: BTreeMap<String, Waiting>,
    /// A list with changes, since when there are changes, and since when it is this list.
    pending: Option<(BTreeMap<String, String>, Timestamp, Timestamp)>,
}

#[derive(Debug)]
struct Waiting {
    since: Timestamp,
    last: Timestamp,
    attempt: u32,
}

/// What to do with a list.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Look again after this: more changes may come.
    Wait(Duration),
    /// Serve it; look again after this, if anything waits.
    Serve(Option<Duration>),
}

impl Replaced {
    /// Looks at the pods to serve and marks those that kubelet is to try again. `begun` says whether the pod whose id
    /// starts like this has begun since then.
    pub(super) fn pass(
        &mut self,
        pods: &mut [Json],
        now: Timestamp,
        begun: impl Fn(&str, Timestamp) -> bool,
    ) -> Step {
        let uids: BTreeMap<String, String> =
            pods.iter().map(|pod| (name_of(pod), text(&pod["metadata"]["uid"]).to_owned())).collect();
        let changed =
            |(name, uid): &(&String, &String)| self.served.get(*name).is_some_and(|old| old != *uid);
        let changed: Vec<String> = uids.iter().filter(changed).map(|(name, _)| name.clone()).collect();
        if !changed.is_empty()
            && let Some(rest) = self.settles(&uids, now)
        {
            return Step::Wait(rest);
        }
        self.pending = None;
        for name in changed {
            self.waiting.insert(name, Waiting { since: now, last: now, attempt: 0 });
        }
        self.waiting.retain(|name, waiting| {
            uids.contains_key(name)
                && waiting.attempt < ATTEMPTS_MAX
                && !begun(&format!("{name}-"), waiting.since)
        });
        self.served = uids;
        for waiting in self.waiting.values_mut().filter(|waiting| age(now, waiting.last) >= AGAIN) {
            (waiting.attempt, waiting.last) = (waiting.attempt + 1, now);
        }
        for pod in pods {
            if let Some(waiting) = self.waiting.get(&name_of(pod)).filter(|waiting| waiting.attempt > 0) {
                pod["metadata"]["annotations"][ATTEMPT] = waiting.attempt.to_string().into();
            }
        }
        let rest = self.waiting.values().map(|waiting| AGAIN.saturating_sub(age(now, waiting.last))).min();
        Step::Serve(rest)
    }

    /// How long to wait for more changes; nothing when they came to an end.
    fn settles(&mut self, uids: &BTreeMap<String, String>, now: Timestamp) -> Option<Duration> {
        let (first, last) = match &self.pending {
            Some((known, first, last)) if known == uids => (*first, *last),
            Some((_, first, _)) => (*first, now),
            None => (now, now),
        };
        let rest = SETTLED.saturating_sub(age(now, last)).min(SETTLED_MAX.saturating_sub(age(now, first)));
        self.pending = Some((uids.clone(), first, last));
        (!rest.is_zero()).then_some(rest)
    }
}

pub(super) fn age(now: Timestamp, since: Timestamp) -> Duration {
    // A clock that was put back makes nobody wait.
    Duration::try_from(now.duration_since(since)).unwrap_or(Duration::MAX)
}

fn text(value: &Json) -> &str {
    value.as_str().unwrap_or_default()
}

/// `namespace/name`.
fn name_of(pod: &Json) -> String {
    let namespace = pod["metadata"]["namespace"].as_str().unwrap_or("default");
    format!("{namespace}/{}", text(&pod["metadata"]["name"]))
}

/// Gives pods without a uid one that is made of what they are, and of where they come from.
pub(super) fn identify(pods: &mut [Json], place: &str) {
    for pod in pods {
        if text(&pod["metadata"]["uid"]).is_empty() && pod["metadata"].is_object() {
            let sum = ichor_pki::sha256(format!("{place}{pod}").as_bytes());
            let uid: String = sum.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
            pod["metadata"]["uid"] = uid.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_800_000_000_000 + millis).unwrap()
    }

    fn pods(image: &str) -> Vec<Json> {
        let pod = |name: &str, image: &str| json!({ "metadata": { "namespace": "kube-system", "name": name, "annotations": {} }, "spec": image });
        let mut pods = vec![pod("kube-apiserver", image), pod("kube-scheduler", "same")];
        identify(&mut pods, "http://127.0.0.1:1");
        pods
    }

    fn never(_: &str, _: Timestamp) -> bool {
        false
    }

    #[test]
    fn a_uid_tells_pods_apart_and_a_users_own_stays() {
        assert_ne!(pods("a")[0]["metadata"]["uid"], pods("b")[0]["metadata"]["uid"]);
        assert_eq!(pods("a")[1]["metadata"]["uid"], pods("b")[1]["metadata"]["uid"]);
        let mut own = [json!({ "metadata": { "name": "a", "uid": "mine" } }), json!({ "metadata": 5 })];
        identify(&mut own, "x");
        assert_eq!(own, [json!({ "metadata": { "name": "a", "uid": "mine" } }), json!({ "metadata": 5 })]);
    }

    #[test]
    fn what_is_new_is_served_at_once_and_what_changes_when_changes_end() {
        let mut replaced = Replaced::default();
        assert_eq!(replaced.pass(&mut pods("a"), at(0), never), Step::Serve(None));
        assert_eq!(replaced.pass(&mut pods("b"), at(1000), never), Step::Wait(SETTLED));
        assert_eq!(replaced.pass(&mut pods("c"), at(1200), never), Step::Wait(SETTLED));
        assert_eq!(replaced.pass(&mut pods("c"), at(1300), never), Step::Wait(Duration::from_millis(200)));
        assert_eq!(replaced.pass(&mut pods("c"), at(1500), never), Step::Serve(Some(AGAIN)));
        // Changes without an end do not hold up everything.
        assert_eq!(replaced.pass(&mut pods("d"), at(2000), never), Step::Wait(SETTLED));
        assert_eq!(replaced.pass(&mut pods("e"), at(4000), never), Step::Serve(Some(AGAIN)));
    }

    #[test]
    fn a_pod_is_tried_again_until_it_begins() {
        let mut replaced = Replaced::default();
        replaced.pass(&mut pods("a"), at(0), never);
        replaced.pass(&mut pods("b"), at(0), never);
        replaced.pass(&mut pods("b"), at(300), never);
        let mut list = pods("b");
        assert_eq!(replaced.pass(&mut list, at(900), never), Step::Serve(Some(Duration::from_millis(400))));
        assert_eq!(list, pods("b"), "kubelet has had no time");
        assert_eq!(replaced.pass(&mut list, at(1300), never), Step::Serve(Some(AGAIN)));
        assert_eq!(list[0]["metadata"]["annotations"][ATTEMPT], "1");
        assert_eq!(list[1], pods("b")[1], "the other one did not change");
        let mut list = pods("b");
        let begun = |id: &str, since| id == "kube-system/kube-apiserver-" && since == at(300);
        assert_eq!(replaced.pass(&mut list, at(2300), begun), Step::Serve(None));
        assert_eq!(list, pods("b"));
        // One that never begins is left to kubelet in the end.
        replaced.pass(&mut pods("c"), at(3000), never);
        let mut steps = (0..).map(|second| replaced.pass(&mut pods("c"), at(4000 + second * 1000), never));
        assert_eq!(steps.position(|step| step == Step::Serve(None)), Some(41));
    }
}
