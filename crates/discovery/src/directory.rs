//! What a discovery service keeps: sealed affiliates by cluster, each until its time is over. Pure: the time is passed
//! in, and what watchers should hear of comes out.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use ichor_wire::discovery::server as wire;
use tonic::Status;

/// The longest name of a cluster or an affiliate.
pub const ID_MAX: usize = 256;
/// The largest sealed affiliate.
pub const DATA_MAX: usize = 2048;
/// The largest sealed endpoint.
pub const ENDPOINT_MAX: usize = 32;
/// How long an affiliate may stay without word of it.
pub const TTL_MAX: Duration = Duration::from_secs(30 * 60);
/// Affiliates of one cluster.
pub const AFFILIATES_MAX: usize = 1024;
/// Endpoints of one affiliate.
pub const ENDPOINTS_MAX: usize = 64;
/// Clusters; a bound of ours, as anybody may name a new one.
pub const CLUSTERS_MAX: usize = 4096;

/// What watchers of a cluster should hear.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// An affiliate is new or different.
    Updated(wire::Affiliate),
    /// An affiliate is gone.
    Deleted(String),
}

impl Change {
    /// The message of the protocol.
    pub fn into_response(self) -> wire::WatchResponse {
        match self {
            Self::Updated(affiliate) => wire::WatchResponse { affiliates: vec![affiliate], deleted: false },
            Self::Deleted(id) => wire::WatchResponse {
                affiliates: vec![wire::Affiliate { id, ..Default::default() }],
                deleted: true,
            },
        }
    }
}

/// The affiliates of all clusters.
#[derive(Debug, Default)]
pub struct Directory {
    clusters: HashMap<String, BTreeMap<String, Entry>>,
}

#[derive(Debug)]
struct Entry {
    /// None until the affiliate itself has reported.
    data: Option<Vec<u8>>,
    expires: Instant,
    endpoints: Vec<(Vec<u8>, Instant)>,
}

impl Entry {
    fn show(&self, id: &str) -> wire::Affiliate {
        wire::Affiliate {
            id: id.to_owned(),
            data: self.data.clone().unwrap_or_default(),
            endpoints: self.endpoints.iter().map(|(endpoint, _)| endpoint.clone()).collect(),
        }
    }
}

impl Directory {
    /// Takes word of an affiliate. A refusal changes nothing.
    pub fn update(
        &mut self,
        request: wire::AffiliateUpdateRequest,
        now: Instant,
    ) -> Result<Option<Change>, Status> {
        check_id("cluster", &request.cluster_id)?;
        check_id("affiliate", &request.affiliate_id)?;
        let ttl = ttl(request.ttl)?;
        if request.affiliate_data.as_ref().is_some_and(|data| data.len() > DATA_MAX) {
            return Err(Status::invalid_argument(format!("affiliate data is longer than {DATA_MAX} bytes")));
        }
        if request.affiliate_endpoints.iter().any(|endpoint| endpoint.len() > ENDPOINT_MAX) {
            return Err(Status::invalid_argument(format!(
                "an affiliate endpoint is longer than {ENDPOINT_MAX} bytes"
            )));
        }
        if !self.clusters.contains_key(&request.cluster_id) && self.clusters.len() >= CLUSTERS_MAX {
            return Err(Status::resource_exhausted(format!(
                "this service knows {CLUSTERS_MAX} clusters, which is all it takes"
            )));
        }
        let known = self.clusters.get(&request.cluster_id);
        let entry = known.and_then(|cluster| cluster.get(&request.affiliate_id));
        if entry.is_none() && known.is_some_and(|cluster| cluster.len() >= AFFILIATES_MAX) {
            return Err(Status::resource_exhausted(format!(
                "the cluster has {AFFILIATES_MAX} affiliates, which is the limit"
            )));
        }
        let has = |endpoint: &Vec<u8>| {
            entry.is_some_and(|entry| entry.endpoints.iter().any(|(have, _)| have == endpoint))
        };
        let mut new: Vec<&Vec<u8>> =
            request.affiliate_endpoints.iter().filter(|endpoint| !has(endpoint)).collect();
        new.sort_unstable();
        new.dedup();
        if entry.map_or(0, |entry| entry.endpoints.len()) + new.len() > ENDPOINTS_MAX {
            return Err(Status::resource_exhausted(format!(
                "the affiliate has {ENDPOINTS_MAX} endpoints, which is the limit"
            )));
        }

        let expires = now + ttl;
        let cluster = self.clusters.entry(request.cluster_id).or_default();
        let entry = cluster.entry(request.affiliate_id.clone()).or_insert(Entry {
            data: None,
            expires,
            endpoints: Vec::new(),
        });
        entry.expires = entry.expires.max(expires);
        let mut heard = false;
        if let Some(data) = request.affiliate_data {
            entry.data = Some(data);
            entry.expires = expires;
            heard = true;
        }
        for endpoint in request.affiliate_endpoints {
            match entry.endpoints.iter_mut().find(|(have, _)| *have == endpoint) {
                Some((_, until)) => *until = (*until).max(expires),
                None => {
                    entry.endpoints.push((endpoint, expires));
                    heard = true;
                }
            }
        }
        Ok(heard.then(|| Change::Updated(entry.show(&request.affiliate_id))))
    }

    /// Takes an affiliate back.
    pub fn delete(&mut self, cluster_id: &str, affiliate_id: &str) -> Result<Option<Change>, Status> {
        check_id("cluster", cluster_id)?;
        check_id("affiliate", affiliate_id)?;
        let removed = self.clusters.get_mut(cluster_id).and_then(|cluster| cluster.remove(affiliate_id));
        if self.clusters.get(cluster_id).is_some_and(BTreeMap::is_empty) {
            self.clusters.remove(cluster_id);
        }
        Ok(removed.map(|_| Change::Deleted(affiliate_id.to_owned())))
    }

    /// All affiliates of a cluster.
    pub fn list(&self, cluster_id: &str) -> Result<Vec<wire::Affiliate>, Status> {
        check_id("cluster", cluster_id)?;
        let cluster = self.clusters.get(cluster_id);
        Ok(cluster.into_iter().flatten().map(|(id, entry)| entry.show(id)).collect())
    }

    /// Forgets what is past its time. An affiliate that only lost an endpoint is told anew, without it.
    pub fn expire(&mut self, now: Instant) -> Vec<(String, Change)> {
        let mut changes = Vec::new();
        self.clusters.retain(|cluster_id, cluster| {
            cluster.retain(|id, entry| {
                if entry.expires <= now {
                    changes.push((cluster_id.clone(), Change::Deleted(id.clone())));
                    return false;
                }
                let before = entry.endpoints.len();
                entry.endpoints.retain(|(_, until)| *until > now);
                if entry.endpoints.len() < before {
                    changes.push((cluster_id.clone(), Change::Updated(entry.show(id))));
                }
                true
            });
            !cluster.is_empty()
        });
        changes
    }

    /// Whether there is nothing to expire.
    pub fn is_empty(&self) -> bool {
        self.clusters.is_empty()
    }
}

/// Refuses names that are empty or too long.
pub fn check_id(what: &str, id: &str) -> Result<(), Status> {
    match id.len() {
        1..=ID_MAX => Ok(()),
        length => Err(Status::invalid_argument(format!(
            "the {what} id has {length} bytes; 1 to {ID_MAX} are allowed"
        ))),
    }
}

fn ttl(ttl: Option<prost_types::Duration>) -> Result<Duration, Status> {
    let given = ttl.unwrap_or_default();
    let ttl = Duration::try_from(given).map_err(|_| Status::invalid_argument("the ttl is negative"))?;
    if ttl > TTL_MAX {
        return Err(Status::invalid_argument(format!(
            "the ttl is longer than {} minutes",
            TTL_MAX.as_secs() / 60
        )));
    }
    Ok(ttl)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    fn word(
        affiliate: &str,
        data: Option<&[u8]>,
        endpoints: &[&[u8]],
        minutes: i64,
    ) -> wire::AffiliateUpdateRequest {
        wire::AffiliateUpdateRequest {
            cluster_id: "c".into(),
            affiliate_id: affiliate.into(),
            affiliate_data: data.map(<[u8]>::to_vec),
            affiliate_endpoints: endpoints.iter().map(|endpoint| endpoint.to_vec()).collect(),
            ttl: Some(prost_types::Duration { seconds: minutes * 60, nanos: 0 }),
        }
    }

    fn minutes(count: u64) -> Duration {
        Duration::from_secs(count * 60)
    }

    #[test]
    fn data_is_always_heard_and_endpoints_only_when_new() {
        let (mut directory, now) = (Directory::default(), Instant::now());
        assert!(directory.update(word("a", Some(b"x"), &[b"1"], 30), now).unwrap().is_some());
        assert!(directory.update(word("a", Some(b"x"), &[], 30), now).unwrap().is_some());
        assert!(directory.update(word("a", None, &[b"1"], 30), now).unwrap().is_none());
        let change = directory.update(word("a", None, &[b"2", b"2"], 30), now).unwrap().unwrap();
        let affiliate = wire::Affiliate {
            id: "a".into(),
            data: b"x".to_vec(),
            endpoints: vec![b"1".to_vec(), b"2".to_vec()],
        };
        assert_eq!(change, Change::Updated(affiliate.clone()));
        assert_eq!(directory.list("c").unwrap(), [affiliate]);
        assert!(directory.list("other").unwrap().is_empty());
    }

    #[test]
    fn others_may_tell_of_endpoints_before_the_affiliate_itself() {
        let (mut directory, now) = (Directory::default(), Instant::now());
        directory.update(word("a", None, &[b"1"], 30), now).unwrap();
        assert_eq!(directory.list("c").unwrap()[0].data, b"");
        directory.update(word("a", Some(b"x"), &[], 30), now).unwrap();
        assert_eq!(directory.list("c").unwrap()[0].endpoints, [b"1".to_vec()]);
    }

    #[test]
    fn what_nobody_tells_of_is_forgotten() {
        let (mut directory, now) = (Directory::default(), Instant::now());
        directory.update(word("a", Some(b"x"), &[b"1"], 10), now).unwrap();
        directory.update(word("a", Some(b"x"), &[b"2"], 30), now).unwrap();
        directory.update(word("b", Some(b"y"), &[], 10), now).unwrap();
        assert!(directory.expire(now + minutes(5)).is_empty());
        let changes = directory.expire(now + minutes(10));
        assert_eq!(changes.len(), 2);
        let left = wire::Affiliate { id: "a".into(), data: b"x".to_vec(), endpoints: vec![b"2".to_vec()] };
        assert!(changes.contains(&("c".into(), Change::Updated(left))));
        assert!(changes.contains(&("c".into(), Change::Deleted("b".into()))));
        assert_eq!(directory.expire(now + minutes(30)), [("c".to_owned(), Change::Deleted("a".into()))]);
        assert!(directory.is_empty());
    }

    #[test]
    fn an_affiliate_can_be_taken_back_once() {
        let (mut directory, now) = (Directory::default(), Instant::now());
        directory.update(word("a", Some(b"x"), &[], 10), now).unwrap();
        assert_eq!(directory.delete("c", "a").unwrap(), Some(Change::Deleted("a".into())));
        assert_eq!(directory.delete("c", "a").unwrap(), None);
        assert!(directory.is_empty());
    }

    #[test]
    fn what_is_out_of_bounds_is_refused_and_changes_nothing() {
        let (mut directory, now) = (Directory::default(), Instant::now());
        let mut code = |request| directory.update(request, now).unwrap_err().code();
        assert_eq!(code(word("", None, &[], 1)), Code::InvalidArgument);
        assert_eq!(code(word(&"i".repeat(257), None, &[], 1)), Code::InvalidArgument);
        assert_eq!(code(word("a", Some(&[0; 2049]), &[], 1)), Code::InvalidArgument);
        assert_eq!(code(word("a", None, &[&[0; 33]], 1)), Code::InvalidArgument);
        assert_eq!(code(word("a", None, &[], 31)), Code::InvalidArgument);
        assert_eq!(code(word("a", None, &[], -1)), Code::InvalidArgument);
        let many: Vec<[u8; 1]> = (0..65).map(|n| [n]).collect();
        let many: Vec<&[u8]> = many.iter().map(|endpoint| &endpoint[..]).collect();
        assert_eq!(code(word("a", None, &many, 1)), Code::ResourceExhausted);
        assert!(directory.is_empty());
        for n in 0..AFFILIATES_MAX {
            directory.update(word(&n.to_string(), None, &[], 1), now).unwrap();
        }
        assert_eq!(
            directory.update(word("one more", None, &[], 1), now).unwrap_err().code(),
            Code::ResourceExhausted
        );
        assert!(directory.update(word("7", Some(b"x"), &[], 1), now).is_ok());
    }
}
