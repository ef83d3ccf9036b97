//! The output of the subcommands, compared with crictl.

use std::process::Command;

use jiff::Timestamp;
use serde_json::Value;

use crate::node::{Node, WAIT_LIMIT, manifest};
use crate::support::wait::{holds, wait_for};

/// What a verb prints as JSON.
pub(super) fn report(node: &Node, args: &[&str]) -> Result<Value, String> {
    let settings = node.kubelet.settings();
    let output = Command::new(&settings.program)
        .args(args)
        .args(["-o", "json", "--hostname-override", "node1"])
        .arg("--root-dir")
        .arg(settings.dir.join("root"))
        .arg("--config")
        .arg(settings.dir.join("config.yaml"))
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn inspect(node: &Node, word: &str, id: &str) -> Value {
    let text = node.runtime.crictl(&[word, "-o", "json", id]);
    serde_json::from_str(&text).unwrap()
}

fn time(value: &Value) -> Timestamp {
    value.as_str().unwrap().parse().unwrap()
}

pub async fn root_in_a_container_that_sees_the_socket_is_refused() {
    let node = Node::start().await;
    // All it needs is a mount, and that may be read-only.
    let spec = r#"
containers:
- name: main
  image: localhost/busybox:dev
  command: [sleep, "1000"]
  volumeMounts: [{ name: host, mountPath: /host, readOnly: true }]
volumes: [{ name: host, hostPath: { path: / } }]
"#;
    node.put("curious", &manifest("curious", spec));
    node.ready("curious").await;
    report(&node, &["pods"]).expect("it is answered beside the kubelet");
    let settings = node.kubelet.settings();
    let (program, root) = (settings.program.display(), node.root());
    let script = format!(
        "chroot /host {program} pods --root-dir {} --hostname-override node1 2>&1; echo ended: $?",
        root.display()
    );
    let said = node.sh("curious", "main", &script);
    assert!(said.contains("mount and pid namespaces"), "{said}");
    assert!(!said.contains("ended: 0"), "{said}");
}

const CRASHING: &str = r#"
containers:
- { name: main, image: "localhost/busybox:dev", command: [sh, -c, "exit 3"] }
"#;

const WEB: &str = r#"
containers:
- name: main
  image: localhost/busybox:dev
  command: [sleep, "1000"]
  env: [{ name: GREETING, value: hello }, { name: NODE, valueFrom: { fieldRef: { fieldPath: spec.nodeName } } }]
  resources: { limits: { memory: 64Mi } }
  volumeMounts: [{ name: scratch, mountPath: /scratch }]
  securityContext: { runAsUser: 1000, runAsGroup: 1000 }
volumes: [{ name: scratch, emptyDir: {} }]
"#;

pub async fn pods_are_shown_as_crictl_has_them() {
    let node = Node::start().await;
    node.put("web", &manifest("web", WEB));
    node.put("bad", &manifest("bad", CRASHING));
    node.ready("web").await;
    let row = |name: &str| {
        let report = report(&node, &["pods"])?;
        let pods = report["pods"].as_array().cloned().unwrap_or_default();
        let found = pods.into_iter().find(|pod| pod["name"] == name);
        found.ok_or_else(|| format!("{name} is not shown"))
    };
    let bad = wait_for("bad backs off", WAIT_LIMIT, || async {
        let bad = row("bad-node1")?;
        holds(bad["status"] == "CrashLoopBackOff", bad.to_string()).map(|()| bad)
    })
    .await;
    assert_eq!(bad["lastReason"], "Error (3)");
    let newest = node.runtime.containers_of("bad-node1").pop().unwrap();
    assert_eq!(bad["restarts"].as_u64(), Some(newest.attempt));
    let web = row("web-node1").unwrap();
    assert_eq!(
        (&web["status"], web["ready"].as_u64(), web["containers"].as_u64()),
        (&Value::from("Running"), Some(1), Some(1))
    );
    let pods: Value = serde_json::from_str(&node.runtime.crictl(&["pods", "-o", "json"])).unwrap();
    let items = pods["items"].as_array().unwrap();
    let sandbox = items.iter().find(|item| item["metadata"]["name"] == "web-node1").unwrap();
    assert_eq!(sandbox["metadata"]["uid"], web["uid"]);
    let sandbox = inspect(&node, "inspectp", sandbox["id"].as_str().unwrap());
    assert_eq!(sandbox["status"]["network"]["ip"], web["ip"]);
}

pub async fn the_next_start_of_a_crashing_container_comes_when_explain_says() {
    let node = Node::start().await;
    node.put("bad", &manifest("bad", CRASHING));
    let until = wait_for("a back-off of 10s is explained", WAIT_LIMIT, || async {
        let report = report(&node, &["explain", "bad"])?;
        let wait = &report["waits"][0];
        let held = wait["what"] == "its restart back-off of 10s";
        holds(held, report["summary"].to_string()).map(|()| time(&wait["until"]))
    })
    .await;
    let found = node
        .containers_when("bad", "the third one was started", WAIT_LIMIT, |found| {
            found.iter().any(|container| container.attempt == 2)
        })
        .await;
    let third = found.iter().find(|container| container.attempt == 2);
    let times = wait_for("it was started", WAIT_LIMIT, || async {
        let times = node.runtime.times(&third.unwrap().id);
        holds(times.started > Timestamp::UNIX_EPOCH, "not yet").map(|()| times)
    })
    .await;
    let late = times.started.as_millisecond() - until.as_millisecond();
    // Starting takes the runtime as long as it takes, but not another back-off.
    assert!((-200..10_000).contains(&late), "it was started {late} ms late");
    // It is reported a moment after it is done.
    wait_for("both starts are reported", WAIT_LIMIT, || async {
        let report = report(&node, &["explain", "bad"])?;
        let pod_history = report["history"].as_array().unwrap();
        let starts = pod_history
            .iter()
            .filter(|one| one["action"] == "StartContainer" && one["why"] == "exited with code 3");
        let counted: u64 = starts.map(|one| one["count"].as_u64().unwrap()).sum();
        holds(counted == 2, format!("{pod_history:#?}"))
    })
    .await;
}
