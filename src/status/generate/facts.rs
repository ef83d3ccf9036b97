//! What is worth remembering of a status over a restart of the kubelet.

use super::{
    container_states::{container_id, terminated, termination, waiting},
    list, whole_seconds,
};
use crate::model::{ContainerId, reasons};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStatus,
        PodCondition, PodStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};

/// The facts of a pod that neither its source nor the runtime can tell again: static pods have no
/// API object that would hold them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InitialFacts {
    /// Phase, as the API spells it.
    pub phase: Option<String>,
    /// Reason of the phase.
    pub reason: Option<String>,
    /// Message of the phase.
    pub message: Option<String>,
    /// `status.startTime`.
    pub start_time: Option<Timestamp>,
    /// The pod's last addresses.
    pub pod_ips: Vec<String>,
    /// Since when each condition that was True has been so, by type.
    pub true_since: Vec<(String, Timestamp)>,
    /// Regular containers.
    pub containers: Vec<ContainerFacts>,
    /// Init containers and sidecars.
    pub init_containers: Vec<ContainerFacts>,
}

/// The facts of one container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerFacts {
    /// Its name.
    pub name: String,
    /// Bare id of the newest instance.
    pub id: ContainerId,
    /// How often it was restarted.
    pub restart_count: i32,
    /// It was running when last seen.
    pub running: bool,
    /// `started` of that instance.
    pub started: bool,
    /// `ready` of that instance.
    pub ready: bool,
    /// How the newest instance ended, if it did.
    pub exit: Option<LastExit>,
}

/// How a container ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LastExit {
    /// Exit code.
    pub code: i32,
    /// The runtime's reason.
    pub reason: Option<String>,
    /// When it had started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
}

impl InitialFacts {
    /// The facts of a status. Termination messages are left out: they can be large, and secret.
    pub fn of(status: &PodStatus) -> Self {
        let since = |condition: &PodCondition| {
            let at = condition.last_transition_time.as_ref()?.0;
            (condition.status == "True").then(|| (condition.type_.clone(), at))
        };
        let facts = |statuses: &Option<Vec<ContainerStatus>>| {
            list(statuses).iter().map(ContainerFacts::of).collect()
        };
        Self {
            phase: status.phase.clone(),
            reason: status.reason.clone(),
            message: status.message.clone(),
            start_time: status.start_time.as_ref().map(|time| time.0),
            pod_ips: list(&status.pod_ips)
                .iter()
                .map(|ip| ip.ip.clone())
                .collect(),
            true_since: list(&status.conditions).iter().filter_map(since).collect(),
            containers: facts(&status.container_statuses),
            init_containers: facts(&status.init_container_statuses),
        }
    }

    /// The facts in the form of a status that was shown before.
    pub(super) fn as_old_status(&self, runtime_name: &str) -> PodStatus {
        let statuses = |facts: &[ContainerFacts]| {
            let status = |fact: &ContainerFacts| fact.as_old_status(runtime_name);
            Some(facts.iter().map(status).collect())
        };
        let ip = |ip: &String| k8s_openapi::api::core::v1::PodIP { ip: ip.clone() };
        PodStatus {
            phase: self.phase.clone(),
            reason: self.reason.clone(),
            message: self.message.clone(),
            start_time: self.start_time.map(time),
            pod_ips: Some(self.pod_ips.iter().map(ip).collect()),
            conditions: Some(self.true_since.iter().map(held).collect()),
            container_statuses: statuses(&self.containers),
            init_container_statuses: statuses(&self.init_containers),
            ..PodStatus::default()
        }
    }
}

impl ContainerFacts {
    fn of(status: &ContainerStatus) -> Self {
        let id = status.container_id.as_deref().unwrap_or_default();
        let bare = id.split_once("://").map_or(id, |(_, bare)| bare);
        let at = |time: &Option<Time>| time.as_ref().map(|time| time.0);
        Self {
            name: status.name.clone(),
            id: ContainerId::from(bare),
            restart_count: status.restart_count,
            running: matches!(&status.state, Some(state) if state.running.is_some()),
            started: status.started == Some(true),
            ready: status.ready,
            exit: termination(&status.state).map(|end| LastExit {
                code: end.exit_code,
                reason: end.reason.clone(),
                started_at: at(&end.started_at),
                finished_at: at(&end.finished_at),
            }),
        }
    }

    fn as_old_status(&self, runtime_name: &str) -> ContainerStatus {
        let known = !self.id.as_str().is_empty();
        let id = known.then(|| container_id(runtime_name, &self.id));
        let state = match &self.exit {
            Some(exit) => terminated(ContainerStateTerminated {
                exit_code: exit.code,
                reason: exit.reason.clone(),
                started_at: exit.started_at.map(time),
                finished_at: exit.finished_at.map(time),
                container_id: id.clone(),
                ..ContainerStateTerminated::default()
            }),
            None if self.running => ContainerState {
                running: Some(ContainerStateRunning::default()),
                ..ContainerState::default()
            },
            None => waiting(Some(reasons::CONTAINER_CREATING.into()), None),
        };
        ContainerStatus {
            name: self.name.clone(),
            container_id: id,
            restart_count: self.restart_count,
            started: Some(self.started),
            ready: self.ready,
            state: Some(state),
            ..ContainerStatus::default()
        }
    }
}

fn time(at: Timestamp) -> Time {
    Time(whole_seconds(at))
}

fn held((kind, since): &(String, Timestamp)) -> PodCondition {
    PodCondition {
        type_: kind.clone(),
        status: "True".into(),
        last_transition_time: Some(time(*since)),
        ..PodCondition::default()
    }
}
