//! Which sources have delivered their pods (upstream's `SourcesReady`).

use crate::model::{Completeness, PodSource, PodUid};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The writing end, for the sync loop only, which marks a source *after* it has applied its update: only then are the
/// pods of that update desired.
#[derive(Debug)]
pub struct SourcesReady {
    reader: SourcesReadyReader,
}

/// Reading end; cheap to clone.
///
/// | method | sources | their lists | unusable manifests |
/// |---|---|---|---|
/// | [`Self::all_seen`] | all | complete or not | allowed |
/// | [`Self::delivered`] | one | complete | allowed |
/// | [`Self::all_delivered`] | all | complete | allowed |
/// | [`Self::all_complete`] | all | complete | none |
#[derive(Clone, Debug)]
pub struct SourcesReadyReader {
    configured: BTreeSet<PodSource>,
    /// The sources of which a message was applied, with how complete their lists are.
    seen: Arc<Mutex<HashMap<PodSource, Completeness>>>,
}

impl SourcesReady {
    /// No source has delivered.
    pub fn new(configured: BTreeSet<PodSource>) -> Self {
        let reader = SourcesReadyReader { configured, seen: Arc::default() };
        Self { reader }
    }

    /// A reading end.
    pub fn reader(&self) -> SourcesReadyReader {
        self.reader.clone()
    }

    /// Records that a message of the source was applied, and how complete the source's list is now. While a new list is
    /// applied in several updates, the source does not count as delivered: only the last one carries the completeness.
    /// Returns whether the completeness changed.
    pub fn mark_seen(&self, source: PodSource, completeness: Completeness) -> bool {
        let mut seen = self.reader.seen.lock();
        seen.insert(source, completeness.clone()) != Some(completeness)
    }

    /// See [`SourcesReadyReader::is_removed`].
    pub fn is_removed(&self, source: PodSource, uid: &PodUid, manifest: Option<&str>) -> bool {
        self.reader.is_removed(source, uid, manifest)
    }

    /// Whether every configured source has sent a list, complete or not (upstream's `AllReady`).
    pub fn all_seen(&self) -> bool {
        self.reader.all_seen()
    }

    /// See [`SourcesReadyReader::all_delivered`].
    pub fn all_delivered(&self) -> bool {
        self.reader.all_delivered()
    }
}

impl SourcesReadyReader {
    /// Whether a pod of this source that is in no list has been removed from the source, so that it may be cleaned up.
    /// `manifest` is the file that it was made from, if that is known. A pod of the API server is kept until the API
    /// server has delivered. A pod of another source that is no longer configured may be cleaned up once all configured
    /// sources have delivered everything.
    pub fn is_removed(&self, source: PodSource, uid: &PodUid, manifest: Option<&str>) -> bool {
        let item = if source == PodSource::Api { Some(uid.as_str()) } else { manifest };
        if self.configured.contains(&source) {
            let seen = self.seen.lock();
            return seen.get(&source).is_some_and(|completeness| completeness.covers(item));
        }
        source != PodSource::Api && self.all_complete()
    }

    /// Whether a source has delivered a list, though perhaps without pods that are invalid or cannot be read.
    pub fn delivered(&self, source: PodSource) -> bool {
        let seen = self.seen.lock();
        let known = seen.get(&source);
        known.is_some_and(|known| *known != Completeness::Partial)
    }

    /// Whether every configured source has delivered, and nothing is missing from any list.
    pub fn all_complete(&self) -> bool {
        let complete = |known: &Completeness| *known == Completeness::Complete;
        self.all_seen() && self.seen.lock().values().all(complete)
    }

    /// Whether every configured source has delivered: a running pod that is in no list was removed from its source, or
    /// its manifest is invalid or unreadable.
    pub fn all_delivered(&self) -> bool {
        let partial = |known: &Completeness| *known == Completeness::Partial;
        self.all_seen() && !self.seen.lock().values().any(partial)
    }

    /// Whether every configured source has sent a list, complete or not.
    pub fn all_seen(&self) -> bool {
        let seen = self.seen.lock();
        self.configured.iter().all(|source| seen.contains_key(source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Completeness::{Complete, Partial};

    fn ready(sources: &[PodSource]) -> SourcesReady {
        SourcesReady::new(sources.iter().copied().collect())
    }

    #[test]
    fn all_are_ready_only_when_each_configured_source_was_seen() {
        let sources = ready(&[PodSource::File, PodSource::Http]);
        let reader = sources.reader();
        assert!(!reader.all_delivered());
        sources.mark_seen(PodSource::File, Complete);
        assert!(reader.is_removed(PodSource::File, &"u".into(), None));
        assert!(!reader.is_removed(PodSource::Http, &"u".into(), None));
        assert!(
            !reader.is_removed(PodSource::Posted, &"u".into(), None),
            "not configured: gone when all have delivered"
        );
        assert!(!sources.all_delivered());
        sources.mark_seen(PodSource::Http, Complete);
        assert!(reader.all_delivered());
        assert!(sources.is_removed(PodSource::Posted, &"u".into(), None));
    }

    #[test]
    fn api_pods_are_removed_only_after_the_api_source_delivered() {
        let alone = ready(&[PodSource::File]);
        alone.mark_seen(PodSource::File, Complete);
        assert!(alone.all_delivered());
        assert!(!alone.is_removed(PodSource::Api, &"u".into(), None));
        assert!(!ready(&[]).is_removed(PodSource::Api, &"u".into(), None));
        let joined = ready(&[PodSource::File, PodSource::Api]);
        joined.mark_seen(PodSource::File, Complete);
        assert!(!joined.is_removed(PodSource::Api, &"u".into(), None));
        joined.mark_seen(PodSource::Api, Complete);
        assert!(joined.is_removed(PodSource::Api, &"u".into(), None));
    }

    #[test]
    fn a_list_that_is_still_being_delivered_makes_no_pod_gone() {
        let sources = ready(&[PodSource::File]);
        assert!(sources.mark_seen(PodSource::File, Partial));
        assert!(!sources.mark_seen(PodSource::File, Partial));
        assert!(
            sources.all_seen() && !sources.is_removed(PodSource::File, &"u".into(), Some("/m/a"))
        );
        assert!(!sources.all_delivered());
        assert!(sources.mark_seen(PodSource::File, Complete));
        assert!(sources.is_removed(PodSource::File, &"u".into(), None));
        assert!(sources.all_delivered());
    }

    #[test]
    fn a_manifest_that_cannot_be_read_holds_back_only_what_it_may_have_made() {
        let sources = ready(&[PodSource::File, PodSource::Http]);
        let unread = BTreeSet::from(["/m/bad".to_string()]);
        sources.mark_seen(PodSource::File, unread.into());
        sources.mark_seen(PodSource::Http, Complete);
        for (source, manifest, expected) in [
            (PodSource::File, Some("/m/gone"), true),
            (PodSource::File, Some("/m/bad"), false),
            (PodSource::File, None, false),
            (PodSource::Http, None, true),
            (PodSource::Posted, Some("/p/gone"), false),
        ] {
            let ready = sources.is_removed(source, &"u".into(), manifest);
            assert_eq!(ready, expected, "{source} {manifest:?}");
        }
        assert!(sources.all_delivered(), "clean-ups go on");
        let reader = sources.reader();
        assert!(reader.delivered(PodSource::File) && !reader.delivered(PodSource::Posted));
        assert!(!sources.reader().all_complete());
    }

    #[test]
    fn a_pod_of_the_api_server_that_cannot_be_read_holds_back_only_what_has_its_uid() {
        let sources = ready(&[PodSource::Api]);
        for (unread, expected) in [
            (&["unread"][..], [false, true]),
            (&["unread", "u"], [false, false]),
            // One without a UID may be any of them.
            (&[""], [false, false]),
            (&[], [true, true]),
        ] {
            let unread: BTreeSet<_> = unread.iter().map(ToString::to_string).collect();
            sources.mark_seen(PodSource::Api, unread.clone().into());
            let found =
                ["unread", "u"].map(|uid| sources.is_removed(PodSource::Api, &uid.into(), None));
            assert_eq!(found, expected, "{unread:?}");
        }
    }

    #[test]
    fn without_sources_everything_is_ready() {
        assert!(ready(&[]).all_delivered());
    }
}
