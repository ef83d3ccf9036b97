//! `local` volumes: with options on a pretended mount table, devices on the kernel's.

use super::cluster::{Cluster, cluster, pod_with_claim, with_mounter};
use super::disk::Disk;
use super::*;
use crate::host::mount;
use std::process::Command;

/// A pod of that UID that mounts the claim.
fn claimant(uid: &str, read_only: bool) -> Pod {
    let mut pod = pod_with_claim(read_only);
    pod.metadata.uid = Some(uid.into());
    pod
}

impl Cluster {
    fn bound(&self, uid: &str) -> PathBuf {
        let pods = self.manager.root().pods_dir().join(uid);
        pods.join("volumes/kubernetes.io~local-volume/pv1")
    }

    fn ran(&self) -> Vec<String> {
        std::mem::take(&mut self.node.mounter.0.lock().ran)
    }

    async fn end(&self, uid: &str) {
        self.manager.teardown(&uid.into()).await.unwrap();
        self.manager.remove_pod_dir(&uid.into()).await.unwrap();
    }
}

#[tokio::test]
async fn a_directory_with_options_is_bound_and_then_given_them() {
    let cluster = cluster(3607).await;
    let at = tempfile::tempdir().unwrap();
    let at = at.path().canonicalize().unwrap();
    cluster.claim("Bound");
    cluster.volume(json!({"local": {"path": at}, "mountOptions": ["noexec", "bind"]}));
    let target = cluster.bound("a");
    for read_only in [false, true] {
        let pod = claimant("a", read_only);
        let prepared = cluster.prepare(&pod).await.unwrap();
        assert_eq!(prepared.paths["v"].host_path, target);
        assert_eq!(
            cluster.manager.claims().into_values().next().map(|volume| volume.path),
            Some(target.clone())
        );
        let bound = cluster.node.mounter.0.lock().bound.pop();
        assert_eq!(bound, Some((at.clone(), target.clone())));
        let options = if read_only { "noexec,ro" } else { "noexec" };
        let expected =
            format!("mount -o bind,remount,{options} {} {}", at.display(), target.display());
        assert_eq!(cluster.ran(), [expected]);
        // Neither another sync nor a kubelet that starts mounts it again.
        cluster.prepare(&pod).await.unwrap();
        cluster.manager.shared.pods.lock().clear();
        let prepared = cluster.prepare(&pod).await.unwrap();
        assert_eq!(prepared.paths["v"].host_path, target);
        assert_eq!(cluster.ran(), [""; 0]);
        cluster.end("a").await;
        assert!(cluster.node.mounter.0.lock().mounts.is_empty());
        assert!(at.exists());
    }
}

#[tokio::test]
async fn options_that_are_refused_leave_nothing_bound_and_what_was_cut_short_is_bound_again() {
    let cluster = cluster(3607).await;
    let at = tempfile::tempdir().unwrap();
    cluster.claim("Bound");
    cluster.volume(json!({"local": {"path": at.path()}, "mountOptions": ["odd"]}));
    let (pod, target) = (claimant("a", false), cluster.bound("a"));
    cluster.node.mounter.0.lock().code = 32;
    let error = error_chain(&cluster.prepare(&pod).await.unwrap_err());
    let expected = format!(
        "MountVolume.SetUp failed for volume \"pv1\" : mount failed: exit status 32\n\
         Mounting command: mount\nMounting arguments: -o bind,remount,odd {} {}\nOutput: scripted",
        at.path().display(),
        target.display()
    );
    assert_eq!(error, expected);
    assert!(cluster.node.mounter.0.lock().mounts.is_empty());
    assert!(!target.exists());
    // The kubelet ends between the two mounts.
    cluster.node.mounter.0.lock().code = 0;
    fs::create_dir_all(&target).unwrap();
    cluster.node.mounter.add(&target, "ext4");
    cluster.ran();
    cluster.prepare(&pod).await.unwrap();
    assert_eq!(cluster.node.mounter.0.lock().unmounted.last(), Some(&target));
    assert_eq!(cluster.node.mounter.0.lock().mounts.len(), 1);
    assert_eq!(cluster.ran().len(), 1);
    cluster.end("a").await;
}

#[tokio::test]
async fn who_waits_for_a_volume_takes_no_thread_and_ends_with_its_pod() {
    let cluster = cluster(3607).await;
    let at = tempfile::tempdir().unwrap();
    cluster.claim("Bound");
    cluster.volume(json!({"local": {"path": at.path()}, "mountOptions": ["noexec"]}));
    let lock = cluster.manager.shared.locks.lock(&"pv1".to_owned()).await;
    let cancel = CancellationToken::new();
    let pod = claimant("a", false);
    let prepare = cluster.manager.prepare(&pod, &cancel);
    let waits = async {
        let waits = || {
            let states = cluster.manager.states(&"a".into());
            let waits = Some("the volume of claim data".into());
            states.iter().any(|(_, state)| state.waits_for == waits)
        };
        while !waits() {
            tokio::task::yield_now().await;
        }
        cancel.cancel();
    };
    assert!(tokio::join!(prepare, waits).0.is_err());
    assert_eq!(cluster.manager.shared.local_threads.available_permits(), MAX_LOCAL);
    cluster.end("a").await;
    drop(lock);
    // The attempt finds its pod gone.
    drop(cluster.manager.shared.locks.lock(&"pv1".to_owned()).await);
    assert_eq!(cluster.ran(), [""; 0]);
    assert!(!cluster.bound("a").exists());
}

impl Disk {
    fn run(&self, program: &str, args: &[&str]) {
        let end = Command::new(program).args(args).arg(&self.device).output();
        let end = end.unwrap();
        assert!(end.status.success(), "{program}: {end:?}");
    }
}

async fn on_the_kernel() -> Cluster {
    with_mounter(3607, node(), HostMounter).await
}

impl Cluster {
    /// All mounts of the kubelet, by where they are below its root directory, with their options.
    fn mounts(&self) -> Vec<String> {
        let root = self.manager.root().path();
        let mounts = mount::list().unwrap().into_iter();
        let mounts = mounts.filter_map(|mount| {
            let below = mount.mount_point.strip_prefix(root).ok()?;
            Some(below.to_str().unwrap().to_owned())
        });
        let mut mounts: Vec<_> = mounts.collect();
        mounts.sort();
        mounts
    }
}

const DEVICE: &str = "plugins/kubernetes.io/local-volume/mounts/pv1";
const OF_A: &str = "pods/a/volumes/kubernetes.io~local-volume/pv1";
const OF_B: &str = "pods/b/volumes/kubernetes.io~local-volume/pv1";

/// The options of a mount point, as the kernel has them.
fn options_of(path: &Path) -> String {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let lines = table.lines().rev().map(|line| line.split(' ').collect());
    let mut of_path = lines.filter(|fields: &Vec<&str>| Path::new(fields[1]) == path);
    of_path.next().unwrap()[3].to_owned()
}

#[tokio::test]
async fn an_empty_device_is_formatted_once_and_mounted_until_its_last_pod_has_ended() {
    let Some(disk) = Disk::new() else { return };
    let cluster = on_the_kernel().await;
    cluster.claim("Bound");
    cluster.volume(json!({"local": {"path": disk.device}, "mountOptions": ["noatime"]}));
    let first = claimant("a", false);
    let prepared = cluster.prepare(&first).await.unwrap();
    let path = prepared.paths["v"].clone();
    assert!(path.managed && path.measured && !path.is_device, "{path:?}");
    fs::write(path.host_path.join("kept"), "data").unwrap();
    let second = claimant("b", true);
    let prepared = cluster.prepare(&second).await.unwrap();
    let read_only = prepared.paths["v"].host_path.clone();
    assert_eq!(fs::read_to_string(read_only.join("kept")).unwrap(), "data");
    assert!(fs::write(read_only.join("made"), "").is_err());
    assert_eq!(cluster.mounts(), [DEVICE, OF_A, OF_B]);
    let device = cluster.manager.root().path().join(DEVICE);
    let of_device = mount::list().unwrap().into_iter().find(|it| it.mount_point == device);
    assert_eq!(of_device.unwrap().fs_type, "ext4");
    assert!(options_of(&path.host_path).starts_with("rw,noatime"));
    assert!(options_of(&read_only).starts_with("ro,noatime"));
    // A kubelet that starts finds the mounts.
    cluster.manager.shared.pods.lock().clear();
    let prepared = cluster.prepare(&first).await.unwrap();
    assert_eq!(prepared.paths["v"], path);
    assert_eq!(cluster.mounts(), [DEVICE, OF_A, OF_B]);
    cluster.end("a").await;
    assert_eq!(cluster.mounts(), [DEVICE, OF_B]);
    // One that starts when the last pod ends knows nothing of it.
    cluster.manager.shared.pods.lock().clear();
    cluster.end("b").await;
    assert_eq!(cluster.mounts(), [""; 0]);
    assert!(!device.exists());
    // The data is there for the next pod.
    let third = claimant("a", false);
    let prepared = cluster.prepare(&third).await.unwrap();
    let kept = prepared.paths["v"].host_path.join("kept");
    assert_eq!(fs::read_to_string(kept).unwrap(), "data");
    cluster.end("a").await;
    assert_eq!(cluster.mounts(), [""; 0]);
}

#[tokio::test]
async fn a_device_that_has_something_on_it_is_never_formatted() {
    let Some(disk) = Disk::new() else { return };
    let cluster = on_the_kernel().await;
    cluster.claim("Bound");
    cluster.volume(json!({"local": {"path": disk.device}}));
    let device = cluster.manager.root().path().join(DEVICE);
    let prefix =
        "MountVolume.MountDevice failed for volume \"pv1\" : local: failed to mount device";
    let at = format!("{} at {}", disk.device, device.display());
    // Only to be read, and empty.
    let error = error_chain(&cluster.prepare(&claimant("a", true)).await.unwrap_err());
    assert_eq!(
        error,
        format!(
            "{prefix} {at} (fstype: ext4), error cannot mount unformatted disk {} as we are manipulating it in \
             read-only mode",
            disk.device
        )
    );
    cluster.end("a").await;
    // A swap area is no ext4.
    disk.run("mkswap", &["-U", "11111111-2222-3333-4444-555555555555"]);
    let error = error_chain(&cluster.prepare(&claimant("a", false)).await.unwrap_err());
    let expected = format!("{prefix} {at} (fstype: ext4), error mount failed: exit status ");
    assert!(error.starts_with(&expected), "{error}");
    disk.run("blkid", &["-p", "-u", "other"]);
    // Nor is what a program that is not there would make.
    cluster.end("a").await;
    disk.run("wipefs", &["-a"]);
    cluster.volume(json!({"local": {"path": disk.device, "fsType": "nosuch"}}));
    let error = error_chain(&cluster.prepare(&claimant("a", false)).await.unwrap_err());
    assert!(error.contains("type:(\"nosuch\")"), "{error}");
    assert!(error.contains("\"mkfs.nosuch\": executable file not found"), "{error}");
    cluster.end("a").await;
    assert_eq!(cluster.mounts(), [""; 0]);
    assert!(!device.exists());
}

#[tokio::test]
async fn a_device_is_given_to_the_group_of_its_first_pod() {
    let Some(disk) = Disk::new() else { return };
    let cluster = on_the_kernel().await;
    cluster.claim("Bound");
    cluster.volume(json!({"local": {"path": disk.device, "fsType": "ext3"}}));
    for (uid, group, expected) in [("a", 4321, 4321), ("b", 77, 4321)] {
        let mut pod = claimant(uid, false);
        let context = json!({"fsGroup": group});
        pod.spec.as_mut().unwrap().security_context = serde_json::from_value(context).unwrap();
        let prepared = cluster.prepare(&pod).await.unwrap();
        let found = fs::metadata(&prepared.paths["v"].host_path).unwrap();
        assert_eq!((found.gid(), found.mode() & 0o7777), (expected, 0o2775), "{uid}");
    }
    for uid in ["a", "b"] {
        cluster.end(uid).await;
    }
    assert_eq!(cluster.mounts(), [""; 0]);
}

#[tokio::test]
async fn a_device_whose_pod_has_gone_meanwhile_is_unmounted() {
    let Some(disk) = Disk::new() else { return };
    let cluster = on_the_kernel().await;
    // What a kubelet leaves that is killed before the device is bound, or after it was.
    disk.run("mkfs.ext4", &["-q"]);
    let device = cluster.manager.root().path().join(DEVICE);
    fs::create_dir_all(&device).unwrap();
    disk.run("mount", &["--target", device.to_str().unwrap(), "--source"]);
    assert_eq!(cluster.mounts(), [DEVICE]);
    cluster.manager.teardown(&"other".into()).await.unwrap();
    assert_eq!(cluster.mounts(), [""; 0]);
    assert!(!device.exists());
}
