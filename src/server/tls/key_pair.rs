//! A certificate chain with its private key.

use crate::base::x509::{self, CertificateFacts};
use anyhow::Context as _;
use rustls::pki_types::CertificateDer;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use std::path::Path;
use std::sync::Arc;
use std::{fmt, fs};

/// A certificate chain with its private key.
pub(super) struct CertificateKeyPair {
    certified: Arc<CertifiedKey>,
    facts: CertificateFacts,
}

impl fmt::Debug for CertificateKeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CertificateKeyPair").field(&self.facts.common_name).finish()
    }
}

impl CertificateKeyPair {
    /// Reads both files. Blocking.
    ///
    /// # Errors
    /// A file cannot be read or parsed, or they do not match.
    pub(super) fn read(certificate: &Path, key: &Path) -> anyhow::Result<Self> {
        let (certificate_path, key_path) = (certificate.display(), key.display());
        let pem =
            fs::read(certificate).with_context(|| format!("cannot read {certificate_path}"))?;
        let pem_key = fs::read(key).with_context(|| format!("cannot read {key_path}"))?;
        Self::parse(&pem, &pem_key)
            .with_context(|| format!("cannot use {certificate_path} with {key_path}"))
    }

    /// Parses a certificate chain and its key, both in PEM.
    ///
    /// # Errors
    /// One cannot be parsed, or they do not match.
    pub(super) fn parse(chain: &[u8], key: &[u8]) -> anyhow::Result<Self> {
        let (certified, facts) = x509::key_pair(chain, key)?;
        Ok(Self { certified: Arc::new(certified), facts })
    }

    /// Subject and validity of the certificate.
    pub(super) fn facts(&self) -> &CertificateFacts {
        &self.facts
    }

    /// The leaf certificate.
    pub(super) fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.certified.cert.first()
    }

    /// A rustls resolver that presents it to every client.
    pub(super) fn resolver(&self) -> Arc<SingleCertAndKey> {
        Arc::new(SingleCertAndKey::from(CertifiedKey::clone(&self.certified)))
    }
}
