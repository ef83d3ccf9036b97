//! When images were detected and last used. Pure; the caller stores the file.

use std::collections::{BTreeMap, HashSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::plan::ImageFacts;
use crate::cri::v1::Image;

/// Version of the file format; a file with another one is ignored.
const VERSION: u32 = 1;

/// The history as it is stored. It changes only when an image appears, disappears or is no longer used: for an image
/// in use, the time of last use is not needed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct History {
    version: u32,
    images: BTreeMap<String, ImageEntry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ImageEntry {
    first_detected: Timestamp,
    #[serde(default, skip_serializing_if = "Use::is_never")]
    used: Use,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Use {
    #[default]
    Never,
    Now,
    Last(Timestamp),
}

impl Use {
    fn is_never(&self) -> bool {
        *self == Use::Never
    }
}

impl History {
    /// Parses the file of an earlier kubelet; empty for another version.
    pub(super) fn decode(bytes: &[u8]) -> Result<History, serde_json::Error> {
        let history: History = serde_json::from_slice(bytes)?;
        Ok(if history.version == VERSION { history } else { History::default() })
    }

    /// Updates the history with the images present at `now`. An image that was in use at the last check and no longer
    /// is counts as last used now.
    pub(super) fn observe(
        &mut self,
        images: &[Image],
        in_use: &HashSet<&str>,
        pinned: &HashSet<&str>,
        now: Timestamp,
    ) -> Vec<ImageFacts> {
        let mut seen = BTreeMap::new();
        let mut facts = Vec::new();
        for image in images {
            let id = image.id.as_str();
            let known = self.images.get(id);
            let is_used = in_use.contains(id);
            let used = match (is_used, known.map_or(Use::Never, |entry| entry.used)) {
                (true, _) => Use::Now,
                (false, Use::Now) => Use::Last(now),
                (false, before) => before,
            };
            // Guards against a clock that was set back.
            let first_detected = known.map_or(now, |entry| entry.first_detected.min(now));
            facts.push(ImageFacts {
                id: id.to_owned(),
                size: image.size,
                pinned: image.pinned || pinned.contains(id),
                in_use: is_used,
                first_detected,
                last_used: match used {
                    Use::Never => None,
                    Use::Now => Some(now),
                    Use::Last(time) => Some(time),
                },
            });
            let entry = ImageEntry { first_detected, used };
            seen.insert(id.to_owned(), entry);
        }
        self.version = VERSION;
        self.images = seen;
        facts
    }

    /// Forgets a removed image; if it is pulled again, it is new.
    pub(super) fn forget(&mut self, id: &str) {
        self.images.remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn images(ids: &[&str]) -> Vec<Image> {
        let image = |id: &&str| Image { id: (*id).to_owned(), size: 7, ..Image::default() };
        ids.iter().map(image).collect()
    }

    /// First seen and last used, in seconds, by image.
    fn take_in(
        history: &mut History,
        ids: &[&str],
        used: &[&str],
        now: i64,
    ) -> Vec<(i64, Option<i64>)> {
        let used = used.iter().copied().collect();
        let facts = history.observe(&images(ids), &used, &HashSet::new(), at(now));
        let second = |time: Timestamp| time.as_second() - 1_000_000;
        let facts = facts.iter();
        facts.map(|image| (second(image.first_detected), image.last_used.map(second))).collect()
    }

    #[test]
    fn an_image_was_last_used_when_it_was_first_seen_unused() {
        let mut history = History::default();
        assert_eq!(take_in(&mut history, &["a", "b"], &["a"], 0), [(0, Some(0)), (0, None)]);
        assert_eq!(take_in(&mut history, &["a", "b"], &["a"], 5), [(0, Some(5)), (0, None)]);
        assert_eq!(take_in(&mut history, &["a", "b"], &[], 10), [(0, Some(10)), (0, None)]);
        assert_eq!(take_in(&mut history, &["a", "b"], &["b"], 15), [(0, Some(10)), (0, Some(15))]);
    }

    #[test]
    fn an_image_that_was_away_is_new() {
        let mut history = History::default();
        take_in(&mut history, &["a"], &["a"], 0);
        take_in(&mut history, &[], &[], 5);
        assert_eq!(take_in(&mut history, &["a"], &[], 10), [(10, None)]);
        history.forget("a");
        assert_eq!(take_in(&mut history, &["a"], &[], 15), [(15, None)]);
    }

    #[test]
    fn what_is_written_is_read_back_and_is_the_same_while_nothing_changes() {
        let mut history = History::default();
        take_in(&mut history, &["a", "b", "c"], &["a", "b"], 0);
        take_in(&mut history, &["a", "b", "c"], &["a"], 5);
        let written = serde_json::to_vec(&history).unwrap();
        take_in(&mut history, &["a", "b", "c"], &["a"], 50);
        assert_eq!(serde_json::to_vec(&history).unwrap(), written);
        let mut read = History::decode(&written).unwrap();
        assert_eq!(
            take_in(&mut read, &["a", "b", "c"], &[], 100),
            [(0, Some(100)), (0, Some(5)), (0, None)]
        );
    }

    #[test]
    fn a_file_of_another_version_or_kind_is_nothing() {
        let other = r#"{"version": 2, "images": {}}"#;
        assert_eq!(History::decode(other.as_bytes()).unwrap(), History::default());
        for bad in ["", "{", "[]", r#"{"version": 1, "images": {"a": {}}}"#] {
            assert!(History::decode(bad.as_bytes()).is_err());
        }
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_keep_images_for_ever() {
        let mut history = History::default();
        take_in(&mut history, &["a"], &[], 1000);
        assert_eq!(take_in(&mut history, &["a"], &[], 10), [(10, None)]);
    }

    #[test]
    fn pins_come_from_the_runtime_and_from_its_settings() {
        let mut here = images(&["a", "b", "c"]);
        here[1].pinned = true;
        let facts =
            History::default().observe(&here, &HashSet::new(), &HashSet::from(["c"]), at(0));
        let pinned: Vec<_> = facts.iter().map(|image| image.pinned).collect();
        assert_eq!(pinned, [false, true, true]);
    }
}
