//! What a node has of pods: in its runtime and in its directories.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::cluster::{Cluster, DEADLINE};
use crate::support::wait::{holds, wait_for};

/// A container as far as nothing may happen to it: pod, container id, restart count, since when its pod is ready.
pub type Instance = [String; 4];

/// The first containers of all pods with a label, in the order of their names.
pub fn instances(cluster: &Cluster, label: &str) -> Vec<Instance> {
    let pods = cluster.get(&["pods", "-l", label]);
    let mut found: Vec<_> = items(&pods).map(instance).collect();
    found.sort();
    found
}

fn instance(pod: &Value) -> Instance {
    let container = &pod["status"]["containerStatuses"][0];
    let conditions = pod["status"]["conditions"].as_array().unwrap();
    let ready = conditions.iter().find(|one| one["type"] == "Ready");
    let ready = ready.unwrap();
    [
        pod["metadata"]["name"].to_string(),
        container["containerID"].to_string(),
        container["restartCount"].to_string(),
        format!("{} {}", ready["status"], ready["lastTransitionTime"]),
    ]
}

pub fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list["items"].as_array().unwrap().iter()
}

/// Waits until the node has nothing of pods that are not in the API server: sandboxes, containers, directories of
/// volumes and logs. Nor may a sandbox be there twice.
pub async fn nothing_is_leaked(cluster: &Cluster) {
    wait_for("nothing is left of former pods", DEADLINE, || async {
        let left = leaked(cluster);
        holds(left.is_empty(), format!("{left:#?}"))
    })
    .await;
}

fn leaked(cluster: &Cluster) -> Vec<String> {
    let pods = cluster.get(&["pods", "-A"]);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let uids: BTreeSet<_> = items(&pods).map(|pod| text(&pod["metadata"]["uid"])).collect();
    let mut left = Vec::new();
    let mut sandboxes = BTreeSet::new();
    for pod in cluster.crictl(&["pods"])["items"].as_array().unwrap() {
        let uid = text(&pod["metadata"]["uid"]);
        if !uids.contains(&uid) || !sandboxes.insert(uid) {
            left.push(format!("sandbox {pod}"));
        }
    }
    for container in cluster.crictl(&["ps", "-a"])["containers"].as_array().unwrap() {
        if !uids.contains(&text(&container["labels"]["io.kubernetes.pod.uid"])) {
            left.push(format!("container {container}"));
        }
    }
    let node = cluster.dir().join("private/node");
    for (dir, uid) in
        [("lib/kubelet/pods", whole as fn(&str) -> &str), ("log/pods", behind_the_name)]
    {
        let others = names(&node.join(dir)).into_iter();
        let others = others.filter(|name| !uids.contains(uid(name)));
        left.extend(others.map(|name| format!("{dir}/{name}")));
    }
    left
}

fn whole(name: &str) -> &str {
    name
}

/// `namespace_name_uid`
fn behind_the_name(name: &str) -> &str {
    name.rsplit('_').next().unwrap_or(name)
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).collect()
}
