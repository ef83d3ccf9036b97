use super::*;
use k8s_openapi::api::core::v1::{PodCondition, PodReadinessGate};

pub(super) fn condition<'a>(status: &'a PodStatus, kind: &str) -> &'a PodCondition {
    let mut conditions = list(&status.conditions).iter();
    conditions.find(|c| c.type_ == kind).unwrap()
}

/// `True`, or `False:<reason>:<message>`.
pub(super) fn says(status: &PodStatus, kind: &str) -> String {
    let c = condition(status, kind);
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    match (text(&c.reason), text(&c.message)) {
        (reason, message) if reason.is_empty() && message.is_empty() => c.status.clone(),
        (reason, message) => format!("{}:{reason}:{message}", c.status),
    }
}

#[test]
fn a_running_pod_is_ready_in_every_respect() {
    let status = generate(&pod("Always", &[], &["a"]), &[running("a", "c")]);
    for kind in
        ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"]
    {
        assert_eq!(says(&status, kind), "True", "{kind}");
    }
}

#[test]
fn unready_containers_are_named_in_spec_order() {
    let status = generate(&pod("Always", &[], &["z", "m", "a"]), &[running("m", "c")]);
    let expected = "False:ContainersNotReady:containers with unready status: [z a]";
    assert_eq!(says(&status, "ContainersReady"), expected);
    assert_eq!(says(&status, "Ready"), expected);
}

#[test]
fn an_unready_sidecar_makes_the_pod_unready_and_a_plain_init_container_does_not() {
    let pod = pod("Always", &["i", "s*"], &["a"]);
    let status = generate(&pod, &[running("a", "c1"), exited("s", "c2", 1), exited("i", "c3", 0)]);
    let expected = "False:ContainersNotReady:containers with unready status: [s]";
    assert_eq!(says(&status, "Ready"), expected);
    assert_eq!(says(&status, "Initialized"), "True", "a regular container has started");
}

#[test]
fn incomplete_init_containers_are_named() {
    let mut pod = pod("Always", &["i", "j", "s*"], &["a"]);
    edit(&mut pod, "s", |s| s.startup_probe = probe());
    let status = generate(&pod, &[exited("i", "c", 0), running("s", "d")]);
    assert_eq!(
        says(&status, "Initialized"),
        "False:ContainersNotInitialized:containers with incomplete status: [j s]"
    );
}

#[test]
fn a_pod_that_was_initialized_stays_so_in_another_sandbox() {
    let pod = pod("Always", &["i"], &["a"]);
    let old = generate(&pod, &[running("a", "c"), exited("i", "d", 0)]);
    let status = after(&pod, &[running("i", "e")], Some(&old));
    assert_eq!(says(&status, "Initialized"), "True");
}

#[test]
fn a_completed_pod_is_initialized_and_not_ready_because_it_completed() {
    let status =
        generate(&pod("Never", &["i"], &["a"]), &[exited("a", "c", 0), exited("i", "d", 0)]);
    assert_eq!(says(&status, "Initialized"), "True:PodCompleted:");
    assert_eq!(says(&status, "Ready"), "False:PodCompleted:");
    assert_eq!(says(&status, "ContainersReady"), "False:PodCompleted:");
}

#[test]
fn a_failed_pod_is_not_ready_because_it_failed() {
    let status = generate(&pod("Never", &[], &["a"]), &[exited("a", "c", 1)]);
    assert_eq!(says(&status, "Ready"), "False:PodFailed:");
    assert_eq!(says(&status, "ContainersReady"), "False:PodFailed:");
    assert_eq!(says(&status, "Initialized"), "True");
}

#[test]
fn a_pod_without_a_fit_sandbox_is_not_ready_to_start_containers() {
    let pod = pod("Always", &[], &["a"]);
    let nothing = model::PodStatus::default();
    let inputs =
        StatusInputs { needs_new_sandbox: true, ..StatusInputs::new(&pod, &nothing, now()) };
    let status = generate_api_pod_status(&inputs).unwrap();
    assert_eq!(says(&status, "PodReadyToStartContainers"), "False");
}

#[test]
fn a_pod_without_any_container_status_is_of_unknown_readiness() {
    let status = generate(&pod("Always", &[], &[]), &[]);
    assert_eq!(says(&status, "ContainersReady"), "False:UnknownContainerStatuses:");
}

#[test]
fn readiness_gates_hold_back_ready_but_not_containers_ready() {
    let mut pod = from_api(pod("Always", &[], &["a"]));
    let gate = |kind: &str| PodReadinessGate { condition_type: kind.into() };
    let foreign = PodCondition {
        type_: "example.com/b".into(),
        status: "False".into(),
        ..PodCondition::default()
    };
    pod.spec.as_mut().unwrap().readiness_gates =
        Some(vec![gate("example.com/a"), gate("example.com/b")]);
    pod.status.as_mut().unwrap().conditions = Some(vec![foreign]);
    let status = generate(&pod, &[running("a", "c")]);
    assert_eq!(says(&status, "ContainersReady"), "True");
    assert_eq!(
        says(&status, "Ready"),
        "False:ReadinessGatesNotReady:corresponding condition of pod readiness gate \
         \"example.com/a\" does not exist., the status of pod readiness gate \"example.com/b\" \
         is not \"True\", but False"
    );
    assert_eq!(says(&status, "example.com/b"), "False", "kept as it came");
}

#[test]
fn a_transition_time_moves_only_when_the_status_does() {
    let pod = pod("Always", &[], &["a"]);
    let old = generate(&pod, &[running("a", "c")]);
    let runtime_status = runtime_status(&[exited("a", "c", 1)]);
    let inputs =
        StatusInputs { old: Some(&old), ..StatusInputs::new(&pod, &runtime_status, later(60)) };
    let status = generate_api_pod_status(&inputs).unwrap();
    let since = |kind| condition(&status, kind).last_transition_time.as_ref().unwrap().0;
    assert_eq!(since("Ready"), later(60));
    assert_eq!(since("Initialized"), later(0));
    assert_eq!(since("PodScheduled"), later(0));
}

#[test]
fn conditions_carry_the_generation_they_were_made_from() {
    let mut pod = pod("Always", &[], &["a"]);
    pod.metadata.generation = Some(7);
    let status = generate(&pod, &[running("a", "c")]);
    assert_eq!(status.observed_generation, Some(7));
    assert_eq!(condition(&status, "Ready").observed_generation, Some(7));
}

#[test]
fn a_version_whose_resize_is_undecided_is_not_shown_as_observed() {
    let mut pod = pod("Always", &[], &["a"]);
    pod.metadata.generation = Some(7);
    let before = generate(&pod, &[running("a", "c")]);
    pod.metadata.generation = Some(8);
    let undecided = ResizeConditions { undecided: true, ..ResizeConditions::default() };
    let runtime = runtime_status(&[running("a", "c")]);
    let mut inputs = StatusInputs::new(&pod, &runtime, now());
    inputs.old = Some(&before);
    inputs.resize = &undecided;
    let status = generate_api_pod_status(&inputs).unwrap();
    assert_eq!(status.observed_generation, Some(7));
    assert_eq!(condition(&status, "Ready").observed_generation, Some(7));
}
