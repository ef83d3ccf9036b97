//! Variables from files, last words and stop signals.

use k8s_openapi::api::core::v1::Pod;

use crate::flavour::Flavour;
use crate::node::{Node, WAIT_LIMIT, container, manifest, phase};
use crate::support::wait::{holds, wait_for};

pub async fn variables_come_from_a_file_that_an_init_container_wrote() {
    let node = Node::start().await;
    let spec = |writes: &str, key: &str| {
        format!(
            r#"
restartPolicy: Never
initContainers:
- name: writer
  image: localhost/busybox:dev
  command: [sh, -c, "printf '%b' \"$TEXT\" > /out/settings.env; ln -s /settings.env /out/link; ln -s /etc/passwd /out/escape"]
  env: [{{ name: TEXT, value: {writes} }}]
  volumeMounts: [{{ name: shared, mountPath: /out }}]
containers:
- name: c
  image: localhost/busybox:dev
  command: [sleep, "1000"]
  env:
  - {{ name: GREETING, valueFrom: {{ fileKeyRef: {{ volumeName: shared, path: settings.env, key: {key} }} }} }}
  - {{ name: "my.odd name-1", value: "[$(GREETING)]" }}
  - {{ name: LINKED, valueFrom: {{ fileKeyRef: {{ volumeName: shared, path: link, key: SECOND }} }} }}
  - {{ name: ABSENT, valueFrom: {{ fileKeyRef: {{ volumeName: shared, path: settings.env, key: NONE, optional: true }} }} }}
  - {{ name: ESCAPED, valueFrom: {{ fileKeyRef: {{ volumeName: shared, path: escape, key: root, optional: true }} }} }}
volumes: [{{ name: shared, emptyDir: {{}} }}]
"#
        )
    };
    let good = r##""# settings\\nFIRST='hello\\nworld' # two lines\\nSECOND='$FIRST'\\n""##;
    for (name, writes, key) in [
        ("good", good, "FIRST"),
        ("nokey", good, "THIRD"),
        ("broken", r#""FIRST=secret\\n""#, "FIRST"),
    ] {
        node.put(name, &manifest(name, &spec(writes, key)));
    }
    node.ready("good").await;
    let all = node.sh("good", "c", "tr '\\0' '|' < /proc/1/environ");
    for expected in ["GREETING=hello\nworld|", "my.odd name-1=[hello\nworld]|", "LINKED=$FIRST|"] {
        assert!(all.contains(expected), "{expected}: {all}");
    }
    assert!(!all.contains("ABSENT") && !all.contains("ESCAPED"), "{all}");
    for (name, message) in [
        ("nokey", "environment variable key \"THIRD\" not found in file \""),
        (
            "broken",
            "couldn't parse env file: invalid environment variable format at line 1: value must be enclosed in single quotes",
        ),
    ] {
        let pod = node
            .pod_when(name, "waits", |pod| waiting(pod).0 == "CreateContainerConfigError")
            .await;
        let text = waiting(&pod).1;
        assert!(text.contains(message) && !text.contains("secret"), "{text}");
    }
}

fn waiting(pod: &Pod) -> (String, String) {
    let state = container(pod, "c").and_then(|c| c.state.clone());
    let waiting = state.and_then(|state| state.waiting).unwrap_or_default();
    (waiting.reason.unwrap_or_default(), waiting.message.unwrap_or_default())
}

pub async fn last_words_are_kept_by_policy() {
    let node = Node::start().await;
    let spec = r#"
restartPolicy: Never
containers:
- { name: file, image: "localhost/busybox:dev", command: [sh, -c, "echo logged; printf written > /dev/termination-log; exit 3"] }
- { name: own, image: "localhost/busybox:dev", command: [sh, -c, "printf own > /tmp/last/words; exit 3"], terminationMessagePath: /tmp/last/words }
- { name: silent, image: "localhost/busybox:dev", command: [sh, -c, "echo logged; exit 3"] }
- { name: fallback, image: "localhost/busybox:dev", command: [sh, -c, "for i in $(seq 100); do echo line $i; done; exit 3"], terminationMessagePolicy: FallbackToLogsOnError }
- { name: prefers, image: "localhost/busybox:dev", command: [sh, -c, "echo logged; printf written > /dev/termination-log; exit 3"], terminationMessagePolicy: FallbackToLogsOnError }
- { name: well, image: "localhost/busybox:dev", command: [sh, -c, "echo logged"], terminationMessagePolicy: FallbackToLogsOnError }
"#;
    node.put("words", &manifest("words", spec));
    let long = r#"
restartPolicy: Never
containers: [{ name: c, image: "localhost/busybox:dev", command: [sh, -c, "(head -c 5000 /dev/zero | tr '\\0' x; printf end) > /dev/termination-log; exit 3"] }]
"#;
    node.put("long", &manifest("long", long));
    let ended = |pod: &Pod| phase(pod) == "Failed";
    let pod = node.pod_when("words", "has ended", ended).await;
    let message = |pod: &Pod, name: &str| {
        let state = container(pod, name).unwrap().state.clone().unwrap();
        state.terminated.unwrap().message.unwrap_or_default()
    };
    assert_eq!(message(&pod, "file"), "written");
    assert_eq!(message(&pod, "own"), "own");
    assert_eq!(message(&pod, "silent"), "");
    assert_eq!(message(&pod, "prefers"), "written");
    assert_eq!(message(&pod, "well"), "", "only on error");
    let tail = message(&pod, "fallback");
    assert!(tail.starts_with("line 21\n") && tail.ends_with("line 100\n"), "{tail}");
    let pod = node.pod_when("long", "has ended", ended).await;
    let text = message(&pod, "c");
    assert_eq!((text.len(), text.ends_with("xend")), (4096, true));
}

pub async fn the_signal_that_ends_a_container_can_be_chosen() {
    let node = Node::start().await;
    let spec = format!(
        r#"
os: {{ name: linux }}
containers:
- name: c
  image: localhost/busybox:dev
  command: [sh, -c, "trap 'echo TERM > /shared/end; exit 0' TERM; trap 'echo USR1 > /shared/end; exit 0' USR1; touch /shared/up; while true; do sleep 0.05; done"]
  lifecycle: {{ stopSignal: SIGUSR1 }}
  volumeMounts: [{{ name: shared, mountPath: /shared }}]
volumes: [{{ name: shared, hostPath: {{ path: "{}" }} }}]
"#,
        node.shared().display()
    );
    node.put("signal", &manifest("signal", &spec));
    let pod = node.ready("signal").await;
    wait_for("it listens", WAIT_LIMIT, || async {
        holds(node.shared().join("up").exists(), "not yet")
    })
    .await;
    let shown = container(&pod, "c").unwrap().stop_signal.clone();
    node.remove("signal");
    node.gone("signal", WAIT_LIMIT).await;
    // Containerd 1 does not know it, and CRI-O does not report it.
    let expected = if node.runtime.features().version_1 {
        (None, "TERM\n")
    } else if Flavour::current().is_crio() {
        (None, "USR1\n")
    } else {
        (Some("SIGUSR1"), "USR1\n")
    };
    assert_eq!((shown.as_deref(), node.shared_file("end").as_str()), expected);
}
