//! Creates, limits and removes the cgroups of the node and its pods.

mod qos_cgroups;

use super::cgroup_manager::CgroupManager;
use super::node_cgroups::{LoweredMemoryLimit, NodeCgroups, PodCgroup, ReservedCgroup};
use super::resource_config::{self, QosSettings};
use super::{CgroupDriver, CgroupMetrics, CgroupName};
use crate::base::{error_chain, run_file_io, spawn_blocking};
use crate::cri::v1::LinuxContainerResources;
use crate::host::cgroup::{CgroupSettings, Cgroups};
use crate::model::{Pod, PodExt, PodUid};
use crate::resources::managers::ResourceManagers;
use crate::resources::{PodSetReader, QosClass, linux, pod_qos};
use crate::state::events::{EventRecorder, ObjectRef};
use anyhow::Context as _;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinError;

/// The cgroup of all pods.
const ALL_PODS: &str = "kubepods";
const POD_PREFIX: &str = "pod";
const QOS_CLASSES: [QosClass; 3] =
    [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];
/// Interval at which the limits of QoS classes are updated, as upstream.
const UPDATE_PERIOD: Duration = Duration::from_secs(60);
/// Maximum number of concurrent calls to systemd. Each may take half a minute.
const MAX_SYSTEMD_CALLS: usize = 4;
const ENFORCED: &str = "NodeAllocatableEnforced";
const NOT_ENFORCED: &str = "FailedNodeAllocatableEnforcement";

/// Manages the cgroups of a node; cheap to clone. Without `cgroupsPerQOS` it does nothing.
///
/// Of upstream's `ContainerManager`: `PodContainerManager`, `QOSContainerManager` and enforcement of node allocatable.
/// The CPU, memory and topology managers are in [`ResourceManagers`], device and DRA managers in `DeviceManagers`.
#[derive(Clone, Default)]
pub struct ContainerManager(Option<Arc<ContainerManagerInner>>);

/// The resources of a pod that is resized, for the runtime.
#[derive(Clone, Debug, PartialEq)]
pub struct SandboxResources {
    /// The pod's overhead, if it has one.
    pub overhead: Option<LinuxContainerResources>,
    /// The rest of the pod.
    pub resources: LinuxContainerResources,
}

struct ContainerManagerInner {
    node: NodeCgroups,
    manager: CgroupManager,
    all_pods: CgroupName,
    active_pods: PodSetReader,
    events: EventRecorder,
    /// Shows which pods have exclusive CPUs.
    managers: ResourceManagers,
    /// The settings of the QoS classes that were written last, unless that failed. The lock serializes updates: with
    /// two at once, older values could overwrite newer ones.
    written_classes: Mutex<Option<QosSettings>>,
    systemd_calls: Arc<Semaphore>,
    /// Set until all pods are known after a restart: the CPU shares computed from some pods would throttle the others,
    /// so the QoS classes keep the limits that the earlier kubelet set.
    keeps_earlier_limits: AtomicBool,
}

impl ContainerManager {
    /// A manager for `cgroupsPerQOS: false`.
    pub fn off() -> Self {
        Self::default()
    }

    /// Whether the runtime manages the cgroups of pods (`cgroupsPerQOS: false`).
    pub fn is_off(&self) -> bool {
        self.0.is_none()
    }

    /// The cgroup of all pods, as a path from the root of each hierarchy; `None` without `cgroupsPerQOS`.
    pub fn all_pods(&self) -> Option<String> {
        let inner = self.0.as_ref()?;
        let path = inner.manager.path(&inner.all_pods).ok()?;
        Some(path.to_string())
    }

    /// Creates the cgroups of the node; `cgroups` is the hierarchy below `cgroupRoot`. Blocking.
    ///
    /// # Errors
    /// `cgroupRoot` does not exist, a cgroup cannot be created, or a configured cgroup cannot be limited.
    pub fn start(
        node: NodeCgroups,
        cgroups: Cgroups,
        metrics: CgroupMetrics,
        events: EventRecorder,
        active_pods: PodSetReader,
        managers: ResourceManagers,
    ) -> anyhow::Result<Self> {
        let root = CgroupName::of_cgroupfs(&node.root);
        let manager = CgroupManager { cgroups, slices: node.slices.clone(), metrics };
        let path = manager.path(&root)?;
        manager.cgroups.validate(&path).context("invalid configuration: cgroupRoot")?;
        tracing::info!(cgroupRoot = %path, "Container manager verified user specified cgroup-root exists");
        let all_pods = root.child(ALL_PODS);
        let inner = ContainerManagerInner {
            keeps_earlier_limits: AtomicBool::new(manager.exists(&all_pods)),
            manager,
            all_pods,
            node,
            active_pods,
            events,
            managers,
            written_classes: Mutex::default(),
            systemd_calls: Arc::new(Semaphore::new(MAX_SYSTEMD_CALLS)),
        };
        inner.update_qos_cgroups(true).context("failed to initialize top level QOS containers")?;
        inner.enforce_reserved()?;
        Ok(Self(Some(Arc::new(inner))))
    }

    /// Updates the limits of the node and of QoS classes without an end. Limits that an earlier kubelet set are updated
    /// once every source has sent a list, complete or not, or after a minute.
    pub async fn run(self, mut all_sources_seen: watch::Receiver<bool>) {
        let Some(inner) = self.0 else {
            return std::future::pending().await;
        };
        let mut enforced = inner.update(false).await;
        if inner.keeps_earlier_limits.load(Ordering::Relaxed) {
            let all = all_sources_seen.wait_for(|seen| *seen);
            let _ = tokio::time::timeout(UPDATE_PERIOD, all).await.map(drop);
            inner.keeps_earlier_limits.store(false, Ordering::Relaxed);
            enforced = inner.update(enforced).await;
        }
        loop {
            tokio::time::sleep(UPDATE_PERIOD).await;
            enforced = inner.update(enforced).await;
        }
    }

    /// The cgroup parent of a pod's sandbox; empty if the runtime chooses it.
    ///
    /// # Errors
    /// The pod's QoS class cannot be determined, or its UID is not valid in a cgroup name.
    pub fn pod_cgroup_parent(&self, pod: &Pod) -> anyhow::Result<String> {
        match &self.0 {
            Some(inner) => Ok(inner.manager.path(&inner.pod_cgroup(pod)?)?.to_string()),
            None => Ok(String::new()),
        }
    }

    /// Creates a pod's cgroup if it is missing, and sets its limits. Must be called before a container of the pod
    /// starts. `actuated` is the pod with the actuated amounts of its running containers: if given, the higher of both
    /// limits is set, because the containers may use more than is allocated.
    ///
    /// # Errors
    /// The cgroup cannot be created.
    pub async fn ensure_exists(
        &self,
        pod: &Arc<Pod>,
        actuated: Option<Pod>,
    ) -> anyhow::Result<PodCgroup> {
        let Some(inner) = self.0.clone() else {
            return Ok(PodCgroup::default());
        };
        let pod = pod.clone();
        let ensure =
            move |inner: &ContainerManagerInner| inner.ensure_exists(&pod, actuated.as_ref());
        inner.run(ensure).await?
    }

    /// Sets the limits of a running pod's cgroup; with `actuated`, the pod before a resize of its containers, the
    /// higher of the old and new ones.
    ///
    /// # Errors
    /// The kernel rejects a limit.
    pub async fn set_limits(
        &self,
        pod: &Arc<Pod>,
        actuated: Option<&Arc<Pod>>,
    ) -> anyhow::Result<()> {
        let Some(inner) = self.0.clone() else {
            return Ok(());
        };
        let (pod, actuated) = (pod.clone(), actuated.cloned());
        let set = move |inner: &ContainerManagerInner| inner.set_limits(&pod, actuated.as_deref());
        inner.run(set).await?
    }

    /// The resources of a pod and its overhead, for the `UpdatePodSandboxResources` call; with `actuated`, the higher
    /// limits of both. `None` without `cgroupsPerQOS`.
    ///
    /// # Errors
    /// An amount in the spec cannot be parsed.
    pub fn sandbox_resources(
        &self,
        pod: &Pod,
        actuated: Option<&Pod>,
    ) -> anyhow::Result<Option<SandboxResources>> {
        let Some(inner) = &self.0 else {
            return Ok(None);
        };
        let (rest, actuated) = (without_overhead(pod), actuated.map(without_overhead));
        let settings = inner.higher_settings(&rest, actuated.as_ref())?;
        Ok(Some(SandboxResources {
            overhead: linux::sandbox_overhead(pod, &inner.node.rules.enforcement)?,
            resources: resource_config::for_runtime(settings),
        }))
    }

    /// The new memory limit of a pod's cgroup, if a resize lowers it from that of `actuated`.
    ///
    /// # Errors
    /// The limit cannot be computed.
    pub async fn lowered_memory_limit(
        &self,
        pod: &Arc<Pod>,
        actuated: &Arc<Pod>,
    ) -> anyhow::Result<Option<LoweredMemoryLimit>> {
        let Some(inner) = self.0.clone() else {
            return Ok(None);
        };
        let old = inner.pod_settings(actuated)?.memory;
        let new = inner.pod_settings(pod)?.memory;
        let Some(limit) = resource_config::lowered_memory_limit(old, new) else {
            return Ok(None);
        };
        let name = inner.pod_cgroup(pod)?;
        let usage = run_file_io(move || inner.manager.memory_usage(&name)).await?;
        let usage = usage.ok();
        Ok(Some(LoweredMemoryLimit { limit, usage }))
    }

    /// Kills the processes in the cgroup of a removed pod, and removes the cgroup.
    ///
    /// # Errors
    /// The cgroup could not be removed.
    pub async fn destroy(&self, uid: &PodUid) -> anyhow::Result<()> {
        let Some(inner) = self.0.clone() else {
            return Ok(());
        };
        let uid = uid.clone();
        // Blocks until the killed processes have exited.
        spawn_blocking(move || inner.destroy(&uid)).await??;
        Ok(())
    }

    /// UIDs of all pods with a cgroup.
    ///
    /// # Errors
    /// The cgroups cannot be listed.
    pub async fn pods_with_cgroups(&self) -> anyhow::Result<BTreeSet<PodUid>> {
        let Some(inner) = self.0.clone() else {
            return Ok(BTreeSet::new());
        };
        Ok(run_file_io(move || inner.pods_with_cgroups()).await??)
    }
}

/// The cgroup of a QoS class below that of all pods.
fn qos_cgroup(all_pods: &CgroupName, class: QosClass) -> CgroupName {
    match class {
        QosClass::Guaranteed => all_pods.clone(),
        QosClass::Burstable => all_pods.child("burstable"),
        QosClass::BestEffort => all_pods.child("besteffort"),
    }
}

/// The name of a pod's cgroup; `root` is `cgroupRoot`.
///
/// # Errors
/// The pod's QoS class cannot be determined.
pub fn pod_cgroup_name(root: &str, pod: &Pod) -> anyhow::Result<CgroupName> {
    let all_pods = CgroupName::of_cgroupfs(root).child(ALL_PODS);
    let class = qos_cgroup(&all_pods, pod_qos(pod)?);
    Ok(class.child(&format!("{POD_PREFIX}{}", pod.uid())))
}

impl ContainerManagerInner {
    /// Runs blocking work that changes cgroups. With systemd, the concurrency is limited, because its calls may take
    /// long and would use up the threads for short work.
    async fn run<T: Send + 'static>(
        self: Arc<Self>,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        if self.manager.driver() == CgroupDriver::Cgroupfs {
            return run_file_io(move || work(&self)).await;
        }
        // The semaphore is never closed.
        let permit = self.systemd_calls.clone().acquire_owned().await.ok();
        let work = move || {
            let _permit = permit;
            work(&self)
        };
        spawn_blocking(work).await
    }

    /// Updates all limits; returns whether the limit of the node is enforced.
    async fn update(self: &Arc<Self>, enforced: bool) -> bool {
        let updated = self.clone().run(move |inner| {
            let updated = inner.update_qos_cgroups(true);
            (updated, enforced || inner.enforce_node())
        });
        let Ok((updated, enforced)) = updated.await else {
            return enforced;
        };
        if let Err(error) = updated {
            tracing::warn!(err = %error_chain(&error), "Failed to update QoS cgroup configuration");
        }
        enforced
    }

    fn qos_cgroup(&self, class: QosClass) -> CgroupName {
        qos_cgroup(&self.all_pods, class)
    }

    /// The pod's cgroup name in each QoS class, for when the class is unknown.
    fn pod_cgroups(&self, uid: &PodUid) -> [CgroupName; 3] {
        QOS_CLASSES.map(|class| self.qos_cgroup(class).child(&format!("{POD_PREFIX}{uid}")))
    }

    fn pod_cgroup(&self, pod: &Pod) -> anyhow::Result<CgroupName> {
        let uid = pod.uid();
        let is_ambiguous =
            self.manager.driver() == CgroupDriver::Systemd && uid.as_str().contains('_');
        anyhow::ensure!(
            !is_ambiguous,
            "the UID {uid} has an underscore, which stands for a dash in slices"
        );
        let class = self.qos_cgroup(pod_qos(pod)?);
        Ok(class.child(&format!("{POD_PREFIX}{uid}")))
    }

    /// The limits of the cgroup of all pods.
    fn node_settings(&self) -> CgroupSettings {
        CgroupSettings {
            cpus: Some(self.node.cpus.clone()).filter(|cpus| !cpus.is_empty()),
            ..self.node.pods.settings(false)
        }
    }

    /// Sets the limit of all pods together. The kernel rejects a limit below the current usage; then it is retried
    /// later, as upstream does.
    fn enforce_node(&self) -> bool {
        let node = ObjectRef::node(&self.node.node_name);
        match self.manager.update(&self.all_pods, &self.node_settings()) {
            Ok(()) => {
                let text = "Updated Node Allocatable limit across pods";
                self.events.normal(&node, ENFORCED, text);
                true
            }
            Err(error) => {
                let text = format!(
                    "Failed to update Node Allocatable Limits {:?}: {error}",
                    self.all_pods.parts()
                );
                self.events.warning(&node, NOT_ENFORCED, text);
                false
            }
        }
    }

    /// Sets the limits of configured cgroups, which have to exist.
    fn enforce_reserved(&self) -> anyhow::Result<()> {
        let node = ObjectRef::node(&self.node.node_name);
        for reserved in &self.node.reserved {
            let ReservedCgroup { what, name, cgroup, .. } = reserved;
            let mut settings = reserved.amounts.settings(reserved.only_compressible);
            if let Some(bytes) = settings.memory.filter(|_| self.node.memory_qos) {
                settings.unified.insert("memory.min", bytes.to_string());
            }
            let cgroup_name = CgroupName::of(self.manager.driver(), cgroup);
            let path = self.manager.path(&cgroup_name)?;
            let valid = self.manager.cgroups.validate(&path);
            let limited = valid.and_then(|()| self.manager.update(&cgroup_name, &settings));
            if let Err(error) = limited {
                let text = format!("Failed to enforce {what} Cgroup Limits on {cgroup:?}: {error}");
                self.events.warning(&node, NOT_ENFORCED, text.as_str());
                anyhow::bail!(text);
            }
            let text = format!("Updated limits on {name} reserved cgroup {cgroup}");
            self.events.normal(&node, ENFORCED, text);
        }
        Ok(())
    }

    fn ensure_exists(&self, pod: &Pod, actuated: Option<&Pod>) -> anyhow::Result<PodCgroup> {
        if let Err(error) = self.update_qos_cgroups(false) {
            tracing::info!(
                pod = %pod.log_name(),
                err = %error,
                "Failed to update QoS cgroups while syncing pod"
            );
        }
        let name = self.pod_cgroup(pod)?;
        let path = self.manager.path(&name)?;
        if !self.manager.exists(&name) {
            self.manager
                .create(&name)
                .with_context(|| format!("failed to create container for {path}"))?;
        }
        let set = self.manager.update(&name, &self.higher_settings(pod, actuated)?);
        Ok(PodCgroup {
            parent: path.to_string(),
            limit_error: set.err().map(|error| error.to_string()),
        })
    }

    fn pod_settings(&self, pod: &Pod) -> anyhow::Result<CgroupSettings> {
        let mut rules = self.node.rules.clone();
        rules.enforcement.cfs_quota &= !self.managers.has_no_cpu_quota(pod);
        Ok(resource_config::resource_config_for_pod(pod, &rules)?)
    }

    /// The settings of a pod; with `actuated`, the higher limits of both.
    fn higher_settings(&self, pod: &Pod, actuated: Option<&Pod>) -> anyhow::Result<CgroupSettings> {
        let mut settings = self.pod_settings(pod)?;
        if let Some(actuated) = actuated {
            settings = resource_config::higher_limits(settings, &self.pod_settings(actuated)?);
        }
        Ok(settings)
    }

    fn set_limits(&self, pod: &Pod, actuated: Option<&Pod>) -> anyhow::Result<()> {
        self.update_qos_cgroups(false).context("failed to update QoS cgroups")?;
        let settings = self.higher_settings(pod, actuated)?;
        let name = self.pod_cgroup(pod)?;
        let limited = self.manager.update(&name, &settings);
        limited.with_context(|| format!("failed to set cgroup config for {:?}", name.parts()))
    }

    fn destroy(&self, uid: &PodUid) -> std::io::Result<()> {
        for name in self.pod_cgroups(uid) {
            self.manager.destroy(&name)?;
        }
        Ok(())
    }

    fn pods_with_cgroups(&self) -> std::io::Result<BTreeSet<PodUid>> {
        let mut found = BTreeSet::new();
        for class in QOS_CLASSES {
            for name in self.manager.children(&self.qos_cgroup(class))? {
                let uid = name.base().strip_prefix(POD_PREFIX);
                found.extend(uid.filter(|uid| !uid.is_empty()).map(PodUid::from));
            }
        }
        Ok(found)
    }
}

fn without_overhead(pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    if let Some(spec) = &mut pod.spec {
        spec.overhead = None;
    }
    pod
}
