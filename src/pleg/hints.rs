//! Turns hints of the event stream into inspections and relists.

use super::{RelistPoke, Watch};
use crate::{
    cri::events::{HintReader, Hints},
    model::Seq,
    pod_cache::ItemId,
};
use std::{collections::HashMap, time::Duration};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// How long an id that nobody knows may stay unknown before a relist looks for its owner. What the
/// kubelet creates itself is known well before that.
const UNKNOWN_GRACE: Duration = Duration::from_secs(1);

/// Task `pleg.events`.
pub struct HintTask {
    watch: Watch,
    hints: HintReader,
    poke: RelistPoke,
}

impl HintTask {
    pub(super) fn new(watch: Watch, hints: HintReader, poke: RelistPoke) -> Self {
        Self { watch, hints, poke }
    }

    /// Follows hints until shutdown.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let mut unknown = HashMap::new();
        let mut look_at = Instant::now();
        loop {
            let hints = tokio::select! {
                // First, so that a stream of hints without a pause cannot put it off.
                biased;
                () = shutdown.cancelled() => return Ok(()),
                () = sleep_until(look_at), if !unknown.is_empty() => {
                    self.look_for(std::mem::take(&mut unknown));
                    continue;
                }
                hints = self.hints.take() => hints,
            };
            if unknown.is_empty() {
                look_at = Instant::now() + UNKNOWN_GRACE;
            }
            self.follow(hints, &mut unknown);
        }
    }

    fn follow(&self, hints: Hints, unknown: &mut HashMap<String, Seq>) {
        // In this order, so that a new mode and its resync are one list.
        if hints.resync {
            self.poke.poke();
        }
        self.poke.set_mode(hints.mode);
        for (id, _) in hints.containers {
            match self.known(&id) {
                Some(item) => self.watch.cache.inspect(item),
                None => {
                    unknown.insert(id, self.watch.cache.next_seq());
                }
            }
        }
    }

    /// The ids are known by now, or only a list can tell whose they are. What was read since the last
    /// hint about it, as the kubelet reads what it creates itself, needs no other look, and neither does
    /// what it removed itself.
    fn look_for(&self, unknown: HashMap<String, Seq>) {
        let mut missing = false;
        for (id, hinted) in unknown {
            match self.known(&id) {
                Some(item) if self.watch.cache.was_read_since(&item, hinted) => {}
                Some(item) => self.watch.cache.inspect(item),
                None => missing |= !self.gone(&id),
            }
        }
        if missing {
            self.poke.poke();
        }
    }

    fn gone(&self, id: &str) -> bool {
        let cache = &self.watch.cache;
        cache.is_gone(&ItemId::Container(id.into())) || cache.is_gone(&ItemId::Sandbox(id.into()))
    }

    fn known(&self, id: &str) -> Option<ItemId> {
        let container = ItemId::Container(id.into());
        if self.watch.cache.locate(&container).is_some() {
            return Some(container);
        }
        let sandbox = ItemId::Sandbox(id.into());
        self.watch
            .cache
            .locate(&sandbox)
            .is_some()
            .then_some(sandbox)
    }
}
