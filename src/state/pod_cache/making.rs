//! Pods of which something is being made: the runtime tells of it before whoever makes it knows its id.

use super::{PodCache, PodCacheWriter};
use crate::model::PodUid;
use parking_lot::Mutex;
use std::{collections::HashMap, sync::Arc};

/// How many things of each pod are being made.
#[derive(Debug, Default)]
pub(super) struct Makings(Mutex<HashMap<PodUid, usize>>);

/// Until it is dropped, something of a pod is being made.
#[derive(Debug)]
pub struct Making {
    makings: Arc<Makings>,
    uid: PodUid,
}

impl Drop for Making {
    fn drop(&mut self) {
        let mut pods = self.makings.0.lock();
        match pods.get_mut(&self.uid) {
            Some(number) if *number > 1 => *number -= 1,
            _ => drop(pods.remove(&self.uid)),
        }
    }
}

impl PodCache {
    /// Says that something of this pod is being made in the runtime, until the value is dropped: after
    /// the item was touched or observed. An id of this pod that nobody knows is no reason for a list
    /// meanwhile, however long the runtime takes.
    pub fn making(&self, uid: PodUid) -> Making {
        let makings = self.shared.makings.clone();
        *makings.0.lock().entry(uid.clone()).or_default() += 1;
        Making { makings, uid }
    }
}

impl PodCacheWriter {
    /// Whether something of this pod is being made.
    pub fn is_making(&self, uid: &PodUid) -> bool {
        self.shared.makings.0.lock().contains_key(uid)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_pod_is_in_the_making_until_the_last_thing_of_it_was_made() {
        let (writer, cache) = super::super::board();
        let uid = "u".into();
        assert!(!writer.is_making(&uid));
        let (first, second) = (cache.making(uid.clone()), cache.making(uid.clone()));
        assert!(!writer.is_making(&"other".into()));
        drop(first);
        assert!(writer.is_making(&uid));
        drop(second);
        assert!(!writer.is_making(&uid));
    }
}
