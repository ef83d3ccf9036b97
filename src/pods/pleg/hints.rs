//! Converts hints of the event stream to inspections and relists.

use super::{PlegContext, RelistTrigger};
use crate::{
    cri::events::{HintReader, Hints},
    model::{PodUid, Seq},
    state::pod_cache::ItemId,
};
use std::{collections::HashMap, time::Duration};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// How long an unknown id may stay unknown before a relist looks for its owner. What the
/// kubelet creates itself is known well before that.
const UNKNOWN_GRACE: Duration = Duration::from_secs(1);

/// An id of the stream that was not known when its hint came.
struct UnknownId {
    /// The pod it belongs to, where the event has it.
    pod: Option<PodUid>,
    /// When the last hint about it came.
    hinted: Seq,
}

/// Task `pleg.events`.
pub struct HintTask {
    context: PlegContext,
    hints: HintReader,
    relist: RelistTrigger,
}

impl HintTask {
    pub(super) fn new(
        context: PlegContext,
        hints: HintReader,
        relist: RelistTrigger,
    ) -> Self {
        Self {
            context,
            hints,
            relist,
        }
    }

    /// Follows hints until shutdown.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let mut unknown = HashMap::new();
        let mut check_at = Instant::now();
        loop {
            let hints = tokio::select! {
                // First, so that a stream of hints without a pause cannot put it off.
                biased;
                () = shutdown.cancelled() => return Ok(()),
                () = sleep_until(check_at), if !unknown.is_empty() => {
                    unknown = self.resolve(unknown);
                    check_at = Instant::now() + UNKNOWN_GRACE;
                    continue;
                }
                hints = self.hints.take() => hints,
            };
            if unknown.is_empty() {
                check_at = Instant::now() + UNKNOWN_GRACE;
            }
            self.follow(hints, &mut unknown);
        }
    }

    fn follow(&self, hints: Hints, unknown: &mut HashMap<String, UnknownId>) {
        // In this order, so that a new mode and its resync are one list.
        if hints.resync {
            self.relist.reconnected();
        }
        self.relist.set_mode(hints.mode);
        for (id, pod) in hints.containers {
            match self.known(&id) {
                Some(item) => self.context.cache.inspect(item),
                None => {
                    let hinted = self.context.cache.next_seq();
                    unknown.insert(id, UnknownId { pod, hinted });
                }
            }
        }
    }

    /// The ids are known by now, or only a list shows which pod they belong to. What was read since the last
    /// hint about it, as the kubelet reads what it creates itself, needs no other read, and neither does
    /// what it removed itself. Gives back those of pods of which the kubelet is making something: a busy
    /// runtime takes longer than the grace, and a list would be one more thing for it to do.
    fn resolve(&self, mut unknown: HashMap<String, UnknownId>) -> HashMap<String, UnknownId> {
        let cache = &self.context.cache;
        let mut missing = false;
        unknown.retain(|id, hinted| {
            // Checked first: what was created is known by the time that its creation ends.
            let creating = hinted.pod.as_ref().is_some_and(|pod| cache.is_creating(pod));
            match self.known(id) {
                Some(item) if cache.was_read_since(&item, hinted.hinted) => {}
                Some(item) => cache.inspect(item),
                None if creating => return true,
                None => missing |= !self.gone(id),
            }
            false
        });
        if missing {
            self.relist.request_relist();
        }
        unknown
    }

    fn gone(&self, id: &str) -> bool {
        let cache = &self.context.cache;
        cache.is_gone(&ItemId::Container(id.into())) || cache.is_gone(&ItemId::Sandbox(id.into()))
    }

    fn known(&self, id: &str) -> Option<ItemId> {
        let container = ItemId::Container(id.into());
        if self.context.cache.locate(&container).is_some() {
            return Some(container);
        }
        let sandbox = ItemId::Sandbox(id.into());
        self.context
            .cache
            .locate(&sandbox)
            .is_some()
            .then_some(sandbox)
    }
}
