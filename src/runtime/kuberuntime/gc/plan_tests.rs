use super::*;
use crate::model::ContainerStatus;
use RemovalReason::{PodGone, Superseded, TooMany};
use k8s_openapi::api::core::v1::{Container, PodSpec};
use proptest::prelude::*;

const NOW: i64 = 1_000_000_000_000;

/// An exited container `<pod>/<name>@<created>`.
fn dead(pod: &str, name: &str, created_at: i64) -> ContainerInstance {
    ContainerInstance {
        id: format!("{pod}/{name}@{created_at}").into(),
        pod: pod.into(),
        name: name.into(),
        restart_count: 0,
        created_at,
        state: ContainerState::Exited,
    }
}

fn policy(per_container: Option<usize>, total: Option<usize>) -> ContainerGcPolicy {
    ContainerGcPolicy {
        max_per_container: per_container,
        max_containers: total,
        ..ContainerGcPolicy::default()
    }
}

fn ids(removals: Vec<ContainerRemoval>) -> Vec<(String, RemovalReason)> {
    let mut ids: Vec<_> = removals
        .into_iter()
        .map(|r| (r.id.to_string(), r.reason))
        .collect();
    ids.sort_by(|a, b| a.0.cmp(&b.0));
    ids
}

fn of_no_pod(_: &PodUid) -> bool {
    false
}

fn removed(
    list: Vec<ContainerInstance>,
    policy: ContainerGcPolicy,
) -> Vec<(String, RemovalReason)> {
    ids(containers(list, &policy, &of_no_pod, NOW))
}

fn gone(list: &[(&str, RemovalReason)]) -> Vec<(String, RemovalReason)> {
    list.iter()
        .map(|(id, why)| (id.to_string(), *why))
        .collect()
}

#[test]
fn the_newest_instances_of_each_name_stay() {
    let list = || {
        vec![
            dead("p", "a", 1),
            dead("p", "a", 3),
            dead("p", "a", 2),
            dead("p", "b", 1),
            dead("q", "a", 1),
        ]
    };
    assert_eq!(
        removed(list(), policy(Some(1), None)),
        gone(&[("p/a@1", Superseded), ("p/a@2", Superseded)])
    );
    assert_eq!(
        removed(list(), policy(Some(2), None)),
        gone(&[("p/a@1", Superseded)])
    );
    assert_eq!(removed(list(), policy(None, None)), []);
    assert_eq!(removed(list(), policy(Some(0), None)).len(), 5);
}

#[test]
fn an_instance_that_is_about_to_start_takes_the_place_of_no_dead_one() {
    let instance = |count, state| ContainerInstance {
        restart_count: count,
        state,
        ..dead("p", "a", count.into())
    };
    use ContainerState::{Created, Exited, Running};
    let starting = vec![
        instance(2, Created),
        instance(1, Exited),
        instance(0, Exited),
    ];
    let one = policy(Some(1), None);
    assert_eq!(
        removed(starting.clone(), one),
        gone(&[("p/a@0", Superseded)])
    );
    assert_eq!(removed(starting[..2].to_vec(), policy(None, Some(1))), []);
    // One with a successor will never start.
    let left = vec![
        instance(3, Running),
        instance(2, Created),
        instance(1, Exited),
    ];
    assert_eq!(removed(left, one), gone(&[("p/a@1", Superseded)]));
    let removes_all = |_: &PodUid| true;
    let all = containers(starting, &one, &removes_all, NOW);
    assert_eq!(all.len(), 3, "nothing of a pod that is gone starts");
}

#[test]
fn the_oldest_instance_goes_first_and_the_newest_last() {
    let list = || [1, 3, 2].map(|n| dead("p", "a", n)).to_vec();
    let removes_all = |_: &PodUid| true;
    let orders = [
        containers(list(), &policy(Some(0), None), &of_no_pod, NOW),
        containers(list(), &policy(None, Some(0)), &of_no_pod, NOW),
        containers(list(), &policy(None, None), &removes_all, NOW),
    ];
    for order in orders {
        let ids: Vec<_> = order.iter().map(|removal| removal.id.as_str()).collect();
        assert_eq!(ids, ["p/a@1", "p/a@2", "p/a@3"]);
    }
}

#[test]
fn which_instance_is_the_newest_does_not_depend_on_the_clock() {
    let instance = |restart_count, created_at| ContainerInstance {
        restart_count,
        ..dead("p", "a", created_at)
    };
    let list = vec![instance(4, 1), instance(3, 2), instance(5, 0)];
    assert_eq!(
        removed(list, policy(Some(1), None)),
        gone(&[("p/a@1", Superseded), ("p/a@2", Superseded)])
    );
    let removes_all = |_: &PodUid| true;
    let future = containers(
        vec![dead("p", "a", NOW + 1)],
        &ContainerGcPolicy::default(),
        &removes_all,
        NOW,
    );
    assert_eq!(future.len(), 1, "without a minimum every age is enough");
}

#[test]
fn everything_of_a_pod_that_should_go_goes() {
    let list = vec![dead("p", "a", 1), dead("p", "a", 2), dead("q", "a", 1)];
    let removes_all = |uid: &PodUid| uid.as_str() == "p";
    assert_eq!(
        ids(containers(
            list.clone(),
            &policy(None, None),
            &removes_all,
            NOW
        )),
        gone(&[("p/a@1", PodGone), ("p/a@2", PodGone)])
    );
    // Before every source has delivered no pod counts as gone.
    assert_eq!(removed(list, policy(None, None)), []);
}

#[test]
fn young_and_running_containers_are_not_looked_at() {
    let young = dead("p", "a", NOW - 5);
    let running = ContainerInstance {
        state: ContainerState::Running,
        ..dead("p", "a", 0)
    };
    let list = vec![
        young,
        running,
        dead("p", "a", NOW - 20),
        dead("p", "a", NOW - 10),
    ];
    let policy = ContainerGcPolicy {
        min_age: Duration::from_nanos(10),
        max_per_container: Some(1),
        ..ContainerGcPolicy::default()
    };
    let expected = format!("p/a@{}", NOW - 20);
    assert_eq!(removed(list, policy), gone(&[(&expected, Superseded)]));
}

#[test]
fn the_node_wide_limit_takes_equal_shares_and_then_the_oldest() {
    let list = vec![
        dead("p", "a", 1),
        dead("p", "a", 2),
        dead("p", "a", 3),
        dead("q", "a", 4),
        dead("r", "a", 5),
    ];
    let limit = |max| removed(list.clone(), policy(None, Some(max)));
    assert_eq!(limit(5), []);
    assert_eq!(limit(3), gone(&[("p/a@1", TooMany), ("p/a@2", TooMany)]));
    assert_eq!(
        limit(2),
        gone(&[("p/a@1", TooMany), ("p/a@2", TooMany), ("p/a@3", TooMany)])
    );
    assert_eq!(limit(0).len(), 5);
}

#[test]
fn a_container_in_unknown_state_is_stopped_first() {
    let mut strange = dead("p", "a", 1);
    strange.state = ContainerState::Unknown;
    let removals = containers(
        vec![strange, dead("p", "a", 2)],
        &ContainerGcPolicy::default(),
        &of_no_pod,
        NOW,
    );
    assert_eq!(removals.len(), 1);
    assert!(removals[0].stop_first);
}

fn instance(name: &str, n: i64, state: ContainerState) -> ContainerStatus {
    ContainerStatus {
        id: format!("{name}@{n}").into(),
        name: name.into(),
        state,
        created_at: n,
        ..ContainerStatus::default()
    }
}

fn status(mut containers: Vec<ContainerStatus>) -> PodStatus {
    containers.reverse();
    PodStatus {
        containers,
        ..PodStatus::default()
    }
}

#[test]
fn only_the_newest_dead_instance_of_an_init_container_stays() {
    use ContainerState::{Created, Exited, Running, Unknown};
    let pod = Pod {
        spec: Some(PodSpec {
            init_containers: Some(vec![Container {
                name: "i".into(),
                ..Container::default()
            }]),
            ..PodSpec::default()
        }),
        ..Pod::default()
    };
    let runtime_status = status(vec![
        instance("a", 0, Exited),
        instance("a", 1, Exited),
        instance("i", 0, Created),
        instance("i", 1, Unknown),
        instance("i", 2, Exited),
        instance("i", 3, Exited),
        instance("i", 4, Running),
    ]);
    let removals = init_containers(&pod, &runtime_status);
    assert!(
        removals
            .iter()
            .any(|r| r.id.as_str() == "i@1" && r.stop_first)
    );
    assert_eq!(
        ids(removals),
        gone(&[("i@1", Superseded), ("i@2", Superseded)])
    );
}

fn sandbox(pod: &str, attempt: u32) -> GcSandbox {
    GcSandbox {
        id: format!("{pod}-{attempt}").into(),
        pod: pod.into(),
        attempt,
        created_at: 0,
        ready: false,
        has_containers: false,
    }
}

#[test]
fn a_sandbox_goes_when_it_is_dead_empty_and_not_the_newest_or_its_pod_is_gone() {
    let all = [
        sandbox("p", 0),
        GcSandbox {
            has_containers: true,
            ..sandbox("p", 1)
        },
        GcSandbox {
            ready: true,
            ..sandbox("p", 2)
        },
        sandbox("p", 3),
        sandbox("q", 0),
        GcSandbox {
            ready: true,
            ..sandbox("q", 1)
        },
        GcSandbox {
            has_containers: true,
            ..sandbox("q", 2)
        },
        sandbox("q", 3),
    ];
    let plan = |removes_all: &dyn Fn(&PodUid) -> bool| -> Vec<_> {
        sandboxes(&all, removes_all)
            .into_iter()
            .map(|r| (r.id.to_string(), r.reason))
            .collect()
    };
    assert_eq!(
        plan(&of_no_pod),
        gone(&[("p-0", Superseded), ("q-0", Superseded)])
    );
    assert_eq!(
        plan(&|uid: &PodUid| uid.as_str() == "q"),
        gone(&[("p-0", Superseded), ("q-0", PodGone), ("q-3", PodGone)])
    );
}

proptest! {
    #[test]
    fn limits_hold_and_nothing_is_removed_twice(
        list in prop::collection::vec((0..3u8, 0..3u8, 0..50i64), 0..40),
        per_container in prop::option::of(0..4usize),
        total in prop::option::of(0..20usize),
    ) {
        let list: Vec<_> = list
            .into_iter()
            .enumerate()
            .map(|(n, (pod, name, at))| ContainerInstance {
                id: n.to_string().into(),
                ..dead(&pod.to_string(), &name.to_string(), at)
            })
            .collect();
        let removals = containers(list.clone(), &policy(per_container, total), &of_no_pod, NOW);
        let gone: HashSet<_> = removals.iter().map(|r| r.id.clone()).collect();
        prop_assert_eq!(gone.len(), removals.len());
        let left: Vec<_> = list.iter().filter(|c| !gone.contains(&c.id)).collect();
        prop_assert!(total.is_none_or(|max| left.len() <= max));
        for c in &left {
            let group = |d: &&&ContainerInstance| d.pod == c.pod && d.name == c.name;
            prop_assert!(per_container.is_none_or(|max| left.iter().filter(group).count() <= max));
            // What stays is never older than what went of the same name.
            let older_stays = list.iter().any(|d| {
                gone.contains(&d.id) && d.pod == c.pod && d.name == c.name && d.created_at > c.created_at
            });
            prop_assert!(!older_stays);
        }
    }
}
