//! What a node of a cluster reports to the API server about its pods.

use super::Stores;
use crate::{
    apiserver::ApiServer,
    base::Tasks,
    config::KubeletConfig,
    model::PodSource,
    pods::{
        mirror::{self, MirrorPods},
        pod_config::SourcesReadyReader,
        pod_workers::PodWorkers,
        status::Statuses,
        status_writer::{self, StatusWriter},
    },
    state::pod_manager::{PodChanges, PodManager},
};
use std::sync::Arc;
use tokio::sync::watch;

/// What the tasks need, taken from the stores before the loop takes those.
pub(super) struct Writers {
    api: ApiServer,
    changes: Arc<PodChanges>,
    statuses: Statuses,
    pods: PodManager,
    delivered: watch::Receiver<bool>,
}

impl Writers {
    /// `None` without an API server.
    pub(super) fn of(stores: &Stores) -> Option<Self> {
        Some(Self {
            api: stores.api.clone()?,
            changes: stores.changes.clone()?,
            statuses: stores.statuses.reader(),
            pods: stores.manager.reader(),
            delivered: stores.all_delivered.subscribe(),
        })
    }

    /// Starts the writers of mirrors and statuses.
    pub(super) fn start(
        self,
        config: &KubeletConfig,
        workers: &PodWorkers,
        sources: &SourcesReadyReader,
        tasks: &mut Tasks,
    ) {
        let in_use = workers.clone();
        let (mirrors, everything) = (sources.clone(), sources.clone());
        let mirror_pods = MirrorPods::new(mirror::Parts {
            api: self.api.clone(),
            node_name: config.node_name.clone(),
            pods: self.pods.clone(),
            name_in_use: Box::new(move |name, except| in_use.is_name_in_use(name, except)),
            mirrors_known: Box::new(move || mirrors.delivered(PodSource::Api)),
            pods_known: Box::new(move || everything.everything_known()),
            changed: self.changes.mirrors.clone(),
        });
        let may_run = workers.clone();
        let writer = StatusWriter::new(status_writer::Parts {
            api: self.api,
            statuses: self.statuses,
            pods: self.pods,
            may_run: Box::new(move |uid| may_run.could_have_running_containers(uid)),
            changed: self.changes.pods.clone(),
        });
        let shutdown = tasks.shutdown();
        let running = mirror_pods.run(self.delivered, shutdown.clone());
        tasks.spawn("mirror_pods", running);
        tasks.spawn("status_writer", writer.run(shutdown));
    }
}
