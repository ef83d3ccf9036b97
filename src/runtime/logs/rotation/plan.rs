//! What to do about the size of a log. Pure.

use crate::runtime::logs::names::{self, Rotated, RotatedForm, RotationStamp};
use jiff::civil::DateTime;
use std::time::Duration;

/// When logs are rotated and how many files are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotationPolicy {
    /// `containerLogMaxSize`: bytes from which on a log is rotated.
    pub max_size: u64,
    /// `containerLogMaxFiles`: files of one container, the current one included; 2 or more.
    pub max_files: u32,
}

/// One rotation, in the order of the fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::runtime::logs) struct RotationPlan {
    /// Leftovers of what was interrupted, to remove.
    pub(in crate::runtime::logs) leftovers: Vec<String>,
    /// What the log is renamed to; then the runtime is to open it again.
    pub(in crate::runtime::logs) rotate_to: String,
    /// Files to remove, as there is one more now. Not before: a rotation that the runtime refuses is
    /// undone, and what was removed for it would be missing.
    pub(in crate::runtime::logs) excess: Vec<String>,
    /// Files to compress. The one just rotated is not among them: the runtime may not have let go of
    /// it, and collectors still read it.
    pub(in crate::runtime::logs) compress: Vec<String>,
}

/// Plans the rotation of the log named `log`, beside which there are these files, at `now` (local time).
/// `None` when there is no later stamp than those in use, which only a broken clock can have made.
pub(in crate::runtime::logs) fn plan(
    log: &str,
    files: &[Rotated],
    policy: RotationPolicy,
    now: DateTime,
) -> Option<RotationPlan> {
    let mut kept = names::in_use(files.to_vec());
    let leftovers = files.iter().filter(|file| !kept.contains(file));
    let leftovers = leftovers.map(|file| file.name.clone()).collect();
    let stamp = RotationStamp::next(now, kept.last().map(|newest| newest.stamp))?;
    // The current file and the one that is rotated now count, too.
    let most = usize::try_from(policy.max_files.saturating_sub(2)).unwrap_or(usize::MAX);
    let excess = kept.len().saturating_sub(most);
    let excess = kept.drain(..excess).map(|file| file.name).collect();
    let plain = kept.into_iter().filter(|file| file.form == RotatedForm::Plain);
    Some(RotationPlan {
        leftovers,
        rotate_to: format!("{log}.{stamp}"),
        excess,
        compress: plain.map(|file| file.name).collect(),
    })
}

/// A log was seen to have a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sighting {
    /// Bytes.
    pub(super) size: u64,
    /// When, since whatever beginning.
    pub(super) at: Duration,
}

/// How soon a log is checked again: at the latest after `interval`, sooner when it grows so fast that it will be too
/// large before.
pub(super) fn next_look(
    before: Option<Sighting>,
    now: Sighting,
    policy: RotationPolicy,
    interval: Duration,
) -> Duration {
    let Some(before) = before else {
        return interval;
    };
    let grown = now.size.saturating_sub(before.size);
    let took = now.at.saturating_sub(before.at);
    let left = policy.max_size.saturating_sub(now.size);
    if grown == 0 || took.is_zero() {
        return interval;
    }
    // A name holds whole seconds, so more than one rotation in a second is of no use.
    let soonest = Duration::from_secs(1).min(interval);
    let seconds = took.as_secs_f64() * left as f64 / grown as f64;
    let full = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    full.clamp(soonest, interval)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-02T03:04:05";

    fn policy(max_files: u32) -> RotationPolicy {
        RotationPolicy { max_size: 1000, max_files }
    }

    fn planned(files: &[&str], max_files: u32) -> RotationPlan {
        let parse = |name: &&str| Rotated::parse("0.log", &format!("0.log.{name}")).unwrap();
        let files: Vec<_> = files.iter().map(parse).collect();
        plan("0.log", &files, policy(max_files), NOW.parse().unwrap()).unwrap()
    }

    #[track_caller]
    fn assert_plan(plan: &RotationPlan, remove: &[&str], rotate_to: &str, compress: &[&str]) {
        let full = |names: &[&str]| -> Vec<String> {
            names.iter().map(|name| format!("0.log.{name}")).collect()
        };
        let removed = [plan.leftovers.clone(), plan.excess.clone()].concat();
        assert_eq!(removed, full(remove));
        assert_eq!(plan.rotate_to, format!("0.log.{rotate_to}"));
        assert_eq!(plan.compress, full(compress));
    }

    #[test]
    fn the_first_rotation_only_renames() {
        assert_plan(&planned(&[], 5), &[], "20260102-030405", &[]);
    }

    #[test]
    fn the_one_before_is_compressed_and_the_oldest_goes() {
        let files =
            ["20260101-000004", "20260101-000003.gz", "20260101-000001.gz", "20260101-000002.gz"];
        assert_plan(
            &planned(&files, 5),
            &["20260101-000001.gz"],
            "20260102-030405",
            &["20260101-000004"],
        );
        assert_plan(
            &planned(&files, 3),
            &["20260101-000001.gz", "20260101-000002.gz", "20260101-000003.gz"],
            "20260102-030405",
            &["20260101-000004"],
        );
    }

    #[test]
    fn with_two_files_nothing_but_the_rotated_one_stays() {
        let files = ["20260101-000001", "20260101-000002"];
        assert_plan(&planned(&files, 2), &files, "20260102-030405", &[]);
        assert_plan(&planned(&files, 0), &files, "20260102-030405", &[]);
    }

    #[test]
    fn leftovers_of_an_interrupted_compression_go() {
        let files =
            ["20260101-000001", "20260101-000001.gz", "20260101-000002", "20260101-000002.tmp"];
        assert_plan(
            &planned(&files, 5),
            &["20260101-000001", "20260101-000002.tmp"],
            "20260102-030405",
            &["20260101-000002"],
        );
    }

    #[test]
    fn two_rotations_in_one_second_have_names_in_order() {
        assert_plan(
            &planned(&["20260102-030405"], 5),
            &[],
            "20260102-030406",
            &["20260102-030405"],
        );
    }

    #[test]
    fn without_a_later_name_there_is_no_plan() {
        let last = Rotated::parse("0.log", "0.log.99991231-235959").unwrap();
        assert_eq!(plan("0.log", &[last], policy(5), NOW.parse().unwrap()), None);
    }

    #[test]
    fn a_log_that_grows_fast_is_looked_at_when_it_will_be_full() {
        let second = Duration::from_secs(1);
        let interval = Duration::from_secs(10);
        let look = |before: Option<(u64, u64)>, size| {
            let sighting = |size, at| Sighting { size, at: Duration::from_secs(at) };
            let before = before.map(|(size, at)| sighting(size, at));
            next_look(before, sighting(size, 100), policy(5), interval)
        };
        assert_eq!(look(None, 10), interval, "nothing is known of its growth");
        assert_eq!(look(Some((10, 90)), 10), interval, "it does not grow");
        assert_eq!(look(Some((0, 90)), 100), interval, "it takes longer");
        assert_eq!(look(Some((0, 90)), 800), Duration::from_millis(2500));
        assert_eq!(look(Some((0, 99)), 999), second, "never more often");
        assert_eq!(look(Some((500, 90)), 0), interval, "it was rotated");
        assert_eq!(look(Some((0, 100)), 500), interval, "no time has passed");
    }
}
