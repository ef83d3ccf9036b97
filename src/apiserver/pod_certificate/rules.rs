//! Content and outcome of a PodCertificateRequest, and the time of a refresh. Pure.

use super::certificate::PodCertificateKey;
use crate::apiserver::pem;
use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1beta1::{PodCertificateRequest, PodCertificateRequestSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// Maximum random delay of a refresh, so that certificates issued together are not refreshed together.
const MAX_JITTER: SignedDuration = SignedDuration::from_mins(5);
/// Time after its planned refresh at which a certificate is overdue.
const OVERDUE: SignedDuration = SignedDuration::from_mins(10);

/// A certificate that a signer issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IssuedCertificate {
    /// The chain in PEM, beginning with the pod's certificate.
    pub(super) chain: Bytes,
    /// The signer's `beginRefreshAt`: the earliest time of a refresh.
    pub(super) begin_refresh_at: Timestamp,
    /// When it expires.
    pub(super) not_after: Timestamp,
}

/// The decision of a signer about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SignerDecision {
    /// A certificate was issued.
    Issued(IssuedCertificate),
    /// The signer denied the request.
    Denied(Refusal),
    /// The signer failed to issue a certificate.
    Failed(Refusal),
}

/// The request has the condition `Issued`, but no usable certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoCertificate;

/// Reason and message of a request that was denied or failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: String,
    pub(super) message: String,
}

/// Reads the decision from the request's first condition; `None` if the signer has not decided.
pub(super) fn decision(
    request: &PodCertificateRequest,
) -> Result<Option<SignerDecision>, NoCertificate> {
    let Some(status) = &request.status else {
        return Ok(None);
    };
    for condition in status.conditions.iter().flatten() {
        let refusal =
            || Refusal { reason: condition.reason.clone(), message: condition.message.clone() };
        match condition.type_.as_str() {
            "Denied" => return Ok(Some(SignerDecision::Denied(refusal()))),
            "Failed" => return Ok(Some(SignerDecision::Failed(refusal()))),
            "Issued" => {
                let times = (&status.begin_refresh_at, &status.not_after);
                let chain = status.certificate_chain.as_deref().unwrap_or_default();
                let chain = clean_chain(chain);
                return match times {
                    (Some(begin), Some(end)) if !chain.is_empty() => {
                        Ok(Some(SignerDecision::Issued(IssuedCertificate {
                            chain,
                            begin_refresh_at: begin.0,
                            not_after: end.0,
                        })))
                    }
                    _ => Err(NoCertificate),
                };
            }
            _ => {}
        }
    }
    Ok(None)
}

/// The certificates of a chain, without text between them.
fn clean_chain(chain: &str) -> Bytes {
    let mut text = String::new();
    for certificate in CertificateDer::pem_slice_iter(chain.as_bytes()).flatten() {
        pem::add_block("CERTIFICATE", &certificate, &mut text);
    }
    text.into()
}

/// Builds the PodCertificateRequest.
pub(super) fn request(
    key: &PodCertificateKey,
    (account_uid, node_name, node_uid): (&str, &str, &str),
    stub: Vec<u8>,
) -> PodCertificateRequest {
    PodCertificateRequest {
        metadata: ObjectMeta {
            namespace: Some(key.namespace.clone()),
            generate_name: Some("req-".to_owned()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Pod".to_owned(),
                name: key.pod_name.clone(),
                uid: key.pod_uid.to_string(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: PodCertificateRequestSpec {
            signer_name: key.signer.clone(),
            pod_name: key.pod_name.clone(),
            pod_uid: key.pod_uid.to_string(),
            service_account_name: key.service_account.clone(),
            service_account_uid: account_uid.to_owned(),
            node_name: node_name.to_owned(),
            node_uid: node_uid.to_owned(),
            max_expiration_seconds: key.max_expiration_seconds,
            stub_pkc_s10_request: ByteString(stub),
            unverified_user_annotations: (!key.annotations.is_empty())
                .then(|| key.annotations.clone()),
            ..PodCertificateRequestSpec::default()
        },
        status: None,
    }
}

/// When to refresh a certificate (`jitter` from 0 to 1).
pub(super) fn refresh_at(issued: &IssuedCertificate, jitter: f64) -> Timestamp {
    let later = MAX_JITTER.mul_f64(jitter);
    let at = issued.begin_refresh_at.saturating_add(later);
    at.unwrap_or(issued.begin_refresh_at)
}

/// When a certificate with this planned refresh is overdue.
pub(super) fn overdue_at(refresh_at: Timestamp) -> Timestamp {
    refresh_at.saturating_add(OVERDUE).unwrap_or(refresh_at)
}

/// The state of a certificate in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CertificateState {
    NotIssued,
    Denied,
    Failed,
    Issued { refresh_at: Timestamp, not_after: Timestamp },
}

impl CertificateState {
    pub(super) fn label(self, now: Timestamp) -> &'static str {
        match self {
            Self::NotIssued => "not_yet_issued",
            Self::Denied => "denied",
            Self::Failed => "failed",
            Self::Issued { not_after, .. } if now > not_after => "expired",
            Self::Issued { refresh_at, .. } if now > overdue_at(refresh_at) => {
                "overdue_for_refresh"
            }
            Self::Issued { .. } => "fresh",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const ONE: &str = "-----BEGIN CERTIFICATE-----\nAQEB\n-----END CERTIFICATE-----\n";

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + minute * 60).unwrap()
    }

    fn found(status: Value) -> Result<Option<SignerDecision>, NoCertificate> {
        let spec = json!({
            "signerName": "", "podName": "", "podUID": "", "serviceAccountName": "",
            "serviceAccountUID": "", "nodeName": "", "nodeUID": "", "stubPKCS10Request": "",
        });
        let request = json!({"metadata": {}, "spec": spec, "status": status});
        decision(&serde_json::from_value(request).unwrap())
    }

    fn condition(kind: &str) -> Value {
        json!([{"type": "Other", "status": "True", "lastTransitionTime": at(0).to_string(), "reason": "", "message": ""},
               {"type": kind, "status": "True", "lastTransitionTime": at(0).to_string(), "reason": "R", "message": "m"}])
    }

    #[test]
    fn a_request_is_issued_denied_failed_or_pending() {
        use SignerDecision::{Denied, Failed, Issued};
        let refusal = || Refusal { reason: "R".into(), message: "m".into() };
        let times = json!({"beginRefreshAt": at(1).to_string(), "notAfter": at(2).to_string()});
        let issued = |chain: &str| {
            let mut status = times.clone();
            status["conditions"] = condition("Issued");
            status["certificateChain"] = chain.into();
            status
        };
        let certificate = || IssuedCertificate {
            chain: format!("{ONE}{ONE}").into(),
            begin_refresh_at: at(1),
            not_after: at(2),
        };
        for (status, expected) in [
            (json!(null), Ok(None)),
            (json!({}), Ok(None)),
            (json!({"conditions": condition("Odd")}), Ok(None)),
            (json!({"conditions": condition("Denied")}), Ok(Some(Denied(refusal())))),
            (json!({"conditions": condition("Failed")}), Ok(Some(Failed(refusal())))),
            (issued(&format!("between\n{ONE}\nx: y\n{ONE}after")), Ok(Some(Issued(certificate())))),
            (issued("nothing"), Err(NoCertificate)),
            (
                json!({"conditions": condition("Issued"), "certificateChain": ONE}),
                Err(NoCertificate),
            ),
        ] {
            assert_eq!(found(status.clone()), expected, "{status}");
        }
    }

    #[test]
    fn a_certificate_is_replaced_within_five_minutes_and_overdue_after_ten_more() {
        let issued =
            IssuedCertificate { chain: Bytes::new(), begin_refresh_at: at(10), not_after: at(60) };
        assert_eq!(refresh_at(&issued, 0.0), at(10));
        assert_eq!(refresh_at(&issued, 1.0), at(15));
        let state = CertificateState::Issued { refresh_at: at(12), not_after: at(60) };
        for (now, label) in [
            (at(0), "fresh"),
            (at(22), "fresh"),
            (at(23), "overdue_for_refresh"),
            (at(60), "overdue_for_refresh"),
            (at(61), "expired"),
        ] {
            assert_eq!(state.label(now), label, "{now}");
        }
        let labels =
            [CertificateState::NotIssued, CertificateState::Denied, CertificateState::Failed];
        let labels = labels.map(|state| state.label(at(0)));
        assert_eq!(labels, ["not_yet_issued", "denied", "failed"]);
    }
}
