use super::manager_tests::{free, manager, topology};
use super::tests::{GI, policy};
use super::*;
use crate::model::Pod;
use crate::model::fixture::{self, guaranteed};
use crate::resources::topology::{
    HintProvider as _, NumaMask, TopologyError, TopologyPolicy, TopologyScope,
};

/// A Guaranteed pod with so many GiB. Containers with their GiB, zero for those that share; `init:` and `sidecar:`
/// before the name.
fn pod(gib: u64, containers: &[(&str, u64)]) -> Pod {
    let rows = containers
        .iter()
        .map(|(name, gib)| (*name, (*gib > 0).then(|| guaranteed("1", &format!("{gib}Gi")))));
    let mut spec = fixture::spec(rows);
    spec["resources"] = guaranteed("8", &format!("{gib}Gi"));
    fixture::pod("n/p/u", spec)
}

fn admit(
    manager: &mut MemoryManager,
    scope: TopologyScope,
    pod: &Pod,
) -> Result<(), TopologyError> {
    let topology = topology(TopologyPolicy::Restricted, scope, 2).with_pod_level(true);
    topology.admit(pod, &mut [manager]).result
}

/// `container=GiB@nodes` of the pod.
fn shown(manager: &MemoryManager) -> String {
    let containers = manager.state().assigned.get("u").into_iter().flatten();
    let containers = containers.map(|(name, blocks)| {
        let sum: u64 = blocks.iter().map(|block| block.size >> 30).sum();
        let nodes = manager.nodes("u", name).unwrap_or_default();
        format!("{name}={sum}@{nodes}")
    });
    containers.collect::<Vec<_>>().join(" ")
}

#[test]
fn the_containers_of_a_pod_divide_its_memory_if_whole_pods_are_aligned() {
    use TopologyScope::{Container, Pod};
    for (scope, gib, containers, expected, left) in [
        (Pod, 4, &[("a", 1), ("b", 0)][..], "a=1@0 b=3@0", [4, 8]),
        (Pod, 4, &[("a", 0), ("b", 0)], "a=4@0 b=4@0", [4, 8]),
        (
            Pod,
            6,
            &[("init:i", 0), ("sidecar:s", 2), ("init:j", 0), ("init:k", 3), ("a", 1), ("b", 0)],
            "a=1@0 b=3@0 i=6@0 j=4@0 k=3@0 s=2@0",
            [2, 8],
        ),
        // More than a node has.
        (Pod, 12, &[("a", 1), ("b", 0)], "a=1@0,1 b=11@0,1", [0, 4]),
        // Where containers are aligned, only those with memory of their own have some.
        (Container, 4, &[("a", 1), ("b", 0)], "a=1@0", [7, 8]),
    ] {
        let mut manager = manager(2).with_pod_level(true);
        let pod = pod(gib, containers);
        assert_eq!(admit(&mut manager, scope, &pod), Ok(()), "{containers:?}");
        assert_eq!(shown(&manager), expected, "{containers:?}");
        assert_eq!(free(&manager), left, "{containers:?}");
        // As after a restart, and when the next container is created.
        let before = manager.state().clone();
        assert_eq!(admit(&mut manager, scope, &pod), Ok(()), "{containers:?}");
        assert!(!manager.release_ended_init_containers(&pod, "a"), "{containers:?}");
        manager.release_if_changed(&pod);
        assert_eq!(*manager.state(), before, "{containers:?}");
        manager.retain(|_, name| name == "a");
        manager.retain(|_, _| false);
        assert_eq!(free(&manager), [8, 8], "{containers:?}");
    }
}

#[test]
fn a_container_that_shares_needs_memory_that_others_leave() {
    let why = "pod rejected, sum of exclusive container memory requests equals pod budget, leaving no memory for shared containers";
    let misfit = TopologyError::new(
        "TopologyAffinityError",
        "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager",
    );
    for (policy, error) in [
        (TopologyPolicy::Restricted, misfit),
        (TopologyPolicy::BestEffort, TopologyError::new("EmptyPodSharedPoolError", why)),
    ] {
        let mut manager = manager(2).with_pod_level(true);
        let topology = topology(policy, TopologyScope::Pod, 2).with_pod_level(true);
        let pod = pod(2, &[("a", 2), ("b", 0)]);
        let result = topology.admit(&pod, &mut [&mut manager]).result;
        assert_eq!(result, Err(error), "{policy:?}");
    }
}

#[test]
fn memory_of_a_pod_is_free_when_another_one_has_its_uid() {
    let mut manager = manager(2).with_pod_level(true);
    let first = pod(4, &[("a", 1), ("b", 0)]);
    for other in [
        pod(3, &[("a", 1), ("b", 0)]),
        pod(4, &[("a", 2), ("b", 0)]),
        pod(4, &[("a", 1), ("c", 0)]),
        pod(4, &[("a", 1), ("b", 0), ("c", 0)]),
    ] {
        assert_eq!(admit(&mut manager, TopologyScope::Pod, &first), Ok(()));
        manager.release_if_changed(&first);
        assert_eq!(free(&manager), [4, 8]);
        manager.release_if_changed(&other);
        assert_eq!((shown(&manager), free(&manager)), (String::new(), vec![8, 8]));
    }
}

#[test]
fn memory_that_containers_have_is_kept_when_whole_pods_are_aligned_from_then_on() {
    let mut manager = manager(2).with_pod_level(true);
    let pod = pod(6, &[("a", 5), ("b", 0)]);
    assert_eq!(admit(&mut manager, TopologyScope::Container, &pod), Ok(()));
    let before = manager.state().clone();
    assert!(manager.pod_hints(&pod).is_empty());
    assert_eq!(admit(&mut manager, TopologyScope::Pod, &pod), Ok(()));
    assert_eq!(*manager.state(), before);
}

#[test]
fn a_pod_of_a_file_that_has_no_containers_has_no_memory() {
    let mut manager = manager(2).with_pod_level(true);
    let other = pod(4, &[("a", 1), ("b", 0)]);
    let mut state = manager.state().clone();
    let nodes = NumaMask::of([0]).unwrap();
    let bytes = [("memory".to_owned(), 4 * GI)].into();
    state.pods.insert("gone".to_owned(), pod_level::blocks(&bytes, nodes));
    manager = MemoryManager::new(&policy(&[(9, 0), (8, 0)]), state).unwrap().with_pod_level(true);
    assert_eq!(admit(&mut manager, TopologyScope::Pod, &other), Ok(()));
    manager.retain(|pod, _| pod != "x");
    assert_eq!(free(&manager), [4, 8]);
}

#[test]
fn without_the_gate_pods_with_pod_level_resources_are_not_aligned() {
    for scope in [TopologyScope::Pod, TopologyScope::Container] {
        let mut manager = manager(2);
        let pod = pod(2, &[("a", 1), ("b", 0)]);
        assert_eq!(admit(&mut manager, scope, &pod), Ok(()));
        assert_eq!(shown(&manager), "");
    }
}

/// Files that the Go kubelet writes with the gate, with pods and without.
const PODS: &str = r#"{"policyName":"Static","machineState":{"0":{"numberOfAssignments":1,"memoryMap":{"memory":{"total":10,"systemReserved":1,"allocatable":9,"reserved":4,"free":5}},"cells":[0]}},"entries":{"uid":{"c":[{"numaAffinity":[0],"type":"memory","size":3}],"d":[]}},"podEntries":{"uid":{"memoryBlocks":[{"numaAffinity":[0],"type":"memory","size":4}]}},"checksum":3194949559}"#;
const NO_PODS: &str = r#"{"policyName":"Static","machineState":{},"checksum":3708929156}"#;

#[test]
fn the_second_version_of_the_file_is_read_and_written() {
    let state = from_checkpoint("Static", PODS).unwrap();
    assert_eq!(state.pods["uid"][0].size, 4);
    assert_eq!(to_checkpoint("Static", &state), PODS);
    let state = from_checkpoint("Static", NO_PODS).unwrap();
    assert_eq!(state, MemoryState::default());
    let damaged = PODS.replace("\"size\":4", "\"size\":5");
    assert_eq!(from_checkpoint("Static", &damaged), Err("checkpoint is corrupted".to_owned()));
}
