//! Mirror pods, through which the Kubernetes API shows static pods.
//!
//! Kubelet creates them when it syncs a pod and its node is registered. The API server's own pod was synced long before
//! there was an API, and is next synced after a minute and more; until then the cluster does not see its control plane. An
//! annotation that changes makes kubelet sync the pod at once, without a restart, since the uid stays the same.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value as Json;

use super::replaced::age;

/// What changes with every nudge.
const NUDGE: &str = "ichor.dev/registered";
/// When kubelet is nudged after its node was seen in the cluster. The first may be too early: namespaces of a new
/// cluster come a moment after its API.
const NUDGES: [Duration; 5] = [
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(8),
    Duration::from_secs(20),
];

/// Since when the node is known to the cluster.
#[derive(Debug, Default)]
pub(super) struct Mirrors {
    registered: Option<Timestamp>,
}

impl Mirrors {
    /// Marks the pods as often as it is time for; says when to look again.
    pub(super) fn pass(&mut self, pods: &mut [Json], registered: bool, now: Timestamp) -> Option<Duration> {
        if !registered {
            self.registered = None;
            return None;
        }
        let age = age(now, *self.registered.get_or_insert(now));
        let count = NUDGES.iter().filter(|after| **after <= age).count();
        if count > 0 {
            for pod in pods.iter_mut().filter(|pod| pod["metadata"].is_object()) {
                pod["metadata"]["annotations"][NUDGE] = count.to_string().into();
            }
        }
        NUDGES.get(count).map(|next| next.saturating_sub(age))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The API did not show the API server's own pod for more than a minute.
    #[test]
    fn pods_that_were_there_before_the_node_are_synced_again_soon_after_it_is_registered() {
        let at = |millis: i64| Timestamp::from_millisecond(1_800_000_000_000 + millis).unwrap();
        let mut mirrors = Mirrors::default();
        let mut mark = |registered: bool, millis: i64| {
            let mut pods = [json!({ "metadata": { "name": "kube-apiserver", "uid": "1" } })];
            let rest = mirrors.pass(&mut pods, registered, at(millis));
            (pods[0]["metadata"]["annotations"][NUDGE].as_str().map(str::to_owned), rest)
        };
        assert_eq!(mark(false, 0), (None, None));
        assert_eq!(mark(true, 1000), (None, Some(NUDGES[0])));
        assert_eq!(mark(true, 1200), (Some("1".into()), Some(Duration::from_millis(800))));
        assert_eq!(mark(true, 1500), (Some("1".into()), Some(Duration::from_millis(500))));
        assert_eq!(mark(true, 22_000), (Some("5".into()), None), "then it stays as it is");
        assert_eq!(mark(false, 30_000), (None, None));
        assert_eq!(mark(true, 31_000), (None, Some(NUDGES[0])), "another registration begins anew");
    }
}
