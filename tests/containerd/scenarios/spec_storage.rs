//! Mounts, devices and images, as seen from within.

use std::path::PathBuf;
use std::process::Command;

use crate::node::{Node, WAIT_LIMIT, container, manifest};

fn run(command: &str, args: &[&str]) {
    let status = Command::new(command).args(args).status().unwrap();
    assert!(status.success(), "{command} {args:?}");
}

/// A mount of its own whose peers see what is mounted below it. It goes when the node does.
fn shared_mount(node: &Node) -> PathBuf {
    let path = node.shared();
    let text = path.display().to_string();
    run("mount", &["-t", "tmpfs", "tmpfs", &text]);
    run("mount", &["--make-shared", &text]);
    std::fs::create_dir(path.join("below")).unwrap();
    run("mount", &["-t", "tmpfs", "tmpfs", &format!("{text}/below")]);
    path
}

/// The optional fields of a mount in a container's mountinfo: how it propagates.
fn propagation(node: &Node, pod: &str, container: &str, at: &str) -> String {
    let text = node.sh(pod, container, "cat /proc/1/mountinfo");
    let line = text
        .lines()
        .find(|line| line.split(' ').nth(4) == Some(at))
        .unwrap_or_else(|| panic!("{at} is not mounted: {text}"));
    let fields = line.split(' ').skip(6).take_while(|field| *field != "-");
    fields.map(|field| field.split(':').next().unwrap()).collect::<Vec<_>>().join(" ")
}

pub async fn mounts_propagate_and_are_read_only_as_asked() {
    let node = Node::start().await;
    let shared = shared_mount(&node);
    let host = shared.display();
    node.put(
        "mounts",
        &manifest(
            "mounts",
            &format!(
                r#"
containers:
- name: c
  image: localhost/busybox:dev
  command: [sleep, "1000"]
  securityContext: {{ privileged: true }}
  env: [{{ name: WHO, value: me }}]
  volumeMounts:
  - {{ name: host, mountPath: /private }}
  - {{ name: host, mountPath: /slave, mountPropagation: HostToContainer }}
  - {{ name: host, mountPath: /both, mountPropagation: Bidirectional }}
  - {{ name: host, mountPath: /read, readOnly: true }}
  - {{ name: host, mountPath: /deep, readOnly: true, recursiveReadOnly: IfPossible }}
  - {{ name: scratch, mountPath: /part, subPathExpr: "for/$(WHO)" }}
volumes:
- {{ name: host, hostPath: {{ path: "{host}" }} }}
- {{ name: scratch, emptyDir: {{}} }}
"#
            ),
        ),
    );
    node.put(
        "deep",
        &manifest(
            "deep",
            &format!(
                r#"
containers:
- name: c
  image: localhost/busybox:dev
  command: [sleep, "1000"]
  volumeMounts: [{{ name: host, mountPath: /deep, readOnly: true, recursiveReadOnly: Enabled }}]
volumes: [{{ name: host, hostPath: {{ path: "{host}" }} }}]
"#
            ),
        ),
    );
    let pod = node.ready("mounts").await;
    // Newer runcs share each mount within the container; what the host sees and shows is checked below.
    let is_slave = |path: &str| propagation(&node, "mounts", "c", path).contains("master");
    assert!(!is_slave("/private") && is_slave("/slave"));
    assert_eq!(propagation(&node, "mounts", "c", "/both"), "shared");
    let late = shared.join("late");
    std::fs::create_dir(&late).unwrap();
    run("mount", &["-t", "tmpfs", "tmpfs", &late.display().to_string()]);
    std::fs::write(late.join("note"), "").unwrap();
    assert_eq!(
        node.sh("mounts", "c", "ls /private/late /slave/late /both/late"),
        "/both/late:\nnote\n\n/private/late:\n\n/slave/late:\nnote\n"
    );
    node.sh(
        "mounts",
        "c",
        "mkdir /both/out && mount -t tmpfs tmpfs /both/out && touch /both/out/note",
    );
    assert!(shared.join("out/note").exists(), "what it mounts reaches the host");

    let recursive = node.runtime.features().recursive_read_only_mounts;
    let write = |path: &str| {
        node.sh("mounts", "c", &format!("touch {path}/x 2>/dev/null && echo written; true"))
    };
    for (path, written) in [
        ("/private", true),
        ("/read", false),
        ("/read/below", true),
        ("/deep", false),
        ("/deep/below", !recursive),
        ("/part", true),
    ] {
        assert_eq!(write(path) == "written\n", written, "{path}");
    }
    let uid = pod.metadata.uid.clone().unwrap();
    let root = node.kubelet.settings().dir.join("root");
    let part = root.join(format!("pods/{uid}/volumes/kubernetes.io~empty-dir/scratch/for/me/x"));
    assert!(part.exists());
    let shown = container(&pod, "c").unwrap().volume_mounts.clone().unwrap();
    let of = |path: &str| {
        let mount = shown.iter().find(|mount| mount.mount_path == path).unwrap();
        (mount.read_only, mount.recursive_read_only.as_deref())
    };
    let deep = if recursive { "Enabled" } else { "Disabled" };
    assert_eq!(of("/private"), (None, None));
    assert_eq!(of("/read"), (Some(true), Some("Disabled")));
    assert_eq!(of("/deep"), (Some(true), Some(deep)));

    if recursive {
        node.ready("deep").await;
        let tried = node.sh("deep", "c", "touch /deep/below/y 2>&1; true");
        assert!(tried.contains("Read-only"), "{tried}");
    } else {
        let message = "failed to resolve recursive read-only mode: volume \"host\" requested recursive read-only mode, but it is not supported by the runtime";
        waits(&node, "deep", "CreateContainerConfigError", message).await;
    }
    for name in ["mounts", "deep"] {
        node.remove(name);
        node.gone(name, WAIT_LIMIT).await;
    }
}

/// Waits until the one container of a pod waits for this reason with this in its message.
async fn waits(node: &Node, pod: &str, reason: &str, message: &str) {
    node.pod_when(pod, &format!("waits: {reason} {message}"), |pod| {
        let state = container(pod, "c").and_then(|c| c.state.clone());
        let waiting = state.and_then(|state| state.waiting).unwrap_or_default();
        waiting.reason.as_deref() == Some(reason)
            && waiting.message.unwrap_or_default().contains(message)
    })
    .await;
}

pub async fn devices_and_hidden_paths_are_as_asked() {
    let node = Node::start().await;
    let spec = r#"
containers:
- name: plain
  image: localhost/busybox:dev
  command: [sleep, "1000"]
  volumeMounts: [{ name: device, mountPath: /dev/mine }]
- name: privileged
  image: localhost/busybox:dev
  command: [sleep, "1000"]
  securityContext: { privileged: true }
volumes: [{ name: device, hostPath: { path: /dev/null, type: CharDevice } }]
"#;
    node.put("devices", &manifest("devices", spec));
    let wrong = r#"
containers:
- { name: c, image: "localhost/busybox:dev", command: [sleep, "1000"], volumeMounts: [{ name: device, mountPath: /dev/mine }] }
volumes: [{ name: device, hostPath: { path: /dev/null, type: BlockDevice } }]
"#;
    node.put("wrong", &manifest("wrong", wrong));
    node.ready("devices").await;
    let plain = |script: &str| node.sh("devices", "plain", script);
    let privileged = |script: &str| node.sh("devices", "privileged", script);
    assert_eq!(plain("[ -c /dev/mine ] && echo x > /dev/mine && echo device"), "device\n");
    let count = |text: String| text.lines().count();
    assert!(
        count(privileged("ls /dev")) > count(plain("ls /dev")),
        "a privileged container has the node's devices"
    );
    assert_eq!(plain("[ -c /dev/kmsg ] || echo none"), "none\n");
    // Hidden: a directory is empty, and a file is /dev/null.
    assert_eq!(plain("ls /proc/scsi 2>/dev/null | wc -l"), "0\n");
    assert_eq!(plain("wc -c < /proc/timer_list 2>/dev/null || echo 0"), "0\n");
    let protected = "(echo 1 > /proc/sys/net/ipv4/ip_forward) 2>&1 || true";
    assert!(plain(protected).contains("Read-only file system"));
    assert_eq!(privileged(protected), "");
    node.event("FailedMount", "hostPath type check failed: /dev/null is not a block device").await;
}

pub async fn an_image_is_a_volume() {
    let node = Node::start().await;
    let spec = |mount: &str, reference: &str| {
        format!(
            r#"
containers:
- name: c
  image: localhost/busybox:dev
  command: [sleep, "1000"]
  volumeMounts: [{{ name: tools, mountPath: /tools{mount} }}]
volumes: [{{ name: tools, image: {{ reference: "{reference}", pullPolicy: Never }} }}]
"#
        )
    };
    node.put("whole", &manifest("whole", &spec("", "localhost/busybox:dev")));
    node.put("none", &manifest("none", &spec("", "localhost/none:dev")));
    waits(
        &node,
        "none",
        "ErrImageNeverPull",
        "Container image \"localhost/none:dev\" is not present with pull policy of Never",
    )
    .await;
    if node.runtime.features().version_1 {
        // It does not know the field, and finds a mount without a source.
        waits(&node, "whole", "CreateContainerError", "").await;
        return;
    }
    let part = spec(", subPath: bin", "localhost/busybox:dev");
    node.put("part", &manifest("part", &part));
    let pod = node.ready("whole").await;
    assert_eq!(node.sh("whole", "c", "ls /tools/bin | grep -c busybox"), "1\n");
    let tried = node.sh("whole", "c", "touch /tools/x 2>&1; true");
    assert!(tried.contains("Read-only file system"), "{tried}");
    let shown = container(&pod, "c").unwrap().volume_mounts.clone().unwrap();
    assert_eq!((shown[0].name.as_str(), shown[0].mount_path.as_str()), ("tools", "/tools"));
    node.ready("part").await;
    assert_eq!(node.sh("part", "c", "ls /tools | grep -c busybox"), "1\n");
    for name in ["whole", "part", "none"] {
        node.remove(name);
        node.gone(name, WAIT_LIMIT).await;
    }
}
