use super::*;
use serde_json::{Value, json};

fn row_of(spec: &Value, status: Value, terminating: bool) -> PodRow {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "web-n1", "namespace": "shop", "uid": "u",
                     "annotations": {"kubernetes.io/config.source": "file"}},
        "spec": spec,
    }))
    .unwrap();
    let status: PodStatus = serde_json::from_value(status).unwrap();
    row(&pod, Some(&status), terminating)
}

fn spec() -> Value {
    json!({
        "initContainers": [{"name": "i1"}, {"name": "i2"}],
        "containers": [{"name": "a"}, {"name": "b"}],
    })
}

fn running(name: &str, ready: bool) -> Value {
    json!({"name": name, "ready": ready, "started": ready, "restartCount": 0, "image": "", "imageID": "",
           "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}})
}

fn waiting_for(name: &str, reason: &str) -> Value {
    json!({"name": name, "ready": false, "restartCount": 0, "image": "", "imageID": "",
           "state": {"waiting": {"reason": reason}}})
}

fn ended(name: &str, code: i32, reason: &str) -> Value {
    json!({"name": name, "ready": false, "restartCount": 0, "image": "", "imageID": "",
           "state": {"terminated": {"exitCode": code, "reason": reason, "finishedAt": "2026-01-01T00:01:00Z"}}})
}

fn line(row: &PodRow) -> String {
    format!("{}/{} {}", row.ready, row.containers, row.status)
}

#[test]
fn the_status_is_the_one_that_kubectl_prints() {
    let done = || json!([ended("i1", 0, "Completed"), ended("i2", 0, "Completed")]);
    let creating =
        || json!([waiting_for("a", "PodInitializing"), waiting_for("b", "PodInitializing")]);
    let rows: Vec<(&str, Value, Value, &str)> = vec![
        ("Pending", json!([]), json!([]), "0/2 Pending"),
        (
            "Pending",
            json!([running("i1", false), waiting_for("i2", "PodInitializing")]),
            creating(),
            "0/2 Init:0/2",
        ),
        (
            "Pending",
            json!([ended("i1", 0, "Completed"), running("i2", false)]),
            creating(),
            "0/2 Init:1/2",
        ),
        (
            "Pending",
            json!([waiting_for("i1", "CrashLoopBackOff")]),
            creating(),
            "0/2 Init:CrashLoopBackOff",
        ),
        ("Failed", json!([ended("i1", 3, "Error")]), creating(), "0/2 Init:Error"),
        ("Failed", json!([ended("i1", 3, "")]), creating(), "0/2 Init:ExitCode:3"),
        (
            "Pending",
            done(),
            json!([waiting_for("a", "ContainerCreating"), running("b", true)]),
            "1/2 ContainerCreating",
        ),
        ("Running", done(), json!([running("a", true), running("b", true)]), "2/2 Running"),
        ("Running", done(), json!([running("a", true), running("b", false)]), "1/2 Running"),
        (
            "Running",
            done(),
            json!([waiting_for("a", "CrashLoopBackOff"), running("b", true)]),
            "1/2 CrashLoopBackOff",
        ),
        (
            "Running",
            done(),
            json!([ended("a", 0, "Completed"), running("b", true)]),
            "1/2 NotReady",
        ),
        (
            "Running",
            done(),
            json!([ended("a", 137, "OOMKilled"), running("b", true)]),
            "1/2 OOMKilled",
        ),
        (
            "Succeeded",
            done(),
            json!([ended("a", 0, "Completed"), ended("b", 0, "Completed")]),
            "0/2 Completed",
        ),
        (
            "Failed",
            done(),
            json!([ended("a", 1, "Error"), ended("b", 0, "Completed")]),
            "0/2 Error",
        ),
        (
            "Failed",
            done(),
            json!([ended("a", 1, ""), ended("b", 0, "Completed")]),
            "0/2 ExitCode:1",
        ),
    ];
    for (phase, init, regular, expected) in rows {
        let status =
            json!({"phase": phase, "initContainerStatuses": init, "containerStatuses": regular});
        assert_eq!(line(&row_of(&spec(), status, false)), expected);
    }
}

#[test]
fn a_pod_that_is_being_stopped_is_terminating_unless_it_has_ended() {
    let status = |phase: &str| json!({"phase": phase, "containerStatuses": [running("a", true)]});
    assert_eq!(row_of(&spec(), status("Running"), true).status, "Terminating");
    assert_ne!(row_of(&spec(), status("Succeeded"), true).status, "Terminating");
}

#[test]
fn a_reason_of_the_pods_own_comes_before_its_phase() {
    let status = json!({"phase": "Failed", "reason": "Evicted"});
    let row = row_of(&spec(), status, false);
    assert_eq!((&*row.status, &*row.phase), ("Evicted", "Failed"));
    assert_eq!(row.last_reason, "Evicted");
}

#[test]
fn sidecars_count_and_their_restarts_stay_when_the_pod_is_initialised() {
    let spec = json!({
        "initContainers": [{"name": "side", "restartPolicy": "Always"}, {"name": "i"}],
        "containers": [{"name": "a"}],
    });
    let mut side = running("side", true);
    side["restartCount"] = 2.into();
    let mut init = ended("i", 0, "Completed");
    init["restartCount"] = 5.into();
    let status = json!({"phase": "Running",
        "initContainerStatuses": [side, init], "containerStatuses": [running("a", true)]});
    let row = row_of(&spec, status, false);
    assert_eq!((line(&row), row.restarts), ("2/2 Running".into(), 2));
    let status = json!({"phase": "Pending",
        "initContainerStatuses": [running("side", false)], "containerStatuses": []});
    assert_eq!(line(&row_of(&spec, status, false)), "0/2 Init:0/2");
}

#[test]
fn the_last_restart_is_the_end_of_the_instance_before() {
    let mut web = waiting_for("a", "CrashLoopBackOff");
    web["restartCount"] = 4.into();
    web["lastState"] = json!({"terminated": {"exitCode": 2, "reason": "Error", "finishedAt": "2026-01-01T00:02:00Z"}});
    let status = json!({"phase": "Running", "startTime": "2026-01-01T00:00:00Z", "podIP": "10.0.0.7",
        "containerStatuses": [web, running("b", true)]});
    let row = row_of(&json!({"containers": [{"name": "a"}, {"name": "b"}]}), status, false);
    let at = |text: &str| Some(text.parse().unwrap());
    assert_eq!((row.restarts, row.last_restart), (4, at("2026-01-01T00:02:00Z")));
    assert_eq!((row.since, &*row.ip), (at("2026-01-01T00:00:00Z"), "10.0.0.7"));
    assert_eq!((&*row.last_reason, &*row.source), ("Error (2)", "file"));
}

#[test]
fn a_success_is_no_last_reason() {
    let status = json!({"phase": "Running",
        "initContainerStatuses": [ended("i1", 0, "Completed")],
        "containerStatuses": [waiting_for("a", "ContainerCreating"), waiting_for("b", "ErrImagePull")]});
    assert_eq!(row_of(&spec(), status, false).last_reason, "ErrImagePull");
    let status =
        json!({"phase": "Running", "containerStatuses": [running("a", true), running("b", true)]});
    assert_eq!(row_of(&spec(), status, false).last_reason, "");
}

#[test]
fn a_pod_without_a_status_has_a_row() {
    let row = row(&Pod::default(), None, false);
    assert_eq!(line(&row), "0/0 Unknown");
}
