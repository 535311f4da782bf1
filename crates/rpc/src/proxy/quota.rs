//! What the calls that a gateway forwards may take: so much for one client certificate, so much in all.
//!
//! apid lives in 128 MiB. A forwarded call costs some kilobytes for every node it goes to, and replies of several nodes
//! are collected before they are passed on. Both are counted from the start of a call until its reply is read.
//! No certificate gets more than half, so whoever holds one cannot take the gateway away from the others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use tokio::sync::Semaphore;
use tonic::Status;

use crate::dial::Dials;
use crate::frame::too_large;
use crate::http2::MESSAGE_MAX;
use crate::route::TARGETS_MAX;

/// Nodes that calls of one certificate go to at a time.
const CERTIFICATE_TARGETS_MAX: usize = 4 * TARGETS_MAX;
/// Nodes that all calls go to at a time.
const ALL_TARGETS_MAX: usize = 2 * CERTIFICATE_TARGETS_MAX;
/// A call to several nodes counts for at least so many: it keeps its request and its reply, too.
const SEVERAL_MIN: usize = 8;
/// Collected replies of one certificate, in bytes: one of the largest.
const CERTIFICATE_BYTES_MAX: usize = MESSAGE_MAX;
/// Collected replies in all, in bytes.
const ALL_BYTES_MAX: usize = 2 * CERTIFICATE_BYTES_MAX;
/// Connections that are being made for one certificate at a time.
const CONNECTS_MAX: usize = 128;
/// TLS handshakes for one certificate at a time, some 80 KiB each.
const HANDSHAKES_MAX: usize = 32;

/// The counts of a gateway.
#[derive(Debug, Default)]
pub(super) struct Quota {
    all: Arc<Counts>,
    by_certificate: Mutex<HashMap<Box<str>, Weak<Share>>>,
}

#[derive(Debug, Default)]
struct Counts {
    targets: AtomicUsize,
    bytes: AtomicUsize,
}

/// The part of one client certificate, shared by its connections.
#[derive(Debug)]
pub(super) struct Share {
    all: Arc<Counts>,
    own: Counts,
    /// Places for connections that are being made.
    pub(super) dials: Dials,
}

/// What a running call has taken, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    share: Arc<Share>,
    targets: usize,
    bytes: AtomicUsize,
    /// Why no more replies are collected.
    refused: OnceLock<Status>,
}

impl Quota {
    /// The share of the certificate (or local user) that `credential` names.
    pub(super) fn share(&self, credential: &str) -> Arc<Share> {
        let mut shares = self.by_certificate.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = shares.get(credential).and_then(Weak::upgrade) {
            return share;
        }
        // Those without a connection are forgotten here; there are as many others as there are connections.
        shares.retain(|_, share| share.strong_count() > 0);
        let dials =
            Dials { connects: Semaphore::new(CONNECTS_MAX), handshakes: Semaphore::new(HANDSHAKES_MAX) };
        let share = Arc::new(Share { all: self.all.clone(), own: Counts::default(), dials });
        shares.insert(credential.into(), Arc::downgrade(&share));
        share
    }
}

impl Share {
    /// Takes what a call to one node needs.
    pub(super) fn one(self: &Arc<Self>) -> Result<Taken, Status> {
        self.take(1)
    }

    /// Takes what a call to several nodes needs.
    pub(super) fn several(self: &Arc<Self>, targets: usize) -> Result<Taken, Status> {
        self.take(targets.max(SEVERAL_MIN))
    }

    fn take(self: &Arc<Self>, targets: usize) -> Result<Taken, Status> {
        let taken =
            Taken { share: self.clone(), targets, bytes: AtomicUsize::new(0), refused: OnceLock::new() };
        // Both are given back when `taken` is dropped, also by a refusal.
        let own = self.own.targets.fetch_add(targets, Relaxed) + targets;
        let all = self.all.targets.fetch_add(targets, Relaxed) + targets;
        for (count, max, whose) in [
            (own, CERTIFICATE_TARGETS_MAX, "of this certificate"),
            (all, ALL_TARGETS_MAX, "through this endpoint"),
        ] {
            if count > max {
                return Err(Status::resource_exhausted(format!(
                    "calls {whose} go to more than {max} nodes at a time; retry when some have ended"
                )));
            }
        }
        Ok(taken)
    }
}

impl Taken {
    /// Takes `bytes` more for replies that are collected.
    pub(crate) fn collect(&self, bytes: usize) -> Result<(), Status> {
        let result = self.try_collect(bytes);
        if let Err(refused) = &result {
            let _ = self.refused.set(refused.clone());
        }
        result
    }

    /// Why the replies of this call cannot be collected, once that is so.
    pub(super) fn refused(&self) -> Option<&Status> {
        self.refused.get()
    }

    fn try_collect(&self, bytes: usize) -> Result<(), Status> {
        let call = self.bytes.fetch_add(bytes, Relaxed) + bytes;
        let own = self.share.own.bytes.fetch_add(bytes, Relaxed) + bytes;
        let all = self.share.all.bytes.fetch_add(bytes, Relaxed) + bytes;
        if call > MESSAGE_MAX {
            return Err(too_large(call, MESSAGE_MAX));
        }
        for (count, max, whose) in
            [(own, CERTIFICATE_BYTES_MAX, "for this certificate"), (all, ALL_BYTES_MAX, "at this endpoint")]
        {
            if count > max {
                return Err(Status::resource_exhausted(format!(
                    "collected replies {whose} exceed {max} bytes; call fewer nodes at a time"
                )));
            }
        }
        Ok(())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let bytes = self.bytes.load(Relaxed);
        for counts in [&self.share.own, &*self.share.all] {
            counts.targets.fetch_sub(self.targets, Relaxed);
            counts.bytes.fetch_sub(bytes, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn one_certificate_leaves_half_to_the_others() {
        let quota = Quota::default();
        let (flood, admin) = (quota.share("aa"), quota.share("bb"));
        let held: Vec<Taken> = std::iter::from_fn(|| flood.several(TARGETS_MAX).ok()).take(1000).collect();
        assert_eq!(held.len(), CERTIFICATE_TARGETS_MAX / TARGETS_MAX);
        let refused = flood.one().expect_err("no more for this one");
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(refused.message().contains("of this certificate"), "{}", refused.message());
        // A refusal takes nothing.
        let other: Vec<Taken> = (0..4).map(|_| admin.several(TARGETS_MAX).expect("room")).collect();
        let third = quota.share("cc").one().expect_err("all are taken");
        assert!(third.message().contains("through this endpoint"), "{}", third.message());
        drop((held, other));
        flood.several(TARGETS_MAX).expect("everything was given back");
        assert_eq!(quota.all.targets.load(Relaxed), 0);
    }

    #[test]
    fn collected_bytes_are_counted_until_their_call_ends() {
        let quota = Quota::default();
        let (flood, admin) = (quota.share("aa"), quota.share("bb"));
        let (first, second) = (flood.several(3).expect("room"), flood.several(3).expect("room"));
        first.collect(CERTIFICATE_BYTES_MAX - 10).expect("room");
        second.collect(11).expect_err("one byte too many");
        admin.several(1).expect("room").collect(CERTIFICATE_BYTES_MAX - 10).expect("its own half");
        drop((first, second));
        assert_eq!(quota.all.bytes.load(Relaxed), 0);
        flood.one().expect("room").collect(CERTIFICATE_BYTES_MAX).expect("given back");
    }

    #[test]
    fn connections_of_one_certificate_share_and_the_last_one_takes_it_away() {
        let quota = Quota::default();
        let (one, two) = (quota.share("aa"), quota.share("aa"));
        assert!(Arc::ptr_eq(&one, &two));
        drop((one, two));
        for number in 0..1000 {
            quota.share(&number.to_string());
        }
        assert!(quota.by_certificate.lock().unwrap().len() <= 2);
    }
}
