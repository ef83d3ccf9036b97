//! Which devices are being released: each by one task at most, however many pods end meanwhile. Pure.

use parking_lot::Mutex;
use std::collections::{BTreeMap, btree_map::Entry};

/// The devices that are being released, by their unique names, and whether that has been asked for again.
#[derive(Default)]
pub(super) struct Releases(Mutex<BTreeMap<String, bool>>);

impl Releases {
    /// Asks for a release. Returns whether the caller has to carry it out; else it is repeated by the one who does, who may
    /// have found the device in use before.
    pub(super) fn begin(&self, device: &str) -> bool {
        match self.0.lock().entry(device.to_owned()) {
            Entry::Vacant(new) => {
                new.insert(false);
                true
            }
            Entry::Occupied(mut in_progress) => {
                in_progress.insert(true);
                false
            }
        }
    }

    /// After a successful attempt: whether the release has ended. It has not if it was asked for meanwhile.
    pub(super) fn end(&self, device: &str) -> bool {
        let mut releases = self.0.lock();
        if releases.get_mut(device).is_some_and(std::mem::take) {
            return false;
        }
        releases.remove(device);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_that_is_asked_for_during_another_is_not_lost() {
        let releases = Releases::default();
        assert!(releases.begin("a") && releases.begin("b"));
        assert!(!releases.begin("a") && !releases.begin("a"));
        assert!(!releases.end("a"));
        assert!(releases.end("a") && releases.end("b"));
        assert!(releases.begin("a"));
    }
}
