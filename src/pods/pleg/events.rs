//! Turns the runtime's events into inspections and relists.

use super::{PlegContext, RelistTrigger};
use crate::base::clock;
use crate::cri::events::{ChangeReader, RuntimeChanges};
use crate::model::{PodUid, Seq};
use crate::state::pod_cache::ItemId;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

/// Delay after the first unknown id before a relist is requested to find its pod. Ids that come later within it are
/// checked at the same time. Items that the kubelet creates itself are usually in the cache by then; otherwise
/// `resolve` waits for their creation.
const UNKNOWN_GRACE: Duration = Duration::from_secs(1);

/// A changed container or sandbox that was not in the cache.
struct UnknownId {
    /// Its pod, if the event has it.
    pod: Option<PodUid>,
    /// When its last change arrived, in the order of reads.
    changed_at: Seq,
}

/// Task `pleg.events`.
pub struct RuntimeEventsTask {
    pub(super) context: PlegContext,
    pub(super) changes: ChangeReader,
    pub(super) relist: RelistTrigger,
}

impl RuntimeEventsTask {
    /// Handles changes until shutdown.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let mut unknown = HashMap::new();
        let mut check_at = clock::instant();
        loop {
            let changes = tokio::select! {
                // Timer and shutdown first, so that continuous changes cannot starve them.
                biased;
                () = shutdown.cancelled() => return Ok(()),
                () = sleep_until(check_at), if !unknown.is_empty() => {
                    unknown = self.resolve(unknown);
                    check_at = clock::instant() + UNKNOWN_GRACE;
                    continue;
                }
                changes = self.changes.take() => changes,
            };
            if unknown.is_empty() {
                check_at = clock::instant() + UNKNOWN_GRACE;
            }
            self.handle_changes(changes, &mut unknown);
        }
    }

    fn handle_changes(&self, changes: RuntimeChanges, unknown: &mut HashMap<String, UnknownId>) {
        // In this order, so that a new source and its relist cause only one list.
        if changes.relist {
            self.relist.reconnected();
        }
        self.relist.set_source(changes.source);
        for (id, pod) in changes.items {
            match self.find_item(&id) {
                Some(item) => self.context.cache.inspect(item),
                None => {
                    let changed_at = self.context.cache.next_seq();
                    unknown.insert(id, UnknownId { pod, changed_at });
                }
            }
        }
    }

    /// Handles unknown ids, [`UNKNOWN_GRACE`] after the first one, and returns those to check again.
    ///
    /// * In the cache by now: inspect it, unless it was read after the change (items that the kubelet creates are).
    /// * Unknown, and something of its pod is being created: check it again later. A busy runtime takes longer than
    ///   [`UNKNOWN_GRACE`], and a list would add to its load.
    /// * Unknown otherwise: request a relist, unless it was found gone since the last list.
    fn resolve(&self, mut unknown: HashMap<String, UnknownId>) -> HashMap<String, UnknownId> {
        let cache = &self.context.cache;
        let mut missing = false;
        unknown.retain(|id, change| {
            // Checked before `find_item`: when a creation ends, its item is in the cache.
            let creating = change.pod.as_ref().is_some_and(|pod| cache.is_creating(pod));
            match self.find_item(id) {
                Some(item) if cache.was_read_since(&item, change.changed_at) => {}
                Some(item) => cache.inspect(item),
                None if creating => return true,
                None => missing |= !self.is_gone(id),
            }
            false
        });
        if missing {
            self.relist.request_relist();
        }
        unknown
    }

    fn is_gone(&self, id: &str) -> bool {
        let cache = &self.context.cache;
        cache.is_gone(&ItemId::Container(id.into())) || cache.is_gone(&ItemId::Sandbox(id.into()))
    }

    fn find_item(&self, id: &str) -> Option<ItemId> {
        let container = ItemId::Container(id.into());
        if self.context.cache.locate(&container).is_some() {
            return Some(container);
        }
        let sandbox = ItemId::Sandbox(id.into());
        self.context.cache.locate(&sandbox).is_some().then_some(sandbox)
    }
}
