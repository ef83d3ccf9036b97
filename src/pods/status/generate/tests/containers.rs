use super::*;
use crate::model::ProbeResult;
use crate::model::ProbeResult::{Failure, Success, Unknown};

#[test]
fn a_container_that_was_never_started_waits_as_container_creating() {
    let status = generate(&pod("Always", &[], &["a"]), &[]);
    let a = of(&status, "a");
    assert_eq!(state_text(&a.state), "waiting:ContainerCreating");
    assert_eq!((a.image.as_str(), a.image_id.as_str()), ("img:1", ""));
    assert_eq!(a.container_id, None);
    assert_eq!((a.started, a.ready), (Some(false), false));
}

#[test]
fn with_init_containers_everything_waits_as_pod_initializing() {
    let status = generate(&pod("Always", &["i"], &["a"]), &[]);
    assert_eq!(state_text(&of(&status, "i").state), "waiting:PodInitializing");
    assert_eq!(state_text(&of(&status, "a").state), "waiting:PodInitializing");
}

#[test]
fn a_running_container_shows_the_runtimes_facts_with_whole_seconds() {
    let status = generate(&pod("Always", &[], &["a"]), &[instance("a", "c1", Cri::Running, 3)]);
    let a = of(&status, "a");
    assert_eq!(a.container_id.as_deref(), Some("containerd://c1"));
    assert_eq!(a.restart_count, 3);
    assert_eq!(a.image, "docker.io/library/img:1");
    assert_eq!(a.image_id, "sha256:abc");
    let started = a.state.as_ref().unwrap().running.as_ref().unwrap();
    assert_eq!(started.started_at.as_ref().unwrap().0, later(-9));
    assert_eq!((a.started, a.ready), (Some(true), true));
}

#[test]
fn an_exited_container_shows_code_reason_message_times_and_id() {
    let mut ended = exited("a", "c1", 3);
    ended.message = "last message".into();
    let status = generate(&pod("Never", &[], &["a"]), &[ended]);
    let end = of(&status, "a").state.as_ref().unwrap().terminated.clone().unwrap();
    assert_eq!((end.exit_code, end.reason.as_deref()), (3, Some("Error")));
    assert_eq!(end.message.as_deref(), Some("last message"));
    assert_eq!(end.started_at.unwrap().0, later(-9));
    assert_eq!(end.finished_at.unwrap().0, later(-1));
    assert_eq!(end.container_id.as_deref(), Some("containerd://c1"));
}

#[test]
fn times_that_were_not_reached_are_left_out() {
    let mut ended = exited("a", "c1", 128);
    ended.started_at = 0;
    let status = generate(&pod("Never", &[], &["a"]), &[ended]);
    let end = of(&status, "a").state.as_ref().unwrap().terminated.clone().unwrap();
    assert_eq!(end.started_at, None);
}

#[test]
fn a_created_container_waits_without_a_reason() {
    let status = generate(&pod("Always", &[], &["a"]), &[instance("a", "c1", Cri::Created, 0)]);
    assert_eq!(state_text(&of(&status, "a").state), "waiting:");
}

#[test]
fn the_second_newest_instance_is_the_last_state() {
    let instances =
        [instance("a", "c2", Cri::Running, 1), exited("a", "c1", 2), exited("a", "c0", 9)];
    let status = generate(&pod("Always", &[], &["a"]), &instances);
    assert_eq!(state_text(&of(&status, "a").state), "running");
    assert_eq!(state_text(&of(&status, "a").last_state), "terminated:Error:2");
}

#[test]
fn the_last_state_stays_when_the_dead_instance_is_collected() {
    let pod = pod("Always", &[], &["a"]);
    let newest = instance("a", "c2", Cri::Running, 1);
    let old = generate(&pod, &[newest.clone(), exited("a", "c1", 2)]);
    let status = after(&pod, &[newest], Some(&old));
    assert_eq!(state_text(&of(&status, "a").last_state), "terminated:Error:2");
}

#[test]
fn an_unknown_container_that_was_running_has_ended_with_137() {
    let pod = pod("Always", &[], &["a"]);
    let old = generate(&pod, &[instance("a", "c1", Cri::Running, 4)]);
    let unknown = [instance("a", "c1", Cri::Unknown, 4)];
    let status = after(&pod, &unknown, Some(&old));
    assert_eq!(state_text(&of(&status, "a").state), "terminated:ContainerStatusUnknown:137");
    assert_eq!(of(&status, "a").restart_count, 5);
    let again = after(&pod, &unknown, Some(&status));
    assert_eq!(of(&again, "a"), of(&status, "a"), "and stays so");
}

#[test]
fn an_unknown_container_that_was_not_running_waits() {
    let status = generate(&pod("Always", &[], &["a"]), &[instance("a", "c1", Cri::Unknown, 0)]);
    assert_eq!(state_text(&of(&status, "a").state), "waiting:");
}

#[test]
fn a_running_container_that_vanished_is_counted_as_restarted_with_137() {
    let pod = pod("Always", &[], &["a"]);
    let old = generate(&pod, &[instance("a", "c1", Cri::Running, 4)]);
    let status = after(&pod, &[], Some(&old));
    let a = of(&status, "a");
    assert_eq!(state_text(&a.state), "waiting:ContainerCreating");
    assert_eq!(state_text(&a.last_state), "terminated:ContainerStatusUnknown:137");
    assert_eq!(a.restart_count, 5);
    let again = after(&pod, &[], Some(&status));
    assert_eq!(of(&again, "a"), a, "once only");
}

#[test]
fn the_successor_of_a_vanished_container_shows_how_that_ended() {
    let pod = pod("Always", &[], &["a"]);
    let old = generate(&pod, &[instance("a", "c1", Cri::Running, 4)]);
    let vanished = after(&pod, &[], Some(&old));
    let successor = [instance("a", "c2", Cri::Running, 5)];
    let status = after(&pod, &successor, Some(&vanished));
    let last = |status| state_text(&of(status, "a").last_state);
    assert_eq!(last(&status), "terminated:ContainerStatusUnknown:137");
    assert_eq!(of(&status, "a").restart_count, 5);
    let again = after(&pod, &successor, Some(&status));
    assert_eq!(last(&again), "terminated:ContainerStatusUnknown:137");
}

#[test]
fn the_successor_of_a_container_that_was_removed_goes_on_from_what_was_published() {
    let pod = pod("Always", &[], &["a"]);
    let old = generate(&pod, &[exited("a", "c1", 2), exited("a", "c0", 9)]);
    for (known, published, count) in [(0, 0, 1), (0, 3, 4), (4, 3, 4)] {
        let mut old = old.clone();
        let statuses = old.container_statuses.as_mut().unwrap();
        statuses[0].restart_count = published;
        let successor = [instance("a", "c2", Cri::Running, known)];
        let status = after(&pod, &successor, Some(&old));
        let a = of(&status, "a");
        assert_eq!(a.restart_count, count, "{known} after {published}");
        assert_eq!(state_text(&a.last_state), "terminated:Error:2");
        let again = after(&pod, &successor, Some(&status));
        assert_eq!(of(&again, "a"), a, "once only");
    }
    // It has not started yet.
    let created = [instance("a", "c2", Cri::Created, 0)];
    let mut old = old;
    old.container_statuses.as_mut().unwrap()[0].restart_count = 3;
    assert_eq!(of(&after(&pod, &created, Some(&old)), "a").restart_count, 3);
}

#[test]
fn a_vanished_container_of_a_deleted_or_ending_pod_was_not_restarted() {
    let mut pod = pod("Always", &[], &["a"]);
    let old = generate(&pod, &[instance("a", "c1", Cri::Running, 4)]);
    let nothing = runtime_status(&[]);
    let ending = StatusInputs {
        old: Some(&old),
        pod_is_terminal: true,
        ..StatusInputs::new(&pod, &nothing, now())
    };
    let status = generate_api_pod_status(&ending).unwrap();
    assert_eq!(of(&status, "a").restart_count, 4);
    pod.metadata.deletion_timestamp = Some(Time(now()));
    assert_eq!(of(&after(&pod, &[], Some(&old)), "a").restart_count, 4);
}

#[test]
fn a_published_end_stays_when_the_runtime_forgets_it() {
    let pod = pod("Never", &[], &["a"]);
    let old = generate(&pod, &[exited("a", "c1", 7)]);
    assert_eq!(after(&pod, &[], Some(&old)).container_statuses, old.container_statuses);
}

#[test]
fn a_forgotten_init_container_is_completed_once_regular_ones_exist() {
    let pod = pod("Always", &["i"], &["a"]);
    let status = generate(&pod, &[running("a", "c1")]);
    assert_eq!(state_text(&of(&status, "i").state), "terminated:Completed:0");
    assert!(of(&status, "i").ready);
    assert_eq!(status.phase.as_deref(), Some("Running"));
}

#[test]
fn init_statuses_follow_the_spec_and_regular_ones_the_alphabet() {
    let status = generate(&pod("Always", &["z", "b"], &["y", "a"]), &[]);
    let names = |list: &Option<Vec<ContainerStatus>>| -> Vec<String> {
        list.iter().flatten().map(|s| s.name.clone()).collect()
    };
    assert_eq!(names(&status.init_container_statuses), ["z", "b"]);
    assert_eq!(names(&status.container_statuses), ["a", "y"]);
}

fn held_back(
    pod: &Pod,
    containers: &[model::ContainerStatus],
    failure: Option<&str>,
    back_off: bool,
) -> PodStatus {
    let runtime_status = runtime_status(containers);
    let failure = |_: &str| failure.map(|reason| (reason.to_string(), "why".to_string()));
    let back_off = |name: &str| back_off.then(|| format!("back-off 10s {name}"));
    generate_api_pod_status(&StatusInputs {
        start_failure: &failure,
        back_off: &back_off,
        ..StatusInputs::new(pod, &runtime_status, now())
    })
    .unwrap()
}

#[test]
fn after_a_failed_start_the_state_is_waiting_and_the_end_moves_to_the_last_state() {
    let pod = pod("Always", &[], &["a"]);
    let status = held_back(&pod, &[exited("a", "c1", 2)], Some("ErrImagePull"), false);
    assert_eq!(state_text(&of(&status, "a").state), "waiting:ErrImagePull");
    assert_eq!(state_text(&of(&status, "a").last_state), "terminated:Error:2");
    let message = of(&status, "a").state.clone().unwrap().waiting.unwrap().message;
    assert_eq!(message.as_deref(), Some("why"));
}

#[test]
fn crash_loop_back_off_is_published_at_once_also_for_a_short_delay() {
    let pod = pod("Always", &[], &["a"]);
    let status = held_back(&pod, &[exited("a", "c1", 1)], None, true);
    assert_eq!(state_text(&of(&status, "a").state), "waiting:CrashLoopBackOff");
    assert_eq!(state_text(&of(&status, "a").last_state), "terminated:Error:1");
    assert_eq!(status.phase.as_deref(), Some("Running"));
}

#[test]
fn nothing_waits_that_will_not_be_started() {
    let reason = Some("RunContainerError");
    type Row = (&'static str, i32, &'static str);
    let rows: [Row; 5] = [
        ("Never", 1, "terminated:Error:1"),
        ("Never", 0, "terminated:Completed:0"),
        ("OnFailure", 0, "terminated:Completed:0"),
        ("OnFailure", 1, "waiting:RunContainerError"),
        ("Always", 0, "waiting:RunContainerError"),
    ];
    for (policy, code, shown) in rows {
        let status = held_back(&pod(policy, &[], &["a"]), &[exited("a", "c", code)], reason, true);
        assert_eq!(state_text(&of(&status, "a").state), shown, "{policy} after {code}");
    }
}

#[test]
fn a_running_container_never_waits_for_an_older_failure() {
    let status = held_back(&pod("Always", &[], &["a"]), &[running("a", "c")], Some("X"), true);
    assert_eq!(state_text(&of(&status, "a").state), "running");
}

#[test]
fn a_finished_init_container_never_waits_again() {
    let pod = pod("Always", &["i"], &["a"]);
    let status = held_back(&pod, &[exited("i", "c", 0)], Some("X"), true);
    assert_eq!(state_text(&of(&status, "i").state), "terminated:Completed:0");
    assert_eq!(state_text(&of(&status, "a").state), "waiting:X");
}

#[test]
fn a_sidecar_in_back_off_waits_also_after_a_clean_exit() {
    let pod = pod("Never", &["s*"], &["a"]);
    let status = held_back(&pod, &[running("a", "c1"), exited("s", "c2", 0)], None, true);
    assert_eq!(state_text(&of(&status, "s").state), "waiting:CrashLoopBackOff");
}

#[test]
fn a_deleted_pods_containers_wait_for_nothing() {
    let mut pod = pod("Always", &[], &["a"]);
    pod.metadata.deletion_timestamp = Some(Time(now()));
    let status = held_back(&pod, &[exited("a", "c", 1)], Some("X"), true);
    assert_eq!(state_text(&of(&status, "a").state), "terminated:Error:1");
}

/// Startup and readiness results of a running container whose older status is given.
fn probed(
    startup: Option<ProbeResult>,
    readiness: Option<ProbeResult>,
    old: Option<&PodStatus>,
) -> (bool, bool) {
    let mut pod = pod("Always", &[], &["a"]);
    edit(&mut pod, "a", |a| {
        a.startup_probe = probe();
        a.readiness_probe = probe();
    });
    let runtime_status = runtime_status(&[running("a", "c1")]);
    let probe_results = |id: &ContainerId| match id.as_str() {
        "c1" => ContainerProbeResults { liveness: None, readiness, startup },
        _ => ContainerProbeResults::default(),
    };
    let status = generate_api_pod_status(&StatusInputs {
        probe_results: &probe_results,
        old,
        ..StatusInputs::new(&pod, &runtime_status, now())
    })
    .unwrap();
    let a = of(&status, "a");
    (a.started.unwrap(), a.ready)
}

#[test]
fn started_and_ready_follow_the_probes() {
    let rows = [
        (None, None, (false, false)),
        (Some(Unknown), Some(Success), (false, false)),
        (Some(Failure), Some(Success), (false, false)),
        (Some(Success), None, (true, false)),
        (Some(Success), Some(Failure), (true, false)),
        (Some(Success), Some(Unknown), (true, false)),
        (Some(Success), Some(Success), (true, true)),
    ];
    for (startup, readiness, expected) in rows {
        assert_eq!(probed(startup, readiness, None), expected, "{startup:?} {readiness:?}");
    }
}

#[test]
fn the_old_readiness_of_the_same_instance_holds_until_a_probe_result() {
    let shown = generate(&pod("Always", &[], &["a"]), &[running("a", "c1")]);
    assert!(of(&shown, "a").ready);
    let rows = [
        (None, None, (true, true)),
        (Some(Unknown), None, (true, true)),
        (Some(Failure), None, (false, false)),
        (None, Some(Failure), (true, false)),
    ];
    for (startup, readiness, expected) in rows {
        assert_eq!(probed(startup, readiness, Some(&shown)), expected, "{startup:?} {readiness:?}");
    }
    let other = generate(&pod("Always", &[], &["a"]), &[running("a", "c0")]);
    assert_eq!(probed(None, None, Some(&other)), (false, false), "another instance");
}

#[test]
fn a_plain_init_container_is_ready_when_it_has_succeeded() {
    let pod = pod("Always", &["i"], &["a"]);
    let ready = |instance| of(&generate(&pod, &[instance]), "i").ready;
    assert!(ready(exited("i", "c", 0)));
    assert!(!ready(exited("i", "c", 1)));
    assert!(!ready(running("i", "c")));
}

#[test]
fn an_ephemeral_container_is_shown_and_decides_nothing() {
    let mut pod = from_api(pod("Never", &[], &["a"]));
    let ephemeral = serde_json::json!([{"name": "debug", "image": "img:1"}]);
    let spec = pod.spec.as_mut().unwrap();
    spec.ephemeral_containers = serde_json::from_value(ephemeral).unwrap();
    let shown = |containers: &[model::ContainerStatus]| {
        let status = generate(&pod, containers);
        let ephemeral = status.ephemeral_container_statuses.clone().unwrap();
        let [debug] = ephemeral.try_into().unwrap();
        (status, debug)
    };
    let (_, debug) = shown(&[running("a", "c1")]);
    assert_eq!(state_text(&debug.state), "waiting:ContainerCreating");
    let (status, debug) = shown(&[running("debug", "c2"), running("a", "c1")]);
    assert!(debug.state.unwrap().running.is_some());
    assert_eq!((debug.started, debug.ready), (None, false));
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert!(of(&status, "a").ready);
    let (status, debug) = shown(&[exited("debug", "c2", 1), running("a", "c1")]);
    assert_eq!(debug.state.unwrap().terminated.unwrap().exit_code, 1);
    assert_eq!(status.phase.as_deref(), Some("Running"));
    let (status, _) = shown(&[running("debug", "c2"), exited("a", "c1", 0)]);
    assert_eq!(status.phase.as_deref(), Some("Succeeded"));
}
