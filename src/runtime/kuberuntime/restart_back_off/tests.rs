use super::*;
use crate::base::clock;
use crate::model::keys;

struct Bed {
    back_off: RestartBackOff,
    state_store: PodStateStore,
    pod: Pod,
    container: Container,
    _dir: tempfile::TempDir,
}

fn bed() -> Bed {
    let dir = tempfile::tempdir().unwrap();
    let state_store = PodStateStore::open(dir.path().to_path_buf()).unwrap();
    let container = Container { name: "c".into(), ..Container::default() };
    let mut pod = Pod::default();
    pod.metadata.uid = Some("u".into());
    let back_off = RestartBackOff::new(Duration::from_secs(300), state_store.clone());
    Bed { back_off, state_store, pod, container, _dir: dir }
}

fn exit_at(at: Timestamp) -> ContainerStatus {
    ContainerStatus {
        state: ContainerState::Exited,
        finished_at: i64::try_from(at.as_nanosecond()).unwrap(),
        ..ContainerStatus::default()
    }
}

fn t(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).unwrap()
}

#[test]
fn a_restarted_pod_has_no_back_off() {
    let Bed { back_off, state_store, pod, container, .. } = bed();
    let now = clock::timestamp();
    assert_eq!(back_off.try_start_after(&pod, &container, now, now), BackOffDecision::Start);
    let held = || back_off.in_back_off_since(&pod, &container, now, now);
    assert!(held().is_some() && back_off.len() == 1);
    back_off.forget(&"other".into());
    assert!(held().is_some());
    back_off.forget(&pod.uid());
    assert_eq!((held(), back_off.len()), (None, 0));
    assert!(state_store.get(&pod.uid()).back_off.is_empty());
}

#[test]
fn gaps_grow_as_upstreams_and_end_at_the_exact_second() {
    let bed = bed();
    let mut exit = t(0);
    let mut gaps = Vec::new();
    for _ in 0..8 {
        let status = exit_at(exit);
        let at = |left| exit + left;
        match bed.back_off.try_start(&bed.pod, &bed.container, Some(&status), exit) {
            BackOffDecision::Start => gaps.push(0),
            BackOffDecision::Wait { left, .. } => {
                let early = at(left - Duration::from_millis(1));
                let now = bed.back_off.try_start(&bed.pod, &bed.container, Some(&status), early);
                assert!(matches!(now, BackOffDecision::Wait { .. }));
                let now = bed.back_off.try_start(&bed.pod, &bed.container, Some(&status), at(left));
                assert_eq!(now, BackOffDecision::Start);
                gaps.push(left.as_secs());
                exit = at(left);
            }
        }
    }
    assert_eq!(gaps, [0, 10, 20, 40, 80, 160, 300, 300]);
}

/// The delays between an end and the next start of a container that ends as soon as it runs.
fn gaps(bed: &Bed, ends: usize) -> Vec<u64> {
    let mut exit = t(0);
    let mut gap = || {
        let status = exit_at(exit);
        let try_start = |now| bed.back_off.try_start(&bed.pod, &bed.container, Some(&status), now);
        let left = match try_start(exit) {
            BackOffDecision::Start => return 0,
            BackOffDecision::Wait { left, .. } => left,
        };
        exit += left;
        assert_eq!(try_start(exit), BackOffDecision::Start);
        left.as_secs()
    };
    (0..ends).map(|_| gap()).collect()
}

#[test]
fn a_pod_may_have_a_longest_delay_of_its_own() {
    for (own, expected) in [
        ("1s", [0, 1, 1, 1]),
        ("25s", [0, 10, 20, 25]),
        ("nonsense", [0, 10, 20, 40]),
        ("1ms", [0, 10, 20, 40]),
    ] {
        let mut bed = bed();
        let key = keys::MAX_RESTART_PERIOD.to_string();
        bed.pod.metadata.annotations = Some([(key, own.to_string())].into());
        assert_eq!(gaps(&bed, 4), expected, "{own}");
    }
}

#[test]
fn a_lowered_maximum_delay_applies_immediately() {
    let mut bed = bed();
    assert_eq!(gaps(&bed, 4), [0, 10, 20, 40]);
    let exit = t(70);
    let held = |bed: &Bed, now| {
        let status = exit_at(exit);
        let held = bed.back_off.in_back_off(&bed.pod, &bed.container, &status, now);
        held.map(|(delay, left)| (delay.as_secs(), left.as_secs()))
    };
    assert_eq!(held(&bed, exit), Some((80, 80)));
    let key = keys::MAX_RESTART_PERIOD.to_string();
    bed.pod.metadata.annotations = Some([(key, "5s".to_string())].into());
    assert_eq!(held(&bed, exit), Some((5, 5)));
    assert_eq!(held(&bed, t(75)), None);
}

#[test]
fn the_step_survives_a_restart_of_the_kubelet() {
    let bed = bed();
    let status = exit_at(t(0));
    assert_eq!(
        bed.back_off.try_start(&bed.pod, &bed.container, Some(&status), t(0)),
        BackOffDecision::Start
    );
    let second = RestartBackOff::new(Duration::from_secs(300), bed.state_store.clone());
    let status = exit_at(t(1));
    let decision = second.try_start(&bed.pod, &bed.container, Some(&status), t(2));
    let (delay, left) = (Duration::from_secs(10), Duration::from_secs(9));
    assert_eq!(decision, BackOffDecision::Wait { delay, left });
}

#[test]
fn another_image_starts_at_once() {
    let mut bed = bed();
    let status = exit_at(t(0));
    bed.back_off.try_start(&bed.pod, &bed.container, Some(&status), t(0));
    bed.container.image = Some("other".into());
    let decision = bed.back_off.try_start(&bed.pod, &bed.container, Some(&exit_at(t(1))), t(1));
    assert_eq!(decision, BackOffDecision::Start);
}

#[test]
fn a_start_that_failed_counts_as_an_end_whatever_the_runtime_keeps_of_it() {
    let created =
        ContainerStatus { id: "c1".into(), state: ContainerState::Created, ..Default::default() };
    failed_starts_back_off(None);
    failed_starts_back_off(Some(&exit_at(t(-5))));
    let (bed, now) = failed_starts_back_off(Some(&created));
    bed.back_off.record_failed_start(&bed.pod, &bed.container, now);
    let later = ContainerStatus {
        created_at: exit_at(now + Duration::from_secs(1)).finished_at,
        ..created.clone()
    };
    let try_start = |newest| bed.back_off.try_start(&bed.pod, &bed.container, Some(newest), now);
    assert_eq!(try_start(&later), BackOffDecision::Start, "another attempt");
    assert_ne!(try_start(&created), BackOffDecision::Start);
    bed.back_off.gc(now + Duration::from_secs(3600));
    assert_eq!(try_start(&created), BackOffDecision::Start, "it is forgotten with time");
}

fn failed_starts_back_off(newest: Option<&ContainerStatus>) -> (Bed, Timestamp) {
    let bed = bed();
    let try_start = |now| bed.back_off.try_start(&bed.pod, &bed.container, newest, now);
    let mut gaps = Vec::new();
    let mut now = t(0);
    for _ in 0..5 {
        bed.back_off.record_failed_start(&bed.pod, &bed.container, now);
        let left = match try_start(now) {
            BackOffDecision::Start => Duration::ZERO,
            BackOffDecision::Wait { left, .. } => left,
        };
        now += left;
        assert!(left.is_zero() || try_start(now) == BackOffDecision::Start);
        gaps.push(left.as_secs());
    }
    assert_eq!(gaps, [0, 10, 20, 40, 80]);
    (bed, now)
}

#[test]
fn a_start_that_ended_before_the_container_ran_is_not_in_progress() {
    let bed = bed();
    let status = exit_at(t(0));
    let try_start = |at| bed.back_off.try_start(&bed.pod, &bed.container, Some(&status), at);
    let is_starting = || bed.back_off.is_starting(&bed.pod, &bed.container, &status);
    assert!(!is_starting());
    assert_eq!(try_start(t(0)), BackOffDecision::Start);
    assert!(is_starting(), "its image is pulled");
    bed.back_off.record_incomplete_start(&bed.pod, &bed.container);
    assert!(!is_starting(), "the pull failed");
    assert_ne!(try_start(t(2)), BackOffDecision::Start);
    assert!(!is_starting(), "it waits for the end of its delay");
    assert_eq!(try_start(t(10)), BackOffDecision::Start);
    assert!(is_starting());
    bed.back_off.record_incomplete_start(&bed.pod, &bed.container);
    bed.back_off.forget(&bed.pod.uid());
    assert!(bed.back_off.incomplete_starts.lock().is_empty());
}

#[test]
fn a_container_that_never_ended_starts_at_once() {
    let bed = bed();
    assert_eq!(
        bed.back_off.try_start(&bed.pod, &bed.container, None, t(0)),
        BackOffDecision::Start
    );
    let created = ContainerStatus { state: ContainerState::Created, ..Default::default() };
    let decision = bed.back_off.try_start(&bed.pod, &bed.container, Some(&created), t(0));
    assert_eq!(decision, BackOffDecision::Start);
}
