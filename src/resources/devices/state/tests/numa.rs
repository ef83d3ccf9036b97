//! Devices that are near to NUMA nodes.

use super::*;
use crate::model::{Pod, fixture};
use crate::resources::devices::request::Affinities;
use crate::resources::topology::{
    HintProvider as _, NumaMask, TopologyHint, TopologyManager, TopologyOptions, TopologyPolicy,
    TopologyScope,
};
use serde_json::json;

fn mask(nodes: &[u32]) -> NumaMask {
    NumaMask::of(nodes.iter().copied()).unwrap()
}

/// `a0` and `a1` are near to node 0, `b0` to node 1, and nothing is known of `x`.
fn near() -> DeviceMap {
    let nodes: [(&str, &[i64]); 4] = [("a0", &[0]), ("a1", &[0]), ("b0", &[1]), ("x", &[])];
    let device = |nodes: &[i64]| PluginDevice { healthy: true, numa_nodes: nodes.to_vec() };
    let nodes = nodes.into_iter();
    nodes.map(|(id, nodes)| (id.to_owned(), device(nodes))).collect()
}

fn state_of(devices: DeviceMap) -> DeviceManagerCache {
    let mut state = DeviceManagerCache::default();
    let id = connect(&mut state, GPU, options(false, false));
    state.set_devices(GPU, id, devices).unwrap();
    state
}

fn pod(uid: &str, amounts: &[u64]) -> Pod {
    let containers = amounts.iter().enumerate().map(|(index, amount)| {
        let limits = json!({GPU: amount.to_string()});
        json!({"name": format!("c{index}"), "resources": {"limits": limits}})
    });
    let containers = containers.collect::<Vec<_>>();
    fixture::pod(&format!("ns/{uid}/{uid}"), json!({"containers": containers}))
}

fn hints_of(state: &DeviceManagerCache, pod: &Pod) -> Vec<(NumaMask, bool)> {
    let hints = DeviceHints::new(state.clone(), mask(&[0, 1]));
    let container = &pod.spec.as_ref().unwrap().containers[0];
    let of_container = hints.container_hints(pod, container);
    if pod.spec.as_ref().unwrap().containers.len() == 1 {
        assert_eq!(of_container, hints.pod_hints(pod), "one container is the pod");
    }
    let hints = of_container[GPU].iter();
    hints.map(|hint| (hint.affinity.unwrap(), hint.preferred)).collect()
}

#[test]
fn every_set_of_nodes_with_enough_devices_is_a_hint_and_the_smallest_are_preferred() {
    let (zero, one, both) = (mask(&[0]), mask(&[1]), mask(&[0, 1]));
    let mut state = state_of(near());
    for (amount, expected) in [
        (1, vec![(zero, true), (one, true), (both, false)]),
        (2, vec![(zero, true), (both, false)]),
        (3, vec![(both, true)]),
        // Nothing is known of the fourth.
        (4, vec![]),
        (5, vec![]),
    ] {
        assert_eq!(hints_of(&state, &pod("u", &[amount])), expected, "{amount}");
    }
    // One of two is taken: two nodes would do, and one could have done.
    let first =
        PodRequest::of(&pod("first", &[1])).aligned(&Affinities::from([("c0".into(), zero)]));
    allocate(&mut state, &first).unwrap();
    assert_eq!(hints_of(&state, &pod("u", &[2])), [(both, false)]);
    // What a pod has is where it is.
    let own = hints_of(&state, &pod("first", &[1]));
    assert_eq!(own, [(zero, true), (both, false)]);
    assert_eq!(hints_of(&state, &pod("first", &[2])), []);

    let any = DeviceHints::new(with(&[("a", true)]).0, both);
    let wanted = pod("u", &[1]);
    assert_eq!(any.pod_hints(&wanted)[GPU], [TopologyHint::ANY], "no device is near to a node");
    let mut elsewhere = near();
    elsewhere.retain(|id, _| id == "b0");
    elsewhere.get_mut("b0").unwrap().numa_nodes = vec![7, -3];
    assert_eq!(hints_of(&state_of(elsewhere), &wanted), [], "the machine has no such node");
}

#[test]
fn devices_near_to_the_wanted_nodes_are_taken_first() {
    let taken = |nodes: &[u32], amount: u64| {
        let mut state = state_of(near());
        let affinities = Affinities::from([("c0".to_owned(), mask(nodes))]);
        let request = PodRequest::of(&pod("u", &[amount])).aligned(&affinities);
        allocate(&mut state, &request).unwrap();
        let own = state.allocation(&"u".into(), "c0", GPU).unwrap();
        own.ids().into_iter().cloned().collect::<Vec<_>>()
    };
    assert_eq!(taken(&[1], 1), ["b0"]);
    assert_eq!(taken(&[1], 2), ["a0", "b0"]);
    assert_eq!(taken(&[0], 2), ["a0", "a1"]);
    assert_eq!(taken(&[0], 3), ["a0", "a1", "b0"]);
    assert_eq!(taken(&[0], 4), ["a0", "a1", "b0", "x"]);
}

#[test]
fn a_plugin_chooses_among_devices_near_to_the_wanted_nodes() {
    let mut state = DeviceManagerCache::default();
    let id = connect(&mut state, GPU, options(false, true));
    state.set_devices(GPU, id, near()).unwrap();
    let mut next = |uid: &str, amount: u64| {
        let affinities = Affinities::from([("c0".to_owned(), mask(&[0]))]);
        let request = PodRequest::of(&pod(uid, &[amount])).aligned(&affinities);
        state.next(&request, None, None).unwrap()
    };
    let prefer = |available: &[&str], must_include: &[&str], size| {
        let owned = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
        AllocationStep::GetPreferred(PreferredAllocationQuery {
            plugin: id,
            available: owned(available),
            must_include: owned(must_include),
            size,
        })
    };
    assert_eq!(next("u", 1), prefer(&["a0", "a1"], &[], 1));
    assert_eq!(next("u", 3), prefer(&["b0", "x", "a0", "a1"], &["a0", "a1"], 3));
    // There is nothing to choose.
    assert!(matches!(next("u", 2), AllocationStep::Allocate(of) if of.devices == ["a0", "a1"]));
}

#[test]
fn the_containers_of_a_pod_get_nodes_that_leave_room_for_each_other() {
    let admit = |scope: &str, amounts: &[u64]| {
        let manager = TopologyManager::new(
            TopologyPolicy::SingleNumaNode,
            TopologyScope::parse(scope).unwrap(),
            TopologyOptions::default(),
            vec![(0, vec![10, 20]), (1, vec![20, 10])],
        );
        let mut hints = DeviceHints::new(state_of(near()), mask(&[0, 1]));
        let admission = manager.unwrap().admit(&pod("u", amounts), &mut [&mut hints]);
        let affinities = hints.into_affinities().into_values();
        admission.result.map(|()| affinities.collect::<Vec<_>>())
    };
    assert_eq!(admit("container", &[2, 1]), Ok(vec![mask(&[0]), mask(&[1])]));
    assert_eq!(admit("container", &[1, 2]).unwrap_err().reason, "TopologyAffinityError");
    assert_eq!(admit("pod", &[1, 1]), Ok(vec![mask(&[0]), mask(&[0])]));
    assert_eq!(admit("pod", &[2, 1]).unwrap_err().reason, "TopologyAffinityError");
}
