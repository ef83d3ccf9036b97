//! The device manager: executes the allocations that [`super::state`] computes.

use super::allocation::{Allocation, ContainerAllocations};
use super::checkpoint;
use super::client::PluginClient;
use super::error::{AllocateError, DeviceAllocationError};
use super::metrics::DeviceMetrics;
use super::request::{Affinities, PodRequest};
use super::run_options::{RunOptions, run_options};
use super::state::{
    AllocationStep, DeviceHints, DeviceManagerCache, DeviceMap, DeviceReservation, PluginId,
};
use crate::base::metrics::Metrics;
use crate::base::panics::{PanicScope, catch_panic};
use crate::base::{DirtySet, ScopedTask, clock, spawn_scoped};
use crate::model::{Pod, PodExt as _, PodUid};
use crate::resources::checkpoint_file::CheckpointFile;
use crate::resources::topology::{self, NumaMask};
use crate::state::device_capacity::{DeviceCapacity, DeviceCapacityWriter};
use k8s_openapi::api::core::v1::{Container, ResourceHealth, ResourceStatus};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Name of the checkpoint, as upstream's. A damaged one is renamed and kept; as long as it exists, running containers
/// may have unknown devices.
pub const CHECKPOINT: &str = "kubelet_internal_checkpoint";

/// Whether the device manager's checkpoint below this root directory can be read; a file that does not exist can. Blocking.
///
/// # Errors
/// It is damaged, or an earlier kubelet renamed a damaged one.
pub fn check_device_checkpoint(root: &Path) -> Result<(), String> {
    let file = CheckpointFile::new(root.join("device-plugins").join(CHECKPOINT));
    file.check(checkpoint::decode)
}

/// The pod whose devices changed; `None` for all pods that wait for devices.
pub type DeviceChange = Option<PodUid>;

/// The device manager; cheap to clone.
#[derive(Clone)]
pub struct DeviceManager(pub(super) Arc<DeviceManagerState>);

pub(super) struct DeviceManagerState {
    pub(super) directory: PathBuf,
    pub(super) plugins: Mutex<DevicePlugins>,
    pub(super) metrics: DeviceMetrics,
    pub(super) stop: CancellationToken,
    /// Allocations in progress, and failures that the next call of [`DeviceManager::allocate`] returns.
    pending: Mutex<HashMap<PodUid, PendingAllocation>>,
    pub(super) changed: DirtySet<DeviceChange>,
    pub(super) capacity: DeviceCapacityWriter,
    /// Whether there was no checkpoint.
    had_no_checkpoint: bool,
    pub(super) file: CheckpointFile,
    /// Wakes [`DeviceManager::run_housekeeping`].
    pub(super) housekeeping: Notify,
}

/// State that is guarded by one lock.
pub(super) struct DevicePlugins {
    pub(super) state: DeviceManagerCache,
    pub(super) clients: HashMap<PluginId, PluginConnection>,
    /// Number of changes of allocations.
    pub(super) changes: u64,
    /// Number of changes that the checkpoint contains.
    pub(super) saved_changes: u64,
}

impl DevicePlugins {
    /// Whether the checkpoint lacks an allocation or a release.
    fn is_unsaved(&self) -> bool {
        self.saved_changes < self.changes
    }
}

pub(super) struct PluginConnection {
    pub(super) resource: String,
    pub(super) client: PluginClient,
    pub(super) _watch: ScopedTask,
}

/// An allocation for a pod that is waiting for admission.
enum PendingAllocation {
    InProgress { _task: ScopedTask },
    Failed(DeviceAllocationError),
}

impl DeviceManager {
    /// Reads the checkpoint. Blocking.
    pub fn open(root: &Path, metrics: &Metrics) -> Self {
        let directory = root.join("device-plugins");
        let file = CheckpointFile::new(directory.join(CHECKPOINT));
        let (data, damaged) = match file.read(checkpoint::decode) {
            Ok(data) => (data, file.has_damaged()),
            Err(error) => {
                tracing::error!(path = %file.path().display(), err = error, "Failed to read data from checkpoint");
                file.rename_damaged();
                (None, true)
            }
        };
        let had_no_checkpoint = data.is_none() && !damaged;
        let mut state = DeviceManagerCache::restore(&data.unwrap_or_default(), clock::instant());
        if damaged {
            tracing::warn!(
                "Devices of some containers are unknown; devices that a running container may use are not allocated"
            );
            state.mark_damaged();
        }
        let capacity = DeviceCapacityWriter::default();
        capacity.set(state.capacities());
        Self(Arc::new(DeviceManagerState {
            directory,
            plugins: Mutex::new(DevicePlugins {
                state,
                clients: HashMap::new(),
                changes: 0,
                saved_changes: 0,
            }),
            metrics: DeviceMetrics::register(metrics),
            stop: CancellationToken::new(),
            pending: Mutex::default(),
            changed: DirtySet::default(),
            capacity,
            had_no_checkpoint,
            file,
            housekeeping: Notify::new(),
        }))
    }

    pub(super) fn state(&self) -> MappedMutexGuard<'_, DeviceManagerCache> {
        MutexGuard::map(self.0.plugins.lock(), |plugins| &mut plugins.state)
    }

    /// Whether no kubelet of this node has had plugins (upstream's `ShouldResetExtendedResourceCapacity`).
    pub fn should_reset_capacity(&self) -> bool {
        self.0.had_no_checkpoint
    }

    /// The node's capacity of each resource.
    pub fn capacity(&self) -> DeviceCapacity {
        self.0.capacity.reader()
    }

    /// Waits for pods whose devices changed and takes them.
    pub async fn changed(&self) -> HashSet<DeviceChange> {
        self.0.changed.take().await
    }

    // -- admission -----------------------------------------------------------------------------------------------

    /// Starts the allocation of a pod's devices without waiting; later calls return its outcome. `align` allocates
    /// the other resources of the pod and returns the NUMA affinities of its containers.
    ///
    /// # Errors
    /// The pod does not have all of its devices.
    pub fn allocate(
        &self,
        pod: &Pod,
        align: impl FnOnce() -> Result<Affinities, topology::TopologyError>,
    ) -> Result<(), AllocateError> {
        let request = PodRequest::of(pod);
        if request.is_empty() {
            return Ok(());
        }
        let mut pending = self.0.pending.lock();
        match pending.remove(&request.uid) {
            Some(PendingAllocation::Failed(error)) => return Err(AllocateError::Failed(error)),
            Some(in_progress @ PendingAllocation::InProgress { .. }) => {
                pending.insert(request.uid, in_progress);
                return Err(AllocateError::InProgress);
            }
            None => {}
        }
        let request = if self.state().is_missing_devices(&request) {
            request.aligned(&align().map_err(AllocateError::Misaligned)?)
        } else {
            request
        };
        {
            let mut plugins = self.0.plugins.lock();
            let step = plugins.state.next(&request, None, None);
            let has_all = step.map_err(AllocateError::Failed)? == AllocationStep::Done;
            let unsaved = plugins.is_unsaved() && plugins.state.of_pod(&request.uid).is_some();
            if has_all && !unsaved {
                return Ok(());
            }
        }
        let (manager, uid) = (self.clone(), request.uid.clone());
        let task = spawn_scoped(PanicScope::Other, async move {
            let done = catch_panic(PanicScope::Other, manager.carry_out(&request, None)).await;
            let done = done
                .unwrap_or_else(|error| Err(DeviceAllocationError::Allocate(error.to_string())));
            manager.finish(&request.uid, done);
        });
        pending.insert(uid, PendingAllocation::InProgress { _task: task });
        Err(AllocateError::InProgress)
    }

    fn finish(&self, uid: &PodUid, done: Result<(), DeviceAllocationError>) {
        let mut pending = self.0.pending.lock();
        // Otherwise the devices were released in the meantime.
        if !matches!(pending.remove(uid), Some(PendingAllocation::InProgress { .. })) {
            return;
        }
        if let Err(error) = done {
            self.state().release_unprepared(uid);
            pending.insert(uid.clone(), PendingAllocation::Failed(error));
        }
        self.0.changed.mark(Some(uid.clone()));
    }

    /// Releases the devices of a pod that was rejected, or whose containers have all exited. Call it before
    /// anything that may fail, such as the teardown of volumes: the scheduler already counts the devices as free.
    pub fn release(&self, uid: &PodUid) {
        let pending = self.0.pending.lock().remove(uid);
        drop(pending);
        let released = {
            let mut plugins = self.0.plugins.lock();
            let released = plugins.state.release(uid);
            plugins.changes += u64::from(released);
            released
        };
        if released {
            self.0.housekeeping.notify_one();
            self.0.changed.mark(None);
        }
    }

    /// Releases the devices of removed pods. Call it only when all pods, desired and running, are known.
    pub fn retain(&self, is_known: impl Fn(&PodUid) -> bool) {
        let pods = self.state().pods();
        for uid in pods.iter().filter(|uid| !is_known(uid)) {
            tracing::info!("podUID" = %uid, "Releasing devices of a pod that is gone");
            self.release(uid);
        }
    }

    /// NUMA hints for the devices of a pod, on a machine with these NUMA nodes.
    pub fn hints(&self, pod: &Pod, nodes: NumaMask) -> DeviceHints {
        if PodRequest::of(pod).is_empty() {
            return DeviceHints::default();
        }
        DeviceHints::new(self.state().clone(), nodes)
    }

    /// Pods that have devices of a resource.
    pub fn pods_using(&self, resource: &str) -> Vec<PodUid> {
        self.state().pods_using(resource)
    }

    /// Number of allocated devices by resource; `None` if none are allocated to this pod.
    pub fn allocated_for_admission(&self, uid: &PodUid) -> Option<BTreeMap<String, i64>> {
        let state = self.state();
        state.of_pod(uid).map(|_| state.allocated())
    }

    /// Records that a pod is running already; see [`Self::inventory_complete`].
    pub fn mark_running(&self, pod: &Pod) {
        let mut state = self.state();
        if state.is_damaged() {
            state.mark_running(&PodRequest::of(pod));
        }
    }

    /// Whether [`Self::inventory_complete`] is awaited.
    pub fn needs_inventory(&self) -> bool {
        self.state().is_damaged()
    }

    /// Reports that all running pods have been marked. After a damaged checkpoint, allows allocations of the resources
    /// of which no running container can have a device.
    pub fn inventory_complete(&self) {
        let mut state = self.state();
        if state.is_damaged() && state.inventory_complete() {
            drop(state);
            tracing::info!(
                "No running container has unknown devices any more; allocations are enabled"
            );
            self.0.housekeeping.notify_one();
            self.0.changed.mark(None);
        }
    }

    // -- containers ----------------------------------------------------------------------------------------------

    /// The devices, mounts, environment and annotations for a container. Allocates missing devices, because a plugin
    /// may have registered after the admission of the pod.
    ///
    /// # Errors
    /// The container cannot have its devices.
    pub async fn run_options(
        &self,
        pod: &Pod,
        container: &Container,
    ) -> Result<RunOptions, DeviceAllocationError> {
        let (request, name) = (PodRequest::of(pod), &container.name);
        let mut all = request.containers.iter();
        let own = all.find(|own| own.name == *name && !own.amounts.is_empty());
        let Some(own) = own else {
            return Ok(RunOptions::default());
        };
        let (missing, unsaved) = {
            let mut plugins = self.0.plugins.lock();
            let unsaved = plugins.is_unsaved();
            let state = &mut plugins.state;
            state.mark_starting(&request.uid, name);
            let missing = own.amounts.keys().any(|resource| {
                let known = state.allocation(&request.uid, name, resource);
                let has = known.is_some_and(|known| known.response.is_some());
                !has && (known.is_some()
                    || state.is_damaged()
                    || state.is_device_resource(resource))
            });
            (missing, unsaved && state.of_pod(&request.uid).is_some())
        };
        if missing {
            self.carry_out(&request, Some(name)).await?;
        } else if unsaved {
            self.save().await.map_err(DeviceAllocationError::Checkpoint)?;
        }
        for resource in own.amounts.keys() {
            self.pre_start(&request.uid, name, resource).await?;
        }
        let (options, conflicts) = {
            let state = self.state();
            let all = state.of_pod(&request.uid).and_then(|all| all.get(name));
            all.map(run_options).unwrap_or_default()
        };
        if !conflicts.is_empty() {
            tracing::error!(
                pod = %pod.log_name(),
                containerName = name,
                conflicts = conflicts.join(", "),
                "Device plugins have conflicting settings"
            );
        }
        Ok(options)
    }

    async fn pre_start(
        &self,
        uid: &PodUid,
        container: &str,
        resource: &str,
    ) -> Result<(), DeviceAllocationError> {
        let (plugin, devices) = {
            let state = self.state();
            let own = state.allocation(uid, container, resource);
            let Some((id, options)) = state.plugin(resource) else {
                // Without a plugin, the resource is not a device resource of this node.
                return own
                    .map_or(Ok(()), |_| Err(DeviceAllocationError::NoEndpoint(resource.into())));
            };
            if !options.pre_start_required {
                return Ok(());
            }
            let devices = own.map(|own| own.ids().into_iter().cloned().collect::<Vec<_>>());
            (id, devices.unwrap_or_default())
        };
        let stopped = || DeviceAllocationError::Stopped(resource.into());
        let client = plugin.and_then(|id| self.client(id)).ok_or_else(stopped)?;
        client.pre_start(devices).await
    }

    #[cfg(test)]
    pub(super) fn clients(&self) -> usize {
        self.0.plugins.lock().clients.len()
    }

    /// The allocations of a container, by resource.
    pub fn of_container(&self, uid: &PodUid, container: &str) -> ContainerAllocations {
        let state = self.state();
        let own = state.of_pod(uid).and_then(|all| all.get(container));
        own.cloned().unwrap_or_default()
    }

    /// The health of a container's devices, for its status.
    pub fn health_of(&self, uid: &PodUid, container: &str) -> Vec<ResourceStatus> {
        let state = self.state();
        let own = state.of_pod(uid).and_then(|all| all.get(container));
        let of_resource = |(name, own): (&String, &Allocation)| {
            let resources = own.ids().into_iter().map(|id| {
                let healthy = state.is_healthy(name, id);
                ResourceHealth {
                    resource_id: id.clone(),
                    health: Some(if healthy { "Healthy" } else { "Unhealthy" }.into()),
                    ..ResourceHealth::default()
                }
            });
            ResourceStatus { name: name.clone(), resources: Some(resources.collect()) }
        };
        own.into_iter().flatten().map(of_resource).collect()
    }

    /// Healthy devices of each resource.
    pub fn allocatable(&self) -> BTreeMap<String, DeviceMap> {
        self.state().allocatable()
    }

    // -- effects -------------------------------------------------------------------------------------------------

    /// Executes allocation steps until a pod, or one container of it, has its devices, and saves the checkpoint.
    async fn carry_out(
        &self,
        request: &PodRequest,
        only: Option<&str>,
    ) -> Result<(), DeviceAllocationError> {
        let mut preferred = None;
        loop {
            let step = self.state().next(request, only, preferred.as_deref())?;
            preferred = None;
            match step {
                AllocationStep::Done => break,
                AllocationStep::GetPreferred(wanted) => {
                    let client = self.client(wanted.plugin);
                    let stopped = || {
                        DeviceAllocationError::GetPreferredAllocation("the plugin is gone".into())
                    };
                    preferred =
                        Some(client.ok_or_else(stopped)?.get_preferred_allocation(wanted).await?);
                }
                AllocationStep::Allocate(reservation) => self.prepare(&reservation).await?,
            }
        }
        self.save().await.map_err(DeviceAllocationError::Checkpoint)
    }

    async fn prepare(&self, reservation: &DeviceReservation) -> Result<(), DeviceAllocationError> {
        let began = clock::instant();
        let response = match self.client(reservation.plugin) {
            Some(client) => client.allocate(reservation.devices.clone()).await,
            None => Err(DeviceAllocationError::Stopped(reservation.resource.clone())),
        };
        let metric = self.0.metrics.allocations.with([&reservation.resource]);
        metric.observe(clock::since(began).as_secs_f64());
        let mut plugins = self.0.plugins.lock();
        match response {
            Ok(response) => {
                let is_kept = plugins.state.allocate(reservation, response);
                plugins.changes += u64::from(is_kept);
                is_kept.then_some(()).ok_or(DeviceAllocationError::Released)
            }
            Err(error) => {
                plugins.state.fail_allocation(reservation);
                Err(error)
            }
        }
    }

    fn client(&self, id: PluginId) -> Option<PluginClient> {
        let plugins = self.0.plugins.lock();
        plugins.clients.get(&id).map(|connection| connection.client.clone())
    }
}
