//! The client certificate of a connection. It is verified for each request and not in the handshake, because
//! the CA bundle may change and certificates expire while a connection is open.

use super::user::{AuthenticationOutcome, of_certificate};
use crate::base::{clock, x509};
use crate::server::tls::CaBundle;
use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, UnixTime};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// How long a verification is cached, because it takes longer than the rest of a short request.
const VERIFICATION_TTL: Duration = Duration::from_secs(10);

/// A client's certificate chain. The handshake has verified that the client has the private key of the first
/// certificate.
#[derive(Debug)]
pub struct Peer {
    chain: Vec<CertificateDer<'static>>,
    /// The end of the first certificate, if it can be read.
    not_after: Option<SystemTime>,
    last_verification: Mutex<Option<Verification>>,
}

#[derive(Debug)]
struct Verification {
    ca: Arc<CaBundle>,
    from: SystemTime,
    until: SystemTime,
    outcome: AuthenticationOutcome,
}

impl Peer {
    /// The client of a connection; `None` if it presented no certificate.
    pub(in crate::server) fn new(chain: &[CertificateDer<'_>]) -> Option<Self> {
        let leaf = chain.first()?;
        Some(Self {
            not_after: x509::parse(leaf).map(|facts| SystemTime::from(facts.not_after)),
            chain: chain.iter().map(|one| one.clone().into_owned()).collect(),
            last_verification: Mutex::new(None),
        })
    }

    /// For how long the certificate is still valid.
    pub(super) fn remaining(&self) -> Option<Duration> {
        let left = self.not_after?.duration_since(clock::system_time());
        Some(left.unwrap_or_default())
    }

    /// The user, if the certificate is signed by this CA bundle and currently valid.
    pub(super) fn user(&self, ca: Arc<CaBundle>) -> AuthenticationOutcome {
        let now = clock::system_time();
        let mut last_verification = self.last_verification.lock();
        if let Some(cached) = &*last_verification
            && Arc::ptr_eq(&cached.ca, &ca)
            && (cached.from..cached.until).contains(&now)
        {
            return cached.outcome.clone();
        }
        let Some((leaf, intermediates)) = self.chain.split_first() else {
            return AuthenticationOutcome::NoCredentials;
        };
        let outcome = match ca.verify(leaf, intermediates, unix(now)) {
            Ok(()) => of_certificate(leaf),
            Err(error) => AuthenticationOutcome::Invalid(format!(
                "verifying the client certificate failed: {error}"
            )),
        };
        *last_verification = Some(Verification {
            ca,
            from: now,
            until: (now + VERIFICATION_TTL).min(self.not_after.unwrap_or(now)),
            outcome: outcome.clone(),
        });
        outcome
    }
}

fn unix(at: SystemTime) -> UnixTime {
    let since = at.duration_since(SystemTime::UNIX_EPOCH);
    UnixTime::since_unix_epoch(since.unwrap_or_default())
}
