//! What the node's pods use, as users see it: `kubectl top`.

use crate::cluster::{Cluster, NODE};
use crate::support::wait::{holds, wait_for};
use std::time::Duration;

/// It reads the kubelet every ten seconds, and shows what it has read twice.
const SHOWN_WITHIN: Duration = Duration::from_secs(90);

const BUSY: &str = "
apiVersion: v1
kind: Pod
metadata: {name: busy}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: localhost/busybox:dev
    command: [sh, -c, 'while :; do :; done']
    resources: {limits: {cpu: 200m, memory: 64Mi}}
  - name: idle
    image: localhost/busybox:dev
    command: [sleep, infinity]
";

pub async fn metrics_server_shows_what_the_node_and_its_pods_use() {
    let cluster = Cluster::start();
    cluster.start_metrics_server();
    cluster.create(BUSY);
    cluster.wait("condition=Ready", "pod/busy");
    let shown = "kubectl top shows the container that computes with about its limit, and the one that sleeps";
    wait_for(shown, SHOWN_WITHIN, async || {
        let args = ["top", "pod", "busy", "--containers", "--no-headers"];
        let text = cluster.try_kubectl(&args)?;
        let used = |name: &str| {
            let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let line = lines.find(|words| words.get(1) == Some(&name))?;
            line.get(2)?.strip_suffix('m')?.parse::<u32>().ok()
        };
        let (busy, idle) = (used("main"), used("idle"));
        holds(busy.is_some_and(|m| (150..=250).contains(&m)) && idle.is_some_and(|m| m < 50), text)
    })
    .await;
    let node = cluster.kubectl(&["top", "node", NODE, "--no-headers"]);
    let words: Vec<&str> = node.split_whitespace().collect();
    let memory = words.get(3).and_then(|word| word.strip_suffix("Mi"));
    assert!(memory.is_some_and(|mib| mib.parse::<u64>().is_ok_and(|mib| mib > 0)), "{node}");
}
