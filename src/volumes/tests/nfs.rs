//! NFS volumes, with pretended programs.

use super::cluster::{cluster, pod_with_claim};
use super::*;

fn nfs_pod(read_only: bool) -> Pod {
    pod(json!([{"name": "v", "nfs": {"server": "s", "path": "/e", "readOnly": read_only}}]))
}

fn ran(node: &Node) -> Vec<String> {
    std::mem::take(&mut node.mounter.0.lock().ran)
}

fn target(manager: &VolumeManager, name: &str) -> PathBuf {
    let pods = manager.root().pods_dir();
    pods.join("u1/volumes/kubernetes.io~nfs").join(name)
}

async fn end(manager: &VolumeManager) {
    manager.teardown(&"u1".into()).await.unwrap();
    manager.remove_pod_dir(&"u1".into()).await.unwrap();
}

#[tokio::test]
async fn an_nfs_volume_is_mounted_for_its_pod_and_unmounted_with_it() {
    let node = node();
    let target = target(&node.manager, "v");
    for read_only in [false, true] {
        let paths = node.prepare(&nfs_pod(read_only)).await.unwrap();
        let path = &paths["v"];
        assert_eq!(path.host_path, target);
        assert_eq!((path.read_only, path.managed), (read_only, false));
        let options = if read_only { "-o ro " } else { "" };
        let expected = format!("mount -t nfs {options}s:/e {}", target.display());
        assert_eq!(ran(&node), [expected]);
        assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o750);
        let measured = node.manager.measurable(&"u1".into());
        assert_eq!(measured[0].source, UsageSource::Filesystem);
        // A kubelet that starts keeps the mount.
        node.manager.shared.pods.lock().clear();
        node.prepare(&nfs_pod(read_only)).await.unwrap();
        assert_eq!(ran(&node), [""; 0]);
        end(&node.manager).await;
        assert_eq!(ran(&node), [format!("umount {}", target.display())]);
        assert!(!target.exists());
    }
}

#[tokio::test]
async fn a_kubelet_that_knows_nothing_unmounts_what_an_earlier_one_mounted() {
    let node = node();
    let target = target(&node.manager, "pv1");
    fs::create_dir_all(&target).unwrap();
    node.mounter.add(&target, "nfs4");
    end(&node.manager).await;
    assert!(node.mounter.0.lock().mounts.is_empty());
    assert!(!target.exists());
}

#[tokio::test]
async fn the_volume_of_a_claim_has_its_options_and_is_mounted_again_after_a_reboot() {
    let cluster = cluster(3607).await;
    cluster.claim("Bound");
    cluster
        .volume(json!({"nfs": {"server": "s", "path": "/e"}, "mountOptions": ["vers=3", "hard"]}));
    let target = target(&cluster.manager, "pv1");
    for read_only in [false, true] {
        let pod = pod_with_claim(read_only);
        let prepared = cluster.prepare(&pod).await.unwrap();
        let path = &prepared.paths["v"];
        assert_eq!(path.host_path, target);
        assert_eq!((path.read_only, path.plugin), (read_only, Some("kubernetes.io/nfs")));
        let options = if read_only { "hard,ro,vers=3" } else { "hard,vers=3" };
        let expected = format!("mount -t nfs -o {options} s:/e {}", target.display());
        assert_eq!(ran(&cluster.node), [expected]);
        let claims: Vec<_> = cluster.manager.claims().into_values().collect();
        assert_eq!(claims[0].source, UsageSource::Filesystem);
        // What was mounted is gone after a reboot.
        cluster.node.mounter.0.lock().mounts.clear();
        cluster.manager.shared.pods.lock().clear();
        cluster.prepare(&pod).await.unwrap();
        assert_eq!(ran(&cluster.node).len(), 1);
        end(&cluster.manager).await;
        ran(&cluster.node);
    }
}

#[tokio::test]
async fn a_mount_that_fails_has_its_output_in_the_event_and_leaves_nothing() {
    let node = node();
    node.mounter.0.lock().code = 32;
    let error = error_chain(&node.prepare(&nfs_pod(false)).await.unwrap_err());
    let target = target(&node.manager, "v");
    let expected = format!(
        "MountVolume.SetUp failed for volume \"v\" : mount failed: exit status 32\nMounting command: mount\n\
         Mounting arguments: -t nfs s:/e {}\nOutput: scripted",
        target.display()
    );
    assert_eq!(error, expected);
    assert!(!target.exists());
    end(&node.manager).await;
    let odd = pod(json!([{"name": "v", "nfs": {"server": "--bind", "path": "/e"}}]));
    let error = error_chain(&node.prepare(&odd).await.unwrap_err());
    assert!(error.ends_with("nfs.server \"--bind\" is not the name of a server"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_holds_up_its_volume_alone_and_the_mount_ends_with_the_pod() {
    let node = node();
    node.mounter.0.lock().hanging_program = Some("mount");
    let (manager, cancel) = (node.manager.clone(), never());
    let prepare = tokio::spawn(async move { manager.prepare(&nfs_pod(false), &cancel).await });
    let waits = || {
        let pending = node.manager.pending(&"u1".into());
        let reason = pending.into_iter().map(|volume| volume.reason).next();
        reason == Some("waits for the NFS server s".to_owned())
            && !node.mounter.0.lock().ran.is_empty()
    };
    while !waits() {
        tokio::task::yield_now().await;
    }
    let error = error_chain(&prepare.await.unwrap().unwrap_err());
    assert!(error.contains("unmounted volumes=[v]"), "{error}");
    let mut other = pod(json!([{"name": "v", "emptyDir": {}}]));
    other.metadata.uid = Some("u2".into());
    node.prepare(&other).await.unwrap();
    end(&node.manager).await;
    assert!(node.mounter.0.lock().mounts.is_empty());
    assert!(!target(&node.manager, "v").exists());
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_cannot_be_unmounted_in_time_is_unmounted_by_force() {
    let node = node();
    node.prepare(&nfs_pod(false)).await.unwrap();
    ran(&node);
    node.mounter.0.lock().hanging_program = Some("umount");
    end(&node.manager).await;
    let target = target(&node.manager, "v");
    let target = target.display();
    assert_eq!(ran(&node), [format!("umount {target}"), format!("umount -f {target}")]);
}

#[tokio::test]
async fn a_volume_that_is_still_mounted_keeps_its_pod_and_says_why() {
    let node = node();
    node.prepare(&nfs_pod(false)).await.unwrap();
    node.mounter.0.lock().code = 16;
    let error = error_chain(&node.manager.teardown(&"u1".into()).await.unwrap_err());
    assert!(
        error.starts_with(
            "UnmountVolume.TearDown failed for volume \"v\" : unmount failed: exit status 16"
        ),
        "{error}"
    );
    assert!(target(&node.manager, "v").exists());
    node.mounter.0.lock().code = 0;
    end(&node.manager).await;
}
