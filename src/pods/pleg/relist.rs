//! Lists all sandboxes and containers: at start, after the event stream was reconnected, and periodically.

use super::PlegContext;
use crate::base::clock;
use crate::cri::events::RuntimeEventSource;
use crate::cri::v1::{Container, PodSandbox};
use crate::cri::{CriError, ListChange, ListFingerprint};
use crate::runtime::kuberuntime::translate;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// Retry delay of failed lists: doubled before each use, up to [`RETRY_CAP`].
const RETRY_BASE: Duration = Duration::from_millis(200);
const RETRY_CAP: Duration = Duration::from_secs(5);

/// Requests relists.
#[derive(Clone, Debug)]
pub struct RelistTrigger {
    notify: Arc<Notify>,
    source: Arc<watch::Sender<RuntimeEventSource>>,
    reconnected: Arc<AtomicBool>,
}

impl RelistTrigger {
    /// Requests a relist as soon as possible.
    pub fn request_relist(&self) {
        self.notify.notify_one();
    }

    /// Requests a relist because the event stream was (re)connected. The runtime may have had an outage.
    pub(super) fn reconnected(&self) {
        self.reconnected.store(true, Ordering::Relaxed);
        self.request_relist();
    }

    pub(super) fn set_source(&self, source: RuntimeEventSource) {
        let changed = self.source.send_if_modified(|known| {
            let changed = *known != source;
            *known = source;
            changed
        });
        if changed {
            tracing::info!(?source, "Source of runtime events changed");
        }
    }
}

/// Task `pleg.relist`.
pub struct RelistTask {
    context: PlegContext,
    relist: RelistTrigger,
    recovered: Arc<Notify>,
    sandboxes: ListFingerprint<PodSandbox>,
    containers: ListFingerprint<Container>,
}

impl RelistTask {
    pub(super) fn new(context: PlegContext, recovered: Arc<Notify>) -> (Self, RelistTrigger) {
        let source = Arc::new(watch::Sender::new(RuntimeEventSource::None));
        let trigger = RelistTrigger { notify: Arc::default(), source, reconnected: Arc::default() };
        let task = Self {
            context,
            relist: trigger.clone(),
            recovered,
            sandboxes: ListFingerprint::new(),
            containers: ListFingerprint::new(),
        };
        (task, trigger)
    }

    /// Lists until shutdown.
    pub async fn run(mut self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let mut source = self.relist.source.subscribe();
        let mut retry = RETRY_BASE;
        let mut failing = false;
        loop {
            let started_at = self.context.metrics.relist_started();
            let listed = tokio::select! {
                listed = self.list() => listed,
                () = shutdown.cancelled() => return Ok(()),
            };
            let wait = match listed {
                Ok(()) => {
                    self.context.metrics.relist_ended(started_at);
                    if failing {
                        tracing::info!("Listing sandboxes and containers recovered");
                    }
                    let reconnected = &self.relist.reconnected;
                    if reconnected.swap(false, Ordering::Relaxed) || failing {
                        self.recovered.notify_one();
                        self.context.cache.inspect_failed_items();
                    }
                    (failing, retry) = (false, RETRY_BASE);
                    self.period(*source.borrow_and_update())
                }
                Err(error) => {
                    // One of the two lists may have been read without being applied, so the next list must not be compared
                    // with it.
                    self.sandboxes.forget();
                    self.containers.forget();
                    if !failing {
                        tracing::error!(
                            err = %error,
                            "Failed to list sandboxes and containers, retrying"
                        );
                    }
                    failing = true;
                    retry = (retry * 2).min(RETRY_CAP);
                    retry
                }
            };
            let at = clock::instant() + wait;
            tokio::select! {
                // A request is taken before a change of the source. Both need a list, and one list serves both.
                biased;
                () = shutdown.cancelled() => return Ok(()),
                () = self.relist.notify.notified(), if !failing => {}
                // Not skipped while lists fail: a reconnected stream means that the runtime is back.
                Ok(()) = source.changed() => {}
                () = tokio::time::sleep_until(at) => {}
            }
        }
    }

    fn period(&self, source: RuntimeEventSource) -> Duration {
        match source {
            RuntimeEventSource::None => self.context.config.relist_period,
            RuntimeEventSource::Cri | RuntimeEventSource::Containerd => {
                self.context.config.relist_period_with_events
            }
        }
    }

    async fn list(&mut self) -> Result<(), CriError> {
        let runtime = &self.context.runtime;
        let seq = self.context.cache.next_seq();
        let sandboxes = runtime.relist_pod_sandboxes(&mut self.sandboxes).await?;
        let containers = runtime.relist_containers(&mut self.containers).await?;
        let (sandboxes, containers) = match (sandboxes, containers) {
            (ListChange::Changed(sandboxes), ListChange::Changed(containers)) => {
                (sandboxes, containers)
            }
            (ListChange::Unchanged, ListChange::Unchanged)
                if self.context.cache.confirm_list(seq) =>
            {
                return Ok(());
            }
            _ => return self.list_in_full().await,
        };
        self.apply(seq, sandboxes, containers);
        Ok(())
    }

    /// Decodes both lists. Needed if only one of them changed, or if an item was read since the last list.
    async fn list_in_full(&mut self) -> Result<(), CriError> {
        self.sandboxes.forget();
        self.containers.forget();
        let seq = self.context.cache.next_seq();
        let runtime = &self.context.runtime;
        let sandboxes = runtime.relist_pod_sandboxes(&mut self.sandboxes).await?;
        let containers = runtime.relist_containers(&mut self.containers).await?;
        if let (ListChange::Changed(sandboxes), ListChange::Changed(containers)) =
            (sandboxes, containers)
        {
            self.apply(seq, sandboxes, containers);
        }
        Ok(())
    }

    fn apply(
        &self,
        seq: crate::model::Seq,
        sandboxes: Vec<PodSandbox>,
        containers: Vec<Container>,
    ) {
        let strings = self.context.cache.strings();
        self.context.cache.apply_list(
            seq,
            sandboxes.iter().filter_map(|s| translate::sandbox_from_list(s, strings)).collect(),
            containers.iter().filter_map(|c| translate::container_from_list(c, strings)).collect(),
        );
    }
}
