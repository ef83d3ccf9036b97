//! The pod lifecycle event generator: reads the runtime and keeps the pod cache up to date.
//!
//! * Owns: the only writing end of the pod cache; the runtime's own health.
//! * Woken by: events of the runtime, items that workers touched, a slow timer (a second if the runtime has
//!   no events).
//! * Publishes: runtime statuses and changed pods through the cache, [`RuntimeState`], and that the runtime is back after
//!   an outage.
//! * Must never let one slow or hung pod delay another, treat a failed list as an empty one, or
//!   change anything in the runtime.
//! * Upstream: `pkg/kubelet/pleg` and the runtime half of `pkg/kubelet/runtime.go`.
//!
//! ```text
//! runtime events --> changes -.                        .--> pod cache --> dirty pods
//!        touches ------------+--> inspector (1 item) +
//!          timer --> relist -'                       '--> settled pods
//! ```

mod events;
mod inspector;
mod termination_message;
mod metrics;
mod relist;
mod state;
mod runtime_state_poll;

#[cfg(test)]
mod tests;

use crate::base::{Tasks, clock};
use crate::cri::v1::StatusResponse;
use crate::cri::{FeaturesWriter, RuntimeClient};
use crate::state::pod_cache::PodCacheWriter;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

pub use events::RuntimeEventsTask;
pub use inspector::InspectTask;
pub use metrics::PlegMetrics;
pub use relist::{RelistTask, RelistTrigger};
pub use runtime_state_poll::RuntimeStateTask;
pub use state::{RuntimeState, RuntimeStateReader};

/// The periods of the PLEG.
#[derive(Clone, Debug)]
pub struct Config {
    /// Relist period if the runtime has no events.
    pub relist_period: Duration,
    /// Relist period if it has: a relist then only repairs missed events.
    pub relist_period_with_events: Duration,
    /// How often the runtime's `Status` is called.
    pub status_period: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            relist_period: Duration::from_secs(1),
            relist_period_with_events: Duration::from_secs(45),
            status_period: Duration::from_secs(5),
        }
    }
}

/// The context that the tasks share.
#[derive(Clone)]
struct PlegContext {
    runtime: RuntimeClient,
    cache: Arc<PodCacheWriter>,
    config: Config,
    metrics: PlegMetrics,
}

/// The tasks of the PLEG, to be spawned under their names.
pub struct Pleg {
    relist: RelistTask,
    events: RuntimeEventsTask,
    inspect: InspectTask,
    runtime_state: RuntimeStateTask,
    /// Notified when the runtime can be listed again after an outage.
    pub recovered: Arc<Notify>,
}

impl Pleg {
    /// Starts the tasks.
    pub fn start(self, tasks: &mut Tasks) {
        let shutdown = tasks.shutdown();
        tasks.spawn("pleg.relist", self.relist.run(shutdown.clone()));
        tasks.spawn("pleg.events", self.events.run(shutdown.clone()));
        tasks.spawn("pleg.inspect", self.inspect.run(shutdown.clone()));
        tasks.spawn("pleg.runtime_state", self.runtime_state.run(shutdown));
    }
}

/// Builds the tasks; nothing runs yet. `first` is the runtime's first status, so that pods do not wait for the next poll.
/// `features` is kept up to date.
pub fn build(
    runtime: RuntimeClient,
    cache: PodCacheWriter,
    changes: crate::cri::events::ChangeReader,
    config: Config,
    first: &StatusResponse,
    features: FeaturesWriter,
    metrics: PlegMetrics,
) -> (Pleg, RuntimeStateReader) {
    let context = PlegContext { runtime, cache: Arc::new(cache), config, metrics };
    let (state, state_reader) =
        state::runtime_state(runtime_state_poll::state_of(first, clock::instant()));
    let recovered = Arc::<Notify>::default();
    let (relist, trigger) = RelistTask::new(context.clone(), recovered.clone());
    let pleg = Pleg {
        relist,
        recovered,
        events: RuntimeEventsTask { context: context.clone(), changes, relist: trigger },
        inspect: InspectTask::new(context.clone()),
        runtime_state: RuntimeStateTask { context, state, features },
    };
    (pleg, state_reader)
}
