//! Keys, certificates and errors of pod certificates. Pure.

use crate::model::PodUid;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt;

/// Identifies the certificate of one projection of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodCertificateKey {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod_name: String,
    /// The pod's UID.
    pub pod_uid: PodUid,
    /// The service account that it runs as.
    pub service_account: String,
    /// The volume in the pod.
    pub volume: String,
    /// Index of the source in the projected volume.
    pub source_index: usize,
    /// The signer's name.
    pub signer: String,
    /// `keyType` of the projection, such as `RSA3072`.
    pub key_type: String,
    /// Maximum lifetime, seconds.
    pub max_expiration_seconds: Option<i32>,
    /// Annotations for the signer, from the pod (`userAnnotations`).
    pub annotations: BTreeMap<String, String>,
}

/// A private key and its certificate.
#[derive(Clone, PartialEq, Eq)]
pub struct PodCertificate {
    /// The private key, as PKCS#8 in PEM. Secret.
    pub key: Bytes,
    /// The certificate, followed by its intermediates, in PEM.
    pub chain: Bytes,
}

impl fmt::Debug for PodCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PodCertificate(..)")
    }
}

/// Why a certificate is not available; upstream's texts, with the reason where upstream only logs it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PodCertificateError {
    /// There is no API server.
    #[error("cannot use podCertificate when kubelet is in standalone mode")]
    Standalone,
    /// No certificate has been issued yet.
    #[error("credential bundle is not issued yet: {0}")]
    NotIssued(String),
    /// The signer denied the request.
    #[error("PodCertificateRequest was permanently denied: reason={reason:?} message={message:?}")]
    Denied {
        /// The condition's reason.
        reason: String,
        /// The condition's message.
        message: String,
    },
    /// The signer failed to issue a certificate.
    #[error("PodCertificateRequest was permanently failed: reason={reason:?} message={message:?}")]
    Failed {
        /// The condition's reason.
        reason: String,
        /// The condition's message.
        message: String,
    },
}

/// A notice that becomes an event of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateNotice {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod_name: String,
    /// The pod's UID.
    pub pod_uid: PodUid,
    /// The event's reason.
    pub reason: &'static str,
    /// The event's message.
    pub message: String,
}

/// The results of a request; every requested certificate has one.
pub type FoundCertificates =
    BTreeMap<PodCertificateKey, Result<PodCertificate, PodCertificateError>>;
