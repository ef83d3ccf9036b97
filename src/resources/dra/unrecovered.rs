//! The pods whose claims a damaged checkpoint may lack. Pure.

use crate::model::PodUid;
use std::collections::HashSet;

/// These pods.
#[derive(Debug)]
pub(super) enum UnrecoveredPods {
    /// All: not all pods of the node are known yet.
    All,
    /// These. Once there are none, the damaged checkpoint is removed.
    Pods(HashSet<PodUid>),
}

impl Default for UnrecoveredPods {
    fn default() -> Self {
        Self::Pods(HashSet::new())
    }
}

impl UnrecoveredPods {
    pub(super) fn contains(&self, uid: &PodUid) -> bool {
        match self {
            Self::All => true,
            Self::Pods(pods) => pods.contains(uid),
        }
    }

    /// Removes pods that are not known; returns whether the last one was removed.
    pub(super) fn retain(&mut self, is_known: impl Fn(&PodUid) -> bool) -> bool {
        match self {
            Self::All => false,
            Self::Pods(pods) => {
                let had_any = !pods.is_empty();
                pods.retain(is_known);
                had_any && pods.is_empty()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_pod_is_removed_once() {
        let mut pods = UnrecoveredPods::All;
        assert!(pods.contains(&"a".into()));
        assert!(!pods.retain(|_| false));
        pods = UnrecoveredPods::Pods(["a", "b"].map(PodUid::from).into());
        assert!(pods.contains(&"a".into()) && !pods.contains(&"c".into()));
        for (kept, was_last) in [("b", false), ("b", false), ("c", true), ("c", false)] {
            let removed_last = pods.retain(|uid| *uid == PodUid::from(kept));
            assert_eq!(removed_last, was_last, "{kept}");
        }
    }
}
