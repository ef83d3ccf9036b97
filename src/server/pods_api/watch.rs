//! One watch of the Pods API.

use super::v1alpha1::{EventType, WatchPodsEvent};
use super::{Changes, PodsApi, identity};
use crate::model::{PodExt as _, PodUid};
use crate::pods::pod_sync::PodWithStatus;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use tonic::Status;

/// A watch of a client, and the events that it has not read yet.
pub(super) struct PodsWatch {
    api: PodsApi,
    changes: Changes,
    sent: HashMap<PodUid, PodWithStatus>,
    events: VecDeque<(EventType, Option<PodWithStatus>)>,
}

impl PodsWatch {
    /// A watch whose first events are the known pods.
    pub(super) async fn start(api: PodsApi) -> Self {
        let changes = api.0.changes.clone();
        let pods = api.list().await;
        let added = pods.iter().cloned();
        let events = added.map(|pod| (EventType::Added, Some(pod)));
        let events = events.chain([(EventType::InitialSyncComplete, None)]);
        Self {
            events: events.collect(),
            sent: pods.into_iter().map(|pod| (pod.0.uid(), pod)).collect(),
            api,
            changes,
        }
    }

    /// The next event, as soon as there is one.
    pub(super) async fn next(mut self) -> Option<(Result<WatchPodsEvent, Status>, Self)> {
        loop {
            if let Some((kind, pod)) = self.events.pop_front() {
                let event = pod.map_or(Ok(Vec::new()), |pod| self.api.encode(pod));
                let event = event.map(|pod| WatchPodsEvent { r#type: kind.into(), pod });
                return Some((event, self));
            }
            self.changes.next().await?;
            let events = diff(&mut self.sent, self.api.sorted()).into_iter();
            self.events.extend(events.map(|(kind, pod)| (kind, Some(pod))));
        }
    }
}

/// Compares the pods with those that were sent last. A new pod is sent once it has a status, as upstream.
pub(super) fn diff(
    sent: &mut HashMap<PodUid, PodWithStatus>,
    pods: Vec<PodWithStatus>,
) -> Vec<(EventType, PodWithStatus)> {
    let uids: HashSet<PodUid> = pods.iter().map(|(pod, _)| pod.uid()).collect();
    let gone = sent.extract_if(|uid, _| !uids.contains(uid));
    let gone = gone.map(|(_, (pod, _))| (EventType::Deleted, (Arc::new(identity(&pod)), None)));
    let mut events: Vec<_> = gone.collect();
    for pod in pods {
        let kind = match sent.get(&pod.0.uid()) {
            None if pod.1.is_none() => continue,
            None => EventType::Added,
            Some(last) if is_same(last, &pod) => continue,
            Some(_) => EventType::Modified,
        };
        sent.insert(pod.0.uid(), pod.clone());
        events.push((kind, pod));
    }
    events
}

fn is_same(one: &PodWithStatus, other: &PodWithStatus) -> bool {
    let same_status = match (&one.1, &other.1) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other) || one == other,
        (one, other) => one.is_none() && other.is_none(),
    };
    same_status && (Arc::ptr_eq(&one.0, &other.0) || one.0 == other.0)
}
