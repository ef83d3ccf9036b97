//! Updates the CPUs of running containers.

use super::{AppliedCpus, Managers, ResourceManagers, ResourceManagersInner};
use crate::base::error_chain;
use crate::cri::CriError;
use crate::cri::v1::LinuxContainerResources;
use crate::model::{ContainerId, ContainerState, PodUid};
use crate::resources::cpu::CpuSet;
use tokio_util::sync::CancellationToken;

impl ResourceManagers {
    /// Updates containers and saves the checkpoints after changes, until shutdown.
    ///
    /// # Errors
    /// Never fails.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let inner = self.0;
        tokio::select! {
            _ = inner.deps.cache.wait_runtime_listed() => {}
            () = shutdown.cancelled() => return Ok(()),
        }
        loop {
            let work = async { inner.save().await & inner.update().await };
            let Some(done) = shutdown.run_until_cancelled(work).await else {
                return Ok(());
            };
            let retry = async {
                if done {
                    std::future::pending().await
                } else {
                    tokio::time::sleep(inner.deps.retry_after).await
                }
            };
            tokio::select! {
                () = inner.changed.notified() => {}
                () = retry => {}
                () = shutdown.cancelled() => return Ok(()),
            }
        }
    }
}

impl Managers {
    /// The CPUs that a container should have, if it has others.
    fn wanted_instead(&self, applied: &AppliedCpus) -> Option<&CpuSet> {
        let wanted = self.cpu.cpus(applied.pod.as_str(), &applied.container)?;
        (applied.cpus.as_ref() != Some(wanted)).then_some(wanted)
    }
}

impl ResourceManagersInner {
    /// Updates containers with wrong CPUs; false if an update has to be retried.
    async fn update(&self) -> bool {
        if !self.managers.lock().cpu.is_on() {
            return true;
        }
        let mut done = true;
        for (id, pod, container) in self.containers_with_unknown_cpus() {
            match self.deps.runtime.container_status(id.as_str()).await {
                Ok(status) => {
                    let resources = status.resources.and_then(|resources| resources.linux);
                    let cpus = resources.and_then(|linux| CpuSet::parse(&linux.cpuset_cpus).ok());
                    let applied =
                        AppliedCpus { pod, container, cpus: cpus.filter(|cpus| !cpus.is_empty()) };
                    self.managers.lock().last_applied.entry(id).or_insert(applied);
                }
                Err(CriError::NotFound { .. }) => {}
                Err(_) => done = false,
            }
        }
        for id in self.containers_with_wrong_cpus() {
            // Another update of the container is in progress; its end wakes this again.
            let Some(_lock) = self.updates.try_lock(&id) else {
                continue;
            };
            if let Some((applied, cpus)) = self.wrong_cpus(&id) {
                done &= self.update_one(&id, &applied, &cpus).await;
            }
        }
        done
    }

    /// Running containers of tracked pods that an earlier kubelet created.
    fn containers_with_unknown_cpus(&self) -> Vec<(ContainerId, PodUid, String)> {
        let pods = self.deps.cache.pods();
        let managers = self.managers.lock();
        let tracked = pods.iter().filter(|pod| managers.tracked.contains(&pod.uid));
        let running = tracked.flat_map(|pod| {
            let running = pod.containers.iter();
            let running = running.filter(|container| container.state == ContainerState::Running);
            running.map(|container| {
                (container.id.clone(), pod.uid.clone(), container.name.to_string())
            })
        });
        running.filter(|(id, ..)| !managers.last_applied.contains_key(id)).collect()
    }

    /// Containers with wrong CPUs. Removes exited containers from the records.
    fn containers_with_wrong_cpus(&self) -> Vec<ContainerId> {
        let cache = &self.deps.cache;
        let mut managers = self.managers.lock();
        managers.last_applied.retain(|id, applied| {
            let status = cache.latest(&applied.pod);
            let container = status.container(id);
            container.is_none_or(|container| container.state != ContainerState::Exited)
        });
        let applied = managers.last_applied.iter();
        let wrong = applied.filter(|(_, applied)| managers.wanted_instead(applied).is_some());
        wrong.map(|(id, _)| id.clone()).collect()
    }

    /// The CPUs of a container, and those that it should have; `None` if they are the same.
    fn wrong_cpus(&self, id: &ContainerId) -> Option<(AppliedCpus, CpuSet)> {
        let managers = self.managers.lock();
        let applied = managers.last_applied.get(id)?;
        let wanted = managers.wanted_instead(applied)?;
        Some((applied.clone(), wanted.clone()))
    }

    async fn update_one(&self, id: &ContainerId, applied: &AppliedCpus, cpus: &CpuSet) -> bool {
        let resources = LinuxContainerResources {
            cpuset_cpus: cpus.to_string(),
            ..LinuxContainerResources::default()
        };
        let runtime = &self.deps.runtime;
        let updated = runtime.update_container_resources(id.as_str(), resources).await;
        let mut managers = self.managers.lock();
        match updated {
            Ok(()) => {
                if let Some(applied) = managers.last_applied.get_mut(id) {
                    applied.cpus = Some(cpus.clone());
                }
                true
            }
            Err(CriError::NotFound { .. }) => {
                managers.last_applied.remove(id);
                true
            }
            Err(error) => {
                tracing::error!(
                    podUID = %applied.pod,
                    containerName = %applied.container,
                    containerID = %id,
                    cpuSet = %cpus,
                    err = %error_chain(&error),
                    "Failed to update container"
                );
                false
            }
        }
    }
}
