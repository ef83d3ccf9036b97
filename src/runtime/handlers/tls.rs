//! TLS to containers, whose certificates are not verified.
//!
//! A probe checks whether the container responds, and does not authenticate it: its certificate is usually
//! self-signed and does not contain the pod's address. No other module of the kubelet skips verification.

use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, LazyLock};

use crate::base::tls_provider;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, InvalidMessage, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

static CONFIG: LazyLock<Result<Arc<ClientConfig>, rustls::Error>> = LazyLock::new(|| {
    let config = ClientConfig::builder_with_provider(tls_provider())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate))
        .with_no_client_auth();
    Ok(Arc::new(config))
});

/// Performs the TLS handshake on a new connection.
pub(super) async fn connect(host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    let config = CONFIG.clone().map_err(io::Error::other)?;
    // Addresses are not sent as SNI, so an invalid server name is replaced by one.
    let name = ServerName::try_from(host.to_owned())
        .unwrap_or_else(|_| ServerName::from(std::net::IpAddr::from(Ipv4Addr::UNSPECIFIED)));
    TlsConnector::from(config).connect(name, stream).await
}

/// Whether a handshake failed because the server does not use TLS.
pub(super) fn is_no_tls(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|e| e.downcast_ref());
    matches!(cause, Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)))
}

#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        tls_provider().signature_verification_algorithms.supported_schemes()
    }
}
