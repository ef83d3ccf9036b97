use super::*;
use crate::model::{Pod, fixture};
use k8s_openapi::api::core::v1::Container;
use std::collections::BTreeMap;

fn pod() -> Pod {
    let containers = ["init:init", "one", "two"].map(|name| (name, None));
    fixture::pod("n/p/u", fixture::spec(containers))
}

fn node(node: u32, preferred: bool) -> TopologyHint {
    TopologyHint::new(NumaMask::of([node]).unwrap(), preferred)
}

/// Prefers one node, and notes what it is to allocate.
struct Resource {
    hint: TopologyHint,
    fails_at: &'static str,
    allocated: Vec<(String, TopologyHint)>,
}

impl HintProvider for Resource {
    fn container_hints(&self, _: &Pod, _: &Container) -> ResourceHints {
        ResourceHints::from([("r".to_owned(), vec![self.hint])])
    }

    fn pod_hints(&self, pod: &Pod) -> ResourceHints {
        self.container_hints(pod, &Container::default())
    }

    fn allocate(
        &mut self,
        _: &Pod,
        container: &Container,
        affinity: TopologyHint,
    ) -> Result<(), TopologyError> {
        if container.name == self.fails_at {
            return Err(TopologyError::unexpected("not enough"));
        }
        self.allocated.push((container.name.clone(), affinity));
        Ok(())
    }
}

fn resource(hint: TopologyHint, fails_at: &'static str) -> Resource {
    Resource { hint, fails_at, allocated: Vec::new() }
}

fn manager(policy: &str, scope: &str) -> TopologyManager {
    TopologyManager::new(
        TopologyPolicy::parse(policy).unwrap(),
        TopologyScope::parse(scope).unwrap(),
        TopologyOptions::default(),
        vec![(0, vec![10, 20]), (1, vec![20, 10])],
    )
    .unwrap()
}

#[test]
fn each_container_is_allocated_with_the_affinity_that_its_hints_merge_to() {
    for scope in ["container", "pod"] {
        let (mut cpu, mut device) = (resource(node(1, true), ""), resource(TopologyHint::ANY, ""));
        let admission = manager("restricted", scope).admit(&pod(), &mut [&mut cpu, &mut device]);
        assert_eq!(admission.result, Ok(()));
        assert_eq!((admission.aligned, admission.misaligned), (0, false));
        let expected = ["init", "one", "two"].map(|name| (name.to_owned(), node(1, true)));
        assert_eq!(cpu.allocated, expected);
        assert_eq!(device.allocated, expected);
    }
}

#[test]
fn without_a_policy_providers_allocate_as_they_like() {
    let mut cpu = resource(node(1, false), "");
    let admission = manager("none", "pod").admit(&pod(), &mut [&mut cpu]);
    assert_eq!(admission.result, Ok(()));
    assert!(cpu.allocated.iter().all(|(_, hint)| *hint == TopologyHint::default()));
    assert_eq!(cpu.allocated.len(), 3);
}

#[test]
fn strict_policies_reject_what_is_not_preferred() {
    let cases = [
        ("best-effort", true, 0, false),
        ("restricted", false, 0, false),
        ("single-numa-node", false, 0, true),
    ];
    for (policy, admitted, aligned, misaligned) in cases {
        for scope in ["container", "pod"] {
            let mut cpu = resource(node(1, false), "");
            let admission = manager(policy, scope).admit(&pod(), &mut [&mut cpu]);
            assert_eq!(admission.result.is_ok(), admitted, "{policy} {scope}");
            assert_eq!((admission.aligned, admission.misaligned), (aligned, misaligned));
            if let Err(error) = admission.result {
                assert_eq!(error.reason, "TopologyAffinityError");
                assert_eq!(error.message, "Resources cannot be allocated with Topology locality");
            }
        }
    }
}

#[test]
fn single_numa_node_counts_what_it_aligned() {
    for (scope, aligned) in [("container", 3), ("pod", 1)] {
        let mut cpu = resource(node(0, true), "");
        let admission = manager("single-numa-node", scope).admit(&pod(), &mut [&mut cpu]);
        assert_eq!(admission.aligned, aligned);
    }
}

#[test]
fn the_first_container_that_cannot_be_allocated_ends_the_admission() {
    let mut cpu = resource(node(0, true), "one");
    let admission = manager("best-effort", "container").admit(&pod(), &mut [&mut cpu]);
    let error = admission.result.unwrap_err();
    assert_eq!(error.reason, "UnexpectedAdmissionError");
    assert_eq!(error.message, "Allocate failed due to not enough, which is unexpected");
    assert_eq!(cpu.allocated, [("init".to_owned(), node(0, true))]);
}

#[test]
fn too_many_nodes_and_bad_options_are_errors() {
    let nodes = |count: u32| (0..count).map(|node| (node, Vec::new())).collect();
    let new = |policy, options, nodes| {
        TopologyManager::new(policy, TopologyScope::Pod, options, nodes).map(drop)
    };
    let options = TopologyOptions::default();
    assert_eq!(new(TopologyPolicy::None, options, nodes(9)), Ok(()));
    assert_eq!(
        new(TopologyPolicy::BestEffort, options, nodes(9)).unwrap_err(),
        "unsupported on machines with more than 8 NUMA Nodes"
    );
    let parse = |name: &str, value: &str| {
        TopologyOptions::parse(&BTreeMap::from([(name.to_owned(), value.to_owned())]))
    };
    let more = parse("max-allowable-numa-nodes", "9").unwrap();
    assert_eq!(new(TopologyPolicy::BestEffort, more, nodes(9)), Ok(()));
    let closest = parse("prefer-closest-numa-nodes", "T").unwrap();
    assert!(new(TopologyPolicy::Restricted, closest, nodes(2)).is_err());
    assert!(new(TopologyPolicy::Restricted, more, vec![(64, vec![10])]).is_err());
    for (name, value, error) in [
        ("x", "1", "unknown Topology Manager Policy option: \"x\""),
        (
            "prefer-closest-numa-nodes",
            "yes",
            "bad value for option \"prefer-closest-numa-nodes\": strconv.ParseBool: parsing \"yes\": invalid syntax",
        ),
        (
            "max-allowable-numa-nodes",
            "7",
            "the minimum value of \"max-allowable-numa-nodes\" should not be less than 8",
        ),
        (
            "max-allowable-numa-nodes",
            "many",
            "unable to convert policy option to integer \"max-allowable-numa-nodes\": strconv.Atoi: parsing \"many\": invalid syntax",
        ),
    ] {
        assert_eq!(parse(name, value).unwrap_err(), error);
    }
}
