//! Keys and certificates of pods, from signers of a scripted API server.

use super::cluster::{Cluster, cluster};
use super::*;
use crate::apiserver::tests::stored::Mode;
use crate::base::clock;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The certificate of the n-th request.
fn certificate(number: usize) -> String {
    let der = STANDARD.encode([number as u8]);
    format!("-----BEGIN CERTIFICATE-----\n{der}\n-----END CERTIFICATE-----\n")
}

fn in_seconds(seconds: i64) -> String {
    let now = clock::timestamp();
    (now + jiff::SignedDuration::from_secs(seconds)).to_string()
}

/// What a signer answers to the n-th request.
fn condition(kind: &str) -> Value {
    json!([{"type": kind, "status": "True", "lastTransitionTime": in_seconds(0),
        "reason": "Why", "message": "because"}])
}

fn issued(number: usize, refresh_after: i64) -> Value {
    json!({
        "conditions": condition("Issued"),
        "certificateChain": format!("\nCN=x\n{}", certificate(number)),
        "notBefore": in_seconds(-300),
        "beginRefreshAt": in_seconds(refresh_after),
        "notAfter": in_seconds(refresh_after + 600),
    })
}

impl Cluster {
    /// Requests are stored as `req-1` and so on, and pending.
    fn store_requests(&self) {
        let account = json!({"metadata": {"uid": "sa1"}});
        self.server.put("serviceaccounts", "ns", "robot", account);
        self.server.store_posts();
        let requests = AtomicUsize::new(0);
        self.server.on_post(move |path, request| {
            assert_eq!(
                path,
                "/apis/certificates.k8s.io/v1beta1/namespaces/ns/podcertificaterequests"
            );
            let number = requests.fetch_add(1, Ordering::SeqCst) + 1;
            let mut request = request.clone();
            request["metadata"]["name"] = format!("req-{number}").into();
            request["metadata"]["generateName"] = Value::Null;
            (201, request)
        });
    }

    /// The signer sets the status of the n-th request, once there is one.
    async fn decide(&self, number: usize, status: Value) {
        let posts = || self.server.posts();
        let started_at = clock::instant();
        while posts().len() < number {
            assert!(clock::since(started_at) < TIMEOUT);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut request = posts()[number - 1].1.clone();
        request["status"] = status;
        let name = format!("req-{number}");
        self.server.put("podcertificaterequests", "ns", &name, request);
    }
}

const TIMEOUT: Duration = Duration::from_secs(30);

fn certified(uid: &str, source: Value) -> Pod {
    let sources = json!([{"downwardAPI": {"items": []}}, {"podCertificate": source}]);
    let mut pod =
        pod(json!([{"name": "v", "projected": {"defaultMode": 0o444, "sources": sources}}]));
    pod.metadata.annotations =
        serde_json::from_value(json!({"kubernetes.io/config.source": "api"})).unwrap();
    pod.metadata.uid = Some(uid.into());
    pod.spec.as_mut().unwrap().service_account_name = Some("robot".into());
    pod
}

fn source() -> Value {
    json!({
        "signerName": "example.com/signer", "keyType": "ECDSAP256", "maxExpirationSeconds": 7200,
        "userAnnotations": {"example.com/a": "b"},
        "keyPath": "key.pem", "certificateChainPath": "chain.pem", "credentialBundlePath": "bundle.pem",
    })
}

fn read(paths: &VolumePaths, name: &str) -> String {
    fs::read_to_string(paths["v"].host_path.join(name)).unwrap()
}

async fn changed(cluster: &Cluster) {
    let changed = tokio::time::timeout(TIMEOUT, cluster.manager.changed());
    assert!(changed.await.unwrap().contains(&PodUid::from("u1")));
}

#[tokio::test]
async fn a_pod_has_its_key_and_certificate_once_they_are_issued() {
    let cluster = cluster(3607).await;
    cluster.store_requests();
    let pod = certified("u1", source());
    let error = error_chain(&cluster.prepare(&pod).await.unwrap_err());
    assert_eq!(
        error,
        "MountVolume.SetUp failed for volume \"v\" : credential bundle is not issued yet: \
         PodCertificateRequest ns/req-1 is pending"
    );
    let mut request = cluster.server.posts()[0].1.clone();
    let stub = request["spec"]["stubPKCS10Request"].take();
    assert!(STANDARD.decode(stub.as_str().unwrap()).unwrap().len() > 100);
    assert_eq!(
        request,
        json!({
            "apiVersion": "certificates.k8s.io/v1beta1", "kind": "PodCertificateRequest",
            "metadata": {"namespace": "ns", "generateName": "req-", "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u1"}]},
            "spec": {
                "signerName": "example.com/signer", "podName": "p", "podUID": "u1",
                "serviceAccountName": "robot", "serviceAccountUID": "sa1",
                "nodeName": "node1", "nodeUID": "n1", "maxExpirationSeconds": 7200,
                "stubPKCS10Request": null, "unverifiedUserAnnotations": {"example.com/a": "b"},
            },
        })
    );
    cluster.decide(1, json!({})).await;
    cluster.decide(1, issued(1, 3600)).await;
    changed(&cluster).await;
    let prepared = cluster.prepare(&pod).await.unwrap();
    let key = read(&prepared.paths, "key.pem");
    assert!(key.starts_with("-----BEGIN PRIVATE KEY-----\n"));
    assert_eq!(read(&prepared.paths, "chain.pem"), certificate(1));
    let bundle = format!("{key}{}", certificate(1));
    assert_eq!(read(&prepared.paths, "bundle.pem"), bundle);
    let of_key = fs::metadata(prepared.paths["v"].host_path.join("key.pem")).unwrap();
    assert_eq!(of_key.mode() & 0o7777, 0o444);
    // In memory, whatever else the volume has.
    let volume = prepared.paths["v"].host_path.clone();
    assert_eq!(cluster.node.mounter.0.lock().tmpfs[0].0, volume);
    // A pod that is at rest has nothing requested.
    cluster.prepare(&pod).await.unwrap();
    assert_eq!(cluster.server.posts().len(), 1);
    cluster.manager.teardown(&pod.uid()).await.unwrap();
    assert!(!volume.exists());
}

#[tokio::test]
async fn a_key_that_has_an_owner_is_for_its_owner_alone() {
    let cluster = cluster(3607).await;
    cluster.store_requests();
    let mut pod =
        certified("u1", json!({"signerName": "x/y", "keyType": "ED25519", "keyPath": "k"}));
    let user = rustix::process::getuid().as_raw();
    let context = serde_json::from_value(json!({"runAsUser": user})).unwrap();
    pod.spec.as_mut().unwrap().security_context = Some(context);
    let (prepared, ()) = tokio::join!(cluster.prepare(&pod), cluster.decide(1, issued(1, 3600)));
    let volume = prepared.unwrap().paths["v"].host_path.clone();
    let names = fs::read_dir(&volume).unwrap().map(|entry| entry.unwrap().file_name());
    let names: Vec<_> = names.filter(|name| !name.to_str().unwrap().starts_with('.')).collect();
    assert_eq!(names, ["k"]);
    let of_key = fs::metadata(volume.join("k")).unwrap();
    assert_eq!((of_key.mode() & 0o7777, of_key.uid()), (0o600, user));
}

#[tokio::test]
async fn a_certificate_is_replaced_in_time_and_the_old_one_stays_until_then() {
    let cluster = cluster(3607).await;
    cluster.store_requests();
    let pod = certified("u1", source());
    let (prepared, ()) = tokio::join!(cluster.prepare(&pod), cluster.decide(1, issued(1, 1)));
    let first = read(&prepared.unwrap().paths, "key.pem");
    // The second request is deleted, and another one is made.
    cluster.decide(2, json!({})).await;
    let prepared = cluster.prepare(&pod).await.unwrap();
    assert_eq!(prepared.update_errors.len(), 0);
    assert_eq!(read(&prepared.paths, "key.pem"), first);
    cluster.server.delete("podcertificaterequests", "ns", "req-2");
    cluster.decide(3, issued(3, 3600)).await;
    changed(&cluster).await;
    let prepared = cluster.prepare(&pod).await.unwrap();
    assert_ne!(read(&prepared.paths, "key.pem"), first);
    assert_eq!(read(&prepared.paths, "chain.pem"), certificate(3));
    // After a restart of the kubelet the pod shows what it has until there is something new.
    let fresh = super::cluster::restarted(&cluster).await;
    cluster.server.set(Mode::Refusing(503));
    let prepared = fresh.prepare(&pod, &never()).await.unwrap();
    assert_eq!(prepared.update_errors.len(), 1);
    assert_eq!(read(&prepared.paths, "chain.pem"), certificate(3));
}

#[tokio::test]
async fn a_signer_that_refuses_is_not_asked_again() {
    for (kind, how) in [("Denied", "denied"), ("Failed", "failed")] {
        let cluster = cluster(3607).await;
        cluster.store_requests();
        let pod = certified("u1", source());
        let (prepared, ()) = tokio::join!(
            cluster.prepare(&pod),
            cluster.decide(1, json!({"conditions": condition(kind)}))
        );
        let error = error_chain(&prepared.unwrap_err());
        let expected = format!(
            "MountVolume.SetUp failed for volume \"v\" : PodCertificateRequest was permanently {how}: \
             reason=\"Why\" message=\"because\""
        );
        assert_eq!(error, expected);
        assert!(cluster.prepare(&pod).await.is_err());
        assert_eq!(cluster.server.posts().len(), 1);
    }
}

#[tokio::test]
async fn what_keeps_a_request_from_being_made_is_said_and_tried_again() {
    let cluster = cluster(3607).await;
    let pod = certified("u1", source());
    let error = error_chain(&cluster.prepare(&pod).await.unwrap_err());
    let expected = "credential bundle is not issued yet: while fetching service account: ";
    assert!(error.contains(expected), "{error}");
    cluster.store_requests();
    cluster.decide(1, issued(1, 3600)).await;
    changed(&cluster).await;
    cluster.prepare(&pod).await.unwrap();
}
