//! Users, capabilities, profiles and namespaces, as seen from within.

use std::collections::HashMap;

use crate::node::{Node, WAIT_LIMIT, container, manifest};

/// Refuses `mkdir` and nothing else.
const NO_MKDIR: &str = r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]}"#;

/// `/proc/1/status` of a container: its own first process.
fn process(node: &Node, pod: &str, container: &str) -> HashMap<String, String> {
    fields(&node.sh(pod, container, "cat /proc/1/status"))
}

fn fields(text: &str) -> HashMap<String, String> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    lines.map(|(name, value)| (name.to_owned(), words(value))).collect()
}

pub async fn users_groups_capabilities_and_profiles_reach_the_process() {
    let node = Node::start_with("seccompDefault: true\n").await;
    let profiles = node.kubelet.settings().dir.join("root/seccomp/profiles");
    std::fs::create_dir_all(&profiles).unwrap();
    std::fs::write(profiles.join("no-mkdir.json"), NO_MKDIR).unwrap();
    let bound = r#"
securityContext: { runAsUser: 1000, runAsGroup: 3000, fsGroup: 2000, supplementalGroups: [4000, 5000], runAsNonRoot: true }
containers:
- name: bound
  image: localhost/busybox:dev
  command: [sleep, "1000"]
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: { drop: [ALL], add: [NET_BIND_SERVICE] }
  volumeMounts: [{ name: scratch, mountPath: /scratch }]
- name: root
  image: localhost/busybox:dev
  command: [sleep, "1000"]
  securityContext: { runAsUser: 0, runAsNonRoot: false, capabilities: { add: [SYS_TIME], drop: [CHOWN] }, seccompProfile: { type: Unconfined } }
- name: profiled
  image: localhost/busybox:dev
  command: [sleep, "1000"]
  securityContext: { seccompProfile: { type: Localhost, localhostProfile: profiles/no-mkdir.json } }
  volumeMounts: [{ name: scratch, mountPath: /scratch }]
- name: privileged
  image: localhost/busybox:dev
  command: [sleep, "1000"]
  securityContext: { runAsUser: 0, runAsNonRoot: false, privileged: true }
volumes: [{ name: scratch, emptyDir: {} }]
"#;
    node.put("secure", &manifest("secure", bound));
    let rooted = r#"
securityContext: { runAsNonRoot: true }
containers: [{ name: c, image: "localhost/busybox:dev", command: [sleep, "1000"] }]
"#;
    node.put("rooted", &manifest("rooted", rooted));
    let missing = r#"
containers:
- { name: c, image: "localhost/busybox:dev", command: [sleep, "1000"], securityContext: { seccompProfile: { type: Localhost, localhostProfile: none.json } } }
"#;
    node.put("missing", &manifest("missing", missing));
    node.ready("secure").await;

    let bound = process(&node, "secure", "bound");
    assert_eq!(bound["Uid"], "1000 1000 1000 1000");
    assert_eq!(bound["Gid"], "3000 3000 3000 3000");
    let mut groups: Vec<&str> = bound["Groups"].split(' ').collect();
    groups.retain(|group| *group != "3000");
    assert_eq!(groups, ["2000", "4000", "5000"]);
    assert_eq!(bound["NoNewPrivs"], "1");
    assert_eq!(bound["Seccomp"], "2", "the node's default");
    assert_eq!(bound["CapBnd"], "0000000000000400");
    assert_eq!(bound["CapEff"], "0000000000000000", "not root");
    let tried =
        node.sh("secure", "bound", "touch /x 2>&1; touch /scratch/x && stat -c %g /scratch/x");
    assert!(tried.contains("Read-only file system"), "{tried}");
    assert!(tried.ends_with("\n2000\n"), "{tried}");

    let root = process(&node, "secure", "root");
    assert_eq!((root["Uid"].as_str(), root["NoNewPrivs"].as_str()), ("0 0 0 0", "0"));
    assert_eq!(root["Seccomp"], "0");
    let capabilities = u64::from_str_radix(&root["CapEff"], 16).unwrap();
    let has = |bit: u32| capabilities >> bit & 1 == 1;
    assert!(has(25) && !has(0) && has(1), "SYS_TIME, no CHOWN, DAC_OVERRIDE: {capabilities:x}");

    assert_eq!(process(&node, "secure", "profiled")["Seccomp"], "2");
    let tried =
        node.sh("secure", "profiled", "mkdir /scratch/d 2>&1; touch /scratch/f && echo made");
    assert!(tried.contains("Operation not permitted") && tried.ends_with("made\n"), "{tried}");

    let privileged = process(&node, "secure", "privileged");
    let own = fields(&std::fs::read_to_string("/proc/self/status").unwrap());
    assert_eq!(privileged["CapEff"], own["CapEff"]);
    assert_eq!(privileged["Seccomp"], "0");

    let waits = |reason: &'static str| {
        move |pod: &k8s_openapi::api::core::v1::Pod| {
            let state = container(pod, "c").and_then(|c| c.state.clone());
            let waiting = state.and_then(|state| state.waiting);
            waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some(reason))
        }
    };
    let pod = node.pod_when("rooted", "is refused", waits("CreateContainerConfigError")).await;
    let uid = pod.metadata.uid.clone().unwrap();
    let state = container(&pod, "c").unwrap().state.clone().unwrap();
    assert_eq!(
        state.waiting.unwrap().message.unwrap(),
        format!(
            "container has runAsNonRoot and image will run as root (pod: \"rooted-node1_default({uid})\", container: c)"
        )
    );
    node.pod_when("missing", "is refused", waits("CreateContainerError")).await;
}

pub async fn namespaces_are_shared_as_asked() {
    let node = Node::start().await;
    let two = r#"
containers:
- { name: one, image: "localhost/busybox:dev", command: [sleep, "1234"] }
- { name: two, image: "localhost/busybox:dev", command: [sleep, "5678"] }
"#;
    for (name, spec) in [
        ("apart", ""),
        ("together", "shareProcessNamespace: true"),
        ("host", "hostNetwork: true\nhostPID: true\nhostIPC: true"),
    ] {
        node.put(name, &manifest(name, &format!("{spec}{two}")));
    }
    for name in ["apart", "together", "host"] {
        node.ready(name).await;
    }
    let of_container = |pod: &str, container: &str, kind: &str| {
        node.sh(pod, container, &format!("readlink /proc/self/ns/{kind}")).trim().to_owned()
    };
    let of_host = |kind: &str| {
        let link = std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
        link.display().to_string()
    };
    for (pod, kind, with_each_other, with_host) in [
        ("apart", "pid", false, false),
        ("apart", "ipc", true, false),
        ("apart", "net", true, false),
        ("apart", "uts", true, false),
        ("apart", "mnt", false, false),
        ("together", "pid", true, false),
        ("host", "pid", true, true),
        ("host", "ipc", true, true),
        ("host", "net", true, true),
        ("host", "mnt", false, false),
    ] {
        let (one, two) = (of_container(pod, "one", kind), of_container(pod, "two", kind));
        assert_eq!(one == two, with_each_other, "{pod} {kind}");
        assert_eq!(one == of_host(kind), with_host, "{pod} {kind}");
    }
    let processes = node.sh("together", "one", "ps -o args");
    for command in ["/pause", "sleep 1234", "sleep 5678"] {
        assert!(processes.contains(command), "{command}: {processes}");
    }
    let alone = node.sh("apart", "one", "ps -o args");
    assert!(!alone.contains("5678"), "{alone}");
    assert_eq!(node.sh("apart", "one", "tr '\\0' ' ' < /proc/1/cmdline"), "sleep 1234 ");
}

pub async fn a_pod_with_ids_of_its_own_keeps_them() {
    let mut node = Node::start().await;
    let spec = r#"
hostUsers: false
securityContext: { fsGroup: 2000 }
containers:
- name: c
  image: localhost/busybox:dev
  command: [sh, -c, "echo from within > /scratch/file; exec sleep 1000"]
  securityContext: { procMount: Unmasked }
  volumeMounts: [{ name: scratch, mountPath: /scratch }]
volumes: [{ name: scratch, emptyDir: {} }]
"#;
    for name in ["first", "second"] {
        node.put(name, &manifest(name, spec));
    }
    let root = node.kubelet.settings().dir.join("root");
    if !node.runtime.features().user_namespaces {
        println!("!!!! this runtime has no user namespaces: only the refusal is tested");
        node.event(
            "FailedCreatePodSandBox",
            "Failed to create pod sandbox: can't set `spec.hostUsers: false`, runtime does not support user namespaces",
        )
        .await;
        assert!(node.runtime.sandboxes().is_empty());
        return;
    }
    let mut maps = Vec::new();
    for name in ["first", "second"] {
        let pod = node.ready(name).await;
        let map = node.sh(name, "c", "cat /proc/1/uid_map");
        let words: Vec<u32> = map.split_whitespace().map(|word| word.parse().unwrap()).collect();
        let [0, host, 65536] = words[..] else {
            panic!("{map}");
        };
        assert!(host >= 65536 && host % 65536 == 0, "{map}");
        assert_eq!(node.sh(name, "c", "cat /proc/1/gid_map"), map);
        let uid = pod.metadata.uid.unwrap();
        let record = std::fs::read_to_string(root.join(format!("pods/{uid}/userns"))).unwrap();
        assert_eq!(
            record,
            format!(
                r#"{{"uidMappings":[{{"hostId":{host},"containerId":0,"length":65536}}],"gidMappings":[{{"hostId":{host},"containerId":0,"length":65536}}]}}"#
            )
        );
        // Root within, and files on disk keep the owners that the pod gives them.
        assert_eq!(
            node.sh(name, "c", "id -u; stat -c %u:%g /scratch/file /etc/hosts"),
            "0\n0:2000\n0:0\n"
        );
        let file = root.join(format!("pods/{uid}/volumes/kubernetes.io~empty-dir/scratch/file"));
        use std::os::unix::fs::MetadataExt as _;
        assert_eq!(std::fs::metadata(file).unwrap().uid(), 0);
        maps.push(map);
    }
    assert_ne!(maps[0], maps[1], "each pod has ids of its own");
    node.restart_kubelet().await;
    // Killed, the container comes back in the same sandbox and with the same ids.
    let id = node.runtime.containers_of("first-node1")[0].id.clone();
    let _ = node.runtime.try_crictl(&["stop", "-t", "0", &id]);
    node.pod_when("first", "has restarted", |pod| crate::node::restarts(pod, "c") >= 1).await;
    node.ready("first").await;
    assert_eq!(node.sh("first", "c", "cat /proc/1/uid_map"), maps[0]);
    for name in ["first", "second"] {
        node.remove(name);
        node.gone(name, WAIT_LIMIT).await;
    }
}
