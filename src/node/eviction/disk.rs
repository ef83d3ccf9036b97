//! The next step of disk reclaim: removal of dead containers and unused images first, then eviction of pods. Pure.

use super::{
    rank::Layout,
    thresholds::{EvictionThreshold, Signal},
};
use std::time::Duration;
use tokio::time::Instant;

/// How long evictions wait for the removal of containers and images. A runtime may take two minutes for one image.
pub(super) const PODS_WAIT: Duration = Duration::from_secs(60);
/// Time after the start of the removal at which no further image is removed.
pub(super) const FREEING_LIMIT: Duration = Duration::from_secs(300);

/// The state of the removal of containers and images.
#[derive(Clone, Copy, Debug)]
pub(super) enum Freeing<'a> {
    NotBegun,
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
    layout: Layout,
    freeing: Freeing<'_>,
    now: Instant,
) -> DiskStep {
    if Reclaimable::of(threshold.signal, layout).is_nothing() {
        return DiskStep::Evict;
    }
    match freeing {
        Freeing::NotBegun => DiskStep::Free,
        Freeing::Running { since } if now.duration_since(since) < PODS_WAIT => DiskStep::Wait,
        Freeing::Running { .. } => DiskStep::Evict,
        Freeing::Ended { goal, .. } if !goal.contains(threshold) => DiskStep::Free,
        Freeing::Ended {
            measured: false, ..
        } => DiskStep::Wait,
        Freeing::Ended { .. } => DiskStep::Evict,
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
    pub(super) fn of(signal: Signal, layout: Layout) -> Self {
        let of_images = matches!(signal, Signal::ImageFsAvailable | Signal::ImageFsInodesFree);
        let (containers, images) = match layout {
            Layout::OneDisk => (true, true),
            Layout::DedicatedImages => (of_images, of_images),
            Layout::SplitImages => (!of_images, of_images),
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
    use crate::node::node_status::resources::ThresholdValue;

    fn threshold(signal: Signal) -> EvictionThreshold {
        EvictionThreshold {
            signal,
            value: ThresholdValue::Absolute(100),
            grace: None,
            min_reclaim: ThresholdValue::Absolute(0),
        }
    }

    #[test]
    fn pods_go_when_images_were_not_enough_or_take_too_long() {
        let node = threshold(Signal::NodeFsAvailable);
        let inodes = threshold(Signal::NodeFsInodesFree);
        let since = Instant::now();
        let after = |seconds| since + Duration::from_secs(seconds);
        let ended = |measured| Freeing::Ended {
            goal: std::slice::from_ref(&node),
            measured,
        };
        for (threshold, freeing, now, expected) in [
            (&node, Freeing::NotBegun, since, DiskStep::Free),
            (&node, Freeing::Running { since }, after(59), DiskStep::Wait),
            (
                &node,
                Freeing::Running { since },
                after(60),
                DiskStep::Evict,
            ),
            (&node, ended(false), after(999), DiskStep::Wait),
            (&node, ended(true), since, DiskStep::Evict),
            // It stopped when it was enough for another one.
            (&inodes, ended(true), since, DiskStep::Free),
        ] {
            let found = step(threshold, Layout::OneDisk, freeing, now);
            assert_eq!(found, expected, "{threshold:?} {freeing:?}");
        }
    }

    #[test]
    fn images_on_another_disk_are_left_alone() {
        let (freeing, now) = (Freeing::NotBegun, Instant::now());
        for (signal, layout, expected) in [
            (Signal::NodeFsAvailable, Layout::OneDisk, DiskStep::Free),
            (Signal::NodeFsAvailable, Layout::SplitImages, DiskStep::Free),
            (
                Signal::NodeFsAvailable,
                Layout::DedicatedImages,
                DiskStep::Evict,
            ),
            (
                Signal::ImageFsInodesFree,
                Layout::DedicatedImages,
                DiskStep::Free,
            ),
        ] {
            let found = step(&threshold(signal), layout, freeing, now);
            assert_eq!(found, expected, "{signal:?} {layout:?}");
        }
    }

    #[test]
    fn only_what_is_on_the_disk_is_removed() {
        let (node, images) = (Signal::NodeFsAvailable, Signal::ImageFsAvailable);
        for (signal, layout, containers_go, images_go) in [
            (node, Layout::OneDisk, true, true),
            (images, Layout::OneDisk, true, true),
            (node, Layout::DedicatedImages, false, false),
            (images, Layout::DedicatedImages, true, true),
            (node, Layout::SplitImages, true, false),
            (images, Layout::SplitImages, false, true),
        ] {
            let expected = Reclaimable {
                containers: containers_go,
                images: images_go,
            };
            assert_eq!(
                Reclaimable::of(signal, layout),
                expected,
                "{signal:?} {layout:?}"
            );
        }
    }
}
