//! The state of one volume of a pod, and what a sync does with it. Pure.

use jiff::Timestamp;
use std::fmt;

/// What the setup or update of a volume waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeWait {
    /// A slot: the number of volumes of a pod that are set up at the same time is limited.
    Others,
    /// Objects, tokens or certificates of the API server, or the Node object.
    Lookup,
    /// File operations below the pod's directory.
    Files,
    /// A hostPath, by its path.
    HostPath(String),
    /// The volume of a claim, by the name of the claim.
    Claim(String),
}

impl fmt::Display for VolumeWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Others => f.write_str("other volumes of the pod"),
            Self::Lookup => f.write_str("the objects that it refers to"),
            Self::Files => f.write_str("its files"),
            Self::HostPath(path) => write!(f, "the path {path} of the node"),
            Self::Claim(claim) => write!(f, "the volume of claim {claim}"),
        }
    }
}

/// The state of one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeState {
    /// What an attempt in progress waits for; `None` if there is none.
    pub waits_for: Option<VolumeWait>,
    /// When that wait began, or the last attempt ended.
    pub since: Timestamp,
    /// The error of the last attempt.
    pub last_error: Option<String>,
    /// Containers can mount it, even while it is being updated.
    pub ready: bool,
    /// The container for which sub-paths of it are being bind-mounted.
    pub binds_for: Option<String>,
}

/// A change of a volume's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeInput {
    /// An attempt now waits for this.
    Waits(VolumeWait),
    /// The volume is ready and up to date.
    Ready,
    /// The volume is ready, but the update failed with this error.
    Stale(String),
    /// The setup failed with this error.
    Failed(String),
}

impl VolumeState {
    /// The state before the first attempt.
    pub fn new(now: Timestamp) -> Self {
        Self {
            waits_for: None,
            since: now,
            last_error: None,
            ready: false,
            binds_for: None,
        }
    }

    /// The state after a change.
    pub fn next(self, input: VolumeInput, now: Timestamp) -> Self {
        match input {
            VolumeInput::Waits(wait) if self.waits_for.as_ref() == Some(&wait) => self,
            VolumeInput::Waits(wait) => Self {
                waits_for: Some(wait),
                since: now,
                ..self
            },
            VolumeInput::Ready => Self {
                waits_for: None,
                since: now,
                last_error: None,
                ready: true,
                ..self
            },
            VolumeInput::Stale(error) => Self {
                waits_for: None,
                since: now,
                last_error: Some(error),
                ready: true,
                ..self
            },
            VolumeInput::Failed(error) => Self {
                waits_for: None,
                since: now,
                last_error: Some(error),
                ..self
            },
        }
    }

    /// Whether an attempt is in progress.
    pub fn is_under_way(&self) -> bool {
        self.waits_for.is_some()
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

/// A volume that an earlier sync planned.
#[derive(Clone, Copy, Debug)]
pub struct KnownVolume<'a> {
    /// Its state.
    pub state: &'a VolumeState,
    /// Its plan is the same as now.
    pub is_as_planned: bool,
    /// Its content may have changed.
    pub may_change: bool,
}

/// Decides what a sync does with a volume that the pod mounts.
pub fn work(known: Option<KnownVolume<'_>>) -> VolumeWork {
    match known {
        None => VolumeWork::SetUp,
        Some(known) if known.state.is_under_way() => VolumeWork::Wait,
        Some(known) if !known.state.ready || !known.is_as_planned => VolumeWork::SetUp,
        Some(known) if known.may_change => VolumeWork::Refresh,
        Some(_) => VolumeWork::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn t(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn state(
        wait: Option<VolumeWait>,
        since: i64,
        error: Option<&str>,
        ready: bool,
    ) -> VolumeState {
        VolumeState {
            waits_for: wait,
            since: t(since),
            last_error: error.map(str::to_owned),
            ready,
            binds_for: None,
        }
    }

    #[test]
    fn a_volume_says_what_it_waits_for_since_when_and_what_failed_before() {
        use VolumeInput::{Failed, Ready, Stale, Waits};
        use VolumeWait::{Files, Lookup};
        let no = |text: &str| text.to_owned();
        for (before, input, after) in [
            (
                state(None, 1, None, false),
                Waits(Lookup),
                state(Some(Lookup), 9, None, false),
            ),
            (
                state(Some(Lookup), 1, None, false),
                Waits(Lookup),
                state(Some(Lookup), 1, None, false),
            ),
            (
                state(Some(Lookup), 1, None, false),
                Waits(Files),
                state(Some(Files), 9, None, false),
            ),
            (
                state(Some(Files), 1, None, false),
                Failed(no("no")),
                state(None, 9, Some("no"), false),
            ),
            (
                state(None, 1, Some("no"), false),
                Waits(Lookup),
                state(Some(Lookup), 9, Some("no"), false),
            ),
            (
                state(Some(Files), 1, Some("no"), false),
                Ready,
                state(None, 9, None, true),
            ),
            (
                state(Some(Files), 1, None, false),
                Stale(no("old")),
                state(None, 9, Some("old"), true),
            ),
            (
                state(None, 1, None, true),
                Waits(Lookup),
                state(Some(Lookup), 9, None, true),
            ),
            (
                state(Some(Lookup), 1, None, true),
                Failed(no("no")),
                state(None, 9, Some("no"), true),
            ),
            (
                state(Some(Lookup), 1, Some("old"), true),
                Ready,
                state(None, 9, None, true),
            ),
        ] {
            let text = format!("{before:?} {input:?}");
            assert_eq!(before.next(input, t(9)), after, "{text}");
        }
    }

    #[test]
    fn only_a_volume_that_is_not_ready_has_a_reason() {
        let path = || Some(VolumeWait::HostPath("/mnt/nfs".into()));
        for (state, expected) in [
            (state(None, 0, None, false), Some("not set up yet")),
            (
                state(path(), 0, None, false),
                Some("waits for the path /mnt/nfs of the node"),
            ),
            (
                state(path(), 0, Some("no"), false),
                Some("retrying, waits for the path /mnt/nfs of the node; last error: no"),
            ),
            (state(None, 0, Some("no"), false), Some("failed: no")),
            (state(None, 0, None, true), None),
            (state(path(), 0, Some("old"), true), None),
            (
                VolumeState {
                    binds_for: Some("web".into()),
                    ..state(None, 0, None, true)
                },
                Some("binding sub-paths for container web"),
            ),
        ] {
            assert_eq!(state.reason().as_deref(), expected, "{state:?}");
        }
    }

    #[test]
    fn a_sync_does_what_is_missing_and_nothing_twice() {
        use VolumeWork::{Nothing, Refresh, SetUp, Wait};
        let under_way = || Some(VolumeWait::Files);
        assert_eq!(work(None), SetUp);
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
            let known = KnownVolume {
                state: &state,
                is_as_planned,
                may_change,
            };
            assert_eq!(work(Some(known)), expected, "{known:?}");
        }
    }
}
