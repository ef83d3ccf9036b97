//! Pods that are resized while they run.

use serde_json::Value;

use crate::cluster::{Cluster, DEADLINE, NODE};
use crate::support::wait::{holds, wait_for};

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: sized}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: localhost/busybox:dev
    command: [sleep, '1000']
    resources: {requests: {cpu: 50m, memory: 16Mi}, limits: {cpu: 100m, memory: 32Mi}}
";
const LARGER: &str = r#"{"spec": {"containers": [{"name": "main", "resources":
    {"requests": {"cpu": "100m", "memory": "16Mi"}, "limits": {"cpu": "300m", "memory": "64Mi"}}}]}}"#;
/// It takes room that the other one would need for all CPUs.
const BESIDE: &str = "
apiVersion: v1
kind: Pod
metadata: {name: beside}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: localhost/busybox:dev
    command: [sleep, '1000']
    resources: {requests: {cpu: 50m}}
";

/// The quota in thousandths of a CPU and the memory limit that the kernel has for a container and for its pod.
fn limits(cluster: &Cluster, uid: &str, id: &str) -> Vec<String> {
    let read = |cgroup: &str| {
        let script = format!(
            "for d in $(find /sys/fs/cgroup -type d -name '*{cgroup}*'); do cd $d; \
             cat cpu.cfs_quota_us cpu.max memory.limit_in_bytes memory.max 2>/dev/null; done | sort -u | tr '\\n' ' '"
        );
        cluster.inside(&["sh", "-c", &script]).trim().to_owned()
    };
    vec![read(id), read(uid)]
}

pub async fn a_pod_is_resized_while_it_runs_and_a_resize_without_room_waits() {
    let mut cluster = Cluster::start();
    cluster.create(POD);
    cluster.wait("condition=Ready", "pod/sized");
    let pod = cluster.get(&["pod", "sized"]);
    let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
    let started = pod["status"]["containerStatuses"][0]["containerID"].clone();
    let id = started.as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    cluster.resize("sized", LARGER);
    let resources = |pod: &Value| pod["status"]["containerStatuses"][0]["resources"].clone();
    wait_for("the pod has what it requests", DEADLINE, || async {
        let pod = cluster.get(&["pod", "sized"]);
        let now = resources(&pod);
        let has = now["limits"]["cpu"] == "300m" && now["limits"]["memory"] == "64Mi";
        let text = pod["status"].to_string();
        holds(has && !text.contains("PodResize"), text)
    })
    .await;
    for found in limits(&cluster, &uid, &id) {
        assert!(found.contains("30000"), "{found}");
        assert!(found.contains("67108864"), "{found}");
    }

    cluster.create(BESIDE);
    cluster.wait("condition=Ready", "pod/beside");
    let node = cluster.get(&["node", NODE]);
    let all = node["status"]["allocatable"]["cpu"].as_str().unwrap();
    cluster.resize("sized", &LARGER.replace("100m", all).replace("300m", all));
    let deferred = async |cluster: &Cluster| {
        wait_for("the resize is deferred", DEADLINE, || async {
            let pod = cluster.get(&["pod", "sized"]);
            let text = pod["status"]["conditions"].to_string();
            let waits = text.contains("PodResizePending") && text.contains("Deferred");
            holds(waits, text)
        })
        .await;
    };
    deferred(&cluster).await;
    cluster.restart_kubelet();
    deferred(&cluster).await;
    let pod = cluster.get(&["pod", "sized"]);
    let container = &pod["status"]["containerStatuses"][0];
    assert_eq!(container["containerID"], started, "nothing was restarted");
    assert_eq!(container["restartCount"], 0);
    assert_eq!(container["allocatedResources"]["cpu"], "100m");
    cluster.resize("sized", LARGER);
    wait_for("the resize is over", DEADLINE, || async {
        let text = cluster.get(&["pod", "sized"])["status"].to_string();
        holds(!text.contains("PodResize"), text)
    })
    .await;
    let events =
        cluster.kubectl(&["get", "events", "--field-selector", "involvedObject.name=sized"]);
    for reason in ["ResizeStarted", "ResizeCompleted", "ResizeDeferred"] {
        assert!(events.contains(reason), "{events}");
    }
}
