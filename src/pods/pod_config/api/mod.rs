//! Pods of the API server: those that are bound to this node.
//!
//! A failure of the API server changes nothing. A pod is gone when the watch deletes it, or when a list lacks it, so
//! does a second one for this pod alone, and the server knows this node and is of the cluster that the pod
//! came from: one that has lost its data, or has not loaded it, does not. A cluster is known by its Service
//! `default/kubernetes`, which its API server re-creates where there is none: the Node object says nothing, as
//! this kubelet registers it with any server. While the API server is away at the start, the pods that
//! the last kubelet knew and that run are kept running.

mod accept;
mod known;
mod store;

use super::SourceList;
use crate::{
    apiserver::{ApiItem, ApiServer, ResourcePath, Selection, WatchEvent},
    base::chain,
    model::{Pod, PodExt, PodSource, PodUid, reasons},
    state::events::{EventRecorder, ObjectRef},
    state::node_object::NodeObject,
    state::pod_cache::PodCache,
};
use accept::accept;
use anyhow::Context as _;
use futures::future::{BoxFuture, FutureExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Service};
use known::{ApiPods, RefusedPod};
use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Duration};
use store::ApiPodStore;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

/// Timeout of the runtime status of an earlier kubelet's pods before they are adopted.
const ADOPT_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of the Node object, for which pods wait.
const NODE_TIMEOUT: Duration = Duration::from_secs(10);
/// Delays between failed confirmations of a pod missing from the list: from the first to the second.
const CONFIRM_RETRY: Duration = Duration::from_secs(2);
const MAX_CONFIRM_RETRY: Duration = Duration::from_secs(60);
/// How long pods stay of which an API server of another cluster, or without that Service, knows nothing.
const OTHER_CLUSTER: Duration = Duration::from_secs(3600);

/// Where pods of the API server come from.
#[derive(Clone, Debug)]
pub struct ApiConfig {
    /// The API server.
    pub api: ApiServer,
    /// Where the last list is kept.
    pub directory: PathBuf,
    /// Which pods run.
    pub cache: PodCache,
    /// The node as the API server has it; pods are admitted by it.
    pub node: NodeObject,
}

/// The source's store and the source itself, to be run as tasks.
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

/// What a question about one pod found.
type PodLookup = Result<Found, String>;

enum Found {
    Pod(ApiItem<Pod>),
    Gone,
    /// It is not there, and the server is not known to have the data that it came from.
    OtherCluster,
}

/// The identity of the cluster, if it can be read.
type Learning = BoxFuture<'static, Result<Option<String>, String>>;

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
    /// The identity of the cluster that the pods are of.
    cluster: Option<String>,
    /// Since when the API server seems to be of another one.
    other_since: Option<Instant>,
}

impl ApiSource {
    /// Delivers lists until shutdown.
    pub(super) async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        tokio::select! {
            () = shutdown.cancelled() => Ok(()),
            result = self.watch() => result,
        }
    }

    async fn watch(mut self) -> anyhow::Result<()> {
        self.adopt().await?;
        // A Node object that never appears keeps no pod waiting for ever.
        let _ = timeout(NODE_TIMEOUT, self.node.wait_for(Option::is_some)).await;
        let mut watch = self.api.list_watch::<Pod>(Selection {
            namespace: None,
            field_selector: Some(format!("spec.nodeName={}", self.node_name)),
        });
        let mut confirmation: Option<(PodUid, BoxFuture<'static, PodLookup>)> = None;
        let (mut next_confirm_at, mut delay) = (Instant::now(), CONFIRM_RETRY);
        let mut last_confirmed = None;
        let mut learning: Option<Learning> = None;
        let mut failing = false;
        loop {
            if confirmation.is_none() {
                confirmation = self.confirm_next(last_confirmed.as_ref());
            }
            tokio::select! {
                event = watch.next() => {
                    let failed = matches!(event, WatchEvent::Failed(_));
                    if let WatchEvent::Failed(error) = &event && !failing {
                        tracing::warn!(err = %chain(error.as_ref()), "Failed to watch pods; running pods are kept");
                    } else if failing && !failed {
                        tracing::info!("Watching pods recovered");
                    }
                    failing = failed;
                    let listed = matches!(event, WatchEvent::Listed(_));
                    let changed = self.on_event(event);
                    if failed || listed {
                        // What was read then may be of another server than the next list.
                        learning = None;
                    }
                    let unknown = self.cluster.is_none() && learning.is_none();
                    if !failed && self.known.is_proven() && (listed || unknown) {
                        let api = self.api.clone();
                        learning = Some(async move { cluster(&api).await }.boxed());
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
                learned = learned(&mut learning) => {
                    learning = None;
                    self.on_cluster(learned);
                }
            }
        }
    }

    /// Takes over the pods of an earlier kubelet that run. Others are not started before the API server says that
    /// they still exist.
    async fn adopt(&mut self) -> anyhow::Result<()> {
        self.cache.complete().await;
        self.cluster = self.store.cluster().await;
        let mut adopted = Vec::new();
        let deadline = Instant::now() + ADOPT_TIMEOUT;
        for pod in self.store.read().await {
            let uid = pod.uid();
            let left = deadline.saturating_duration_since(Instant::now());
            let settled = timeout(left, self.cache.settled(&uid)).await;
            let runs = settled.map_or_else(
                |_| !self.cache.latest(&uid).is_empty(),
                |status| status.is_active(),
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

    /// Whether anything is to be delivered.
    fn on_event(&mut self, event: WatchEvent<Pod>) -> bool {
        match event {
            WatchEvent::Listed(items) => {
                let refused = self.known.listed(items, Timestamp::now());
                if self.known.is_proven() && self.known.missing_from_list(None).is_none() {
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

    /// A pod that is not accepted stays as it is in the API; its event has the reason.
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

    /// Keeps the identity of the cluster.
    fn on_cluster(&mut self, learned: Result<Option<String>, String>) {
        match learned {
            // Pods of the cluster before may be in doubt: they are compared with the one that they came from.
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

    /// Whether pods that an API server of another cluster does not have have stayed for long enough.
    fn has_waited_for_cluster(&mut self) -> bool {
        let now = Instant::now();
        if let Some(since) = self.other_since {
            return now.duration_since(since) >= OTHER_CLUSTER;
        }
        self.other_since = Some(now);
        let text = format!(
            "The API server does not have the pods of this node, nor the cluster that they came from; they stay for {} minutes",
            OTHER_CLUSTER.as_secs() / 60
        );
        tracing::warn!(node = self.node_name, "{text}");
        let node = ObjectRef::node(&self.node_name);
        self.recorder
            .warning(&node, reasons::event::OTHER_CLUSTER, text);
        false
    }

    /// Whether the pod is confirmed or gone; false after a failed request.
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

async fn learned(learning: &mut Option<Learning>) -> Result<Option<String>, String> {
    match learning {
        Some(learning) => learning.await,
        None => std::future::pending().await,
    }
}

/// Lists one pod. Reading it by name is not allowed to a node once the pod is gone.
async fn confirm_missing(
    api: &ApiServer,
    node_name: &str,
    pod: &Pod,
    known: Option<String>,
) -> PodLookup {
    if let Some(pod) = list_one(api, node_name, pod).await? {
        return Ok(Found::Pod(pod));
    }
    let node = api.get::<Node>(ResourcePath::cluster(node_name)).await;
    let node = node.map_err(|error| chain(&error))?;
    if node.metadata.name.as_deref() != Some(node_name) {
        return Err("the API server does not know this node".into());
    }
    if known.is_some() && cluster(api).await? != known {
        return Ok(Found::OtherCluster);
    }
    Ok(Found::Gone)
}

/// The identity of a cluster, if it has one that this kubelet may read.
async fn cluster(api: &ApiServer) -> Result<Option<String>, String> {
    let service = ResourcePath::namespaced("default", "kubernetes");
    match api.get::<Service>(service).await {
        Ok(service) => Ok(service.metadata.uid),
        Err(error) if error.is_not_found() || error.is_forbidden() => Ok(None),
        Err(error) => Err(chain(&error)),
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
        WatchEvent::Failed(error) => Err(chain(error.as_ref())),
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
        for wait in [0, OTHER_CLUSTER.as_secs() - 1] {
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
