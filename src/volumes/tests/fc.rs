//! Fibre Channel volumes, on a pretended machine.

use super::iscsi::{calls, end, install};
use super::*;

fn fc_pod(uid: &str, source: Value) -> Pod {
    let mut pod = pod(json!([{"name": "v", "fc": source}]));
    pod.metadata.uid = Some(uid.into());
    pod
}

/// Adds a disk with a link; it is a path of the multipath device if there is one.
fn add(base: &Path, device: &str, link: &str, multipath: Option<&str>) {
    let link = base.join("dev/disk").join(link);
    let block = base.join("sys/block");
    fs::create_dir_all(link.parent().unwrap()).unwrap();
    for (name, numbers) in [(device, "8:16"), (multipath.unwrap_or(device), "253:1")] {
        fs::create_dir_all(block.join(name).join("device")).unwrap();
        fs::write(block.join(name).join("dev"), format!("{numbers}\n")).unwrap();
        fs::write(base.join("dev").join(name), [0; 8192]).unwrap();
    }
    fs::write(block.join(device).join("device/delete"), "").unwrap();
    symlink(format!("../../{device}"), link).unwrap();
    if let Some(multipath) = multipath {
        let of = block.join(multipath);
        fs::create_dir_all(of.join("dm")).unwrap();
        fs::create_dir_all(of.join("slaves").join(device)).unwrap();
        fs::write(of.join("dm/uuid"), "mpath-3600\n").unwrap();
    }
}

fn deleted(base: &Path, device: &str) -> String {
    fs::read_to_string(base.join("sys/block").join(device).join("device/delete")).unwrap()
}

fn fc_node() -> Node {
    let node = node();
    install(&node.base);
    let host = node.base.join("sys/class/scsi_host/host0");
    fs::create_dir_all(&host).unwrap();
    fs::write(host.join("scan"), "").unwrap();
    node
}

#[tokio::test]
async fn a_disk_is_looked_for_mounted_once_and_removed_after_the_last_pod() {
    let node = fc_node();
    let base = &node.base;
    let source = json!({"targetWWNs": ["500a", "500b"], "lun": 0});
    let error = error_chain(&node.prepare(&fc_pod("a", source.clone())).await.unwrap_err());
    assert_eq!(error, "MountVolume.WaitForAttach failed for volume \"v\" : no fc disk found");
    let scan = base.join("sys/class/scsi_host/host0/scan");
    assert_eq!(fs::read_to_string(scan).unwrap(), "- - -");
    add(base, "sdb", "by-path/pci-0000:41:00.0-fc-0x500b-lun-0", None);
    let global = node.manager.root().path().join("plugins/kubernetes.io/fc/500a-500b-lun-0");
    for uid in ["a", "b"] {
        let paths = node.prepare(&fc_pod(uid, source.clone())).await.unwrap();
        let pods = node.manager.root().pods_dir().join(uid);
        assert_eq!(paths["v"].host_path, pods.join("volumes/kubernetes.io~fc/v"));
    }
    let device = base.join("dev/sdb");
    let ran = std::mem::take(&mut node.mounter.0.lock().ran);
    assert_eq!(
        ran,
        [format!("mount -t ext4 -o defaults {} {}", device.display(), global.display())]
    );
    calls(base);
    end(&node.manager, "a").await;
    assert_eq!((calls(base).len(), &*deleted(base, "sdb")), (0, ""));
    // The next kubelet finds the disk by its directory.
    end(&manager(base, &node.mounter), "b").await;
    assert_eq!(calls(base), [format!("blockdev --flushbufs {}", device.display())]);
    assert_eq!(deleted(base, "sdb"), "1");
    assert!(!global.exists() && node.mounter.0.lock().mounts.is_empty());
}

#[tokio::test]
async fn a_multipath_device_is_preferred_and_keeps_its_paths_until_it_is_flushed() {
    let node = fc_node();
    let base = &node.base;
    add(base, "sdb", "by-id/scsi-3600", None);
    add(base, "sdc", "by-id/scsi-3601", Some("dm-1"));
    node.prepare(&fc_pod("a", json!({"wwids": ["3600", "3601"], "readOnly": true})))
        .await
        .unwrap_err();
    fs::write(base.join("formatted"), "").unwrap();
    node.prepare(&fc_pod("a", json!({"wwids": ["3600", "3601"], "readOnly": true}))).await.unwrap();
    let device = base.join("dev/dm-1");
    let ran = std::mem::take(&mut node.mounter.0.lock().ran);
    assert!(
        ran[0].starts_with(&format!("mount -t ext4 -o ro,defaults {} ", device.display())),
        "{ran:?}"
    );
    calls(base);
    fs::write(base.join("fail"), "multipath -f").unwrap();
    end(&node.manager, "a").await;
    let global = node.manager.root().path().join("plugins/kubernetes.io/fc/3600-3601");
    assert_eq!((deleted(base, "sdc"), global.exists()), (String::new(), true));
    fs::remove_file(base.join("fail")).unwrap();
    until("the disk is detached", || !global.exists()).await;
    let ended = calls(base);
    let flush = format!("multipath -f {}", device.display());
    let attempts: Vec<_> = ended.iter().filter(|call| **call == flush).collect();
    assert!(ended.len() == attempts.len() + 2, "{ended:?}");
    assert_eq!((&*deleted(base, "sdb"), &*deleted(base, "sdc")), ("1", "1"));
}
