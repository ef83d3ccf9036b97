use super::*;

#[test]
fn the_pod_shows_its_addresses_class_and_start() {
    let pod = pod("Always", &[], &["a"]);
    let runtime_status = runtime_status(&[running("a", "c")]);
    let inputs =
        StatusInputs { qos_class: "Burstable", ..StatusInputs::new(&pod, &runtime_status, now()) };
    let status = generate_api_pod_status(&inputs).unwrap();
    assert_eq!(status.pod_ip.as_deref(), Some("10.88.0.5"));
    assert_eq!(status.pod_ips.as_ref().unwrap().len(), 2);
    assert_eq!(status.qos_class.as_deref(), Some("Burstable"));
    assert_eq!(status.start_time.as_ref().unwrap().0, later(0), "whole seconds");
    assert_eq!((status.host_ip, status.host_ips), (None, None));
}

#[test]
fn the_start_time_is_kept() {
    let pod = pod("Always", &[], &["a"]);
    let old = generate(&pod, &[]);
    let nothing = runtime_status(&[]);
    let inputs = StatusInputs { old: Some(&old), ..StatusInputs::new(&pod, &nothing, later(90)) };
    assert_eq!(generate_api_pod_status(&inputs).unwrap().start_time, old.start_time);
}

#[test]
fn the_last_addresses_stay_on_show_once_the_sandbox_is_gone() {
    let pod = pod("Always", &[], &["a"]);
    let old = generate(&pod, &[running("a", "c")]);
    let mut stopped = runtime_status(&[exited("a", "c", 0)]);
    stopped.sandboxes[0].ready = false;
    let inputs = StatusInputs { old: Some(&old), ..StatusInputs::new(&pod, &stopped, now()) };
    assert_eq!(generate_api_pod_status(&inputs).unwrap().pod_ips, old.pod_ips);
    let mut lost = runtime_status(&[running("a", "c")]);
    lost.sandboxes[0].ips.clear();
    let inputs = StatusInputs { old: Some(&old), ..StatusInputs::new(&pod, &lost, now()) };
    assert_eq!(
        generate_api_pod_status(&inputs).unwrap().pod_ips,
        None,
        "a ready sandbox lost its own"
    );
}

#[test]
fn a_host_network_pod_has_the_nodes_addresses() {
    let mut pod = pod("Always", &[], &["a"]);
    pod.spec.as_mut().unwrap().host_network = Some(true);
    let mut on_host = runtime_status(&[running("a", "c")]);
    on_host.sandboxes[0].ips.clear();
    let host_ips = ["192.0.2.1".to_string(), "2001:db8::1".to_string()];
    let inputs = StatusInputs { host_ips: &host_ips, ..StatusInputs::new(&pod, &on_host, now()) };
    let status = generate_api_pod_status(&inputs).unwrap();
    assert_eq!(status.pod_ip.as_deref(), Some("192.0.2.1"));
    assert_eq!(status.host_ip.as_deref(), Some("192.0.2.1"));
    assert_eq!(status.host_ips.unwrap().len(), 2);
    let standalone = generate_api_pod_status(&StatusInputs::new(&pod, &on_host, now())).unwrap();
    assert_eq!(standalone.pod_ip, None);
}

#[test]
fn termination_messages_share_twelve_kibibytes() {
    let pod = pod("Never", &[], &["a", "b", "c"]);
    let ended = |name: &str| model::ContainerStatus {
        message: "é".repeat(4096).into(),
        ..exited(name, name, 1)
    };
    let status = generate(&pod, &[ended("a"), ended("b"), ended("c")]);
    for name in ["a", "b", "c"] {
        let end = of(&status, name).state.clone().unwrap().terminated.unwrap();
        assert_eq!(end.message.unwrap().len(), 4096, "cut between characters");
    }
}

#[test]
fn a_container_that_ended_for_good_is_never_alive_again() {
    let rows = [
        ("Never", 1, true),
        ("Never", 0, true),
        ("OnFailure", 0, true),
        ("OnFailure", 1, false),
        ("Always", 0, false),
    ];
    for (policy, code, illegal) in rows {
        let pod = pod(policy, &[], &["a"]);
        let old = generate(&pod, &[exited("a", "c1", code)]);
        let alive = runtime_status(&[running("a", "c2"), exited("a", "c1", code)]);
        let inputs = StatusInputs { old: Some(&old), ..StatusInputs::new(&pod, &alive, now()) };
        let refused = generate_api_pod_status(&inputs).err();
        assert_eq!(refused.is_some(), illegal, "{policy} after {code}");
        if let Some(error) = refused {
            assert_eq!(error.container, "a");
        }
    }
}

#[test]
fn an_init_container_may_run_again_in_a_new_sandbox_unless_the_policy_is_never() {
    for (policy, illegal) in [("Never", true), ("OnFailure", false), ("Always", false)] {
        let pod = pod(policy, &["i"], &["a"]);
        let old = generate(&pod, &[exited("i", "c1", 0)]);
        let again = runtime_status(&[running("i", "c2")]);
        let inputs = StatusInputs { old: Some(&old), ..StatusInputs::new(&pod, &again, now()) };
        assert_eq!(generate_api_pod_status(&inputs).is_err(), illegal, "{policy}");
    }
}

#[test]
fn a_restarted_kubelet_shows_a_running_pod_as_the_old_one_did() {
    let mut pod = pod("Always", &["s*"], &["a", "b"]);
    edit(&mut pod, "a", |a| a.readiness_probe = probe());
    let seen = runtime_status(&[
        instance("a", "c2", Cri::Running, 2),
        exited("a", "c1", 1),
        running("b", "c3"),
        running("s", "c4"),
    ]);
    let ready = |_: &ContainerId| ContainerProbeResults {
        readiness: Some(crate::model::ProbeResult::Success),
        ..ContainerProbeResults::default()
    };
    let made_at = |now| {
        let inputs = StatusInputs { probe_results: &ready, ..StatusInputs::new(&pod, &seen, now) };
        let mut status = generate_api_pod_status(&inputs).unwrap();
        status.start_time = None;
        for condition in status.conditions.iter_mut().flatten() {
            condition.last_transition_time = None;
        }
        status
    };
    assert_eq!(made_at(later(0)), made_at(later(300)));
}

#[test]
fn a_recorded_end_is_used_when_the_runtime_has_nothing_of_the_pod() {
    let pod = pod("Never", &[], &["a"]);
    let remembered = generate(&pod, &[exited("a", "c", 3)]);
    let nothing = model::PodStatus::default();
    let inputs =
        StatusInputs { old: Some(&remembered), ..StatusInputs::new(&pod, &nothing, later(300)) };
    let status = generate_api_pod_status(&inputs).unwrap();
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(status.container_statuses, remembered.container_statuses);
}

#[test]
fn reason_of_a_waiting_container_reads_as_the_api_has_it() {
    let status = generate(&pod("Always", &[], &["a"]), &[]);
    assert_eq!(reason_waiting(of(&status, "a")), Some("ContainerCreating"));
    let json = serde_json::to_value(&status).unwrap();
    assert_eq!(json["containerStatuses"][0]["state"]["waiting"]["reason"], "ContainerCreating");
    assert_eq!(json["startTime"], "2026-01-01T00:00:00Z");
}
