//! What is found in a directory tree.

use super::*;
use crate::host::parse_mountinfo;
use crate::volumes::csi::identity::{VolumeIdentity, sha256_hex};
use crate::volumes::csi::record::VolumeRecord;
use crate::volumes::csi::vol_data::{PublishData, StageData};
use std::path::PathBuf;

struct Tree {
    _base: tempfile::TempDir,
    root: KubeletRoot,
}

fn tree() -> Tree {
    let base = tempfile::tempdir().unwrap();
    let root = KubeletRoot::create(&base.path().join("k")).unwrap();
    Tree { _base: base, root }
}

fn volume(handle: &str) -> VolumeIdentity {
    VolumeIdentity::persistent("d.example", handle).unwrap()
}

fn mounted(paths: &[PathBuf]) -> MountTable {
    let lines = paths.iter().map(|path| {
        let path = path.display();
        format!("1 2 8:1 / {path} rw - ext4 /dev/x rw\n")
    });
    let lines: String = lines.collect();
    MountTable::new(Ok(parse_mountinfo(lines.as_bytes())))
}

impl Tree {
    fn stage(&self, handle: &str) -> StageDir {
        let directory = StageDir::new(&self.root, &volume(handle));
        files::create_directory(&self.root, &directory.target()).unwrap();
        directory
    }

    fn publish(&self, uid: &str, spec_name: &str) -> PublishDir {
        let pod = self.root.pod(&uid.into()).unwrap();
        let directory = PublishDir::new(&pod, spec_name).unwrap();
        files::create_directory(&self.root, &directory.target()).unwrap();
        directory
    }

    fn file(&self, path: &str) -> PathBuf {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }
}

#[test]
fn volumes_of_records_pods_and_stages_are_found() {
    let tree = tree();
    let root = &tree.root;
    let record = VolumeRecord {
        identity: volume("h1"),
        spec_name: "pv1".into(),
        attach_required: true,
        is_staged: true,
        pods: [("u1".into(), "pv1".to_owned())].into(),
        owner_group: None,
        size: None,
    };
    record::write(root, &record).unwrap();
    let data = PublishData {
        identity: volume("h2"),
        spec_name: "pv2".into(),
        node: "n".into(),
        selinux: None,
    };
    vol_data::write_published(&tree.publish("u2", "pv2"), &data).unwrap();
    let stage = tree.stage("h3");
    let data = StageData { identity: volume("h3"), selinux: None };
    vol_data::write_staged(&stage, &data).unwrap();
    let recovered = recover(root, &mounted(&[stage.target()]));
    let found = recovered.volumes.iter().map(|volume| {
        let pods: Vec<_> = volume.pods.keys().map(PodUid::as_str).collect();
        (volume.identity.handle(), volume.has_record, pods.join(","))
    });
    let found: Vec<_> = found.collect();
    let expected = [("h1", true, "u1"), ("h2", false, "u2"), ("h3", false, "")];
    let expected = expected.map(|(handle, record, pods)| (handle.into(), record, pods.into()));
    assert_eq!(found, expected);
    assert_eq!((recovered.unknown, recovered.leftovers), (vec![], vec![]));
}

#[test]
fn an_empty_root_has_nothing() {
    let tree = tree();
    assert_eq!(recover(&tree.root, &mounted(&[])), Recovered::default());
}

#[test]
fn leftovers_are_removed_and_mounts_are_not() {
    let tree = tree();
    let empty = tree.publish("u1", "pv1");
    fs::write(empty.vol_data(), "").unwrap();
    let kept = tree.publish("u2", "pv2");
    fs::write(kept.vol_data(), "").unwrap();
    let stage = tree.stage("h1");
    let with_data = tree.publish("u3", "pv3");
    fs::write(with_data.target().join("data"), "x").unwrap();
    let mounts = mounted(&[kept.target()]);
    let recovered = recover(&tree.root, &mounts);
    assert_eq!(recovered.volumes, []);
    let [unknown] = recovered.unknown.as_slice() else {
        panic!("{recovered:?}");
    };
    assert_eq!(unknown.path, kept.path());
    assert_eq!(unknown.why, "vol_data.json is empty");
    assert_eq!(unknown.pod, Some("u2".into()));
    let failed = remove_leftovers(&recovered.leftovers, &mounts);
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].0.path(), with_data.path());
    assert!(with_data.target().join("data").exists() && kept.vol_data().exists());
    assert!(!empty.path().exists() && !stage.path().exists());
}

#[test]
fn a_file_below_a_mount_is_not_read() {
    let tree = tree();
    let directory = tree.publish("u1", "pv1");
    let data = PublishData {
        identity: volume("h1"),
        spec_name: "pv1".into(),
        node: "n".into(),
        selinux: None,
    };
    vol_data::write_published(&directory, &data).unwrap();
    let recovered = recover(&tree.root, &mounted(&[directory.path().to_path_buf()]));
    assert_eq!(recovered.volumes, []);
    assert_eq!(recovered.unknown.len(), 1);
}

#[test]
fn foreign_directories_matter_only_with_a_mount() {
    let tree = tree();
    let digest = sha256_hex(&["h"]);
    let foreign = [
        "plugins/kubernetes.io/csi/pv/pv1/globalmount".to_owned(),
        format!("plugins/kubernetes.io/csi/-d/{digest}/globalmount"),
        "pods/u1/volumes/kubernetes.io~csi/.hidden/mount".to_owned(),
    ];
    let paths = foreign.map(|path| {
        let path = tree.root.path().join(path);
        fs::create_dir_all(&path).unwrap();
        path
    });
    fs::write(tree.file("plugins/kubernetes.io/csi/file"), "").unwrap();
    assert_eq!(recover(&tree.root, &mounted(&[])), Recovered::default());
    let recovered = recover(&tree.root, &mounted(&paths));
    assert_eq!(recovered.unknown.len(), 3);
    assert!(recovered.keeps_in_use("kubernetes.io/csi/d^h"));
    assert!(!recovered.keeps_in_use("kubernetes.io/other/d^h"));
    assert!(paths.iter().all(|path| path.exists()));
}

const BLOCK: &str = "plugins/kubernetes.io/csi/volumeDevices";
const BLOCK_DATA: &str = r#"{"driverName":"d.example","volumeHandle":"h1","specVolID":"pv1"}"#;

#[test]
fn a_block_volume_of_another_kubelet_is_found_with_the_pods_of_all_its_directories() {
    let tree = tree();
    let data = tree.file(&format!("{BLOCK}/pv1/data/vol_data.json"));
    fs::write(&data, BLOCK_DATA).unwrap();
    fs::create_dir_all(tree.file(&format!("{BLOCK}/staging/pv1"))).unwrap();
    fs::write(tree.file(&format!("{BLOCK}/pv1/dev/u1")), "").unwrap();
    fs::write(tree.file(&format!("{BLOCK}/publish/pv1/u2")), "").unwrap();
    let link = tree.file("pods/u3/volumeDevices/kubernetes.io~csi/pv1");
    std::os::unix::fs::symlink("/dev/gone", &link).unwrap();
    let recovered = recover(&tree.root, &mounted(&[]));
    let [found] = recovered.volumes.as_slice() else {
        panic!("{recovered:?}");
    };
    let expected = VolumeIdentity::block("d.example", "h1", "pv1").unwrap();
    assert_eq!(found.identity, expected);
    assert!(found.is_staged && !found.has_record);
    let pods: Vec<_> = found.pods.keys().map(PodUid::as_str).collect();
    assert_eq!(pods, ["u1", "u2", "u3"]);
    assert_eq!((recovered.unknown, recovered.leftovers), (vec![], vec![]));
}

#[test]
fn a_record_of_a_block_volume_names_its_directories() {
    let tree = tree();
    let volume = VolumeIdentity::block("d.example", "h1", "pv1").unwrap();
    let record = VolumeRecord {
        identity: volume.clone(),
        spec_name: "pv1".into(),
        attach_required: true,
        is_staged: false,
        pods: [("u1".into(), "pv1".to_owned())].into(),
        owner_group: None,
        size: None,
    };
    record::write(&tree.root, &record).unwrap();
    // A pod of a Go kubelet that ran since.
    fs::write(tree.file(&format!("{BLOCK}/pv1/dev/u2")), "").unwrap();
    let data = tree.file(&format!("{BLOCK}/pv1/data/vol_data.json"));
    for (text, is_staged, unknown) in
        [("", false, 0), (BLOCK_DATA, true, 0), (&BLOCK_DATA.replace("h1", "h2"), false, 1)]
    {
        fs::write(&data, text).unwrap();
        let recovered = recover(&tree.root, &mounted(&[]));
        let [found] = recovered.volumes.as_slice() else {
            panic!("{recovered:?}");
        };
        assert_eq!((&found.identity, found.is_staged), (&volume, is_staged));
        let pods = if unknown == 0 { 2 } else { 1 };
        assert_eq!(found.pods.len(), pods, "{text}");
        assert_eq!(recovered.unknown.len(), unknown, "{text}");
        assert_eq!(recovered.leftovers, []);
    }
}

#[test]
fn what_is_left_of_a_block_volume_is_removed_unless_it_is_mounted() {
    let tree = tree();
    let map = tree.file(&format!("{BLOCK}/pv1/dev/u1"));
    fs::write(&map, "").unwrap();
    fs::write(tree.file(&format!("{BLOCK}/pv1/data/vol_data.json")), "").unwrap();
    let staging = tree.file(&format!("{BLOCK}/staging/pv2"));
    fs::create_dir_all(&staging).unwrap();
    let mounts = mounted(std::slice::from_ref(&map));
    let recovered = recover(&tree.root, &mounts);
    let [unknown] = recovered.unknown.as_slice() else {
        panic!("{recovered:?}");
    };
    assert_eq!(unknown.why, "vol_data.json is empty");
    assert!(recovered.keeps_in_use(&volume("h1").unique_name()));
    assert!(remove_leftovers(&recovered.leftovers, &mounts).is_empty());
    assert!(!staging.exists() && map.exists());
    let recovered = recover(&tree.root, &mounted(&[]));
    assert_eq!(recovered.unknown, []);
    let left = remove_leftovers(&recovered.leftovers, &mounted(&[]));
    assert!(left.is_empty(), "{left:?}");
    assert!(!tree.root.path().join(BLOCK).join("pv1").exists());
}

#[test]
fn two_volumes_of_one_handle_are_not_both_undone() {
    let tree = tree();
    let data = StageData { identity: volume("h1"), selinux: None };
    vol_data::write_staged(&tree.stage("h1"), &data).unwrap();
    let block = tree.file(&format!("{BLOCK}/pv1/data/vol_data.json"));
    fs::write(block, BLOCK_DATA).unwrap();
    let recovered = recover(&tree.root, &mounted(&[]));
    assert_eq!(recovered.volumes.len(), 1);
    assert_eq!(recovered.unknown.len(), 1);
    assert!(recovered.keeps_in_use(&volume("h1").unique_name()));
}

#[test]
fn a_directory_that_cannot_be_listed_keeps_everything_in_use() {
    let tree = tree();
    fs::write(tree.file("csi_volumes"), "").unwrap();
    let recovered = recover(&tree.root, &mounted(&[]));
    assert_eq!(recovered.unknown.len(), 1);
    assert!(recovered.keeps_in_use("kubernetes.io/csi/any^h"));
}
