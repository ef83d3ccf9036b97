//! The next step of disk reclaim: removal of dead containers and unused images first, then eviction of pods. Pure.

use super::rank::DiskLayout;
use super::thresholds::{EvictionSignal, EvictionThreshold};
use crate::base::clock::Instant;
use std::time::Duration;

/// How long evictions wait for the removal of containers and images. A runtime may take two minutes for one image.
pub(super) const EVICTION_WAIT: Duration = Duration::from_secs(60);
/// Time after the start of the removal after which no further image is removed.
pub(super) const IMAGE_REMOVAL_TIMEOUT: Duration = Duration::from_secs(300);

/// The state of the removal of containers and images.
#[derive(Clone, Copy, Debug)]
pub(super) enum NodeReclaim<'a> {
    NotStarted,
    /// In progress.
    Running {
        since: Instant,
    },
    Ended {
        /// The thresholds that were met when it started.
        goal: &'a [EvictionThreshold],
        /// Whether the disks have been measured since it ended.
        measured: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskStep {
    /// Start to remove containers and images.
    Free,
    /// Wait for the removal to end, or for a measurement of its effect.
    Wait,
    Evict,
}

/// The next step for a threshold that is met.
pub(super) fn step(
    threshold: &EvictionThreshold,
    layout: DiskLayout,
    reclaim: NodeReclaim<'_>,
    now: Instant,
) -> DiskStep {
    if Reclaimable::of(threshold.signal, layout).is_nothing() {
        return DiskStep::Evict;
    }
    match reclaim {
        NodeReclaim::NotStarted => DiskStep::Free,
        NodeReclaim::Running { since } if now.duration_since(since) < EVICTION_WAIT => {
            DiskStep::Wait
        }
        NodeReclaim::Running { .. } => DiskStep::Evict,
        NodeReclaim::Ended { goal, .. } if !goal.contains(threshold) => DiskStep::Free,
        NodeReclaim::Ended { measured: false, .. } => DiskStep::Wait,
        NodeReclaim::Ended { .. } => DiskStep::Evict,
    }
}

/// What can be removed to free the disk that a signal measures (upstream's `buildSignalToNodeReclaimFuncs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reclaimable {
    /// Dead containers.
    pub(super) containers: bool,
    /// Unused images.
    pub(super) images: bool,
}

impl Reclaimable {
    pub(super) fn of(signal: EvictionSignal, layout: DiskLayout) -> Self {
        let of_images = signal.is_of_images();
        let (containers, images) = match layout {
            DiskLayout::OneDisk => (true, true),
            DiskLayout::DedicatedImages => (of_images, of_images),
            DiskLayout::SplitImages => (!of_images, of_images),
        };
        Self { containers, images }
    }

    pub(super) fn is_nothing(self) -> bool {
        self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;
    use crate::node::node_status::resources::ThresholdValue;

    fn threshold(signal: EvictionSignal) -> EvictionThreshold {
        EvictionThreshold {
            signal,
            value: ThresholdValue::Absolute(100),
            grace: None,
            min_reclaim: ThresholdValue::Absolute(0),
        }
    }

    #[test]
    fn pods_go_when_images_were_not_enough_or_take_too_long() {
        let node = threshold(EvictionSignal::NodeFsAvailable);
        let inodes = threshold(EvictionSignal::NodeFsInodesFree);
        let since = clock::instant();
        let after = |seconds| since + Duration::from_secs(seconds);
        let ended = |measured| NodeReclaim::Ended { goal: std::slice::from_ref(&node), measured };
        for (threshold, freeing, now, expected) in [
            (&node, NodeReclaim::NotStarted, since, DiskStep::Free),
            (&node, NodeReclaim::Running { since }, after(59), DiskStep::Wait),
            (&node, NodeReclaim::Running { since }, after(60), DiskStep::Evict),
            (&node, ended(false), after(999), DiskStep::Wait),
            (&node, ended(true), since, DiskStep::Evict),
            // It stopped when it was enough for another one.
            (&inodes, ended(true), since, DiskStep::Free),
        ] {
            let found = step(threshold, DiskLayout::OneDisk, freeing, now);
            assert_eq!(found, expected, "{threshold:?} {freeing:?}");
        }
    }

    #[test]
    fn images_on_another_disk_are_left_alone() {
        let (freeing, now) = (NodeReclaim::NotStarted, clock::instant());
        for (signal, layout, expected) in [
            (EvictionSignal::NodeFsAvailable, DiskLayout::OneDisk, DiskStep::Free),
            (EvictionSignal::NodeFsAvailable, DiskLayout::SplitImages, DiskStep::Free),
            (EvictionSignal::NodeFsAvailable, DiskLayout::DedicatedImages, DiskStep::Evict),
            (EvictionSignal::ImageFsInodesFree, DiskLayout::DedicatedImages, DiskStep::Free),
        ] {
            let found = step(&threshold(signal), layout, freeing, now);
            assert_eq!(found, expected, "{signal:?} {layout:?}");
        }
    }

    #[test]
    fn only_what_is_on_the_disk_is_removed() {
        let (node, images) = (EvictionSignal::NodeFsAvailable, EvictionSignal::ImageFsAvailable);
        for (signal, layout, containers_go, images_go) in [
            (node, DiskLayout::OneDisk, true, true),
            (images, DiskLayout::OneDisk, true, true),
            (node, DiskLayout::DedicatedImages, false, false),
            (images, DiskLayout::DedicatedImages, true, true),
            (node, DiskLayout::SplitImages, true, false),
            (images, DiskLayout::SplitImages, false, true),
        ] {
            let expected = Reclaimable { containers: containers_go, images: images_go };
            assert_eq!(Reclaimable::of(signal, layout), expected, "{signal:?} {layout:?}");
        }
    }
}
