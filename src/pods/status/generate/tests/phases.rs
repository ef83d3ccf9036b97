use super::*;

/// One container instance as the tables write it: `r` runs, `0`, `1`… exited, `c` created,
/// `-` never seen.
fn instances(names: &[&str], states: &str) -> Vec<model::ContainerStatus> {
    names
        .iter()
        .zip(states.chars())
        .filter_map(|(name, state)| {
            let name = name.trim_end_matches('*');
            match state {
                'r' => Some(running(name, name)),
                'c' => Some(instance(name, name, Cri::Created, 0)),
                '-' => None,
                code => Some(exited(name, name, code.to_digit(10).unwrap() as i32)),
            }
        })
        .collect()
}

fn phase(pod: &Pod, names: &[&str], states: &str, terminal: bool) -> String {
    let runtime_status = runtime_status(&instances(names, states));
    let inputs = StatusInputs {
        pod_is_terminal: terminal,
        ..StatusInputs::new(pod, &runtime_status, now())
    };
    generate_api_pod_status(&inputs).unwrap().phase.unwrap()
}

#[test]
fn phase_of_two_regular_containers() {
    let rows = [
        ("Always", "--", "Pending"),
        ("Always", "r-", "Pending"),
        ("Always", "rc", "Pending"),
        ("Always", "rr", "Running"),
        ("Always", "r1", "Running"),
        ("Always", "00", "Running"),
        ("Always", "11", "Running"),
        ("OnFailure", "r0", "Running"),
        ("OnFailure", "01", "Running"),
        ("OnFailure", "00", "Succeeded"),
        ("Never", "r1", "Running"),
        ("Never", "00", "Succeeded"),
        ("Never", "01", "Failed"),
        ("Never", "0-", "Pending"),
    ];
    for (policy, states, expected) in rows {
        let pod = pod(policy, &[], &["a", "b"]);
        assert_eq!(phase(&pod, &["a", "b"], states, false), expected, "{policy} {states}");
    }
}

#[test]
fn phase_with_a_plain_init_container() {
    let rows = [
        ("Always", "--", "Pending"),
        ("Always", "r-", "Pending"),
        ("Always", "1-", "Pending"),
        ("OnFailure", "1-", "Pending"),
        ("Never", "1-", "Failed"),
        ("Never", "0-", "Pending"),
        // It runs again, in a new sandbox.
        ("Always", "r0", "Running"),
        ("Always", "0r", "Running"),
        ("Never", "00", "Succeeded"),
    ];
    for (policy, states, expected) in rows {
        let pod = pod(policy, &["i"], &["a"]);
        assert_eq!(phase(&pod, &["i", "a"], states, false), expected, "{policy} {states}");
    }
}

#[test]
fn an_init_container_killed_for_memory_has_failed_whatever_its_code() {
    let pod = pod("Never", &["i"], &["a"]);
    let mut killed = exited("i", "c", 0);
    killed.reason = "OOMKilled".into();
    assert_eq!(generate(&pod, &[killed]).phase.as_deref(), Some("Failed"));
}

#[test]
fn phase_with_a_sidecar() {
    let rows = [
        ("Always", "--", "Pending"),
        ("Always", "r-", "Pending"),
        ("Always", "rr", "Running"),
        ("Never", "r0", "Running"),
        ("Never", "00", "Succeeded"),
        ("Never", "10", "Succeeded"),
        ("Never", "01", "Failed"),
        ("Always", "1r", "Running"),
    ];
    for (policy, states, expected) in rows {
        let pod = pod(policy, &["s*"], &["a"]);
        assert_eq!(phase(&pod, &["s", "a"], states, false), expected, "{policy} {states}");
    }
}

#[test]
fn a_sidecar_that_is_not_started_holds_the_pod_pending_only_before_the_first_start() {
    let mut pod = pod("Always", &["s*"], &["a"]);
    edit(&mut pod, "s", |s| s.startup_probe = probe());
    assert_eq!(phase(&pod, &["s", "a"], "r-", false), "Pending");
    assert_eq!(phase(&pod, &["s", "a"], "rr", false), "Running");
}

#[test]
fn a_pod_known_to_end_has_a_terminal_phase_unless_it_is_static() {
    let rows = [("00", "Succeeded"), ("01", "Failed"), ("0r", "Running")];
    for (states, expected) in rows {
        let pod = from_api(pod("Always", &[], &["a", "b"]));
        assert_eq!(phase(&pod, &["a", "b"], states, true), expected, "{states}");
    }
    let fixed = pod("Always", &[], &["a", "b"]);
    assert_eq!(phase(&fixed, &["a", "b"], "00", true), "Running");
    let once = pod("Never", &[], &["a", "b"]);
    assert_eq!(phase(&once, &["a", "b"], "01", true), "Failed");
}

#[test]
fn a_container_of_its_own_policy_decides_for_itself() {
    let mut pod = pod("Never", &[], &["a"]);
    edit(&mut pod, "a", |a| a.restart_policy = Some("OnFailure".into()));
    assert_eq!(phase(&pod, &["a"], "1", false), "Running");
    assert_eq!(phase(&pod, &["a"], "0", false), "Succeeded");
}

#[test]
fn a_terminal_phase_never_goes_back() {
    let once = pod("Never", &[], &["a"]);
    for code in [0, 1] {
        let old = generate(&once, &[exited("a", "c", code)]);
        assert_eq!(after(&once, &[], Some(&old)).phase, old.phase);
    }
    let mut always = pod("Always", &[], &["a"]);
    let old = PodStatus {
        phase: Some("Failed".into()),
        reason: Some("Evicted".into()),
        ..PodStatus::default()
    };
    let status = after(&always, &[running("a", "c")], Some(&old));
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
    always.status = Some(old);
    let phase = |pod: &Pod| generate(pod, &[running("a", "c")]).phase;
    assert_eq!(
        phase(&from_api(always.clone())).as_deref(),
        Some("Failed"),
        "as the API server has it"
    );
    assert_eq!(phase(&always).as_deref(), Some("Running"), "a mirror does not end its static pod");
}

#[test]
fn a_pod_failed_by_the_kubelet_has_a_reason() {
    let pod = pod("Always", &[], &["a"]);
    let runtime_status = runtime_status(&[running("a", "c")]);
    let failure = PodFailure {
        reason: "DeadlineExceeded".into(),
        message: "Pod was active on the node longer than the specified deadline".into(),
        disruption: false,
    };
    let inputs = StatusInputs {
        pod_failure: Some(&failure),
        ..StatusInputs::new(&pod, &runtime_status, now())
    };
    let status = generate_api_pod_status(&inputs).unwrap();
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(status.reason, Some(failure.reason.clone()));
    let next = after(&pod, &[], Some(&status));
    assert_eq!(next.phase.as_deref(), Some("Failed"));
    assert_eq!(next.message, Some(failure.message.clone()));
}

#[test]
fn a_preempted_pod_has_succeeded_if_its_containers_have() {
    let pod = pod("Never", &[], &["a"]);
    let failure = PodFailure {
        reason: "Preempting".into(),
        message: "Preempted in order to admit critical pod".into(),
        disruption: true,
    };
    for (instance, pod_is_terminal, expected) in [
        (running("a", "c"), false, ("Running", None)),
        (exited("a", "c", 0), true, ("Succeeded", None)),
        (exited("a", "c", 143), true, ("Failed", Some("Preempting"))),
    ] {
        let runtime_status = runtime_status(&[instance]);
        let inputs = StatusInputs {
            pod_failure: Some(&failure),
            pod_is_terminal,
            ..StatusInputs::new(&pod, &runtime_status, now())
        };
        let status = generate_api_pod_status(&inputs).unwrap();
        let shown = (status.phase.as_deref().unwrap(), status.reason.as_deref());
        assert_eq!(shown, expected);
        let conditions = serde_json::to_string(&status.conditions).unwrap();
        assert!(conditions.contains("DisruptionTarget"), "{conditions}");
    }
}

#[test]
fn a_finished_pod_keeps_its_success_when_its_deadline_passes() {
    let pod = pod("Never", &[], &["a"]);
    let old = generate(&pod, &[exited("a", "c", 0)]);
    let runtime_status = runtime_status(&[exited("a", "c", 0)]);
    let failure =
        PodFailure { reason: "DeadlineExceeded".into(), message: String::new(), disruption: false };
    let inputs = StatusInputs {
        old: Some(&old),
        pod_failure: Some(&failure),
        ..StatusInputs::new(&pod, &runtime_status, now())
    };
    let status = generate_api_pod_status(&inputs).unwrap();
    assert_eq!(status.phase.as_deref(), Some("Succeeded"));
    assert_eq!(status.reason, None);
}
