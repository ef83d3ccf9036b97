//! Which images may be removed, in which order, and when to stop. Pure.
//!
//! Disk is reclaimed in stages, with a measurement after each: first superseded containers, because they keep images
//! in use, then images above the maximum age, then unused images one by one, the least recently used first.

use std::time::Duration;

use jiff::Timestamp;

/// `imageGC*` and `image*GCAge` of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageGcPolicy {
    /// `imageGCHighThresholdPercent`: usage in percent from which on images are removed.
    pub high_percent: u8,
    /// `imageGCLowThresholdPercent`: usage in percent down to which images are removed.
    pub low_percent: u8,
    /// `imageMinimumGCAge`: images detected more recently are kept.
    pub min_age: Duration,
    /// `imageMaximumGCAge`: images unused for longer are removed whatever the usage is; zero for never.
    pub max_age: Duration,
}

impl ImageGcPolicy {
    /// Whether image garbage collection is disabled.
    pub fn is_off(&self) -> bool {
        self.high_percent >= 100 && self.max_age.is_zero()
    }
}

/// What is known about a present image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ImageFacts {
    /// The runtime's image ID.
    pub(super) id: String,
    /// In bytes, including layers shared with other images.
    pub(super) size: u64,
    /// The runtime reports it as pinned, or it is the sandbox image.
    pub(super) pinned: bool,
    /// A container in any state or a desired pod uses it.
    pub(super) in_use: bool,
    /// When it was first detected.
    pub(super) first_detected: Timestamp,
    /// When it was last seen in use, if ever.
    pub(super) last_used: Option<Timestamp>,
}

impl ImageFacts {
    fn is_removable(&self) -> bool {
        !self.in_use && !self.pinned
    }

    /// How long it has been unused; for an image never used, since it was detected.
    fn unused_for(&self, now: Timestamp) -> Duration {
        age(self.last_used.map_or(self.first_detected, |used| used.max(self.first_detected)), now)
    }
}

fn age(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

/// The capacity of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Space {
    /// In bytes.
    pub(super) capacity: u64,
    /// Available bytes.
    pub(super) available: u64,
}

impl Space {
    /// Usage in whole percent, rounded up as upstream does. `None` for a file system of size zero.
    pub(super) fn used_percent(self) -> Option<u8> {
        let available = u128::from(self.available.min(self.capacity));
        let free = (available * 100).checked_div(u128::from(self.capacity))?;
        u8::try_from(100 - free).ok()
    }

    /// The number of bytes to free if the usage is at or above the high threshold.
    pub(super) fn shortage(self, policy: &ImageGcPolicy) -> Option<u64> {
        (self.used_percent()? >= policy.high_percent).then(|| self.missing(policy))
    }

    /// The number of bytes to free to reach the low threshold.
    pub(super) fn missing(self, policy: &ImageGcPolicy) -> u64 {
        let free = u128::from(100_u8.saturating_sub(policy.low_percent));
        let wanted = u128::from(self.capacity) * free / 100;
        let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
        wanted.saturating_sub(self.available.min(self.capacity))
    }
}

/// Images above the maximum age, which are removed whatever the usage is.
pub(super) fn too_old(
    images: &[ImageFacts],
    policy: &ImageGcPolicy,
    now: Timestamp,
) -> Vec<ImageFacts> {
    let is_too_old = |image: &&ImageFacts| {
        !policy.max_age.is_zero() && image.is_removable() && image.unused_for(now) > policy.max_age
    };
    in_order(images.iter().filter(is_too_old))
}

/// Images that may be removed to free space, in order of removal.
pub(super) fn for_space(
    images: &[ImageFacts],
    policy: &ImageGcPolicy,
    now: Timestamp,
) -> Vec<ImageFacts> {
    let may_go = |image: &&ImageFacts| {
        image.is_removable() && age(image.first_detected, now) >= policy.min_age
    };
    in_order(images.iter().filter(may_go))
}

/// The order of removal: images never used first, then by last use, then by detection, each oldest first.
fn in_order<'a>(images: impl Iterator<Item = &'a ImageFacts>) -> Vec<ImageFacts> {
    let mut images: Vec<ImageFacts> = images.cloned().collect();
    images.sort_by(|a, b| {
        (a.last_used, a.first_detected, &a.id).cmp(&(b.last_used, b.first_detected, &b.id))
    });
    images
}

/// A human-readable size: `1.5 GiB`.
pub(super) fn format_size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut size = bytes as f64 / 1024.0;
    let mut units = UNITS.iter();
    let mut unit = units.next();
    for larger in units {
        if size < 1024.0 {
            break;
        }
        size /= 1024.0;
        unit = Some(larger);
    }
    format!("{size:.1} {}", unit.unwrap_or(&"B"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: ImageGcPolicy = ImageGcPolicy {
        high_percent: 85,
        low_percent: 80,
        min_age: Duration::from_secs(120),
        max_age: Duration::ZERO,
    };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn image(id: &str, first_detected: i64, last_used: Option<i64>) -> ImageFacts {
        ImageFacts {
            id: id.into(),
            size: 10,
            pinned: false,
            in_use: false,
            first_detected: at(first_detected),
            last_used: last_used.map(at),
        }
    }

    fn ids(images: &[ImageFacts]) -> String {
        let ids: Vec<_> = images.iter().map(|image| image.id.as_str()).collect();
        ids.join(" ")
    }

    #[test]
    fn usage_is_rounded_up_and_the_goal_is_the_lower_threshold() {
        let table = [
            (1000, 1000, 0, None),
            (1000, 160, 84, None),
            // 15.9 % free are 15.
            (1000, 159, 85, Some(41)),
            (1000, 150, 85, Some(50)),
            (1000, 0, 100, Some(200)),
            // A file system may claim more than it has.
            (1000, 2000, 0, None),
        ];
        for (capacity, available, used, shortage) in table {
            let space = Space { capacity, available };
            assert_eq!(space.used_percent(), Some(used), "{space:?}");
            assert_eq!(space.shortage(&POLICY), shortage, "{space:?}");
        }
        let nothing = Space { capacity: 0, available: 0 };
        assert_eq!(nothing.used_percent(), None);
        let huge = Space { capacity: u64::MAX, available: 1 };
        assert_eq!(huge.used_percent(), Some(100));
        assert!(huge.shortage(&POLICY).is_some());
    }

    #[test]
    fn the_longest_unused_goes_first_and_what_was_never_used_before_it() {
        let images = [
            image("used-late", 0, Some(900)),
            image("used-early", 50, Some(100)),
            image("used-early-older", 10, Some(100)),
            image("never-younger", 20, None),
            image("never", 0, None),
        ];
        let order = for_space(&images, &POLICY, at(1000));
        assert_eq!(ids(&order), "never never-younger used-early-older used-early used-late");
    }

    #[test]
    fn images_that_are_used_pinned_or_new_stay() {
        let images = [
            ImageFacts { in_use: true, ..image("used", 0, Some(1000)) },
            ImageFacts { pinned: true, ..image("pinned", 0, None) },
            image("new", 881, None),
            image("old-enough", 880, None),
        ];
        assert_eq!(ids(&for_space(&images, &POLICY, at(1000))), "old-enough");
        let aged = ImageGcPolicy { max_age: Duration::from_secs(1), ..POLICY };
        assert_eq!(ids(&too_old(&images, &aged, at(1000))), "old-enough new");
    }

    #[test]
    fn an_image_is_too_old_when_nothing_has_used_it_for_longer_than_the_maximum() {
        let aged = ImageGcPolicy { max_age: Duration::from_secs(100), ..POLICY };
        let images = [
            image("used-long-ago", 0, Some(99)),
            image("used-just-not-too-long-ago", 0, Some(100)),
            image("came-long-ago", 99, None),
            image("came-lately", 100, None),
            image("a-use-before-it-came-back", 150, Some(10)),
        ];
        assert_eq!(ids(&too_old(&images, &aged, at(200))), "came-long-ago used-long-ago");
        assert_eq!(ids(&too_old(&images, &POLICY, at(200))), "", "zero is never");
        assert_eq!(ids(&too_old(&images, &aged, at(-5))), "", "the clock was set back");
    }

    #[test]
    fn images_are_left_alone_only_without_any_threshold() {
        let never = ImageGcPolicy { high_percent: 100, ..POLICY };
        assert!(never.is_off());
        assert!(!POLICY.is_off());
        let aged = ImageGcPolicy { max_age: Duration::from_secs(1), ..never };
        assert!(!aged.is_off());
    }

    #[test]
    fn sizes_are_told_as_upstream_tells_them() {
        let table = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (1 << 20, "1.0 MiB"),
            (3 << 30, "3.0 GiB"),
            (5 << 40, "5.0 TiB"),
            (5 << 50, "5120.0 TiB"),
        ];
        for (bytes, expected) in table {
            assert_eq!(format_size(bytes), expected);
        }
    }
}
