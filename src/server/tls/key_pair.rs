//! A certificate chain with its private key.

use crate::base::x509::{self, CertificateFacts};
use anyhow::Context as _;
use rustls::{
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::{CertifiedKey, SingleCertAndKey},
};
use std::{fmt, fs, path::Path, sync::Arc};

/// A certificate chain with its private key.
pub(super) struct CertificateKeyPair {
    certified: Arc<CertifiedKey>,
    facts: CertificateFacts,
}

impl fmt::Debug for CertificateKeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CertificateKeyPair")
            .field(&self.facts.common_name)
            .finish()
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
        let chain =
            certificates(&pem).with_context(|| format!("cannot read {certificate_path}"))?;
        let key = PrivateKeyDer::from_pem_slice(&pem_key)
            .with_context(|| format!("there is no usable private key in {key_path}"))?;
        Self::of(chain, key)
            .with_context(|| format!("cannot use {certificate_path} with {key_path}"))
    }

    /// From a certificate chain and its key.
    pub(super) fn of(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> anyhow::Result<Self> {
        let facts = chain.first().and_then(|own| x509::parse(own));
        let facts = facts.context("the certificate cannot be read")?;
        let certified = CertifiedKey::from_der(chain, key, &ring::default_provider())?;
        Ok(Self {
            certified: Arc::new(certified),
            facts,
        })
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

/// Parses all certificates in a PEM file; other content is ignored.
///
/// # Errors
/// There is no certificate, or one cannot be decoded.
pub(super) fn certificates(pem: &[u8]) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.context("a certificate cannot be decoded")?;
    anyhow::ensure!(!found.is_empty(), "there is no certificate in it");
    Ok(found)
}
