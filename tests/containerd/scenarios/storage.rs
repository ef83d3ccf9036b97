//! What becomes of volumes over restarts, changes and mistakes.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use crate::node::{Node, WAIT_LIMIT, condition, manifest, restarts};
use crate::scenarios::verbs::report;
use crate::support::dead_fs::DeadFs;
use crate::support::wait::{holds, wait_for};

fn run(command: &str, args: &[&str]) {
    let status = Command::new(command).args(args).status().unwrap();
    assert!(status.success(), "{command} {args:?}");
}

/// A pod that mounts these volumes, each below `/v`.
fn with_volumes(name: &str, volumes: &[(String, String)]) -> String {
    let mounts: String = volumes
        .iter()
        .map(|(volume, _)| format!("  - {{ name: {volume}, mountPath: /v/{volume} }}\n"))
        .collect();
    let volumes: String = volumes
        .iter()
        .map(|(volume, source)| format!("- {{ name: {volume}, {source} }}\n"))
        .collect();
    manifest(
        name,
        &format!(
            "containers:\n- name: c\n  image: localhost/busybox:dev\n  command: [sleep, \"1000\"]\n  volumeMounts:\n{mounts}volumes:\n{volumes}"
        ),
    )
}

fn host_path(path: &Path, kind: &str) -> String {
    format!("hostPath: {{ path: \"{}\", type: \"{kind}\" }}", path.display())
}

pub async fn host_paths_are_what_their_type_says() {
    let node = Node::start().await;
    let dir = node.shared();
    let at = |name: &str| dir.join(name);
    std::fs::create_dir(at("directory")).unwrap();
    std::fs::write(at("file"), "file").unwrap();
    std::os::unix::fs::symlink("directory", at("link")).unwrap();
    let _socket = UnixListener::bind(at("socket")).unwrap();
    run("mknod", &[at("disk").to_str().unwrap(), "b", "7", "0"]);
    let good = [
        ("any", at("made-by-the-runtime"), ""),
        ("directory", at("directory"), "Directory"),
        ("link", at("link"), "Directory"),
        ("made", at("made/deep"), "DirectoryOrCreate"),
        ("file", at("file"), "File"),
        ("made-file", at("made/file"), "FileOrCreate"),
        ("socket", at("socket"), "Socket"),
        ("nothing", "/dev/null".into(), "CharDevice"),
        ("disk", at("disk"), "BlockDevice"),
    ];
    let volumes = good.map(|(name, path, kind)| (name.to_owned(), host_path(&path, kind)));
    node.put("good", &with_volumes("good", &volumes));
    let bad = [
        ("file", "Directory", "a directory"),
        ("file", "DirectoryOrCreate", "a directory"),
        ("none", "Directory", "a directory"),
        ("directory", "File", "a file"),
        ("directory", "FileOrCreate", "a file"),
        ("none", "File", "a file"),
        ("file", "Socket", "a socket file"),
        ("file", "CharDevice", "a character device"),
        ("socket", "BlockDevice", "a block device"),
    ];
    for (number, (name, kind, _)) in bad.iter().enumerate() {
        let volume = [("wrong".to_owned(), host_path(&at(name), kind))];
        let name = format!("bad-{number}");
        node.put(&name, &with_volumes(&name, &volume));
    }
    node.ready("good").await;
    let kinds = node.sh("good", "c", "cd /v && stat -c '%n %F' *");
    assert_eq!(
        kinds.lines().collect::<Vec<_>>(),
        [
            "any directory",
            "directory directory",
            "disk block special file",
            "file regular file",
            "link directory",
            "made directory",
            "made-file regular empty file",
            "nothing character special file",
            "socket socket",
        ]
    );
    assert_eq!(node.sh("good", "c", "stat -c %a /v/made /v/made-file"), "755\n644\n");
    for (name, _, expected) in bad {
        let path = at(name).display().to_string();
        let text = format!(
            "MountVolume.SetUp failed for volume \"wrong\" : hostPath type check failed: {path} is not {expected}"
        );
        node.event("FailedMount", &text).await;
    }
    // What was wrong is put right, and the pod that waited for it starts by itself.
    std::fs::create_dir(at("none")).unwrap();
    node.ready("bad-2").await;
    assert!(!at("none/wrong").exists() && at("file").is_file());
    node.remove("good");
    node.gone("good", WAIT_LIMIT).await;
    for name in ["directory", "file", "made/deep", "made/file", "socket", "disk"] {
        assert!(at(name).exists(), "{name} is the node's");
    }
}

pub async fn an_empty_dir_outlives_its_containers_and_not_its_pod() {
    let mut node = Node::start().await;
    let spec = r#"
containers:
- name: c
  image: localhost/busybox:dev
  command: [sleep, "1000"]
  resources: { limits: { memory: 64Mi } }
  volumeMounts: [{ name: disk, mountPath: /disk }, { name: memory, mountPath: /memory }]
volumes:
- { name: disk, emptyDir: {} }
- { name: memory, emptyDir: { medium: Memory, sizeLimit: 128Mi } }
"#;
    node.put("scratch", &manifest("scratch", spec));
    let pod = node.ready("scratch").await;
    let uid = pod.metadata.uid.unwrap();
    node.sh("scratch", "c", "echo kept | tee /disk/f /memory/f && chmod 700 /disk /memory");
    let first = node.runtime.containers_of("scratch-node1")[0].clone();
    node.runtime.kill(node.runtime.main_process(&first.id));
    node.pod_when("scratch", "was restarted", |pod| {
        restarts(pod, "c") == 1 && condition(pod, "Ready") == Some(true)
    })
    .await;
    let kept = "kept\nkept\n700\n700\n";
    let look = "cat /disk/f /memory/f; stat -c %a /disk /memory";
    assert_eq!(node.sh("scratch", "c", look), kept);
    node.restart_kubelet().await;
    let second = node.runtime.containers_of("scratch-node1").pop().unwrap();
    node.runtime.kill(node.runtime.main_process(&second.id));
    node.pod_when("scratch", "was restarted again", |pod| {
        restarts(pod, "c") == 2 && condition(pod, "Ready") == Some(true)
    })
    .await;
    assert_eq!(node.sh("scratch", "c", look), kept);
    // The least of its own limit and the pod's memory.
    let mount = node.sh("scratch", "c", "grep ' /memory ' /proc/mounts");
    assert!(mount.contains("size=65536k"), "{mount}");
    let volumes = node.root().join("pods").join(&uid).join("volumes");
    assert!(volumes.join("kubernetes.io~empty-dir/disk/f").exists());
    node.remove("scratch");
    node.gone("scratch", WAIT_LIMIT).await;
    node.nothing_left().await;
}

/// Huge pages of the machine, which has them as long as this lives.
struct HugePages(u64);

impl HugePages {
    /// Reserves so many more than there are. Without effect where the kernel has none.
    fn reserve(number: u64) -> Self {
        Self::change(|all| all + number);
        Self(number)
    }

    /// Scenarios run at the same time: of two changes none may be lost.
    fn change(change: impl FnOnce(u64) -> u64) {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _guard = ONE_AT_A_TIME.lock().unwrap();
        let path = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
        if let Ok(all) = std::fs::read_to_string(path) {
            std::fs::write(path, change(all.trim().parse().unwrap()).to_string()).unwrap();
        }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        Self::change(|all| all.saturating_sub(self.0));
    }
}

pub async fn an_empty_dir_may_be_in_huge_pages() {
    // A node without an API server rejects pods that request more than it has.
    let _pages = HugePages::reserve(2);
    let node = Node::start().await;
    let spec = r#"
containers:
- name: c
  image: localhost/busybox:dev
  command: [sleep, "1000"]
  resources: { limits: { hugepages-2Mi: 4Mi, memory: 64Mi } }
  volumeMounts: [{ name: huge, mountPath: /huge }]
volumes: [{ name: huge, emptyDir: { medium: HugePages } }]
"#;
    node.put("huge", &manifest("huge", spec));
    let pages = Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB");
    if !pages.exists() {
        node.event("FailedMount", "volume \"huge\"").await;
        return;
    }
    node.ready("huge").await;
    let mount = node.sh("huge", "c", "grep ' /huge ' /proc/mounts");
    assert!(mount.contains(" hugetlbfs ") && mount.contains("pagesize=2M"), "{mount}");
    node.remove("huge");
    node.gone("huge", WAIT_LIMIT).await;
    node.nothing_left().await;
}

pub async fn a_changed_annotation_is_shown_by_the_pod_that_follows() {
    let node = Node::start().await;
    let spec = r#"
containers:
- name: c
  image: localhost/busybox:dev
  command: [sleep, "1000"]
  volumeMounts: [{ name: about, mountPath: /about }]
volumes:
- name: about
  downwardAPI:
    items:
    - { path: build, fieldRef: { fieldPath: "metadata.annotations['build']" } }
    - { path: uid, fieldRef: { fieldPath: metadata.uid } }
"#;
    let of_build = |build: &str| {
        let named = format!("  name: about\n  annotations: {{ build: {build} }}\n");
        manifest("about", spec).replace("  name: about\n", &named)
    };
    let shows = async |text: &str| {
        wait_for(&format!("the pod shows {text}"), WAIT_LIMIT, || async {
            let seen = node.try_exec("about", "c", &["cat", "/about/build"]);
            holds(seen.as_deref() == Ok(text), format!("{seen:?}"))
        })
        .await;
    };
    node.put("about", &of_build("one"));
    shows("one").await;
    let first = node.ready("about").await.metadata.uid.unwrap();
    assert_eq!(node.sh("about", "c", "cat /about/uid"), first);
    node.put("about", &of_build("two"));
    shows("two").await;
    let second = node.ready("about").await.metadata.uid.unwrap();
    assert_ne!(first, second, "an edit makes another pod");
    assert_eq!(node.sh("about", "c", "cat /about/uid"), second);
    let old = node.root().join("pods").join(first);
    wait_for("the old pod's directory goes", WAIT_LIMIT, || async {
        holds(!old.exists(), old.display().to_string())
    })
    .await;
}

pub async fn an_immutable_object_stays_for_a_pod_what_it_was() {
    let mut node = Node::start_with_objects("syncFrequency: 1s\n").await;
    node.object("configmaps/default/fixed/color", "blue");
    node.object("configmaps/default/fixed/..immutable", "");
    node.object("configmaps/default/moving/color", "blue");
    let spec = r#"
containers:
- name: c
  image: localhost/busybox:dev
  command: [sleep, "1000"]
  volumeMounts: [{ name: fixed, mountPath: /fixed }, { name: moving, mountPath: /moving }]
volumes:
- { name: fixed, configMap: { name: fixed } }
- { name: moving, configMap: { name: moving } }
"#;
    node.put("before", &manifest("before", spec));
    node.ready("before").await;
    for (color, restart) in [("red", false), ("green", true)] {
        node.object("configmaps/default/fixed/color", color);
        node.object("configmaps/default/moving/color", color);
        if restart {
            node.restart_kubelet().await;
        }
        // The pod was synced after both had changed.
        wait_for("the other one follows", WAIT_LIMIT, || async {
            let seen = node.exec("before", "c", &["cat", "/moving/color"]);
            holds(seen.as_deref() == Ok(color), format!("{seen:?}"))
        })
        .await;
        let script = "cat /fixed/color; ls /fixed";
        assert_eq!(node.sh("before", "c", script), "bluecolor\n");
    }
    node.put("after", &manifest("after", spec));
    node.ready("after").await;
    assert_eq!(node.sh("after", "c", "cat /fixed/color"), "green");
}

pub async fn what_is_mounted_in_an_orphans_directory_is_left_alone() {
    let mut node = Node::start().await;
    node.kubelet.kill();
    let pods = node.root().join("pods");
    let foreign = pods.join("6a1f0000-0000-4000-8000-000000000001");
    let ours = pods.join("6a1f0000-0000-4000-8000-000000000002");
    let export = foreign.join("volumes/kubernetes.io~rbd/export");
    let stray = pods.join("6a1f0000-0000-4000-8000-000000000003/containers/c");
    let scratch = ours.join("volumes/kubernetes.io~empty-dir/scratch");
    for directory in [&export, &stray, &scratch] {
        std::fs::create_dir_all(directory).unwrap();
    }
    // Without a record of where it came from, a directory may be of a pod of the API server and stays.
    let records = node.root().join("journal");
    for number in 1..=3 {
        let record = records.join(format!("6a1f0000-0000-4000-8000-00000000000{number}.json"));
        std::fs::write(record, r#"{"version":1,"origin":{"source":"file"}}"#).unwrap();
    }
    for mounted in [&export, &stray] {
        let at = mounted.to_str().unwrap();
        run("mount", &["-t", "tmpfs", "tmpfs", at]);
        std::fs::write(mounted.join("data"), "precious").unwrap();
    }
    // A link out of the volume is removed and not followed.
    let outside = node.shared();
    std::fs::write(outside.join("data"), "precious").unwrap();
    std::os::unix::fs::symlink(&outside, scratch.join("out")).unwrap();
    node.kubelet.respawn();
    node.kubelet.wait_healthy(WAIT_LIMIT).await;
    wait_for("the orphan's directory goes", WAIT_LIMIT, || async {
        holds(!ours.exists(), "it is there")
    })
    .await;
    wait_for("it is said why the others stay", WAIT_LIMIT, || async {
        let log = node.kubelet.log();
        let report = |path: &Path| log.contains(&format!("{} is still mounted", path.display()));
        holds(report(&export) && report(&stray), log)
    })
    .await;
    for kept in [export, stray, outside] {
        let data = std::fs::read_to_string(kept.join("data"));
        assert_eq!(data.unwrap(), "precious", "{}", kept.display());
    }
}

pub async fn a_pod_starts_once_its_manifest_no_longer_names_a_host_path_that_hangs() {
    let node = Node::start().await;
    let Some(dead) = DeadFs::mount(&node.dir().join("dead")) else {
        return;
    };
    let volume = ("dead".to_owned(), host_path(dead.path(), "Directory"));
    node.put("web", &with_volumes("web", &[volume]));
    wait_for("its volume hangs", WAIT_LIMIT, || async {
        let report = report(&node, &["explain", "web"])?;
        holds(report["doing"]["step"] == "setting up volumes", report.to_string())
    })
    .await;
    node.put("web", &with_volumes("web", &[("scratch".to_owned(), "emptyDir: {}".to_owned())]));
    node.ready("web").await;
    node.remove("web");
    node.gone("web", WAIT_LIMIT).await;
}
