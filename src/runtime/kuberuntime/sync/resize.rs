//! Gives containers that run other amounts of CPU and memory.
//!
//! The pod's cgroup allows the higher of the old and the new limits while its containers are updated, and the new ones
//! after that. What was done is written down container by container, so that the next sync goes on from there.

use super::{request::SyncRequest, sandbox::SandboxCreator};
use crate::{
    base::chain,
    model::{Pod, PodExt},
    resources::allocation::{Allocations, ResizeMetrics, with_amounts},
    runtime::kuberuntime::actions::{ContainerResize, PodActions},
    state::pod_cache::{ItemId, Owner},
};
use std::{sync::Arc, time::Instant};

/// Resizes pods.
pub(in crate::runtime::kuberuntime) struct PodResizer {
    sandboxes: Arc<SandboxCreator>,
    allocations: Allocations,
    metrics: ResizeMetrics,
}

impl PodResizer {
    pub(in crate::runtime::kuberuntime) fn new(
        sandboxes: Arc<SandboxCreator>,
        allocations: Allocations,
        metrics: ResizeMetrics,
    ) -> Self {
        Self {
            sandboxes,
            allocations,
            metrics,
        }
    }

    /// Carries out the resize of a plan.
    ///
    /// # Errors
    /// Why not all of it could be done, in upstream's words. The pod goes on with what it has.
    pub(super) async fn resize(
        &self,
        request: &SyncRequest<'_>,
        actions: &PodActions,
    ) -> Result<(), String> {
        let begun = Instant::now();
        let resized = Box::pin(self.carry_out(request.pod, actions)).await;
        self.metrics.resized(resized.is_ok(), begun.elapsed());
        resized
    }

    async fn carry_out(&self, pod: &Arc<Pod>, actions: &PodActions) -> Result<(), String> {
        self.check_usage(&actions.containers_to_resize).await?;
        let before = self.before(pod);
        self.limit_pod(pod, actions, Some(&before)).await?;
        for resize in &actions.containers_to_resize {
            self.update(pod, actions, resize).await?;
        }
        self.limit_pod(pod, actions, None).await?;
        self.allocations.set_actuated_pod_level(pod);
        Ok(())
    }

    /// The pod with the amounts that its containers have.
    fn before(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        let has = self.allocations.actuated(&pod.uid());
        let before = has.and_then(|has| with_amounts(pod, &has));
        before.map_or_else(|| pod.clone(), Arc::new)
    }

    /// A limit below what is in use would end processes.
    async fn check_usage(&self, resizes: &[ContainerResize]) -> Result<(), String> {
        let mut problems = Vec::new();
        for resize in resizes {
            let Some(limit) = resize.lower_memory_limit() else {
                continue;
            };
            let stats = self.sandboxes.runtime.container_stats(resize.id.as_str());
            let memory = stats.await.ok().and_then(|stats| stats.memory);
            let used = memory.and_then(|memory| memory.usage_bytes);
            let limit = u64::try_from(limit).unwrap_or_default();
            let name = &resize.name;
            match used.map(|used| used.value) {
                None => problems.push(format!("missing container {name:?} memory usage")),
                Some(used) if used >= limit => problems.push(format!(
                    "attempting to set container {name:?} memory limit ({limit}) below current usage ({used})"
                )),
                Some(_) => {}
            }
        }
        match problems.as_slice() {
            [] => Ok(()),
            [one] => Err(format!("cannot decrease memory limits: {one}")),
            all => Err(format!(
                "cannot decrease memory limits: [{}]",
                all.join(", ")
            )),
        }
    }

    /// Limits the pod as a whole; where it was limited less `before`, only that much.
    async fn limit_pod(
        &self,
        pod: &Arc<Pod>,
        actions: &PodActions,
        before: Option<&Arc<Pod>>,
    ) -> Result<(), String> {
        let Some(sandbox) = &actions.sandbox else {
            return Ok(());
        };
        let limited = self.sandboxes.cgroups.limit(pod, sandbox, before);
        limited.await.map_err(|error| chain(error.as_ref()))
    }

    async fn update(
        &self,
        pod: &Arc<Pod>,
        actions: &PodActions,
        resize: &ContainerResize,
    ) -> Result<(), String> {
        let Some(container) = pod.container(&resize.name) else {
            return Ok(());
        };
        let sandboxes = &self.sandboxes;
        let resources = sandboxes.builder.resources(pod, container);
        let mut resources = resources.map_err(|error| chain(&error))?;
        let name = &resize.name;
        Box::pin(sandboxes.resources.creating(pod, name, &mut resources)).await;
        let updated = sandboxes
            .runtime
            .update_container_resources(resize.id.as_str(), resources);
        updated.await.map_err(|error| error.grpc_text())?;
        self.allocations.set_actuated(pod, container);
        let item = ItemId::Container(resize.id.clone());
        sandboxes
            .cache
            .touch(&Owner::of(pod), item, actions.sandbox.clone());
        Ok(())
    }
}
