//! iSCSI volumes of a real target, in a virtual machine.

use super::cluster::{Cluster, pod_with_claim, with_mounter};
use super::iscsi::end;
use super::kernel::{Silence, real};
use super::*;
use crate::base::clock;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::process::Command;

/// The targets of `hack/iscsi-test.sh`: an open one with three disks, and one that wants a password.
const OPEN: &str = "iqn.2001-04.com.example:open";
const CLOSED: &str = "iqn.2001-04.com.example:closed";
const PASSWORD: &str = "hush-hush-123";

fn real_pod(uid: &str, lun: i32, more: Value) -> Pod {
    let mut source = json!({"targetPortal": "127.0.0.1", "iqn": OPEN, "lun": lun});
    for (key, value) in more.as_object().unwrap() {
        source[key] = value.clone();
    }
    let mut pod = pod(json!([{"name": "v", "iscsi": source}]));
    pod.metadata.uid = Some(uid.into());
    pod
}

/// The sessions and the links to disks that the machine has.
fn sessions() -> String {
    let shell = "iscsiadm -m session 2>&1; ls /dev/disk/by-path | grep iscsi";
    let output = Command::new("sh").args(["-c", shell]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

async fn nothing_is_left(base: &Path) {
    let begun = clock::instant();
    loop {
        let mounts = HostMounter.list().unwrap();
        let mounts: Vec<_> = mounts.iter().filter(|it| it.is_beneath(base)).collect();
        let sessions = sessions();
        if mounts.is_empty() && !sessions.contains("127.0.0.") {
            return;
        }
        let lasts = clock::since(begun) > Duration::from_secs(120);
        assert!(!lasts, "{mounts:?}\n{sessions}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Sets the pod up, as often as a sync does: `multipathd` may take the disk while it is being formatted.
async fn path_of(manager: &VolumeManager, pod: &Pod) -> PathBuf {
    let begun = clock::instant();
    loop {
        match manager.prepare(pod, &never()).await {
            Ok(prepared) => return prepared.paths["v"].host_path.clone(),
            Err(error) => {
                let lasts = clock::since(begun) > Duration::from_secs(120);
                assert!(!lasts, "{}", error_chain(&*error.first));
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn a_disk_is_shared_kept_and_detached(base: &Path) {
    let manager = real(base);
    let (a, b) = (real_pod("a", 1, json!({})), real_pod("b", 1, json!({"readOnly": true})));
    let path = path_of(&manager, &a).await;
    fs::write(path.join("file"), "data").unwrap();
    assert!(!sessions().contains("-lun-2"), "{}", sessions());
    let read = path_of(&manager, &b).await;
    assert_eq!(fs::read_to_string(read.join("file")).unwrap(), "data");
    assert!(fs::write(read.join("file"), "").is_err());
    // The next kubelet keeps what is mounted, and undoes it.
    let next = real(base);
    assert_eq!(path_of(&next, &a).await, path);
    let other = real_pod("c", 2, json!({"fsType": "ext3"}));
    path_of(&next, &other).await;
    end(&next, "a").await;
    end(&next, "b").await;
    assert!(sessions().contains("-lun-2") && !sessions().contains("-lun-1"), "{}", sessions());
    end(&next, "c").await;
    nothing_is_left(base).await;
    // A disk with data is not formatted.
    let path = path_of(&next, &a).await;
    assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "data");
    end(&next, "a").await;
    nothing_is_left(base).await;
}

async fn a_password_is_needed_and_not_shown(cluster: &Cluster) {
    let base = &cluster.node.base;
    cluster.claim("Bound");
    cluster.volume(json!({"iscsi": {
        "targetPortal": "127.0.0.1", "iqn": CLOSED, "lun": 1, "initiatorName": "iqn.2001-04.com.example:me",
        "chapAuthSession": true, "secretRef": {"name": "chap"}}}));
    let put = |password: &str| {
        let data = json!({"node.session.auth.username": STANDARD.encode("user"),
            "node.session.auth.password": STANDARD.encode(password)});
        cluster.server.put("secrets", "ns", "chap", json!({"data": data}));
    };
    put("wrong-wrong-1");
    let error = error_chain(&cluster.prepare(&pod_with_claim(false)).await.unwrap_err());
    assert!(error.contains("failed to attach disk") && !error.contains("wrong-wrong"), "{error}");
    put(PASSWORD);
    let path = path_of(&cluster.manager, &pod_with_claim(false)).await;
    fs::write(path.join("file"), "data").unwrap();
    let shown = Command::new("iscsiadm").args(["-m", "session", "-P", "1"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("Iface Initiatorname: iqn.2001-04.com.example:me"), "{shown}");
    end(&cluster.manager, "u1").await;
    nothing_is_left(base).await;
    let ifaces = Command::new("iscsiadm").args(["-m", "iface"]).output().unwrap();
    let ifaces = String::from_utf8(ifaces.stdout).unwrap();
    assert!(!ifaces.contains("pv1"), "{ifaces}");
}

async fn a_device_is_mapped(cluster: &Cluster) {
    cluster.volume(json!({"volumeMode": "Block", "iscsi": {"targetPortal": "127.0.0.1", "iqn": OPEN, "lun": 3}}));
    let mut pod = pod_with_claim(false);
    pod.metadata.uid = Some("block".into());
    let spec = pod.spec.as_mut().unwrap();
    spec.containers[0].volume_mounts = None;
    let devices = json!([{"name": "v", "devicePath": "/dev/x"}]);
    spec.containers[0].volume_devices = serde_json::from_value(devices).unwrap();
    let prepared = cluster.prepare(&pod).await.unwrap();
    let path = &prepared.paths["v"].host_path;
    fs::write(path, "raw").unwrap();
    assert!(fs::read_link(path).unwrap().starts_with("/dev"));
    end(&cluster.manager, "block").await;
    nothing_is_left(&cluster.node.base).await;
}

async fn two_paths_are_one_disk(base: &Path) {
    let manager = real(base);
    let pod = real_pod("a", 1, json!({"portals": ["127.0.0.2"]}));
    let path = path_of(&manager, &pod).await;
    assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "data");
    let mounts = HostMounter.list().unwrap();
    let mount = mounts.iter().find(|mount| mount.mount_point == path).unwrap();
    assert!(mount.source.contains("/dm-") || mount.source.contains("/mapper/"), "{mount:?}");
    end(&manager, "a").await;
    nothing_is_left(base).await;
}

async fn a_silent_target_holds_up_nobody(base: &Path) {
    let manager = real(base);
    let silence = Silence::new("3260");
    let (of, pod) = (manager.clone(), real_pod("hung", 1, json!({})));
    let prepare = tokio::spawn(async move { of.prepare(&pod, &never()).await.map(drop) });
    let is_calling = || {
        let found = Command::new("pgrep").arg("iscsiadm").output().unwrap();
        found.status.success()
    };
    while !is_calling() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let other = super::pod(json!([{"name": "v", "emptyDir": {}}]));
    manager.prepare(&other, &never()).await.unwrap();
    manager.teardown(&"hung".into()).await.unwrap();
    assert!(prepare.await.unwrap().is_err());
    drop(silence);
    end(&manager, "hung").await;
    end(&manager, "u1").await;
    nothing_is_left(base).await;
}

/// `hack/iscsi-test.sh` runs it in a virtual machine, where the variable is set.
#[tokio::test(flavor = "multi_thread")]
async fn disks_of_a_real_iscsi_target_are_mounted_mapped_and_detached() {
    if std::env::var_os("ISCSI_TARGET").is_none() {
        eprintln!("SKIPPED, no iSCSI target here");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    a_disk_is_shared_kept_and_detached(&base).await;
    two_paths_are_one_disk(&base).await;
    a_silent_target_holds_up_nobody(&base).await;
    let cluster = with_mounter(3607, node(), HostMounter).await;
    a_password_is_needed_and_not_shown(&cluster).await;
    a_device_is_mapped(&cluster).await;
}
