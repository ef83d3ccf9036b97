//! The state of one volume of a pod, and what a sync does with it. Pure.

use jiff::Timestamp;
use std::borrow::Cow;

/// A setup waits for a slot: the number of volumes of a pod that are set up at the same time is limited.
pub(super) const OTHERS: &str = "other volumes of the pod";
/// A setup waits for objects, tokens or certificates of the API server, or for the Node object.
pub(super) const LOOKUP: &str = "the objects that it refers to";
/// A setup waits for file operations below the pod's directory.
pub(super) const FILES: &str = "its files";

/// The state of one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeState {
    /// What an attempt in progress waits for; `None` if there is none.
    pub waits_for: Option<Cow<'static, str>>,
    /// When that wait began, or the last attempt ended.
    pub since: Timestamp,
    /// The error of the last attempt.
    pub last_error: Option<String>,
    /// Containers can mount it, even while it is being updated.
    pub ready: bool,
    /// The container for which sub-paths of it are being bind-mounted.
    pub binds_for: Option<String>,
}

impl VolumeState {
    /// The state before the first attempt.
    pub fn new(now: Timestamp) -> Self {
        Self { waits_for: None, since: now, last_error: None, ready: false, binds_for: None }
    }

    /// Records what the attempt in progress waits for.
    pub fn waits(&mut self, wait: Cow<'static, str>, now: Timestamp) {
        if self.waits_for.as_ref() != Some(&wait) {
            self.waits_for = Some(wait);
            self.since = now;
        }
    }

    /// Records the end of an attempt. A volume that was ready stays so if its update fails.
    pub fn ended(&mut self, is_set_up: bool, error: Option<String>, now: Timestamp) {
        self.waits_for = None;
        self.since = now;
        self.last_error = error;
        self.ready |= is_set_up;
    }

    /// Whether an attempt is in progress.
    pub fn is_under_way(&self) -> bool {
        self.waits_for.is_some()
    }

    /// What a sync does with the volume. `is_as_planned`: its plan is the same as now. `may_change`: its content may have
    /// changed.
    pub fn work(&self, is_as_planned: bool, may_change: bool) -> VolumeWork {
        if self.is_under_way() {
            VolumeWork::Wait
        } else if !self.ready || !is_as_planned {
            VolumeWork::SetUp
        } else if may_change {
            VolumeWork::Refresh
        } else {
            VolumeWork::Nothing
        }
    }

    /// Why containers cannot mount the volume or a sub-path of it; `None` if they can.
    pub fn reason(&self) -> Option<String> {
        let error = self.last_error.as_deref();
        let binds = self.binds_for.as_ref();
        let binds = binds.map(|container| format!("binding sub-paths for container {container}"));
        match (&self.waits_for, error) {
            _ if self.ready => binds,
            (Some(wait), None) => Some(format!("waits for {wait}")),
            (Some(wait), Some(error)) => {
                Some(format!("retrying, waits for {wait}; last error: {error}"))
            }
            (None, Some(error)) => Some(format!("failed: {error}")),
            (None, None) => Some("not set up yet".to_owned()),
        }
    }
}

/// What a sync does with one volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeWork {
    /// It is up to date.
    Nothing,
    /// Sets it up.
    SetUp,
    /// Updates its content.
    Refresh,
    /// An earlier attempt is in progress; the next one starts when it ends.
    Wait,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn t(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn state(
        wait: Option<&'static str>,
        since: i64,
        error: Option<&str>,
        ready: bool,
    ) -> VolumeState {
        VolumeState {
            waits_for: wait.map(Into::into),
            since: t(since),
            last_error: error.map(str::to_owned),
            ready,
            binds_for: None,
        }
    }

    #[test]
    fn a_volume_says_what_it_waits_for_since_when_and_what_failed_before() {
        type Change = fn(&mut VolumeState);
        let lookup: Change = |state| state.waits(LOOKUP.into(), t(9));
        let files: Change = |state| state.waits(FILES.into(), t(9));
        let ready: Change = |state| state.ended(true, None, t(9));
        let stale: Change = |state| state.ended(true, Some("old".to_owned()), t(9));
        let failed: Change = |state| state.ended(false, Some("no".to_owned()), t(9));
        for (before, change, after) in [
            (state(None, 1, None, false), lookup, state(Some(LOOKUP), 9, None, false)),
            (state(Some(LOOKUP), 1, None, false), lookup, state(Some(LOOKUP), 1, None, false)),
            (state(Some(LOOKUP), 1, None, false), files, state(Some(FILES), 9, None, false)),
            (state(Some(FILES), 1, None, false), failed, state(None, 9, Some("no"), false)),
            (state(None, 1, Some("no"), false), lookup, state(Some(LOOKUP), 9, Some("no"), false)),
            (state(Some(FILES), 1, Some("no"), false), ready, state(None, 9, None, true)),
            (state(Some(FILES), 1, None, false), stale, state(None, 9, Some("old"), true)),
            (state(None, 1, None, true), lookup, state(Some(LOOKUP), 9, None, true)),
            (state(Some(LOOKUP), 1, None, true), failed, state(None, 9, Some("no"), true)),
            (state(Some(LOOKUP), 1, Some("old"), true), ready, state(None, 9, None, true)),
        ] {
            let mut state = before.clone();
            change(&mut state);
            assert_eq!(state, after, "{before:?}");
        }
    }

    #[test]
    fn only_a_volume_that_is_not_ready_has_a_reason() {
        let path = || Some("the path /mnt/nfs of the node");
        for (state, expected) in [
            (state(None, 0, None, false), Some("not set up yet")),
            (state(path(), 0, None, false), Some("waits for the path /mnt/nfs of the node")),
            (
                state(path(), 0, Some("no"), false),
                Some("retrying, waits for the path /mnt/nfs of the node; last error: no"),
            ),
            (state(None, 0, Some("no"), false), Some("failed: no")),
            (state(None, 0, None, true), None),
            (state(path(), 0, Some("old"), true), None),
            (
                VolumeState { binds_for: Some("web".into()), ..state(None, 0, None, true) },
                Some("binding sub-paths for container web"),
            ),
        ] {
            assert_eq!(state.reason().as_deref(), expected, "{state:?}");
        }
    }

    #[test]
    fn a_sync_does_what_is_missing_and_nothing_twice() {
        use VolumeWork::{Nothing, Refresh, SetUp, Wait};
        let under_way = || Some(FILES);
        for (state, is_as_planned, may_change, expected) in [
            (state(under_way(), 0, None, false), true, false, Wait),
            (state(under_way(), 0, None, false), false, false, Wait),
            (state(under_way(), 0, None, true), true, true, Wait),
            (state(None, 0, Some("no"), false), true, false, SetUp),
            (state(None, 0, None, true), false, true, SetUp),
            (state(None, 0, None, true), true, true, Refresh),
            (state(None, 0, Some("old"), true), true, true, Refresh),
            (state(None, 0, None, true), true, false, Nothing),
        ] {
            let work = state.work(is_as_planned, may_change);
            assert_eq!(work, expected, "{state:?} {is_as_planned} {may_change}");
        }
    }
}
