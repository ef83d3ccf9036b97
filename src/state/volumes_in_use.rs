//! The attachable volumes that this node uses: as the volumes area wants them reported, and as the API server has
//! stored them in `status.volumesInUse`.
//!
//! * Owns: the wanted names, and of these the confirmed ones. The attach/detach controller does not detach a volume
//!   while its name is in the Node object, so nothing may be mounted before its name is confirmed.
//! * Woken by: the volumes area, the only writer of the wanted names; the task that reports the node, the only writer of
//!   the confirmed ones.
//! * Publishes: both sets.
//! * Must never keep a name confirmed that is not wanted any more: the next report removes it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::watch;

/// The wanted names; `None` until the volumes on disk have been read. Until then the Node object's list is kept.
pub type WantedVolumes = Option<Arc<BTreeSet<String>>>;

/// The confirmed names, each with the `resourceVersion` of the Node object that confirmed it first. A Node object says
/// whether a volume is attached only if it is not older: an older one may precede a detach.
pub type ConfirmedVolumes = Arc<BTreeMap<String, String>>;

/// The volumes in use; cheap to clone.
#[derive(Clone, Debug)]
pub struct VolumesInUse {
    wanted: watch::Sender<WantedVolumes>,
    confirmed: watch::Sender<ConfirmedVolumes>,
}

impl Default for VolumesInUse {
    fn default() -> Self {
        Self { wanted: watch::Sender::new(None), confirmed: watch::Sender::new(Arc::default()) }
    }
}

impl VolumesInUse {
    /// Replaces the wanted names. For the volumes area alone.
    pub fn set(&self, names: BTreeSet<String>) {
        let names = Arc::new(names);
        self.wanted.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&names);
            *known = Some(names.clone());
            changed
        });
        // A concurrent `confirm` reads the wanted names inside the same lock, so it either sees the new ones, or is
        // corrected here.
        self.replace_confirmed(|known| {
            let kept = known.iter().filter(|(name, _)| names.contains(*name));
            kept.map(|(name, version)| (name.clone(), version.clone())).collect()
        });
    }

    /// Notifies of the wanted names.
    pub fn wanted(&self) -> watch::Receiver<WantedVolumes> {
        self.wanted.subscribe()
    }

    /// Records `status.volumesInUse` of a Node object with its `resourceVersion`: of these, the names that are wanted
    /// are confirmed, and no others. For the task that reports the node alone.
    pub fn confirm<'a>(&self, names: impl IntoIterator<Item = &'a str>, resource_version: &str) {
        self.replace_confirmed(|known| {
            let wanted = self.wanted.borrow();
            let Some(wanted) = wanted.as_ref() else {
                return BTreeMap::new();
            };
            let names = names.into_iter().filter(|name| wanted.contains(*name));
            let with_version = |name: &str| {
                let version = match known.get(name) {
                    Some(first) if !is_older(resource_version, first) => first,
                    // Not known before, or the API server's storage was restored.
                    _ => resource_version,
                };
                (name.to_owned(), version.to_owned())
            };
            names.map(with_version).collect()
        });
    }

    /// Notifies of the confirmed names.
    pub fn confirmed(&self) -> watch::Receiver<ConfirmedVolumes> {
        self.confirmed.subscribe()
    }

    fn replace_confirmed(
        &self,
        replace: impl FnOnce(&BTreeMap<String, String>) -> BTreeMap<String, String>,
    ) {
        self.confirmed.send_if_modified(|known| {
            let new = replace(known);
            let changed = **known != new;
            if changed {
                *known = Arc::new(new);
            }
            changed
        });
    }
}

/// Whether one `resourceVersion` is older than another.
fn is_older(version: &str, than: &str) -> bool {
    match (version.parse::<u64>(), than.parse::<u64>()) {
        (Ok(version), Ok(than)) => version < than,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn confirmed(volumes: &VolumesInUse) -> Vec<(String, String)> {
        let confirmed = volumes.confirmed().borrow().clone();
        confirmed.iter().map(|(name, version)| (name.clone(), version.clone())).collect()
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |(name, version): &(&str, &str)| ((*name).to_owned(), (*version).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn only_wanted_names_are_confirmed_and_with_the_first_version_that_had_them() {
        let volumes = VolumesInUse::default();
        assert_eq!(*volumes.wanted().borrow(), None);
        volumes.confirm(["a"], "1");
        assert_eq!(confirmed(&volumes), [], "nothing is wanted yet");
        volumes.set(names(&["a", "b"]));
        volumes.confirm(["a", "c"], "9");
        assert_eq!(confirmed(&volumes), pairs(&[("a", "9")]));
        volumes.confirm(["a", "b"], "10");
        assert_eq!(confirmed(&volumes), pairs(&[("a", "9"), ("b", "10")]));
        // The storage was restored from a backup.
        volumes.confirm(["a", "b"], "4");
        assert_eq!(confirmed(&volumes), pairs(&[("a", "4"), ("b", "4")]));
        volumes.confirm(["b"], "11");
        assert_eq!(confirmed(&volumes), pairs(&[("b", "4")]));
    }

    #[test]
    fn a_name_that_is_not_wanted_any_more_is_not_confirmed_at_once_and_has_to_be_confirmed_again() {
        let volumes = VolumesInUse::default();
        volumes.set(names(&["a", "b"]));
        volumes.confirm(["a", "b"], "1");
        let changes = volumes.confirmed();
        volumes.set(names(&["b"]));
        assert!(changes.has_changed().unwrap());
        assert_eq!(confirmed(&volumes), pairs(&[("b", "1")]));
        // The response to an earlier report.
        volumes.confirm(["a", "b"], "2");
        assert_eq!(confirmed(&volumes), pairs(&[("b", "1")]));
        volumes.set(names(&["a", "b"]));
        assert_eq!(confirmed(&volumes), pairs(&[("b", "1")]));
        volumes.confirm(["a", "b"], "3");
        assert_eq!(confirmed(&volumes), pairs(&[("a", "3"), ("b", "1")]));
    }

    #[test]
    fn readers_are_woken_only_by_changes() {
        let volumes = VolumesInUse::default();
        let (wanted, confirmed) = (volumes.wanted(), volumes.confirmed());
        volumes.set(names(&[]));
        assert!(wanted.has_changed().unwrap(), "now it is known");
        let wanted = volumes.wanted();
        volumes.set(names(&[]));
        volumes.confirm(["a"], "1");
        assert!(!wanted.has_changed().unwrap());
        assert!(!confirmed.has_changed().unwrap());
    }
}
