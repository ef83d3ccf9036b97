//! Probes of every kind, with real handlers.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use k8s_openapi::api::core::v1::Pod;

use crate::flavour::Flavour;
use crate::node::{Node, WAIT_LIMIT, condition, container, manifest, restarts};
use crate::support::wait::{holds, wait_for};

fn is_ready(pod: &Pod, name: &str) -> bool {
    container(pod, name).is_some_and(|container| container.ready)
}

/// The response of a gRPC health server to one request: its settings, and SERVING on stream 1. It waits
/// for enough bytes to know that the stream is open.
fn write_grpc_server(path: &std::path::Path) {
    let mut bytes: Vec<u8> = Vec::new();
    let mut frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let length = u8::try_from(payload.len()).unwrap();
        bytes.extend([0, 0, length, kind, flags, 0, 0, 0, stream]);
        bytes.extend(payload);
    };
    frame(4, 0, 0, &[]);
    frame(4, 1, 0, &[]);
    // `:status: 200` is indexed, `content-type` has an indexed name.
    let head = [&[0x88, 0x0f, 0x10, 16][..], b"application/grpc"].concat();
    frame(1, 4, 1, &head);
    frame(0, 0, 1, &[0, 0, 0, 0, 2, 8, 1]);
    let tail = [&[0, 11][..], b"grpc-status", &[1], b"0"].concat();
    frame(1, 5, 1, &tail);
    let octal: String = bytes.iter().map(|byte| format!("\\{byte:03o}")).collect();
    let script = format!("#!/bin/sh\nhead -c 120 > /dev/null\nprintf '{octal}'\ncat > /dev/null\n");
    std::fs::write(path, script).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// A container for each kind of probe. Its server starts when the file `up` of its kind is in the shared directory; `probes`
/// are its probes with a handler of that kind.
fn servers(shared: &Path, up: impl Fn(&str) -> String, probes: impl Fn(&str) -> String) -> String {
    let containers = [
        (
            "exec",
            "touch /tmp/well; exec sleep 1000",
            "exec: { command: [sh, -c, \"cat /tmp/well || exit 7\"] }",
        ),
        (
            "http",
            "mkdir /www; echo hello > /www/index.html; exec httpd -f -p 8080 -h /www",
            "httpGet: { path: /index.html, port: 8080 }",
        ),
        ("tcp", "exec nc -ll -p 8081 -e true", "tcpSocket: { port: 8081 }"),
        ("grpc", "exec nc -ll -p 8082 -e /shared/grpc", "grpc: { port: 8082, service: any }"),
    ];
    let containers = containers.map(|(kind, server, probe)| {
        format!(
            r#"
- name: {kind}
  image: localhost/busybox:dev
  command: [sh, -c, "until [ -e /shared/{} ]; do sleep 0.1; done; {server}"]
  {}
  volumeMounts: [{{ name: shared, mountPath: /shared }}]"#,
            up(kind),
            probes(probe)
        )
    });
    format!(
        "containers:{}\nvolumes: [{{ name: shared, hostPath: {{ path: \"{}\" }} }}]",
        containers.concat(),
        shared.display()
    )
}

pub async fn probes_of_every_kind_ask_the_container() {
    let node = Node::start().await;
    let shared = node.shared();
    write_grpc_server(&shared.join("grpc"));
    let probes = |probe: &str| format!("readinessProbe: {{ {probe}, periodSeconds: 1 }}");
    let spec = servers(&shared, |kind| format!("{kind}-up"), probes);
    node.put("probed", &manifest("probed", &spec));
    let kinds = ["exec", "http", "tcp", "grpc"];
    for text in [
        "Readiness probe failed: cat: can't open '/tmp/well': No such file or directory",
        ":8080: connect: connection refused",
        ":8081: connect: connection refused",
        "Readiness probe failed: error: failed to connect service at",
    ] {
        node.event("Unhealthy", text).await;
    }
    let pod = node
        .pod_when("probed", "runs", |pod| {
            kinds.iter().all(|kind| {
                container(pod, kind).is_some_and(|c| c.started == Some(true) && !c.ready)
            })
        })
        .await;
    assert_eq!(condition(&pod, "ContainersReady"), Some(false));
    for (at, kind) in kinds.iter().enumerate() {
        std::fs::write(shared.join(format!("{kind}-up")), "").unwrap();
        let pod =
            node.pod_when("probed", &format!("has {kind} ready"), |pod| is_ready(pod, kind)).await;
        for later in &kinds[at + 1..] {
            assert!(!is_ready(&pod, later), "{later} is not up");
        }
    }
    node.ready("probed").await;
    // And back again.
    node.sh("probed", "http", "mv /www/index.html /www/other");
    node.sh("probed", "exec", "rm /tmp/well");
    node.event("Unhealthy", "HTTP probe failed with statuscode: 404").await;
    let pod = node
        .pod_when("probed", "is unready", |pod| !is_ready(pod, "http") && !is_ready(pod, "exec"))
        .await;
    assert_eq!(condition(&pod, "Ready"), Some(false));
    assert!(is_ready(&pod, "tcp") && is_ready(&pod, "grpc"));
    node.sh("probed", "http", "mv /www/other /www/index.html");
    node.sh("probed", "exec", "touch /tmp/well");
    let pod = node.ready("probed").await;
    assert!(kinds.iter().all(|kind| restarts(&pod, kind) == 0));
}

pub async fn a_server_that_listens_late_is_found_long_before_its_period_is_over() {
    let node = Node::start().await;
    let shared = node.shared();
    write_grpc_server(&shared.join("grpc"));
    let probes = |probe: &str| {
        format!(
            "startupProbe: {{ {probe}, periodSeconds: 3600 }}\n  readinessProbe: {{ {probe}, periodSeconds: 3600 }}"
        )
    };
    let spec = servers(&shared, |_| "up".to_owned(), probes);
    node.put("late", &manifest("late", &spec));
    node.event("Unhealthy", "Startup probe failed").await;
    std::fs::write(shared.join("up"), "").unwrap();
    // The first attempts of the period have failed, and the next ones would come in an hour.
    node.ready("late").await;
}

pub async fn a_container_that_does_not_start_up_is_replaced_before_anything_else_is_asked() {
    let node = Node::start().await;
    let shared = node.shared();
    let spec = format!(
        r#"
containers:
- name: c
  image: localhost/busybox:dev
  command: [sh, -c, "[ -e /shared/second ] && touch /tmp/up; touch /shared/second; exec sleep 1000"]
  startupProbe: {{ exec: {{ command: [test, -e, /tmp/up] }}, periodSeconds: 1, failureThreshold: 2 }}
  livenessProbe: {{ exec: {{ command: [sh, -c, "echo alive >> /shared/liveness; test -e /tmp/up"] }}, periodSeconds: 1, failureThreshold: 1 }}
  readinessProbe: {{ exec: {{ command: ["true"] }}, periodSeconds: 1 }}
  volumeMounts: [{{ name: shared, mountPath: /shared }}]
volumes: [{{ name: shared, hostPath: {{ path: "{}" }} }}]
"#,
        shared.display()
    );
    node.put("slow", &manifest("slow", &spec));
    node.event("Unhealthy", "Startup probe failed").await;
    node.event("Killing", "Container c failed startup probe, will be restarted").await;
    let pod = node.ready("slow").await;
    assert_eq!(restarts(&pod, "c"), 1);
    let events = node.events().await;
    assert!(!events.contains("Liveness probe failed"), "{events}");
    wait_for("liveness is probed now", WAIT_LIMIT, || async {
        let requested = node.shared_file("liveness");
        holds(requested.starts_with("alive\n"), requested)
    })
    .await;
}

pub async fn a_probe_that_hangs_is_a_failure_and_may_shorten_the_grace() {
    let node = Node::start().await;
    let spec = r#"
containers:
- name: c
  image: localhost/busybox:dev
  command: [sh, -c, "trap '' TERM; while true; do sleep 1; done"]
  livenessProbe:
    exec: { command: [sleep, "600"] }
    periodSeconds: 1
    timeoutSeconds: 1
    failureThreshold: 1
    terminationGracePeriodSeconds: 1
"#;
    let patient = manifest("hangs", spec).replacen(
        "terminationGracePeriodSeconds: 1\n",
        "terminationGracePeriodSeconds: 600\n",
        1,
    );
    node.put("hangs", &patient);
    // CRI-O answers that it timed out, as the output of the command.
    let expected = if Flavour::current().is_crio() {
        "command timed out"
    } else {
        "command timed out: \"sleep 600\" timed out after 1s"
    };
    node.event("Unhealthy", expected).await;
    // The pod's own grace would take ten minutes.
    node.pod_when("hangs", "was restarted", |pod| restarts(pod, "c") >= 1).await;
}

pub async fn a_removal_shortens_the_stop_that_a_failed_probe_began() {
    let node = Node::start().await;
    node.put(
        "deaf",
        &manifest(
            "deaf",
            r#"
containers:
- name: deaf
  image: localhost/busybox:dev
  command: [sh, -c, "trap : TERM; while true; do sleep 1; done"]
  livenessProbe:
    exec: { command: ["false"] }
    periodSeconds: 1
    timeoutSeconds: 30
    failureThreshold: 1
    terminationGracePeriodSeconds: 1800
- { name: other, image: "localhost/busybox:dev", command: [sleep, "1000"] }
"#,
        ),
    );
    node.event("Killing", "failed liveness probe").await;
    node.remove("deaf");
    node.gone("deaf", WAIT_LIMIT).await;
    wait_for("nothing of it runs", WAIT_LIMIT, || async {
        let left = node.runtime.containers_of("deaf-node1");
        holds(left.is_empty(), format!("{left:?}"))
    })
    .await;
}
