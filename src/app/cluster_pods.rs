//! Pods as the API server sees them: mirror pods and statuses.

use super::Stores;
use crate::{
    base::Tasks,
    config::KubeletConfig,
    model::PodSource,
    pods::{
        mirror::{self, MirrorPods},
        pod_config::SourcesReadyReader,
        pod_workers::PodWorkers,
        status_writer::{self, StatusWriter},
    },
};

/// Starts the writers of mirror pods and statuses. Without an API server there are none.
pub(super) fn start(
    config: &KubeletConfig,
    stores: &Stores,
    workers: &PodWorkers,
    sources: &SourcesReadyReader,
    tasks: &mut Tasks,
) {
    let (Some(api), Some(changes)) = (&stores.api, &stores.changes) else {
        return;
    };
    let in_use = workers.clone();
    let (mirrors, everything) = (sources.clone(), sources.clone());
    let mirror_pods = MirrorPods::new(mirror::MirrorDeps {
        api: api.clone(),
        node_name: config.node_name.clone(),
        pods: stores.pods.clone(),
        name_in_use: Box::new(move |name, except| in_use.is_name_in_use(name, except)),
        mirrors_known: Box::new(move || mirrors.delivered(PodSource::Api)),
        pods_known: Box::new(move || everything.everything_known()),
        changed: changes.mirrors.clone(),
    });
    let may_run = workers.clone();
    let writer = StatusWriter::new(status_writer::StatusWriterDeps {
        api: api.clone(),
        statuses: stores.statuses.clone(),
        pods: stores.pods.clone(),
        may_run: Box::new(move |uid| may_run.could_have_running_containers(uid)),
        changed: changes.pods.clone(),
    });
    let shutdown = tasks.shutdown();
    let running = mirror_pods.run(stores.all_delivered.clone(), shutdown.clone());
    tasks.spawn("mirror_pods", running);
    tasks.spawn("status_writer", writer.run(shutdown));
}
