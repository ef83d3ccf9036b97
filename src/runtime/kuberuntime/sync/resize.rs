//! Resizes running containers in place.
//!
//! The pod's cgroup allows the higher of the old and the new limits while its containers are updated, and the new ones
//! after that. Actuated amounts are recorded container by container, so that the next sync resumes.

use super::pod_cgroups::LimitChange;
use super::request::SyncRequest;
use super::sandbox::SandboxCreator;
use crate::base::{clock, error_chain};
use crate::model::{Pod, PodExt as _};
use crate::resources::allocation::{Allocations, ResizeMetrics};
use crate::resources::cm::LoweredMemoryLimit;
use crate::runtime::kuberuntime::actions::{ContainerResize, PodActions};
use crate::state::pod_cache::{ItemId, PodRef};
use std::sync::Arc;

pub(in crate::runtime::kuberuntime) struct PodResizer {
    pub(in crate::runtime::kuberuntime) sandboxes: Arc<SandboxCreator>,
    pub(in crate::runtime::kuberuntime) allocations: Allocations,
    pub(in crate::runtime::kuberuntime) metrics: ResizeMetrics,
}

impl PodResizer {
    /// Carries out the resize of these actions.
    ///
    /// # Errors
    /// A part of it failed; upstream's texts. The pod keeps its actuated amounts.
    pub(super) async fn resize(
        &self,
        request: &SyncRequest<'_>,
        actions: &PodActions,
    ) -> Result<(), String> {
        let started_at = clock::instant();
        let resized = Box::pin(self.carry_out(request, actions)).await;
        self.metrics.record_resized(resized.is_ok(), clock::since(started_at));
        resized
    }

    async fn carry_out(
        &self,
        request: &SyncRequest<'_>,
        actions: &PodActions,
    ) -> Result<(), String> {
        let pod = request.pod;
        let runs = |name: &str| request.status.runs(name);
        let actuated = self.allocations.actuated_pod(pod, runs);
        let actuated = actuated.map_or_else(|| pod.clone(), Arc::new);
        self.check_usage(pod, &actuated, actions).await?;
        self.limit_pod(pod, actions, &actuated, LimitChange::Raise).await?;
        for resize in &actions.containers_to_resize {
            self.update(pod, actions, resize).await?;
        }
        self.limit_pod(pod, actions, &actuated, LimitChange::Apply).await?;
        self.allocations.set_actuated_pod_level(pod);
        Ok(())
    }

    /// Rejects memory limits below the current usage: the kernel would kill processes.
    async fn check_usage(
        &self,
        pod: &Arc<Pod>,
        actuated: &Arc<Pod>,
        actions: &PodActions,
    ) -> Result<(), String> {
        let of_pod = match &actions.sandbox {
            Some(sandbox) => {
                let cgroups = &self.sandboxes.cgroups;
                let lowered = cgroups.lowered_memory_limit(pod, sandbox, actuated).await;
                lowered.map_err(|error| error_chain(error.as_ref()))?
            }
            None => None,
        };
        let mut of_containers = Vec::new();
        for resize in &actions.containers_to_resize {
            let Some(limit) = resize.lower_memory_limit() else {
                continue;
            };
            let stats = self.sandboxes.runtime.container_stats(resize.id.as_str());
            let memory = stats.await.ok().and_then(|stats| stats.memory);
            let usage = memory.and_then(|memory| memory.usage_bytes);
            let lowered = LoweredMemoryLimit {
                limit: u64::try_from(limit).unwrap_or_default(),
                usage: usage.map(|usage| usage.value),
            };
            of_containers.push((resize.name.as_str(), lowered));
        }
        check_limits(of_pod, &of_containers)
    }

    /// Changes the limits of the pod's cgroup.
    async fn limit_pod(
        &self,
        pod: &Arc<Pod>,
        actions: &PodActions,
        actuated: &Arc<Pod>,
        change: LimitChange,
    ) -> Result<(), String> {
        let Some(sandbox) = &actions.sandbox else {
            return Ok(());
        };
        let limited = self.sandboxes.cgroups.set_limits(pod, sandbox, actuated, change);
        limited.await.map_err(|error| error_chain(error.as_ref()))
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
        let mut resources = resources.map_err(|error| error_chain(&error))?;
        let name = &resize.name;
        let _updating = sandboxes.resources.lock_updates(&resize.id).await;
        Box::pin(sandboxes.resources.pre_create_container(pod, name, &mut resources)).await;
        let cpus = resources.cpuset_cpus.clone();
        let updated = sandboxes.runtime.update_container_resources(resize.id.as_str(), resources);
        updated.await.map_err(|error| error.grpc_text())?;
        // The shared CPUs may have changed meanwhile; the container is updated once more then.
        sandboxes.resources.add_container(pod, name, &resize.id, &cpus);
        self.allocations.set_actuated(pod, container);
        let item = ItemId::Container(resize.id.clone());
        sandboxes.cache.touch(&PodRef::of(pod), item, actions.sandbox.clone());
        Ok(())
    }
}

/// Compares lowered memory limits with what is in use; texts as upstream's.
fn check_limits(
    of_pod: Option<LoweredMemoryLimit>,
    of_containers: &[(&str, LoweredMemoryLimit)],
) -> Result<(), String> {
    let of_pod = of_pod.map(|lowered| ("pod".to_owned(), lowered));
    let of_containers = of_containers.iter();
    let of_containers =
        of_containers.map(|(name, lowered)| (format!("container {name:?}"), *lowered));
    let problem = |(what, LoweredMemoryLimit { limit, usage }): (String, _)| match usage {
        None => Some(format!("missing {what} memory usage")),
        Some(usage) if usage >= limit => Some(format!(
            "attempting to set {what} memory limit ({limit}) below current usage ({usage})"
        )),
        Some(_) => None,
    };
    let problems = of_pod.into_iter().chain(of_containers).filter_map(problem);
    let problems: Vec<String> = problems.collect();
    match problems.as_slice() {
        [] => Ok(()),
        [one] => Err(format!("cannot decrease memory limits: {one}")),
        all => Err(format!("cannot decrease memory limits: [{}]", all.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_limits_are_not_lowered_below_what_is_in_use() {
        let lowered = |limit, usage| LoweredMemoryLimit { limit, usage };
        let (above, below) = (lowered(128, Some(127)), lowered(128, Some(128)));
        for (of_pod, of_container, problem) in [
            (None, None, ""),
            (Some(above), Some(above), ""),
            (
                None,
                Some(below),
                "attempting to set container \"c\" memory limit (128) below current usage (128)",
            ),
            (
                Some(below),
                None,
                "attempting to set pod memory limit (128) below current usage (128)",
            ),
            (
                Some(below),
                Some(below),
                "[attempting to set pod memory limit (128) below current usage (128), \
                 attempting to set container \"c\" memory limit (128) below current usage (128)]",
            ),
            (
                Some(lowered(128, None)),
                Some(lowered(128, None)),
                "[missing pod memory usage, missing container \"c\" memory usage]",
            ),
        ] {
            let of_container = of_container.map(|lowered| ("c", lowered));
            let checked = check_limits(of_pod, of_container.as_slice());
            let expected = match problem {
                "" => Ok(()),
                problem => Err(format!("cannot decrease memory limits: {problem}")),
            };
            assert_eq!(checked, expected);
        }
    }
}
