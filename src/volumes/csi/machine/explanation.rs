//! What a volume waits for, as text. Pure.

use super::{NodeVolume, Step, WaitReason, WaitingStep};
use crate::base::clock::Instant;
use crate::model::PodUid;
use std::time::Duration;

/// Upstream's text for a second pod of a `ReadWriteOncePod` volume.
pub(super) const SINGLE_POD: &str =
    "volume uses the ReadWriteOncePod access mode and is already in use by another pod";

impl NodeVolume {
    /// What the volume waits for on behalf of a pod, or at all if no pod is given: which step, since when, the driver's
    /// last error, and when it is tried next. `None` if it waits for nothing. As of the last [`Self::evaluate`].
    pub fn waits_for(&self, pod: Option<&PodUid>, now: Instant) -> Option<String> {
        let running = self.in_progress.as_ref();
        let running =
            running.filter(|running| self.concerns(&running.step, pod) || !self.is_at_rest(pod));
        if let Some(running) = running {
            let begun = now.saturating_duration_since(running.since);
            let text = format!("{} has been running for {}", running.step, seconds(begun));
            return Some(self.with_last_error(&running.step, text));
        }
        let mut waiting = self.waiting.iter();
        let waiting = waiting.find(|waiting| self.concerns(&waiting.step, pod))?;
        Some(self.explain(waiting, now))
    }

    /// Why a pod may not have the volume: another one has it alone. As of the last [`Self::evaluate`].
    pub fn is_taken_from(&self, uid: &PodUid) -> Option<&'static str> {
        let mut waiting = self.waiting.iter();
        let is_taken = waiting.any(|waiting| {
            let is_other = matches!(waiting.reason, WaitReason::OtherPod(_));
            is_other && waiting.step.pod() == Some(uid)
        });
        is_taken.then_some(SINGLE_POD)
    }

    /// Whether a pod has what it wants.
    fn is_at_rest(&self, pod: Option<&PodUid>) -> bool {
        let Some(uid) = pod else { return false };
        self.is_ready(uid) || !self.pods.contains_key(uid)
    }

    /// Whether a pod waits for a step.
    fn concerns(&self, step: &Step, pod: Option<&PodUid>) -> bool {
        match (pod, step.pod()) {
            (None, _) => true,
            (Some(uid), Some(of_step)) => uid == of_step,
            (Some(_), None) => *step == Step::Stage && !self.is_at_rest(pod),
        }
    }

    fn explain(&self, waiting: &WaitingStep, now: Instant) -> String {
        let (step, lasts) = (&waiting.step, now.saturating_duration_since(waiting.since));
        let waits =
            |what: &str| format!("{step} has been waiting for {} for {what}", seconds(lasts));
        let text = match &waiting.reason {
            WaitReason::Driver => waits("the CSI driver to register"),
            WaitReason::VolumesInUse => {
                waits("the API server to confirm that the volume is in use")
            }
            WaitReason::Attach => waits("the volume to be attached to the node"),
            WaitReason::Pods => waits("the list of all pods"),
            WaitReason::OtherPod(uid) => format!("{SINGLE_POD} ({uid})"),
            WaitReason::StaleStage(None) => waits("the staged mount to be replaced"),
            WaitReason::StaleStage(Some(uid)) => waits(&format!(
                "the staged mount, which is dead or has another SELinux label, and which pod {uid} uses"
            )),
            WaitReason::Step(other) => waits(&other.to_string()),
            WaitReason::Retry(at) => {
                let left = at.saturating_duration_since(now);
                let Some(failure) = self.failures.get(step) else {
                    return waits("its back-off");
                };
                let ago = seconds(now.saturating_duration_since(failure.at));
                return format!(
                    "{step} failed {} times, last {ago} ago: {}; next attempt in {}",
                    failure.count,
                    failure.error,
                    seconds(left)
                );
            }
        };
        self.with_last_error(step, text)
    }

    fn with_last_error(&self, step: &Step, text: String) -> String {
        match self.failures.get(step) {
            Some(failure) => format!("{text}; last error: {}", failure.error),
            None => text,
        }
    }
}

fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_secs())
}
