//! The source of the API server: a watch of the pods that are bound to this node.
//!
//! A failure of the API server changes nothing. A pod has been deleted if the watch says so. A pod that is only missing
//! from a list is confirmed first: a second list must lack it, too, and the API server must know this node and be of the
//! cluster that the pod came from. Otherwise a server that has lost its data, or not loaded it yet, would empty the node.
//! A cluster is identified by the UID of its Service `default/kubernetes`, which an API server creates if it does not
//! exist. The Node object does not identify it, because this kubelet registers with any server.
//!
//! While the API server is unavailable at the start, running pods of the stored list of the last kubelet are kept running.
//! What else the runtime has of the API server's pods, or the stored list, is confirmed like a missing pod before its
//! source counts as having removed it.

mod accept;
mod confirm;
mod known;
mod store;

use super::SourceList;
use crate::apiserver::{ApiServer, WatchEvent};
use crate::base::clock::{self, Instant};
use crate::base::error_chain;
use crate::model::{Pod, PodExt, PodFullName, PodSource, PodStatus, PodUid, reasons};
use crate::state::events::{EventRecorder, ObjectRef};
use crate::state::node_object::NodeObject;
use crate::state::pod_cache::PodCache;
pub use accept::accept;
use anyhow::Context as _;
pub use confirm::pods_of;
use confirm::{Confirmation, cluster, confirm};
use futures::future::{BoxFuture, FutureExt as _, join_all};
use known::{ApiPods, RefusedPod};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use store::ApiPodStore;
use tokio::sync::mpsc;
use tokio::time::{sleep_until, timeout};
use tokio_util::sync::CancellationToken;

/// Timeout for the runtime statuses of stored pods, before running ones are adopted.
const ADOPT_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout for the Node object, which admission needs, before pods are delivered.
const NODE_TIMEOUT: Duration = Duration::from_secs(10);
/// Shortest and longest delay between failed confirmations of a pod that is missing from the list.
const CONFIRM_RETRY: Duration = Duration::from_secs(2);
const MAX_CONFIRM_RETRY: Duration = Duration::from_secs(60);
/// How long pods are kept that are missing from an API server of another cluster, or without the Service.
const OTHER_CLUSTER_TIMEOUT: Duration = Duration::from_secs(3600);

/// Configuration of the source.
#[derive(Clone, Debug)]
pub struct ApiConfig {
    /// The API server.
    pub api: ApiServer,
    /// The directory of the stored list.
    pub directory: PathBuf,
    /// The runtime statuses, by which running pods are adopted at the start.
    pub cache: PodCache,
    /// The Node object, for which the first list waits.
    pub node: NodeObject,
}

/// The source and the store of its list, each to be run as a task.
pub(super) fn start(
    config: ApiConfig,
    node_name: String,
    lists: mpsc::Sender<SourceList>,
    recorder: EventRecorder,
) -> (ApiPodStore, ApiSource) {
    let store = ApiPodStore::new(config.directory);
    let source = ApiSource {
        api: config.api,
        cache: config.cache,
        node: config.node,
        known: ApiPods::new(node_name.clone(), Vec::new(), clock::timestamp()),
        node_name,
        store: store.clone(),
        lists,
        recorder,
        refused: HashMap::new(),
        cluster: None,
        other_since: None,
        left_over: BTreeMap::new(),
    };
    (store, source)
}

/// A confirmation of what the list lacks, not begun or running.
type PendingConfirmation = BoxFuture<'static, Result<Confirmation, String>>;

/// A running request for the identity of the cluster.
type ClusterLookup = BoxFuture<'static, Result<Option<String>, String>>;

pub(super) struct ApiSource {
    api: ApiServer,
    cache: PodCache,
    node: NodeObject,
    node_name: String,
    known: ApiPods,
    store: ApiPodStore,
    lists: mpsc::Sender<SourceList>,
    recorder: EventRecorder,
    /// Why pods were refused, by UID, so that each is reported once.
    refused: HashMap<String, String>,
    /// The identity of the cluster of the known pods.
    cluster: Option<String>,
    /// When the API server was first found to be of another cluster.
    other_since: Option<Instant>,
    /// Pods of the stored list that do not run, until the first list.
    left_over: BTreeMap<PodUid, PodFullName>,
}

impl ApiSource {
    /// Delivers lists until shutdown.
    pub(super) async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let ended = shutdown.run_until_cancelled(self.watch()).await;
        ended.unwrap_or(Ok(()))
    }

    async fn watch(mut self) -> anyhow::Result<()> {
        self.adopt().await?;
        // With a timeout, because pods must start even if the Node object never appears.
        let _ = timeout(NODE_TIMEOUT, self.node.wait_for(Option::is_some)).await;
        let mut watch = self.api.list_watch::<Pod>(pods_of(&self.node_name));
        let mut confirmation: Option<PendingConfirmation> = None;
        let (mut next_confirm_at, mut delay) = (clock::instant(), CONFIRM_RETRY);
        let mut registered = self.node_uid();
        let mut cluster_lookup: Option<ClusterLookup> = None;
        let mut failing = false;
        loop {
            if confirmation.is_none() {
                confirmation = self.begin_confirmation();
            }
            tokio::select! {
                event = watch.next() => {
                    let failed = match &event {
                        WatchEvent::Failed(error) => !self.api.is_reported(error),
                        _ => false,
                    };
                    if let WatchEvent::Failed(error) = &event && failed && !failing {
                        tracing::warn!(err = %error_chain(error.as_ref()), "Failed to watch pods; running pods are kept");
                    } else if failing && !failed {
                        tracing::info!("Watching pods recovered");
                    }
                    failing = failed;
                    let listed = matches!(event, WatchEvent::Listed(_));
                    let changed = self.on_event(event);
                    if failed || listed {
                        // What began before may have been answered by another server than this list, or be older.
                        cluster_lookup = None;
                        confirmation = None;
                    }
                    let unknown = self.cluster.is_none() && cluster_lookup.is_none();
                    if !failed && self.known.list_has_known_pods() && (listed || unknown) {
                        let api = self.api.clone();
                        cluster_lookup = Some(async move { cluster(&api).await }.boxed());
                    }
                    if changed {
                        self.deliver().await?;
                    }
                }
                answer = next_confirmation(&mut confirmation, next_confirm_at) => {
                    confirmation = None;
                    if self.on_confirmation(answer) {
                        delay = CONFIRM_RETRY;
                        self.deliver().await?;
                    } else {
                        next_confirm_at = clock::instant() + delay;
                        delay = (delay * 2).min(MAX_CONFIRM_RETRY);
                    }
                }
                Ok(()) = self.node.changed() => {
                    let node = self.node_uid();
                    if node != registered {
                        // Nothing was confirmed while the API server did not know this node.
                        (next_confirm_at, delay) = (clock::instant(), CONFIRM_RETRY);
                        registered = node;
                    }
                }
                learned = cluster_lookup_result(&mut cluster_lookup) => {
                    cluster_lookup = None;
                    self.on_cluster(learned);
                }
            }
        }
    }

    /// Delivers the running pods of the stored list. Others are not started before the API server confirms that they still
    /// exist.
    async fn adopt(&mut self) -> anyhow::Result<()> {
        self.cache.wait_runtime_listed().await;
        self.cluster = self.store.cluster().await;
        let stored = self.store.read().await;
        let uids: Vec<_> = stored.iter().map(|pod| pod.uid()).collect();
        let settled = join_all(uids.iter().map(|uid| self.cache.settled(uid)));
        // One that is not settled by then may be running.
        let _ = timeout(ADOPT_TIMEOUT, settled).await;
        let mut adopted = Vec::new();
        for pod in stored {
            let (uid, name) = (pod.uid(), pod.full_name());
            let settled = self.cache.try_settled(&uid);
            if !settled.is_none_or(|status| status.may_be_running()) {
                self.left_over.insert(uid, name);
                continue;
            }
            match accept(Arc::unwrap_or_clone(pod), &self.node_name) {
                Ok(pod) => adopted.push(pod),
                Err(why) => {
                    tracing::warn!(podUID = %uid, err = why, "Ignoring a stored pod");
                    self.left_over.insert(uid, name);
                }
            }
        }
        if adopted.is_empty() {
            return Ok(());
        }
        tracing::info!(pods = adopted.len(), "Taking over running pods of the API server");
        self.known = ApiPods::new(self.node_name.clone(), adopted, clock::timestamp());
        self.send().await
    }

    /// Handles an event of the watch; true if a list has to be delivered.
    fn on_event(&mut self, event: WatchEvent<Pod>) -> bool {
        match event {
            WatchEvent::Listed(items) => {
                if self.known.is_first_list() {
                    let left_over = self.left_over();
                    self.known.left_over(left_over);
                }
                let refused = self.known.listed(items, clock::timestamp());
                if self.known.list_has_known_pods() && !self.known.has_doubts() {
                    self.other_since = None;
                }
                self.refused.retain(|uid, _| refused.iter().any(|refused| refused.uid == *uid));
                refused.into_iter().for_each(|refused| self.report(refused));
            }
            WatchEvent::Applied(item) => {
                if let Err(refused) = self.known.applied(item, clock::timestamp()) {
                    self.report(refused);
                }
            }
            WatchEvent::Deleted(item) => {
                let metadata = match &item {
                    Ok(pod) => &pod.metadata,
                    Err(unreadable) => &unreadable.metadata,
                };
                let uid = metadata.uid.as_deref().unwrap_or_default();
                self.refused.remove(uid);
                self.known.deleted(&uid.into());
            }
            WatchEvent::Failed(_) => return false,
        }
        true
    }

    /// Reports a pod that is not accepted, once per reason, with an event. The pod itself is not changed.
    fn report(&mut self, refused: RefusedPod) {
        let RefusedPod { namespace, name, uid, why } = refused;
        if self.refused.get(&uid) == Some(&why) {
            return;
        }
        tracing::warn!(pod = %format!("{namespace}/{name}"), podUID = uid, err = why, "Ignoring a pod of the API server");
        let mut pod = Pod::default();
        pod.metadata.namespace = Some(namespace);
        pod.metadata.name = Some(name);
        pod.metadata.uid = Some(uid.clone());
        let text = format!("Error validating pod from api: {why}");
        let reason = reasons::event::FAILED_VALIDATION;
        self.recorder.warning(&ObjectRef::pod(&pod), reason, text);
        self.refused.insert(uid, why);
    }

    /// The UID of the Node object, if the API server knows this node.
    fn node_uid(&self) -> Option<String> {
        self.node.borrow().as_ref()?.metadata.uid.clone()
    }

    /// What an earlier kubelet has left of pods of the API server, in the runtime or in the stored list, and this one has
    /// not adopted. A pod whose source was not read yet may be one of the API server.
    fn left_over(&mut self) -> BTreeMap<PodUid, PodFullName> {
        let mut left_over = std::mem::take(&mut self.left_over);
        let pods = self.cache.pods().into_iter();
        let of_api = pods.filter(|status| status.source() == PodSource::Api);
        let name = |status: &PodStatus| PodFullName::of(&status.name, &status.namespace);
        left_over.extend(of_api.map(|status| (status.uid.clone(), name(&status))));
        left_over
    }

    fn begin_confirmation(&mut self) -> Option<PendingConfirmation> {
        // Meanwhile the source of a pod may have been read.
        let cache = &self.cache;
        let is_of_api = |uid: &PodUid| cache.latest(uid).source() == PodSource::Api;
        self.known.retain_left_over(is_of_api);
        if !self.known.has_doubts() {
            return None;
        }
        let (api, node) = (self.api.clone(), self.node_name.clone());
        let known = self.cluster.clone();
        Some(async move { confirm(&api, &node, known.as_deref()).await }.boxed())
    }

    /// Stores the identity of the cluster.
    fn on_cluster(&mut self, learned: Result<Option<String>, String>) {
        match learned {
            // While pods are unconfirmed, the known identity is kept: it is that of the cluster they came from.
            Ok(Some(_)) if self.cluster.is_some() && self.known.has_doubts() => {}
            Ok(Some(uid)) if self.cluster.as_ref() != Some(&uid) => {
                self.store.set_cluster(&uid);
                self.cluster = Some(uid);
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(err = error, "Reading the identity of the cluster failed")
            }
        }
    }

    /// Whether [`OTHER_CLUSTER_TIMEOUT`] has passed since the API server was found to be of another cluster. Emits an event
    /// the first time.
    fn has_waited_for_cluster(&mut self) -> bool {
        let now = clock::instant();
        if let Some(since) = self.other_since {
            return now.duration_since(since) >= OTHER_CLUSTER_TIMEOUT;
        }
        self.other_since = Some(now);
        let text = format!(
            "The API server does not have the pods of this node, nor the cluster that they came from; they stay for {} minutes",
            OTHER_CLUSTER_TIMEOUT.as_secs() / 60
        );
        tracing::warn!(node = self.node_name, "{text}");
        let node = ObjectRef::node(&self.node_name);
        self.recorder.warning(&node, reasons::event::OTHER_CLUSTER, text);
        false
    }

    /// Handles the result of a confirmation; false if it has to be retried.
    fn on_confirmation(&mut self, answer: Result<Confirmation, String>) -> bool {
        let Confirmation { pods, is_other_cluster } = match answer {
            Ok(confirmation) => confirmation,
            Err(error) => {
                tracing::warn!(
                    err = error,
                    "Cannot confirm whether pods missing from the list still exist"
                );
                return false;
            }
        };
        let confirmed = self.known.confirmed(pods, clock::timestamp());
        if confirmed.any_exists || !is_other_cluster {
            self.other_since = None;
        }
        for refused in confirmed.refused {
            self.report(refused);
        }
        if is_other_cluster && self.known.has_doubts() && !self.has_waited_for_cluster() {
            return false;
        }
        for uid in self.known.doubts() {
            tracing::info!(podUID = %uid, "The pod is gone from the API server");
            self.known.deleted(&uid);
        }
        true
    }

    async fn deliver(&mut self) -> anyhow::Result<()> {
        self.store.set(&self.known.pods());
        self.send().await
    }

    async fn send(&self) -> anyhow::Result<()> {
        let list = SourceList {
            source: PodSource::Api,
            pods: self.known.pods(),
            completeness: self.known.completeness(),
        };
        let sent = self.lists.send(list).await;
        sent.ok().context("the merger of pod lists has ended")
    }
}

async fn next_confirmation(
    confirmation: &mut Option<PendingConfirmation>,
    not_before: Instant,
) -> Result<Confirmation, String> {
    sleep_until(not_before).await;
    match confirmation {
        Some(confirmation) => confirmation.await,
        None => std::future::pending().await,
    }
}

async fn cluster_lookup_result(
    cluster_lookup: &mut Option<ClusterLookup>,
) -> Result<Option<String>, String> {
    match cluster_lookup {
        Some(cluster_lookup) => cluster_lookup.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::tests::stored::Stored;
    use crate::base::clock;
    use crate::state::node_object::NodeObjectWriter;
    use crate::state::pod_cache::pod_cache;
    use serde_json::json;

    #[tokio::test]
    async fn pods_that_another_cluster_does_not_have_stay_for_an_hour_with_one_event() {
        let recorder = EventRecorder::new();
        let (_writer, cache) = pod_cache();
        let config = ApiConfig {
            api: Stored::start().await.client().await,
            directory: "nowhere".into(),
            cache,
            node: NodeObjectWriter::default().reader(),
        };
        let (lists, _merger) = mpsc::channel(1);
        let (_store, mut source) = start(config, "node1".into(), lists, recorder.clone());
        let pod = |uid: &str| -> Pod {
            let metadata = json!({"name": uid, "namespace": "shop", "uid": uid});
            serde_json::from_value(json!({"metadata": metadata})).unwrap()
        };
        let now = clock::timestamp();
        source.known = ApiPods::new("node1".into(), vec![pod("a"), pod("b")], now);
        source.known.listed(Vec::new(), now);
        // The other cluster has pods for this node, too, which every later list has.
        source.cluster = Some("before".into());
        let other = json!({"name": "c", "namespace": "shop", "uid": "c"});
        let other = json!({"metadata": other, "spec": {"nodeName": "node1", "containers": [{"name": "main"}]}});
        for _ in 0..2 {
            let other = serde_json::from_value(other.clone()).unwrap();
            source.on_event(WatchEvent::Listed(vec![Ok(Box::new(other))]));
            source.on_cluster(Ok(Some("other".into())));
        }
        assert_eq!(source.cluster.as_deref(), Some("before"));
        let mut confirm = || {
            source.on_confirmation(Ok(Confirmation { pods: Vec::new(), is_other_cluster: true }))
        };
        tokio::time::pause();
        for wait in [0, OTHER_CLUSTER_TIMEOUT.as_secs() - 1] {
            tokio::time::advance(Duration::from_secs(wait)).await;
            assert!(!confirm());
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(confirm());
        let left: Vec<_> = source.known.pods().iter().map(|pod| pod.uid()).collect();
        assert_eq!(left, [PodUid::from("c")]);
        let events = recorder.recent();
        let events: Vec<_> = events.iter().map(|e| (&*e.reason, e.count)).collect();
        assert_eq!(events, [("OtherCluster", 1)]);
    }
}
