//! What a daemon turns away before machined sees it: counted here, told to machined now and then.
//!
//! Nothing is sent while nothing happens, and a flood is a handful of entries every few seconds.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ichor_wire::ichor::node::audit_service_client::AuditServiceClient;
use ichor_wire::ichor::node::{AuditEntry, ReportRequest};
use rustls::{CertificateError, Error};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tonic::Code;
use tracing::debug;

use crate::caller::Parts;
use crate::channel::Channel;

/// Kinds kept apart between two reports; a flood from more addresses is counted together.
const KINDS_MAX: usize = 64;
/// After the first entry others may join it for this long.
const GATHER: Duration = Duration::from_millis(500);
/// Nodes told apart for one caller, method and outcome; calls to more are counted without their names.
const TARGETS_MAX: usize = 8;
/// Characters of a target.
const TARGET_LEN_MAX: usize = 64;
/// Characters of a reason.
const REASON_MAX: usize = 96;
/// Between two reports.
pub const REST: Duration = Duration::from_secs(5);
/// One report.
const SEND_MAX: Duration = Duration::from_secs(5);
/// Whoever is not told apart any more.
const OTHERS: &str = "others - ";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    caller: String,
    method: &'static str,
    code: i32,
    reason: String,
    target: String,
}

/// Counts by caller, method and outcome, until they are told.
#[derive(Debug, Default)]
pub struct Ledger {
    counts: Mutex<BTreeMap<Kind, u64>>,
    grown: Notify,
}

impl Ledger {
    /// A handshake with `address` that came to nothing. A peer that just went away is no news.
    pub fn handshake(&self, address: IpAddr, error: &io::Error) {
        if let Some(reason) = reason(error) {
            let caller = format!("{} - ", address.to_canonical());
            self.add(Kind {
                caller,
                method: "",
                code: Code::Unauthenticated as i32,
                reason: reason.to_owned(),
                target: String::new(),
            });
        }
    }

    /// A call that the daemon answered itself. `caller` is the text of [`crate::caller`].
    pub fn call(&self, caller: &str, method: &'static str, code: Code, reason: &str) {
        let caller = Parts::lasting(caller).to_owned();
        // What stands in quotes is the caller's own text: an argument, and of any length.
        let reason =
            reason.split('"').next().unwrap_or_default().trim_end().chars().take(REASON_MAX).collect();
        self.add(Kind { caller, method, code: code as i32, reason, target: String::new() });
    }

    /// A call for the node `target` that nobody else records, because it did not get there, or because `target` is not
    /// a node of the cluster.
    pub fn forward(&self, caller: &str, method: &'static str, code: Code, reason: &str, target: &str) {
        self.add(Kind {
            caller: Parts::lasting(caller).to_owned(),
            method,
            code: code as i32,
            reason: reason.to_owned(),
            target: target.chars().take(TARGET_LEN_MAX).collect(),
        });
    }

    fn add(&self, mut kind: Kind) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if !kind.target.is_empty() && !counts.contains_key(&kind) {
            let alike = counts.keys().filter(|known| known.differs_in_target(&kind)).count();
            if alike >= TARGETS_MAX {
                kind.target.clear();
            }
        }
        if counts.len() >= KINDS_MAX && !counts.contains_key(&kind) {
            // One more kind for every outcome: there are few of those.
            OTHERS.clone_into(&mut kind.caller);
            kind.method = "";
            kind.reason.clear();
            kind.target.clear();
        }
        *counts.entry(kind).or_default() += 1;
        drop(counts);
        self.grown.notify_one();
    }

    fn take(&self) -> Vec<AuditEntry> {
        let counts = std::mem::take(&mut *self.counts.lock().unwrap_or_else(PoisonError::into_inner));
        let entry = |(kind, count): (Kind, u64)| AuditEntry {
            caller: format!("- {}", kind.caller),
            method: kind.method.to_owned(),
            code: kind.code.unsigned_abs(),
            reason: kind.reason,
            count,
            target: kind.target,
        };
        counts.into_iter().map(entry).collect()
    }

    /// The next entries to tell, gathered for a moment.
    pub async fn next(&self) -> Vec<AuditEntry> {
        loop {
            self.grown.notified().await;
            sleep(GATHER).await;
            let entries = self.take();
            if !entries.is_empty() {
                return entries;
            }
        }
    }

    /// Tells machined, for ever. What cannot be told is lost: machined is then being started anew.
    pub async fn tell(&self, machined: Channel) {
        let mut client = AuditServiceClient::new(machined);
        loop {
            let entries = self.next().await;
            match timeout(SEND_MAX, client.report(ReportRequest { entries })).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => debug!(%error, "the ledger was not taken"),
                Err(_) => debug!("the ledger was not taken in time"),
            }
            sleep(REST).await;
        }
    }
}

impl Kind {
    fn differs_in_target(&self, other: &Kind) -> bool {
        (self.code, self.method) == (other.code, other.method)
            && (&self.caller, &self.reason) == (&other.caller, &other.reason)
            && !self.target.is_empty()
    }
}

/// Why a handshake failed, in a few words; none when the peer went away.
fn reason(error: &io::Error) -> Option<&'static str> {
    if error.kind() == io::ErrorKind::TimedOut {
        return Some("took too long");
    }
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    Some(match error {
        Error::NoCertificatesPresented => "no certificate",
        Error::InvalidCertificate(bad) => match bad {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => "expired certificate",
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "certificate not valid yet"
            }
            // The second: of an authority that only has the right name.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => "unknown authority",
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                "certificate for another use"
            }
            _ => "bad certificate",
        },
        Error::AlertReceived(_) => "the peer refused",
        Error::InvalidMessage(_) => "not TLS",
        Error::PeerIncompatible(_) => "nothing in common",
        _ => "broken handshake",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tls(error: Error) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }

    fn shown(ledger: &Ledger) -> Vec<(String, String, u64)> {
        ledger.take().into_iter().map(|entry| (entry.caller, entry.reason, entry.count)).collect()
    }

    #[test]
    fn the_same_is_counted_and_a_lost_peer_is_not() {
        let ledger = Ledger::default();
        let peer = "::ffff:10.0.0.9".parse().unwrap();
        ledger.handshake(peer, &tls(Error::NoCertificatesPresented));
        ledger.handshake(peer, &tls(Error::NoCertificatesPresented));
        ledger.handshake(peer, &tls(Error::InvalidCertificate(CertificateError::UnknownIssuer)));
        ledger.handshake(peer, &io::ErrorKind::UnexpectedEof.into());
        ledger.handshake(peer, &io::ErrorKind::TimedOut.into());
        let row = |reason: &str, count| ("- 10.0.0.9 - ".to_owned(), reason.to_owned(), count);
        assert_eq!(
            shown(&ledger),
            [row("no certificate", 2), row("took too long", 1), row("unknown authority", 1)]
        );
        assert!(ledger.take().is_empty());
    }

    #[test]
    fn what_the_caller_wrote_is_left_out() {
        let ledger = Ledger::default();
        ledger.call("7 10.0.0.9 aa me", "/a.B/C", Code::Internal, "invalid target \"secret\"");
        ledger.call("8 10.0.0.9 aa me", "/a.B/C", Code::Internal, "invalid target \"another\"");
        assert_eq!(shown(&ledger), [("- 10.0.0.9 aa me".to_owned(), "invalid target".to_owned(), 2)]);
    }

    #[test]
    fn targets_are_told_apart_up_to_a_few() {
        let ledger = Ledger::default();
        let denied = |target: &str| {
            ledger.forward("7 10.0.0.9 aa me", "/a.B/C", Code::PermissionDenied, "no member", target);
        };
        for number in 0..5000 {
            denied(&format!("made-up-{number}"));
            denied("made-up-0");
        }
        let mut entries = ledger.take();
        entries.sort_by_key(|entry| entry.count);
        assert_eq!(entries.len(), TARGETS_MAX + 1);
        let counts: Vec<(&str, u64)> =
            entries.iter().rev().take(2).map(|entry| (entry.target.as_str(), entry.count)).collect();
        assert_eq!(counts, [("made-up-0", 5001), ("", 5000 - TARGETS_MAX as u64)]);
    }

    #[test]
    fn a_flood_from_everywhere_stays_small() {
        let ledger = Ledger::default();
        for number in 0..100_000_u32 {
            ledger.handshake(IpAddr::from(number.to_be_bytes()), &tls(Error::NoCertificatesPresented));
        }
        let entries = ledger.take();
        assert_eq!(entries.len(), KINDS_MAX + 1);
        assert_eq!(entries.iter().map(|entry| entry.count).sum::<u64>(), 100_000);
        assert!(entries.iter().any(|entry| entry.caller == "- others - " && entry.count > 99_000));
    }
}
