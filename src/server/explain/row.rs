//! The row of a pod, as printed by `kubectl get pods`. Pure.

use super::PodRow;
use crate::model::{Pod, PodExt, is_sidecar, keys, reasons};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStatus, PodStatus,
};
use std::collections::HashSet;

/// The row of a pod; `terminating` is whether it is being terminated.
pub fn row(pod: &Pod, status: Option<&PodStatus>, terminating: bool) -> PodRow {
    let none = PodStatus::default();
    let status = status.or(pod.status.as_ref()).unwrap_or(&none);
    let counted = count(pod, status);
    let phase = status.phase.clone().unwrap_or_default();
    let is_over = matches!(&*phase, "Failed" | "Succeeded");
    let created = pod.metadata.creation_timestamp.as_ref();
    PodRow {
        namespace: pod.namespace().into(),
        name: pod.name().into(),
        uid: pod.uid().to_string(),
        source: pod.annotation(keys::CONFIG_SOURCE).unwrap_or_default().into(),
        ready: counted.ready,
        containers: counted.total,
        status: if (terminating || pod.is_being_deleted()) && !is_over {
            "Terminating".into()
        } else {
            counted.reason
        },
        phase,
        restarts: counted.restarts,
        last_restart: counted.last_restart,
        since: created.or(status.start_time.as_ref()).map(|time| time.0),
        ip: status.pod_ip.clone().unwrap_or_default(),
        last_reason: last_reason(status),
    }
}

/// Sums over all containers.
#[derive(Default)]
struct Counted {
    reason: String,
    ready: usize,
    total: usize,
    restarts: i64,
    last_restart: Option<Timestamp>,
}

impl Counted {
    fn restarts_of(&mut self, status: &ContainerStatus) {
        self.restarts += i64::from(status.restart_count);
        let last = terminated(status.last_state.as_ref()).and_then(|t| t.finished_at.as_ref());
        self.last_restart = self.last_restart.max(last.map(|time| time.0));
    }
}

fn count(pod: &Pod, status: &PodStatus) -> Counted {
    let sidecars: HashSet<&str> = pod
        .init_containers()
        .iter()
        .filter(|container| is_sidecar(container))
        .map(|container| container.name.as_str())
        .collect();
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let mut counted = Counted {
        reason: given(&status.reason)
            .or_else(|| given(&status.phase))
            .unwrap_or_else(|| "Unknown".into()),
        total: pod.containers().len() + sidecars.len(),
        ..Counted::default()
    };
    let mut of_sidecars = Counted::default();
    let mut initializing = false;
    let inits = status.init_container_statuses.as_deref().unwrap_or_default();
    for (index, container) in inits.iter().enumerate() {
        let sidecar = sidecars.contains(container.name.as_str());
        counted.restarts_of(container);
        if sidecar {
            of_sidecars.restarts_of(container);
        }
        let ended = terminated(container.state.as_ref());
        if ended.is_some_and(|ended| ended.exit_code == 0) {
            continue;
        }
        if sidecar && container.started == Some(true) {
            counted.ready += usize::from(container.ready);
            continue;
        }
        let all = pod.init_containers().len();
        counted.reason = match (ended, waiting(container)) {
            (Some(ended), _) => format!("Init:{}", end_in_a_word(ended)),
            (None, reason) if !matches!(reason, "" | reasons::POD_INITIALIZING) => {
                format!("Init:{reason}")
            }
            _ => format!("Init:{index}/{all}"),
        };
        initializing = true;
        break;
    }
    if !initializing || holds(status, "Initialized") {
        counted.restarts = of_sidecars.restarts;
        counted.last_restart = of_sidecars.last_restart;
        count_regular(status, &mut counted);
    }
    counted
}

fn count_regular(status: &PodStatus, counted: &mut Counted) {
    let mut one_runs = false;
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    for container in containers.iter().rev() {
        counted.restarts_of(container);
        let state = container.state.as_ref();
        if !waiting(container).is_empty() {
            counted.reason = waiting(container).into();
        } else if let Some(ended) = terminated(state) {
            counted.reason = end_in_a_word(ended);
        } else if container.ready && state.is_some_and(|state| state.running.is_some()) {
            one_runs = true;
            counted.ready += 1;
        }
    }
    if counted.reason == reasons::COMPLETED && one_runs {
        counted.reason = if holds(status, "Ready") { "Running".into() } else { "NotReady".into() };
    }
}

fn holds(status: &PodStatus, condition: &str) -> bool {
    let conditions = status.conditions.iter().flatten();
    conditions.into_iter().any(|known| known.type_ == condition && known.status == "True")
}

pub(super) fn terminated(state: Option<&ContainerState>) -> Option<&ContainerStateTerminated> {
    state.and_then(|state| state.terminated.as_ref())
}

/// The waiting reason of a container; empty if it is not waiting.
pub(super) fn waiting(container: &ContainerStatus) -> &str {
    let state = container.state.as_ref();
    state
        .and_then(|state| state.waiting.as_ref())
        .and_then(|waiting| waiting.reason.as_deref())
        .unwrap_or_default()
}

fn end_in_a_word(ended: &ContainerStateTerminated) -> String {
    match (ended.reason.as_deref(), ended.signal) {
        (Some(reason), _) if !reason.is_empty() => reason.into(),
        (_, Some(signal)) if signal != 0 => format!("Signal:{signal}"),
        _ => format!("ExitCode:{}", ended.exit_code),
    }
}

/// How a container last failed, if one did; else why one cannot start.
fn last_reason(status: &PodStatus) -> String {
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let all = || lists.into_iter().flatten().flatten();
    let ends = all().flat_map(|container| {
        let states = [container.state.as_ref(), container.last_state.as_ref()];
        states.into_iter().filter_map(terminated)
    });
    let failed = ends.filter(|ended| {
        ended.exit_code != 0 || ended.reason.as_deref() != Some(reasons::COMPLETED)
    });
    let last = failed.max_by_key(|ended| ended.finished_at.as_ref().map(|time| time.0));
    if let Some(last) = last {
        return format!("{} ({})", end_in_a_word(last), last.exit_code);
    }
    let normal = [reasons::CONTAINER_CREATING, reasons::POD_INITIALIZING, ""];
    let waits = all().map(waiting).find(|reason| !normal.contains(reason));
    waits.or(status.reason.as_deref()).unwrap_or_default().to_string()
}

#[cfg(test)]
#[path = "row_tests.rs"]
mod tests;
