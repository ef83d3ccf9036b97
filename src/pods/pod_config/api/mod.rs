//! The source of the API server: a watch of the pods that are bound to this node.
//!
//! A failure of the API server changes nothing. A pod has been deleted if the watch says so. A pod that is only missing
//! from a list is confirmed first: a second list of this pod alone must lack it, too, and the API server must know this
//! node and be of the cluster that the pod came from. Otherwise a server that has lost its data, or not loaded it yet,
//! would empty the node. A cluster is identified by the UID of its Service `default/kubernetes`, which an API server
//! creates if it does not exist. The Node object does not identify it, because this kubelet registers with any server.
//!
//! While the API server is unavailable at the start, running pods of the stored list of the last kubelet are kept running.

mod accept;
mod known;
mod store;

use super::SourceList;
use crate::{
    apiserver::{ApiItem, ApiServer, ResourcePath, Selection, WatchEvent},
    base::error_chain,
    model::{LenientNode, Pod, PodExt, PodSource, PodUid, reasons},
    state::events::{EventRecorder, ObjectRef},
    state::node_object::NodeObject,
    state::pod_cache::PodCache,
};
use accept::accept;
use anyhow::Context as _;
use futures::future::{BoxFuture, FutureExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use known::{ApiPods, RefusedPod};
use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Duration};
use store::ApiPodStore;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};
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
        known: ApiPods::new(node_name.clone(), Vec::new(), Timestamp::now()),
        node_name,
        store: store.clone(),
        lists,
        recorder,
        refused: HashMap::new(),
        cluster: None,
        other_since: None,
    };
    (store, source)
}

/// The result of confirming that one pod is missing.
type PodLookup = Result<Found, String>;

enum Found {
    Pod(ApiItem<Pod>),
    Gone,
    /// The pod is missing, but the server is of another cluster, or without a known identity.
    OtherCluster,
}

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
        let mut watch = self.api.list_watch::<Pod>(Selection {
            namespace: None,
            field_selector: Some(format!("spec.nodeName={}", self.node_name)),
        });
        let mut confirmation: Option<(PodUid, BoxFuture<'static, PodLookup>)> = None;
        let (mut next_confirm_at, mut delay) = (Instant::now(), CONFIRM_RETRY);
        let mut last_confirmed = None;
        let mut cluster_lookup: Option<ClusterLookup> = None;
        let mut failing = false;
        loop {
            if confirmation.is_none() {
                confirmation = self.confirm_next(last_confirmed.as_ref());
            }
            tokio::select! {
                event = watch.next() => {
                    let failed = matches!(event, WatchEvent::Failed(_));
                    if let WatchEvent::Failed(error) = &event && !failing {
                        tracing::warn!(err = %error_chain(error.as_ref()), "Failed to watch pods; running pods are kept");
                    } else if failing && !failed {
                        tracing::info!("Watching pods recovered");
                    }
                    failing = failed;
                    let listed = matches!(event, WatchEvent::Listed(_));
                    let changed = self.on_event(event);
                    if failed || listed {
                        // A lookup that began before may have been answered by another server than this list.
                        cluster_lookup = None;
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
                    let (uid, answer) = answer;
                    confirmation = None;
                    if self.on_confirmation(&uid, answer) {
                        delay = CONFIRM_RETRY;
                        self.deliver().await?;
                    } else {
                        next_confirm_at = Instant::now() + delay;
                        delay = (delay * 2).min(MAX_CONFIRM_RETRY);
                    }
                    last_confirmed = Some(uid);
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
        let mut adopted = Vec::new();
        let deadline = Instant::now() + ADOPT_TIMEOUT;
        for pod in self.store.read().await {
            let uid = pod.uid();
            let left = deadline.saturating_duration_since(Instant::now());
            let settled = timeout(left, self.cache.settled(&uid)).await;
            let runs = settled.map_or_else(
                |_| !self.cache.latest(&uid).is_empty(),
                |status| status.may_be_running(),
            );
            if !runs {
                continue;
            }
            match accept(Arc::unwrap_or_clone(pod), &self.node_name) {
                Ok(pod) => adopted.push(pod),
                Err(why) => tracing::warn!(podUID = %uid, err = why, "Ignoring a stored pod"),
            }
        }
        if adopted.is_empty() {
            return Ok(());
        }
        tracing::info!(
            pods = adopted.len(),
            "Taking over running pods of the API server"
        );
        self.known = ApiPods::new(self.node_name.clone(), adopted, Timestamp::now());
        self.send().await
    }

    /// Handles an event of the watch; true if a list has to be delivered.
    fn on_event(&mut self, event: WatchEvent<Pod>) -> bool {
        match event {
            WatchEvent::Listed(items) => {
                let refused = self.known.listed(items, Timestamp::now());
                if self.known.list_has_known_pods() && self.known.missing_from_list(None).is_none()
                {
                    self.other_since = None;
                }
                self.refused
                    .retain(|uid, _| refused.iter().any(|refused| refused.uid == *uid));
                refused.into_iter().for_each(|refused| self.report(refused));
            }
            WatchEvent::Applied(item) => {
                if let Err(refused) = self.known.applied(item, Timestamp::now()) {
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
        let RefusedPod {
            namespace,
            name,
            uid,
            why,
        } = refused;
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

    fn confirm_next(
        &self,
        last: Option<&PodUid>,
    ) -> Option<(PodUid, BoxFuture<'static, PodLookup>)> {
        let pod = self.known.missing_from_list(last)?;
        let (api, node) = (self.api.clone(), self.node_name.clone());
        let (uid, known) = (pod.uid(), self.cluster.clone());
        let question = async move { confirm_missing(&api, &node, &pod, known).await };
        Some((uid, question.boxed()))
    }

    /// Stores the identity of the cluster.
    fn on_cluster(&mut self, learned: Result<Option<String>, String>) {
        match learned {
            // While pods are unconfirmed, the known identity is kept: it is that of the cluster they came from.
            Ok(Some(_))
                if self.cluster.is_some() && self.known.missing_from_list(None).is_some() => {}
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
        let now = Instant::now();
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
        self.recorder
            .warning(&node, reasons::event::OTHER_CLUSTER, text);
        false
    }

    /// Handles the result of a confirmation; false if it has to be retried.
    fn on_confirmation(&mut self, uid: &PodUid, answer: PodLookup) -> bool {
        if !self.known.is_missing_from_list(uid) {
            return true;
        }
        if matches!(answer, Ok(Found::Pod(_) | Found::Gone)) {
            self.other_since = None;
        }
        match answer {
            Ok(Found::Pod(Ok(pod))) if pod.uid() == *uid => {
                if let Err(refused) = self.known.applied(Ok(pod), Timestamp::now()) {
                    self.report(refused);
                }
            }
            Ok(Found::Pod(Err(_))) => self.known.exists(uid),
            Ok(Found::OtherCluster) if !self.has_waited_for_cluster() => return false,
            Ok(_) => {
                tracing::info!(podUID = %uid, "The pod is gone from the API server");
                self.known.deleted(uid);
            }
            Err(error) => {
                tracing::warn!(podUID = %uid, err = error, "Cannot confirm whether a pod missing from the list still exists");
                return false;
            }
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
    confirmation: &mut Option<(PodUid, BoxFuture<'static, PodLookup>)>,
    not_before: Instant,
) -> (PodUid, PodLookup) {
    sleep_until(not_before).await;
    match confirmation {
        Some((uid, question)) => (uid.clone(), question.await),
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

/// Checks whether a pod that is missing from the list still exists. Lists this pod alone, because the node authorizer does
/// not allow to get a pod by name that no longer exists.
async fn confirm_missing(
    api: &ApiServer,
    node_name: &str,
    pod: &Pod,
    known: Option<String>,
) -> PodLookup {
    if let Some(pod) = list_one(api, node_name, pod).await? {
        return Ok(Found::Pod(pod));
    }
    let node = api
        .get::<LenientNode>(ResourcePath::cluster(node_name))
        .await;
    let node = node.map_err(|error| error_chain(&error))?;
    if node.node.metadata.name.as_deref() != Some(node_name) {
        return Err("the API server does not know this node".into());
    }
    if known.is_some() && cluster(api).await? != known {
        return Ok(Found::OtherCluster);
    }
    Ok(Found::Gone)
}

/// The identity of a cluster; `None` if the Service does not exist or this kubelet may not read it.
async fn cluster(api: &ApiServer) -> Result<Option<String>, String> {
    let service = ResourcePath::namespaced("default", "kubernetes");
    match api.get::<Service>(service).await {
        Ok(service) => Ok(service.metadata.uid),
        Err(error) if error.is_not_found() || error.is_forbidden() => Ok(None),
        Err(error) => Err(error_chain(&error)),
    }
}

async fn list_one(
    api: &ApiServer,
    node_name: &str,
    pod: &Pod,
) -> Result<Option<ApiItem<Pod>>, String> {
    let mut list = api.list_watch::<Pod>(Selection {
        namespace: Some(pod.namespace().to_owned()),
        field_selector: Some(format!(
            "spec.nodeName={node_name},metadata.name={}",
            pod.name()
        )),
    });
    match list.next().await {
        WatchEvent::Listed(items) => Ok(items.into_iter().next()),
        WatchEvent::Failed(error) => Err(error_chain(error.as_ref())),
        WatchEvent::Applied(_) | WatchEvent::Deleted(_) => Err("no list came".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        apiserver::tests::stored::Stored,
        state::{node_object::NodeObjectWriter, pod_cache::pod_cache},
    };
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
        let now = Timestamp::now();
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
        let mut next_confirmation =
            |uid: &str| source.on_confirmation(&uid.into(), Ok(Found::OtherCluster));
        tokio::time::pause();
        for wait in [0, OTHER_CLUSTER_TIMEOUT.as_secs() - 1] {
            tokio::time::advance(Duration::from_secs(wait)).await;
            assert!(!next_confirmation("a") && !next_confirmation("b"));
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(next_confirmation("a"));
        let left: Vec<_> = source.known.pods().iter().map(|pod| pod.uid()).collect();
        assert_eq!(left, ["b", "c"].map(PodUid::from));
        let events = recorder.recent();
        let events: Vec<_> = events.iter().map(|e| (&*e.reason, e.count)).collect();
        assert_eq!(events, [("OtherCluster", 1)]);
    }
}
