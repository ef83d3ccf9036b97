//! Gives disk space back, in stages: dead containers, then unused images.

use crate::{
    base::chain,
    base::otel::{Parent, TraceSpanKind, Tracer, traced},
    images::gc::ImageCollector,
    model::{PodUid, reasons::event},
    pods::pod_config::SourcesReadyReader,
    pods::pod_workers::PodWorkers,
    runtime::kuberuntime::KubeGenericRuntimeManager,
    state::events::{EventRecorder, ObjectRef},
    state::pod_cache::PodCache,
};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

/// Upstream's period of image collection.
const PERIOD: Duration = Duration::from_secs(300);
/// How often it is seen whether the sources have delivered, in the first period.
const LOOK_FOR_SOURCES: Duration = Duration::from_secs(1);

/// Task `reclaim`, and what the node gives back when it is short of disk space.
pub struct Reclaim {
    /// Removes images.
    pub collector: ImageCollector,
    /// Removes containers.
    pub runtime: KubeGenericRuntimeManager,
    /// The runtime status of every pod.
    pub cache: PodCache,
    /// Which pods have ended.
    pub workers: PodWorkers,
    /// Events.
    pub events: EventRecorder,
    /// The node's name.
    pub node_name: String,
    /// Spans.
    pub tracer: Tracer,
}

impl Reclaim {
    /// Runs at the start, once it is known which pods are wanted, and then every five minutes.
    ///
    /// # Errors
    /// None.
    pub async fn run(
        self: Arc<Self>,
        sources: SourcesReadyReader,
        shutdown: CancellationToken,
    ) -> anyhow::Result<()> {
        let work = async {
            self.wait_for(&sources).await;
            let mut ticks = tokio::time::interval(PERIOD);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut failed_before = false;
            loop {
                ticks.tick().await;
                let failed = self.spanned("Images/GarbageCollect", self.collect()).await;
                self.report(failed.as_ref().err(), failed_before);
                failed_before = failed.is_err();
            }
        };
        shutdown.run_until_cancelled(work).await;
        Ok(())
    }

    /// An image that a pod wants of which nothing runs is known only from that pod. A source that does
    /// not deliver must not keep a disk full for ever, though: what has containers is safe anyway.
    async fn wait_for(&self, sources: &SourcesReadyReader) {
        let _listed = self.cache.complete().await;
        let until = Instant::now() + PERIOD;
        while sources.all_ready().is_none() && Instant::now() < until {
            tokio::time::sleep(LOOK_FOR_SOURCES).await;
        }
    }

    async fn collect(&self) -> anyhow::Result<()> {
        let mut inventory = self.collector.take_inventory().await?;
        if self.collector.wants_space(&inventory) {
            // Logs and files of ended pods stay for their users: a disk that is fairly full is no emergency.
            self.collect_containers(&|_| false).await;
            inventory = self.collector.take_inventory().await?;
        }
        self.collector.collect(inventory).await
    }

    /// Removes superseded containers and those of pods that have ended, and then images that no pod needs, until
    /// `is_done`. An evicted pod stays in the API server, and with it what its containers wrote, which it was evicted
    /// for. As upstream's `DeleteAllUnusedContainers`.
    ///
    /// # Errors
    /// What could not be removed.
    pub async fn free_disk<Done>(&self, is_done: impl Fn() -> Done) -> anyhow::Result<()>
    where
        Done: Future<Output = bool>,
    {
        let workers = &self.workers;
        let has_ended =
            |uid: &PodUid| workers.knows(uid) && !workers.could_have_running_containers(uid);
        self.collect_containers(&has_ended).await;
        if is_done().await {
            return Ok(());
        }
        let inventory = self.collector.take_inventory().await?;
        self.collector.remove_unused(inventory, is_done).await
    }

    /// Removes superseded containers, and all of the pods that `has_ended` names. One that cannot be removed keeps no
    /// image from being removed.
    async fn collect_containers(&self, has_ended: &(dyn Fn(&PodUid) -> bool + Send + Sync)) {
        let Some(complete) = self.cache.is_complete() else {
            return;
        };
        let mut settled = self.cache.pods();
        settled.retain(|pod| self.cache.try_settled(&pod.uid).is_some());
        let collect = self.runtime.collect_dead(&settled, has_ended, complete);
        if let Err(error) = self.spanned("Containers/GarbageCollect", collect).await {
            tracing::warn!(err = %chain(error.as_ref()), "Failed to remove all dead containers");
        }
    }

    /// The same as a span, named as upstream names it.
    async fn spanned<T>(
        &self,
        name: &'static str,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let span = self
            .tracer
            .start(TraceSpanKind::Internal, Parent::Current, || name.into());
        let failure = |done: &anyhow::Result<T>| done.as_ref().err().map(|e| chain(e.as_ref()));
        traced(span, work, failure).await
    }

    /// One failure may be a matter of the moment; only the next one in a row is an event.
    fn report(&self, error: Option<&anyhow::Error>, failed_before: bool) {
        let Some(error) = error else {
            if failed_before {
                tracing::info!("Image garbage collection succeeded");
            }
            return;
        };
        let text = chain(error.as_ref());
        if failed_before {
            tracing::error!(
                err = text,
                "Image garbage collection failed multiple times in a row"
            );
            let node = ObjectRef::node(&self.node_name);
            self.events.warning(&node, event::IMAGE_GC_FAILED, text);
        } else {
            tracing::error!(err = text, "Image garbage collection failed once");
        }
    }
}
