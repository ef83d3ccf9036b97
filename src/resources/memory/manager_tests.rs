use super::tests::{GI, policy};
use super::*;
use crate::model::fixture::{self, guaranteed};
use crate::model::{Pod, PodExt};
use crate::resources::topology::{
    HintProvider, NumaMask, TopologyError, TopologyHint, TopologyManager, TopologyOptions,
    TopologyPolicy, TopologyScope,
};
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;

/// A Guaranteed pod: names and GiB of containers; `init:` and `sidecar:` before the name.
fn pod(uid: &str, containers: &[(&str, u64)]) -> Pod {
    let resources = |gib: &u64| guaranteed("1", &format!("{gib}Gi"));
    let rows = containers.iter().map(|(name, gib)| (*name, Some(resources(gib))));
    fixture::pod(&format!("n/{uid}/{uid}"), fixture::spec(rows))
}

/// Nodes of 9 GiB (one is reserved on the first) and of 8.
pub(super) fn manager(nodes: usize) -> MemoryManager {
    let sizes: Vec<_> = (0..nodes).map(|node| (if node == 0 { 9 } else { 8 }, 0)).collect();
    MemoryManager::new(&policy(&sizes), MemoryState::default()).unwrap()
}

pub(super) fn topology(
    policy: TopologyPolicy,
    scope: TopologyScope,
    nodes: u32,
) -> TopologyManager {
    let nodes = (0..nodes).map(|node| (node, vec![10])).collect();
    TopologyManager::new(policy, scope, TopologyOptions::default(), nodes).unwrap()
}

fn admit(manager: &mut MemoryManager, pod: &Pod) -> Result<(), TopologyError> {
    TopologyManager::default().admit(pod, &mut [manager]).result
}

/// Free GiB of each node.
pub(super) fn free(manager: &MemoryManager) -> Vec<u64> {
    let nodes = manager.state().nodes.values();
    nodes.map(|node| node.memory_map["memory"].free / GI).collect()
}

#[test]
fn memory_comes_from_as_few_nodes_as_possible() {
    let mut manager = manager(2);
    admit(&mut manager, &pod("one", &[("a", 3)])).unwrap();
    assert_eq!(manager.nodes("one", "a").as_deref(), Some("0"));
    admit(&mut manager, &pod("two", &[("a", 6)])).unwrap();
    assert_eq!(manager.nodes("two", "a").as_deref(), Some("1"));
    assert_eq!(free(&manager), [5, 2]);
    let error = admit(&mut manager, &pod("three", &[("a", 6)])).unwrap_err();
    assert_eq!(error.reason, "UnexpectedAdmissionError");
    assert_eq!(
        error.message,
        "Allocate failed due to [memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available, which is unexpected",
        "nodes that are used alone form no group"
    );
    assert!(manager.retain(|pod, _| pod == "none"));
    assert_eq!(free(&manager), [8, 8]);
    admit(&mut manager, &pod("three", &[("a", 10)])).unwrap();
    assert_eq!(manager.nodes("three", "a").as_deref(), Some("0,1"));
    assert_eq!(free(&manager), [0, 6]);
    admit(&mut manager, &pod("four", &[("a", 1)])).unwrap();
    assert_eq!(manager.nodes("four", "a").as_deref(), Some("0,1"));
    admit(&mut manager, &pod("five", &[("a", 6)])).unwrap_err();
    assert_eq!(manager.counters.requests, 6);
    assert_eq!(manager.counters.errors, 2);
}

#[test]
fn only_guaranteed_pods_without_resources_of_their_own_are_managed() {
    let mut manager = manager(1);
    let before = manager.state().clone();
    let mut burstable = pod("u", &[("a", 1)]);
    let spec = burstable.spec.as_mut().unwrap();
    spec.containers[0].resources.as_mut().unwrap().limits = None;
    let mut pod_level = pod("u", &[("a", 1)]);
    let spec = pod_level.spec.as_mut().unwrap();
    spec.resources = spec.containers[0].resources.clone();
    for pod in [burstable, pod_level] {
        admit(&mut manager, &pod).unwrap();
        assert!(manager.pod_hints(&pod).is_empty());
        assert_eq!(*manager.state(), before);
    }
    assert_eq!(manager.nodes("u", "a"), None);
    let mut off = MemoryManager::default();
    admit(&mut off, &pod("u", &[("a", 1)])).unwrap();
    assert_eq!(off.state(), &MemoryState::default());
}

#[test]
fn containers_use_the_memory_of_init_containers_again() {
    let cases: &[(&[(&str, u64)], u64)] = &[
        (&[("init:i", 6), ("a", 2)], 2),
        (&[("init:i", 2), ("a", 6)], 2),
        (&[("init:i", 3), ("init:j", 5), ("a", 4), ("b", 1)], 3),
        (&[("sidecar:s", 2), ("init:i", 5), ("a", 5)], 1),
    ];
    for (containers, left) in cases {
        let mut manager = manager(1);
        let pod = pod("u", containers);
        admit(&mut manager, &pod).unwrap();
        assert_eq!(free(&manager), [*left], "{containers:?}");
        let before = manager.clone();
        admit(&mut manager, &pod).unwrap();
        assert_eq!(manager.state(), before.state());
        assert!(manager.release_ended_init_containers(&pod, "a"));
        let running = containers.iter().filter(|(name, _)| !name.starts_with("init"));
        assert_eq!(free(&manager), [8 - running.map(|(_, gib)| gib).sum::<u64>()]);
        let before = manager.clone();
        admit(&mut manager, &pod).unwrap();
        assert_eq!(manager.state(), before.state(), "init containers have ended");
        manager.retain(|_, _| false);
        assert_eq!(free(&manager), [8]);
    }
}

#[test]
fn another_pod_of_the_same_uid_gets_its_own_memory() {
    let mut manager = manager(1);
    let first = pod("u", &[("init:i", 3), ("a", 2)]);
    admit(&mut manager, &first).unwrap();
    manager.release_if_changed(&first);
    manager.release_if_changed(&pod("v", &[("a", 1)]));
    assert_eq!(free(&manager), [5]);
    for other in [pod("u", &[("a", 3)]), pod("u", &[("b", 2)])] {
        let mut manager = manager.clone();
        manager.release_if_changed(&other);
        assert_eq!(free(&manager), [8]);
    }
}

#[test]
fn an_affinity_that_is_too_small_is_extended() {
    let mut manager = manager(2);
    let pod = pod("u", &[("a", 10)]);
    let one = |preferred| TopologyHint::new(NumaMask::of([1]).unwrap(), preferred);
    manager.allocate(&pod, &pod.containers()[0], one(true)).unwrap();
    assert_eq!(manager.nodes("u", "a").as_deref(), Some("0,1"));
    manager.retain(|_, _| false);
    let small = super::manager_tests::pod("v", &[("a", 7), ("b", 2)]);
    let containers = small.containers();
    manager.allocate(&small, &containers[0], one(true)).unwrap();
    let error = manager.allocate(&small, &containers[1], one(true)).unwrap_err();
    assert!(
        error.message.contains("failed to find NUMA nodes to extend the current topology hint")
    );
}

#[test]
fn hints_are_given_again_for_what_is_allocated() {
    let mut manager = manager(2);
    let pod = pod("u", &[("a", 3)]);
    let first = manager.container_hints(&pod, &pod.containers()[0]);
    let expected = [("{0}", true), ("{1}", true), ("{0,1}", false)];
    let shown: Vec<_> = first["memory"]
        .iter()
        .map(|hint| (hint.affinity.unwrap().to_string(), hint.preferred))
        .collect();
    assert_eq!(shown, expected.map(|(mask, preferred)| (mask.to_owned(), preferred)));
    let topology = topology(TopologyPolicy::SingleNumaNode, TopologyScope::Pod, 2);
    assert_eq!(topology.admit(&pod, &mut [&mut manager]).result, Ok(()));
    let again = manager.pod_hints(&pod);
    assert_eq!(again["memory"], [TopologyHint::new(NumaMask::of([0]).unwrap(), true)]);
    let changed = super::manager_tests::pod("u", &[("a", 4)]);
    assert!(manager.pod_hints(&changed).is_empty());
    let large = super::manager_tests::pod("v", &[("a", 9)]);
    let rejected = topology.admit(&large, &mut [&mut manager]);
    assert!(rejected.result.is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Nothing is given twice and nothing is lost, whatever comes and goes.
    #[test]
    fn memory_is_free_or_of_one_pod(
        steps in prop::collection::vec((0..4_u8, 0..6_u8, prop::collection::vec((0..3_usize, 0..12_u64), 1..4)), 1..40),
        scope in any::<bool>(),
    ) {
        let scope = if scope { TopologyScope::Pod } else { TopologyScope::Container };
        let topology = topology(TopologyPolicy::BestEffort, scope, 3).with_pod_level(true);
        let policy = policy(&[(9, 0), (8, 0), (8, 0)]);
        let manager = MemoryManager::new(&policy, MemoryState::default()).unwrap();
        let mut manager = manager.with_pod_level(true);
        let mut pods = BTreeMap::<u8, Pod>::new();
        for (step, uid, list) in steps {
            let name = format!("pod{uid}");
            match step {
                0 | 1 => {
                    let named: Vec<_> = list.iter().enumerate()
                        .map(|(index, (kind, gib))| (format!("{}c{index}", ["init:", "sidecar:", ""][*kind]), *gib))
                        .chain([("main".to_owned(), 1)])
                        .collect();
                    let named: Vec<_> = named.iter().map(|(name, gib)| (name.as_str(), *gib)).collect();
                    let total = 2 + list.iter().map(|(_, gib)| gib).sum::<u64>();
                    let new = || {
                        let mut pod = pod(&name, &named);
                        if uid.is_multiple_of(2) {
                            let amounts = json!({"cpu": "1", "memory": format!("{total}Gi")});
                            let resources = json!({"requests": amounts, "limits": amounts});
                            let spec = pod.spec.as_mut().unwrap();
                            spec.resources = Some(serde_json::from_value(resources).unwrap());
                        }
                        pod
                    };
                    let pod = pods.entry(uid).or_insert_with(new).clone();
                    let before = manager.clone();
                    if topology.admit(&pod, &mut [&mut manager]).result.is_err() {
                        manager = before;
                        if !manager.state().assigned.contains_key(&name) {
                            pods.remove(&uid);
                        }
                    }
                }
                2 => {
                    pods.remove(&uid);
                    manager.retain(|pod, _| pod != name);
                }
                _ => {
                    if let Some(pod) = pods.get(&uid) {
                        manager.release_ended_init_containers(pod, "main");
                    }
                }
            }
            let text = to_checkpoint("Static", manager.state());
            let state = from_checkpoint("Static", &text).unwrap();
            prop_assert_eq!(&state, manager.state());
            let assigned = manager.state().assigned.iter();
            let assigned = assigned.filter(|(pod, _)| !manager.state().pods.contains_key(*pod));
            let blocks = assigned.flat_map(|(_, containers)| containers.values()).flatten();
            let sum: u64 = blocks.chain(manager.state().pods.values().flatten()).map(|block| block.size).sum();
            let mut reserved = 0;
            for node in manager.state().nodes.values() {
                let table = node.memory_map["memory"];
                prop_assert_eq!(table.free + table.reserved, table.allocatable);
                reserved += table.reserved;
            }
            prop_assert_eq!(sum, reserved);
            if manager.state().assigned.is_empty() {
                prop_assert!(manager.state().nodes.iter().all(|(id, node)| node.cells == [*id] && node.number_of_assignments == 0));
            }
        }
    }
}
