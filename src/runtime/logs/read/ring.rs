//! What was read last of a log, for those who come to the same place a moment later. Pure.

use bytes::Bytes;
use std::collections::VecDeque;

/// Most bytes held for one log.
const CAPACITY: usize = 256 * 1024;

/// Consecutive pieces of one file.
#[derive(Debug, Default)]
pub(super) struct Ring {
    /// Number of the file.
    file: u64,
    /// Where in it the first piece begins.
    start: u64,
    /// Where the last one ends.
    end: u64,
    pieces: VecDeque<Bytes>,
}

impl Ring {
    /// What there is from a place on, as one piece.
    pub(super) fn get(&self, file: u64, offset: u64) -> Option<Bytes> {
        if file != self.file || offset < self.start || offset >= self.end {
            return None;
        }
        let mut begin = self.start;
        for piece in &self.pieces {
            let end = begin + piece.len() as u64;
            if offset < end {
                let inside = usize::try_from(offset - begin).ok()?;
                return Some(piece.slice(inside..));
            }
            begin = end;
        }
        None
    }

    /// Whether a place lies before what is held.
    pub(super) fn is_behind(&self, file: u64, offset: u64) -> bool {
        file == self.file && offset < self.start
    }

    /// Adds what was read at a place. What does not continue what is held replaces it.
    pub(super) fn push(&mut self, file: u64, offset: u64, bytes: Bytes) {
        if file != self.file || offset != self.end {
            *self = Self {
                file,
                start: offset,
                end: offset,
                pieces: VecDeque::new(),
            };
        }
        self.end += bytes.len() as u64;
        self.pieces.push_back(bytes);
        while self.end - self.start > CAPACITY as u64 && self.pieces.len() > 1 {
            let oldest = self.pieces.pop_front();
            self.start += oldest.map_or(0, |piece| piece.len() as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(fill: u8, length: usize) -> Bytes {
        Bytes::from(vec![fill; length])
    }

    #[test]
    fn what_is_held_can_be_had_from_any_place_in_it() {
        let mut ring = Ring::default();
        ring.push(1, 10, Bytes::from_static(b"abc"));
        ring.push(1, 13, Bytes::from_static(b"de"));
        for (offset, rest) in [(10, "abc"), (12, "c"), (13, "de"), (14, "e")] {
            assert_eq!(ring.get(1, offset).unwrap(), rest);
        }
        assert_eq!(ring.get(1, 9), None);
        assert_eq!(ring.get(1, 15), None);
        assert_eq!(ring.get(2, 10), None);
        assert!(ring.is_behind(1, 9) && !ring.is_behind(1, 10) && !ring.is_behind(2, 9));
    }

    #[test]
    fn what_does_not_continue_it_replaces_it() {
        let mut ring = Ring::default();
        ring.push(0, 0, piece(1, 5));
        ring.push(0, 100, piece(2, 5));
        assert_eq!(ring.get(0, 0), None);
        assert_eq!(ring.get(0, 100), Some(piece(2, 5)));
        ring.push(1, 0, piece(3, 5));
        assert_eq!(ring.get(0, 100), None);
        assert_eq!(ring.get(1, 0), Some(piece(3, 5)));
    }

    #[test]
    fn it_holds_a_fixed_amount() {
        let mut ring = Ring::default();
        for n in 0..100 {
            ring.push(0, n * 64 * 1024, piece(0, 64 * 1024));
            let held: usize = ring.pieces.iter().map(Bytes::len).sum();
            assert!(held <= CAPACITY);
        }
        assert!(ring.get(0, 96 * 64 * 1024).is_some());
        assert!(ring.is_behind(0, 95 * 64 * 1024));
    }
}
