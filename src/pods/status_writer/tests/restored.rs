//! Storage that was restored from a backup: versions and objects go back, and the watch wins in the end.

use super::*;
use crate::base::clock;

const HOUR: Duration = Duration::from_secs(3600);

fn object(version: &str, phase_of: &str, is_being_deleted: bool) -> Pod {
    let mut object = pod("api");
    object.metadata.resource_version = Some(version.into());
    object.metadata.deletion_timestamp = is_being_deleted.then(epoch);
    object.status = Some(phase(phase_of));
    object
}

fn entry(status: PodStatus, pod_is_finished: bool) -> VersionedPodStatus {
    VersionedPodStatus {
        pod: Arc::new(pod("api")),
        status: Arc::new(status),
        version: 1,
        changed_at: clock::instant(),
        pod_is_finished,
    }
}

/// What was sent after a patch of the object of version 5, which the API server made version 8.
fn sent(entry: &VersionedPodStatus, response: Pod, now: Instant) -> SentStatuses {
    let watched = object("5", "Pending", false);
    let mut sent_statuses = SentStatuses::new(&watched);
    let NextStatusRequest::Patch(version_sent, patch) =
        sent_statuses.next(entry, &watched, false, now)
    else {
        panic!("there is something to send");
    };
    sent_statuses.patched(version_sent, &patch, &watched, response, now);
    sent_statuses
}

#[test]
fn a_status_that_a_restore_took_back_is_sent_again() {
    let now = clock::instant();
    let entry = entry(phase("Running"), false);
    let sent_statuses = sent(&entry, object("8", "Running", false), now);
    let next = |version: &str, after: Duration| {
        sent_statuses.next(&entry, &object(version, "Pending", false), false, now + after)
    };
    // A watch that lags is waited for, but not for ever.
    for version in ["5", "6"] {
        let later = next(version, Duration::ZERO);
        let NextStatusRequest::Later(at) = later else {
            panic!("{later:?}");
        };
        assert!(at <= now + Duration::from_secs(30));
        assert!(matches!(next(version, at - now), NextStatusRequest::Patch(..)));
    }
    // An object of before is of a restored storage.
    let restored = |after| next("3", after);
    assert!(matches!(restored(Duration::from_secs(11)), NextStatusRequest::Patch(..)));
    // One that caught up says what there is.
    assert!(matches!(next("9", HOUR), NextStatusRequest::Patch(..)));
    let seen = sent_statuses.next(&entry, &object("8", "Running", false), false, now);
    assert!(matches!(seen, NextStatusRequest::Nothing), "{seen:?}");
}

#[test]
fn a_deletion_that_a_restore_took_back_is_not_carried_out() {
    let now = clock::instant();
    let entry = entry(phase("Succeeded"), true);
    let sent_statuses = sent(&entry, object("8", "Succeeded", true), now);
    let next = |version: &str, is_being_deleted: bool, after: Duration| {
        let watched = object(version, "Succeeded", is_being_deleted);
        sent_statuses.next(&entry, &watched, false, now + after)
    };
    let second = Duration::from_secs(1);
    assert!(matches!(next("5", false, second), NextStatusRequest::Delete));
    assert!(matches!(next("3", true, second), NextStatusRequest::Delete));
    for (version, after) in [("3", second), ("9", second), ("6", HOUR), ("5", HOUR)] {
        let kept = next(version, false, after);
        assert!(matches!(kept, NextStatusRequest::Nothing), "{version}: {kept:?}");
    }
}

#[test]
fn a_deleted_pod_that_is_watched_again_is_deleted_again() {
    let now = clock::instant();
    let entry = entry(phase("Succeeded"), true);
    let mut sent_statuses = sent(&entry, object("8", "Succeeded", true), now);
    assert!(!sent_statuses.deleted(now));
    let watched = object("9", "Succeeded", true);
    let next = sent_statuses.next(&entry, &watched, false, now);
    let NextStatusRequest::Later(at) = next else {
        panic!("{next:?}");
    };
    assert!(matches!(sent_statuses.next(&entry, &watched, false, at), NextStatusRequest::Delete));
    assert!(sent_statuses.deleted(at), "the watch is behind");
}
