//! What the HTTP server shows, read from the boards at the moment of the request.

use super::{Boards, live::Live};
use crate::{
    explain::{Overview, row},
    model::{Pod, PodExt, PodUid},
    pod_manager::PodManager,
    server::{ExplainQuery, NewsView, Views},
    status::Statuses,
};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::PodStatus;
use std::{
    collections::HashSet,
    sync::{Arc, OnceLock},
};

/// A pod with the status that the board has of it.
type Shown = (Arc<Pod>, Option<Arc<PodStatus>>);

/// The views of the read-only port and the local socket.
pub(super) fn of(boards: &Boards, node_name: &str) -> Views {
    let (manager, statuses) = (boards.manager.reader(), boards.statuses.reader());
    let cache = boards.cache.clone();
    let running = move || {
        let mut pods = cache.pods();
        pods.retain(|pod| pod.is_active());
        pods
    };
    let metrics = boards.metrics.clone();
    let journal = boards.journal.clone();
    let recorded = move || -> BoxFuture<'static, ()> {
        let journal = journal.clone();
        Box::pin(async move { journal.flush().await })
    };
    let teller = Teller {
        manager: manager.clone(),
        statuses: statuses.clone(),
        live: boards.live.clone(),
        node_name: node_name.into(),
        endpoint: boards.runtime.connection().endpoint().to_string(),
        news: news(boards),
    };
    let (overview, explain, news) = (teller.clone(), teller.clone(), teller.news);
    Views {
        pods: Arc::new(move || shown(&manager, &statuses)),
        running_pods: Arc::new(running),
        metrics: Arc::new(move || metrics.text()),
        overview: Arc::new(move || overview.overview()),
        explain: Arc::new(move |query| explain.explain(query)),
        news,
        recorded: Arc::new(recorded),
        events: boards.events.clone(),
        node_name: node_name.into(),
    }
}

/// Pods that are wanted, and those that no source has any more until they have ended, as upstream
/// shows them.
fn shown(manager: &PodManager, statuses: &Statuses) -> Vec<Shown> {
    let with_status = |pod: Arc<Pod>| {
        let status = statuses.get(&pod.uid());
        (pod, status)
    };
    let mut shown: Vec<Shown> = manager.pods().into_iter().map(with_status).collect();
    let known: HashSet<PodUid> = shown.iter().map(|(pod, _)| pod.uid()).collect();
    let entries = statuses.all().into_iter();
    let ending = entries.filter(|entry| !known.contains(&entry.pod.uid()));
    shown.extend(ending.map(|entry| (entry.pod, Some(entry.status))));
    shown
}

/// The version of what is shown changes with every status and every decision. It names this process,
/// so that a client notices that it talks to another one.
fn news(boards: &Boards) -> NewsView {
    let (statuses, decisions) = (boards.statuses.reader(), boards.decisions.clone());
    let started = boards.started_at.as_millisecond();
    Arc::new(move || {
        let (mut statuses, mut decisions) = (statuses.subscribe(), decisions.subscribe());
        let (of_statuses, of_decisions) = (
            *statuses.borrow_and_update(),
            *decisions.borrow_and_update(),
        );
        let changed = async move {
            tokio::select! {
                _ = statuses.changed() => {}
                _ = decisions.changed() => {}
            }
        };
        let version = format!("{started}-{of_statuses}-{of_decisions}");
        (version, Box::pin(changed))
    })
}

/// Tells about pods.
#[derive(Clone)]
struct Teller {
    manager: PodManager,
    statuses: Statuses,
    live: Arc<OnceLock<Live>>,
    node_name: Arc<str>,
    endpoint: String,
    news: NewsView,
}

impl Teller {
    fn overview(&self) -> Overview {
        // Before the boards are read, so that what changes meanwhile is news.
        let (version, _) = (self.news)();
        let live = self.live.get();
        let ending = live.map(Live::ending).unwrap_or_default();
        let pods = shown(&self.manager, &self.statuses);
        let line = |(pod, status): &Shown| row(pod, status.as_deref(), ending.contains(&pod.uid()));
        let mut pods: Vec<_> = pods.iter().map(line).collect();
        pods.sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
        let unreached = || {
            vec![format!(
                "waiting for the container runtime at {}",
                self.endpoint
            )]
        };
        Overview {
            version,
            node: self.node_name.to_string(),
            remarks: live.map_or_else(unreached, Live::remarks),
            pods,
        }
    }

    /// Of several pods of the name, one that a source wants comes before one that is on its way out.
    fn explain(&self, query: &ExplainQuery) -> Option<crate::explain::Explanation> {
        let mut pods = shown(&self.manager, &self.statuses).into_iter();
        let (pod, status) = pods.find(|(pod, _)| {
            pod.namespace() == query.namespace
                && pod.name() == query.name
                && query
                    .uid
                    .as_ref()
                    .is_none_or(|uid| *uid == *pod.uid().as_str())
        })?;
        Some(self.live.get()?.explain(&pod, status.as_deref()))
    }
}
