use super::*;
use crate::base::clock;
use crate::model::fixture;
use crate::pods::pod_sync::syncer::{SyncPodType, TerminationReason};
use crate::pods::pod_workers::{Grace, Termination};
use crate::state::pod_history::{DecisionKind, HistoryEntry};
use serde_json::{Value, json};

fn t(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).unwrap()
}

fn pod(spec: Value) -> Pod {
    fixture::pod("shop/web-n1/u", spec)
}

fn status(containers: Value) -> PodStatus {
    serde_json::from_value(json!({
        "phase": "Running", "startTime": t(-100).to_string(), "containerStatuses": containers,
    }))
    .unwrap()
}

fn container(state: Value) -> Value {
    json!({"name": "main", "ready": false, "started": true, "restartCount": 3, "image": "", "imageID": "", "state": state})
}

fn up() -> Value {
    json!({"running": {"startedAt": t(-50).to_string()}})
}

struct Bed {
    pod: Pod,
    status: PodStatus,
    worker: WorkerStatus,
    record: PodHistoryRecord,
    restarts: Vec<(String, Duration, Timestamp)>,
    probes: Vec<ProbeReport>,
    volumes: Vec<PendingVolume>,
    here: Instant,
}

fn bed(state: Value) -> Bed {
    Bed {
        pod: pod(json!({"containers": [{"name": "main", "image": "img"}]})),
        status: status(json!([container(state)])),
        worker: WorkerStatus {
            phase: WorkerPhase::Syncing,
            sync_since: None,
            next_sync: None,
            waits_for: Vec::new(),
        },
        record: PodHistoryRecord::default(),
        restarts: Vec::new(),
        probes: Vec::new(),
        volumes: Vec::new(),
        here: clock::instant(),
    }
}

impl Bed {
    fn explain(&self) -> Explanation {
        explain(ExplainInputs {
            pod: &self.pod,
            status: Some(&self.status),
            worker: Some(&self.worker),
            record: &self.record,
            restarts: &self.restarts,
            volumes: &self.volumes,
            probes: self.probes.clone(),
            events: Vec::new(),
            now: (t(0), self.here),
        })
    }
}

fn next(explanation: &Explanation) -> Vec<(i64, &str)> {
    let seconds = |at: Timestamp| at.as_second() - t(0).as_second();
    let next = explanation.next.iter();
    next.map(|next| (seconds(next.at), next.what.as_str())).collect()
}

#[test]
fn a_crash_loop_names_its_back_off_and_the_instant_of_the_restart() {
    let mut bed =
        bed(json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}}));
    bed.restarts = vec![("main".into(), Duration::from_secs(40), t(23))];
    bed.worker.next_sync = Some(bed.here + Duration::from_secs(23));
    let explanation = bed.explain();
    assert_eq!(explanation.summary, "CrashLoopBackOff: main waits for its restart back-off of 40s");
    assert_eq!(explanation.waits[0].until, Some(t(23)));
    assert_eq!(next(&explanation), [(23, "main may be restarted"), (23, "next periodic sync")]);
}

#[test]
fn a_delayed_pull_shows_its_error_and_the_time_of_the_next_try() {
    let mut bed = bed(
        json!({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image \"img\""}}),
    );
    let held = HistoryEntry::about(DecisionKind::Wait, "main", "ImagePullBackOff: …".into());
    bed.record.push(held.until(t(7)), t(-3));
    let explanation = bed.explain();
    assert_eq!(
        explanation.summary,
        "ImagePullBackOff: main waits for a retry (ImagePullBackOff: Back-off pulling image \"img\")"
    );
    assert_eq!(explanation.waits[0].until, Some(t(7)));
    assert_eq!(next(&explanation), [(7, "main is tried again")]);
    let started =
        HistoryEntry::about(DecisionKind::StartContainer, "main", "has no instance yet".into());
    bed.record.push(started, t(-1));
    assert_eq!(bed.explain().waits[0].until, None, "an older decision holds no longer");
}

#[test]
fn a_container_that_is_not_ready_waits_for_its_probe() {
    let mut bed = bed(up());
    bed.probes = vec![ProbeReport {
        container: "main".into(),
        kind: "Readiness".into(),
        last_result: Some("failure".into()),
        in_a_row: 4,
        message: "HTTP probe failed with statuscode: 500".into(),
        next: Some(t(2)),
        ..ProbeReport::default()
    }];
    let explanation = bed.explain();
    assert_eq!(
        explanation.summary,
        "Running: main waits for its readiness probe \
         (failure 4 times in a row: HTTP probe failed with statuscode: 500)"
    );
    assert_eq!(next(&explanation), [(2, "readiness probe of main")]);
}

#[test]
fn a_healthy_pod_has_a_short_summary() {
    let mut bed = bed(up());
    bed.status.container_statuses.as_mut().unwrap()[0].ready = true;
    bed.pod.spec.as_mut().unwrap().active_deadline_seconds = Some(160);
    let explanation = bed.explain();
    assert_eq!(explanation.summary, "Running: every container is ready");
    assert!(explanation.waits.is_empty());
    let deadline = "activeDeadlineSeconds exceeded; the pod fails";
    assert_eq!(next(&explanation), [(60, deadline)]);
    assert_eq!(
        (&*explanation.containers[0].state, explanation.containers[0].restarts),
        ("running", 3)
    );
}

#[test]
fn a_new_container_waits_for_the_step_in_progress() {
    let mut bed = bed(json!({"waiting": {"reason": "ContainerCreating"}}));
    bed.record.begin("getting image img for main".into(), t(-9));
    let explanation = bed.explain();
    assert_eq!(explanation.summary, "ContainerCreating: getting image img for main");
    assert_eq!(explanation.doing.unwrap().since, t(-9));
}

#[test]
fn a_pod_in_line_names_the_one_before_it() {
    let mut bed = bed(json!({"waiting": {"reason": "ContainerCreating"}}));
    let kind = SyncPodType::Create;
    bed.worker.phase = WorkerPhase::WaitingToStart { kind, may_be_running: false };
    bed.worker.waits_for = vec!["old".into()];
    let explanation = bed.explain();
    assert!(
        explanation
            .summary
            .ends_with("waiting for the previous pod with this name (old) to terminate")
    );
}

#[test]
fn a_pod_that_is_being_stopped_shows_the_reason_and_the_deadline() {
    let mut bed = bed(up());
    let mut grace = Grace::new(30);
    grace.begin(bed.here - Duration::from_secs(10));
    let termination = Termination { reason: TerminationReason::Deleted, restart_requested: false };
    bed.worker.phase = WorkerPhase::Terminating { termination, grace };
    let explanation = bed.explain();
    assert_eq!(
        explanation.summary,
        "Terminating: the pod is being stopped: removed from its source"
    );
    assert_eq!(next(&explanation), [(20, "remaining containers are killed")]);
}

#[test]
fn failures_of_the_whole_pod_come_first() {
    let mut bed = bed(json!({"waiting": {"reason": "ContainerCreating"}}));
    let failed =
        HistoryEntry::about_pod(DecisionKind::Fail, "failed to create pod sandbox: no CNI".into());
    bed.record.push(failed, t(-5));
    bed.worker.next_sync = Some(bed.here + Duration::from_secs(8));
    let explanation = bed.explain();
    assert_eq!(explanation.summary, "ContainerCreating: failed to create pod sandbox: no CNI");
    assert_eq!(explanation.pod_history[0].last, t(-5));
}

#[test]
fn conditions_that_are_true_are_left_out() {
    let mut bed = bed(up());
    bed.status.conditions = serde_json::from_value(json!([
        {"type": "PodScheduled", "status": "True"},
        {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "m"},
    ]))
    .unwrap();
    let explanation = bed.explain();
    assert_eq!(explanation.conditions.len(), 1);
    assert_eq!(
        (&*explanation.conditions[0].kind, &*explanation.conditions[0].reason),
        ("Ready", "ContainersNotReady")
    );
}

#[test]
fn an_explanation_survives_serialization() {
    let explanation = bed(up()).explain();
    let text = serde_json::to_string(&explanation).unwrap();
    assert_eq!(serde_json::from_str::<Explanation>(&text).unwrap(), explanation);
}

#[test]
fn a_volume_that_is_not_ready_is_named_with_what_it_waits_for() {
    let mut bed = bed(json!({"waiting": {"reason": "ContainerCreating"}}));
    let volume = |name: &str, reason: &str, error: Option<&str>| PendingVolume {
        name: name.into(),
        reason: reason.into(),
        error: error.map(str::to_owned),
    };
    let reason = "waits for the path /mnt/nfs of the node";
    bed.volumes = vec![volume("data", reason, None)];
    bed.record.begin("setting up volumes".into(), t(-9));
    let what = format!("volume data {reason}");
    let waits = |explanation: &Explanation| {
        let waits = explanation.waits.iter();
        waits.map(|wait| wait.what.clone()).collect::<Vec<_>>()
    };
    let explanation = bed.explain();
    assert_eq!(waits(&explanation), [&*what]);
    assert!(explanation.summary.ends_with(&what));
    // A failure that was reported is shown once.
    let failed = r#"MountVolume.SetUp failed for volume "a""#;
    let failure = HistoryEntry::about_pod(DecisionKind::Fail, failed.into());
    bed.record.push(failure, t(-8));
    bed.volumes.push(volume("a", "failed", Some(failed)));
    bed.volumes.push(volume("b", "failed", Some("another way")));
    let expected = [failed, &what, "volume b failed"];
    assert_eq!(waits(&bed.explain()), expected);
}
