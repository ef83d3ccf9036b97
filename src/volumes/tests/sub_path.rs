use super::*;

pub(super) fn request(volume_path: &Path, sub_path: &str) -> Vec<SubPathRequest> {
    vec![SubPathRequest {
        mount_index: 3,
        volume: "v".into(),
        spec_name: "pv".into(),
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
        let bound = node.manager.prepare_sub_paths(&uid, "c", requests, &never()).await;
        let target = node.base.join("kubelet/pods/u1/volume-subpaths/pv/c/3");
        assert_eq!(bound.unwrap()[&3], target);
        let fake = node.mounter.0.lock();
        assert_eq!(fake.bound.len(), round);
        assert_eq!(fake.bound[round - 1], (volume.join("a/b"), target));
        assert_eq!(fake.mounts.len(), 1);
    }
    assert_eq!(fs::metadata(volume.join("a")).unwrap().mode() & 0o7777, 0o2775);
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
    let bound = node.manager.prepare_sub_paths(&uid, "c", requests, &never()).await;
    assert!(bound.unwrap()[&3].is_file());
}

#[tokio::test]
async fn a_sub_path_that_is_bound_already_is_kept() {
    let node = node();
    let volume = node.base.join("volume");
    fs::create_dir(&volume).unwrap();
    fs::write(volume.join("file"), "").unwrap();
    let uid = PodUid::from("u1");
    let target = node.base.join("kubelet/pods/u1/volume-subpaths/pv/c/3");
    let bind = async || {
        let (requests, never) = (request(&volume, "file"), never());
        let bound = node.manager.prepare_sub_paths(&uid, "c", requests, &never);
        assert_eq!(bound.await.unwrap()[&3], target);
        node.mounter.0.lock().bound.len()
    };
    assert_eq!(bind().await, 1);
    // A link to the same file, as the target is while it is mounted.
    fs::remove_file(&target).unwrap();
    fs::hard_link(volume.join("file"), &target).unwrap();
    assert_eq!(bind().await, 1);
    // The file was replaced.
    fs::remove_file(volume.join("file")).unwrap();
    fs::write(volume.join("file"), "").unwrap();
    assert_eq!(bind().await, 2);
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
    for path in ["..", "a/../..", "/etc", "absolute", "relative", "absolute/x", "relative/x"] {
        let requests = request(&volume, path);
        let uid = PodUid::from("u1");
        let bound = node.manager.prepare_sub_paths(&uid, "c", requests, &never()).await;
        assert!(bound.is_err(), "{path}");
    }
    assert!(node.mounter.0.lock().bound.is_empty());
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

#[tokio::test]
async fn links_that_stay_in_the_volume_are_followed_also_from_the_nodes_root() {
    let node = node();
    let volume = node.base.join("volume");
    fs::create_dir_all(volume.join("releases/5/logs")).unwrap();
    fs::write(volume.join("releases/5/file"), "").unwrap();
    symlink(volume.join("releases/5"), volume.join("current")).unwrap();
    symlink("releases/5", volume.join("latest")).unwrap();
    symlink(&volume, volume.join("self")).unwrap();
    let alias = node.base.join("alias");
    symlink(&volume, &alias).unwrap();
    let uid = PodUid::from("u1");
    for (base, path, expected) in [
        (&volume, "latest/logs", "releases/5/logs"),
        (&volume, "current/logs", "releases/5/logs"),
        (&volume, "current/file", "releases/5/file"),
        (&volume, "current/new/er", "releases/5/new/er"),
        (&volume, "self", ""),
        (&alias, "current", "releases/5"),
    ] {
        let requests = request(base, path);
        let bound = node.manager.prepare_sub_paths(&uid, "c", requests, &never()).await;
        bound.unwrap();
        let (real, _) = node.mounter.0.lock().bound.pop().unwrap();
        assert_eq!(real, volume.join(expected).components().as_path(), "{path}");
    }
}

/// Swaps a directory for a link to the node's root and back, as fast as it can.
fn swap(volume: &Path, done: &std::sync::atomic::AtomicBool) -> u64 {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let (dir, link) = (volume.join("dir"), volume.join("link"));
    let mut swaps = 0;
    while !done.load(std::sync::atomic::Ordering::Relaxed) {
        renameat_with(CWD, &dir, CWD, &link, RenameFlags::EXCHANGE).unwrap();
        swaps += 1;
    }
    swaps
}

/// Prepares the same sub-path again and again while its directory is being swapped.
async fn race(node: &Node, link_target: &Path, rounds: usize) -> (usize, usize) {
    let volume = node.base.join("volume");
    fs::create_dir_all(volume.join("dir/sub")).unwrap();
    symlink(link_target, volume.join("link")).unwrap();
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let swapper = {
        let (volume, done) = (volume.clone(), done.clone());
        std::thread::spawn(move || swap(&volume, &done))
    };
    let uid = PodUid::from("u1");
    let (mut bound, mut refused) = (0, 0);
    for round in 0..rounds {
        let path = match round % 3 {
            0 => "dir/sub",
            1 => "dir",
            _ => "dir/new/er",
        };
        let requests = request(&volume, path);
        match node.manager.prepare_sub_paths(&uid, "c", requests, &never()).await {
            Ok(_) => {
                let (real, _) = node.mounter.0.lock().bound.pop().unwrap();
                assert!(real.starts_with(&volume), "bound {}", real.display());
                bound += 1;
            }
            Err(_) => refused += 1,
        }
    }
    done.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(swapper.join().unwrap() > 0);
    (bound, refused)
}

#[tokio::test]
async fn a_directory_that_is_swapped_for_a_link_to_the_root_never_leads_out() {
    let node = node();
    let (bound, refused) = race(&node, Path::new("/"), 6000).await;
    assert!(bound > 0 && refused > 0, "{bound} bound, {refused} refused");
    assert!(!Path::new("/new").exists());
}

#[tokio::test]
async fn nor_does_one_that_is_swapped_for_a_link_to_its_twin_outside() {
    let node = node();
    let outside = node.base.join("outside");
    fs::create_dir_all(outside.join("sub")).unwrap();
    let (bound, refused) = race(&node, Path::new("../outside"), 6000).await;
    assert!(bound > 0 && refused > 0, "{bound} bound, {refused} refused");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "nothing is made there");
}
