use super::*;
use crate::base::clock::SimulatedWallClock;
use crate::model::{fixture, keys};
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, PodCondition,
};
use tokio::runtime::Handle;

fn pod(uid: &str, source: &str, init: &[&str]) -> Arc<Pod> {
    let init = init.iter().map(|name| serde_json::json!({"name": name})).collect::<Vec<_>>();
    let spec = serde_json::json!({"initContainers": init, "containers": [{"name": "a"}]});
    let pod = fixture::pod(&format!("//{uid}"), spec);
    Arc::new(fixture::annotated(pod, [(keys::CONFIG_SOURCE, source)]))
}

fn phase(phase: &str) -> PodStatus {
    PodStatus { phase: Some(phase.into()), ..PodStatus::default() }
}

fn condition(kind: &str, status: &str) -> PodCondition {
    PodCondition { type_: kind.into(), status: status.into(), ..PodCondition::default() }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn only_a_change_moves_the_version() {
    let manager = StatusManager::new(None);
    let reader = manager.reader();
    let version = reader.subscribe();
    let pod = pod("u", "file", &[]);
    assert!(manager.set_pod_status(&pod, phase("Pending")));
    assert!(!manager.set_pod_status(&pod, phase("Pending")));
    assert_eq!(*version.borrow(), 1);
    assert!(manager.set_pod_status(&pod, phase("Running")));
    assert_eq!(*version.borrow(), 2);
    assert_eq!(reader.entry(&"u".into()).unwrap().version, 2);
}

#[tokio::test]
async fn a_subscriber_is_woken_by_a_change() {
    let manager = StatusManager::new(None);
    let mut version = manager.reader().subscribe();
    let waiting = tokio::spawn(async move { version.changed().await });
    tokio::task::yield_now().await;
    manager.set_pod_status(&pod("u", "file", &[]), phase("Pending"));
    waiting.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn statuses_that_differ_in_order_or_emptiness_alone_are_the_same() {
    let manager = StatusManager::new(None);
    let pod = pod("u", "file", &[]);
    let first = PodStatus {
        conditions: Some(vec![condition("Ready", "True"), condition("Initialized", "True")]),
        ..phase("Running")
    };
    let second = PodStatus {
        conditions: Some(vec![condition("Initialized", "True"), condition("Ready", "True")]),
        pod_ips: Some(vec![]),
        reason: Some(String::new()),
        ..phase("Running")
    };
    let clock = SimulatedWallClock::start(&Handle::current(), at(10));
    assert!(manager.set_pod_status(&pod, first));
    clock.set(at(20));
    assert!(!manager.set_pod_status(&pod, second));
}

#[tokio::test(start_paused = true)]
async fn a_condition_keeps_its_transition_time_until_its_status_changes() {
    let manager = StatusManager::new(None);
    let pod = pod("u", "file", &[]);
    let with = |ready: &str, scheduled: &str| PodStatus {
        conditions: Some(vec![condition("Ready", ready), condition("PodScheduled", scheduled)]),
        ..phase("Running")
    };
    let clock = SimulatedWallClock::start(&Handle::current(), at(10));
    manager.set_pod_status(&pod, with("True", "True"));
    clock.set(at(20));
    manager.set_pod_status(&pod, with("False", "True"));
    let status = manager.reader().get(&"u".into()).unwrap();
    let since: Vec<i64> = status
        .conditions
        .iter()
        .flatten()
        .map(|c| c.last_transition_time.as_ref().unwrap().0.as_second())
        .collect();
    assert_eq!(since, [20, 10]);
    assert_eq!(status.start_time.as_ref().unwrap().0, at(10));
}

#[test]
fn a_published_terminal_phase_stays_with_its_reason() {
    let manager = StatusManager::new(None);
    let pod = pod("u", "file", &[]);
    let evicted = PodStatus { reason: Some("Evicted".into()), ..phase("Failed") };
    manager.set_pod_status(&pod, evicted);
    assert!(!manager.set_pod_status(&pod, phase("Running")));
    let status = manager.reader().get(&"u".into()).unwrap();
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
}

#[test]
fn a_status_is_removed_once() {
    let manager = StatusManager::new(None);
    manager.set_pod_status(&pod("b", "file", &[]), phase("Running"));
    assert!(manager.remove(&"b".into()));
    assert!(!manager.remove(&"b".into()));
    assert_eq!(manager.reader().count(), 0);
}

#[test]
fn an_unchanged_status_still_takes_the_newer_pod_object() {
    let manager = StatusManager::new(None);
    manager.set_pod_status(&pod("u", "file", &[]), phase("Running"));
    let newer = pod("u", "file", &["i"]);
    manager.set_pod_status(&newer, phase("Running"));
    assert!(Arc::ptr_eq(&manager.reader().all()[0].pod, &newer));
}

fn running(name: &str) -> ContainerStatus {
    ContainerStatus {
        name: name.into(),
        ready: true,
        state: Some(ContainerState {
            running: Some(ContainerStateRunning::default()),
            ..ContainerState::default()
        }),
        ..ContainerStatus::default()
    }
}

fn waiting(name: &str) -> ContainerStatus {
    ContainerStatus {
        name: name.into(),
        state: Some(ContainerState {
            waiting: Some(ContainerStateWaiting::default()),
            ..ContainerState::default()
        }),
        ..ContainerStatus::default()
    }
}

fn exited(name: &str, exit_code: i32) -> ContainerStatus {
    ContainerStatus {
        name: name.into(),
        state: Some(ContainerState {
            terminated: Some(ContainerStateTerminated {
                exit_code,
                ..ContainerStateTerminated::default()
            }),
            ..ContainerState::default()
        }),
        ..ContainerStatus::default()
    }
}

/// Exit codes after `terminate_pod`, init containers first; `None` for one without an end.
fn settled(
    source: &str,
    init: Vec<ContainerStatus>,
    regular: ContainerStatus,
) -> (String, Vec<Option<i32>>) {
    let names: Vec<String> = init.iter().map(|s| s.name.clone()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let manager = StatusManager::new(None);
    let pod = pod("u", source, &names);
    let status = PodStatus {
        init_container_statuses: Some(init),
        container_statuses: Some(vec![regular]),
        ..phase("Running")
    };
    manager.set_pod_status(&pod, status);
    manager.terminate_pod(&pod, None);
    let status = manager.reader().get(&"u".into()).unwrap();
    let init = status.init_container_statuses.iter().flatten();
    let codes = init
        .chain(status.container_statuses.iter().flatten())
        .map(|s| Some(s.state.as_ref()?.terminated.as_ref()?.exit_code))
        .collect();
    (status.phase.clone().unwrap(), codes)
}

#[test]
fn a_terminated_pod_has_no_open_container_and_has_failed() {
    let (phase, codes) = settled("api", vec![], running("a"));
    assert_eq!((phase.as_str(), codes), ("Failed", vec![Some(137)]));
}

#[test]
fn a_terminated_static_pod_keeps_its_phase() {
    let (phase, codes) = settled("file", vec![], running("a"));
    assert_eq!((phase.as_str(), codes), ("Running", vec![Some(137)]));
}

#[test]
fn a_known_exit_code_is_not_replaced() {
    let (_, codes) = settled("api", vec![exited("i", 0)], exited("a", 3));
    assert_eq!(codes, [Some(0), Some(3)]);
}

#[test]
fn containers_that_never_began_are_left_waiting() {
    let init = vec![exited("i", 0), running("j"), waiting("k")];
    let (_, codes) = settled("api", init, waiting("a"));
    assert_eq!(codes, [Some(0), Some(137), None, None]);
    let (_, codes) = settled("api", vec![waiting("i"), waiting("j")], waiting("a"));
    assert_eq!(codes, [Some(137), None, None], "the first may have begun unseen");
}

#[tokio::test(start_paused = true)]
async fn a_status_made_from_what_an_earlier_process_knew_keeps_its_times() {
    let manager = StatusManager::new(None);
    let pod = pod("u", "file", &[]);
    let mut status = phase("Running");
    let since = Some(Time(at(1000)));
    let ready = PodCondition { last_transition_time: since.clone(), ..condition("Ready", "True") };
    status.conditions = Some(vec![ready]);
    let _clock = SimulatedWallClock::start(&Handle::current(), at(2000));
    manager.set_pod_status(&pod, status);
    let shown = manager.reader().get(&pod.uid()).unwrap();
    assert_eq!(shown.conditions.as_ref().unwrap()[0].last_transition_time, since);
}
