//! Which ids of the node each pod's user namespace has. Pure.

use crate::model::PodUid;
use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};

/// Ids of one pod, unless `userNamespaces.idsPerPod` says otherwise; every number of ids is a
/// multiple of this (upstream's `userNsUnitLength`).
pub const UNIT: u32 = 65536;

/// The ids that ranges are cut from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdSpace {
    first_slot: u32,
    slots: u32,
    per_pod: u32,
}

impl IdSpace {
    /// `length` ids from `first`, cut into ranges of `per_pod` for at most `max_pods` pods.
    pub fn new((first, length): (u32, u32), per_pod: u32, max_pods: u32) -> anyhow::Result<Self> {
        ensure!(
            per_pod != 0 && per_pod.is_multiple_of(UNIT),
            "kubelet user namespace length {per_pod} is not a multiple of {UNIT}"
        );
        ensure!(
            first.is_multiple_of(per_pod),
            "kubelet user assigned ID {first} is not a multiple of {per_pod}"
        );
        ensure!(
            first >= per_pod,
            "kubelet user assigned ID {first} must be greater or equal to {per_pod}"
        );
        ensure!(
            length.is_multiple_of(per_pod),
            "kubelet user assigned IDs length {length} is not a multiple of {per_pod}"
        );
        // Not the range with the last ID, 2^32 - 1: the kernel refuses to map it.
        let slots = length.min(u32::MAX - first) / per_pod;
        ensure!(
            slots >= max_pods,
            "kubelet user assigned IDs are not enough to support {max_pods} pods"
        );
        Ok(Self { first_slot: first / per_pod, slots, per_pod })
    }

    /// Everything above the ids that the node's own users are expected in: used without subordinate IDs.
    pub fn whole(per_pod: u32) -> (u32, u32) {
        (per_pod, 0u32.wrapping_sub(per_pod))
    }
}

/// A pod's ids on the node; inside, they begin at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// The first one, which is root inside.
    pub host_id: u32,
    /// How many.
    pub length: u32,
}

/// The allocated ranges.
#[derive(Clone, Debug)]
pub struct Ranges {
    space: IdSpace,
    by_pod: HashMap<PodUid, u32>,
    used: BTreeSet<u32>,
    next: u32,
}

impl Ranges {
    /// No pod has one yet.
    pub fn new(space: IdSpace) -> Self {
        Self { space, by_pod: HashMap::new(), used: BTreeSet::new(), next: 0 }
    }

    /// The pod's range, if it has one.
    pub fn of(&self, uid: &PodUid) -> Option<IdRange> {
        self.by_pod.get(uid).map(|slot| self.range(*slot))
    }

    /// Allocates a free range to the pod; released ranges are reused last.
    pub fn allocate(&mut self, uid: &PodUid) -> anyhow::Result<IdRange> {
        if let Some(known) = self.of(uid) {
            return Ok(known);
        }
        let slot = (self.next..self.space.slots)
            .chain(0..self.next)
            .find(|slot| !self.used.contains(slot))
            .context("could not find an empty slot to allocate a user namespace")?;
        self.next = (slot + 1) % self.space.slots;
        self.take(uid, slot);
        Ok(self.range(slot))
    }

    /// Records a range allocated by an earlier process.
    pub fn record(&mut self, uid: &PodUid, range: IdRange) -> anyhow::Result<()> {
        let per_pod = self.space.per_pod;
        let IdRange { host_id, length } = range;
        ensure!(length == per_pod, "wrong user namespace length {length}");
        ensure!(host_id.is_multiple_of(per_pod), "wrong user namespace offset specified {host_id}");
        let slot = (host_id / per_pod)
            .checked_sub(self.space.first_slot)
            .filter(|slot| *slot < self.space.slots)
            .with_context(|| format!("id {host_id} is out of range"))?;
        match self.by_pod.get(uid) {
            Some(known) if *known == slot => {}
            Some(_) => {
                bail!("different user namespace range already used by pod {:?}", uid.as_str())
            }
            None if self.used.contains(&slot) => {
                bail!("range picked for pod {:?} already taken", uid.as_str())
            }
            None => self.take(uid, slot),
        }
        Ok(())
    }

    /// Releases a pod's range; returns whether it had one.
    pub fn release(&mut self, uid: &PodUid) -> bool {
        match self.by_pod.remove(uid) {
            Some(slot) => self.used.remove(&slot),
            None => false,
        }
    }

    fn take(&mut self, uid: &PodUid, slot: u32) {
        self.by_pod.insert(uid.clone(), slot);
        self.used.insert(slot);
    }

    fn range(&self, slot: u32) -> IdRange {
        IdRange {
            host_id: (self.space.first_slot + slot).wrapping_mul(self.space.per_pod),
            length: self.space.per_pod,
        }
    }
}

/// The content of a pod's `userns` file; upstream's format, so that either kubelet reads the other's.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct UserNamespaceRecord {
    uid_mappings: Vec<IdMapping>,
    gid_mappings: Vec<IdMapping>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct IdMapping {
    host_id: u32,
    container_id: u32,
    length: u32,
}

/// Reads a pod's file.
pub fn parse_record(bytes: &[u8]) -> anyhow::Result<IdRange> {
    let record: UserNamespaceRecord =
        serde_json::from_slice(bytes).context("invalid user namespace mappings file")?;
    let [mapping] = record.uid_mappings.as_slice() else {
        bail!("invalid user namespace configuration: no more than one mapping allowed.");
    };
    ensure!(
        record.gid_mappings == [*mapping],
        "invalid user namespace configuration: GID and UID mapping should be identical"
    );
    ensure!(
        mapping.container_id == 0,
        "invalid user namespace configuration: UID 0 must be mapped"
    );
    Ok(IdRange { host_id: mapping.host_id, length: mapping.length })
}

/// What to write into a pod's file.
pub fn record_text(range: IdRange) -> String {
    let IdRange { host_id, length } = range;
    let mapping = format!("[{{\"hostId\":{host_id},\"containerId\":0,\"length\":{length}}}]");
    format!("{{\"uidMappings\":{mapping},\"gidMappings\":{mapping}}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(name: &str) -> PodUid {
        PodUid::from(name)
    }

    fn small() -> Ranges {
        // Three ranges: 131072, 196608 and 262144.
        Ranges::new(IdSpace::new((2 * UNIT, 3 * UNIT), UNIT, 3).unwrap())
    }

    #[test]
    fn the_whole_space_begins_above_the_nodes_own_users_and_ends_before_the_last_id() {
        let whole = IdSpace::whole(UNIT);
        assert_eq!(whole, (65536, 4_294_901_760));
        let space = IdSpace::new(whole, UNIT, 110).unwrap();
        assert_eq!((space.first_slot, space.slots), (1, 65534));
        let mut ranges = Ranges::new(space);
        assert_eq!(ranges.allocate(&uid("a")).unwrap().host_id, 65536);
        ranges.next = 65533;
        let last = ranges.allocate(&uid("z")).unwrap();
        assert_eq!(u64::from(last.host_id) + u64::from(last.length), (1 << 32) - 65536);
        assert_eq!(ranges.next, 0);
    }

    #[test]
    fn ids_that_are_assigned_up_to_the_last_one_lack_a_range() {
        let (first, per_pod) = (1 << 31, 2 * UNIT);
        let space = IdSpace::new((first, 1 << 31), per_pod, 110).unwrap();
        assert_eq!(space.slots, (1 << 31) / per_pod - 1);
        let below = IdSpace::new((first, (1 << 31) - per_pod), per_pod, 110).unwrap();
        assert_eq!(below.slots, space.slots);
        let all = IdSpace::new((first, 1 << 31), 1 << 31, 1).unwrap_err();
        assert!(all.to_string().contains("not enough to support 1 pods"), "{all}");
    }

    #[test]
    fn a_space_that_cannot_be_cut_is_refused_with_upstreams_messages() {
        let table = [
            ((65536, 65536 * 200), 1000, "length 1000 is not a multiple of 65536"),
            ((65536, 65536 * 200), 0, "length 0 is not a multiple of 65536"),
            ((70000, 65536 * 200), UNIT, "ID 70000 is not a multiple of 65536"),
            ((0, 65536 * 200), UNIT, "ID 0 must be greater or equal to 65536"),
            ((65536, 65536 * 200 + 1), UNIT, "length 13107201 is not a multiple"),
            ((65536, 65536 * 109), UNIT, "not enough to support 110 pods"),
        ];
        for (ids, per_pod, expected) in table {
            let text = IdSpace::new(ids, per_pod, 110).unwrap_err().to_string();
            assert!(text.contains(expected), "{text}");
        }
        assert!(IdSpace::new((65536 * 2, 65536 * 220), 2 * UNIT, 110).is_ok());
    }

    #[test]
    fn each_pod_has_a_range_of_its_own_until_it_gives_it_back() {
        let mut ranges = small();
        let first = ranges.allocate(&uid("a")).unwrap();
        assert_eq!((first.host_id, first.length), (131_072, 65536));
        assert_eq!(ranges.allocate(&uid("a")).unwrap(), first, "allocated again");
        assert_eq!(ranges.allocate(&uid("b")).unwrap().host_id, 196_608);
        assert!(ranges.release(&uid("a")) && !ranges.release(&uid("a")));
        assert_eq!(ranges.of(&uid("a")), None);
        // The one given back last is the last to be given again.
        assert_eq!(ranges.allocate(&uid("c")).unwrap().host_id, 262_144);
        assert_eq!(ranges.allocate(&uid("d")).unwrap().host_id, 131_072);
        assert_eq!(
            ranges.allocate(&uid("e")).unwrap_err().to_string(),
            "could not find an empty slot to allocate a user namespace"
        );
    }

    #[test]
    fn a_range_from_before_is_taken_over_unless_it_contradicts() {
        let range = |host_id| IdRange { host_id, length: UNIT };
        let mut ranges = small();
        ranges.record(&uid("a"), range(196_608)).unwrap();
        ranges.record(&uid("a"), range(196_608)).unwrap();
        let odd = IdRange { host_id: 131_072, length: 1000 };
        let table = [
            ("a", range(131_072), "different user namespace range already used by pod \"a\""),
            ("b", range(196_608), "range picked for pod \"b\" already taken"),
            ("b", range(65536), "id 65536 is out of range"),
            ("b", range(327_680), "id 327680 is out of range"),
            ("b", range(131_073), "wrong user namespace offset specified 131073"),
            ("b", odd, "wrong user namespace length 1000"),
        ];
        for (pod, range, expected) in table {
            let error = ranges.record(&uid(pod), range).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
        assert_eq!(ranges.allocate(&uid("b")).unwrap().host_id, 131_072);
        assert_eq!(ranges.allocate(&uid("c")).unwrap().host_id, 262_144);
    }

    #[test]
    fn files_are_those_of_the_go_kubelet() {
        let text = r#"{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}],"gidMappings":[{"hostId":65536,"containerId":0,"length":65536}]}"#;
        let range = IdRange { host_id: 65536, length: 65536 };
        assert_eq!(parse_record(text.as_bytes()).unwrap(), range);
        assert_eq!(record_text(range), text);
        let mapping = |container, length| {
            format!(r#"[{{"hostId":1,"containerId":{container},"length":{length}}}]"#)
        };
        let record =
            |uids: &str, gids: &str| format!(r#"{{"uidMappings":{uids},"gidMappings":{gids}}}"#);
        let one = mapping(0, 1);
        let table = [
            (String::new(), "invalid user namespace mappings file"),
            ("[]".into(), "invalid user namespace mappings file"),
            (record("[]", "[]"), "no more than one mapping"),
            (record(&one, "[]"), "should be identical"),
            (record(&one, &mapping(0, 2)), "should be identical"),
            (record(&mapping(5, 1), &mapping(5, 1)), "UID 0 must be mapped"),
        ];
        for (text, expected) in table {
            let error = parse_record(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
