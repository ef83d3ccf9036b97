use super::*;
use crate::base::chain;
use crate::host::MountEntry;
use serde_json::{Value, json};
use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::Path,
};

/// Pretends to mount: records what was asked and shows it in the list.
#[derive(Clone, Default)]
struct FakeMounter(Arc<Mutex<Fake>>);

#[derive(Default)]
struct Fake {
    mounts: Vec<MountEntry>,
    tmpfs: Vec<(PathBuf, u64)>,
    bound: Vec<(PathBuf, PathBuf)>,
    unmounted: Vec<PathBuf>,
    busy: bool,
    lists: usize,
}

impl FakeMounter {
    fn add(&self, point: &Path, fs_type: &str) {
        self.0.lock().mounts.push(MountEntry {
            mount_point: point.into(),
            root: "/".into(),
            fs_type: fs_type.into(),
            source: fs_type.into(),
        });
    }
}

impl Mounter for FakeMounter {
    fn list(&self) -> io::Result<Vec<MountEntry>> {
        let mut fake = self.0.lock();
        fake.lists += 1;
        Ok(fake.mounts.clone())
    }

    fn tmpfs(&self, target: &Path, size_bytes: u64, _mode: u32) -> io::Result<()> {
        self.0.lock().tmpfs.push((target.into(), size_bytes));
        self.add(target, "tmpfs");
        Ok(())
    }

    fn bind(&self, source: &Path, target: &Path) -> io::Result<()> {
        let real = fs::read_link(source)?;
        self.0.lock().bound.push((real, target.into()));
        self.add(target, "ext4");
        Ok(())
    }

    fn unmount(&self, target: &Path) -> io::Result<()> {
        let mut fake = self.0.lock();
        if fake.busy {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        if let Some(at) = fake.mounts.iter().rposition(|m| m.mount_point == target) {
            fake.mounts.remove(at);
            fake.unmounted.push(target.into());
        }
        Ok(())
    }
}

struct Node {
    _dir: tempfile::TempDir,
    base: PathBuf,
    mounter: FakeMounter,
    manager: VolumeManager,
}

fn node() -> Node {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    let mounter = FakeMounter::default();
    Node {
        manager: manager(&base, &mounter),
        mounter,
        base,
        _dir: dir,
    }
}

fn manager(base: &Path, mounter: &FakeMounter) -> VolumeManager {
    let facts = NodeFacts {
        allocatable_memory_bytes: 1 << 30,
        ..NodeFacts::default()
    };
    let root = KubeletRoot::create(&base.join("kubelet")).unwrap();
    VolumeManager::new(root, Arc::new(facts), mounter.clone())
}

/// A pod whose one container mounts every volume.
fn pod(volumes: Value) -> Pod {
    let names = volumes.as_array().unwrap().iter();
    let mounts: Vec<Value> = names
        .map(|v| json!({"name": v["name"], "mountPath": "/x"}))
        .collect();
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
        "spec": {"volumes": volumes, "containers": [{"name": "c", "volumeMounts": mounts}]},
    }))
    .unwrap()
}

fn host_path(path: &Path, kind: &str) -> Value {
    json!([{"name": "h", "hostPath": {"path": path, "type": kind}}])
}

#[test]
fn a_name_that_is_not_one_path_component_is_refused() {
    for bad in ["", ".", "..", "a/b", "/", "../x", "a\0b", &"x".repeat(256)] {
        assert!(component(bad).is_err(), "{bad:?}");
    }
    for good in ["a", "a.b", "...", "ns_name_uid", "ä"] {
        assert_eq!(component(good).unwrap(), good);
    }
}

#[tokio::test]
async fn an_empty_dir_is_open_to_all_and_keeps_its_content_over_a_restart_of_the_kubelet() {
    let node = node();
    let pod = pod(json!([{"name": "v", "emptyDir": {}}]));
    let paths = node.manager.prepare(&pod).await.unwrap();
    let volume = &paths["v"];
    let expected = node
        .base
        .join("kubelet/pods/u1/volumes/kubernetes.io~empty-dir/v");
    assert_eq!(volume.host_path, expected);
    assert!(volume.managed);
    assert_eq!(fs::metadata(&expected).unwrap().mode() & 0o7777, 0o777);
    fs::write(expected.join("data"), "x").unwrap();
    fs::set_permissions(&expected, fs::Permissions::from_mode(0o700)).unwrap();

    let again = manager(&node.base, &node.mounter);
    again.prepare(&pod).await.unwrap();
    assert_eq!(fs::read(expected.join("data")).unwrap(), b"x");
    let mode = fs::metadata(&expected).unwrap().mode() & 0o7777;
    assert_eq!(mode, 0o700, "what the pod did to its volume stays");
}

#[tokio::test]
async fn an_empty_dir_belongs_to_the_pods_group() {
    let node = node();
    let mut pod = pod(json!([{"name": "v", "emptyDir": {}}]));
    let group = rustix::process::getgid().as_raw();
    pod.spec.as_mut().unwrap().security_context =
        serde_json::from_value(json!({"fsGroup": group})).unwrap();
    let paths = node.manager.prepare(&pod).await.unwrap();
    let metadata = fs::metadata(&paths["v"].host_path).unwrap();
    assert_eq!(metadata.mode() & 0o7777, 0o2777);
    assert_eq!(metadata.gid(), group);
}

#[tokio::test]
async fn a_volume_in_memory_is_mounted_once_with_the_least_of_its_bounds() {
    for (limit, memory, size) in [
        (json!(null), json!(null), 1_u64 << 30),
        (json!("64Mi"), json!(null), 64 << 20),
        (json!("64Mi"), json!("32Mi"), 32 << 20),
        (json!("5Gi"), json!(null), 1 << 30),
        (json!("0"), json!("32Mi"), 32 << 20),
    ] {
        let node = node();
        let medium = json!({"medium": "Memory", "sizeLimit": limit});
        let mut pod = pod(json!([{"name": "v", "emptyDir": medium}]));
        let resources = match memory.is_null() {
            true => json!({}),
            false => json!({"limits": {"memory": memory}}),
        };
        pod.spec.as_mut().unwrap().containers[0].resources =
            serde_json::from_value(resources).unwrap();
        node.manager.prepare(&pod).await.unwrap();
        manager(&node.base, &node.mounter)
            .prepare(&pod)
            .await
            .unwrap();
        let mounted = node.mounter.0.lock().tmpfs.clone();
        assert_eq!(mounted.len(), 1);
        assert_eq!(mounted[0].1, size, "{limit} {memory}");
    }
}

#[tokio::test]
async fn a_volume_in_memory_that_is_no_longer_mounted_is_mounted_again() {
    let node = node();
    let pod = pod(json!([{"name": "v", "emptyDir": {"medium": "Memory"}}]));
    node.manager.prepare(&pod).await.unwrap();
    node.mounter.0.lock().mounts.clear();
    manager(&node.base, &node.mounter)
        .prepare(&pod)
        .await
        .unwrap();
    assert_eq!(node.mounter.0.lock().tmpfs.len(), 2);
}

#[tokio::test]
async fn a_satisfied_pod_costs_no_look_at_the_disk() {
    let node = node();
    let pod = pod(json!([{"name": "v", "emptyDir": {"medium": "Memory"}}]));
    let first = node.manager.prepare(&pod).await.unwrap();
    let lists = node.mounter.0.lock().lists;
    let second = node.manager.prepare(&pod).await.unwrap();
    assert!(Arc::ptr_eq(&first, &second));
    assert_eq!(node.mounter.0.lock().lists, lists);
}

#[tokio::test]
async fn host_paths_are_what_their_type_says() {
    let node = node();
    let (dir, file, missing) = (
        node.base.join("dir"),
        node.base.join("file"),
        node.base.join("missing"),
    );
    fs::create_dir(&dir).unwrap();
    fs::write(&file, "").unwrap();
    let socket = node.base.join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let null = PathBuf::from("/dev/null");
    for (path, kind, fails_as) in [
        (&dir, "", None),
        (&missing, "", None),
        (&dir, "Directory", None),
        (&dir, "DirectoryOrCreate", None),
        (&file, "File", None),
        (&file, "FileOrCreate", None),
        (&socket, "Socket", None),
        (&null, "CharDevice", None),
        (&file, "Directory", Some("a directory")),
        (&file, "DirectoryOrCreate", Some("a directory")),
        (&missing, "Directory", Some("a directory")),
        (&dir, "File", Some("a file")),
        (&dir, "FileOrCreate", Some("a file")),
        (&socket, "File", Some("a file")),
        (&missing, "File", Some("a file")),
        (&file, "Socket", Some("a socket file")),
        (&file, "CharDevice", Some("a character device")),
        (&null, "BlockDevice", Some("a block device")),
    ] {
        let prepared = node.manager.prepare(&pod(host_path(path, kind))).await;
        match fails_as {
            None => assert_eq!(&prepared.unwrap()["h"].host_path, path, "{kind}"),
            Some(expected) => assert_eq!(
                chain(&prepared.unwrap_err()),
                format!(
                    "MountVolume.SetUp failed for volume \"h\" : hostPath type check failed: \
                     {} is not {expected}",
                    path.display()
                )
            ),
        }
        assert!(!missing.exists());
    }
}

#[tokio::test]
async fn the_two_creating_types_create_what_is_missing() {
    let node = node();
    let dir = node.base.join("a/b");
    let file = node.base.join("file");
    let prepare = async |path, kind| node.manager.prepare(&pod(host_path(path, kind))).await;
    prepare(&dir, "DirectoryOrCreate").await.unwrap();
    prepare(&file, "FileOrCreate").await.unwrap();
    assert!(dir.is_dir());
    assert!(file.is_file());
    let orphan = node.base.join("no/parent");
    assert!(prepare(&orphan, "FileOrCreate").await.is_err());
    let error = prepare(&dir, "Folder").await.unwrap_err();
    assert!(chain(&error).ends_with("Folder is an invalid volume type"));
}

#[tokio::test]
async fn volumes_nobody_mounts_are_left_alone_and_unknown_kinds_are_named() {
    let node = node();
    let mut unused = pod(json!([{"name": "s", "secret": {"secretName": "x"}}]));
    unused.spec.as_mut().unwrap().containers[0].volume_mounts = None;
    assert!(node.manager.prepare(&unused).await.unwrap().is_empty());
    let used = pod(json!([{"name": "s", "secret": {"secretName": "x"}}]));
    assert_eq!(
        chain(&node.manager.prepare(&used).await.unwrap_err()),
        "MountVolume.SetUp failed for volume \"s\" : a secret volume is not supported by this \
         kubelet"
    );
    let huge = pod(json!([{"name": "e", "emptyDir": {"medium": "HugePages"}}]));
    assert!(node.manager.prepare(&huge).await.is_err());
}

#[tokio::test]
async fn a_pod_with_a_hostile_uid_touches_nothing() {
    let node = node();
    let mut hostile = pod(json!([{"name": "v", "emptyDir": {}}]));
    hostile.metadata.uid = Some("../../escape".into());
    assert!(matches!(
        node.manager.prepare(&hostile).await,
        Err(VolumeError::Name(_))
    ));
    assert!(node.manager.teardown(&hostile.uid()).await.is_err());
    assert!(
        node.manager
            .remove_pod_dir(&PodUid::from(".."))
            .await
            .is_err()
    );
    assert!(!node.base.join("escape").exists());
}

#[tokio::test]
async fn teardown_unmounts_and_deletes_and_may_be_repeated() {
    let node = node();
    let outside = node.base.join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), "x").unwrap();
    let pod = pod(json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "ram", "emptyDir": {"medium": "Memory"}},
        {"name": "host", "hostPath": {"path": outside}},
    ]));
    let paths = node.manager.prepare(&pod).await.unwrap();
    let disk = &paths["disk"].host_path;
    fs::create_dir_all(disk.join("a/b")).unwrap();
    symlink(&outside, disk.join("a/link")).unwrap();

    // A new manager: as after a crash.
    let manager = manager(&node.base, &node.mounter);
    for _ in 0..2 {
        manager.teardown(&pod.uid()).await.unwrap();
        assert!(!disk.exists());
        assert!(outside.join("precious").exists());
        assert!(node.mounter.0.lock().mounts.is_empty());
    }
    assert_eq!(
        manager.pods_on_disk().await.unwrap(),
        [PodUid::from("u1")],
        "last words may still be asked for"
    );
    for _ in 0..2 {
        manager.remove_pod_dir(&pod.uid()).await.unwrap();
    }
    assert!(manager.pods_on_disk().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_busy_mount_fails_the_teardown_and_keeps_the_data() {
    let node = node();
    let pod = pod(json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "ram", "emptyDir": {"medium": "Memory"}},
    ]));
    let paths = node.manager.prepare(&pod).await.unwrap();
    fs::write(paths["ram"].host_path.join("data"), "x").unwrap();
    node.mounter.0.lock().busy = true;
    assert!(node.manager.teardown(&pod.uid()).await.is_err());
    assert!(paths["ram"].host_path.join("data").exists());
    assert!(node.manager.remove_pod_dir(&pod.uid()).await.is_err());
    node.mounter.0.lock().busy = false;
    node.manager.teardown(&pod.uid()).await.unwrap();
    node.manager.remove_pod_dir(&pod.uid()).await.unwrap();
}

#[tokio::test]
async fn what_others_mounted_or_left_is_not_touched() {
    let node = node();
    let pod = pod(json!([{"name": "v", "emptyDir": {}}]));
    node.manager.prepare(&pod).await.unwrap();
    let place = node
        .base
        .join("kubelet/pods/u1/volumes/kubernetes.io~csi/pv");
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join("precious"), "x").unwrap();
    node.mounter.add(&place, "ext4");
    assert!(matches!(
        node.manager.teardown(&pod.uid()).await,
        Err(VolumeError::StillMounted(path)) if path == place
    ));
    node.mounter.0.lock().mounts.clear();
    node.manager.teardown(&pod.uid()).await.unwrap();
    assert!(node.manager.remove_pod_dir(&pod.uid()).await.is_err());
    assert!(place.join("precious").exists());
}

fn request(volume_path: &Path, sub_path: &str) -> Vec<SubPathRequest> {
    vec![SubPathRequest {
        mount_index: 3,
        volume: "v".into(),
        volume_path: volume_path.into(),
        sub_path: sub_path.into(),
    }]
}

#[tokio::test]
async fn a_sub_path_is_made_like_its_volume_and_bound_afresh_each_time() {
    let node = node();
    let volume = node.base.join("volume");
    fs::create_dir(&volume).unwrap();
    fs::set_permissions(&volume, fs::Permissions::from_mode(0o2775)).unwrap();
    let uid = PodUid::from("u1");
    for round in 1..=2 {
        let requests = request(&volume, "a/b");
        let bound = node.manager.prepare_sub_paths(&uid, "c", requests).await;
        let target = node.base.join("kubelet/pods/u1/volume-subpaths/v/c/3");
        assert_eq!(bound.unwrap()[&3], target);
        let fake = node.mounter.0.lock();
        assert_eq!(fake.bound.len(), round);
        assert_eq!(fake.bound[round - 1], (volume.join("a/b"), target));
        assert_eq!(fake.mounts.len(), 1);
    }
    assert_eq!(
        fs::metadata(volume.join("a")).unwrap().mode() & 0o7777,
        0o2775
    );
    node.manager.teardown(&uid).await.unwrap();
    assert!(volume.join("a/b").exists());
    assert!(!node.base.join("kubelet/pods/u1/volume-subpaths").exists());
}

#[tokio::test]
async fn a_sub_path_may_be_a_file() {
    let node = node();
    let volume = node.base.join("volume");
    fs::create_dir(&volume).unwrap();
    fs::write(volume.join("file"), "").unwrap();
    let requests = request(&volume, "file");
    let uid = PodUid::from("u1");
    let bound = node.manager.prepare_sub_paths(&uid, "c", requests).await;
    assert!(bound.unwrap()[&3].is_file());
}

#[tokio::test]
async fn a_sub_path_cannot_leave_its_volume() {
    let node = node();
    let volume = node.base.join("volume");
    let outside = node.base.join("outside");
    fs::create_dir(&volume).unwrap();
    fs::create_dir(&outside).unwrap();
    symlink(&outside, volume.join("absolute")).unwrap();
    symlink("../outside", volume.join("relative")).unwrap();
    for path in [
        "..",
        "a/../..",
        "/etc",
        "absolute",
        "relative",
        "absolute/x",
        "relative/x",
    ] {
        let requests = request(&volume, path);
        let uid = PodUid::from("u1");
        let bound = node.manager.prepare_sub_paths(&uid, "c", requests).await;
        assert!(bound.is_err(), "{path}");
    }
    assert!(node.mounter.0.lock().bound.is_empty());
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn a_termination_log_is_a_fresh_file_that_anybody_may_write() {
    let node = node();
    let pod = node.manager.root().pod(&PodUid::from("u1")).unwrap();
    pod_dirs::create(&pod).unwrap();
    let first = pod_dirs::create_termination_log(&pod, "c").unwrap();
    let second = pod_dirs::create_termination_log(&pod, "c").unwrap();
    assert_ne!(first, second);
    assert_eq!(fs::metadata(&first).unwrap().mode() & 0o777, 0o666);
    assert_eq!(first.parent().unwrap(), pod.path().join("containers/c"));
    assert_eq!(first.file_name().unwrap().len(), 8);
    assert!(pod_dirs::create_termination_log(&pod, "../c").is_err());
}

#[tokio::test]
async fn the_kernel_mounts_bounds_and_unmounts_a_volume_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let root = KubeletRoot::create(dir.path()).unwrap();
    let facts = NodeFacts {
        allocatable_memory_bytes: 1 << 20,
        ..NodeFacts::default()
    };
    let manager = VolumeManager::new(root, Arc::new(facts), HostMounter);
    let pod = pod(json!([{"name": "v", "emptyDir": {"medium": "Memory"}}]));
    let paths = match manager.prepare(&pod).await {
        Ok(paths) => paths,
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "{}", chain(&error));
            eprintln!("SKIPPED, cannot mount here: {}", chain(&error));
            return;
        }
    };
    let volume = &paths["v"].host_path;
    let overfull = fs::write(volume.join("big"), vec![0; 2 << 20]);
    let requests = request(volume, "part");
    let uid = pod.uid();
    let bind = async || manager.prepare_sub_paths(&uid, "c", requests.clone()).await;
    let (first, second) = (bind().await, bind().await);
    let down = manager.teardown(&pod.uid()).await;
    let gone = manager.remove_pod_dir(&pod.uid()).await;
    assert!(overfull.is_err(), "the size is a bound");
    first.unwrap();
    second.unwrap();
    down.unwrap();
    gone.unwrap();
    assert!(manager.pods_on_disk().await.unwrap().is_empty());
}
