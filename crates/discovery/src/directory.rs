//! What a discovery service keeps: sealed affiliates by cluster, each until its time is over. Pure: the time is passed
//! in, and what watchers should hear of comes out.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::ops::Bound;
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
/// Clusters that one address brought.
pub const CLUSTERS_PER_SOURCE: usize = 64;
/// Affiliates of one cluster that one address brought: nodes behind one address of a router count together.
pub const AFFILIATES_PER_SOURCE: usize = 512;
/// Affiliates of all clusters.
pub const ENTRIES_MAX: usize = 65_536;

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
    clusters: HashMap<String, Cluster>,
    /// Affiliates of all of them.
    entries: usize,
}

#[derive(Debug)]
struct Cluster {
    /// Who brought its first affiliate.
    source: IpAddr,
    affiliates: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    /// Who brought it.
    source: IpAddr,
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
    /// Takes an update of an affiliate from an address. A refusal changes nothing.
    ///
    /// In a full cluster a new affiliate takes the place of one of the address that brought the most, so that one
    /// address cannot keep others out.
    pub fn update(
        &mut self,
        request: wire::AffiliateUpdateRequest,
        source: IpAddr,
        now: Instant,
    ) -> Result<Vec<Change>, Status> {
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
        let known = self.clusters.get(&request.cluster_id);
        if known.is_none() {
            self.check_clusters(source)?;
        }
        let entry = known.and_then(|cluster| cluster.affiliates.get(&request.affiliate_id));
        let evicted = match (entry, known) {
            (Some(_), _) => None,
            (None, cluster) => self.place_for(cluster, source)?,
        };
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
        let mut changes = Vec::new();
        let cluster = self
            .clusters
            .entry(request.cluster_id)
            .or_insert_with(|| Cluster { source, affiliates: BTreeMap::new() });
        if let Some(evicted) = evicted {
            cluster.affiliates.remove(&evicted);
            self.entries -= 1;
            changes.push(Change::Deleted(evicted));
        }
        let entries = &mut self.entries;
        let entry = cluster.affiliates.entry(request.affiliate_id.clone()).or_insert_with(|| {
            *entries += 1;
            Entry { source, data: None, expires, endpoints: Vec::new() }
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
        changes.extend(heard.then(|| Change::Updated(entry.show(&request.affiliate_id))));
        Ok(changes)
    }

    /// Whether this address may bring one more cluster.
    fn check_clusters(&self, source: IpAddr) -> Result<(), Status> {
        if self.clusters.len() >= CLUSTERS_MAX {
            return Err(Status::resource_exhausted(format!(
                "this service knows {CLUSTERS_MAX} clusters, which is all it takes"
            )));
        }
        if self.clusters.values().filter(|cluster| cluster.source == source).count() >= CLUSTERS_PER_SOURCE {
            return Err(Status::resource_exhausted(format!(
                "{source} has brought {CLUSTERS_PER_SOURCE} clusters, which is the limit"
            )));
        }
        Ok(())
    }

    /// Whether this address may bring one more affiliate, and which one has to go for it.
    fn place_for(&self, cluster: Option<&Cluster>, source: IpAddr) -> Result<Option<String>, Status> {
        if self.entries >= ENTRIES_MAX {
            return Err(Status::resource_exhausted(format!(
                "this service knows {ENTRIES_MAX} affiliates, which is all it takes"
            )));
        }
        let Some(cluster) = cluster else { return Ok(None) };
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for entry in cluster.affiliates.values() {
            *counts.entry(entry.source).or_default() += 1;
        }
        let own = counts.get(&source).copied().unwrap_or_default();
        if own >= AFFILIATES_PER_SOURCE {
            return Err(Status::resource_exhausted(format!(
                "{source} has brought {AFFILIATES_PER_SOURCE} affiliates, which is the limit"
            )));
        }
        if cluster.affiliates.len() < AFFILIATES_MAX {
            return Ok(None);
        }
        let largest = counts.into_iter().max_by_key(|(address, count)| (*count, *address));
        let victim = largest.filter(|(_, count)| *count > own + 1).and_then(|(largest, _)| {
            let its = cluster.affiliates.iter().filter(|(_, entry)| entry.source == largest);
            its.min_by_key(|(_, entry)| (entry.data.is_some(), entry.expires)).map(|(id, _)| id.clone())
        });
        victim.map(Some).ok_or_else(|| {
            Status::resource_exhausted(format!(
                "the cluster has {AFFILIATES_MAX} affiliates, which is the limit"
            ))
        })
    }

    /// Takes an affiliate back.
    pub fn delete(&mut self, cluster_id: &str, affiliate_id: &str) -> Result<Option<Change>, Status> {
        check_id("cluster", cluster_id)?;
        check_id("affiliate", affiliate_id)?;
        let cluster = self.clusters.get_mut(cluster_id);
        let removed = cluster.and_then(|cluster| cluster.affiliates.remove(affiliate_id));
        self.entries -= usize::from(removed.is_some());
        if self.clusters.get(cluster_id).is_some_and(|cluster| cluster.affiliates.is_empty()) {
            self.clusters.remove(cluster_id);
        }
        Ok(removed.map(|_| Change::Deleted(affiliate_id.to_owned())))
    }

    /// All affiliates of a cluster.
    pub fn list(&self, cluster_id: &str) -> Result<Vec<wire::Affiliate>, Status> {
        check_id("cluster", cluster_id)?;
        Ok(self.page(cluster_id, None, usize::MAX))
    }

    /// At most `most` affiliates of a cluster, in the order of their names, beginning behind `after`.
    pub fn page(&self, cluster_id: &str, after: Option<&str>, most: usize) -> Vec<wire::Affiliate> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range = |cluster: &'_ Cluster| {
            let page = cluster.affiliates.range::<str, _>((from, Bound::Unbounded)).take(most);
            page.map(|(id, entry)| entry.show(id)).collect()
        };
        self.clusters.get(cluster_id).map(range).unwrap_or_default()
    }

    /// Forgets what is past its time. An affiliate that only lost an endpoint is told anew, without it.
    pub fn expire(&mut self, now: Instant) -> Vec<(String, Change)> {
        let mut changes = Vec::new();
        let entries = &mut self.entries;
        self.clusters.retain(|cluster_id, cluster| {
            cluster.affiliates.retain(|id, entry| {
                if entry.expires <= now {
                    changes.push((cluster_id.clone(), Change::Deleted(id.clone())));
                    *entries -= 1;
                    return false;
                }
                let before = entry.endpoints.len();
                entry.endpoints.retain(|(_, until)| *until > now);
                if entry.endpoints.len() < before {
                    changes.push((cluster_id.clone(), Change::Updated(entry.show(id))));
                }
                true
            });
            !cluster.affiliates.is_empty()
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

    fn source(last: u16) -> IpAddr {
        let [high, low] = last.to_be_bytes();
        IpAddr::from([10, 0, high, low])
    }

    fn minutes(count: u64) -> Duration {
        Duration::from_secs(count * 60)
    }

    #[test]
    fn data_is_always_heard_and_endpoints_only_when_new() {
        let (mut directory, now) = (Directory::default(), Instant::now());
        assert!(directory.update(word("a", Some(b"x"), &[b"1"], 30), source(1), now).unwrap().len() == 1);
        assert!(directory.update(word("a", Some(b"x"), &[], 30), source(1), now).unwrap().len() == 1);
        assert!(directory.update(word("a", None, &[b"1"], 30), source(1), now).unwrap().is_empty());
        let change = directory.update(word("a", None, &[b"2", b"2"], 30), source(1), now).unwrap().remove(0);
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
        directory.update(word("a", None, &[b"1"], 30), source(1), now).unwrap();
        assert_eq!(directory.list("c").unwrap()[0].data, b"");
        directory.update(word("a", Some(b"x"), &[], 30), source(1), now).unwrap();
        assert_eq!(directory.list("c").unwrap()[0].endpoints, [b"1".to_vec()]);
    }

    #[test]
    fn what_nobody_tells_of_is_forgotten() {
        let (mut directory, now) = (Directory::default(), Instant::now());
        directory.update(word("a", Some(b"x"), &[b"1"], 10), source(1), now).unwrap();
        directory.update(word("a", Some(b"x"), &[b"2"], 30), source(1), now).unwrap();
        directory.update(word("b", Some(b"y"), &[], 10), source(1), now).unwrap();
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
        directory.update(word("a", Some(b"x"), &[], 10), source(1), now).unwrap();
        assert_eq!(directory.delete("c", "a").unwrap(), Some(Change::Deleted("a".into())));
        assert_eq!(directory.delete("c", "a").unwrap(), None);
        assert!(directory.is_empty());
    }

    #[test]
    fn what_is_out_of_bounds_is_refused_and_changes_nothing() {
        let (mut directory, now) = (Directory::default(), Instant::now());
        let mut code = |request| directory.update(request, source(1), now).unwrap_err().code();
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
    }

    #[test]
    fn one_address_neither_fills_a_cluster_nor_keeps_others_out() {
        let (mut directory, now) = (Directory::default(), Instant::now());
        let mut brings =
            |name: &str, from: u16| directory.update(word(name, None, &[], 1), source(from), now);
        for n in 0..AFFILIATES_PER_SOURCE {
            brings(&format!("crowd {n}"), 1).unwrap();
        }
        let refused = brings("crowd more", 1).unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert_eq!(refused.message(), "10.0.0.1 has brought 512 affiliates, which is the limit");
        for n in 0..AFFILIATES_MAX - AFFILIATES_PER_SOURCE {
            brings(&format!("node {n}"), 2 + n as u16).unwrap();
        }
        let changes = brings("joins", 9999).unwrap();
        assert!(matches!(&changes[..], [Change::Deleted(gone)] if gone.starts_with("crowd")), "{changes:?}");
        let known = directory.list("c").unwrap();
        assert_eq!(known.len(), AFFILIATES_MAX);
        assert!(known.iter().any(|affiliate| affiliate.id == "joins"));
        assert_eq!(known.iter().filter(|affiliate| affiliate.id.starts_with("node")).count(), 512);
    }

    #[test]
    fn one_address_brings_few_clusters() {
        let (mut directory, now) = (Directory::default(), Instant::now());
        let mut brings = |cluster: usize, from| {
            let request =
                wire::AffiliateUpdateRequest { cluster_id: cluster.to_string(), ..word("a", None, &[], 1) };
            directory.update(request, source(from), now).map(drop).map_err(|status| status.code())
        };
        for n in 0..CLUSTERS_PER_SOURCE {
            brings(n, 1).unwrap();
        }
        assert_eq!(brings(100, 1), Err(Code::ResourceExhausted));
        brings(100, 2).unwrap();
    }

    #[test]
    fn pages_follow_each_other() {
        let (mut directory, now) = (Directory::default(), Instant::now());
        for name in ["a", "b", "c"] {
            directory.update(word(name, None, &[], 1), source(1), now).unwrap();
        }
        let names = |after, most| {
            let page = directory.page("c", after, most);
            page.into_iter().map(|affiliate| affiliate.id).collect::<Vec<_>>()
        };
        assert_eq!(names(None, 2), ["a", "b"]);
        assert_eq!(names(Some("b"), 2), ["c"]);
        assert!(names(Some("c"), 2).is_empty());
    }
}
