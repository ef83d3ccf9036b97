//! Events about certificates, and how certificates are counted. Files are tested with volumes.

use super::*;
use crate::apiserver::tests::stored::Stored;
use crate::base::clock;
use jiff::SignedDuration;
use serde_json::{Value, json};

const ONE: &str = "-----BEGIN CERTIFICATE-----\nAQEB\n-----END CERTIFICATE-----\n";
const TIMEOUT: Duration = Duration::from_secs(30);

fn key(signer: &str) -> PodCertificateKey {
    PodCertificateKey {
        namespace: "ns".into(),
        pod_name: "p".into(),
        pod_uid: "u1".into(),
        service_account: "robot".into(),
        volume: "v".into(),
        source_index: 0,
        signer: signer.into(),
        key_type: "ED25519".into(),
        max_expiration_seconds: None,
        annotations: BTreeMap::new(),
    }
}

struct Signed {
    server: Stored,
    certificates: PodCertificates,
    notices: mpsc::Receiver<CertificateNotice>,
    _node: watch::Sender<Option<Arc<Node>>>,
}

/// An API server whose signer answers to every request with this status; to the second and later ones with nothing.
async fn signed(status: Value) -> Signed {
    let server = Stored::start().await;
    let account = json!({"metadata": {"uid": "sa1"}});
    server.put("serviceaccounts", "ns", "robot", account);
    let node = json!({"metadata": {"name": "node1", "uid": "n1"}});
    let node = watch::Sender::new(Some(Arc::new(serde_json::from_value(node).unwrap())));
    let api = server.client().await;
    let (certificates, notices) = PodCertificates::new(api, Arc::default(), node.subscribe());
    server.on_post(|_, request| {
        let mut request = request.clone();
        request["metadata"]["name"] = "req-1".into();
        (201, request)
    });
    let object = json!({
        "spec": {"signerName": "", "podName": "", "podUID": "", "serviceAccountName": "",
            "serviceAccountUID": "", "nodeName": "", "nodeUID": "", "stubPKCS10Request": ""},
        "status": status,
    });
    server.put("podcertificaterequests", "ns", "req-1", object);
    Signed { server, certificates: certificates.without_jitter(), notices, _node: node }
}

fn condition(kind: &str) -> Value {
    let now = clock::timestamp().to_string();
    json!([{"type": kind, "status": "True", "lastTransitionTime": now, "reason": "Why", "message": "because"}])
}

fn in_seconds(seconds: i64) -> String {
    (clock::timestamp() + SignedDuration::from_secs(seconds)).to_string()
}

impl Signed {
    async fn notice(&mut self) -> CertificateNotice {
        let notice = tokio::time::timeout(TIMEOUT, self.notices.recv());
        notice.await.unwrap().unwrap()
    }

    fn samples(&self) -> Vec<ScrapeSample> {
        let of = self.certificates.0.api.as_ref().unwrap();
        samples(&of.states.lock(), clock::timestamp())
    }
}

fn counted(signer: &str, state: &str) -> ScrapeSample {
    let labels = [("signer_name", signer), ("state", state)];
    (labels.map(|(name, value)| (name, value.to_owned())).into(), 1.0)
}

#[tokio::test]
async fn a_refusal_is_an_event_of_the_pod() {
    for (kind, how, state) in [("Denied", "was denied", "denied"), ("Failed", "failed", "failed")] {
        let mut signed = signed(json!({"conditions": condition(kind)})).await;
        signed.certificates.register(&"u1".into(), [key("x/y")].into());
        let expected = CertificateNotice {
            namespace: "ns".into(),
            pod_name: "p".into(),
            pod_uid: "u1".into(),
            reason: kind,
            message: format!(
                "PodCertificateRequest ns/req-1 {how}, reason=\"Why\", message=\"because\""
            ),
        };
        assert_eq!(signed.notice().await, expected);
        assert_eq!(signed.samples(), [counted("x/y", state)]);
        signed.certificates.forget(&"u1".into());
        let started_at = clock::instant();
        while !signed.samples().is_empty() {
            assert!(clock::since(started_at) < TIMEOUT);
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn a_certificate_that_is_not_replaced_is_overdue_and_then_expired() {
    let status = json!({
        "conditions": condition("Issued"), "certificateChain": ONE,
        "beginRefreshAt": in_seconds(2), "notAfter": in_seconds(3),
    });
    let mut signed = signed(status).await;
    signed.certificates.register(&"u1".into(), [key("x/y")].into());
    let found = signed.certificates.get([key("x/y")].into()).await;
    let found = found[&key("x/y")].clone().unwrap();
    assert_eq!(found.chain, ONE);
    assert!(!format!("{found:?}").contains("PRIVATE"));
    assert_eq!(signed.samples(), [counted("x/y", "fresh")]);
    // The signer does nothing more.
    signed.server.delete("podcertificaterequests", "ns", "req-1");
    let notice = signed.notice().await;
    assert_eq!((notice.reason, &*notice.message), ("CertificateExpired", "PodCertificate expired"));
    let started_at = clock::instant();
    while signed.samples() != [counted("x/y", "expired")] {
        assert!(clock::since(started_at) < TIMEOUT);
        sleep(Duration::from_millis(20)).await;
    }
    // What has expired stays until there is something new.
    let found = signed.certificates.get([key("x/y")].into()).await;
    assert!(found[&key("x/y")].is_ok());
}

#[tokio::test]
async fn a_key_of_an_unknown_type_is_not_made_and_without_an_api_server_there_is_none() {
    let signed = signed(json!({})).await;
    let odd = PodCertificateKey { key_type: "RSA2048".into(), ..key("x/y") };
    signed.certificates.register(&"u1".into(), [odd.clone()].into());
    let found = signed.certificates.get([odd.clone()].into()).await;
    let error = found[&odd].clone().unwrap_err().to_string();
    assert_eq!(error, "credential bundle is not issued yet: unknown key type \"RSA2048\"");
    let found = PodCertificates::default().get([key("x/y")].into()).await;
    assert_eq!(found[&key("x/y")], Err(PodCertificateError::Standalone));
}
