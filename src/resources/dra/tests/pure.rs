//! Claims of pods, and the checkpoint.

use crate::model::{Pod, PodExt as _};
use crate::resources::dra::checkpoint;
use crate::resources::dra::claims::{self, ClaimRequest, PodClaim};
use crate::resources::dra::state::{PreparedDevice, ResourceClaimKey};
use serde_json::{Value, json};

fn pod(spec: &Value, status: &Value) -> Pod {
    let metadata = json!({"namespace": "ns", "name": "p", "uid": "u"});
    let pod = json!({"metadata": metadata, "spec": spec, "status": status});
    serde_json::from_value(pod).unwrap()
}

#[test]
fn a_pod_has_the_claims_that_it_names_and_those_made_for_it() {
    let declared = json!({"containers": [], "resourceClaims": [
        {"name": "direct", "resourceClaimName": "object"},
        {"name": "made", "resourceClaimTemplateName": "t"},
        {"name": "none", "resourceClaimTemplateName": "t"},
    ]});
    let status = json!({
        "resourceClaimStatuses": [{"name": "made", "resourceClaimName": "p-made-x"}, {"name": "none"}],
        "extendedResourceClaimStatus": {"resourceClaimName": "extended", "requestMappings": []},
    });
    let claim = |name: &str, is_owned| PodClaim { name: name.into(), is_owned };
    assert_eq!(
        claims::of_pod(&pod(&declared, &status)).unwrap(),
        [claim("object", false), claim("p-made-x", true), claim("extended", false)]
    );
    let error = claims::of_pod(&pod(&declared, &json!({}))).unwrap_err();
    assert_eq!(error.to_string(), "pod \"ns/p\": ResourceClaim not created yet");
    let unknown = json!({"containers": [], "resourceClaims": [{"name": "future"}]});
    let error = claims::of_pod(&pod(&unknown, &json!({}))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "pod \"ns/p\", spec.resourceClaim \"future\": none of the supported fields are set"
    );
}

#[test]
fn a_container_uses_the_requests_that_it_names() {
    let gpu = json!({"example.com/gpu": "1"});
    let spec = json!({
        "containers": [
            {"name": "c", "resources": {"claims": [{"name": "a"}, {"name": "b", "request": "r"}], "requests": gpu}},
            {"name": "other", "resources": {"requests": {"example.com/gpu": "0"}}},
        ],
        "resourceClaims": [
            {"name": "b", "resourceClaimName": "object-b"}, {"name": "a", "resourceClaimName": "object-a"},
            {"name": "unused", "resourceClaimTemplateName": "not-made-yet"},
        ],
    });
    let mapping = |container: &str| json!({"containerName": container, "resourceName": "example.com/gpu", "requestName": "q"});
    let status = json!({"extendedResourceClaimStatus": {
        "resourceClaimName": "extended", "requestMappings": [mapping("c"), mapping("other")]}});
    let pod = pod(&spec, &status);
    let request = |declared: Option<&str>, claim: &str, request: &str| ClaimRequest {
        declared: declared.map(str::to_owned),
        claim: claim.into(),
        request: request.into(),
    };
    let [first, second] = pod.containers() else {
        panic!();
    };
    assert_eq!(
        claims::of_container(&pod, first).unwrap(),
        [
            request(Some("b"), "object-b", "r"),
            request(Some("a"), "object-a", ""),
            request(None, "extended", "q"),
        ]
    );
    assert_eq!(claims::of_container(&pod, second).unwrap(), []);
}

#[test]
fn a_device_class_may_be_requested_by_its_name() {
    let name = "deviceclass.resource.kubernetes.io/gpu.example.com";
    let spec = json!({"containers": [{"name": "c", "resources": {"requests": {name: "1"}}}]});
    let mapping = json!({"containerName": "c", "resourceName": name, "requestName": "q"});
    let status = json!({"extendedResourceClaimStatus": {
        "resourceClaimName": "extended", "requestMappings": [mapping]}});
    let pod = pod(&spec, &status);
    let found = claims::of_container(&pod, &pod.containers()[0]).unwrap();
    let expected = ClaimRequest { declared: None, claim: "extended".into(), request: "q".into() };
    assert_eq!(found, [expected]);
}

#[test]
fn a_device_is_for_its_requests_or_for_all() {
    let device = |requests: &[&str]| PreparedDevice {
        requests: requests.iter().map(|one| (*one).to_owned()).collect(),
        ..PreparedDevice::default()
    };
    for (requests, request, expected) in [
        (&["a"][..], "a", true),
        (&["a"], "b", false),
        (&["a"], "", true),
        (&[], "b", true),
        (&["a"], "a/first", true),
    ] {
        assert_eq!(device(requests).is_for(request), expected, "{requests:?} {request}");
    }
}

/// Two claims, as v1.36 of the Go kubelet writes them.
const WRITTEN: &str = r#"{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":[{\"ClaimUID\":\"067798be-454e-4be4-9047-1aa06aea63f7\",\"ClaimName\":\"example-1\",\"Namespace\":\"default\",\"PodUIDs\":{\"139cdb46-f989-4f17-9561-ca10cfb509a6\":{}},\"DriverState\":{\"test-driver.cdi.k8s.io\":{\"Devices\":[{\"PoolName\":\"worker-1\",\"DeviceName\":\"dev-1\",\"ShareID\":null,\"RequestNames\":[\"test request\"],\"CDIDeviceIDs\":[\"example.com/example=cdi-example\"]}]}}},{\"ClaimUID\":\"4cf8db2d-06c0-7d70-1a51-e59b25b2c16c\",\"ClaimName\":\"example-2\",\"Namespace\":\"default\",\"PodUIDs\":{\"139cdb46-f989-4f17-9561-ca10cfb509a6\":{}},\"DriverState\":{\"test-driver.cdi.k8s.io\":{\"Devices\":[{\"PoolName\":\"worker-1\",\"DeviceName\":\"dev-2\",\"ShareID\":null,\"RequestNames\":null,\"CDIDeviceIDs\":null}]}}}]}","Checksum":2820117767}"#;

#[test]
fn the_checkpoint_is_upstreams() {
    let claims = checkpoint::decode(WRITTEN.as_bytes()).unwrap();
    let key = |name: &str| ResourceClaimKey { namespace: "default".into(), name: name.into() };
    let first = &claims.0[&key("example-1")];
    assert_eq!(first.uid, "067798be-454e-4be4-9047-1aa06aea63f7");
    assert_eq!(first.pods.len(), 1);
    let device = &first.drivers["test-driver.cdi.k8s.io"][0];
    assert_eq!(
        (device.pool.as_str(), device.device.as_str(), &device.cdi_ids[..]),
        ("worker-1", "dev-1", &["example.com/example=cdi-example".to_owned()][..])
    );
    assert!(claims.0.contains_key(&key("example-2")));
    let again = checkpoint::encode(&claims).unwrap();
    assert_eq!(checkpoint::decode(&again).unwrap(), claims);
    // But for empty lists, which are written as such, it is the same text.
    let text = String::from_utf8(again).unwrap();
    let end = text.find("\\\"ClaimName\\\":\\\"example-2").unwrap();
    assert_eq!(text[..end], WRITTEN[..end]);
}

#[test]
fn a_damaged_checkpoint_is_no_checkpoint() {
    let other = WRITTEN.replace("worker-1", "worker-2");
    for (text, expected) in [
        (other.as_str(), "checkpoint is corrupted"),
        ("", "EOF while parsing"),
        ("{\"Data\":\"{}\",\"Checksum\":2745614147}", "missing field"),
    ] {
        let error = checkpoint::decode(text.as_bytes()).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}
