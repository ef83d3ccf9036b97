//! The CA bundle of client certificates.

use crate::base::{Reloaded, tls_provider, x509};
use anyhow::Context as _;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// The certificates in one version of the file.
#[derive(Debug)]
pub struct CaBundle {
    verifier: Arc<dyn ClientCertVerifier>,
}

/// `clientCAFile`, which is read again when it changes.
#[derive(Debug)]
pub struct ClientCaFile {
    file: Arc<Reloaded<CaBundle>>,
}

impl ClientCaFile {
    /// Reads the file. Blocking.
    ///
    /// # Errors
    /// It cannot be read, or contains no valid certificate.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let ca_path = path.to_path_buf();
        let read = move || CaBundle::read(&ca_path);
        let file = Reloaded::open("the client CA file", vec![path.to_path_buf()], read, |_| false);
        let file = file.with_context(|| {
            format!("clientCAFile: unable to load client CA file {}", path.display())
        })?;
        Ok(Self { file: Arc::new(file) })
    }

    /// The current CA bundle; the file is checked at most once a second.
    pub(in crate::server) async fn current(&self) -> Arc<CaBundle> {
        self.file.current().await
    }

    /// The CA bundle that was read last, without a check of the file.
    pub(super) fn latest(&self) -> Arc<CaBundle> {
        self.file.latest()
    }
}

impl CaBundle {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let pem = fs::read(path)?;
        let mut roots = RootCertStore::empty();
        for certificate in x509::certificates(&pem)? {
            roots.add(certificate)?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), tls_provider());
        Ok(Self { verifier: verifier.build()? })
    }

    /// Verifies that the certificate is signed by this CA bundle, valid at this time, and allowed for clients.
    ///
    /// # Errors
    /// The reason why it is not.
    pub(in crate::server) fn verify(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let verified = self.verifier.verify_client_cert(certificate, intermediates, now);
        verified.map(|_| ())
    }
}

/// Requests a client certificate, and accepts any or none; the handshake only verifies that the client has its
/// private key, and the rest is verified for each request. As upstream (`tls.RequestClientCert`): a client with an
/// expired certificate gets a 401 instead of a failed handshake, and may also have a token.
#[derive(Debug)]
pub(super) struct RequestCertificate {
    ca: Arc<CaBundle>,
}

impl RequestCertificate {
    pub(super) fn of(ca: Arc<CaBundle>) -> Arc<Self> {
        Arc::new(Self { ca })
    }
}

impl ClientCertVerifier for RequestCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.ca.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let verifier = &self.ca.verifier;
        verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let verifier = &self.ca.verifier;
        verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.ca.verifier.supported_verify_schemes()
    }
}
