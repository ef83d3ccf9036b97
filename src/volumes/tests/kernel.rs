//! On the kernel's own mount table. Without the right to mount, these say so and are skipped, unless
//! `CI` is set.

use super::sub_path::request;
use super::*;
use crate::host::mount;
use std::process::Command;

/// A manager that really mounts, on a node with a mebibyte of memory.
pub(super) fn real(base: &Path) -> VolumeManager {
    let root = KubeletRoot::create(&base.join("kubelet")).unwrap();
    let facts = NodeFacts { allocatable_memory_bytes: 1 << 20, ..NodeFacts::default() };
    let objects = ConfigMapSecretReader::new(Some(base.join("objects")), None);
    VolumeManager::new(root, Arc::new(facts), objects, ClusterSources::default(), None, HostMounter)
}

async fn prepared(manager: &VolumeManager, pod: &Pod) -> Option<VolumePaths> {
    match manager.prepare(pod, &never()).await {
        Ok(prepared) => Some(prepared.paths),
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "{}", error_chain(&error));
            eprintln!("SKIPPED, cannot mount here: {}", error_chain(&error));
            None
        }
    }
}

/// Takes the pod down and says what is left of it.
async fn left(manager: &VolumeManager, pod: &Pod) -> Vec<PathBuf> {
    manager.teardown(&pod.uid()).await.unwrap();
    manager.remove_pod_dir(&pod.uid()).await.unwrap();
    let mut mounts = mount::list().unwrap();
    mounts.retain(|m| m.is_beneath(manager.root().path()));
    let dirs = fs::read_dir(manager.root().pods_dir()).unwrap();
    let dirs = dirs.map(|entry| entry.unwrap().path());
    mounts.into_iter().map(|m| m.mount_point).chain(dirs).collect()
}

#[tokio::test]
async fn the_kernel_mounts_bounds_and_unmounts_a_volume_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let manager = real(dir.path());
    let pod = pod(json!([{"name": "v", "emptyDir": {"medium": "Memory"}}]));
    let Some(paths) = prepared(&manager, &pod).await else {
        return;
    };
    let volume = &paths["v"].host_path;
    let mode = fs::metadata(volume).unwrap().mode() & 0o7777;
    let overfull = fs::write(volume.join("big"), vec![0; 2 << 20]);
    let requests = request(volume, "part");
    let uid = pod.uid();
    let bind = async || manager.prepare_sub_paths(&uid, "c", requests.clone(), &never()).await;
    let (first, second) = (bind().await, bind().await);
    assert_eq!(left(&manager, &pod).await, Vec::<PathBuf>::new());
    assert!(overfull.is_err(), "the size is a bound");
    assert_eq!(mode, 0o1777);
    first.unwrap();
    second.unwrap();
}

#[tokio::test]
async fn a_secret_is_on_a_tmpfs_and_a_part_of_it_outlives_its_update() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    let manager = real(&base);
    let secret = base.join("objects/secrets/ns/db");
    fs::create_dir_all(&secret).unwrap();
    fs::write(secret.join("password"), "one").unwrap();
    let pod = pod(json!([
        {"name": "s", "secret": {"secretName": "db", "defaultMode": 0o400}},
        {"name": "p", "projected": {"sources": [{"secret": {"name": "db"}}]}},
    ]));
    let Some(paths) = prepared(&manager, &pod).await else {
        return;
    };
    let volume = paths["s"].host_path.clone();
    let requests = request(&volume, "password");
    let bound = manager.prepare_sub_paths(&pod.uid(), "c", requests, &never()).await;
    let bound = bound.unwrap()[&3].clone();
    let table = mount::list().unwrap();
    let of = |path: &Path| table.iter().rfind(|m| m.mount_point == path).cloned();
    let kinds = [&volume, &paths["p"].host_path].map(|path| of(path).unwrap().fs_type);
    fs::write(secret.join("password"), "two").unwrap();
    manager.prepare(&pod, &never()).await.unwrap();
    let texts =
        (fs::read_to_string(volume.join("password")).unwrap(), fs::read_to_string(&bound).unwrap());
    assert_eq!(left(&manager, &pod).await, Vec::<PathBuf>::new());
    assert_eq!(kinds, ["tmpfs", "tmpfs"]);
    assert_eq!(texts, ("two".to_string(), "one".to_string()));
}

#[tokio::test]
async fn huge_pages_are_mounted_where_the_kernel_has_them() {
    let dir = tempfile::tempdir().unwrap();
    let manager = real(dir.path());
    let mut pod = pod(json!([{"name": "v", "emptyDir": {"medium": "HugePages-2Mi"}}]));
    pod.spec.as_mut().unwrap().containers[0].resources =
        serde_json::from_value(json!({"requests": {"hugepages-2Mi": "2Mi"}})).unwrap();
    if !Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB").exists() {
        eprintln!("SKIPPED, no huge pages of 2 MiB here");
        return;
    }
    let Some(paths) = prepared(&manager, &pod).await else {
        return;
    };
    let table = mount::list().unwrap();
    let volume = &paths["v"].host_path;
    let found = table.iter().find(|m| m.mount_point == *volume).cloned();
    // A successor finds it mounted and mounts nothing on top.
    real(dir.path()).prepare(&pod, &never()).await.unwrap();
    let again = mount::list().unwrap();
    let count = again.iter().filter(|m| m.mount_point == *volume).count();
    assert_eq!(left(&manager, &pod).await, Vec::<PathBuf>::new());
    assert_eq!(found.unwrap().fs_type, "hugetlbfs");
    assert_eq!(count, 1);
}

#[tokio::test]
async fn what_a_pod_left_mounted_in_its_own_volume_goes_and_is_not_deleted_through() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    let manager = real(&base);
    let precious = base.join("precious");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("data"), "x").unwrap();
    let pod = pod(
        json!([{"name": "v", "emptyDir": {}}, {"name": "m", "emptyDir": {"medium": "Memory"}}]),
    );
    let Some(paths) = prepared(&manager, &pod).await else {
        return;
    };
    for volume in ["v", "m"] {
        let point = paths[volume].host_path.join("point");
        fs::create_dir(&point).unwrap();
        mount::bind(&precious, &point).unwrap();
    }
    assert_eq!(left(&manager, &pod).await, Vec::<PathBuf>::new());
    assert!(precious.join("data").exists());
}

fn nfs_pod(uid: &str, export: &str, read_only: bool) -> Pod {
    let source = json!({"server": "127.0.0.1", "path": export, "readOnly": read_only});
    let mut pod = pod(json!([{"name": "v", "nfs": source}]));
    pod.metadata.uid = Some(uid.into());
    pod
}

/// Drops what is sent to a port of this machine, until it is dropped itself.
pub(super) struct Silence(&'static str);

impl Silence {
    pub(super) fn new(port: &'static str) -> Self {
        Self::rule("-I", port);
        Self(port)
    }

    fn rule(action: &str, port: &str) {
        let rule = ["INPUT", "-p", "tcp", "--dport", port, "-j", "DROP"];
        let status = Command::new("iptables").arg(action).args(rule).status();
        assert!(status.unwrap().success(), "{action}");
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        Self::rule("-D", self.0);
    }
}

/// `hack/nfs-test.sh` runs it in a virtual machine, where the variable has the directory that its server exports.
#[tokio::test(flavor = "multi_thread")]
async fn a_real_nfs_server_is_mounted_and_holds_up_nobody_when_it_is_silent() {
    let Ok(export) = std::env::var("NFS_EXPORT") else {
        eprintln!("SKIPPED, no NFS server here");
        return;
    };
    let base = tempfile::tempdir().unwrap();
    let base = base.path().canonicalize().unwrap();
    let manager = real(&base);
    let prepare = async |pod: &Pod| {
        let prepared = manager.prepare(pod, &never()).await;
        prepared.map(|prepared| prepared.paths["v"].host_path.clone())
    };
    let (written, read) = (nfs_pod("a", &export, false), nfs_pod("b", &export, true));
    let path = prepare(&written).await.unwrap();
    fs::write(path.join("file"), "data").unwrap();
    let of_server = fs::read_to_string(Path::new(&export).join("file"));
    assert_eq!(of_server.unwrap(), "data");
    let path = prepare(&read).await.unwrap();
    assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "data");
    assert!(fs::write(path.join("file"), "").is_err());
    let missing = nfs_pod("c", "/nowhere/at/all", false);
    let error = error_chain(&*prepare(&missing).await.unwrap_err().first);
    assert!(
        error.contains("mount failed: exit status 32") && error.contains("mount.nfs"),
        "{error}"
    );
    // Another kubelet undoes what this one has mounted.
    let next = real(&base);
    for pod in [&written, &missing] {
        let is_of_pod =
            |path: &PathBuf| path.starts_with(next.root().pods_dir().join(pod.uid().as_str()));
        assert!(!left(&next, pod).await.iter().any(is_of_pod));
    }
    let silence = Silence::new("2049");
    let hung = nfs_pod("d", &export, false);
    let (of_hung, pod) = (manager.clone(), hung.clone());
    let prepare = tokio::spawn(async move { of_hung.prepare(&pod, &never()).await.map(drop) });
    let helper = || Command::new("pgrep").arg("mount.nfs").output().unwrap().status.success();
    while !helper() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let other = super::pod(json!([{"name": "v", "emptyDir": {}}]));
    manager.prepare(&other, &never()).await.unwrap();
    manager.teardown(&hung.uid()).await.unwrap();
    assert!(prepare.await.unwrap().is_err());
    while helper() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // A volume whose server does not respond is unmounted, perhaps by force.
    manager.teardown(&read.uid()).await.unwrap();
    drop(silence);
    let mounts = mount::list().unwrap();
    let mounts: Vec<_> =
        mounts.iter().filter(|it| it.fs_type.starts_with("nfs") && it.is_beneath(&base)).collect();
    assert!(mounts.is_empty(), "{mounts:?}");
}
