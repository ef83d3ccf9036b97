//! What containers find in their volumes, and what is left of it afterwards.

use crate::node::{Node, WAIT_LIMIT, manifest};
use crate::support::wait::{holds, wait_for};

/// Every kind of volume whose files the kubelet writes, with a group that owns them.
const CONTENT: &str = r#"
securityContext: { fsGroup: 4242, runAsUser: 1000, runAsGroup: 1000 }
containers:
- name: c
  image: localhost/busybox:dev
  command: [sleep, "1000"]
  resources: { requests: { memory: 64Mi }, limits: { cpu: 500m, memory: 128Mi } }
  env:
  - { name: USER, valueFrom: { secretKeyRef: { name: db, key: user } } }
  - { name: NONE, valueFrom: { configMapKeyRef: { name: none, key: x, optional: true } } }
  envFrom: [{ prefix: APP_, configMapRef: { name: app } }]
  volumeMounts:
  - { name: map, mountPath: /map }
  - { name: secret, mountPath: /secret }
  - { name: pod, mountPath: /pod }
  - { name: all, mountPath: /all }
  - { name: scratch, mountPath: /scratch }
  - { name: ram, mountPath: /ram }
  - { name: nested, mountPath: /map/nested }
  - { name: secret, mountPath: /part/password, subPath: password }
  - { name: scratch, mountPath: /mine, subPathExpr: $(USER)/dir }
volumes:
- { name: map, configMap: { name: app } }
- { name: secret, secret: { secretName: db, defaultMode: 0400 } }
- name: pod
  downwardAPI:
    items:
    - { path: labels, fieldRef: { fieldPath: metadata.labels } }
    - { path: own/label, fieldRef: { fieldPath: "metadata.labels['tier']" } }
    - { path: cpu, resourceFieldRef: { containerName: c, resource: limits.cpu, divisor: 1m } }
- name: all
  projected:
    defaultMode: 0440
    sources:
    - configMap: { name: app, items: [{ key: color, path: deep/color }] }
    - secret: { name: db, items: [{ key: password, path: deep/password, mode: 0400 }] }
    - downwardAPI: { items: [{ path: name, fieldRef: { fieldPath: metadata.name } }] }
- { name: scratch, emptyDir: {} }
- { name: ram, emptyDir: { medium: Memory, sizeLimit: 1Mi } }
- { name: nested, emptyDir: {} }
"#;

async fn content_node() -> Node {
    let node = Node::start_with_objects("syncFrequency: 1s\n").await;
    node.object("configmaps/default/app/color", "blue");
    node.object("configmaps/default/app/shape", "round");
    node.object("secrets/default/db/user", "admin");
    node.object("secrets/default/db/password", "hush");
    let text = manifest("files", CONTENT)
        .replace("  name: files\n", "  name: files\n  labels: { tier: front }\n");
    node.put("files", &text);
    node.ready("files").await;
    node
}

fn sh(node: &Node, script: &str) -> String {
    node.exec("files", "c", &["sh", "-c", script])
        .unwrap_or_else(|error| panic!("{script}: {error}"))
}

/// `mode user group` of each, links followed.
fn stat(node: &Node, paths: &str) -> String {
    sh(node, &format!("stat -L -c '%a %u %g' {paths}"))
}

pub async fn files_are_what_the_objects_and_the_pod_say() {
    let node = content_node().await;
    for (script, expected) in [
        ("cat /map/color /map/shape", "blueround"),
        ("cat /secret/user /secret/password", "adminhush"),
        (
            "cat /pod/labels; echo; cat /pod/own/label; echo; cat /pod/cpu",
            "tier=\"front\"\nfront\n500",
        ),
        ("cat /all/deep/color /all/deep/password /all/name", "bluehushfiles-node1"),
        ("cat /part/password", "hush"),
        ("echo $USER $APP_color $APP_shape [$NONE]", "admin blue round []\n"),
        ("ls /map", "color\nnested\nshape\n"),
        ("readlink /map/color", "..data/color\n"),
        ("id -G", "1000 2000 4242\n"),
    ] {
        assert_eq!(sh(&node, script), expected, "{script}");
    }
    // Readable for the group, read-only, in memory where a secret is.
    assert_eq!(stat(&node, "/map/color /secret/user"), "644 0 4242\n440 0 4242\n");
    assert_eq!(stat(&node, "/all/deep/color /all/deep/password"), "440 0 4242\n440 0 4242\n");
    assert_eq!(stat(&node, "/map /secret /all/deep"), "2777 0 4242\n3777 0 4242\n2755 0 4242\n");
    assert_eq!(stat(&node, "/scratch /ram"), "2777 0 4242\n3777 0 4242\n");
    assert_eq!(sh(&node, "touch /scratch/f /ram/f /mine/f && stat -c %u /scratch/f"), "1000\n");
    assert_eq!(sh(&node, "stat -c %g /scratch/f /ram/f"), "4242\n4242\n");
    assert_eq!(sh(&node, "ls /scratch/admin/dir"), "f\n");
    for path in ["/map", "/secret", "/pod", "/all", "/part/password"] {
        let written = node.exec("files", "c", &["touch", &format!("{path}/x")]);
        assert!(written.is_err(), "{path} is written to");
    }
    let mounts = sh(&node, "grep -E ' /(map|secret|pod|all|ram|scratch) ' /proc/mounts");
    for (at, kind) in
        [("/secret", "tmpfs ro"), ("/pod", "tmpfs ro"), ("/all", "tmpfs ro"), ("/ram", "tmpfs rw")]
    {
        let line = mounts.lines().find(|line| line.contains(&format!(" {at} "))).unwrap();
        assert!(line.contains(&format!("{at} {kind}")), "{line}");
        let size = if at == "/ram" { "size=1024k" } else { "size=131072k" };
        assert!(line.contains(size), "{line}");
    }
    assert!(mounts.lines().any(|l| l.contains(" /map ") && !l.contains("tmpfs")), "{mounts}");
    let filled =
        node.exec("files", "c", &["dd", "if=/dev/zero", "of=/ram/big", "bs=1M", "count=2"]);
    assert!(filled.is_err(), "the size is a bound");
    // Nothing of what a secret says is in the log.
    assert!(!node.kubelet.log().contains("hush"));
    node.remove("files");
    node.gone("files", WAIT_LIMIT).await;
    node.nothing_left().await;
}

pub async fn a_changed_object_reaches_the_running_container() {
    let mut node = content_node().await;
    let shows = async |node: &Node, path: &str, text: &str| {
        wait_for(&format!("{path} says {text}"), WAIT_LIMIT, || async {
            let seen = node.exec("files", "c", &["cat", path]);
            holds(seen.as_deref() == Ok(text), format!("{seen:?}"))
        })
        .await;
    };
    let before = node.runtime.containers();
    node.object("secrets/default/db/password", "whisper");
    node.object("configmaps/default/app/size", "large");
    shows(&node, "/secret/password", "whisper").await;
    shows(&node, "/all/deep/password", "whisper").await;
    shows(&node, "/map/size", "large").await;
    // A part of a volume and a variable stay what they were, as the API says.
    assert_eq!(sh(&node, "cat /part/password"), "hush");
    node.kubelet.respawn();
    node.kubelet.wait_healthy(WAIT_LIMIT).await;
    node.object("configmaps/default/app/size", "small");
    shows(&node, "/map/size", "small").await;
    assert_eq!(sh(&node, "ls -a /secret | grep -c '^[.][.]2'"), "1\n");
    assert_eq!(node.runtime.containers(), before, "nothing was restarted");
    node.remove("files");
    node.gone("files", WAIT_LIMIT).await;
    node.nothing_left().await;
}

pub async fn what_is_missing_is_waited_for_and_named() {
    let node = Node::start_with_objects("").await;
    node.put("volume", &manifest("volume", r#"
containers:
- { name: c, image: "localhost/busybox:dev", command: [sleep, "1000"], volumeMounts: [{ name: s, mountPath: /s }] }
volumes: [{ name: s, secret: { secretName: late } }]
"#));
    node.put(
        "variable",
        &manifest(
            "variable",
            r#"
containers:
- name: c
  image: localhost/busybox:dev
  command: [sleep, "1000"]
  env: [{ name: X, valueFrom: { configMapKeyRef: { name: late, key: x } } }]
"#,
        ),
    );
    node.says("MountVolume.SetUp failed for volume \\\"s\\\" : secret \\\"late\\\" not found")
        .await;
    node.pod_when("variable", "waits for its config map", |pod| {
        let state = crate::node::container(pod, "c").and_then(|c| c.state.clone());
        let waiting = state.and_then(|state| state.waiting).unwrap_or_default();
        waiting.reason.as_deref() == Some("CreateContainerConfigError")
            && waiting.message.as_deref() == Some("configmap \"late\" not found")
    })
    .await;
    node.object("secrets/default/late/x", "1");
    node.object("configmaps/default/late/x", "1");
    node.ready("volume").await;
    node.ready("variable").await;
}

pub async fn without_local_objects_a_pod_that_needs_one_is_refused() {
    let node = Node::start().await;
    node.put("secret", &manifest("secret", r#"
containers:
- { name: c, image: "localhost/busybox:dev", command: [sleep, "1000"], volumeMounts: [{ name: s, mountPath: /s }] }
volumes: [{ name: s, secret: { secretName: db } }]
"#));
    node.says("static pods may not reference secrets").await;
    assert!(node.kubelet.pods().await.unwrap().is_empty());
}

pub async fn a_kubelet_killed_at_any_moment_leaves_what_the_next_one_cleans() {
    // CRI-O holds a request for a sandbox that it still makes for a client which is gone until the
    // deadline, and gives the sandbox to the next request.
    let mut node = Node::start_with_objects("runtimeRequestTimeout: 10s").await;
    node.object("configmaps/default/app/color", "blue");
    node.object("secrets/default/db/user", "admin");
    node.object("secrets/default/db/password", "hush");
    // Killed sooner and later in the start of three pods.
    for (round, delay) in [0_u64, 15, 30, 60, 120, 250].into_iter().enumerate() {
        let names: Vec<_> = (0..3).map(|n| format!("p{round}-{n}")).collect();
        names.iter().for_each(|name| node.put(name, &manifest(name, CONTENT)));
        wait_for("the first directory is made", WAIT_LIMIT, || async {
            holds(!node.left_of_pods().is_empty(), "none")
        })
        .await;
        tokio::time::sleep(std::time::Duration::from_millis(delay)).await;
        node.kubelet.kill();
        if round % 2 == 0 {
            // What was begun is not wanted any more by the time the next kubelet comes.
            names.iter().for_each(|name| node.remove(name));
            node.kubelet.respawn();
            node.kubelet.wait_healthy(WAIT_LIMIT).await;
        } else {
            // It is, is finished, and goes later.
            node.kubelet.respawn();
            node.kubelet.wait_healthy(WAIT_LIMIT).await;
            for name in &names {
                node.ready(name).await;
            }
            names.iter().for_each(|name| node.remove(name));
        }
        node.nothing_left().await;
        wait_for("nothing runs", WAIT_LIMIT, || async {
            let running = node.runtime.running();
            holds(running.is_empty(), format!("{running:?}"))
        })
        .await;
    }
}
