//! Volumes of one pod side by side: some hang, some fail.

use super::hung::{LIMIT, wait_until};
use super::pod_volumes::TIMEOUT;
use super::*;
use futures::FutureExt as _;
use std::collections::HashSet;

fn two() -> Pod {
    pod(json!([
        {"name": "ram", "emptyDir": {"medium": "Memory"}},
        {"name": "disk", "emptyDir": {}},
    ]))
}

impl Node {
    /// Begins to prepare the pod while `ram` hangs, and waits until nothing else is to be done.
    async fn hung(
        &self,
        cancel: &CancellationToken,
    ) -> tokio::task::JoinHandle<Result<PreparedVolumes, VolumesNotReady>> {
        self.mounter.hang("ram");
        let (manager, cancel) = (self.manager.clone(), cancel.clone());
        let sync = tokio::spawn(async move { manager.prepare(&two(), &cancel).await });
        wait_until("ram hangs and disk is ready", || {
            let states = self.manager.states(&"u1".into());
            self.mounter.0.lock().waiting > 0 && states.iter().any(|(_, state)| state.ready)
        })
        .await;
        sync
    }

    fn reasons(&self) -> Vec<(String, Option<String>)> {
        let states = self.manager.states(&"u1".into()).into_iter();
        states.map(|(name, state)| (name, state.reason())).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_hangs_is_named_and_the_pod_is_synced_when_it_is_ready() {
    let node = node();
    let sync = node.hung(&never()).await;
    let waits = Some("waits for its files".to_owned());
    let expected = [("ram".to_owned(), waits), ("disk".to_owned(), None)];
    assert_eq!(node.reasons(), expected);
    tokio::time::advance(TIMEOUT).await;
    let error = sync.await.unwrap().unwrap_err();
    assert_eq!(
        error_chain(&error),
        "Unable to attach or mount volumes: unmounted volumes=[ram], unattached volumes=[], \
         failed to process volumes=[]: timed out waiting for the condition"
    );
    assert!(error.others.is_empty(), "{error:?}");
    assert_eq!(node.reasons(), expected, "it goes on");
    node.mounter.release();
    let changed = tokio::time::timeout(LIMIT, node.manager.changed()).await;
    assert_eq!(changed.unwrap(), HashSet::from(["u1".into()]));
    let paths = node.prepare(&two()).await.unwrap();
    assert_eq!(paths.keys().collect::<Vec<_>>(), ["disk", "ram"]);
    assert_eq!(node.mounter.0.lock().tmpfs.len(), 1, "it is mounted once");
}

#[tokio::test]
async fn a_sync_that_is_cancelled_leaves_what_is_under_way_to_the_next() {
    let node = node();
    let cancel = CancellationToken::new();
    let sync = node.hung(&cancel).await;
    cancel.cancel();
    let error = sync.await.unwrap().unwrap_err();
    assert!(matches!(*error.first, VolumeError::Cancelled), "{error:?}");
    let manager = node.manager.clone();
    let next = tokio::spawn(async move { manager.prepare(&two(), &never()).await });
    node.mounter.release();
    assert_eq!(next.await.unwrap().unwrap().paths.len(), 2);
    assert_eq!(node.mounter.0.lock().tmpfs.len(), 1, "it is mounted once");
}

#[tokio::test]
async fn the_tear_down_waits_for_what_is_being_created_and_nothing_is_created_later() {
    let node = node();
    let cancel = CancellationToken::new();
    let sync = node.hung(&cancel).await;
    cancel.cancel();
    sync.await.unwrap().unwrap_err();
    let volumes = node.manager.shared.of(&"u1".into()).unwrap();
    let manager = node.manager.clone();
    let down = tokio::spawn(async move { manager.teardown(&"u1".into()).await });
    wait_until("nothing more is created", || volumes.creation_guard().is_err()).await;
    assert!(!down.is_finished(), "the volume is being created");
    node.mounter.release();
    down.await.unwrap().unwrap();
    node.manager.remove_pod_dir(&"u1".into()).await.unwrap();
    assert!(node.mounter.0.lock().mounts.is_empty());
    assert!(pod_dirs::list(node.manager.root()).unwrap().is_empty());
    assert!(volumes.creation_guard().is_err());
    // Another pod of this UID may be set up.
    assert_eq!(node.prepare(&two()).await.unwrap().len(), 2);
}

#[tokio::test]
async fn all_that_fails_is_reported_and_what_is_ready_stays() {
    let node = node();
    let missing = node.base.join("missing");
    let pod = pod(json!([
        {"name": "a", "hostPath": {"path": missing, "type": "Directory"}},
        {"name": "ram", "emptyDir": {"medium": "Memory"}},
        {"name": "b", "hostPath": {"path": missing, "type": "File"}},
    ]));
    for _ in 0..2 {
        let error = node.manager.prepare(&pod, &never()).await.unwrap_err();
        let texts: Vec<_> = error.errors().map(|error| error_chain(error)).collect();
        assert_eq!(texts.len(), 2, "{texts:?}");
        assert!(texts[0].contains("is not a directory") && texts[1].contains("is not a file"));
        assert_eq!(node.mounter.0.lock().tmpfs.len(), 1);
    }
    fs::create_dir(&missing).unwrap();
    let error = node.manager.prepare(&pod, &never()).await.unwrap_err();
    assert!(error.others.is_empty(), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_sub_path_that_hangs_holds_one_thread_and_its_volume_is_named_however_often_it_is_tried()
{
    let node = node();
    let (volume, good) = (node.base.join("volume"), node.base.join("good"));
    fs::create_dir(&volume).unwrap();
    fs::create_dir(&good).unwrap();
    let pod = pod(json!([
        {"name": "v", "hostPath": {"path": volume}},
        {"name": "good", "hostPath": {"path": good}},
    ]));
    node.manager.prepare(&pod, &never()).await.unwrap();
    let bind = |container: &'static str, requests: Vec<SubPathRequest>| {
        let manager = node.manager.clone();
        tokio::spawn(async move {
            let (uid, cancel) = (PodUid::from("u1"), never());
            let bound = manager.prepare_sub_paths(&uid, container, requests, &cancel);
            bound.await.map(|bound| bound.len())
        })
    };
    let of_volume = || sub_path::request(&volume, "a");
    // The name of what is mounted on: the index of the mount.
    node.mounter.hang("3");
    for (attempt, container) in ["c", "c", "other", "c"].into_iter().enumerate() {
        let (uid, cancel) = (PodUid::from("u1"), never());
        let manager = &node.manager;
        let bound = manager.prepare_sub_paths(&uid, container, of_volume(), &cancel);
        let mut bound = std::pin::pin!(bound);
        assert!(bound.as_mut().now_or_never().is_none());
        wait_until("it hangs", || node.mounter.0.lock().waiting == 1).await;
        tokio::time::advance(TIMEOUT + std::time::Duration::from_millis(1)).await;
        let error = bound.await.unwrap_err();
        assert_eq!(error_chain(&error), "sub-paths of volume \"v\" are not ready after 123 s");
        assert_eq!(node.mounter.0.lock().waiting, 1, "attempt {attempt}");
    }
    let binds = Some("binding sub-paths for container c".to_owned());
    assert!(node.reasons().contains(&("v".to_owned(), binds)));
    // Another volume of the pod is not affected.
    let mut of_another = sub_path::request(&good, "a");
    for request in &mut of_another {
        (request.volume, request.mount_index) = ("good".into(), 4);
    }
    assert_eq!(bind("c", of_another).await.unwrap().unwrap(), 1);
    let next = [bind("c", of_volume()), bind("other", of_volume())];
    node.mounter.release();
    for bound in next {
        assert_eq!(bound.await.unwrap().unwrap(), 1);
    }
    // The one that hung, the other volume's and the two after it; none of those that gave up.
    assert_eq!(node.mounter.0.lock().bound.len(), 4);
    assert!(node.reasons().iter().all(|(_, reason)| reason.is_none()));
}
