//! Which certificates there are, and why there is none. Pure.

use crate::model::PodUid;
use bytes::Bytes;
use std::{collections::BTreeMap, fmt};

/// Which certificate.
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
    /// The source of the volume.
    pub source_index: usize,
    /// Who is to issue it.
    pub signer: String,
    /// `RSA3072` and so on.
    pub key_type: String,
    /// How long it may be valid.
    pub max_expiration_seconds: Option<i32>,
    /// Annotations for the signer, from the pod (`userAnnotations`).
    pub annotations: BTreeMap<String, String>,
}

/// A private key and its certificate.
#[derive(Clone, PartialEq, Eq)]
pub struct PodCertificate {
    /// The key, as PKCS#8 in PEM. A secret.
    pub key: Bytes,
    /// The certificate and those of its issuers, in PEM.
    pub chain: Bytes,
}

impl fmt::Debug for PodCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PodCertificate(..)")
    }
}

/// Why there is no certificate; upstream's texts, with the reason where upstream logs it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PodCertificateError {
    /// There is no API server.
    #[error("cannot use podCertificate when kubelet is in standalone mode")]
    Standalone,
    /// There is none yet.
    #[error("credential bundle is not issued yet: {0}")]
    NotIssued(String),
    /// The signer will not issue one.
    #[error("PodCertificateRequest was permanently denied: reason={reason:?} message={message:?}")]
    Denied {
        /// The condition's reason.
        reason: String,
        /// The condition's message.
        message: String,
    },
    /// The signer cannot issue one.
    #[error("PodCertificateRequest was permanently failed: reason={reason:?} message={message:?}")]
    Failed {
        /// The condition's reason.
        reason: String,
        /// The condition's message.
        message: String,
    },
}

/// What has to become an event of a pod.
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

/// The certificates that were requested, by key: every requested one is in it.
pub type FoundCertificates =
    BTreeMap<PodCertificateKey, Result<PodCertificate, PodCertificateError>>;
