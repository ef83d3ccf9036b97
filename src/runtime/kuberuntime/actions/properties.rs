//! What holds for every pod and every runtime status, checked on a small model of a runtime that does
//! exactly what the actions say.

use super::fixture::*;
use super::*;
use crate::model::{
    ContainerState, ContainerStatus, ProbeResult, RestartPolicy, SandboxStatus, container_hash,
    is_sidecar,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::HashSet;

const REGULAR: [&str; 3] = ["a", "b", "c"];
const INIT: [&str; 3] = ["i", "j", "k"];

fn probe_result() -> impl Strategy<Value = Option<ProbeResult>> {
    select(vec![
        None,
        Some(ProbeResult::Success),
        Some(ProbeResult::Failure),
        Some(ProbeResult::Unknown),
    ])
}

prop_compose! {
    fn any_pod()(
        policy in select(vec!["Always", "OnFailure", "Never"]),
        regular in 1..=REGULAR.len(),
        sidecars in vec(any::<bool>(), 0..=INIT.len()),
        ephemeral in any::<bool>(),
        own in prop::option::of(select(vec!["Always", "OnFailure", "Never"])),
        rule in prop::option::of(select(vec!["Restart", "RestartAllContainers"])),
        ruled in select(vec!["a", "i"]),
        deleted in prop::bool::weighted(0.1),
    ) -> Pod {
        let mut made = pod(policy, &REGULAR[..regular]);
        for (name, sidecar) in INIT.iter().zip(sidecars) {
            made = if sidecar { made.sidecar(name) } else { made.init(name) };
        }
        if ephemeral {
            made = made.ephemeral("e");
        }
        if let Some(own) = own {
            made = made.own_policy("a", own);
        }
        if let Some(rule) = rule {
            made = made.rule(ruled, rule, "In", &[88]);
        }
        if deleted {
            made = made.deleted();
        }
        made
    }
}

prop_compose! {
    fn any_instance()(
        name in select(vec!["a", "b", "c", "i", "j", "k", "e"]),
        state in select(vec![CREATED, RUNNING, UNKNOWN, ContainerState::Exited]),
        exit_code in select(vec![0, 1, 88]),
        sandbox in 0u32..3,
        same_hash in prop::bool::weighted(0.8),
        liveness in probe_result(),
        startup in probe_result(),
    ) -> (ContainerStatus, ContainerProbeResults) {
        let hash = if same_hash { container_hash(&container(name)) } else { "other".into() };
        (
            ContainerStatus {
                name: name.into(),
                state,
                exit_code,
                sandbox: format!("s{sandbox}").into(),
                hash: hash.into(),
                ..ContainerStatus::default()
            },
            ContainerProbeResults { liveness, startup, readiness: None },
        )
    }
}

prop_compose! {
    fn any_runtime()(
        sandboxes in vec((any::<bool>(), any::<bool>()), 0..3),
        instances in vec(any_instance(), 0..8),
        initialized in prop::option::of(0u32..3),
    ) -> Runtime {
        let mut runtime = Runtime::default();
        for (attempt, (ready, has_ip)) in (0u32..).zip(sandboxes) {
            let ips = if has_ip { vec!["10.0.0.1".to_string()] } else { Vec::new() };
            runtime.status.sandboxes.insert(0, SandboxStatus { ready, ips, ..sandbox(attempt) });
        }
        for (n, (mut instance, probe_results)) in instances.into_iter().enumerate() {
            instance.id = format!("{}-{n}", instance.name).into();
            instance.created_at = n as i64;
            runtime.probe_results.insert(instance.id.clone(), probe_results);
            runtime.status.containers.insert(0, instance);
        }
        runtime.facts.initialized_in = initialized.map(|attempt| format!("s{attempt}").into());
        runtime
    }
}

/// The model runtime: carries actions out, lets init containers succeed and sidecars start.
struct Model {
    pod: Pod,
    runtime: Runtime,
    made: usize,
}

impl Model {
    fn stop(&mut self, which: impl Fn(&ContainerStatus) -> bool) {
        for c in &mut self.runtime.status.containers {
            if matches!(c.state, RUNNING | UNKNOWN) && which(c) {
                c.state = ContainerState::Exited;
                c.exit_code = 137;
            }
        }
    }

    fn start(&mut self, name: &str, sandbox: &SandboxId) {
        self.made += 1;
        self.runtime.status.containers.insert(
            0,
            ContainerStatus {
                id: format!("{name}-new-{}", self.made).into(),
                name: name.into(),
                sandbox: sandbox.clone(),
                state: RUNNING,
                hash: container_hash(&container(name)).into(),
                ..ContainerStatus::default()
            },
        );
    }

    fn execute(&mut self, actions: &PodActions) {
        if actions.kill_pod.is_some() {
            self.stop(|_| true);
            self.runtime.status.sandboxes.iter_mut().for_each(|s| s.ready = false);
        } else {
            let ids: HashSet<_> = actions.containers_to_kill.iter().map(|k| &k.id).collect();
            self.stop(|c| ids.contains(&c.id));
        }
        let reset = actions.reset.iter().flat_map(|reset| reset.groups.iter().flatten());
        let reset: HashSet<_> = reset.map(|one| &one.id).collect();
        self.runtime.status.containers.retain(|c| !reset.contains(&c.id));
        let mut used = actions.sandbox.clone().unwrap_or_default();
        if actions.create_sandbox {
            self.runtime.status.containers.retain(|c| !INIT.contains(&&*c.name));
            let fresh = sandbox(actions.attempt);
            used = fresh.id.clone();
            self.runtime.status.sandboxes.insert(0, fresh);
        }
        let starts = actions
            .ephemeral_containers_to_start
            .iter()
            .chain(&actions.init_containers_to_start)
            .chain(&actions.containers_to_start);
        for start in starts {
            self.start(&start.name, &used);
        }
    }

    /// Plain init containers end well, probes succeed, everything else runs on.
    fn let_time_pass(&mut self) {
        let good = Some(ProbeResult::Success);
        for c in &mut self.runtime.status.containers {
            let spec = self.pod.init_containers().iter().find(|i| i.name == *c.name);
            if c.state == RUNNING && spec.is_some_and(|spec| !is_sidecar(spec)) {
                c.state = ContainerState::Exited;
                c.exit_code = 0;
            }
            let probe_results =
                ContainerProbeResults { liveness: good, readiness: good, startup: good };
            self.runtime.probe_results.insert(c.id.clone(), probe_results);
        }
    }

    fn is_over(&self, actions: &PodActions) -> bool {
        actions.kill_pod.is_some()
            && !actions.create_sandbox
            && !self.runtime.status.may_be_running()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn executing_actions_ends_without_actions(pod in any_pod(), runtime in any_runtime()) {
        let mut model = Model { pod, runtime, made: 0 };
        let mut all_actions = Vec::new();
        for _ in 0..12 {
            let actions = model.runtime.actions(&model.pod);
            if actions.is_empty() || model.is_over(&actions) {
                // Nothing changes any more, however often it is computed.
                model.let_time_pass();
                let next = model.runtime.actions(&model.pod);
                if next.is_empty() || model.is_over(&next) {
                    return Ok(());
                }
            }
            model.execute(&actions);
            all_actions.push(line(&actions));
            model.let_time_pass();
        }
        prop_assert!(false, "still busy after {all_actions:?}");
    }

    #[test]
    fn a_satisfied_pod_needs_nothing(pod in any_pod()) {
        prop_assume!(!pod.is_being_deleted());
        let mut model = Model { pod, runtime: Runtime::default(), made: 0 };
        for _ in 0..8 {
            let actions = model.runtime.actions(&model.pod);
            model.execute(&actions);
            model.let_time_pass();
        }
        prop_assert_eq!(model.runtime.actions(&model.pod), PodActions {
            sandbox: Some("s0".into()),
            ..PodActions::default()
        });
        let running = model.runtime.status.containers.iter().filter(|c| c.state == RUNNING);
        let sidecars = model.pod.init_containers().iter().filter(|c| is_sidecar(c)).count();
        let ephemeral = model.pod.spec().unwrap().ephemeral_containers.iter().flatten().count();
        prop_assert_eq!(running.count(), model.pod.containers().len() + sidecars + ephemeral);
    }

    #[test]
    fn actions_never_start_two_instances_of_a_container(pod in any_pod(), runtime in any_runtime()) {
        let actions = runtime.actions(&pod);
        let killed: HashSet<_> = actions.containers_to_kill.iter().map(|k| k.id.clone()).collect();
        prop_assert_eq!(killed.len(), actions.containers_to_kill.len());
        let mut started = HashSet::new();
        for start in actions.init_containers_to_start.iter().chain(&actions.containers_to_start) {
            prop_assert!(started.insert(&start.name), "{} twice", start.name);
            let newest = runtime.status.newest(&start.name);
            let live = newest.filter(|c| matches!(c.state, RUNNING | UNKNOWN));
            if let (Some(live), None, true) = (live, &actions.kill_pod, actions.sandbox == live.map(|c| c.sandbox.clone())) {
                prop_assert!(killed.contains(&live.id), "{} beside {}", start.name, live.id);
            }
        }
        for kill in &actions.containers_to_kill {
            prop_assert_eq!(kill.restart, started.contains(&kill.name), "{}", kill);
        }
    }

    #[test]
    fn a_reset_takes_every_instance_once_and_nothing_happens_beside_it(pod in any_pod(), runtime in any_runtime()) {
        let actions = runtime.actions(&pod);
        let Some(reset) = &actions.reset else { return Ok(()) };
        let ids: Vec<_> = reset.groups.iter().flatten().map(|one| &one.id).collect();
        let known: HashSet<_> = ids.iter().collect();
        prop_assert_eq!(ids.len(), known.len());
        for c in runtime.status.containers.iter().filter(|c| pod.container(&c.name).is_some()) {
            prop_assert!(known.contains(&&c.id), "{} stays", c.id);
        }
        let only = PodActions { reset: None, sandbox: None, attempt: 0, ..actions.clone() };
        prop_assert_eq!(only, PodActions::default());
    }

    #[test]
    fn nothing_is_started_when_the_pod_is_only_killed(pod in any_pod(), runtime in any_runtime()) {
        let actions = runtime.actions(&pod);
        if actions.kill_pod.is_some() && !actions.create_sandbox {
            prop_assert!(!actions.starts_something());
        }
        prop_assert!(!actions.create_sandbox || actions.kill_pod.is_some());
    }

    #[test]
    fn a_pod_that_is_being_deleted_starts_nothing(pod in any_pod(), runtime in any_runtime()) {
        let actions = runtime.actions(&pod.deleted());
        prop_assert!(!actions.starts_something() && !actions.create_sandbox);
    }

    #[test]
    fn regular_containers_wait_for_the_last_init_container(pod in any_pod(), mut runtime in any_runtime()) {
        runtime.facts.initialized_in = None;
        let actions = runtime.actions(&pod);
        if actions.containers_to_start.is_empty() || actions.create_sandbox || pod.init_containers().is_empty() {
            return Ok(());
        }
        let here = |name: &str| {
            let sandbox = &runtime.status.sandboxes[0].id;
            runtime.status.instances(name).any(|c| c.sandbox == *sandbox)
        };
        let last = pod.init_containers().last().unwrap();
        prop_assert!(here(&last.name) || pod.containers().iter().any(|c| here(&c.name)));
    }

    #[test]
    fn a_policy_of_never_restarts_no_container_that_ran(runtime in any_runtime()) {
        let p = pod("Never", &REGULAR);
        prop_assert_eq!(p.restart_policy(), RestartPolicy::Never);
        let actions = runtime.actions(&p);
        if actions.create_sandbox {
            return Ok(());
        }
        for start in &actions.containers_to_start {
            let allowed = match start.reason {
                StartReason::Exited(_) | StartReason::NewSandbox => false,
                StartReason::Killed(why) => {
                    matches!(why, KillReason::DefinitionChanged | KillReason::UnknownState)
                }
                _ => true,
            };
            prop_assert!(allowed, "{} {}", start.name, start.reason);
        }
    }
}
