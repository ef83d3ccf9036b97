//! Compares a list reply with the previous one without decoding it, because decoding is most of the cost of a relist
//! that finds no change. Pure.
//!
//! Runtimes keep their items in hash maps: the order of entries, and of labels and annotations inside an entry, differs
//! from reply to reply. Therefore the fingerprint of a reply is a sum over its entries, and that of an entry is a sum
//! over its fields, so neither order matters. The hash has a random key per process, so no caller can construct different
//! replies with the same fingerprint.

use bytes::Bytes;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::marker::PhantomData;

/// The result of comparing a list with the previous one.
#[derive(Debug, Clone, PartialEq)]
pub enum ListChange<T> {
    /// The entries are the same.
    Unchanged,
    /// The entries differ; all entries.
    Changed(Vec<T>),
}

/// The fingerprint of the last list that one reader has seen. Each reader needs its own, because it would otherwise
/// miss changes that another reader saw first.
#[derive(Debug)]
pub struct ListFingerprint<T> {
    last: Option<Fingerprint>,
    hasher: RandomState,
    entries: PhantomData<fn() -> T>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fingerprint {
    sum: u64,
    entries: u64,
    bytes: u64,
}

impl<T> Default for ListFingerprint<T> {
    fn default() -> ListFingerprint<T> {
        ListFingerprint { last: None, hasher: RandomState::new(), entries: PhantomData }
    }
}

impl<T> ListFingerprint<T> {
    /// Without a previous list, so that the first one counts as changed.
    pub fn new() -> ListFingerprint<T> {
        ListFingerprint::default()
    }

    /// Discards the fingerprint, so that the next list counts as changed.
    pub fn forget(&mut self) {
        self.last = None;
    }

    /// Decodes an encoded reply unless its entries are those of the last one.
    ///
    /// # Errors
    /// Those of `decode`; the fingerprint is then kept.
    pub fn compare<E>(
        &mut self,
        reply: Bytes,
        decode: impl FnOnce(Bytes) -> Result<Vec<T>, E>,
    ) -> Result<ListChange<T>, E> {
        let seen = self.fingerprint(&reply);
        if self.is_last(seen) {
            return Ok(ListChange::Unchanged);
        }
        let entries = decode(reply)?;
        self.record(seen);
        Ok(ListChange::Changed(entries))
    }

    /// The fingerprint of an encoded reply; `None` if it is malformed.
    fn fingerprint(&self, reply: &[u8]) -> Option<Fingerprint> {
        fingerprint(&self.hasher, reply)
    }

    /// Whether this is the fingerprint of the last list.
    fn is_last(&self, seen: Option<Fingerprint>) -> bool {
        seen.is_some() && seen == self.last
    }

    /// Stores the fingerprint of a list that was decoded.
    fn record(&mut self, seen: Option<Fingerprint>) {
        self.last = seen;
    }
}

fn fingerprint(hasher: &RandomState, reply: &[u8]) -> Option<Fingerprint> {
    let mut result = Fingerprint { sum: 0, entries: 0, bytes: reply.len() as u64 };
    let mut rest = reply;
    while !rest.is_empty() {
        let entry = next_field(&mut rest)?;
        let mut sum = 0u64;
        let mut fields = entry.payload;
        // Only submessages have fields; other values are hashed as a whole.
        match entry.wire_type {
            LENGTH_DELIMITED => {
                while !fields.is_empty() {
                    let field = next_field(&mut fields)?;
                    sum = sum.wrapping_add(hash(hasher, field.whole));
                }
            }
            _ => sum = hash(hasher, entry.whole),
        }
        let mut hash = hasher.build_hasher();
        hash.write_u64(entry.key);
        hash.write_u64(sum);
        result.sum = result.sum.wrapping_add(hash.finish());
        result.entries += 1;
    }
    Some(result)
}

fn hash(hasher: &RandomState, bytes: &[u8]) -> u64 {
    let mut hash = hasher.build_hasher();
    hash.write(bytes);
    hash.finish()
}

const LENGTH_DELIMITED: u64 = 2;

struct Field<'a> {
    /// Field number and wire type, as on the wire.
    key: u64,
    wire_type: u64,
    whole: &'a [u8],
    payload: &'a [u8],
}

/// Splits the first protobuf field off `rest`.
fn next_field<'a>(rest: &mut &'a [u8]) -> Option<Field<'a>> {
    let whole = *rest;
    let key = varint(rest)?;
    let wire_type = key & 7;
    let payload_len = match wire_type {
        0 => {
            let before = rest.len();
            let mut peek = *rest;
            varint(&mut peek)?;
            before - peek.len()
        }
        1 => 8,
        LENGTH_DELIMITED => usize::try_from(varint(rest)?).ok()?,
        5 => 4,
        _ => return None,
    };
    let (payload, tail) = rest.split_at_checked(payload_len)?;
    *rest = tail;
    let whole = whole.get(..whole.len() - tail.len())?;
    Some(Field { key, wire_type, whole, payload })
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, tail) = rest.split_first()?;
        *rest = tail;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;

    use super::*;
    use crate::cri::v1::{Container, ContainerMetadata, ListContainersResponse};

    fn container(id: u32, labels: &[(&str, &str)]) -> Container {
        Container {
            id: format!("id-{id}"),
            metadata: Some(ContainerMetadata { name: "c".into(), attempt: id }),
            created_at: i64::from(id) + 1_000_000_000_000,
            state: 1,
            labels: labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            ..Default::default()
        }
    }

    fn encode(containers: Vec<Container>) -> Vec<u8> {
        ListContainersResponse { containers }.encode_to_vec()
    }

    const LABELS: &[(&str, &str)] = &[("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"), ("e", "5")];

    #[test]
    fn order_of_entries_and_of_labels_does_not_matter() {
        let last = ListFingerprint::<Container>::new();
        let first = last.fingerprint(&encode((0..50).map(|id| container(id, LABELS)).collect()));
        assert!(first.is_some());
        // New maps iterate in another order.
        let again =
            last.fingerprint(&encode((0..50).rev().map(|id| container(id, LABELS)).collect()));
        assert_eq!(first, again);
    }

    #[test]
    fn any_changed_field_matters() {
        let last = ListFingerprint::<Container>::new();
        let base = container(1, LABELS);
        let seen = |c: Container| last.fingerprint(&encode(vec![c, container(2, LABELS)]));
        let before = seen(base.clone());
        let mut variants = Vec::new();
        variants.push(Container { state: 2, ..base.clone() });
        variants.push(Container { created_at: base.created_at + 1, ..base.clone() });
        variants.push(Container { id: "id-9".into(), ..base.clone() });
        let metadata = ContainerMetadata { name: "c".into(), attempt: 7 };
        variants.push(Container { metadata: Some(metadata), ..base.clone() });
        let mut labels = base.labels.clone();
        labels.insert("a".into(), "2".into());
        labels.insert("b".into(), "1".into());
        variants.push(Container { labels, ..base.clone() });
        for variant in variants {
            assert_ne!(seen(variant.clone()), before, "{variant:?}");
        }
    }

    #[test]
    fn a_field_that_moves_to_another_entry_matters() {
        let last = ListFingerprint::<Container>::new();
        let with = |a: i32, b: i32| {
            let (mut one, mut two) = (container(1, LABELS), container(2, LABELS));
            (one.state, two.state) = (a, b);
            last.fingerprint(&encode(vec![one, two]))
        };
        assert_ne!(with(1, 2), with(2, 1));
    }

    #[test]
    fn a_malformed_reply_has_no_fingerprint_and_is_never_unchanged() {
        let mut last = ListFingerprint::<Container>::new();
        for bytes in [&[0x0a, 0xff][..], &[0x80], &[0x0b], &[0x0a, 0x02, 0x0a], &[0xff; 11]] {
            let seen = last.fingerprint(bytes);
            assert_eq!(seen, None, "{bytes:?}");
            last.record(seen);
            assert!(!last.is_last(seen));
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = ListFingerprint::<Container>::new().fingerprint(&bytes);
        }
    }
}
