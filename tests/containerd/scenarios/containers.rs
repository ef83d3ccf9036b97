//! Order, restarts and probes of containers.

use std::time::Duration;

use crate::node::{Node, WAIT_LIMIT, container, manifest, phase, restarts};
use crate::support::wait::{holds, wait_for};

pub async fn init_containers_run_one_after_the_other_before_the_main_ones() {
    let node = Node::start().await;
    node.put(
        "order",
        &manifest(
            "order",
            r#"
initContainers:
- { name: first, image: "localhost/busybox:dev", command: [sh, -c, "sleep 0.3; echo first"] }
- { name: second, image: "localhost/busybox:dev", command: [sh, -c, "sleep 0.3; echo second"] }
containers:
- { name: main, image: "localhost/busybox:dev", command: [sleep, "1000"] }
"#,
        ),
    );
    let pod = node.ready("order").await;
    assert_eq!(phase(&pod), "Running");
    let containers = node.runtime.containers_of("order-node1");
    let life = |name: &str| {
        let mut ones = containers.iter().filter(|container| container.name == name);
        let times = node.runtime.times(&ones.next().expect(name).id);
        assert!(ones.next().is_none(), "{name} was started more than once");
        times
    };
    let (first, second, main) = (life("first"), life("second"), life("main"));
    assert!(first.finished <= second.started, "{first:?} {second:?}");
    assert!(second.finished <= main.started, "{second:?} {main:?}");
    let code = |name: &str| {
        let state = container(&pod, name).unwrap().state.clone().unwrap();
        state.terminated.expect("a finished init container shows as terminated").exit_code
    };
    assert_eq!((code("first"), code("second")), (0, 0));
}

pub async fn a_sidecar_starts_before_and_ends_after_the_main_container() {
    let node = Node::start().await;
    let shared = node.shared();
    let spec = format!(
        r#"
initContainers:
- name: sidecar
  image: localhost/busybox:dev
  restartPolicy: Always
  command: [sh, -c, "trap 'echo sidecar down >> /shared/story; exit 0' TERM; echo sidecar up >> /shared/story; while true; do sleep 0.05; done"]
  startupProbe: {{ exec: {{ command: [grep, -q, up, /shared/story] }}, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 30 }}
  volumeMounts: [{{ name: shared, mountPath: /shared }}]
containers:
- name: main
  image: localhost/busybox:dev
  command: [sh, -c, "trap 'echo main down >> /shared/story; exit 0' TERM; echo main up >> /shared/story; while true; do sleep 0.05; done"]
  volumeMounts: [{{ name: shared, mountPath: /shared }}]
volumes: [{{ name: shared, hostPath: {{ path: "{}" }} }}]
"#,
        shared.display()
    );
    let text = manifest("side", &spec)
        .replace("terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: 20");
    node.put("side", &text);
    node.ready("side").await;
    // Only then are both ready to be signalled.
    wait_for("both are up", WAIT_LIMIT, || async {
        holds(node.shared_file("story").contains("main up"), "no")
    })
    .await;
    node.remove("side");
    node.gone("side", WAIT_LIMIT).await;
    let story = node.shared_file("story");
    assert_eq!(
        story.lines().collect::<Vec<_>>(),
        ["sidecar up", "main up", "main down", "sidecar down"]
    );
}

pub async fn restart_policies_decide_what_is_started_again() {
    let node = Node::start().await;
    for (name, policy, code) in [
        ("always-ok", "Always", 0),
        ("onfailure-ok", "OnFailure", 0),
        ("onfailure-bad", "OnFailure", 3),
        ("never-ok", "Never", 0),
        ("never-bad", "Never", 4),
    ] {
        let spec = format!(
            "restartPolicy: {policy}\ncontainers:\n- {{ name: c, image: \"localhost/busybox:dev\", command: [sh, -c, \"exit {code}\"] }}"
        );
        node.put(name, &manifest(name, &spec));
    }
    for name in ["always-ok", "onfailure-bad"] {
        let pod = node.pod_when(name, "was restarted", |pod| restarts(pod, "c") >= 1).await;
        assert_eq!(phase(&pod), "Running", "{name}");
    }
    for (name, wanted, code) in
        [("onfailure-ok", "Succeeded", 0), ("never-ok", "Succeeded", 0), ("never-bad", "Failed", 4)]
    {
        let pod = node.pod_when(name, wanted, |pod| phase(pod) == wanted).await;
        let state = container(&pod, "c").unwrap().state.clone().unwrap().terminated.unwrap();
        assert_eq!((state.exit_code, restarts(&pod, "c")), (code, 0), "{name}");
    }
    // By now the first two have been started again; the others must not have been.
    for name in ["onfailure-ok", "never-ok", "never-bad"] {
        let attempts = node.runtime.containers_of(&format!("{name}-node1"));
        assert!(attempts.iter().all(|container| container.attempt == 0), "{attempts:?}");
    }
}

pub async fn a_crashing_container_is_restarted_at_growing_gaps() {
    let node = Node::start().await;
    let shared = node.shared();
    // The container logs when it runs, so that no dead one has to be kept.
    node.put(
        "crash",
        &manifest(
            "crash",
            &format!(
                r#"
containers:
- name: c
  image: localhost/busybox:dev
  command: [sh, -c, "cut -d' ' -f1 /proc/uptime >> /shared/starts; exit 1"]
  volumeMounts: [{{ name: shared, mountPath: /shared }}]
volumes: [{{ name: shared, hostPath: {{ path: "{}" }} }}]
"#,
                shared.display()
            ),
        ),
    );
    let waiting = |reason: &'static str| {
        move |pod: &k8s_openapi::api::core::v1::Pod| {
            let state = container(pod, "c").and_then(|status| status.state.clone());
            state.and_then(|state| state.waiting).and_then(|waiting| waiting.reason).as_deref()
                == Some(reason)
        }
    };
    let pod =
        node.pod_when("crash", "waits in CrashLoopBackOff", waiting("CrashLoopBackOff")).await;
    assert_eq!(phase(&pod), "Running");
    let last = container(&pod, "c").unwrap().last_state.clone().unwrap().terminated.unwrap();
    assert_eq!((last.exit_code, last.reason.as_deref()), (1, Some("Error")));

    let starts = wait_for("four starts", Duration::from_secs(150), || async {
        let text = node.shared_file("starts");
        let starts = text.lines().filter_map(|line| line.parse::<f64>().ok()).collect::<Vec<_>>();
        if starts.len() >= 4 { Ok(starts) } else { Err(format!("{starts:?}")) }
    })
    .await;
    let gaps = starts.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>();
    // Each is over before the next longer one would be, however long a start takes.
    assert!(gaps[0] < 9.9, "the first restart comes at once: {gaps:?}");
    assert!((9.9..19.9).contains(&gaps[1]), "then ten seconds: {gaps:?}");
    assert!((19.9..39.9).contains(&gaps[2]), "then twenty: {gaps:?}");
}

pub async fn a_failing_liveness_probe_restarts_the_container() {
    let node = Node::start().await;
    node.put("live", &manifest("live", r#"
containers:
- name: c
  image: localhost/busybox:dev
  command: [sh, -c, "touch /tmp/alive; sleep 3; rm /tmp/alive; exec sleep 1000"]
  livenessProbe: { exec: { command: [cat, /tmp/alive] }, periodSeconds: 1, failureThreshold: 2, initialDelaySeconds: 1, timeoutSeconds: 30 }
"#));
    node.containers_when("live", "the first runs", WAIT_LIMIT, |found| {
        found.iter().any(|c| c.running)
    })
    .await;
    let pod = node.pod_when("live", "was restarted", |pod| restarts(pod, "c") == 1).await;
    assert_eq!(phase(&pod), "Running");
    let last = container(&pod, "c")
        .unwrap()
        .last_state
        .clone()
        .unwrap()
        .terminated
        .expect("the first ended");
    let lived = last.finished_at.unwrap().0.duration_since(last.started_at.unwrap().0);
    assert!(lived.as_secs() >= 3, "it was killed before it failed: {lived:?}");
    assert_eq!(last.exit_code, 137);
}

pub async fn a_container_over_its_memory_limit_shows_as_oom_killed() {
    let node = Node::start().await;
    let spec = r#"
restartPolicy: Never
containers:
- name: greedy
  image: localhost/busybox:dev
  command: [sh, -c, "exec tail /dev/zero"]
  resources: { limits: { memory: 20Mi } }
- { name: modest, image: "localhost/busybox:dev", command: [sh, -c, "exit 3"], resources: { limits: { memory: 20Mi } } }
"#;
    node.put("hungry", &manifest("hungry", spec));
    let pod = node.pod_when("hungry", "failed", |pod| phase(pod) == "Failed").await;
    let ended = |name: &str| {
        let state = container(&pod, name).unwrap().state.clone().unwrap();
        let terminated = state.terminated.unwrap();
        (terminated.exit_code, terminated.reason.unwrap_or_default())
    };
    assert_eq!(ended("greedy"), (137, "OOMKilled".to_owned()));
    assert_eq!(ended("modest"), (3, "Error".to_owned()));
}

pub async fn a_container_without_its_command_is_not_created_again_and_again() {
    let node = Node::start().await;
    // CRI-O finds out when it creates the container, containerd when it starts it.
    fails_to_start(&node, "/no/such/command", "/no/such/command").await;
}

pub async fn a_container_whose_start_fails_is_not_created_again_and_again() {
    let node = Node::start().await;
    node.runtime.break_starts();
    fails_to_start(&node, "sleep", "starts are broken").await;
}

/// Runs a pod whose only command cannot be started, and counts what that costs.
async fn fails_to_start(node: &Node, command: &str, because: &str) {
    let spec = format!(
        "containers:\n- {{ name: c, image: \"localhost/busybox:dev\", command: [{command}, \"1000\"] }}"
    );
    node.put("wrong", &manifest("wrong", &spec));
    node.event("Failed", because).await;
    // The first restart comes after ten seconds.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let created = node.count("create_container").await;
    assert!(created <= 2, "{created} containers were created");
    let kept = node.runtime.containers_of("wrong-node1");
    assert!(kept.len() <= 2, "{kept:?}");
}
