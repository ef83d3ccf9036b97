//! Allocations, their files, and resizes.

use super::*;
use crate::model::{PodExt, fixture};
use k8s_openapi::api::core::v1::{PodCondition, ResourceRequirements};
use serde_json::{Value, json};
use std::fs;

/// What upstream's kubelet wrote.
const OF_GO: &str = r#"{"data":"{\"entries\":{\"uid-1\":{\"ContainerResources\":{\"a\":{\"limits\":{\"cpu\":\"200m\",\"memory\":\"64Mi\"},\"requests\":{\"cpu\":\"1\"}},\"b\":{}},\"PodLevelResources\":null},\"uid-2\":{\"ContainerResources\":{},\"PodLevelResources\":{\"limits\":{\"cpu\":\"200m\",\"memory\":\"64Mi\"}}}}}","checksum":686829939}"#;
const EMPTY_OF_GO: &str = r#"{"data":"{}","checksum":694314937}"#;

fn pod(uid: &str, resources: Value) -> Arc<Pod> {
    let containers = [("init:first", None), ("a", Some(resources))];
    Arc::new(fixture::pod(&format!("/{uid}/{uid}"), fixture::spec(containers)))
}

/// A pod with a small and with a large request.
fn before_and_after_resize() -> (Arc<Pod>, Arc<Pod>) {
    let with = |cpu: &str| pod("u", json!({"requests": {"cpu": cpu}}));
    (with("100m"), with("1"))
}

/// The resize is on disk, with the amounts that the container had before.
fn assert_saved_resize(directory: &Path, small: &Arc<Pod>, large: &Arc<Pod>) {
    let after = Allocations::read(directory).unwrap();
    assert_eq!(after.apply(small), *large);
    let actuated = after.actuated(&"u".into()).unwrap();
    assert_eq!(*actuated, PodResourceInfo::of(small));
}

fn requirements(resources: Value) -> ResourceRequirements {
    serde_json::from_value(resources).unwrap()
}

#[test]
fn files_of_the_go_kubelet_are_read_and_have_its_checksum() {
    let known = checkpoint::decode(OF_GO.as_bytes()).unwrap();
    let limits = json!({"limits": {"cpu": "200m", "memory": "64Mi"}});
    let amounts = &known[&PodUid::from("uid-1")];
    assert_eq!(amounts.containers.len(), 2);
    assert_eq!(amounts.containers["a"].limits, requirements(limits.clone()).limits);
    assert_eq!(known[&PodUid::from("uid-2")].pod, Some(requirements(limits)));
    assert!(checkpoint::decode(EMPTY_OF_GO.as_bytes()).unwrap().is_empty());
    let empty = checkpoint::encode(&AmountsByPod::new()).unwrap();
    assert_eq!(String::from_utf8(empty).unwrap(), EMPTY_OF_GO);
    let again = checkpoint::encode(&known).unwrap();
    assert_eq!(checkpoint::decode(&again).unwrap(), known);
}

#[test]
fn a_damaged_file_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(ALLOCATED_FILE);
    for (text, why) in [
        (OF_GO.replace("200m", "900m"), "checkpoint is corrupted"),
        (OF_GO[..40].to_owned(), "EOF"),
        ("[]".to_owned(), "invalid length"),
    ] {
        fs::write(&path, text).unwrap();
        let error = Allocations::read(dir.path()).err().unwrap().to_string();
        assert!(error.contains(why) && error.contains(ALLOCATED_FILE), "{error}");
    }
}

#[tokio::test]
async fn what_was_allocated_and_given_is_known_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let allocations = Allocations::read(dir.path()).unwrap();
    let (small, large) = before_and_after_resize();
    allocations.allocate(&small);
    allocations.set_actuated(&small, small.container("a").unwrap());
    assert!(allocations.flush().await);

    let after = Allocations::read(dir.path()).unwrap();
    assert!(after.is_allocated(&"u".into()));
    assert!(Arc::ptr_eq(&after.apply(&small), &small));
    assert_eq!(after.apply(&large), small);
    let has = after.actuated(&"u".into()).unwrap();
    assert_eq!(has.containers["a"], PodResourceInfo::of(&small).containers["a"]);
    after.retain(|_| false);
    assert!(Arc::ptr_eq(&after.apply(&large), &large));
}

#[tokio::test]
async fn an_accepted_resize_is_on_disk_before_it_is_carried_out() {
    let dir = tempfile::tempdir().unwrap();
    let allocations = Allocations::read(dir.path()).unwrap();
    let (small, large) = before_and_after_resize();
    allocations.allocate(&small);
    allocations.save_resizes().await;
    assert!(!dir.path().join(ALLOCATED_FILE).exists());
    allocations.resize(&small, &large);
    fs::create_dir(dir.path().join(ALLOCATED_FILE)).unwrap();
    allocations.save_resizes().await;
    // After the failed write, the next call writes again.
    fs::remove_dir(dir.path().join(ALLOCATED_FILE)).unwrap();
    allocations.save_resizes().await;
    assert_saved_resize(dir.path(), &small, &large);
}

#[tokio::test]
async fn a_resize_is_not_on_disk_without_the_actuated_amounts_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let allocations = Allocations::read(dir.path()).unwrap();
    let (small, large) = before_and_after_resize();
    allocations.allocate(&small);
    allocations.resize(&small, &large);
    fs::create_dir(dir.path().join(ACTUATED_FILE)).unwrap();
    allocations.save_resizes().await;
    fs::remove_dir(dir.path().join(ACTUATED_FILE)).unwrap();
    let after = Allocations::read(dir.path()).unwrap();
    assert!(!after.is_allocated(&"u".into()));
    // The next call writes both.
    allocations.save_resizes().await;
    assert_saved_resize(dir.path(), &small, &large);
}

#[tokio::test]
async fn a_checkpoint_is_written_when_its_map_changed_or_an_earlier_write_failed() {
    let dir = tempfile::tempdir().unwrap();
    let allocations = Allocations::read(dir.path()).unwrap();
    let after = || Allocations::read(dir.path()).unwrap();
    let [one, two] = ["u", "v"].map(|uid| pod(uid, json!({"requests": {"cpu": "1"}})));
    allocations.allocate(&one);
    allocations.set_actuated(&one, one.container("a").unwrap());
    assert!(allocations.flush().await);
    // This change is not counted.
    allocations.0.state.lock().actuated.clear();
    allocations.allocate(&two);
    assert!(allocations.flush().await);
    assert!(after().is_allocated(&"v".into()));
    assert!(after().actuated(&"u".into()).is_some());

    let file = dir.path().join(ACTUATED_FILE);
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    allocations.set_actuated(&two, two.container("a").unwrap());
    assert!(!allocations.flush().await);
    fs::remove_dir(&file).unwrap();
    assert!(allocations.flush().await);
    assert!(after().actuated(&"v".into()).is_some());
    assert!(after().actuated(&"u".into()).is_none());
}

#[test]
fn a_resize_changes_what_is_allocated_and_not_what_containers_have() {
    let allocations = Allocations::default();
    let before = pod("u", json!({"requests": {"cpu": "100m"}}));
    let now = pod("u", json!({"requests": {"cpu": "1"}}));
    allocations.allocate(&before);
    allocations.resize(&before, &now);
    assert!(Arc::ptr_eq(&allocations.apply(&now), &now));
    let has = allocations.actuated(&"u".into()).unwrap();
    assert_eq!(*has, PodResourceInfo::of(&before));
    allocations.set_actuated(&now, now.container("a").unwrap());
    let has = allocations.actuated(&"u".into()).unwrap();
    assert_eq!(*has, PodResourceInfo::of(&now));
    allocations.remove(&"u".into());
    assert_eq!(allocations.actuated(&"u".into()), None);
}

#[tokio::test]
async fn amounts_that_containers_have_as_allocated_are_in_memory_once() {
    let dir = tempfile::tempdir().unwrap();
    let allocations = Allocations::read(dir.path()).unwrap();
    let once = |allocations: &Allocations| {
        let state = allocations.0.state.lock();
        let uid = PodUid::from("u");
        Arc::ptr_eq(&state.allocated[&uid], &state.actuated[&uid])
    };
    let pod = pod("u", json!({"requests": {"cpu": "100m"}}));
    allocations.allocate(&pod);
    allocations.set_actuated(&pod, pod.container("first").unwrap());
    assert!(!once(&allocations));
    allocations.set_actuated(&pod, pod.container("a").unwrap());
    assert!(once(&allocations));
    assert!(allocations.flush().await);
    assert!(once(&Allocations::read(dir.path()).unwrap()));
}

#[test]
fn amounts_are_equal_however_they_are_spelled() {
    let of = |resources: Value| requirements(resources);
    for (one, other, same) in [
        (json!({}), json!({"limits": {}}), true),
        (json!({"limits": {"cpu": "1"}}), json!({"limits": {"cpu": "1000m"}}), true),
        (json!({"limits": {"cpu": "1"}}), json!({"limits": {"cpu": "999m"}}), false),
        (json!({"limits": {"cpu": "1"}}), json!({"requests": {"cpu": "1"}}), false),
        (json!({"limits": {"cpu": "1"}}), json!({"limits": {"cpu": "1", "memory": "1Gi"}}), false),
        (json!({"limits": {"memory": "1Gi"}}), json!({"limits": {"memory": "1024Mi"}}), true),
    ] {
        assert_eq!(same_amounts(&of(one.clone()), &of(other.clone())), same, "{one} {other}");
    }
}

#[test]
fn a_container_without_a_limit_has_that_of_its_pod() {
    let own =
        requirements(json!({"requests": {"cpu": "100m", "memory": "1Ki"}, "limits": {"cpu": "1"}}));
    let level = requirements(json!({"limits": {"cpu": "2", "memory": "1Mi"}}));
    let amounts =
        ComputeAmounts { cpu_request: 100, cpu_limit: 1000, memory_request: 1024, memory_limit: 0 };
    assert_eq!(ComputeAmounts::of(&own, None), amounts);
    let with_level = ComputeAmounts { memory_limit: 1 << 20, ..amounts };
    assert_eq!(ComputeAmounts::of(&own, Some(&level)), with_level);
}

#[test]
fn conditions_are_those_of_the_api_and_are_read_back() {
    let conditions = ResizeConditions {
        pending: Some(PendingResize {
            reason: PendingReason::Deferred,
            message: "no room".into(),
            generation: Some(3),
        }),
        in_progress: Some(ResizeInProgress { error: Some("busy".into()), generation: Some(2) }),
        undecided: false,
    };
    let api = conditions.to_api();
    let shown = |condition: &PodCondition| {
        let reason = condition.reason.clone().unwrap_or_default();
        let message = condition.message.clone().unwrap_or_default();
        format!(
            "{} {} {reason} {message} {:?}",
            condition.type_, condition.status, condition.observed_generation
        )
    };
    let shown: Vec<_> = api.iter().map(shown).collect();
    assert_eq!(
        shown,
        [
            "PodResizePending True Deferred no room Some(3)",
            "PodResizeInProgress True Error busy Some(2)",
        ]
    );
    assert_eq!(ResizeConditions::reported(&api), conditions);
    assert_eq!(ResizeConditions::reported(&[]), ResizeConditions::default());
}

#[test]
fn events_name_the_amounts_of_all_containers() {
    let pod = pod("u", json!({"requests": {"cpu": "1"}}));
    assert_eq!(
        event_message("Pod resize started", &pod, Some(2), ""),
        r#"Pod resize started: {"initContainers":[{"name":"first","resources":{}}],"containers":[{"name":"a","resources":{"requests":{"cpu":"1"}}}],"generation":2}"#
    );
}

#[test]
fn what_is_in_force_is_what_was_actuated_until_that_is_what_was_allocated() {
    let dir = tempfile::tempdir().unwrap();
    let allocations = Allocations::read(dir.path()).unwrap();
    let level = |memory: &str| {
        let mut pod = Pod::clone(&pod("u", json!({"limits": {"memory": memory}})));
        let level = json!({"limits": {"memory": memory}});
        pod.spec.as_mut().unwrap().resources = serde_json::from_value(level).unwrap();
        pod
    };
    let (before, after) = (level("30Mi"), level("10Mi"));
    assert!(allocations.actuated_pod(&after, |_| true).is_none());
    allocations.set_actuated_pod_level(&before);
    let shown = |pod: &Pod| {
        let actuated_pod = allocations.actuated_pod(pod, |_| true)?;
        let amounts = PodResourceInfo::of(&actuated_pod);
        let of_pod = amounts.pod?.limits?["memory"].0.clone();
        let of_container = amounts.containers["a"].limits.clone()?["memory"].0.clone();
        Some((of_pod, of_container))
    };
    // Nothing is known of the container.
    let expected = ("30Mi".to_owned(), "10Mi".to_owned());
    assert_eq!(shown(&after), Some(expected));
    assert_eq!(shown(&before), None);
    allocations.set_actuated_pod_level(&after);
    assert_eq!(shown(&after), None);
}

#[test]
fn what_a_container_had_counts_only_while_it_runs() {
    let allocations = Allocations::default();
    let before = pod("u", json!({"requests": {"cpu": "2", "memory": "6Gi"}}));
    let now = pod("u", json!({"requests": {"cpu": "3", "memory": "2Gi"}}));
    allocations.allocate(&before);
    allocations.set_actuated(&before, before.container("a").unwrap());
    assert_eq!(allocations.actuated_pod(&before, |_| true), None);
    allocations.resize(&before, &now);
    assert_eq!(allocations.actuated_pod(&now, |_| true).as_ref(), Some(&*before));
    assert_eq!(allocations.actuated_pod(&now, |_| false), None);

    let held = with_higher_requests(&now, &before);
    let held = &PodResourceInfo::of(&held).containers["a"];
    let expected = json!({"requests": {"cpu": "3", "memory": "6Gi"}});
    assert_eq!(serde_json::to_value(held).unwrap(), expected);
    let none = pod("u", json!({}));
    assert_eq!(with_higher_requests(&none, &before), *before);
    assert_eq!(with_higher_requests(&before, &none), *before);
}

#[tokio::test]
async fn actuated_limits_are_written_with_those_of_the_pod() {
    let dir = tempfile::tempdir().unwrap();
    let allocations = Allocations::read(dir.path()).unwrap();
    let mut limited = Pod::clone(&pod("u", json!({"limits": {"cpu": "1"}})));
    let level = json!({"limits": {"cpu": "2", "memory": "1Gi", "hugepages-2Mi": "4Mi"}});
    limited.spec.as_mut().unwrap().resources = serde_json::from_value(level).unwrap();
    allocations.allocate(&limited);
    allocations.set_actuated(&limited, limited.container("a").unwrap());
    allocations.set_actuated_pod_level(&limited);
    assert!(allocations.flush().await);

    let limits = |file: &str| {
        let file = CheckpointFile::new(dir.path().join(file));
        let amounts = read(&file).unwrap()[&PodUid::from("u")].clone();
        serde_json::to_value(amounts.containers["a"].limits.clone()).unwrap()
    };
    assert_eq!(limits(ALLOCATED_FILE), json!({"cpu": "1"}));
    assert_eq!(limits(ACTUATED_FILE), json!({"cpu": "1", "memory": "1Gi"}));
}

#[test]
fn pod_level_resources_that_were_in_force_are_added_to_a_record_without_any() {
    let level = json!({"requests": {"cpu": "300m"}});
    let with_level = |observed: Option<i64>| {
        let mut pod = Pod::clone(&pod("u", json!({"requests": {"cpu": "100m"}})));
        pod.metadata.generation = Some(2);
        pod.spec.as_mut().unwrap().resources = Some(requirements(level.clone()));
        pod.status.get_or_insert_default().observed_generation = observed;
        Arc::new(pod)
    };
    let condition = |type_: &str| {
        ResizeConditions::reported(&[PodCondition {
            type_: type_.to_owned(),
            status: "True".into(),
            ..PodCondition::default()
        }])
    };
    let (none, pending, in_progress) = (
        ResizeConditions::default(),
        condition("PodResizePending"),
        condition("PodResizeInProgress"),
    );
    for (observed, reported, is_allocated, is_actuated) in [
        (Some(2), &none, true, true),
        (None, &none, true, true),
        (Some(1), &none, false, false),
        (Some(2), &pending, false, false),
        (Some(2), &in_progress, true, false),
    ] {
        let allocations = Allocations::default();
        let before = pod("u", json!({"requests": {"cpu": "100m"}}));
        allocations.allocate(&before);
        allocations.set_actuated(&before, before.container("a").unwrap());
        let pod = with_level(observed);
        allocations.adopt_pod_level(&pod, reported);
        let allocated = allocations.apply(&pod);
        assert_eq!(Arc::ptr_eq(&allocated, &pod), is_allocated, "{observed:?}");
        let actuated = allocations.actuated(&"u".into()).unwrap();
        assert_eq!(actuated.pod.is_some(), is_actuated, "{observed:?}");
    }
}

#[test]
fn a_container_that_is_created_for_the_first_time_had_no_other_amounts() {
    let allocations = Allocations::default();
    let (small, large) = before_and_after_resize();
    for (pod, had_others) in [(&small, false), (&small, false), (&large, true)] {
        let container = pod.container("a").unwrap();
        assert_eq!(allocations.set_actuated(pod, container), had_others);
    }
}
