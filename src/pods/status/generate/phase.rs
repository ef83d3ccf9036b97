//! The phase of the pod.

use super::states::{restarts_unless_completed, termination};
use crate::base::named_enum;
use crate::model::{Pod, PodExt, is_sidecar, reasons};
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateTerminated, ContainerStatus,
};

named_enum! {
    /// `status.phase`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum PodPhase {
        /// Not every container has been started yet.
        Pending = "Pending",
        /// Every container has been started and something runs, or will again.
        Running = "Running",
        /// Every container ended with 0, for good.
        Succeeded = "Succeeded",
        /// Every container ended for good, not all with 0; or the kubelet failed the pod.
        Failed = "Failed",
    }
}

impl PodPhase {
    /// Succeeded or Failed.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// The state of one container for the pod phase.
enum ContainerPhase<'a> {
    /// No status, or a status without a state.
    Unknown,
    /// Has never run to an end and does not run.
    Waiting,
    Running,
    /// Ended; also when it waits to be started again.
    Stopped(&'a ContainerStateTerminated),
}

fn container_phase(status: Option<&ContainerStatus>) -> ContainerPhase<'_> {
    match status {
        Some(ContainerStatus { state: Some(state), last_state, .. }) => {
            match (state, termination(last_state)) {
                (ContainerState { running: Some(_), .. }, _) => ContainerPhase::Running,
                (ContainerState { terminated: Some(end), .. }, _) => ContainerPhase::Stopped(end),
                (ContainerState { waiting: Some(_), .. }, Some(end)) => {
                    ContainerPhase::Stopped(end)
                }
                (ContainerState { waiting: Some(_), .. }, None) => ContainerPhase::Waiting,
                _ => ContainerPhase::Unknown,
            }
        }
        _ => ContainerPhase::Unknown,
    }
}

/// Containers by state.
#[derive(Default)]
struct ContainerCount {
    unknown: usize,
    waiting: usize,
    running: usize,
    stopped: usize,
    succeeded: usize,
    restarting: usize,
    init_pending: usize,
    sidecars_pending: usize,
    init_failed: bool,
}

/// The pod phase (upstream's `getPhase`).
pub(super) fn pod_phase(
    pod: &Pod,
    init: &[ContainerStatus],
    regular: &[ContainerStatus],
    pod_is_terminal: bool,
) -> PodPhase {
    let mut count = ContainerCount::default();
    for container in pod.init_containers() {
        let status = find(init, container);
        if is_sidecar(container) {
            count.sidecar(status)
        } else {
            count.plain_init(pod, container, status)
        }
    }
    for container in pod.containers() {
        count.regular(pod, container, find(regular, container));
    }
    // A pod that has been initialized does not go back to Pending while that happens again in a new sandbox.
    let initializes = count.init_pending + count.sidecars_pending > 0;
    let not_all_started = (initializes && !any_regular_started(regular)) || count.waiting > 0;
    let will_restart = count.restarting > 0 && (!pod_is_terminal || pod.is_static());
    if count.init_failed {
        PodPhase::Failed
    } else if not_all_started || count.unknown > 0 {
        PodPhase::Pending
    } else if count.running > 0 {
        PodPhase::Running
    } else if count.stopped == 0 {
        PodPhase::Pending
    } else if will_restart {
        PodPhase::Running
    } else if count.succeeded == count.stopped {
        PodPhase::Succeeded
    } else {
        PodPhase::Failed
    }
}

impl ContainerCount {
    fn plain_init(&mut self, pod: &Pod, container: &Container, status: Option<&ContainerStatus>) {
        match container_phase(status) {
            ContainerPhase::Stopped(end) if succeeded(end) => {}
            ContainerPhase::Stopped(end) => {
                let code = if end.exit_code == 0 { 1 } else { end.exit_code };
                let again =
                    restarts_unless_completed(pod, container, true, code) || starts_over(end);
                self.init_failed |= !again;
            }
            ContainerPhase::Unknown | ContainerPhase::Waiting | ContainerPhase::Running => {
                self.init_pending += 1
            }
        }
    }

    /// A sidecar that ended does not count.
    fn sidecar(&mut self, status: Option<&ContainerStatus>) {
        match container_phase(status) {
            ContainerPhase::Running => {
                self.running += 1;
                if status.is_some_and(|status| status.started != Some(true)) {
                    self.sidecars_pending += 1;
                }
            }
            ContainerPhase::Stopped(_) => {}
            ContainerPhase::Waiting => {
                self.sidecars_pending += 1;
                self.waiting += 1;
            }
            ContainerPhase::Unknown => {
                self.sidecars_pending += 1;
                self.unknown += 1;
            }
        }
    }

    fn regular(&mut self, pod: &Pod, container: &Container, status: Option<&ContainerStatus>) {
        match container_phase(status) {
            ContainerPhase::Unknown => self.unknown += 1,
            ContainerPhase::Waiting => self.waiting += 1,
            ContainerPhase::Running => self.running += 1,
            ContainerPhase::Stopped(end) => {
                self.stopped += 1;
                self.succeeded += usize::from(end.exit_code == 0);
                let code = end.exit_code;
                let again =
                    restarts_unless_completed(pod, container, false, code) || starts_over(end);
                self.restarting += usize::from(again);
            }
        }
    }
}

/// It did not end by itself: it was removed so that all containers of the pod start over.
fn starts_over(end: &ContainerStateTerminated) -> bool {
    end.reason.as_deref() == Some(reasons::RESTARTING_ALL_CONTAINERS)
}

fn succeeded(end: &ContainerStateTerminated) -> bool {
    end.exit_code == 0 && end.reason.as_deref() != Some(reasons::OOM_KILLED)
}

fn find<'a>(statuses: &'a [ContainerStatus], container: &Container) -> Option<&'a ContainerStatus> {
    statuses.iter().find(|status| status.name == container.name)
}

/// Whether a regular container runs or ever ran: then the pod has been initialized.
pub(super) fn any_regular_started(regular: &[ContainerStatus]) -> bool {
    regular.iter().any(|status| {
        matches!(
            container_phase(Some(status)),
            ContainerPhase::Running | ContainerPhase::Stopped(_)
        )
    })
}
