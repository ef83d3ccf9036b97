//! The end of a pod on a node that is drained.
//!
//! A volume can be used on another node once it is unstaged here. Who drains a node takes it as empty when its pods are
//! gone, and may switch it off: so the last pod of a volume is not gone before.

use super::PodSync;
use crate::model::reasons::event;
use crate::model::{Pod, PodExt as _, PodUid};
use crate::state::events::ObjectRef;
use crate::state::node_object::NodeObject;
use crate::state::pod_history::DecisionKind;
use crate::state::pod_manager::PodManager;
use crate::volumes::VolumeError;
use crate::volumes::csi::VolumesOfPod;
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

/// How long the end of a pod waits.
const UNSTAGE_WAIT: Duration = Duration::from_secs(60);

/// The CSI volumes of pods whose volumes are being torn down.
pub(super) type EndingVolumes = Mutex<HashMap<PodUid, VolumesOfPod>>;

impl PodSync {
    /// Tears down the volumes of a pod that has ended.
    pub(super) async fn end_volumes(&self, pod: &Pod) -> Result<(), VolumeError> {
        let uid = pod.uid();
        let had = self.volumes.csi().of_pod(&uid);
        // Kept if the teardown fails: the next one no longer finds what this one unpublished.
        {
            let mut ending = self.ending_volumes.lock();
            ending.entry(uid.clone()).or_default().extend(had);
        }
        let torn_down = self.volumes.teardown(&uid).await;
        self.report_teardown(pod, &torn_down);
        torn_down?;
        let had = self.ending_volumes.lock().remove(&uid);
        self.wait_for_unstage(pod, &had.unwrap_or_default()).await;
        Ok(())
    }

    /// Waits until the volumes of a deleted pod are unstaged, while the node is cordoned. After the timeout an event names
    /// what is left. A pod that was deleted by force waits for nothing.
    async fn wait_for_unstage(&self, pod: &Pod, volumes: &VolumesOfPod) {
        let Some(pods) = self.status_publisher.desired_pods() else {
            return;
        };
        let uid = pod.uid();
        let newest = pods.get(&uid);
        let is_deleted = newest.is_some_and(|pod| pod.metadata.deletion_timestamp.is_some());
        let node = self.volumes.csi().sources().node.clone();
        if !is_deleted || volumes.left().is_empty() || !is_cordoned(node.borrow().as_deref()) {
            return;
        }
        let why = || {
            let left = volumes.left().join(", ");
            format!("the node is drained, and these volumes are not unstaged: {left}")
        };
        self.record_history(pod, DecisionKind::Wait, why());
        if wait(volumes.undone(), node, pods, &uid).await.is_err() {
            let object = ObjectRef::pod(pod);
            self.events.warning(&object, event::FAILED_UNMOUNT, why());
        }
    }
}

/// Waits until volumes are undone, the node is not cordoned any more, or the pod is not desired any more.
async fn wait(
    undone: impl Future<Output = ()>,
    mut node: NodeObject,
    pods: &PodManager,
    uid: &PodUid,
) -> Result<(), Elapsed> {
    let mut changes = pods.subscribe();
    let over = async {
        // A sender that is gone means that the kubelet ends.
        tokio::select! {
            () = undone => {}
            _ = node.wait_for(|node| !is_cordoned(node.as_deref())) => {}
            _ = changes.wait_for(|_| !pods.contains(uid)) => {}
        }
    };
    timeout(UNSTAGE_WAIT, over).await
}

fn is_cordoned(node: Option<&Node>) -> bool {
    let spec = node.and_then(|node| node.spec.as_ref());
    spec.and_then(|spec| spec.unschedulable).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;
    use crate::state::node_object::NodeObjectWriter;
    use crate::state::pod_manager::PodManagerWriter;
    use serde_json::json;
    use std::future::pending;
    use std::sync::Arc;
    use tokio::time::sleep;

    fn node(version: &str, unschedulable: bool) -> Node {
        let node = json!({"metadata": {"resourceVersion": version}, "spec": {"unschedulable": unschedulable}});
        serde_json::from_value(node).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_waits_for_its_volumes_while_it_is_known_and_the_node_is_cordoned() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "a", "namespace": "default", "uid": "u"},
        }))
        .unwrap();
        let uid = pod.uid();
        type Change = fn(&NodeObjectWriter, &PodManagerWriter, &PodUid);
        let cases: [(&str, u64, Change); 4] = [
            ("nothing happens", 60, |_, _, _| {}),
            ("uncordoned", 5, |object, _, _| object.set(node("2", false))),
            ("the Node is deleted", 5, |object, _, _| object.clear()),
            ("deleted by force", 5, |_, pods, uid| drop(pods.remove(uid))),
        ];
        for (what, seconds, change) in cases {
            let (object, pods) = (NodeObjectWriter::default(), PodManagerWriter::default());
            object.set(node("1", true));
            pods.set(Arc::new(pod.clone()));
            let (began, reader) = (clock::instant(), pods.reader());
            let waiting = wait(pending(), object.reader(), &reader, &uid);
            let changing = async {
                sleep(Duration::from_secs(5)).await;
                change(&object, &pods, &uid);
            };
            let (waited, ()) = tokio::join!(waiting, changing);
            assert_eq!(clock::since(began).as_secs(), seconds, "{what}");
            assert_eq!(waited.is_err(), seconds == 60, "{what}");
        }
        let (object, pods) = (NodeObjectWriter::default(), PodManagerWriter::default());
        object.set(node("1", true));
        pods.set(Arc::new(pod));
        let reader = pods.reader();
        assert!(wait(async {}, object.reader(), &reader, &uid).await.is_ok());
    }
}
