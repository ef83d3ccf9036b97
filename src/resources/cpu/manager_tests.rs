use super::take_tests::machine;
use super::*;
use crate::model::fixture::{self, guaranteed};
use crate::model::{Pod, PodExt};
use crate::resources::topology::{
    HintProvider, TopologyError, TopologyHint, TopologyManager, TopologyOptions, TopologyPolicy,
    TopologyScope,
};
use proptest::prelude::*;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// A Guaranteed pod: names and CPUs of containers; `init:` and `sidecar:` before the name.
fn pod(uid: &str, containers: &[(&str, &str)]) -> Pod {
    let rows = containers.iter().map(|(name, cpu)| (*name, Some(guaranteed(cpu, "1Mi"))));
    fixture::pod(&format!("n/{uid}/{uid}"), fixture::spec(rows))
}

pub(super) fn manager_on(numbers: [u32; 5], options: &[&str]) -> CpuManager {
    let options = options.iter().map(|name| ((*name).to_owned(), "true".to_owned()));
    let gates = OptionGates { alpha: true, beta: true };
    let policy = StaticCpuPolicy::new(
        CpuTopology::new(&machine(numbers, false)),
        CpuOptions::parse(&options.collect(), gates).unwrap(),
        &ReservedCpus { milli_cpu: 1000, ..ReservedCpus::default() },
        TopologyPolicy::None,
    );
    CpuManager::new(policy.unwrap(), CpuState::default()).unwrap()
}

/// One socket with four cores of two threads.
fn manager(options: &[&str]) -> CpuManager {
    manager_on([1, 1, 4, 2, 0], options)
}

fn admit(manager: &mut CpuManager, pod: &Pod) -> Result<(), TopologyError> {
    TopologyManager::default().admit(pod, &mut [manager]).result
}

/// `container=cpus` of a pod, then the shared pool.
#[track_caller]
fn assert_cpus(manager: &CpuManager, uid: &str, expected: &str) {
    let containers = manager.state().assigned.get(uid).cloned().unwrap_or_default();
    let mut list: Vec<_> = containers.iter().map(|(name, cpus)| format!("{name}={cpus}")).collect();
    list.push(format!("shared={}", manager.state().shared));
    assert_eq!(list.join(" "), expected);
}

#[test]
fn whole_cpus_of_guaranteed_pods_are_exclusive() {
    let mut manager = manager(&[]);
    let one = pod("one", &[("a", "1"), ("b", "2"), ("c", "1500m")]);
    admit(&mut manager, &one).unwrap();
    assert_cpus(&manager, "one", "a=4 b=1,5 shared=0,2-3,6-7");
    assert_eq!(manager.cpus("one", "c").unwrap().to_string(), "0,2-3,6-7");
    assert!(
        manager.has_no_cpu_quota(&one) && !manager.has_no_cpu_quota(&pod("two", &[("a", "1")]))
    );
    assert_eq!(manager.exclusive_by_node(), BTreeMap::from([(0, 3)]));
    assert_eq!(manager.available().to_string(), "2-3,6-7");
    let again = manager.state().clone();
    admit(&mut manager, &one).unwrap();
    assert_eq!(*manager.state(), again, "an admitted pod keeps its CPUs");

    let mut burstable = pod("two", &[("a", "1")]);
    let spec = burstable.spec.as_mut().unwrap();
    spec.containers[0].resources.as_mut().unwrap().limits = None;
    let mut pod_level = pod("three", &[("a", "1")]);
    let spec = pod_level.spec.as_mut().unwrap();
    spec.resources = spec.containers[0].resources.clone();
    for pod in [burstable, pod_level] {
        admit(&mut manager, &pod).unwrap();
        assert_eq!(*manager.state(), again);
    }
    assert!(manager.retain(|pod, _| pod != "one"));
    assert_cpus(&manager, "one", "shared=0-7");
    assert!(!manager.retain(|_, _| false));
}

#[test]
fn containers_use_the_cpus_of_init_containers_again() {
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[("init:i", "4"), ("a", "2")], "a=1,5 i=1-2,5-6 shared=0,3-4,7"),
        (
            &[("init:i", "2"), ("init:j", "4"), ("a", "4")],
            "a=1-2,5-6 i=1,5 j=1-2,5-6 shared=0,3-4,7",
        ),
        (&[("sidecar:s", "2"), ("init:i", "2"), ("a", "2")], "a=2,6 i=2,6 s=1,5 shared=0,3-4,7"),
        (&[("init:i", "2"), ("sidecar:s", "1"), ("a", "1")], "a=1 i=1,5 s=4 shared=0,2-3,6-7"),
    ];
    for (containers, expected) in cases {
        let mut manager = manager(&[]);
        admit(&mut manager, &pod("u", containers)).unwrap();
        assert_cpus(&manager, "u", expected);
        manager.retain(|_, _| false);
        assert_cpus(&manager, "u", "shared=0-7");
    }
}

#[test]
fn too_few_cpus_are_an_error() {
    let mut manager = manager(&[]);
    let error = admit(&mut manager, &pod("u", &[("a", "8")])).unwrap_err();
    assert_eq!(error.reason, "UnexpectedAdmissionError");
    assert_eq!(
        error.message,
        "Allocate failed due to not enough cpus available to satisfy request: requested=8, available=7, which is unexpected"
    );
    assert_eq!((manager.counters.requests, manager.counters.errors), (1, 1));
}

#[test]
fn another_pod_of_the_same_uid_gets_its_own_cpus() {
    let mut manager = manager(&[]);
    let first = pod("u", &[("init:i", "2"), ("a", "2")]);
    admit(&mut manager, &first).unwrap();
    let before = manager.state().clone();
    manager.release_if_changed(&first);
    assert_eq!(*manager.state(), before);
    for other in [pod("u", &[("init:i", "2"), ("a", "3")]), pod("u", &[("a", "2")])] {
        let mut manager = manager.clone();
        manager.release_if_changed(&pod("v", &[("a", "1")]));
        assert_eq!(*manager.state(), before);
        manager.release_if_changed(&other);
        assert_cpus(&manager, "u", "shared=0-7");
    }
}

#[test]
fn whole_cores_are_given_or_nothing() {
    let mut manager = manager(&["full-pcpus-only"]);
    let error = admit(&mut manager, &pod("u", &[("a", "3")])).unwrap_err();
    assert_eq!(error.reason, "SMTAlignmentError");
    assert_eq!(
        error.message,
        "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"
    );
    admit(&mut manager, &pod("u", &[("a", "4")])).unwrap();
    assert_cpus(&manager, "u", "a=1-2,5-6 shared=0,3-4,7");
    let error = admit(&mut manager, &pod("v", &[("a", "4")])).unwrap_err();
    assert_eq!(
        error.message,
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 2, requested CPUs = 4, CPUs per core = 2"
    );
    admit(&mut manager, &pod("v", &[("a", "2")])).unwrap();
    // Nothing is left, and what has its CPUs keeps them.
    admit(&mut manager, &pod("u", &[("a", "4")])).unwrap();
    assert_eq!((manager.counters.aligned_physical, manager.counters.misaligned_physical), (3, 2));
}

#[test]
fn hints_name_every_set_of_nodes_with_enough_cpus() {
    let hints = |manager: &CpuManager, pod: &Pod| {
        let hints = manager.container_hints(pod, &pod.containers()[0]);
        let list = hints.get("cpu").map(|list| {
            list.iter()
                .map(|hint| {
                    format!("{}{}", hint.affinity.unwrap(), if hint.preferred { "+" } else { "-" })
                })
                .collect::<Vec<_>>()
                .join(" ")
        });
        assert_eq!(manager.pod_hints(pod), hints);
        list
    };
    // Two sockets, each with two nodes of two cores without threads.
    let mut manager = manager_on([2, 4, 8, 1, 0], &[]);
    let of = |cpus| pod("u", &[("a", cpus)]);
    assert_eq!(hints(&manager, &of("500m")), None);
    assert_eq!(
        hints(&manager, &of("2")).unwrap(),
        "{1}+ {2}+ {3}+ {0,1}- {0,2}- {0,3}- {1,2}- {1,3}- {2,3}- {0,1,2}- {0,1,3}- {0,2,3}- {1,2,3}- {0,1,2,3}-"
    );
    assert_eq!(hints(&manager, &of("7")).unwrap(), "{0,1,2,3}+");
    assert_eq!(hints(&manager, &of("8")).unwrap(), "");
    admit(&mut manager, &of("2")).unwrap();
    assert_cpus(&manager, "u", "a=2-3 shared=0-1,4-7");
    assert!(hints(&manager, &of("2")).unwrap().starts_with("{1}+ {0,1}-"));
    assert_eq!(hints(&manager, &of("3")).unwrap(), "", "it has two");

    let by_socket = manager_on([2, 4, 8, 1, 0], &["align-by-socket"]);
    assert!(hints(&by_socket, &of("2")).unwrap().contains("{0,1}+ {0,2}- "));
}

#[test]
fn cpus_come_from_the_nodes_of_the_affinity_first() {
    let numa =
        |node| TopologyHint::new(crate::resources::topology::NumaMask::of([node]).unwrap(), true);
    let allocate = |options: &[&str], cpus| {
        let mut manager = manager_on([2, 4, 8, 1, 0], options);
        let pod = pod("u", &[("a", cpus)]);
        manager.allocate(&pod, &pod.containers()[0], numa(3)).unwrap();
        manager.exclusive("u", "a").unwrap().to_string()
    };
    assert_eq!(allocate(&[], "1"), "6");
    assert_eq!(allocate(&[], "3"), "4,6-7");
    assert_eq!(allocate(&["align-by-socket"], "3"), "4-6");
}

#[test]
fn strictly_reserved_cpus_are_not_shared() {
    let mut manager = manager(&["strict-cpu-reservation"]);
    assert_eq!(manager.state().shared.to_string(), "1-7");
    admit(&mut manager, &pod("u", &[("a", "7")])).unwrap();
    assert_eq!(manager.cpus("u", "b"), None, "an empty set is none for the runtime");
}

#[derive(Clone, Debug)]
enum Step {
    Admit(u8, Vec<(u8, u8)>),
    Remove(u8),
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let containers = prop::collection::vec((0..3_u8, 0..5_u8), 1..4);
    let step = prop_oneof![
        4 => (0..6_u8, containers).prop_map(|(pod, list)| Step::Admit(pod, list)),
        2 => (0..6_u8).prop_map(Step::Remove),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..40)
}

fn generated(uid: u8, list: &[(u8, u8)]) -> Pod {
    let containers: Vec<_> = list
        .iter()
        .enumerate()
        .map(|(index, (kind, cpus))| {
            let kind = ["init:", "sidecar:", ""][usize::from(*kind)];
            let cpu = if *cpus == 0 { "500m".to_owned() } else { cpus.to_string() };
            (format!("{kind}c{index}"), cpu)
        })
        .chain([("main".to_owned(), "1".to_owned())])
        .collect();
    let containers: Vec<_> = containers.iter().map(|(n, c)| (n.as_str(), c.as_str())).collect();
    let mut pod = pod(&format!("pod{uid}"), &containers);
    if uid.is_multiple_of(2) {
        let spare = u8::from(uid.is_multiple_of(4));
        let total = list.iter().map(|(_, cpus)| cpus).sum::<u8>() + 1 + spare;
        let amounts = json!({"cpu": total.to_string(), "memory": "1Gi"});
        let resources = json!({"requests": amounts, "limits": amounts});
        let spec = pod.spec.as_mut().unwrap();
        spec.resources = Some(serde_json::from_value(resources).unwrap());
    }
    pod
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Nothing is given twice and nothing is lost, whatever comes and goes.
    #[test]
    fn every_cpu_is_shared_or_of_one_pod(steps in steps(), scope in any::<bool>(), restricted in any::<bool>()) {
        let scope = if scope { TopologyScope::Pod } else { TopologyScope::Container };
        let policy = if restricted { TopologyPolicy::Restricted } else { TopologyPolicy::BestEffort };
        let nodes = (0..2).map(|node| (node, vec![10, 20])).collect();
        let topology = TopologyManager::new(policy, scope, TopologyOptions::default(), nodes).unwrap();
        let topology = topology.with_pod_level(true);
        let mut manager = manager_on([2, 2, 8, 2, 0], &[]).with_pod_level(true);
        let all = manager.state().shared.clone();
        let mut pods = BTreeMap::new();
        for step in steps {
            match step {
                Step::Admit(uid, list) => {
                    let pod = pods.entry(uid).or_insert_with(|| generated(uid, &list)).clone();
                    let before = manager.clone();
                    let held = manager.state().assigned.get(pod.uid().as_str()).cloned();
                    if topology.admit(&pod, &mut [&mut manager]).result.is_err() {
                        manager = before;
                        if held.is_none() {
                            pods.remove(&uid);
                        }
                    } else if let Some(held) = held {
                        prop_assert_eq!(manager.state().assigned.get(pod.uid().as_str()), Some(&held));
                    }
                }
                Step::Remove(uid) => {
                    let gone = format!("pod{uid}");
                    pods.remove(&uid);
                    manager.retain(|pod, _| pod != gone);
                }
                Step::Restart => {
                    let text = to_checkpoint("static", manager.state());
                    let state = from_checkpoint("static", &text).unwrap();
                    prop_assert_eq!(&state, manager.state());
                    manager = CpuManager::new(manager.policy.clone().unwrap(), state).unwrap();
                    manager = manager.with_pod_level(true);
                }
            }
            let mut owners = BTreeMap::<u32, BTreeSet<String>>::new();
            for cpu in manager.state().shared.iter() {
                owners.entry(cpu).or_default().insert("shared".to_owned());
            }
            for (pod, containers) in &manager.state().assigned {
                for cpu in containers.values().flat_map(CpuSet::iter) {
                    owners.entry(cpu).or_default().insert(pod.clone());
                }
            }
            for (pod, cpus) in &manager.state().pods {
                for cpu in cpus.iter() {
                    owners.entry(cpu).or_default().insert(pod.clone());
                }
            }
            prop_assert!(owners.values().all(|owners| owners.len() == 1), "{owners:?}");
            prop_assert_eq!(owners.keys().copied().collect::<CpuSet>(), all.clone());
            for pod in pods.values() {
                let (mut exclusive, mut shared) = (CpuSet::default(), CpuSet::default());
                let sidecars = pod.init_containers().iter().filter(|c| crate::model::is_sidecar(c));
                for container in sidecars.chain(pod.containers()) {
                    if let Some(cpus) = manager.exclusive(pod.uid().as_str(), &container.name) {
                        if manager.is_exclusive(pod, container) {
                            prop_assert!(exclusive.intersection(cpus).is_empty());
                            exclusive = exclusive.union(cpus);
                        } else {
                            prop_assert!(!cpus.is_empty());
                            shared = shared.union(cpus);
                        }
                    }
                }
                prop_assert!(exclusive.intersection(&shared).is_empty());
            }
        }
    }
}
