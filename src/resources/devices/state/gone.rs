//! Resources whose plugins did not return in time. Pure.

use crate::base::clock::Instant;
use crate::state::device_capacity::Capacity;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long the node reports a capacity of zero.
const REPORTED_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// How long after that the resource is removed from the Node, if that still has it.
const FORGOTTEN_FOR: Duration = REPORTED_FOR;
/// Maximum number of resources that are reported, and of those that are being forgotten. A plugin that registers with a
/// new name each time must not make the Node grow until the API server rejects it.
const MAX_GONE: usize = 256;

/// The resources by name.
#[derive(Clone, Debug, Default)]
pub(super) struct GoneResources(BTreeMap<String, GoneResource>);

#[derive(Clone, Copy, Debug)]
struct GoneResource {
    since: Instant,
    is_forgotten: bool,
}

impl GoneResource {
    fn expires_at(&self) -> Instant {
        let forgotten = if self.is_forgotten { FORGOTTEN_FOR } else { Duration::ZERO };
        self.since + REPORTED_FOR + forgotten
    }
}

impl GoneResources {
    pub(super) fn add(&mut self, name: &str, now: Instant) {
        let gone = GoneResource { since: now, is_forgotten: false };
        self.0.insert(name.to_owned(), gone);
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// Forgets resources that have been reported for long enough, and the oldest ones if there are too many; returns
    /// whether there were any.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let is_over = |gone: &GoneResource| gone.expires_at() <= now;
        let reported = self.oldest(false);
        let excess = reported.len().saturating_sub(MAX_GONE);
        let mut changed = false;
        for (index, name) in reported.into_iter().enumerate() {
            if let Some(gone) = self.0.get_mut(&name)
                && (index < excess || is_over(gone))
            {
                gone.is_forgotten = true;
                changed = true;
            }
        }
        let forgotten = self.oldest(true);
        let excess = forgotten.len().saturating_sub(MAX_GONE);
        for (index, name) in forgotten.into_iter().enumerate() {
            if index < excess || self.0.get(&name).is_some_and(is_over) {
                self.0.remove(&name);
                changed = true;
            }
        }
        changed
    }

    /// The names of those that are forgotten, or of the others, the oldest one first.
    fn oldest(&self, forgotten: bool) -> Vec<String> {
        let of_kind = self.0.iter().filter(|(_, gone)| gone.is_forgotten == forgotten);
        let mut of_kind: Vec<_> = of_kind.map(|(name, gone)| (gone.since, name)).collect();
        of_kind.sort();
        of_kind.into_iter().map(|(_, name)| name.clone()).collect()
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        let expiries = self.0.values().map(GoneResource::expires_at);
        expiries.min()
    }

    pub(super) fn capacities(&self) -> impl Iterator<Item = (String, Capacity)> {
        self.0.iter().map(|(name, gone)| {
            let capacity = Capacity { is_forgotten: gone.is_forgotten, ..Capacity::default() };
            (name.clone(), capacity)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;

    fn counts(gone: &GoneResources) -> (usize, usize) {
        let forgotten = gone.capacities().filter(|(_, capacity)| capacity.is_forgotten);
        let forgotten = forgotten.count();
        (gone.0.len() - forgotten, forgotten)
    }

    #[test]
    fn a_resource_is_reported_for_a_day_and_forgotten_for_another() {
        let (mut gone, start) = (GoneResources::default(), clock::instant());
        gone.add("a/b", start);
        for (hour, expected) in
            [(0, (1, 0)), (23, (1, 0)), (24, (0, 1)), (47, (0, 1)), (48, (0, 0))]
        {
            gone.expire(start + Duration::from_secs(hour * 3600));
            assert_eq!(counts(&gone), expected, "after {hour} h");
        }
        assert_eq!(gone.next_expiry(), None);
    }

    #[test]
    fn names_that_rotate_are_bounded_and_the_newest_are_reported() {
        let (mut gone, start) = (GoneResources::default(), clock::instant());
        for number in 0..10_000_u32 {
            let now = start + Duration::from_secs(number.into());
            gone.add(&format!("example.com/{number}"), now);
            gone.expire(now);
        }
        assert_eq!(counts(&gone), (MAX_GONE, MAX_GONE));
        let newest: BTreeMap<_, _> = gone.capacities().collect();
        assert!(!newest["example.com/9999"].is_forgotten);
        assert!(newest["example.com/9700"].is_forgotten);
    }
}
