//! The kubelet or the runtime dies; the pods do not notice.

use crate::node::{Node, WAIT_LIMIT, condition, manifest, restarts};
use crate::support::wait::wait_for;
use std::time::Duration;

/// Two pods, one with a readiness probe that leaves a trace of each run.
async fn running_pods(node: &Node) {
    let shared = node.shared();
    node.put(
        "probed",
        &manifest(
            "probed",
            &format!(
                r#"
containers:
- name: c
  image: localhost/busybox:dev
  command: [sleep, "1000"]
  readinessProbe: {{ exec: {{ command: [sh, -c, "echo x >> /shared/probes"] }}, periodSeconds: 1, timeoutSeconds: 30 }}
  volumeMounts: [{{ name: shared, mountPath: /shared }}]
volumes: [{{ name: shared, hostPath: {{ path: "{}" }} }}]
"#,
                shared.display()
            ),
        ),
    );
    node.put("plain", &manifest("plain", "initContainers:\n- { name: init, image: \"localhost/busybox:dev\", command: [\"true\"] }\ncontainers:\n- { name: c, image: \"localhost/busybox:dev\", command: [sleep, \"1000\"] }"));
    node.ready("probed").await;
    node.ready("plain").await;
}

/// Waits for some more probes and holds every answer of `/pods` meanwhile to "ready and never restarted".
async fn watch_for_flips(node: &Node, more: usize) {
    let probes = || node.shared_file("probes").lines().count();
    let enough = probes() + more;
    wait_for("the probe runs on", WAIT_LIMIT, || async {
        for pod in node.kubelet.pods().await.unwrap_or_default() {
            let name = pod.metadata.name.clone().unwrap_or_default();
            assert_ne!(condition(&pod, "Ready"), Some(false), "{name} flipped: {:?}", pod.status);
            assert!(restarts(&pod, "c") <= 0, "{name} was restarted");
        }
        let now = probes();
        if now >= enough { Ok(()) } else { Err(format!("{now} of {enough} probes")) }
    })
    .await;
}

pub async fn a_killed_kubelet_finds_its_pods_as_they_were() {
    let mut node = Node::start().await;
    running_pods(&node).await;
    let before = node.runtime.containers();
    let ready_since = |pod: &k8s_openapi::api::core::v1::Pod| {
        let conditions = pod.status.clone().unwrap().conditions.unwrap();
        conditions.into_iter().find(|c| c.type_ == "Ready").unwrap().last_transition_time
    };
    let since = ready_since(&node.ready("probed").await);
    node.kubelet.respawn();
    node.kubelet.wait_healthy(WAIT_LIMIT).await;
    watch_for_flips(&node, 3).await;
    let after = node.ready("probed").await;
    node.ready("plain").await;
    assert_eq!(ready_since(&after), since, "readiness was lost in between");
    assert_eq!(node.runtime.containers(), before);
    // It is in charge again, too.
    node.remove("plain");
    node.gone("plain", WAIT_LIMIT).await;
}

pub async fn a_restarted_containerd_costs_no_container() {
    let node = Node::start().await;
    running_pods(&node).await;
    let before = node.runtime.containers();
    node.runtime.halt();
    node.runtime.resume();
    // Probes fail while the runtime is away; what counts is what runs afterwards.
    let more = node.shared_file("probes").lines().count() + 2;
    wait_for("probes run again", WAIT_LIMIT, || async {
        let now = node.shared_file("probes").lines().count();
        if now >= more { Ok(()) } else { Err(format!("{now} of {more}")) }
    })
    .await;
    let probed = node.ready("probed").await;
    let plain = node.ready("plain").await;
    assert_eq!((restarts(&probed, "c"), restarts(&plain, "c")), (0, 0));
    assert_eq!(node.runtime.containers(), before);
    let spec =
        "containers:\n- { name: c, image: \"localhost/busybox:dev\", command: [sleep, \"1000\"] }";
    node.put("fresh", &manifest("fresh", spec));
    node.ready("fresh").await;
}

pub async fn sigterm_ends_the_kubelet_and_leaves_the_pods() {
    let mut node = Node::start().await;
    running_pods(&node).await;
    let before = node.runtime.containers();
    let status = node.kubelet.terminate(WAIT_LIMIT).await;
    assert!(status.success(), "{status}");
    assert_eq!(node.runtime.containers(), before);
    node.kubelet.respawn();
    node.kubelet.wait_healthy(WAIT_LIMIT).await;
    watch_for_flips(&node, 2).await;
    assert_eq!(node.runtime.containers(), before);
}

pub async fn a_kubelet_killed_while_a_container_starts_fails_no_pod() {
    let mut node = Node::start().await;
    // The kubelet waits for the hook before it starts the next container.
    let web = manifest(
        "web",
        r#"
restartPolicy: Never
containers:
- name: first
  image: localhost/busybox:dev
  command: [sleep, "1000"]
  lifecycle: { postStart: { sleep: { seconds: 4 } } }
- name: second
  image: localhost/busybox:dev
  command: [sleep, "1000"]
"#,
    );
    // The hook may not take longer than the grace period.
    let web = web.replace("GracePeriodSeconds: 1", "GracePeriodSeconds: 5");
    node.put("web", &web);
    let first = node
        .containers_when("web", "the first one runs", WAIT_LIMIT, |found| {
            found.iter().any(|c| c.name == "first" && c.running)
        })
        .await;
    let shim = node.runtime.main_process(&first[0].id).parent();
    // Until it goes on, no container of this pod can start.
    node.runtime.signal("STOP", shim);
    node.containers_when("web", "the second one is created", WAIT_LIMIT, |found| {
        found.iter().any(|c| c.name == "second")
    })
    .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    node.kubelet.kill();
    node.runtime.signal("CONT", shim);
    node.restart_kubelet().await;
    let pod = node.ready("web").await;
    assert_eq!((restarts(&pod, "first"), restarts(&pod, "second")), (0, 0));
    let running = node.runtime.containers_of("web-node1");
    assert_eq!(running.len(), 2, "{running:?}");
    assert!(running.iter().any(|c| c.id == first[0].id), "{running:?}");
}
