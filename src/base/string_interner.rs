//! Interned strings.

use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;

/// Number of distinct strings above which unused ones are removed.
const FIRST_SWEEP: usize = 8192;

/// An interner: equal strings (images, hashes, names) are stored once.
#[derive(Debug, Default)]
pub struct StringInterner(Mutex<StringInternerInner>);

#[derive(Debug, Default)]
struct StringInternerInner {
    strings: HashSet<Arc<str>>,
    sweep_at: usize,
}

impl StringInterner {
    /// An empty interner.
    pub fn new() -> Self {
        Self::default()
    }

    /// The shared copy of a string. Unused strings are removed from time to time.
    pub fn intern(&self, text: &str) -> Arc<str> {
        let shared = &mut *self.0.lock();
        if let Some(known) = shared.strings.get(text) {
            return known.clone();
        }
        if shared.strings.len() >= shared.sweep_at {
            shared.strings.retain(|known| Arc::strong_count(known) > 1);
            shared.sweep_at = (shared.strings.len() * 2).max(FIRST_SWEEP);
        }
        let new: Arc<str> = text.into();
        shared.strings.insert(new.clone());
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_strings_are_one_and_unused_ones_are_dropped() {
        let strings = StringInterner::new();
        let held = strings.intern("held");
        assert!(Arc::ptr_eq(&held, &strings.intern("held")));
        for i in 0..FIRST_SWEEP * 3 {
            strings.intern(&i.to_string());
        }
        assert!(strings.0.lock().strings.len() <= FIRST_SWEEP);
        assert!(Arc::ptr_eq(&held, &strings.intern("held")));
    }
}
