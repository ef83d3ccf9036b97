//! Containers that run with other amounts than their pod is allocated.

use super::*;
use crate::resources::allocation::{ComputeAmounts, PodResourceInfo};
use k8s_openapi::api::core::v1::{ContainerResizePolicy, ResourceRequirements};
use serde_json::{Value, json};
use std::sync::Arc;

fn with_resources(mut pod: Pod, name: &str, resources: Value) -> Pod {
    let resources: ResourceRequirements = serde_json::from_value(resources).unwrap();
    let spec = pod.spec_mut();
    let inits = spec.init_containers.iter_mut().flatten();
    let mut all = spec.containers.iter_mut().chain(inits);
    all.find(|c| c.name == name).unwrap().resources = Some(resources);
    pod
}

fn restarts_for(mut pod: Pod, resource: &str) -> Pod {
    let spec = pod.spec_mut();
    let inits = spec.init_containers.iter_mut().flatten();
    for container in spec.containers.iter_mut().chain(inits) {
        container.resize_policy = Some(vec![ContainerResizePolicy {
            resource_name: resource.into(),
            restart_policy: "RestartContainer".into(),
        }]);
    }
    pod
}

fn amounts(memory: &str) -> Value {
    json!({"limits": {"memory": memory}, "requests": {"cpu": "1"}})
}

/// The runtime, whose containers have what this pod asks for.
fn has(mut runtime: Runtime, pod: &Pod) -> Runtime {
    runtime.facts.actuated = Some(Arc::new(PodResourceInfo::of(pod)));
    runtime
}

fn resized(actions: &PodActions) -> Vec<&str> {
    let resizes = actions.containers_to_resize.iter();
    resizes.map(|resize| resize.name.as_str()).collect()
}

#[test]
fn what_runs_is_updated_and_what_shrinks_comes_first() {
    let p = |a: &str, b: &str| {
        let pod = pod("Always", &["a", "b"]);
        with_resources(with_resources(pod, "a", amounts(a)), "b", amounts(b))
    };
    let before = p("1Mi", "2Mi");
    let both = || Runtime::good().with("a", RUNNING).with("b", RUNNING);
    for (case, pod, runtime, wanted) in [
        ("the same", p("1Mi", "2Mi"), both(), vec![]),
        ("spelled otherwise", p("1024Ki", "2Mi"), both(), vec![]),
        ("both", p("2Mi", "1Mi"), both(), vec!["b", "a"]),
        ("one", p("2Mi", "2Mi"), both(), vec!["a"]),
        ("deleted", p("2Mi", "2Mi").deleted(), both(), vec!["a"]),
        (
            "one that does not run is made with its amounts",
            p("2Mi", "1Mi"),
            Runtime::good().exited("a", 1).with("b", RUNNING),
            vec!["b"],
        ),
        (
            "one that is to be stopped is not updated",
            p("2Mi", "1Mi"),
            both().liveness(ProbeResult::Failure),
            vec!["a"],
        ),
    ] {
        let actions = has(runtime, &before).actions(&pod);
        assert_eq!(resized(&actions), wanted, "{case}");
        assert_eq!(actions.resizes(), !wanted.is_empty(), "{case}");
    }
    let nothing_known = both().actions(&p("2Mi", "1Mi"));
    assert_eq!(resized(&nothing_known), Vec::<&str>::new());
    assert!(nothing_known.is_empty());
}

#[test]
fn a_container_restarts_for_what_its_policy_says() {
    let p = |memory: &str, resource: &str| {
        let pod = with_resources(pod("Never", &["a"]), "a", amounts(memory));
        restarts_for(pod, resource)
    };
    let runs = || has(Runtime::good().with("a", RUNNING), &p("1Mi", "memory"));
    for (case, pod, wanted) in [
        ("memory", p("2Mi", "memory"), "kill:a-0 start:a"),
        ("only for CPU", p("2Mi", "cpu"), ""),
        ("nothing changes", p("1Mi", "memory"), ""),
    ] {
        assert_eq!(line(&runs().actions(&pod)), wanted, "{case}");
    }
    let actions = runs().actions(&p("2Mi", "memory"));
    let text = actions.containers_to_kill[0].to_string();
    assert_eq!(text, "Container a resize requires restart");
}

#[test]
fn sidecars_and_running_init_containers_are_updated_as_well() {
    let p = |memory: &str| {
        let pod = pod("Always", &["a"]).sidecar("s").init("i");
        let pod = with_resources(pod, "s", amounts(memory));
        with_resources(pod, "i", amounts(memory))
    };
    let started = Runtime::good().with("s", RUNNING).startup(ProbeResult::Success);
    let actions = has(started.clone().with("i", RUNNING), &p("1Mi")).actions(&p("2Mi"));
    assert_eq!(resized(&actions), ["s", "i"]);
    let actions = has(started, &p("1Mi")).actions(&restarts_for(p("2Mi"), "memory"));
    assert_eq!(resized(&actions), Vec::<&str>::new());
    assert!(line(&actions).starts_with("kill:s-0 init:s"), "{}", line(&actions));
}

#[test]
fn the_pods_own_level_counts_where_a_container_has_no_limit() {
    let p = |memory: &str| {
        let mut pod = pod("Always", &["a"]);
        let level = serde_json::from_value(json!({"limits": {"memory": memory}})).unwrap();
        pod.spec_mut().resources = Some(level);
        pod
    };
    let actions = has(Runtime::good().with("a", RUNNING), &p("2Mi")).actions(&p("1Mi"));
    assert!(actions.resize_pod_level);
    let resize = &actions.containers_to_resize[0];
    let limit = |memory_limit| ComputeAmounts { memory_limit, ..ComputeAmounts::default() };
    assert_eq!((resize.from, resize.to), (limit(2 << 20), limit(1 << 20)));
    assert_eq!(resize.lower_memory_limit(), Some(1 << 20));
    let plain = pod("Always", &["a"]);
    let added = has(Runtime::good().with("a", RUNNING), &plain).actions(&p("1Mi"));
    assert!(added.resize_pod_level);
}
