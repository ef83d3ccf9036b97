//! Expansions of a volume that is published. Pure.

use super::{CallOutcome, Known, NodeVolume, PodMount, Step, Wish};
use crate::model::PodUid;

/// Whether the size of the volume has to be checked for a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpansionDue {
    /// It has not.
    #[default]
    No,
    /// It has, while the pod uses the volume.
    InUse,
    /// It has, before the pod uses the volume.
    BeforeUse,
}

impl PodMount {
    /// Whether its size can be and has to be checked.
    pub(super) fn can_expand(&self) -> bool {
        let is_used = self.wish == Wish::Wanted && self.published == Known::Yes && !self.is_dead;
        is_used && self.expansion != ExpansionDue::No
    }
}

impl NodeVolume {
    /// The size has to be checked for a pod that has the volume; before the pod can use it, if it cannot yet.
    pub fn request_expansion(&mut self, uid: &PodUid, before_use: bool) {
        let pod = self.pods.get_mut(uid);
        let pod = pod.filter(|pod| pod.published == Known::Yes && pod.wish == Wish::Wanted);
        if let Some(pod) = pod.filter(|pod| pod.expansion != ExpansionDue::BeforeUse) {
            pod.expansion = if before_use { ExpansionDue::BeforeUse } else { ExpansionDue::InUse };
        }
    }

    /// The pod can use the volume before its size has been checked.
    pub fn expansion_may_wait(&mut self, uid: &PodUid) {
        if let Some(pod) = self.pods.get_mut(uid)
            && pod.expansion == ExpansionDue::BeforeUse
        {
            pod.expansion = ExpansionDue::InUse;
        }
    }

    /// The pods for which the size has to be checked.
    pub(super) fn due_expansions(&self) -> impl Iterator<Item = Step> {
        let due = self.pods.iter().filter(|(_, pod)| pod.can_expand());
        due.map(|(uid, _)| Step::Expand(uid.clone()))
    }

    /// A step has ended: an expansion that has not succeeded stays due.
    pub(super) fn expansion_ended(&mut self, step: &Step, outcome: &CallOutcome) {
        if let (Step::Expand(uid), CallOutcome::Done) = (step, outcome)
            && let Some(pod) = self.pods.get_mut(uid)
        {
            pod.expansion = ExpansionDue::No;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::{self, Instant};
    use crate::volumes::csi::identity::Lifecycle;
    use crate::volumes::csi::machine::{DriverFacts, Next, VolumeFacts};

    const READY: VolumeFacts = VolumeFacts {
        driver: Some(DriverFacts { stages: false }),
        attach_required: false,
        is_confirmed_in_use: false,
        is_attached: false,
        pods_are_known: true,
    };

    fn pod() -> PodUid {
        "a".into()
    }

    /// A volume that is published for a pod, which can use it.
    fn published(now: Instant) -> NodeVolume {
        let mut volume = NodeVolume::new(Lifecycle::Persistent);
        volume.want(&pod(), false);
        let publish = Step::Publish(pod());
        assert!(volume.begin(publish.clone(), now));
        assert!(volume.ended(&publish, CallOutcome::Done, now));
        assert!(volume.is_ready(&pod()));
        volume
    }

    #[test]
    fn an_expansion_changes_nothing_of_what_is_published_and_is_repeated_until_it_succeeds() {
        let now = clock::instant();
        let expand = Step::Expand(pod());
        for (before_use, may_wait) in [(true, false), (true, true), (false, false)] {
            let mut volume = published(now);
            assert!(!volume.begin(expand.clone(), now), "it is not due");
            volume.request_expansion(&pod(), before_use);
            // What is due before the use stays so.
            volume.request_expansion(&pod(), false);
            assert_eq!(volume.is_ready(&pod()), !before_use);
            assert_eq!(volume.next(&READY, now), Next::Do(expand.clone()));
            for outcome in [CallOutcome::Failed, CallOutcome::Unknown, CallOutcome::NotCalled] {
                let later = now + std::time::Duration::from_secs(3600);
                assert!(volume.begin(expand.clone(), later));
                assert_eq!(volume.pods()[&pod()].published, Known::Yes);
                if may_wait {
                    volume.expansion_may_wait(&pod());
                }
                assert!(volume.ended(&expand, outcome("no".into()), later));
                assert_eq!(volume.pods()[&pod()].published, Known::Yes);
                assert!(matches!(volume.next(&READY, later), Next::Wait(_)));
                assert_eq!(volume.is_ready(&pod()), !before_use || may_wait);
            }
            assert_eq!(volume.failure(&expand).unwrap().count, 3);
            assert!(volume.begin(expand.clone(), now));
            assert!(volume.ended(&expand, CallOutcome::Done, now));
            assert!(volume.is_ready(&pod()) && volume.failure(&expand).is_none());
            assert_eq!(volume.next(&READY, now), Next::Idle);
        }
    }

    #[test]
    fn an_expansion_is_only_for_a_pod_that_has_and_wants_the_volume() {
        let now = clock::instant();
        let expand = Step::Expand(pod());
        let mut volume = NodeVolume::new(Lifecycle::Persistent);
        volume.want(&pod(), false);
        volume.request_expansion(&pod(), true);
        assert_eq!(volume.next(&READY, now), Next::Do(Step::Publish(pod())));
        let mut volume = published(now);
        volume.request_expansion(&pod(), true);
        // It ends while a call is in progress.
        assert!(volume.begin(expand.clone(), now));
        volume.unwant(&pod());
        assert!(volume.ended(&expand, CallOutcome::Failed("no".into()), now));
        assert_eq!(volume.next(&READY, now), Next::Do(Step::Unpublish(pod())));
        let mut volume = published(now);
        volume.request_expansion(&pod(), false);
        volume.remount(&pod());
        assert!(!volume.begin(expand.clone(), now), "its mount is dead");
        let away = VolumeFacts { driver: None, ..READY };
        let mut volume = published(now);
        volume.request_expansion(&pod(), false);
        assert!(matches!(volume.next(&away, now), Next::Wait(_)));
    }
}
