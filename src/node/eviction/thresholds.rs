//! Eviction signals and thresholds. Pure.

use crate::base::named_enum;
use crate::model::Amount;
use crate::node::node_status::resources::{ThresholdValue, threshold};
use std::collections::BTreeMap;
use std::time::Duration;

named_enum! {
    /// An eviction signal, with its name in the configuration, metrics and annotations.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum EvictionSignal {
        /// Capacity minus the working set of the node.
        MemoryAvailable = "memory.available",
        /// The same for all pods, if their cgroup has a limit.
        AllocatableMemoryAvailable = "allocatableMemory.available",
        /// Free bytes of the file system of the kubelet's directory.
        NodeFsAvailable = "nodefs.available",
        /// Free inodes of the same file system.
        NodeFsInodesFree = "nodefs.inodesFree",
        /// Free bytes of the file system of images.
        ImageFsAvailable = "imagefs.available",
        /// Free inodes of the same file system.
        ImageFsInodesFree = "imagefs.inodesFree",
        /// Processes that can still be created.
        PidAvailable = "pid.available",
    }
}

named_enum! {
    /// A resource that is reclaimed, with its name in events, messages and annotations.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum EvictionResource {
        /// Bytes of memory.
        Memory = "memory",
        /// Bytes on disk.
        Disk = "ephemeral-storage",
        /// Inodes on disk.
        Inodes = "inodes",
        /// Processes.
        Pids = "pids",
    }
}

impl EvictionSignal {
    /// Whether it measures the file system of images.
    pub(super) fn is_of_images(self) -> bool {
        matches!(self, Self::ImageFsAvailable | Self::ImageFsInodesFree)
    }

    pub(super) fn resource(self) -> EvictionResource {
        match self {
            EvictionSignal::MemoryAvailable | EvictionSignal::AllocatableMemoryAvailable => {
                EvictionResource::Memory
            }
            EvictionSignal::NodeFsAvailable | EvictionSignal::ImageFsAvailable => {
                EvictionResource::Disk
            }
            EvictionSignal::NodeFsInodesFree | EvictionSignal::ImageFsInodesFree => {
                EvictionResource::Inodes
            }
            EvictionSignal::PidAvailable => EvictionResource::Pids,
        }
    }

    /// Upper bound of the consumption per second, from which the interval of measurements is derived.
    pub(super) fn max_consumption_per_second(self) -> i64 {
        match self.resource() {
            EvictionResource::Memory | EvictionResource::Disk => 4 << 30,
            EvictionResource::Inodes => 1_000_000,
            EvictionResource::Pids => 100_000,
        }
    }
}

impl EvictionResource {
    pub(super) fn is_on_disk(self) -> bool {
        matches!(self, EvictionResource::Disk | EvictionResource::Inodes)
    }

    /// Formats an amount for messages.
    pub(super) fn format(self, amount: i64) -> String {
        match self {
            EvictionResource::Memory | EvictionResource::Disk => {
                Amount::of_bytes(amount).to_api().0
            }
            EvictionResource::Inodes | EvictionResource::Pids => amount.to_string(),
        }
    }
}

/// An eviction threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EvictionThreshold {
    /// The measured signal.
    pub signal: EvictionSignal,
    /// The threshold is met below this value.
    pub value: ThresholdValue,
    /// `evictionSoftGracePeriod`, above zero; `None` for a hard threshold.
    pub grace: Option<Duration>,
    /// `evictionMinimumReclaim`: the amount above the value at which the threshold is no longer met.
    pub min_reclaim: ThresholdValue,
}

/// The thresholds of a validated configuration; entries that cannot be parsed are skipped, and so are those of
/// `containerfs`, because writable layers are on the disk of the kubelet's directory or of images.
pub fn thresholds(
    hard: &BTreeMap<String, String>,
    soft: &BTreeMap<String, String>,
    soft_grace: &BTreeMap<String, Duration>,
    min_reclaim: &BTreeMap<String, String>,
) -> Vec<EvictionThreshold> {
    let one = |name: &str, value: &str, grace| {
        let reclaim = min_reclaim.get(name).and_then(|text| ThresholdValue::parse(text));
        Some(EvictionThreshold {
            signal: EvictionSignal::parse(name)?,
            value: threshold(value)?,
            grace,
            min_reclaim: reclaim.unwrap_or(ThresholdValue::Absolute(0)),
        })
    };
    let hard = hard.iter().filter_map(|(name, value)| one(name, value, None));
    let soft = soft.iter().filter_map(|(name, value)| {
        // As upstream, a soft threshold without a grace period is a hard one.
        let grace = soft_grace.get(name).copied();
        one(name, value, grace.filter(|grace| !grace.is_zero()))
    });
    hard.chain(soft).collect()
}

/// Adds a copy of the hard `memory.available` thresholds for `allocatableMemory.available`, as upstream does.
pub fn with_allocatable(mut thresholds: Vec<EvictionThreshold>) -> Vec<EvictionThreshold> {
    let of_pods: Vec<_> = thresholds
        .iter()
        .filter(|threshold| threshold.signal == EvictionSignal::MemoryAvailable)
        .filter(|threshold| threshold.grace.is_none())
        .map(|threshold| EvictionThreshold {
            signal: EvictionSignal::AllocatableMemoryAvailable,
            ..*threshold
        })
        .collect();
    thresholds.extend(of_pods);
    thresholds
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        let entries = entries.iter();
        entries.map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    #[test]
    fn thresholds_are_amounts_or_shares_and_some_turn_them_off() {
        let hard = map(&[
            ("memory.available", "100Mi"),
            ("nodefs.available", "10%"),
            ("pid.available", "0"),
            ("imagefs.available", "100%"),
            ("containerfs.available", "5%"),
        ]);
        let soft = map(&[("memory.available", "1Gi"), ("nodefs.inodesFree", "5%")]);
        let grace = [("memory.available", 90), ("nodefs.inodesFree", 0)];
        let grace = grace.map(|(name, seconds)| (name.to_owned(), Duration::from_secs(seconds)));
        let grace = BTreeMap::from(grace);
        let found = thresholds(&hard, &soft, &grace, &map(&[("nodefs.available", "500Mi")]));
        let expected = [
            (
                EvictionSignal::MemoryAvailable,
                ThresholdValue::Absolute(100 << 20),
                None,
                ThresholdValue::Absolute(0),
            ),
            (
                EvictionSignal::NodeFsAvailable,
                ThresholdValue::Percentage(0.1),
                None,
                ThresholdValue::Absolute(500 << 20),
            ),
            (
                EvictionSignal::MemoryAvailable,
                ThresholdValue::Absolute(1 << 30),
                Some(Duration::from_secs(90)),
                ThresholdValue::Absolute(0),
            ),
            (
                EvictionSignal::NodeFsInodesFree,
                ThresholdValue::Percentage(0.05),
                None,
                ThresholdValue::Absolute(0),
            ),
        ];
        let expected = expected.map(|(signal, value, grace, min_reclaim)| EvictionThreshold {
            signal,
            value,
            grace,
            min_reclaim,
        });
        assert_eq!(found, expected);
        let all = with_allocatable(found);
        let signals: Vec<_> = all.iter().map(|threshold| threshold.signal).collect();
        assert_eq!(
            signals,
            [
                EvictionSignal::MemoryAvailable,
                EvictionSignal::NodeFsAvailable,
                EvictionSignal::MemoryAvailable,
                EvictionSignal::NodeFsInodesFree,
                EvictionSignal::AllocatableMemoryAvailable
            ]
        );
        assert_eq!(all[4].value, ThresholdValue::Absolute(100 << 20), "of the hard one");
        assert_eq!(ThresholdValue::Percentage(0.1).of(1000), 100);
    }
}
