use super::*;
use serde_json::{Value, json};

fn defaulted(spec: &Value) -> Value {
    let mut pod: Pod = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec
    }))
    .unwrap();
    set_pod_defaults(&mut pod);
    let once = serde_json::to_value(&pod).unwrap();
    set_pod_defaults(&mut pod);
    assert_eq!(serde_json::to_value(&pod).unwrap(), once, "not idempotent");
    once
}

fn at(spec: &Value, pointer: &str) -> Value {
    let pod = defaulted(spec);
    pod.pointer(pointer).cloned().unwrap_or_default()
}

#[test]
fn a_bare_pod_gets_the_apis_defaults() {
    let pod = defaulted(&json!({"containers": [{"name": "c", "image": "i:1"}]}));
    assert_eq!(
        pod,
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "default"},
            "spec": {
                "restartPolicy": "Always",
                "dnsPolicy": "ClusterFirst",
                "schedulerName": "default-scheduler",
                "terminationGracePeriodSeconds": 30,
                "enableServiceLinks": true,
                "securityContext": {},
                "containers": [{
                    "name": "c", "image": "i:1",
                    "imagePullPolicy": "IfNotPresent",
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File",
                    "resources": {}
                }]
            }
        })
    );
}

#[test]
fn what_is_given_stays() {
    let spec = json!({
        "restartPolicy": "Never", "dnsPolicy": "Default", "schedulerName": "s",
        "terminationGracePeriodSeconds": 0,
        "enableServiceLinks": false, "securityContext": {"runAsUser": 1},
        "containers": [{
            "name": "c", "image": "i", "imagePullPolicy": "Never",
            "terminationMessagePath": "/x", "terminationMessagePolicy": "FallbackToLogsOnError",
            "resources": {}
        }]
    });
    assert_eq!(defaulted(&spec)["spec"], spec);
}

#[test]
fn the_pull_policy_follows_the_tag() {
    for (image, policy) in [
        ("busybox", "Always"),
        ("busybox:latest", "Always"),
        ("busybox:1", "IfNotPresent"),
        ("host:5000/busybox", "Always"),
        ("host:5000/busybox:1", "IfNotPresent"),
        ("host:5000/busybox:latest", "Always"),
        ("busybox@sha256:0123", "IfNotPresent"),
        ("busybox:latest@sha256:0123", "Always"),
    ] {
        let spec = json!({"containers": [{"name": "c", "image": image}]});
        assert_eq!(at(&spec, "/spec/containers/0/imagePullPolicy"), policy, "{image}");
    }
}

#[test]
fn requests_default_to_limits() {
    let spec = json!({"containers": [{"name": "c", "resources": {
        "limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}}]});
    assert_eq!(
        at(&spec, "/spec/containers/0/resources/requests"),
        json!({"cpu": "1", "memory": "1Gi"})
    );
}

#[test]
fn host_network_makes_every_port_a_host_port() {
    let spec = json!({"hostNetwork": true, "containers": [{"name": "c", "ports": [
        {"containerPort": 80}, {"containerPort": 81, "hostPort": 81, "protocol": "UDP"}]}]});
    assert_eq!(
        at(&spec, "/spec/containers/0/ports"),
        json!([{"containerPort": 80, "hostPort": 80, "protocol": "TCP"},
               {"containerPort": 81, "hostPort": 81, "protocol": "UDP"}])
    );
    let spec = json!({"containers": [{"name": "c", "ports": [{"containerPort": 80}]}]});
    assert_eq!(
        at(&spec, "/spec/containers/0/ports"),
        json!([{"containerPort": 80, "protocol": "TCP"}])
    );
}

#[test]
fn probes_and_hooks_of_all_containers_are_completed() {
    let probe = json!({"httpGet": {"port": 80}});
    let spec = json!({
        "initContainers": [{"name": "i", "restartPolicy": "Always", "startupProbe": probe}],
        "containers": [{"name": "c", "livenessProbe": {"grpc": {"port": 1}, "periodSeconds": 3},
            "lifecycle": {"preStop": {"httpGet": {"port": 80, "scheme": "HTTPS"}}}}]});
    assert_eq!(
        at(&spec, "/spec/initContainers/0/startupProbe"),
        json!({"httpGet": {"port": 80, "path": "/", "scheme": "HTTP"}, "timeoutSeconds": 1,
               "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3})
    );
    assert_eq!(
        at(&spec, "/spec/containers/0/livenessProbe"),
        json!({"grpc": {"port": 1, "service": ""}, "timeoutSeconds": 1, "periodSeconds": 3,
               "successThreshold": 1, "failureThreshold": 3})
    );
    assert_eq!(
        at(&spec, "/spec/containers/0/lifecycle/preStop/httpGet"),
        json!({"port": 80, "path": "/", "scheme": "HTTPS"})
    );
}

#[test]
fn volumes_and_env_are_completed() {
    let spec = json!({
        "serviceAccount": "old",
        "volumes": [{"name": "none"}, {"name": "h", "hostPath": {"path": "/x"}},
                    {"name": "s", "secret": {"secretName": "x"}}],
        "containers": [{"name": "c",
            "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "B", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]}]});
    let pod = defaulted(&spec);
    let at = |pointer: &str| pod.pointer(pointer).cloned().unwrap_or_default();
    assert_eq!(at("/spec/serviceAccountName"), "old");
    assert_eq!(at("/spec/volumes/0/emptyDir"), json!({}));
    assert_eq!(at("/spec/volumes/1/hostPath/type"), "");
    assert_eq!(at("/spec/volumes/1/emptyDir"), Value::Null);
    assert_eq!(at("/spec/volumes/2/secret/defaultMode"), 0o644);
    assert_eq!(at("/spec/containers/0/env/0/valueFrom/fieldRef/apiVersion"), "v1");
    assert_eq!(at("/spec/containers/0/env/1/valueFrom/resourceFieldRef/divisor"), "0");
}

#[test]
fn quantities_are_printed_in_their_canonical_spelling_and_in_whole_thousandths() {
    let spec = json!({
        "containers": [{
            "name": "c", "image": "i:1",
            "resources": {
                "requests": {"cpu": "1.0005", "memory": "0.1Gi"},
                "limits": {"cpu": "2000m", "memory": "268435456", "ephemeral-storage": "3000000000"},
            },
            "env": [{"name": "E", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "0.001"}}}],
        }],
        "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1024Ki"}}],
    });
    let container = "/spec/containers/0";
    for (pointer, expected) in [
        ("/resources/requests/cpu", "1001m"),
        ("/resources/requests/memory", "107374182400m"),
        ("/resources/requests/ephemeral-storage", "3G"),
        ("/resources/limits/cpu", "2"),
        ("/resources/limits/memory", "268435456"),
        ("/env/0/valueFrom/resourceFieldRef/divisor", "1m"),
    ] {
        let shown = at(&spec, &format!("{container}{pointer}"));
        assert_eq!(shown, expected, "{pointer}");
    }
    assert_eq!(at(&spec, "/spec/volumes/0/emptyDir/sizeLimit"), "1Mi");
    let odd = json!({"containers": [{"name": "c", "resources": {"limits": {"cpu": "lots"}}}]});
    let shown = at(&odd, &format!("{container}/resources/limits/cpu"));
    assert_eq!(shown, "lots", "what cannot be read is for validation to refuse");
}

#[test]
fn the_resources_of_a_pod_follow_those_of_its_containers_and_its_limits() {
    let container =
        json!({"requests": {"cpu": "100m"}, "limits": {"memory": "8Mi", "hugepages-2Mi": "2Mi"}});
    for (given, expected) in [
        (json!({}), json!({})),
        (
            json!({"requests": {"cpu": "1"}}),
            json!({
                "limits": {"hugepages-2Mi": "4Mi"},
                "requests": {"cpu": "1", "memory": "16Mi", "hugepages-2Mi": "4Mi"}
            }),
        ),
        (
            json!({"limits": {"cpu": "1.5", "memory": "1Gi"}}),
            json!({
                "limits": {"cpu": "1500m", "memory": "1Gi", "hugepages-2Mi": "4Mi"},
                "requests": {"cpu": "200m", "memory": "16Mi", "hugepages-2Mi": "4Mi"}
            }),
        ),
        (
            json!({"limits": {"cpu": "1"}, "requests": {"hugepages-2Mi": "8Mi"}}),
            json!({
                "limits": {"cpu": "1"},
                "requests": {"cpu": "200m", "memory": "16Mi", "hugepages-2Mi": "8Mi"}
            }),
        ),
    ] {
        let own = at(
            &json!({"resources": given, "containers": [
                {"name": "a", "resources": container}, {"name": "b", "resources": container}]}),
            "/spec/resources",
        );
        assert_eq!(own, expected, "{given}");
    }
    // Without limits at the containers, the pod's are what is requested.
    let own = at(
        &json!({"resources": {"limits": {"cpu": "1"}}, "containers": [{"name": "a"}]}),
        "/spec/resources/requests",
    );
    assert_eq!(own, json!({"cpu": "1"}));
}
