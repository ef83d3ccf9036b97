use super::manager_tests::manager_on;
use super::*;
use crate::model::Pod;
use crate::model::fixture::{self, guaranteed};
use crate::resources::topology::{
    TopologyError, TopologyManager, TopologyOptions, TopologyPolicy, TopologyScope,
};

/// A Guaranteed pod with so many CPUs. Containers as `name=CPUs`, without an amount for those that share; `init:` and
/// `sidecar:` before the name.
fn pod(cpus: &str, containers: &[&str]) -> Pod {
    let rows = containers.iter().map(|text| match text.split_once('=') {
        Some((name, cpu)) => (name, Some(guaranteed(cpu, "1Gi"))),
        None => (*text, None),
    });
    let mut spec = fixture::spec(rows);
    spec["resources"] = guaranteed(cpus, "8Gi");
    fixture::pod("n/p/u", spec)
}

/// Two sockets of two cores with two threads each; CPU 0 is reserved.
fn manager() -> CpuManager {
    manager_on([2, 2, 4, 2, 0], &[]).with_pod_level(true)
}

fn topology(policy: TopologyPolicy, scope: TopologyScope) -> TopologyManager {
    let nodes = (0..2).map(|node| (node, vec![10, 20])).collect();
    let topology = TopologyManager::new(policy, scope, TopologyOptions::default(), nodes);
    topology.unwrap().with_pod_level(true)
}

fn admit(manager: &mut CpuManager, scope: TopologyScope, pod: &Pod) -> Result<(), TopologyError> {
    let topology = topology(TopologyPolicy::Restricted, scope);
    topology.admit(pod, &mut [manager]).result
}

/// `container=CPUs` of the pod, then those of the whole pod, then the shared ones.
fn shown(manager: &CpuManager) -> String {
    let state = manager.state();
    let containers = state.assigned.get("u").into_iter().flatten();
    let containers = containers.map(|(name, cpus)| format!("{name}={cpus} "));
    let whole = state.pods.get("u").map(|cpus| format!("pod={cpus} "));
    let shared = format!("shared={}", state.shared);
    containers.chain(whole).chain([shared]).collect()
}

#[test]
fn the_containers_of_a_pod_divide_its_cpus_if_whole_pods_are_aligned() {
    use TopologyScope::{Container, Pod};
    for (scope, cpus, containers, expected) in [
        (Pod, "2", &["a=1", "b"][..], "a=1 b=5 pod=1,5 shared=0,2-4,6-7"),
        (Pod, "2", &["a", "b"], "a=1,5 b=1,5 pod=1,5 shared=0,2-4,6-7"),
        // No container has the rest of the CPUs.
        (Pod, "3", &["a=1"], "a=4 pod=1,4-5 shared=0,2-3,6-7"),
        // An init container has all that no sidecar has.
        (
            Pod,
            "3",
            &["init:i", "sidecar:s=1", "init:j", "a=1", "b"],
            "a=1 b=5 i=1,4-5 j=1,5 s=4 pod=1,4-5 shared=0,2-3,6-7",
        ),
        (Pod, "2", &["init:i=2", "sidecar:s", "a=1"], "a=1 i=1,5 s=5 pod=1,5 shared=0,2-4,6-7"),
        // One that requests no whole CPUs shares.
        (Pod, "2", &["a=500m", "b=1"], "a=5 b=1 pod=1,5 shared=0,2-4,6-7"),
        // A pod that requests no whole CPUs shares those of the node.
        (Pod, "1500m", &["a=1"], "shared=0-7"),
        // Where containers are aligned, only those with CPUs of their own have some.
        (Container, "3", &["a=2", "b"], "a=1,5 shared=0,2-4,6-7"),
    ] {
        let mut manager = manager();
        let pod = pod(cpus, containers);
        assert_eq!(admit(&mut manager, scope, &pod), Ok(()), "{containers:?}");
        assert_eq!(shown(&manager), expected, "{containers:?}");
        // As after a restart: what the pod has is kept, and its nodes are its only hint.
        let before = manager.state().clone();
        assert_eq!(admit(&mut manager, scope, &pod), Ok(()), "{containers:?}");
        assert_eq!(*manager.state(), before, "{containers:?}");
    }
}

#[test]
fn a_container_that_shares_needs_cpus_that_others_leave() {
    for (cpus, containers, why) in [
        (
            "2",
            &["a=1", "b=1", "c"][..],
            "pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus for shared containers",
        ),
        (
            "2",
            &["sidecar:s=2", "init:i", "a=1"],
            "pod rejected, pod has shared init containers but no cpus available for them",
        ),
    ] {
        let pod = pod(cpus, containers);
        let misfit = TopologyError::new(
            "TopologyAffinityError",
            "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager",
        );
        let empty = TopologyError::new("EmptyPodSharedPoolError", why);
        for (policy, error) in
            [(TopologyPolicy::Restricted, misfit), (TopologyPolicy::BestEffort, empty)]
        {
            let mut manager = manager();
            let topology = topology(policy, TopologyScope::Pod);
            let result = topology.admit(&pod, &mut [&mut manager]).result;
            assert_eq!(result, Err(error), "{policy:?} {containers:?}");
        }
    }
}

#[test]
fn without_the_gate_pods_with_pod_level_resources_share() {
    for scope in [TopologyScope::Pod, TopologyScope::Container] {
        let mut manager = manager().with_pod_level(false);
        assert_eq!(admit(&mut manager, scope, &pod("2", &["a=1", "b"])), Ok(()));
        assert_eq!(shown(&manager), "shared=0-7");
    }
}

#[test]
fn the_cpus_of_a_pod_are_free_when_its_last_container_is_gone_or_its_request_changed() {
    let mut manager = manager();
    let first = pod("3", &["a=1", "b"]);
    assert_eq!(admit(&mut manager, TopologyScope::Pod, &first), Ok(()));
    assert!(manager.retain(|_, name| name != "a"));
    assert_eq!(shown(&manager), "b=1,5 pod=1,4-5 shared=0,2-3,6-7");
    manager.retain(|_, _| false);
    assert_eq!(shown(&manager), "shared=0-7");
    for other in [
        pod("2", &["a=1", "b"]),
        pod("3", &["a=2", "b"]),
        pod("3", &["a=1", "c"]),
        pod("3", &["a=1", "b", "c"]),
        pod("1500m", &["a=1", "b"]),
    ] {
        assert_eq!(admit(&mut manager, TopologyScope::Pod, &first), Ok(()));
        let before = shown(&manager);
        manager.release_if_changed(&first);
        assert_eq!(shown(&manager), before);
        manager.release_if_changed(&other);
        assert_eq!(shown(&manager), "shared=0-7", "{other:?}");
    }
}

#[test]
fn only_cpus_that_are_shared_with_no_container_lift_the_quota() {
    let quota = |cpus, containers: &[&str]| {
        let mut manager = manager();
        let pod = pod(cpus, containers);
        assert_eq!(admit(&mut manager, TopologyScope::Pod, &pod), Ok(()));
        let spec = pod.spec.as_ref().unwrap();
        let exclusive = spec.containers.iter();
        let exclusive: Vec<_> = exclusive.map(|c| manager.is_exclusive(&pod, c)).collect();
        (exclusive, manager.has_no_cpu_quota(&pod))
    };
    assert_eq!(quota("2", &["a=1", "b=1"]), (vec![true, true], true));
    assert_eq!(quota("2", &["a=1", "b"]), (vec![true, false], false));
    assert_eq!(quota("1500m", &["a=1"]), (vec![false], false));
}

#[test]
fn allocations_are_counted_by_where_they_come_from() {
    let mut manager = manager();
    let pod = pod("3", &["init:i", "a=1", "b"]);
    assert_eq!(admit(&mut manager, TopologyScope::Pod, &pod), Ok(()));
    let counted = manager.counters;
    assert_eq!((counted.requests, counted.errors), (1, 0));
    let allocations = counted.allocations;
    assert_eq!((allocations.by_pod, allocations.by_node), (3, 0));
    assert_eq!((allocations.pod_exclusive, allocations.pod_shared), (1, 2));
}

/// Files that the Go kubelet writes with the gate, with pods and without.
const PODS: &str = r#"{"policyName":"static","defaultCpuSet":"0-3,8","entries":{"uid":{"one":"4","two":"5-6"}},"podEntries":{"a-uid":{"cpuSet":"9-10"},"uid":{"cpuSet":"4-6"}},"checksum":1718412265}"#;
const NO_PODS: &str = r#"{"policyName":"static","defaultCpuSet":"0-3,8","checksum":3845888742}"#;

#[test]
fn the_third_version_of_the_file_is_read_and_written() {
    let state = from_checkpoint("static", PODS).unwrap();
    assert_eq!(state.pods["a-uid"], CpuSet::parse("9-10").unwrap());
    assert_eq!(state.assigned["uid"]["two"], CpuSet::parse("5-6").unwrap());
    assert_eq!(to_checkpoint("static", &state), PODS);
    let state = from_checkpoint("static", NO_PODS).unwrap();
    assert!(state.pods.is_empty());
    // The second version, which a kubelet without the gate reads.
    assert!(
        to_checkpoint("static", &state)
            .ends_with("\"defaultCpuSet\":\"0-3,8\",\"checksum\":2391417808}")
    );
    for (what, with) in [("9-10", "9-11"), ("9-10", "x"), ("1718412265", "1718412266")] {
        let error = from_checkpoint("static", &PODS.replace(what, with)).unwrap_err();
        assert!(error.starts_with("checkpoint is corrupted"), "{error}");
    }
}

#[test]
fn a_pod_of_a_file_must_have_its_own_cpus_and_those_of_its_containers() {
    for (shared, assigned, pod_cpus, error) in [
        ("0-5", "6", "5-7", "pod: u, cpuset: \"5-7\" overlaps with default cpuset \"0-5\""),
        (
            "0-4",
            "5",
            "6-7",
            "pod: u, container: a cpuset: \"5\" is not a part of its pod's \"6-7\"",
        ),
    ] {
        let file = format!(
            r#"{{"policyName":"static","defaultCpuSet":"{shared}","entries":{{"u":{{"a":"{assigned}"}}}},"podEntries":{{"u":{{"cpuSet":"{pod_cpus}"}}}}}}"#
        );
        let state = from_checkpoint("static", &file).unwrap();
        let policy = manager().policy.unwrap();
        assert_eq!(CpuManager::new(policy, state).unwrap_err(), error);
    }
}

#[test]
fn a_pod_of_a_file_that_has_no_containers_has_no_cpus() {
    for shared in ["0-1,4-7", "0-7", ""] {
        let file = format!(
            r#"{{"policyName":"static","defaultCpuSet":"{shared}","podEntries":{{"u":{{"cpuSet":"2-3"}}}}}}"#
        );
        let state = from_checkpoint("static", &file).unwrap();
        let manager = CpuManager::new(manager().policy.unwrap(), state).unwrap();
        assert_eq!(shown(&manager), "shared=0-7");
    }
}
