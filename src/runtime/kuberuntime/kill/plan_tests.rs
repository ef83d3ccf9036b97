use super::*;
use crate::base::clock;
use crate::model::GraceDeadline;
use k8s_openapi::api::core::v1::{ExecAction, Lifecycle, PodSpec};
use proptest::prelude::*;

fn container(name: &str) -> Container {
    Container { name: name.into(), ..Container::default() }
}

fn sidecar(name: &str) -> Container {
    Container { restart_policy: Some("Always".into()), ..container(name) }
}

fn pod(regular: Vec<Container>, init: Vec<Container>) -> Pod {
    Pod {
        spec: Some(PodSpec {
            containers: regular,
            init_containers: Some(init),
            ..PodSpec::default()
        }),
        ..Pod::default()
    }
}

fn hook(command: &str) -> LifecycleHandler {
    LifecycleHandler {
        exec: Some(ExecAction { command: Some(vec![command.into()]) }),
        ..LifecycleHandler::default()
    }
}

fn with_hook(mut container: Container, command: &str) -> Container {
    container.lifecycle = Some(Lifecycle { pre_stop: Some(hook(command)), ..Lifecycle::default() });
    container
}

/// Instances, all with the name as id.
fn status(containers: &[(&str, ContainerState)]) -> PodStatus {
    PodStatus {
        containers: containers
            .iter()
            .map(|(name, state)| ContainerStatus {
                id: (*name).into(),
                name: (*name).into(),
                state: *state,
                ..ContainerStatus::default()
            })
            .collect(),
        ..PodStatus::default()
    }
}

fn running(names: &[&str]) -> PodStatus {
    let all: Vec<_> = names.iter().map(|n| (*n, ContainerState::Running)).collect();
    status(&all)
}

/// `name<-waited,waited` per container.
fn order(stops: &[ContainerStop]) -> Vec<String> {
    stops
        .iter()
        .map(|stop| {
            let waits: Vec<_> = stop.waits_for.iter().map(ContainerId::as_str).collect();
            format!("{}<-{}", stop.name, waits.join(","))
        })
        .collect()
}

#[test]
fn grace_comes_from_the_caller_then_deletion_then_the_probe_then_the_pod() {
    use KillReason::*;
    let probed = Container {
        liveness_probe: Some(Probe {
            termination_grace_period_seconds: Some(7),
            ..Probe::default()
        }),
        startup_probe: Some(Probe {
            termination_grace_period_seconds: Some(90),
            ..Probe::default()
        }),
        ..container("a")
    };
    let silent = Container { liveness_probe: Some(Probe::default()), ..container("a") };
    let made = |deletion, termination| {
        let mut pod = pod(vec![], vec![]);
        pod.metadata.deletion_grace_period_seconds = deletion;
        pod.spec.as_mut().unwrap().termination_grace_period_seconds = termination;
        pod
    };
    for (deletion, termination, container, reason, over, expected) in [
        (None, None, &probed, None, None, 2),
        (None, Some(30), &probed, None, None, 30),
        (None, Some(0), &probed, None, None, 0),
        (None, Some(30), &probed, Some(DefinitionChanged), None, 30),
        (None, Some(30), &probed, Some(LivenessProbe), None, 7),
        (None, Some(30), &probed, Some(StartupProbe), None, 90),
        (None, Some(30), &silent, Some(LivenessProbe), None, 30),
        (None, Some(30), &silent, Some(StartupProbe), None, 30),
        (Some(15), Some(30), &probed, Some(LivenessProbe), None, 15),
        (Some(15), Some(30), &probed, Some(LivenessProbe), Some(60), 60),
        (None, Some(30), &probed, None, Some(-1), 0),
    ] {
        let pod = made(deletion, termination);
        assert_eq!(
            container_grace_seconds(&pod, Some(container), reason, over),
            expected,
            "{deletion:?} {termination:?} {reason:?} {over:?}"
        );
    }
}

#[test]
fn the_stop_timeout_is_what_is_left_rounded_up_and_never_below_two_seconds() {
    let t0 = clock::instant();
    let deadline = deadline_after(30, t0);
    for (passed_ms, timeout) in
        [(0, 30), (1, 30), (999, 30), (1000, 29), (27_500, 3), (29_000, 2), (99_000, 2)]
    {
        let now = t0 + Duration::from_millis(passed_ms);
        assert_eq!(stop_timeout(deadline, now), timeout, "after {passed_ms} ms");
    }
}

#[test]
fn a_hook_gets_what_is_left_and_nothing_without_grace() {
    let t0 = clock::instant();
    let deadline = deadline_after(5, t0);
    assert_eq!(
        pre_stop_budget(deadline, t0 + Duration::from_secs(2)),
        Some(Duration::from_secs(3))
    );
    assert_eq!(pre_stop_budget(deadline, t0 + Duration::from_secs(5)), None);
    assert_eq!(pre_stop_budget(deadline_after(0, t0), t0), None);
    assert_eq!(pre_stop_budget(deadline_after(-9, t0), t0), None);
}

#[test]
fn sidecars_wait_for_regular_containers_and_later_sidecars() {
    let pod = pod(
        vec![container("a"), container("b")],
        vec![sidecar("s1"), container("init"), sidecar("s2"), sidecar("s3")],
    );
    let none = |_: &ContainerId| None;
    assert_eq!(
        order(&container_stops(Some(&pod), &running(&["s1", "s2", "s3", "a", "b"]), &none)),
        ["s1<-a,b,s2,s3", "s2<-a,b,s3", "s3<-a,b", "a<-", "b<-"]
    );
    // Only what runs is waited for; a plain init container neither waits nor is waited for.
    let runtime_status = status(&[
        ("s1", ContainerState::Running),
        ("init", ContainerState::Running),
        ("s3", ContainerState::Unknown),
        ("a", ContainerState::Exited),
        ("b", ContainerState::Created),
    ]);
    assert_eq!(
        order(&container_stops(Some(&pod), &runtime_status, &none)),
        ["s1<-s3", "init<-", "s3<-"]
    );
}

#[test]
fn hooks_come_from_the_spec_or_from_the_annotations_of_an_orphan() {
    let record = |id: &ContainerId| {
        Some(AnnotatedContainerInfo {
            pre_stop: Some(hook(&format!("recorded {id}"))),
            ..AnnotatedContainerInfo::default()
        })
    };
    let pod = pod(vec![with_hook(container("a"), "spec"), container("b")], vec![]);
    let runtime_status = running(&["a", "b", "stray"]);
    let hooks = |pod| -> Vec<_> {
        container_stops(pod, &runtime_status, &record)
            .into_iter()
            .map(|stop| stop.pre_stop)
            .collect()
    };
    assert_eq!(hooks(Some(&pod)), [Some(hook("spec")), None, Some(hook("recorded stray"))]);
    assert_eq!(hooks(None)[0], Some(hook("recorded a")));
    let unknown = status(&[("a", ContainerState::Unknown)]);
    assert_eq!(container_stops(Some(&pod), &unknown, &record)[0].pre_stop, None);
}

proptest! {
    #[test]
    fn what_is_left_only_shrinks(
        first in any::<i64>(),
        later in prop::collection::vec((0u64..1000, any::<i64>()), 0..8),
    ) {
        let mut now = clock::instant();
        let mut grace = GraceDeadline::starting(now, first);
        let mut timeout = stop_timeout(grace.deadline, now);
        for (passed, seconds) in later {
            now += Duration::from_secs(passed);
            grace = grace.min(GraceDeadline::starting(now, seconds));
            let next = stop_timeout(grace.deadline, now);
            prop_assert!((MINIMUM_STOP_SECONDS..=timeout).contains(&next));
            prop_assert!(next <= stop_timeout(deadline_after(seconds, now), now));
            timeout = next;
        }
    }

    #[test]
    fn a_deadline_exists_for_every_grace(seconds in any::<i64>()) {
        let now = clock::instant();
        let timeout = stop_timeout(deadline_after(seconds, now), now);
        prop_assert_eq!(timeout, seconds.clamp(MINIMUM_STOP_SECONDS, MAXIMUM_SECONDS));
    }

    #[test]
    fn nothing_waits_for_itself_or_in_a_circle(mask in prop::collection::vec(any::<bool>(), 6)) {
        let pod = pod(
            vec![container("a"), container("b")],
            vec![sidecar("s0"), sidecar("s1"), container("i"), sidecar("s2")],
        );
        let names: Vec<_> = ["a", "b", "s0", "s1", "i", "s2"]
            .into_iter()
            .zip(mask)
            .filter_map(|(name, on)| on.then_some(name))
            .collect();
        let mut left = container_stops(Some(&pod), &running(&names), &|_| None);
        let mut stopped: Vec<String> = Vec::new();
        while !left.is_empty() {
            let (go, wait): (Vec<_>, Vec<_>) = left.into_iter().partition(|stop| {
                stop.waits_for.iter().all(|id| stopped.iter().any(|name| name == id.as_str()))
            });
            prop_assert!(!go.is_empty(), "no container can be stopped: {wait:?}");
            stopped.extend(go.into_iter().map(|stop| stop.name));
            left = wait;
        }
        let sidecars: Vec<_> = stopped.iter().filter(|name| name.starts_with('s')).collect();
        prop_assert!(sidecars.is_sorted_by(|a, b| a > b), "not in reverse order: {stopped:?}");
    }
}

#[test]
fn waiting_for_the_status_leaves_most_of_the_grace() {
    for (left, wait) in [(30_000, 5_000), (5_000, 1_250), (1_000, 250), (0, 0)] {
        let wait = Duration::from_millis(wait);
        assert_eq!(status_timeout(Duration::from_millis(left)), wait, "{left}");
    }
}

/// `name:state` of the containers and `id:ready` of the sandboxes.
fn shown(status: &PodStatus) -> Vec<String> {
    let containers = status.containers.iter();
    let containers = containers.map(|c| format!("{}:{:?}", c.name, c.state));
    let sandboxes = status.sandboxes.iter();
    let sandboxes = sandboxes.map(|s| format!("{}:{}", s.id, s.ready));
    containers.chain(sandboxes).collect()
}

fn with_sandbox(mut status: PodStatus, ready: bool) -> PodStatus {
    status.sandboxes.push(SandboxStatus { id: "s".into(), ready, ..SandboxStatus::default() });
    status
}

#[test]
fn what_cannot_be_read_is_as_a_list_says_and_may_run_without_one() {
    use ContainerState::{Created, Exited, Running, Unknown};
    let container = |id: &str| ItemId::Container(id.into());
    let sandbox = ItemId::Sandbox("s".into());
    let none = || status(&[]);
    type Case<'a> = (PodStatus, Vec<ItemId>, Option<PodStatus>, &'a [&'a str]);
    let cases: [Case<'_>; 9] = [
        // Never read.
        (none(), vec![container("a")], None, &["a:Unknown"]),
        (none(), vec![container("a")], Some(none()), &[]),
        (none(), vec![container("a")], Some(status(&[("a", Running)])), &["a:Running"]),
        (none(), vec![sandbox.clone()], None, &["s:true"]),
        (none(), vec![sandbox.clone()], Some(with_sandbox(none(), true)), &["s:true"]),
        // Read before, and to be read again.
        (
            status(&[("a", Running)]),
            vec![container("a")],
            Some(status(&[("a", Exited)])),
            &["a:Exited"],
        ),
        (
            with_sandbox(status(&[("a", Created), ("b", Exited)]), true),
            vec![container("a"), container("b"), sandbox],
            Some(with_sandbox(status(&[("a", Running), ("b", Unknown)]), false)),
            &["a:Running", "b:Exited", "s:false"],
        ),
        (status(&[("a", Running)]), vec![container("a")], None, &["a:Running"]),
        // What was read is newer than what the list says.
        (
            status(&[("a", Exited)]),
            vec![container("b")],
            Some(status(&[("a", Running), ("b", Running)])),
            &["a:Exited", "b:Running"],
        ),
    ];
    for (read, unread, listed, expected) in cases {
        let mut found = shown(&complete_from_list(&read, &unread, listed.as_ref()));
        found.sort();
        assert_eq!(found, expected, "{read:?} {unread:?} {listed:?}");
    }
}
