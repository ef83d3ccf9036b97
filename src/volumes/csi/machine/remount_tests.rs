//! Dead mounts.

use super::*;
use crate::base::clock;

const READY: VolumeFacts = VolumeFacts {
    driver: Some(DriverFacts { stages: true }),
    attach_required: false,
    is_confirmed_in_use: false,
    is_attached: false,
    pods_are_known: true,
};

fn uid(name: &str) -> PodUid {
    name.into()
}

/// Carries out all steps successfully, and returns their texts.
fn settle(volume: &mut NodeVolume) -> Vec<String> {
    let (mut steps, now) = (Vec::new(), clock::instant());
    while let Next::Do(step) = volume.evaluate(&READY, now) {
        assert!(volume.begin(step.clone(), now), "{step} is not allowed");
        assert!(volume.ended(&step, CallOutcome::Done, now));
        steps.push(step.to_string());
    }
    steps
}

/// A volume that these pods have.
fn mounted(pods: &[&str]) -> NodeVolume {
    let mut volume = NodeVolume::new(Lifecycle::Persistent);
    for pod in pods {
        volume.want(&uid(pod), false);
    }
    settle(&mut volume);
    volume
}

#[test]
fn a_dead_mount_is_replaced_for_its_pod_alone() {
    let mut volume = mounted(&["a", "b"]);
    volume.remount(&uid("a"));
    assert!(!volume.is_ready(&uid("a")) && volume.is_ready(&uid("b")));
    let expected = ["NodeUnpublishVolume for pod a", "NodePublishVolume for pod a"];
    assert_eq!(settle(&mut volume), expected);
    assert!(volume.is_ready(&uid("a")));
}

#[test]
fn a_dead_stage_is_replaced_once_no_pod_has_the_volume() {
    let mut volume = mounted(&["a", "b"]);
    volume.remount(&uid("a"));
    volume.replace_stage();
    assert_eq!(settle(&mut volume), ["NodeUnpublishVolume for pod a"]);
    let next = volume.next(&READY, clock::instant());
    let Next::Wait(wait) = next else { panic!("{next:?}") };
    assert_eq!(wait.reason, WaitReason::StaleStage(Some(uid("b"))));
    volume.unwant(&uid("b"));
    let expected = [
        "NodeUnpublishVolume for pod b",
        "NodeUnstageVolume",
        "NodeStageVolume",
        "NodePublishVolume for pod a",
    ];
    assert_eq!(settle(&mut volume), expected);
    assert!(volume.is_ready(&uid("a")));
}

#[test]
fn a_pod_that_has_nothing_of_the_volume_has_no_dead_mount() {
    let mut volume = NodeVolume::new(Lifecycle::Persistent);
    volume.want(&uid("a"), false);
    volume.remount(&uid("a"));
    volume.replace_stage();
    let expected = ["NodeStageVolume", "NodePublishVolume for pod a"];
    assert_eq!(settle(&mut volume), expected);
}
