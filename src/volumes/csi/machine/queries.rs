//! What others need to know of a volume. Pure.

use super::{ExpansionDue, Known, NodeVolume, PodMount, Step, StepFailure, VolumeFacts, Wish};
use crate::model::PodUid;
use crate::volumes::csi::identity::Lifecycle;
use std::collections::BTreeMap;

impl NodeVolume {
    /// Whether a pod waits for a controller to attach the volume.
    pub fn waits_for_attach(&self, facts: &VolumeFacts) -> bool {
        let waits = |pod: &PodMount| pod.wish == Wish::Wanted && pod.published != Known::Yes;
        let needs_attach = self.lifecycle == Lifecycle::Persistent && facts.attach_required;
        needs_attach && !facts.is_attached && self.pods.values().any(waits)
    }

    /// Whether the volume belongs into the Node's `volumesInUse`, if it has to be attached: a pod wants it, or it is not
    /// known to be undone.
    pub fn is_in_use(&self) -> bool {
        let in_use = |pod: &PodMount| pod.wish == Wish::Wanted || pod.published != Known::No;
        self.staged != Known::No || self.in_progress.is_some() || self.pods.values().any(in_use)
    }

    /// Whether this pod wants the volume.
    pub fn is_wanted_by(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_some_and(|pod| pod.wish == Wish::Wanted)
    }

    /// Whether nothing of the volume is on the node.
    pub fn is_undone(&self) -> bool {
        let is_gone = |pod: &PodMount| pod.published == Known::No;
        self.staged == Known::No && self.pods.values().all(is_gone)
    }

    /// Whether containers of this pod can mount the volume.
    pub fn is_ready(&self, uid: &PodUid) -> bool {
        let pod = self.pods.get(uid);
        let is_ready = |pod: &PodMount| {
            let has_it = pod.wish == Wish::Wanted && pod.published == Known::Yes && !pod.is_dead;
            has_it && pod.expansion != ExpansionDue::BeforeUse
        };
        pod.is_some_and(is_ready)
    }

    /// Whether anything of the volume is or may be published for this pod.
    pub fn is_held_by(&self, uid: &PodUid) -> bool {
        let pod = self.pods.get(uid);
        pod.is_some_and(|pod| pod.published != Known::No)
    }

    /// Whether the volume is staged.
    pub fn staged(&self) -> Known {
        self.staged
    }

    /// The pods that want the volume or may have it.
    pub fn pods(&self) -> &BTreeMap<PodUid, PodMount> {
        &self.pods
    }

    /// The step in progress.
    pub fn in_progress(&self) -> Option<&Step> {
        self.in_progress.as_ref().map(|running| &running.step)
    }

    /// The last failure of a step, since the last success of it or of its opposite.
    pub fn failure(&self, step: &Step) -> Option<&StepFailure> {
        self.failures.get(step)
    }
}
