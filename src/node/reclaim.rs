//! Garbage collection of dead containers, then of unused images.

use crate::base::otel::{Parent, TraceSpanKind, Tracer, traced};
use crate::base::{clock, error_chain};
use crate::images::gc::ImageCollector;
use crate::model::PodUid;
use crate::model::reasons::event;
use crate::pods::pod_config::SourcesReadyReader;
use crate::pods::pod_workers::PodWorkers;
use crate::runtime::kuberuntime::KubeGenericRuntimeManager;
use crate::state::events::{EventRecorder, ObjectRef};
use crate::state::pod_cache::PodCache;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// Upstream's `ImageGCPeriod`.
const PERIOD: Duration = Duration::from_secs(300);
/// Interval at which the first collection checks whether all sources are ready.
const SOURCES_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The task `reclaim`; also removes containers and images when the node is short of disk space.
pub struct Reclaim {
    /// Removes unused images.
    pub collector: ImageCollector,
    /// Removes containers.
    pub runtime: KubeGenericRuntimeManager,
    /// The runtime status of every pod.
    pub cache: PodCache,
    /// Shows which pods have terminated.
    pub workers: PodWorkers,
    /// Events.
    pub events: EventRecorder,
    /// The node's name.
    pub node_name: String,
    /// Tracer.
    pub tracer: Tracer,
}

impl Reclaim {
    /// Collects once the desired pods are known, and then every five minutes.
    pub async fn run(self: Arc<Self>, sources: SourcesReadyReader) {
        self.wait_for(&sources).await;
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failed_before = false;
        loop {
            ticks.tick().await;
            let result = self.spanned("Images/GarbageCollect", self.collect()).await;
            self.report(result.as_ref().err(), failed_before);
            failed_before = result.is_err();
        }
    }

    /// Waits until all desired pods are known, because an image of a pod without containers is in use only through its
    /// pod object. The wait is bounded, so that a source that never delivers does not prevent collection; images of
    /// existing containers are safe anyway.
    async fn wait_for(&self, sources: &SourcesReadyReader) {
        let _listed = self.cache.wait_runtime_listed().await;
        let until = clock::instant() + PERIOD;
        while !sources.all_delivered() && clock::instant() < until {
            tokio::time::sleep(SOURCES_CHECK_INTERVAL).await;
        }
    }

    async fn collect(&self) -> anyhow::Result<()> {
        let mut inventory = self.collector.take_inventory().await?;
        if self.collector.is_over_high_threshold(&inventory) {
            // Keeps the logs of terminated pods for users: a disk above the image GC threshold is no emergency.
            self.collect_containers(&|_| false).await;
            inventory = self.collector.take_inventory().await?;
        }
        self.collector.collect(inventory).await
    }

    /// Removes superseded containers and containers of terminated pods (only if `containers` is true), and then unused
    /// images until `is_done` returns true. Terminated pods are included because an evicted pod keeps its data until it
    /// is deleted from the API server. Upstream: `DeleteAllUnusedContainers`.
    ///
    /// # Errors
    /// An image or container could not be removed.
    pub async fn free_disk<Done>(
        &self,
        containers: bool,
        is_done: impl Fn() -> Done,
    ) -> anyhow::Result<()>
    where
        Done: Future<Output = bool>,
    {
        let workers = &self.workers;
        let has_ended =
            |uid: &PodUid| workers.has_worker(uid) && !workers.could_have_running_containers(uid);
        if containers {
            self.collect_containers(&has_ended).await;
        }
        if is_done().await {
            return Ok(());
        }
        let inventory = self.collector.take_inventory().await?;
        self.collector.remove_unused(inventory, is_done).await
    }

    /// Removes superseded containers of static pods, and all containers of the pods for which `has_ended` is true.
    /// Failures do not prevent image collection.
    async fn collect_containers(&self, has_ended: &(dyn Fn(&PodUid) -> bool + Send + Sync)) {
        let Some(complete) = self.cache.runtime_listed() else {
            return;
        };
        let mut settled = self.cache.pods();
        settled.retain(|pod| self.cache.try_settled(&pod.uid).is_some());
        let collect = self.runtime.garbage_collect(&settled, has_ended, complete);
        if let Err(error) = self.spanned("Containers/GarbageCollect", collect).await {
            tracing::warn!(err = %error_chain(error.as_ref()), "Failed to remove all dead containers");
        }
    }

    /// Runs the collection in a span with upstream's name.
    async fn spanned<T>(
        &self,
        name: &'static str,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let span = self.tracer.start(TraceSpanKind::Internal, Parent::Current, || name.into());
        let failure =
            |done: &anyhow::Result<T>| done.as_ref().err().map(|e| error_chain(e.as_ref()));
        traced(span, work, failure).await
    }

    /// Logs an error, and records an event only for consecutive failures, because a single one may be temporary.
    fn report(&self, error: Option<&anyhow::Error>, failed_before: bool) {
        let Some(error) = error else {
            if failed_before {
                tracing::info!("Image garbage collection succeeded");
            }
            return;
        };
        let text = error_chain(error.as_ref());
        if failed_before {
            tracing::error!(err = text, "Image garbage collection failed multiple times in a row");
            let node = ObjectRef::node(&self.node_name);
            self.events.warning(&node, event::IMAGE_GC_FAILED, text);
        } else {
            tracing::error!(err = text, "Image garbage collection failed once");
        }
    }
}
