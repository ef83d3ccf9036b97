//! Keys of pods, and certificates that a signer of the test issues for them.

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::cluster::{Cluster, DEADLINE, NODE};
use crate::support::scripts::printed;
use crate::support::wait::{holds, wait_for};

const GATES: &str = "--feature-gates=PodCertificateRequest=true";
const SIGNER: &str = "example.com/signer";

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: certified}
spec:
  nodeName: node1
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: localhost/busybox:dev
    command: [sleep, '1000']
    volumeMounts: [{name: v, mountPath: /v}]
  volumes:
  - name: v
    projected:
      sources:
";

const KEY_TYPES: [&str; 6] =
    ["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"];

fn pod() -> String {
    let source = |kind: &&str| {
        format!(
            "      - podCertificate:\n          signerName: {SIGNER}\n          keyType: {kind}\n          \
             userAnnotations: {{example.com/kind: {kind}}}\n          \
             keyPath: {kind}.key\n          certificateChainPath: {kind}.pem\n          \
             credentialBundlePath: {kind}.bundle\n"
        )
    };
    let sources: Vec<String> = KEY_TYPES.iter().map(source).collect();
    format!("{POD}{}", sources.concat())
}

/// Requests without a decision.
fn pending(cluster: &Cluster) -> Vec<Value> {
    let requests = cluster.get(&["podcertificaterequests"]);
    let requests = requests["items"].as_array().unwrap().iter();
    let pending = requests.filter(|one| one["status"]["conditions"].is_null());
    pending.cloned().collect()
}

fn decide(cluster: &Cluster, request: &Value, status: &Value) {
    let name = request["metadata"]["name"].as_str().unwrap();
    let patch = json!({"status": status}).to_string();
    let flags = ["--subresource=status", "--type=merge", "-p", &patch];
    cluster.kubectl(&[&["patch", "podcertificaterequests", name][..], &flags].concat());
}

fn condition(kind: &str) -> Value {
    json!([{"type": kind, "status": "True", "lastTransitionTime": Timestamp::now().to_string(),
        "reason": "OfTheTest", "message": "the signer says so"}])
}

/// Issues a certificate for the key of a request.
fn sign(cluster: &Cluster, request: &Value) -> String {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let stub = request["spec"]["stubPKCS10Request"].as_str().unwrap();
    fs::write(at("stub"), STANDARD.decode(stub).unwrap()).unwrap();
    let pki = |name: &str| {
        let names = [format!("pki/{name}"), format!("private/pki/{name}")];
        let mut paths = names.iter().map(|name| cluster.dir().join(name));
        paths.find(|path| path.exists()).unwrap().to_str().unwrap().to_owned()
    };
    let openssl = |args: &[&str]| {
        let mut command = std::process::Command::new("openssl");
        printed(command.args(args)).unwrap_or_else(|error| panic!("{args:?}: {error}"))
    };
    let (authority, key) = (pki("ca.crt"), pki("ca.key"));
    let (stub, made) = (at("stub"), at("made"));
    let of = ["x509", "-req", "-inform", "DER", "-in", &stub, "-out", &made, "-days", "1"];
    openssl(&[&of[..], &["-CA", &authority, "-CAkey", &key, "-set_serial", "7"]].concat());
    let time = |which: &str| {
        let text = openssl(&["x509", "-in", &made, "-noout", which, "-dateopt", "iso_8601"]);
        let (_, time) = text.trim().split_once('=').unwrap();
        time.replace(' ', "T").parse::<Timestamp>().unwrap()
    };
    let (begin, end) = (time("-startdate"), time("-enddate"));
    let chain = fs::read_to_string(&made).unwrap();
    let status = json!({
        "conditions": condition("Issued"), "certificateChain": chain,
        "notBefore": begin.to_string(), "notAfter": end.to_string(),
        "beginRefreshAt": (begin + SignedDuration::from_mins(10)).to_string(),
    });
    decide(cluster, request, &status);
    chain
}

pub async fn a_pod_has_the_certificates_of_a_signer_or_an_event_says_why_not() {
    let served = format!("{GATES} --runtime-config=certificates.k8s.io/v1beta1=true");
    let cluster = Cluster::start_with_api_server_flags(&served, &[GATES]);
    cluster.create(&pod());
    wait_for("there is a request for each key", DEADLINE, || async {
        let pending = pending(&cluster).len();
        holds(pending == KEY_TYPES.len(), format!("{pending} requests"))
    })
    .await;
    wait_for("an event says what is missing", DEADLINE, || async {
        let events = cluster.kubectl(&["events", "--for", "pod/certified"]);
        holds(events.contains("credential bundle is not issued yet"), events)
    })
    .await;
    for request in pending(&cluster) {
        let spec = &request["spec"];
        assert_eq!(
            (&spec["podName"], &spec["nodeName"], &spec["serviceAccountName"]),
            (&json!("certified"), &json!(NODE), &json!("default"))
        );
        sign(&cluster, &request);
    }
    cluster.wait("condition=Ready", "pod/certified");
    let shell = ["exec", "certified", "--", "sh", "-c"];
    for kind in KEY_TYPES {
        let script = format!(
            "cat /v/{kind}.key /v/{kind}.pem | cmp - /v/{kind}.bundle && head -n 1 /v/{kind}.bundle"
        );
        let first = cluster.kubectl(&[&shell[..], &[&*script]].concat());
        assert_eq!(first, "-----BEGIN PRIVATE KEY-----\n", "{kind}");
    }
    let mounts = cluster.kubectl(&[&shell[..], &["grep ' /v ' /proc/mounts"]].concat());
    assert!(mounts.contains("tmpfs"), "{mounts}");
    cluster.kubectl(&["delete", "pod", "certified"]);
    // One whose signer refuses.
    let refused = POD.replace("certified", "refused");
    cluster.create(&format!(
        "{refused}      - podCertificate: {{signerName: {SIGNER}, keyType: ED25519, keyPath: key}}\n"
    ));
    wait_for("there is a request", DEADLINE, || async {
        let pending = pending(&cluster);
        let of_pod = pending.iter().find(|one| one["spec"]["podName"] == "refused");
        if let Some(request) = of_pod {
            decide(&cluster, request, &json!({"conditions": condition("Denied")}));
        }
        holds(of_pod.is_some(), format!("{pending:?}"))
    })
    .await;
    wait_for("events say why", DEADLINE, || async {
        let events = cluster.kubectl(&["events", "--for", "pod/refused"]);
        let texts = ["was denied, reason=\"OfTheTest\"", "was permanently denied"];
        holds(texts.iter().all(|text| events.contains(text)), events)
    })
    .await;
    cluster.kubectl(&["delete", "pod", "refused"]);
}
