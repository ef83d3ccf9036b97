//! The device manager: carries out what [`super::state`] decides.

use super::{
    allocation::{Allocation, ContainerAllocations},
    checkpoint_file::{CHECKPOINT, CheckpointFile, Found},
    client::PluginClient,
    error::{AllocationError, Unallocated},
    metrics::DeviceMetrics,
    request::{Affinities, PodRequest},
    run_options::{RunOptions, run_options},
    state::{DeviceHints, DeviceMap, DeviceState, PluginId, Reservation, Step},
};
use crate::{
    base::{
        DirtySet,
        metrics::Metrics,
        panics::{Place, contain},
    },
    model::{Pod, PodExt as _, PodUid},
    resources::topology::{self, NumaMask},
    state::device_capacity::{DeviceCapacity, DeviceCapacityWriter},
};
use k8s_openapi::api::core::v1::{Container, ResourceHealth, ResourceStatus};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

/// Something about devices changed: for a pod, or for all that wait for some.
pub type Change = Option<PodUid>;

/// The device manager; cheap to clone.
#[derive(Clone)]
pub struct DeviceManager(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pub(super) directory: PathBuf,
    pub(super) plugins: Mutex<Plugins>,
    pub(super) metrics: DeviceMetrics,
    pub(super) stop: CancellationToken,
    pending: Mutex<HashMap<PodUid, Pending>>,
    changed: DirtySet<Change>,
    capacity: DeviceCapacityWriter,
    /// There was no checkpoint.
    fresh: bool,
    file: CheckpointFile,
    /// Something is to be saved, or a plugin is gone whose time runs out.
    pub(super) keep_wanted: Notify,
}

/// What changes together.
pub(super) struct Plugins {
    pub(super) state: DeviceState,
    pub(super) clients: HashMap<PluginId, Connection>,
    /// How many times allocations changed, and how many of these changes the checkpoint has.
    changes: u64,
    saved: u64,
}

impl Plugins {
    /// The checkpoint lacks something that pods have or had.
    fn is_unsaved(&self) -> bool {
        self.saved < self.changes
    }
}

/// A registered plugin.
pub(super) struct Connection {
    pub(super) resource: String,
    pub(super) client: PluginClient,
    pub(super) _watch: AbortOnDropHandle<()>,
}

/// An allocation for a pod that waits to be admitted.
enum Pending {
    InProgress { _task: AbortOnDropHandle<()> },
    Failed(AllocationError),
}

impl DeviceManager {
    /// Reads what containers were given. Blocking.
    pub fn open(root: &Path, metrics: &Metrics) -> Self {
        let directory = root.join("device-plugins");
        let file = CheckpointFile::new(directory.clone());
        let Found { data, damaged } = file.read();
        let fresh = data.is_none() && !damaged;
        let mut state = DeviceState::restore(&data.unwrap_or_default(), Instant::now());
        if damaged {
            tracing::warn!(
                "The devices of some containers are not known; none is allocated that a running one may have"
            );
            state.mark_damaged();
        }
        let capacity = DeviceCapacityWriter::default();
        capacity.set(state.capacities());
        Self(Arc::new(Shared {
            directory,
            plugins: Mutex::new(Plugins {
                state,
                clients: HashMap::new(),
                changes: 0,
                saved: 0,
            }),
            metrics: DeviceMetrics::new(metrics),
            stop: CancellationToken::new(),
            pending: Mutex::default(),
            changed: DirtySet::default(),
            capacity,
            fresh,
            file,
            keep_wanted: Notify::new(),
        }))
    }

    pub(super) fn state(&self) -> MappedMutexGuard<'_, DeviceState> {
        MutexGuard::map(self.0.plugins.lock(), |plugins| &mut plugins.state)
    }

    /// Whether no kubelet of this node has had plugins (upstream's `ShouldResetExtendedResourceCapacity`).
    pub fn is_fresh(&self) -> bool {
        self.0.fresh
    }

    /// What the node has of each resource.
    pub fn capacity(&self) -> DeviceCapacity {
        self.0.capacity.reader()
    }

    /// Waits until something changed for pods.
    pub async fn changed(&self) -> HashSet<Change> {
        self.0.changed.take().await
    }

    // -- admission -----------------------------------------------------------------------------------------------

    /// Has devices allocated for a pod. Does not wait: the first call for a pod starts that, a later one says how it
    /// went. `align` says near to which NUMA nodes they are to be.
    ///
    /// # Errors
    /// The pod does not have all of its devices.
    pub fn allocate(
        &self,
        pod: &Pod,
        align: impl FnOnce() -> Result<Affinities, topology::AllocationError>,
    ) -> Result<(), Unallocated> {
        let request = PodRequest::of(pod);
        if request.is_empty() {
            return Ok(());
        }
        let mut pending = self.0.pending.lock();
        match pending.remove(&request.uid) {
            Some(Pending::Failed(error)) => return Err(Unallocated::Failed(error)),
            Some(in_progress @ Pending::InProgress { .. }) => {
                pending.insert(request.uid, in_progress);
                return Err(Unallocated::InProgress);
            }
            None => {}
        }
        let request = if self.state().lacks_some(&request) {
            request.aligned(&align().map_err(Unallocated::Misaligned)?)
        } else {
            request
        };
        {
            let mut plugins = self.0.plugins.lock();
            let step = plugins.state.next(&request, None, None);
            let has_all = step.map_err(Unallocated::Failed)? == Step::Done;
            let unsaved = plugins.is_unsaved() && plugins.state.of_pod(&request.uid).is_some();
            if has_all && !unsaved {
                return Ok(());
            }
        }
        let (manager, uid) = (self.clone(), request.uid.clone());
        let task = tokio::spawn(async move {
            let done = contain(Place::Other, manager.carry_out(&request, None)).await;
            let done =
                done.unwrap_or_else(|error| Err(AllocationError::Allocate(error.to_string())));
            manager.finish(&request.uid, done);
        });
        let task = AbortOnDropHandle::new(task);
        pending.insert(uid, Pending::InProgress { _task: task });
        Err(Unallocated::InProgress)
    }

    fn finish(&self, uid: &PodUid, done: Result<(), AllocationError>) {
        let mut pending = self.0.pending.lock();
        // It was released meanwhile.
        if !matches!(pending.remove(uid), Some(Pending::InProgress { .. })) {
            return;
        }
        if let Err(error) = done {
            self.state().abandon(uid);
            pending.insert(uid.clone(), Pending::Failed(error));
        }
        self.0.changed.mark(Some(uid.clone()));
    }

    /// Nothing of a pod runs any more, or it is not admitted: others may have its devices.
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
            self.0.keep_wanted.notify_one();
            self.0.changed.mark(None);
        }
    }

    /// Releases what pods had that are gone. All pods of the node are known, and all that runs on it.
    pub fn retain(&self, is_here: impl Fn(&PodUid) -> bool) {
        let pods = self.state().pods();
        for uid in pods.iter().filter(|uid| !is_here(uid)) {
            tracing::info!("podUID" = %uid, "Releasing devices of a pod that is gone");
            self.release(uid);
        }
    }

    /// Where the devices of a pod are or could be, on a machine with these NUMA nodes.
    pub fn hints(&self, pod: &Pod, nodes: NumaMask) -> DeviceHints {
        if PodRequest::of(pod).is_empty() {
            return DeviceHints::default();
        }
        DeviceHints::new(self.state().clone(), nodes)
    }

    /// Pods that have devices of a resource.
    pub fn holders(&self, resource: &str) -> Vec<PodUid> {
        self.state().holders(resource)
    }

    /// How many devices of each resource are allocated, if some are to this pod.
    pub fn allocated_beside(&self, uid: &PodUid) -> Option<BTreeMap<String, i64>> {
        let state = self.state();
        state.of_pod(uid).map(|_| state.allocated())
    }

    /// A pod that was found running; see [`Self::survey`].
    pub fn found_running(&self, pod: &Pod) {
        let mut state = self.state();
        if state.is_damaged() {
            state.found_running(&PodRequest::of(pod));
        }
    }

    /// All that runs on the node has been found. After a damaged checkpoint, devices may be allocated again of which
    /// no running container can have one.
    pub fn survey(&self) {
        let mut state = self.state();
        if state.is_damaged() && state.surveyed() {
            drop(state);
            tracing::info!("All running containers' devices are known again");
            self.0.keep_wanted.notify_one();
            self.0.changed.mark(None);
        }
    }

    // -- containers ----------------------------------------------------------------------------------------------

    /// What a container that is about to be created needs to use its devices. Devices that it does not have yet are
    /// allocated: a plugin may have registered only after the pod was admitted.
    ///
    /// # Errors
    /// The container does not get its devices.
    pub async fn run_options(
        &self,
        pod: &Pod,
        container: &Container,
    ) -> Result<RunOptions, AllocationError> {
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
            state.starting(&request.uid, name);
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
            self.save().await.map_err(AllocationError::Checkpoint)?;
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
                pod = %pod.full_name(),
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
    ) -> Result<(), AllocationError> {
        let (plugin, devices) = {
            let state = self.state();
            let own = state.allocation(uid, container, resource);
            let Some((id, options)) = state.plugin(resource) else {
                // A resource that no plugin has served is not of this node.
                return own.map_or(Ok(()), |_| {
                    Err(AllocationError::NoEndpoint(resource.into()))
                });
            };
            if !options.pre_start_required {
                return Ok(());
            }
            let devices = own.map(|own| own.ids().into_iter().cloned().collect::<Vec<_>>());
            (id, devices.unwrap_or_default())
        };
        let stopped = || AllocationError::Stopped(resource.into());
        let client = plugin.and_then(|id| self.client(id)).ok_or_else(stopped)?;
        client.pre_start(devices).await
    }

    #[cfg(test)]
    pub(super) fn clients(&self) -> usize {
        self.0.plugins.lock().clients.len()
    }

    /// What a container has, by resource.
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
            ResourceStatus {
                name: name.clone(),
                resources: Some(resources.collect()),
            }
        };
        own.into_iter().flatten().map(of_resource).collect()
    }

    /// Healthy devices of each resource.
    pub fn allocatable(&self) -> BTreeMap<String, DeviceMap> {
        self.state().allocatable()
    }

    // -- effects -------------------------------------------------------------------------------------------------

    /// Takes step after step until a pod, or one container of it, has its devices, and this is recorded.
    async fn carry_out(
        &self,
        request: &PodRequest,
        only: Option<&str>,
    ) -> Result<(), AllocationError> {
        let mut preferred = None;
        loop {
            let step = self.state().next(request, only, preferred.as_deref())?;
            preferred = None;
            match step {
                Step::Done => break,
                Step::Prefer(wanted) => {
                    let client = self.client(wanted.plugin);
                    let stopped = || AllocationError::Prefer("the plugin is gone".into());
                    preferred = Some(client.ok_or_else(stopped)?.prefer(wanted).await?);
                }
                Step::Allocate(reservation) => self.prepare(&reservation).await?,
            }
        }
        self.save().await.map_err(AllocationError::Checkpoint)
    }

    async fn prepare(&self, reservation: &Reservation) -> Result<(), AllocationError> {
        let began = Instant::now();
        let response = match self.client(reservation.plugin) {
            Some(client) => client.allocate(reservation.devices.clone()).await,
            None => Err(AllocationError::Stopped(reservation.resource.clone())),
        };
        self.0
            .metrics
            .allocated(&reservation.resource, began.elapsed());
        let mut plugins = self.0.plugins.lock();
        match response {
            Ok(response) => {
                let is_kept = plugins.state.allocate(reservation, response);
                plugins.changes += u64::from(is_kept);
                is_kept.then_some(()).ok_or(AllocationError::Released)
            }
            Err(error) => {
                plugins.state.refuse(reservation);
                Err(error)
            }
        }
    }

    fn client(&self, id: PluginId) -> Option<PluginClient> {
        let plugins = self.0.plugins.lock();
        plugins
            .clients
            .get(&id)
            .map(|connection| connection.client.clone())
    }

    /// The devices of plugins changed.
    pub(super) async fn publish(&self, pods: impl IntoIterator<Item = PodUid>) {
        {
            // Under the lock: an older value must not replace a newer one.
            let state = self.state();
            self.0.capacity.set(state.capacities());
        }
        let pods = pods.into_iter().map(Some);
        self.0.changed.mark_all(pods.chain([None]));
        self.save_or_report().await;
    }

    async fn save(&self) -> Result<(), String> {
        let (before, after) = (self.0.clone(), self.0.clone());
        let snapshot = move || {
            let plugins = before.plugins.lock();
            (plugins.state.clone(), plugins.changes)
        };
        let saved = move |changes| {
            let mut plugins = after.plugins.lock();
            plugins.saved = plugins.saved.max(changes);
        };
        self.0.file.save(snapshot, saved).await
    }

    async fn save_or_report(&self) {
        if let Err(error) = self.save().await {
            tracing::error!(
                checkpoint = CHECKPOINT,
                err = error,
                "Failed to write checkpoint file"
            );
        }
    }

    /// Saves what was released, and forgets resources whose plugins do not come back.
    pub(super) async fn keep(&self) {
        loop {
            let expiry = self.state().next_expiry();
            let over = async {
                match expiry {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.0.keep_wanted.notified() => self.save_or_report().await,
                () = over => {
                    if self.state().expire(Instant::now()) {
                        self.publish([]).await;
                    }
                }
            }
        }
    }
}
