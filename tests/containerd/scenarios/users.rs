//! Who a container is, for itself and for the host.

use crate::node::{Node, WAIT_LIMIT, manifest};
use crate::support::scripts::target;
use crate::support::wait::{holds, wait_for};

pub async fn pods_with_users_of_their_own_get_different_ones_and_write_their_volumes() {
    // The machine's own runc may be too old for it.
    if !target().join("tools/containerd2/runc").exists() {
        println!("!!!! no pod with users of its own is run: its runc is not built");
        return;
    }
    let node = Node::start().await;
    for name in ["one", "two"] {
        let spec = r#"
hostUsers: false
containers:
- name: c
  image: localhost/busybox:dev
  command: [sh, -c, "touch /scratch/mine && ls -ln /scratch/mine; cat /proc/self/uid_map; echo done; sleep 1000"]
  volumeMounts: [{ name: scratch, mountPath: /scratch }]
volumes: [{ name: scratch, emptyDir: {} }]
"#;
        node.put(name, &manifest(name, spec));
    }
    let mut first_users = Vec::new();
    for name in ["one", "two"] {
        let pod = node.ready(name).await;
        let id = &node.runtime.containers_of(&format!("{name}-node1"))[0].id;
        let log = wait_for("it has spoken", WAIT_LIMIT, || async {
            let log = node.runtime.crictl(&["logs", id]);
            holds(log.contains("done"), &log).map(|()| log)
        })
        .await;
        let words =
            log.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect::<Vec<_>>();
        // Root inside owns what it makes.
        assert_eq!((words[0][2], words[0][3]), ("0", "0"), "{log}");
        // First user inside, the same outside, how many.
        assert_eq!((words[1][0], words[1][2]), ("0", "65536"), "{log}");
        let uid = pod.metadata.uid.unwrap();
        let dir = node.kubelet.settings().dir.join("root/pods").join(uid);
        let made = dir.join("volumes/kubernetes.io~empty-dir/scratch/mine");
        let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&made).unwrap());
        assert_eq!(owner, 0, "the volume is mapped, not owned by the pod's users");
        first_users.push(words[1][1].parse::<u32>().unwrap());
    }
    assert!(first_users.iter().all(|user| *user >= 65536));
    assert!(first_users[0].abs_diff(first_users[1]) >= 65536);
}
