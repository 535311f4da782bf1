//! When a certificate is issued anew, and how.

use std::time::Duration;

use bytes::Bytes;
use ichor_cosi::Context;
use ichor_pki::{Authority, KeyFamily, KeyPair, KeyUsage, Leaf, PkiError};
use ichor_resource::network::NetworkStatus;
use ichor_resource::secrets::CertSAN;
use ichor_resource::time::TimeStatus;
use ichor_resource::value::PemCertificateAndKey;
use jiff::Timestamp;

/// A certificate of a node lives this long and is renewed at half of it.
pub(crate) const LIFETIME: Duration = Leaf::DAY;

/// What the last certificates were made of, and when.
///
/// Passes run for many reasons; certificates change only when one of these does.
#[derive(Debug)]
pub(crate) struct Memory<I> {
    last: Option<(I, Timestamp)>,
    lifetime: Duration,
}

impl<I> Default for Memory<I> {
    fn default() -> Self {
        Self::of(LIFETIME)
    }
}

impl<I> Memory<I> {
    /// A memory of certificates that live this long.
    pub(crate) fn of(lifetime: Duration) -> Self {
        Self { last: None, lifetime }
    }
}

impl<I: PartialEq> Memory<I> {
    /// How long what was issued stays good; `None` when it is time for a new one.
    ///
    /// A clock that jumped out of the certificate's first half, forwards or backwards, makes it due too.
    pub(crate) fn good_for(&self, inputs: &I, now: Timestamp) -> Option<Duration> {
        let (last, issued) = self.last.as_ref()?;
        let age = Duration::try_from(now.duration_since(*issued)).ok()?;
        let half = self.lifetime / 2;
        if last == inputs { half.checked_sub(age).filter(|rest| !rest.is_zero()) } else { None }
    }

    /// Notes what was issued, and asks for a pass when it is half through.
    pub(crate) fn issued(&mut self, inputs: I, now: Timestamp, ctx: &Context) {
        self.last = Some((inputs, now));
        ctx.requeue_after(self.lifetime / 2);
    }

    /// Forgets, so that the next pass issues.
    pub(crate) fn forget(&mut self) {
        self.last = None;
    }
}

/// Issues a certificate without holding up the runtime.
pub(crate) async fn issue(
    authority: &PemCertificateAndKey,
    leaves: Vec<Leaf>,
    now: Timestamp,
) -> Result<Vec<PemCertificateAndKey>, PkiError> {
    let authority = Authority::from_pem(&authority.crt, &authority.key)?;
    let slow = authority.key().family() == KeyFamily::Rsa;
    let work = move || leaves.iter().map(|leaf| Ok(pem(authority.issue(leaf, now)?))).collect();
    // An RSA key takes seconds to find; keys on curves take less time than a thread does to start.
    if !slow {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(pairs) => pairs,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// The certificate and key as a resource holds them.
pub(crate) fn pem(pair: KeyPair) -> PemCertificateAndKey {
    PemCertificateAndKey { crt: Bytes::from(pair.crt), key: Bytes::from(pair.key) }
}

/// A server certificate for these names.
pub(crate) fn server(names: &CertSAN) -> Leaf {
    Leaf::server(&names.fqdn)
        .with_names(
            names.dns_names.iter().cloned(),
            names.ips.iter().filter_map(ichor_resource::value::Ip::get),
        )
        .with_lifetime(LIFETIME)
}

/// A certificate of the kind Kubernetes and etcd take: its key may sign and encipher.
pub(crate) fn enciphering(leaf: Leaf, lifetime: Duration) -> Leaf {
    Leaf { key_usage: KeyUsage::SignatureAndEncipherment, ..leaf }.with_lifetime(lifetime)
}

/// Certificates of many years wait until the clock is right.
pub(crate) fn time_is_right(status: Option<&TimeStatus>) -> bool {
    status.is_some_and(|status| status.synced)
}

/// Certificates wait until there are names to put into them.
pub(crate) fn network_is_ready(status: Option<&NetworkStatus>) -> bool {
    status.is_some_and(|status| status.address_ready && status.hostname_ready)
}
