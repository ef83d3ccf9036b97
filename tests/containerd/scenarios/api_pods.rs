//! Pods of an API server that a kubelet finds and that it takes no pods from.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::node::{Node, WAIT_LIMIT, manifest};
use crate::support::wait::{holds, wait_for};

const SLEEPER: &str =
    "containers:\n- { name: c, image: \"localhost/busybox:dev\", command: [sleep, \"1000\"] }";

/// Several runs of housekeeping, the first of which comes 100 ms after the start.
const HOUSEKEEPING: Duration = Duration::from_secs(5);

fn write(dir: &Path, name: &str, what: &Value) -> String {
    let path = dir.join(name);
    std::fs::write(&path, what.to_string()).unwrap();
    path.display().to_string()
}

/// Makes a pod as a kubelet does it, of this source if any.
fn plant(node: &Node, name: &str, source: Option<&str>) {
    let uid = format!("uid-of-{name}");
    let mut labels = json!({
        "io.kubernetes.pod.uid": uid,
        "io.kubernetes.pod.name": name,
        "io.kubernetes.pod.namespace": "default",
    });
    let annotations = source.map(|source| json!({"kubernetes.io/config.source": source}));
    let sandbox = json!({
        "metadata": {"name": name, "uid": uid, "namespace": "default", "attempt": 0},
        "labels": labels,
        "annotations": annotations.unwrap_or(json!({})),
        "linux": {"security_context": {"namespace_options": {"network": 2}}},
    });
    labels["io.kubernetes.container.name"] = json!("c");
    let container = json!({
        "metadata": {"name": "c", "attempt": 0},
        "image": {"image": "localhost/busybox:dev"},
        "command": ["sleep", "1000"],
        "labels": labels,
        "linux": {},
    });
    let sandbox = write(node.dir(), "sandbox.json", &sandbox);
    let container = write(node.dir(), "container.json", &container);
    let pod = node.runtime.crictl(&["runp", &sandbox]);
    let id = node.runtime.crictl(&["create", pod.trim(), &container, &sandbox]);
    node.runtime.crictl(&["start", id.trim()]);
}

fn kubeconfig(dir: &Path) -> String {
    let nowhere = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    });
    write(dir, "kubeconfig", &nowhere)
}

pub async fn pods_of_an_api_server_live_on_whatever_the_flags() {
    for with_kubeconfig in [true, false] {
        let dir = Node::fresh_dir();
        let args = if with_kubeconfig {
            vec![format!("--kubeconfig={}", kubeconfig(dir.path()))]
        } else {
            Vec::new()
        };
        let mut node = Node::start_in(dir, "", &args).await;
        node.kubelet.kill();
        plant(&node, "from-the-api", Some("api"));
        plant(&node, "unmarked", None);
        plant(&node, "of-a-file", Some("file"));
        let theirs = node.root().join("pods/uid-of-elsewhere/volumes");
        std::fs::create_dir_all(&theirs).unwrap();
        let mut running = node.runtime.running();
        running.retain(|container| container.pod != "of-a-file");
        assert_eq!(running.len(), 2);
        node.restart_kubelet().await;
        wait_for("what no source wants is gone", WAIT_LIMIT, || async {
            let left = node.runtime.try_containers_of("of-a-file")?;
            holds(left.is_empty(), format!("{left:?}"))
        })
        .await;
        node.put("web", &manifest("web", SLEEPER));
        node.ready("web").await;
        node.remove("web");
        node.gone("web", WAIT_LIMIT).await;
        // Not to wait for anything, but to see that nothing comes.
        tokio::time::sleep(HOUSEKEEPING).await;
        assert_eq!(node.runtime.running(), running);
        let names = node.runtime.sandboxes().into_iter().map(|pod| pod.name);
        let mut names: Vec<_> = names.collect();
        names.sort();
        assert_eq!(names, ["from-the-api", "unmarked"]);
        assert!(theirs.is_dir());
    }
}
