use super::merge::merge;
use super::*;
use k8s_openapi::api::core::v1::{HostIP, PodResourceClaimStatus};

/// What the API server has after a merge, and what was sent.
fn merged(ours: &PodStatus, api_status: &PodStatus, may_be_running: bool) -> (PodStatus, Value) {
    let patch = merge(&pod("api"), ours, api_status, may_be_running).unwrap();
    let patch = patch.unwrap_or_else(|| json!({}));
    let after = patched(api_status, &patch);
    let again = merge(&pod("api"), ours, &after, may_be_running).unwrap();
    assert_eq!(again, None, "a patch that was taken is not sent again");
    (after, patch)
}

#[test]
fn only_what_changed_is_sent() {
    let api_status = PodStatus {
        qos_class: Some("BestEffort".into()),
        start_time: Some(epoch()),
        conditions: Some(vec![condition("Ready", "False"), condition("Initialized", "True")]),
        ..phase("Pending")
    };
    let ours = PodStatus {
        conditions: Some(vec![condition("Initialized", "True"), condition("Ready", "True")]),
        phase: Some("Running".into()),
        ..api_status.clone()
    };
    let (after, patch) = merged(&ours, &api_status, true);
    assert_eq!(
        patch,
        json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]})
    );
    assert_eq!(after.phase, ours.phase);
}

#[test]
fn what_other_writers_own_is_left_alone() {
    let claim = PodResourceClaimStatus { name: "gpu".into(), ..PodResourceClaimStatus::default() };
    let foreign = [condition("example.com/gate", "True"), condition("DisruptionTarget", "True")];
    let api_status = PodStatus {
        resource_claim_statuses: Some(vec![claim]),
        nominated_node_name: Some("n".into()),
        resize: Some("Proposed".into()),
        qos_class: Some("Burstable".into()),
        host_ip: Some("192.0.2.1".into()),
        conditions: Some(foreign.to_vec()),
        ..phase("Pending")
    };
    let ours = PodStatus {
        qos_class: Some("BestEffort".into()),
        conditions: Some(vec![condition("Ready", "True")]),
        ..phase("Running")
    };
    let (after, _) = merged(&ours, &api_status, true);
    let mut expected = api_status.clone();
    expected.phase = ours.phase.clone();
    expected.conditions.as_mut().unwrap().push(condition("Ready", "True"));
    assert_eq!(after, expected);
}

#[test]
fn values_that_are_gone_go_from_the_api_server() {
    let ip = |ip: &str| PodIP { ip: ip.into() };
    let host = |ip: &str| HostIP { ip: ip.into() };
    let explained = PodCondition {
        reason: Some("ContainersNotReady".into()),
        message: Some("containers with unready status: [a]".into()),
        ..condition("Ready", "False")
    };
    let api_status = PodStatus {
        message: Some("m".into()),
        pod_ips: Some(vec![ip("10.0.0.1"), ip("fd00::1")]),
        host_ips: Some(vec![host("192.0.2.1")]),
        conditions: Some(vec![explained, condition("AllContainersRestarting", "True")]),
        ..phase("Running")
    };
    let ours = PodStatus {
        pod_ips: Some(vec![ip("fd00::1")]),
        host_ips: Some(vec![host("192.0.2.2")]),
        conditions: Some(vec![condition("Ready", "True")]),
        ..phase("Running")
    };
    assert_eq!(merged(&ours, &api_status, true).0, ours);
}

#[test]
fn a_pod_becomes_terminal_only_when_nothing_of_it_may_run() {
    let disrupted = PodCondition {
        reason: Some("TerminationByKubelet".into()),
        ..condition("DisruptionTarget", "True")
    };
    let api_status =
        PodStatus { container_statuses: Some(vec![container(None)]), ..phase("Running") };
    let ours = PodStatus {
        reason: Some("Evicted".into()),
        conditions: Some(vec![condition("Ready", "False"), disrupted]),
        container_statuses: Some(vec![container(Some(0))]),
        ..phase("Failed")
    };
    let (early, _) = merged(&ours, &api_status, true);
    assert_eq!((early.phase.as_deref(), early.reason.as_deref()), (Some("Running"), None));
    assert_eq!(early.conditions.as_ref().unwrap().len(), 1, "no DisruptionTarget yet");
    assert_eq!(early.container_statuses, ours.container_statuses, "all else is sent");
    let (late, _) = merged(&ours, &early, false);
    assert_eq!(late.phase.as_deref(), Some("Failed"));
    assert_eq!(late.reason.as_deref(), Some("Evicted"));
    assert_eq!(late.conditions.unwrap().len(), 2);
}

#[test]
fn a_container_that_ended_for_good_does_not_run_again() {
    let with =
        |code| PodStatus { container_statuses: Some(vec![container(code)]), ..phase("Running") };
    assert!(merge(&pod("api"), &with(None), &with(Some(1)), true).is_err());
    assert!(merge(&pod("api"), &with(Some(1)), &with(None), true).is_ok());
}
