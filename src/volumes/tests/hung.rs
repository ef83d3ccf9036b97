//! File systems and devices that hang.

use super::kinds::local::RELEASE_TIMEOUT;
use super::*;

pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// Waits for something that threads do, also on a paused clock.
#[expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "threads take real time")]
pub(super) async fn wait_until(what: &str, fact: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !fact() {
        assert!(begun.elapsed() < LIMIT, "{what}");
        std::thread::yield_now();
        tokio::task::yield_now().await;
    }
}

/// Lets go what hangs when the test ends, also with a failure: its runtime waits for all threads.
pub(super) struct Release(pub(super) FakeMounter);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// Begins to bind a sub-path of a path on a file system that hangs, for each of many pods.
async fn hang(node: &Node, dead: &Path) -> Release {
    let release = Release(node.mounter.clone());
    fs::create_dir_all(dead.join("a")).unwrap();
    node.mounter.add(dead, "nfs");
    node.mounter.hang("3");
    let uids = (0..100).map(|number| PodUid::from(format!("hung{number}").as_str()));
    let uids: Vec<_> = uids.collect();
    for uid in &uids {
        let mut pod = pod(json!([{"name": "v", "hostPath": {"path": dead}}]));
        pod.metadata.uid = Some(uid.to_string());
        node.prepare(&pod).await.unwrap();
    }
    for uid in uids {
        let (manager, dead, cancel) = (node.manager.clone(), dead.to_owned(), never());
        tokio::spawn(async move {
            let requests = sub_path::request(&dead, "a");
            let bound = manager.prepare_sub_paths(&uid, "c", requests, &cancel);
            bound.await.map(drop)
        });
    }
    wait_until("some hang", || node.mounter.0.lock().waiting > 0).await;
    release
}

#[tokio::test(start_paused = true)]
async fn a_tear_down_does_not_wait_for_paths_that_hang() {
    let node = node();
    let _release = hang(&node, &node.base.join("dead")).await;
    fs::create_dir_all(node.manager.root().local_devices().join("pv1")).unwrap();
    let manager = node.manager.clone();
    let down = tokio::spawn(async move { manager.teardown(&"other".into()).await });
    wait_until("it is torn down", || down.is_finished()).await;
    assert!(!node.manager.root().local_devices().join("pv1").exists());
}

#[tokio::test(start_paused = true)]
async fn a_mount_that_hangs_keeps_a_few_threads_and_holds_up_no_other() {
    let node = node();
    let (dead, healthy) = (node.base.join("dead"), node.base.join("healthy"));
    let (link, new) = (node.base.join("link"), healthy.join("new"));
    for path in [&dead, &healthy] {
        fs::create_dir(path).unwrap();
    }
    symlink(&dead, &link).unwrap();
    node.mounter.add(&dead, "nfs");
    node.mounter.hang("dead");
    let _release = Release(node.mounter.clone());
    let uid = |number: usize| PodUid::from(format!("hung{number}").as_str());
    let prepared: Vec<_> = (0..200)
        .map(|number| {
            let path = [&dead, &link][number % 2].join(number.to_string());
            let mut pod = pod(host_path(&path, "DirectoryOrCreate"));
            pod.metadata.uid = Some(uid(number).to_string());
            let manager = node.manager.clone();
            tokio::spawn(async move { manager.prepare(&pod, &never()).await.map(drop) })
        })
        .collect();
    wait_until("some hang", || node.mounter.0.lock().waiting == 4).await;
    for (path, kind) in [(&healthy, "Directory"), (&new, "DirectoryOrCreate"), (&dead, "")] {
        node.prepare(&pod(host_path(path, kind))).await.unwrap();
    }
    assert_eq!(node.mounter.0.lock().waiting, 4);
    // A pod that ends takes its attempt with it, unless that has a thread.
    for number in 100..200 {
        node.manager.teardown(&uid(number)).await.unwrap();
    }
    let ended = || prepared.iter().filter(|one| one.is_finished()).count();
    wait_until("their attempts end", || ended() >= 96).await;
    node.mounter.release();
    wait_until("all have ended", || ended() == 200).await;
    let made = (0..100).filter(|number: &usize| dead.join(number.to_string()).is_dir());
    assert_eq!(made.count(), 100);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_hangs_keeps_one_thread_of_its_mount() {
    let node = node();
    let _release = hang(&node, &node.base.join("dead")).await;
    // On the same mount.
    let other = node.base.join("dead/other");
    let pod = pod(host_path(&other, "DirectoryOrCreate"));
    node.prepare(&pod).await.unwrap();
    assert_eq!(node.mounter.0.lock().waiting, 1);
}

#[tokio::test(start_paused = true)]
async fn a_device_that_hangs_holds_up_one_tear_down_and_no_other_device() {
    let node = node();
    let devices = node.manager.root().local_devices();
    for name in ["dead", "fine"] {
        fs::create_dir_all(devices.join(name)).unwrap();
    }
    node.mounter.hang("dead");
    let _release = Release(node.mounter.clone());
    let teardown = |uid: &str| {
        let (manager, uid) = (node.manager.clone(), PodUid::from(uid));
        tokio::spawn(async move { manager.teardown(&uid).await })
    };
    let first = teardown("a");
    wait_until("the other is released", || !devices.join("fine").exists()).await;
    wait_until("it hangs", || node.mounter.0.lock().waiting == 1).await;
    let second = teardown("b");
    wait_until("the second one is torn down", || second.is_finished()).await;
    assert!(!first.is_finished());
    tokio::time::advance(RELEASE_TIMEOUT).await;
    wait_until("the first one is torn down", || first.is_finished()).await;
    node.mounter.release();
    wait_until("it is released", || !devices.join("dead").exists()).await;
}
