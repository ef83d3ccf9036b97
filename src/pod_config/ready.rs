//! Which sources have delivered, and the proof that all have.

use crate::model::{PodSource, SourceSet};
use parking_lot::Mutex;
use std::sync::Arc;

/// Proof that every configured source has delivered its list and that the sync loop has taken it
/// in: what nobody claims now is nobody's. Only [`SourcesReady::all_ready`] makes one.
#[derive(Clone, Copy, Debug)]
pub struct AllReady(());

/// Writing end of the board, for the sync loop alone. It marks a source *after* it has dealt with
/// a message of it.
#[derive(Debug)]
pub struct SourcesReady {
    reader: SourcesReadyReader,
}

/// Reading end; cheap to clone.
#[derive(Clone, Debug)]
pub struct SourcesReadyReader {
    configured: SourceSet,
    seen: Arc<Mutex<SourceSet>>,
    /// Sources that may want pods which are not known: their list lacks some, or is still being told.
    partial: Arc<Mutex<SourceSet>>,
}

impl SourcesReady {
    /// A board on which no source has delivered.
    pub fn new(configured: SourceSet) -> Self {
        let reader = SourcesReadyReader {
            configured,
            seen: Arc::default(),
            partial: Arc::default(),
        };
        Self { reader }
    }

    /// A reading end.
    pub fn reader(&self) -> SourcesReadyReader {
        self.reader.clone()
    }

    /// Notes that a message of the source has been dealt with, and whether everything is known by now
    /// that the source wants ([`crate::model::PodUpdate::complete`]).
    pub fn mark_seen(&self, source: PodSource, complete: bool) {
        match complete {
            true => self.reader.partial.lock().remove(source),
            false => self.reader.partial.lock().insert(source),
        }
        self.reader.seen.lock().insert(source);
    }

    /// See [`SourcesReadyReader::ready`].
    pub fn ready(&self, source: PodSource) -> bool {
        self.reader.ready(source)
    }

    /// Whether every configured source has delivered a list, complete or not.
    pub fn all_seen(&self) -> bool {
        self.reader.all_seen()
    }

    /// See [`SourcesReadyReader::all_ready`].
    pub fn all_ready(&self) -> Option<AllReady> {
        self.reader.all_ready()
    }
}

impl SourcesReadyReader {
    /// Whether a pod of this source that is in no list may be judged to be gone. A source that is
    /// not configured delivers nothing: its pods are judged when all others have spoken.
    pub fn ready(&self, source: PodSource) -> bool {
        match self.configured.contains(source) {
            true => self.seen.lock().contains(source) && !self.is_partial(source),
            false => self.all_ready().is_some(),
        }
    }

    /// The proof, once every configured source has delivered a list that is complete.
    pub fn all_ready(&self) -> Option<AllReady> {
        let complete = *self.partial.lock() == SourceSet::default();
        (complete && self.all_seen()).then_some(AllReady(()))
    }

    fn all_seen(&self) -> bool {
        self.seen.lock().contains_all(self.configured)
    }

    fn is_partial(&self, source: PodSource) -> bool {
        self.partial.lock().contains(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_ready_only_when_each_configured_source_was_seen() {
        let board = SourcesReady::new([PodSource::File, PodSource::Http].into_iter().collect());
        let reader = board.reader();
        assert!(reader.all_ready().is_none());
        board.mark_seen(PodSource::File, true);
        assert!(reader.ready(PodSource::File));
        assert!(!reader.ready(PodSource::Http));
        assert!(
            !reader.ready(PodSource::Api),
            "not configured: judged when all have spoken"
        );
        assert!(board.all_ready().is_none());
        board.mark_seen(PodSource::Http, true);
        assert!(reader.all_ready().is_some());
        assert!(board.ready(PodSource::Api));
    }

    #[test]
    fn a_partial_list_is_no_reason_to_judge_anything() {
        let board = SourcesReady::new([PodSource::File].into_iter().collect());
        board.mark_seen(PodSource::File, false);
        assert!(board.all_seen() && !board.ready(PodSource::File));
        assert!(board.all_ready().is_none());
        board.mark_seen(PodSource::File, true);
        assert!(board.ready(PodSource::File));
        assert!(board.all_ready().is_some());
    }

    #[test]
    fn without_sources_everything_is_ready() {
        assert!(
            SourcesReady::new(SourceSet::default())
                .all_ready()
                .is_some()
        );
    }
}
