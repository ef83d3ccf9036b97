//! Static pods as the cluster sees them.

use serde_json::Value;

use crate::cluster::{Cluster, DEADLINE};
use crate::inventory::nothing_is_leaked;
use crate::support::wait::wait_for;

const MIRROR: &str = "static-node1";

fn manifest(mode: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: static, namespace: default}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: localhost/busybox:dev
    command: [sleep, '1000']
    env: [{{name: MODE, value: {mode}}}]
"
    )
}

fn mode(pod: &Value) -> &Value {
    &pod["spec"]["containers"][0]["env"][0]["value"]
}

fn container(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]["containerID"]
}

/// The mirror once it is Ready and as `wanted`.
async fn mirror(cluster: &Cluster, wanted: impl Fn(&Value) -> bool) -> Value {
    wait_for("the mirror is Ready", DEADLINE, || async {
        let text = cluster.try_kubectl(&["get", "pod", MIRROR, "-o", "json"])?;
        let pod: Value = serde_json::from_str(&text).unwrap();
        let ready = pod["status"]["containerStatuses"][0]["ready"] == true;
        let fits = ready && wanted(&pod);
        if fits { Ok(pod) } else { Err(text) }
    })
    .await
}

pub async fn a_mirror_follows_its_manifest_and_its_deletion_touches_nothing() {
    let cluster = Cluster::start();
    let manifests = cluster.manifests();
    manifests.put("static.yaml", &manifest("first"));
    let first = mirror(&cluster, |pod| mode(pod) == "first").await;
    let owner = &first["metadata"]["ownerReferences"][0];
    assert_eq!(owner["kind"], "Node");
    assert!(first["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_string());

    // As a user deletes it, and by force.
    let mut last = first.clone();
    for force in [&[][..], &["--force", "--grace-period=0"]] {
        let delete = ["delete", "pod", MIRROR, "--wait=false"];
        cluster.kubectl(&[&delete[..], force].concat());
        let uid = last["metadata"]["uid"].clone();
        last = mirror(&cluster, |pod| pod["metadata"]["uid"] != uid).await;
        assert_eq!(container(&last), container(&first));
    }
    let running = cluster.crictl(&["ps"]);
    assert_eq!(running["containers"].as_array().unwrap().len(), 1);

    manifests.put("static.yaml", &manifest("second"));
    let second = mirror(&cluster, |pod| mode(pod) == "second").await;
    assert_ne!(container(&second), container(&first));
    let printed = cluster.kubectl(&["exec", MIRROR, "--", "sh", "-c", "echo $MODE"]);
    assert_eq!(printed, "second\n");

    manifests.remove("static.yaml");
    cluster.wait("delete", &format!("pod/{MIRROR}"));
    nothing_is_leaked(&cluster).await;
    assert_eq!(cluster.crictl(&["ps", "-a"])["containers"], Value::Array(vec![]));
}

const RUNTIME_CLASS: &str = "
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: plain}
handler: runc
";

pub async fn a_static_pod_may_name_a_runtime_class_and_labels_of_the_node() {
    let cluster = Cluster::start();
    cluster.create(RUNTIME_CLASS);
    cluster.kubectl(&["label", "node", "node1", "disk=ssd"]);
    let manifests = cluster.manifests();
    let on_disk = |name: &str, disk: &str| {
        let spec = format!("spec:\n  runtimeClassName: plain\n  nodeSelector: {{disk: {disk}}}");
        let manifest = manifest("any").replace("name: static", &format!("name: {name}"));
        manifest.replace("spec:", &spec)
    };
    manifests.put("static.yaml", &on_disk("static", "ssd"));
    manifests.put("elsewhere.yaml", &on_disk("elsewhere", "hdd"));
    mirror(&cluster, |pod| pod["spec"]["runtimeClassName"] == "plain").await;
    let pods = cluster.crictl(&["pods"]);
    let handlers: Vec<_> = pods["items"].as_array().unwrap().iter().collect();
    assert_eq!(handlers.len(), 1, "{pods}");
    assert_eq!(handlers[0]["runtimeHandler"], "runc");
    let reason = "jsonpath={.status.reason}";
    wait_for("the other pod is rejected", DEADLINE, || async {
        match cluster.try_kubectl(&["get", "pod", "elsewhere-node1", "-o", reason])? {
            shown if shown == "NodeAffinity" => Ok(()),
            shown => Err(shown),
        }
    })
    .await;
}
