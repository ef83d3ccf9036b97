//! Notices that the storage of the API server went back to an earlier state: a backup was restored. A watch that resumes
//! from the later version is accepted then and silent, until the cluster reaches that version again.
//!
//! Only versions of one kind are compared, because kinds may have storages of their own, and only of updates that always
//! change the object, because the response to another one may have an older version.

use super::ApiServer;
use crate::base::clock::{self, Instant};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::watch;

/// Minimum time between two lists of everything because of suspicions.
const SUSPICION_INTERVAL: Duration = Duration::from_secs(300);

/// The versions of the API server's storage.
#[derive(Default)]
pub(super) struct StorageVersions {
    /// The newest version in the response to an update, by kind.
    newest: Mutex<HashMap<&'static str, u128>>,
    suspected: Mutex<Option<Instant>>,
    restores: watch::Sender<()>,
}

impl StorageVersions {
    /// The newest version so far.
    pub(super) fn newest(&self, kind: &'static str) -> Option<u128> {
        self.newest.lock().get(kind).copied()
    }

    /// Records the version of a response. `newest_before` is the newest one when its request was sent: the responses to
    /// concurrent requests may be out of order.
    pub(super) fn written(
        &self,
        kind: &'static str,
        newest_before: Option<u128>,
        version: Option<&str>,
    ) {
        let Some(version) = version.and_then(|version| version.parse().ok()) else {
            return;
        };
        let went_back = newest_before.is_some_and(|before| version < before);
        {
            let mut newest = self.newest.lock();
            let newest = newest.entry(kind).or_insert(version);
            *newest = if went_back { version } else { version.max(*newest) };
        }
        if went_back {
            tracing::warn!(
                kind,
                version = version.to_string(),
                "The storage of the API server went back to an earlier version, listing all objects again"
            );
            self.restores.send_replace(());
        }
    }

    /// Restores from now on.
    pub(super) fn restores(&self) -> watch::Receiver<()> {
        self.restores.subscribe()
    }
}

impl ApiServer {
    /// A watch shows an object that has not existed for a while, so it may have missed more. All objects are listed
    /// again, at most once in five minutes.
    pub fn suspect_watches(&self) {
        let now = clock::instant();
        let mut suspected = self.storage.suspected.lock();
        if suspected.is_some_and(|last| now < last + SUSPICION_INTERVAL) {
            return;
        }
        *suspected = Some(now);
        tracing::warn!(
            "A watch is behind the storage of the API server, listing all objects again"
        );
        self.storage.restores.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_update_that_began_after_a_newer_version_shows_that_the_storage_went_back() {
        let storage = StorageVersions::default();
        let mut restores = storage.restores();
        for (kind, before, version, went_back) in [
            ("Lease", None, "100", false),
            ("Lease", Some(100), "103", false),
            // Sent before the response with 103 came.
            ("Lease", Some(100), "101", false),
            ("Lease", Some(103), "103", false),
            ("Node", None, "7", false),
            ("Lease", Some(103), "none", false),
            ("Lease", Some(103), "10", true),
            ("Lease", Some(10), "11", false),
        ] {
            storage.written(kind, before, Some(version));
            assert_eq!(restores.has_changed().unwrap(), went_back, "{kind} {version}");
            restores.mark_unchanged();
        }
        assert_eq!(storage.newest("Lease"), Some(11));
    }
}
