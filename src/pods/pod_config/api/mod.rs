//! Pods of the API server: those that are bound to this node.
//!
//! A failure of the API server changes nothing. A pod is gone when the watch deletes it, or when a list lacks it, so
//! does a second one that asks for this pod alone, and the server knows this node: one that has lost its data, or
//! has not loaded it, does not. While the API server is away at the start, the pods that
//! the last kubelet knew and that run are looked after.

mod accept;
mod known;
mod store;

use super::SourceList;
use crate::{
    apiserver::{ApiServer, Item, Place, Selection, WatchEvent},
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
use k8s_openapi::api::core::v1::Node;
use known::{ApiPods, Refused};
use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Duration};
use store::ApiPodStore;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

/// How long the runtime status of the pods of an earlier kubelet may take until they are adopted.
const ADOPTION: Duration = Duration::from_secs(2);
/// How long pods wait for the Node object.
const NODE_KNOWN: Duration = Duration::from_secs(10);
/// How long after a failed question about a pod in doubt the next one is: from the first to the second.
const DOUBT_RETRY: Duration = Duration::from_secs(2);
const MAX_DOUBT_RETRY: Duration = Duration::from_secs(60);

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
    };
    (store, source)
}

/// What a question about one pod found: the pod, or that there is none.
type Answer = Result<Option<Item<Pod>>, String>;

/// The source.
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
        let _ = timeout(NODE_KNOWN, self.node.wait_for(Option::is_some)).await;
        let mut watch = self.api.list_watch::<Pod>(Selection {
            namespace: None,
            field_selector: Some(format!("spec.nodeName={}", self.node_name)),
        });
        let mut doubt: Option<(PodUid, BoxFuture<'static, Answer>)> = None;
        let (mut next_doubt, mut delay) = (Instant::now(), DOUBT_RETRY);
        let mut last_doubt = None;
        let mut failing = false;
        loop {
            if doubt.is_none() {
                doubt = self.question(last_doubt.as_ref());
            }
            tokio::select! {
                event = watch.next() => {
                    let failed = matches!(event, WatchEvent::Failed(_));
                    if let WatchEvent::Failed(error) = &event && !failing {
                        tracing::warn!(err = %chain(error.as_ref()), "Watching pods failed; pods go on as they are");
                    } else if failing && !failed {
                        tracing::info!("Watching pods again");
                    }
                    failing = failed;
                    if self.on_event(event) {
                        self.deliver().await?;
                    }
                }
                answer = answered(&mut doubt, next_doubt) => {
                    let (uid, answer) = answer;
                    doubt = None;
                    if self.on_answer(&uid, answer) {
                        delay = DOUBT_RETRY;
                        self.deliver().await?;
                    } else {
                        next_doubt = Instant::now() + delay;
                        delay = (delay * 2).min(MAX_DOUBT_RETRY);
                    }
                    last_doubt = Some(uid);
                }
            }
        }
    }

    /// Takes over the pods of an earlier kubelet that run. Others are not started before the API server says that
    /// they still exist.
    async fn adopt(&mut self) -> anyhow::Result<()> {
        self.cache.complete().await;
        let mut adopted = Vec::new();
        let deadline = Instant::now() + ADOPTION;
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
    fn report(&mut self, refused: Refused) {
        let Refused {
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

    fn question(&self, last: Option<&PodUid>) -> Option<(PodUid, BoxFuture<'static, Answer>)> {
        let pod = self.known.in_doubt(last)?;
        let (api, node) = (self.api.clone(), self.node_name.clone());
        let uid = pod.uid();
        Some((uid, async move { ask(&api, &node, &pod).await }.boxed()))
    }

    /// Whether the question is answered.
    fn on_answer(&mut self, uid: &PodUid, answer: Answer) -> bool {
        if !self.known.is_in_doubt(uid) {
            return true;
        }
        match answer {
            Ok(Some(Ok(pod))) if pod.uid() == *uid => {
                if let Err(refused) = self.known.applied(Ok(pod), Timestamp::now()) {
                    self.report(refused);
                }
            }
            Ok(Some(Err(_))) => self.known.exists(uid),
            Ok(_) => {
                tracing::info!(podUID = %uid, "The pod is gone from the API server");
                self.known.deleted(uid);
            }
            Err(error) => {
                tracing::warn!(podUID = %uid, err = error, "A list lacks a pod, and whether it exists is not known");
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

async fn answered(
    doubt: &mut Option<(PodUid, BoxFuture<'static, Answer>)>,
    not_before: Instant,
) -> (PodUid, Answer) {
    sleep_until(not_before).await;
    match doubt {
        Some((uid, question)) => (uid.clone(), question.await),
        None => std::future::pending().await,
    }
}

/// Lists one pod. Reading it by name is not allowed to a node once the pod is gone.
async fn ask(api: &ApiServer, node_name: &str, pod: &Pod) -> Answer {
    let found = list_one(api, node_name, pod).await?;
    if found.is_none() {
        let node = api.get::<Node>(Place::cluster(node_name)).await;
        let node = node.map_err(|error| chain(&error))?;
        if node.metadata.name.as_deref() != Some(node_name) {
            return Err("the API server does not know this node".into());
        }
    }
    Ok(found)
}

async fn list_one(api: &ApiServer, node_name: &str, pod: &Pod) -> Answer {
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
