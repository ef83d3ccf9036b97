//! A bounded map that evicts the least recently used entry. Pure.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// A map with a maximum number of entries.
#[derive(Debug)]
pub(super) struct Lru<K, V> {
    max: usize,
    clock: u64,
    values: HashMap<K, (u64, V)>,
    by_use: BTreeMap<u64, K>,
}

impl<K: Clone + Eq + Hash, V> Lru<K, V> {
    pub(super) fn new(max: usize) -> Self {
        Self { max, clock: 0, values: HashMap::new(), by_use: BTreeMap::new() }
    }

    /// The value of a key, inserted if missing. Marks it as recently used.
    pub(super) fn get_or_insert(&mut self, key: &K, default: impl FnOnce() -> V) -> &mut V {
        self.clock += 1;
        let clock = self.clock;
        if let Some((used, _)) = self.values.get(key) {
            self.by_use.remove(used);
        } else if self.values.len() >= self.max
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.values.remove(&oldest);
        }
        self.by_use.insert(clock, key.clone());
        let value = self.values.entry(key.clone());
        let (used, value) = value.or_insert_with(|| (clock, default()));
        *used = clock;
        value
    }

    /// The value of a key, without marking it as recently used.
    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.values.get_mut(key).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_used_for_longest_is_forgotten() {
        let mut lru = Lru::new(2);
        *lru.get_or_insert(&"a", || 1) += 10;
        lru.get_or_insert(&"b", || 2);
        assert_eq!(*lru.get_or_insert(&"a", || 0), 11);
        lru.get_or_insert(&"c", || 3);
        assert_eq!(lru.get_mut(&"b"), None);
        assert_eq!(lru.get_mut(&"a"), Some(&mut 11));
        assert_eq!((lru.values.len(), lru.by_use.len()), (2, 2));
    }
}
