use super::*;
use crate::model::SandboxStatus;
use RemovalReason::{PodEnded, SandboxReplaced, Superseded, TooMany};
use k8s_openapi::api::core::v1::{Container, PodSpec};
use proptest::prelude::*;

const NOW: i64 = 1_000_000_000_000;

/// A container instance and the UID of its pod.
type OfPod = (PodUid, ContainerStatus);

/// An exited container `<pod>/<name>@<created>`.
fn dead(pod: &str, name: &str, created_at: i64) -> OfPod {
    let container = ContainerStatus {
        id: format!("{pod}/{name}@{created_at}").into(),
        ..instance(name, created_at, ContainerState::Exited)
    };
    (pod.into(), container)
}

fn in_state(state: ContainerState, (pod, container): OfPod) -> OfPod {
    (pod, ContainerStatus { state, ..container })
}

fn restarted(restart_count: u32, (pod, container): OfPod) -> OfPod {
    let container = ContainerStatus { restart_count, ..container };
    (pod, container)
}

fn statuses(list: Vec<OfPod>) -> Vec<Arc<PodStatus>> {
    let mut pods: BTreeMap<PodUid, PodStatus> = BTreeMap::new();
    for (uid, container) in list {
        let pod = pods.entry(uid.clone()).or_default();
        pod.uid = uid;
        pod.containers.push(container);
        pod.sort();
    }
    pods.into_values().map(Arc::new).collect()
}

impl Default for ContainerGcPolicy {
    /// Upstream's: no minimum age, one instance per container name, no limit for the node.
    fn default() -> Self {
        Self { min_age: Duration::ZERO, max_per_container: Some(1), max_containers: None }
    }
}

fn policy(per_container: Option<usize>, total: Option<usize>) -> ContainerGcPolicy {
    ContainerGcPolicy {
        max_per_container: per_container,
        max_containers: total,
        ..ContainerGcPolicy::default()
    }
}

fn ids(removals: &[ContainerRemoval<'_>]) -> Vec<(String, RemovalReason)> {
    removals.iter().map(|r| (r.container.id.to_string(), r.reason)).collect()
}

fn of_no_pod(_: &PodUid) -> bool {
    false
}

/// What is removed, in order.
fn planned(
    list: Vec<OfPod>,
    policy: ContainerGcPolicy,
    remove_all: &dyn Fn(&PodUid) -> bool,
) -> Vec<(String, RemovalReason)> {
    ids(&containers_to_remove(&statuses(list), &policy, remove_all, NOW))
}

fn removed(list: Vec<OfPod>, policy: ContainerGcPolicy) -> Vec<(String, RemovalReason)> {
    let mut removed = planned(list, policy, &of_no_pod);
    removed.sort_by(|a, b| a.0.cmp(&b.0));
    removed
}

fn gone(list: &[(&str, RemovalReason)]) -> Vec<(String, RemovalReason)> {
    list.iter().map(|(id, why)| (id.to_string(), *why)).collect()
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
    assert_eq!(removed(list(), policy(Some(2), None)), gone(&[("p/a@1", Superseded)]));
    assert_eq!(removed(list(), policy(None, None)), []);
    assert_eq!(removed(list(), policy(Some(0), None)).len(), 5);
}

#[test]
fn an_instance_that_is_about_to_start_takes_the_place_of_no_dead_one() {
    let instance =
        |count: u32, state| in_state(state, restarted(count, dead("p", "a", count.into())));
    use ContainerState::{Created, Exited, Running};
    let starting = vec![instance(2, Created), instance(1, Exited), instance(0, Exited)];
    let one = policy(Some(1), None);
    assert_eq!(removed(starting.clone(), one), gone(&[("p/a@0", Superseded)]));
    assert_eq!(removed(starting[..2].to_vec(), policy(None, Some(1))), []);
    // One with a successor will never start.
    let left = vec![instance(3, Running), instance(2, Created), instance(1, Exited)];
    assert_eq!(removed(left, one), gone(&[("p/a@1", Superseded)]));
    let all = planned(starting, one, &|_| true);
    assert_eq!(all.len(), 3, "nothing of a pod that is gone starts");
}

#[test]
fn the_oldest_instance_goes_first_and_the_newest_last() {
    let list = || [1, 3, 2].map(|n| dead("p", "a", n)).to_vec();
    let orders = [
        planned(list(), policy(Some(0), None), &of_no_pod),
        planned(list(), policy(None, Some(0)), &of_no_pod),
        planned(list(), policy(None, None), &|_| true),
    ];
    for order in orders {
        let ids: Vec<_> = order.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(ids, ["p/a@1", "p/a@2", "p/a@3"]);
    }
}

#[test]
fn which_instance_is_the_newest_does_not_depend_on_the_clock() {
    let instance = |count, created_at| restarted(count, dead("p", "a", created_at));
    let list = vec![instance(4, 1), instance(3, 2), instance(5, 0)];
    assert_eq!(
        removed(list, policy(Some(1), None)),
        gone(&[("p/a@1", Superseded), ("p/a@2", Superseded)])
    );
    let future = planned(vec![dead("p", "a", NOW + 1)], ContainerGcPolicy::default(), &|_| true);
    assert_eq!(future.len(), 1, "without a minimum every age is enough");
}

#[test]
fn everything_of_a_pod_that_should_go_goes() {
    let list = vec![dead("p", "a", 1), dead("p", "a", 2), dead("q", "a", 1)];
    assert_eq!(
        planned(list.clone(), policy(None, None), &|uid: &PodUid| uid.as_str() == "p"),
        gone(&[("p/a@1", PodEnded), ("p/a@2", PodEnded)])
    );
    // Before every source has delivered no pod counts as gone.
    assert_eq!(removed(list, policy(None, None)), []);
}

#[test]
fn young_and_running_containers_are_neither_removed_nor_counted() {
    let young = dead("p", "a", NOW - 5);
    let running = in_state(ContainerState::Running, dead("p", "a", 0));
    let list = vec![young, running, dead("p", "a", NOW - 20), dead("p", "a", NOW - 10)];
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
    assert_eq!(limit(2), gone(&[("p/a@1", TooMany), ("p/a@2", TooMany), ("p/a@3", TooMany)]));
    assert_eq!(limit(0).len(), 5);
}

#[test]
fn a_container_in_unknown_state_is_stopped_first() {
    let strange = in_state(ContainerState::Unknown, dead("p", "a", 1));
    let pods = statuses(vec![strange, dead("p", "a", 2)]);
    let removals = containers_to_remove(&pods, &ContainerGcPolicy::default(), &of_no_pod, NOW);
    assert_eq!(removals.len(), 1);
    assert!(removals[0].stop_first());
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
    PodStatus { containers, ..PodStatus::default() }
}

#[test]
fn only_the_newest_dead_instance_of_an_init_container_stays() {
    use ContainerState::{Created, Exited, Running, Unknown};
    let pod = Pod {
        spec: Some(PodSpec {
            init_containers: Some(vec![Container { name: "i".into(), ..Container::default() }]),
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
    let removals = init_containers_to_remove(&pod, &runtime_status);
    assert_eq!(ids(&removals), gone(&[("i@2", Superseded), ("i@1", Superseded)]));
    assert!(removals[1].stop_first());
    // Before a new sandbox, all of them are removed.
    let all = all_init_containers_to_remove(&pod, &runtime_status);
    let expected = ["i@4", "i@3", "i@2", "i@1", "i@0"].map(|id| (id, SandboxReplaced));
    assert_eq!(ids(&all), gone(&expected));
}

#[test]
fn a_sandbox_goes_when_it_is_dead_empty_and_not_the_newest_or_its_pod_is_gone() {
    let pod = |uid: &str, ready: u32, with_containers: u32| {
        let id = |attempt: u32| SandboxId::from(format!("{uid}-{attempt}"));
        let sandbox = |attempt| SandboxStatus {
            id: id(attempt),
            attempt,
            ready: attempt == ready,
            ..SandboxStatus::default()
        };
        let container =
            ContainerStatus { sandbox: id(with_containers), ..ContainerStatus::default() };
        let mut status = PodStatus {
            uid: uid.into(),
            sandboxes: (0..4).map(sandbox).collect(),
            containers: vec![container],
            ..PodStatus::default()
        };
        status.sort();
        Arc::new(status)
    };
    let pods = [pod("p", 2, 1), pod("q", 1, 2)];
    let plan = |removes_all: &dyn Fn(&PodUid) -> bool| -> Vec<String> {
        let removals = sandboxes_to_remove(&pods, removes_all);
        removals.iter().map(|(_, id)| id.to_string()).collect()
    };
    assert_eq!(plan(&of_no_pod), ["p-0", "q-0"]);
    assert_eq!(plan(&|uid: &PodUid| uid.as_str() == "q"), ["p-0", "q-3", "q-0"]);
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
            .map(|(n, (pod, name, at))| {
                let (pod, container) = dead(&pod.to_string(), &name.to_string(), at);
                (pod, ContainerStatus { id: n.to_string().into(), ..container })
            })
            .collect();
        let removals = planned(list.clone(), policy(per_container, total), &of_no_pod);
        let gone: HashSet<&str> = removals.iter().map(|(id, _)| id.as_str()).collect();
        prop_assert_eq!(gone.len(), removals.len());
        let (removed, left): (Vec<_>, Vec<_>) =
            list.iter().partition(|(_, c)| gone.contains(c.id.as_str()));
        prop_assert!(total.is_none_or(|max| left.len() <= max));
        for (pod, c) in &left {
            let group = |(p, d): &&&OfPod| *p == *pod && d.name == c.name;
            prop_assert!(per_container.is_none_or(|max| left.iter().filter(group).count() <= max));
            // What stays is never older than what went of the same name.
            let older_stays = removed.iter().filter(group).any(|(_, d)| d.created_at > c.created_at);
            prop_assert!(!older_stays);
        }
    }
}
