//! Pods and runtime statuses for tests of the rules of `computePodActions`.

use super::{PodActionInputs, PodActions, RecordedFacts, compute_pod_actions};
use crate::model::{
    ContainerId, ContainerState, ContainerStatus, NetworkMode, Pod, PodStatus, ProbeResult,
    SandboxStatus, container_hash,
};
use crate::state::probe_results::ContainerProbeResults;
use k8s_openapi::api::core::v1::{
    Container, ContainerRestartRule, ContainerRestartRuleOnExitCodes, EphemeralContainer, PodSpec,
    Probe,
};
use std::collections::HashMap;

pub(super) fn container(name: &str) -> Container {
    Container { name: name.into(), image: Some("image".into()), ..Container::default() }
}

/// A pod with one regular container per name.
pub(super) fn pod(policy: &str, regular: &[&str]) -> Pod {
    Pod {
        spec: Some(PodSpec {
            restart_policy: Some(policy.into()),
            containers: regular.iter().map(|name| container(name)).collect(),
            ..PodSpec::default()
        }),
        ..Pod::default()
    }
}

pub(super) trait Build: Sized {
    fn spec_mut(&mut self) -> &mut PodSpec;
    fn push_init(self, container: Container) -> Self;
    fn init(self, name: &str) -> Self;
    fn sidecar(self, name: &str) -> Self;
    fn ephemeral(self, name: &str) -> Self;
    fn own_policy(self, name: &str, policy: &str) -> Self;
    fn rule(self, name: &str, action: &str, operator: &str, codes: &[i32]) -> Self;
    fn host_network(self) -> Self;
    fn deleted(self) -> Self;
}

impl Build for Pod {
    fn spec_mut(&mut self) -> &mut PodSpec {
        self.spec.as_mut().unwrap()
    }

    fn push_init(mut self, container: Container) -> Self {
        let inits = self.spec_mut().init_containers.get_or_insert_default();
        inits.push(container);
        self
    }

    fn init(self, name: &str) -> Self {
        self.push_init(container(name))
    }

    /// A sidecar with a startup and a liveness probe.
    fn sidecar(self, name: &str) -> Self {
        self.push_init(Container {
            restart_policy: Some("Always".into()),
            startup_probe: Some(Probe::default()),
            liveness_probe: Some(Probe::default()),
            ..container(name)
        })
    }

    fn ephemeral(mut self, name: &str) -> Self {
        let list = self.spec_mut().ephemeral_containers.get_or_insert_default();
        list.push(EphemeralContainer { name: name.into(), ..EphemeralContainer::default() });
        self
    }

    fn own_policy(mut self, name: &str, policy: &str) -> Self {
        let spec = self.spec_mut();
        let inits = spec.init_containers.iter_mut().flatten();
        spec.containers
            .iter_mut()
            .chain(inits)
            .filter(|c| c.name == name)
            .for_each(|c| c.restart_policy = Some(policy.into()));
        self
    }

    /// Adds a restart rule to a container, after those that it has.
    fn rule(mut self, name: &str, action: &str, operator: &str, codes: &[i32]) -> Self {
        let spec = self.spec_mut();
        let inits = spec.init_containers.iter_mut().flatten();
        let all = spec.containers.iter_mut().chain(inits);
        for container in all.filter(|c| c.name == name) {
            let rules = container.restart_policy_rules.get_or_insert_default();
            rules.push(ContainerRestartRule {
                action: action.into(),
                exit_codes: Some(ContainerRestartRuleOnExitCodes {
                    operator: operator.into(),
                    values: Some(codes.to_vec()),
                }),
            });
        }
        self
    }

    fn host_network(mut self) -> Self {
        self.spec_mut().host_network = Some(true);
        self
    }

    fn deleted(mut self) -> Self {
        let now = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
        self.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
        self
    }
}

/// A READY sandbox with an address; its id is `s<attempt>`.
pub(super) fn sandbox(attempt: u32) -> SandboxStatus {
    SandboxStatus {
        id: format!("s{attempt}").into(),
        attempt,
        ready: true,
        created_at: i64::from(attempt),
        network: NetworkMode::Pod,
        has_network_status: true,
        ips: vec!["10.0.0.1".into()],
        ..SandboxStatus::default()
    }
}

pub(super) fn not_ready(attempt: u32) -> SandboxStatus {
    SandboxStatus { ready: false, ..sandbox(attempt) }
}

/// What the runtime has, plus probe results and facts.
#[derive(Clone, Debug, Default)]
pub(super) struct Runtime {
    pub(super) status: PodStatus,
    pub(super) probe_results: HashMap<ContainerId, ContainerProbeResults>,
    pub(super) facts: RecordedFacts,
}

pub(super) const RUNNING: ContainerState = ContainerState::Running;
pub(super) const CREATED: ContainerState = ContainerState::Created;
pub(super) const UNKNOWN: ContainerState = ContainerState::Unknown;

impl Runtime {
    /// Sandboxes are given newest first.
    pub(super) fn new(sandboxes: impl Into<Vec<SandboxStatus>>) -> Self {
        let mut runtime = Self::default();
        runtime.status.sandboxes = sandboxes.into();
        runtime
    }

    /// One good sandbox, attempt 0.
    pub(super) fn good() -> Self {
        Self::new([sandbox(0)])
    }

    /// Adds an instance that is newer than those before, in the newest sandbox; its id is
    /// `<name>-<n>` with n counting all instances.
    pub(super) fn with(mut self, name: &str, state: ContainerState) -> Self {
        let n = self.status.containers.len();
        let sandbox = self.status.sandboxes.first().map(|s| s.id.clone());
        self.status.containers.insert(
            0,
            ContainerStatus {
                id: format!("{name}-{n}").into(),
                name: name.into(),
                sandbox: sandbox.unwrap_or_default(),
                state,
                created_at: n as i64,
                hash: container_hash(&container(name)).into(),
                ..ContainerStatus::default()
            },
        );
        self
    }

    pub(super) fn exited(mut self, name: &str, code: i32) -> Self {
        self = self.with(name, ContainerState::Exited);
        self.change(|c| c.exit_code = code)
    }

    /// Changes the instance added last.
    pub(super) fn change(mut self, change: impl FnOnce(&mut ContainerStatus)) -> Self {
        change(&mut self.status.containers[0]);
        self
    }

    /// Puts the instance added last into another sandbox.
    pub(super) fn in_sandbox(self, attempt: u32) -> Self {
        self.change(|c| c.sandbox = format!("s{attempt}").into())
    }

    fn results_of_last(&mut self) -> &mut ContainerProbeResults {
        let id = self.status.containers[0].id.clone();
        self.probe_results.entry(id).or_default()
    }

    pub(super) fn liveness(mut self, probe_result: ProbeResult) -> Self {
        self.results_of_last().liveness = Some(probe_result);
        self
    }

    pub(super) fn startup(mut self, probe_result: ProbeResult) -> Self {
        self.results_of_last().startup = Some(probe_result);
        self
    }

    pub(super) fn initialized_in(mut self, attempt: u32) -> Self {
        self.facts.initialized_in = Some(format!("s{attempt}").into());
        self
    }

    pub(super) fn exit_fact(mut self, name: &str, code: i32) -> Self {
        self.facts.exits.insert(name.into(), code);
        self
    }

    /// The instance added last was killed in order to start its successor.
    pub(super) fn killed_to_restart(mut self) -> Self {
        let last = &self.status.containers[0];
        let (name, id) = (last.name.to_string(), last.id.to_string());
        self.facts.killed_to_restart.insert(name, id);
        self
    }

    pub(super) fn restart_all_instances(mut self, ids: &[&str]) -> Self {
        self.facts.restart_all_instances = ids.iter().map(|id| ContainerId::from(*id)).collect();
        self
    }

    pub(super) fn actions(&self, pod: &Pod) -> PodActions {
        compute_pod_actions(&PodActionInputs {
            pod,
            status: &self.status,
            probe_results: &|id| self.probe_results.get(id).copied().unwrap_or_default(),
            facts: &self.facts,
        })
    }
}

/// The actions in one line: `kill-pod`, `new-sandbox`, `reset:ID` or `stop-and-reset:ID` (`|` between
/// groups), `kill:ID`, `ephemeral:NAME`, `init:NAME`, `start:NAME`, in the order of execution.
pub(super) fn line(actions: &PodActions) -> String {
    let mut words = Vec::new();
    if actions.kill_pod.is_some() {
        words.push("kill-pod".to_string());
    }
    if actions.create_sandbox {
        words.push("new-sandbox".to_string());
    }
    let groups = actions.reset.iter().flat_map(|reset| &reset.groups);
    for (n, group) in groups.enumerate() {
        if n > 0 {
            words.push("|".to_string());
        }
        words.extend(group.iter().map(|one| {
            let word = if one.stop { "stop-and-reset" } else { "reset" };
            format!("{word}:{}", one.id)
        }));
    }
    words.extend(actions.containers_to_kill.iter().map(|k| format!("kill:{}", k.id)));
    for (word, list) in [
        ("ephemeral", &actions.ephemeral_containers_to_start),
        ("init", &actions.init_containers_to_start),
        ("start", &actions.containers_to_start),
    ] {
        words.extend(list.iter().map(|start| format!("{word}:{}", start.name)));
    }
    words.join(" ")
}
