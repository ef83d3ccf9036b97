//! Statuses field by field; what is expected is what the Go kubelet v1.36 showed of the same pods.

use serde_json::{Value, json};

use crate::node::{Node, container, manifest, restarts};

/// What `/pods` has of a pod: its specified resources, by container, and its status.
fn shown(pod: &k8s_openapi::api::core::v1::Pod) -> (Value, Value) {
    let pod = serde_json::to_value(pod).expect("a pod is JSON");
    (pod["spec"].clone(), pod["status"].clone())
}

fn of(list: &Value, name: &str) -> Value {
    let mut items = list.as_array().expect("a list").iter();
    let item = items.find(|item| item["name"] == name);
    item.expect(name).clone()
}

pub async fn resources_are_shown_as_allocated_and_as_the_runtime_has_them() {
    let node = Node::start().await;
    node.put(
        "res",
        &manifest(
            "res",
            r#"
initContainers:
- { name: init, image: "localhost/busybox:dev", command: ["true"], resources: { requests: { cpu: 0.2, memory: 100M }, limits: { memory: 100M } } }
- { name: side, image: "localhost/busybox:dev", restartPolicy: Always, command: [sleep, "1000"], resources: { requests: { cpu: 10m }, limits: { cpu: 33m } } }
containers:
- { name: both, image: "localhost/busybox:dev", command: [sleep, "1000"], resources: { requests: { cpu: "0.1", memory: 64Mi }, limits: { cpu: "0.5", memory: 0.125Gi } } }
- { name: limits, image: "localhost/busybox:dev", command: [sleep, "1000"], resources: { limits: { cpu: 5m, memory: 100M } } }
- { name: requests, image: "localhost/busybox:dev", command: [sleep, "1000"], resources: { requests: { cpu: 1m, ephemeral-storage: 1e6, memory: "16777216" } } }
- { name: none, image: "localhost/busybox:dev", command: [sleep, "1000"] }
"#,
        ),
    );
    let pod = node.ready("res").await;
    let (spec, status) = shown(&pod);
    let both = json!({
        "requests": {"cpu": "100m", "memory": "64Mi"},
        "limits": {"cpu": "500m", "memory": "128Mi"},
    });
    assert_eq!(of(&spec["containers"], "both")["resources"], both);
    for (list, name, resources) in [
        (
            "initContainerStatuses",
            "init",
            json!({"requests": {"cpu": "200m", "memory": "100M"}, "limits": {"memory": "100M"}}),
        ),
        (
            "initContainerStatuses",
            "side",
            json!({"requests": {"cpu": "10m"}, "limits": {"cpu": "33m"}}),
        ),
        ("containerStatuses", "both", both),
        (
            "containerStatuses",
            "limits",
            json!({"requests": {"cpu": "5m", "memory": "100M"}, "limits": {"cpu": "5m", "memory": "100000000"}}),
        ),
        (
            "containerStatuses",
            "requests",
            json!({"requests": {"cpu": "1m", "ephemeral-storage": "1M", "memory": "16777216"}}),
        ),
        ("containerStatuses", "none", json!({})),
    ] {
        let status = of(&status[list], name);
        assert_eq!(status["resources"], resources, "{name}");
        assert_eq!(status["allocatedResources"], resources["requests"], "{name}");
        assert_eq!(status["lastState"], json!({}), "{name}");
    }
    let requests = json!({"cpu": "200m", "ephemeral-storage": "1M", "memory": "183886080"});
    let limits = json!({"cpu": "538m", "memory": "234217728"});
    assert_eq!(status["allocatedResources"], requests);
    assert_eq!(status["resources"], json!({"requests": requests, "limits": limits}));
}

pub async fn an_exit_that_asks_for_it_makes_all_containers_start_over() {
    let node = Node::start().await;
    let shared = node.shared();
    let spec = format!(
        r#"
restartPolicy: Never
initContainers:
- {{ name: init, image: "localhost/busybox:dev", command: ["true"] }}
containers:
- name: again
  image: localhost/busybox:dev
  command: [sh, -c, "if [ -e /shared/once ]; then sleep 1000; fi; touch /shared/once; exit 88"]
  restartPolicy: Never
  restartPolicyRules: [{{ action: RestartAllContainers, exitCodes: {{ operator: In, values: [88] }} }}]
  volumeMounts: [{{ name: shared, mountPath: /shared }}]
- {{ name: main, image: "localhost/busybox:dev", command: [sleep, "1000"] }}
volumes: [{{ name: shared, hostPath: {{ path: {shared} }} }}]
"#,
        shared = shared.display()
    );
    node.put("over", &manifest("over", &spec));
    let names = ["init", "again", "main"];
    let over = |pod: &_| names.iter().all(|name| restarts(pod, name) == 1);
    node.pod_when("over", "all were restarted", over).await;
    let pod = node.ready("over").await;
    for name in names {
        let last = container(&pod, name).unwrap().last_state.clone();
        let last = last.unwrap_or_default().terminated.expect(name);
        let reported = (last.exit_code, last.reason.as_deref());
        assert_eq!(reported, (137, Some("RestartingAllContainers")), "{name}");
    }
    let (_, status) = shown(&pod);
    let conditions = status["conditions"].as_array().unwrap();
    let says = |kind: &str| {
        let mut conditions = conditions.iter();
        let found = conditions.find(|condition| condition["type"] == kind);
        found.expect(kind)["status"].clone()
    };
    assert_eq!(says("AllContainersRestarting"), "False");
    assert_eq!(says("Initialized"), "True");
    assert_eq!(status["phase"], "Running");
}
