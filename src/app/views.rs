//! What the HTTP server shows, read from the boards at the moment of the request.

use super::Boards;
use crate::{model::PodExt, server::Views};
use futures::future::BoxFuture;
use std::{collections::HashSet, sync::Arc};

/// The views of the read-only port.
pub(super) fn of(boards: &Boards, node_name: &str) -> Views {
    let (manager, statuses) = (boards.manager.reader(), boards.statuses.reader());
    let pods = move || {
        let mut shown: Vec<_> = manager
            .pods()
            .into_iter()
            .map(|pod| {
                let status = statuses.get(&pod.uid());
                (pod, status)
            })
            .collect();
        // Pods that no source has any more are shown until they have ended, as upstream does.
        let known: HashSet<_> = shown.iter().map(|(pod, _)| pod.uid()).collect();
        let ending = statuses
            .all()
            .into_iter()
            .filter(|entry| !known.contains(&entry.pod.uid()));
        shown.extend(ending.map(|entry| (entry.pod, Some(entry.status))));
        shown
    };
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
    Views {
        pods: Arc::new(pods),
        running_pods: Arc::new(running),
        metrics: Arc::new(move || metrics.text()),
        recorded: Arc::new(recorded),
        events: boards.events.clone(),
        node_name: node_name.into(),
    }
}
