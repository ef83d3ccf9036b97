//! The preStop hook of one stop.

use super::plan;
use super::stop::{PodKiller, StopTarget, deadline_over};
use crate::base::clock;
use crate::model::GraceDeadline;
use crate::model::reasons::event;
use crate::runtime::handlers::{HookError, HookTarget};
use futures::future::BoxFuture;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a stop waits until the record is written; it is written even if that takes longer.
const RECORD_TIMEOUT: Duration = Duration::from_secs(1);

/// A running hook.
pub(super) type Hook<'t> = BoxFuture<'t, Result<(), HookError>>;

impl PodKiller {
    /// Runs the container's preStop hook, if it has one that has not run yet.
    pub(super) fn pre_stop_hook<'t>(
        &'t self,
        target: &'t StopTarget,
        grace: &watch::Receiver<GraceDeadline>,
    ) -> Option<Hook<'t>> {
        let handler = target.stop.pre_stop.as_ref()?;
        if self.stops.hook_ran(&target.pod_ref.uid, &target.stop.id) {
            return None;
        }
        let budget = plan::pre_stop_budget(grace.borrow().deadline, clock::instant())?;
        let limit = budget.saturating_add(plan::MINIMUM_STOP);
        Some(Box::pin(async move {
            let hook_target = HookTarget {
                pod: &target.object,
                container: &target.stop.name,
                container_id: &target.stop.id,
                pod_ip: target.pod_ip.as_deref(),
                ports: &target.ports,
            };
            self.hooks.run_pre_stop(handler, &hook_target, limit).await
        }))
    }

    /// Waits for a hook until the deadline. Returns the hook if it is still running then.
    pub(super) async fn wait_for_hook<'t>(
        &self,
        target: &StopTarget,
        mut hook: Hook<'t>,
        mut grace: watch::Receiver<GraceDeadline>,
    ) -> Option<Hook<'t>> {
        let (uid, id) = (&target.pod_ref.uid, &target.stop.id);
        let started_at = clock::instant();
        let (result, unfinished) = tokio::select! {
            result = &mut hook => (result, None),
            () = deadline_over(&mut grace) => {
                (Err(HookError::DeadlineExceeded(clock::since(started_at))), Some(hook))
            }
        };
        if !matches!(result, Err(HookError::RuntimeUnavailable(_))) {
            // Before the container is stopped, so that a kubelet that is killed does not repeat the hook.
            let _ = timeout(RECORD_TIMEOUT, self.stops.record_hook_ran(uid, id)).await;
        }
        if let Err(error) = result {
            tracing::warn!(
                pod = %target.pod_ref.log_name(),
                podUID = %uid,
                containerName = target.stop.name,
                containerID = %id,
                err = %error,
                "PreStop hook failed"
            );
            self.events.warning(
                &target.object,
                event::FAILED_PRE_STOP_HOOK,
                format!("PreStopHook failed: {}", error.cause()),
            );
        }
        unfinished
    }
}
