//! The DRA manager: prepares and unprepares ResourceClaims.

use super::claims::{self, PodClaim};
use super::error::DraError;
use super::health::{DeviceKey, HealthInfoCache};
use super::metrics::DraMetrics;
use super::proto::Claim;
use super::registry::DraDrivers;
use super::state::{ClaimInfo, ClaimInfoCache, ContainerClaim, PreparedDevice, ResourceClaimKey};
use super::unrecovered::UnrecoveredPods;
use super::{checkpoint, slices};
use crate::apiserver::{ApiServer, ResourcePath};
use crate::base::metrics::Metrics;
use crate::base::panics::{PanicScope, catch_panic};
use crate::base::{DirtySet, KeyedLock, clock, error_chain, spawn};
use crate::cri::v1::CdiDevice;
use crate::model::{Pod, PodExt as _, PodUid};
use crate::resources::checkpoint_file::{CheckpointFile, CheckpointWriter};
use k8s_openapi::api::core::v1::{Container, ResourceStatus};
use k8s_openapi::api::resource::v1::ResourceClaim;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Name of the checkpoint, as upstream's.
pub const CHECKPOINT: &str = "dra_manager_state";

/// Whether the DRA manager's checkpoint below this root directory can be read; a file that does not exist can. Blocking.
///
/// # Errors
/// It is damaged, or an earlier kubelet renamed a damaged one.
pub fn check_claim_checkpoint(root: &Path) -> Result<(), String> {
    CheckpointFile::new(root.join(CHECKPOINT)).check(checkpoint::decode)
}

/// The DRA manager; cheap to clone.
#[derive(Clone)]
pub struct DraManager(pub(super) Arc<DraManagerState>);

pub(super) struct DraManagerState {
    pub(super) api: Option<ApiServer>,
    pub(super) node_name: String,
    pub(super) drivers: Mutex<DraDrivers>,
    pub(super) health: Mutex<HealthInfoCache>,
    pub(super) metrics: DraMetrics,
    pub(super) stop: CancellationToken,
    pub(super) claims: Mutex<ClaimInfoCache>,
    /// The pods whose claims may be unknown, because the checkpoint was damaged.
    pub(super) unrecovered: Mutex<UnrecoveredPods>,
    /// Held while a claim is prepared or unprepared.
    pub(super) locks: KeyedLock<ResourceClaimKey>,
    /// Pods that wait for a driver to connect, by driver.
    pub(super) waiting: Mutex<HashMap<String, HashSet<PodUid>>>,
    /// Removed pods whose claims are being unprepared.
    unpreparing: Mutex<HashSet<PodUid>>,
    changed: DirtySet<PodUid>,
    pub(super) file: CheckpointFile,
}

/// A ResourceClaim that was read from the API server.
pub(super) struct ReadClaim {
    pub(super) key: ResourceClaimKey,
    pub(super) uid: String,
    pub(super) drivers: Vec<String>,
    /// The pods in `status.reservedFor`.
    pub(super) users: Vec<PodUid>,
}

impl DraManager {
    /// Reads the checkpoint. Blocking.
    pub fn open(root: &Path, node_name: &str, api: Option<ApiServer>, metrics: &Metrics) -> Self {
        let file = CheckpointFile::new(root.join(CHECKPOINT));
        let (claims, checkpoint_damaged) = match file.read(checkpoint::decode) {
            // Also after another restart: pods of the time before may still run.
            Ok(claims) => (claims, file.has_damaged()),
            Err(error) => {
                tracing::error!(
                    path = %file.path().display(),
                    err = error,
                    "Failed to read the DRA checkpoint; the claims of removed pods will not be unprepared"
                );
                file.rename_damaged();
                (None, true)
            }
        };
        Self(Arc::new(DraManagerState {
            api,
            node_name: node_name.to_owned(),
            drivers: Mutex::default(),
            health: Mutex::default(),
            metrics: DraMetrics::new(metrics),
            stop: CancellationToken::new(),
            claims: Mutex::new(claims.unwrap_or_default()),
            unrecovered: Mutex::new(if checkpoint_damaged {
                UnrecoveredPods::All
            } else {
                UnrecoveredPods::default()
            }),
            locks: KeyedLock::default(),
            waiting: Mutex::default(),
            unpreparing: Mutex::default(),
            changed: DirtySet::default(),
            file,
        }))
    }

    /// Deletes ResourceSlices of an earlier kubelet, then waits for shutdown; dropping it stops all driver tasks.
    ///
    /// # Errors
    /// Never fails.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let _stop = self.0.stop.clone().drop_guard();
        if let Some(api) = &self.0.api {
            let wiping = slices::wipe(api, &self.0.node_name, None);
            shutdown.run_until_cancelled(wiping).await;
        }
        shutdown.cancelled().await;
        Ok(())
    }

    /// Waits for pods whose driver connected or whose device health changed, and takes them.
    pub async fn changed(&self) -> HashSet<PodUid> {
        self.0.changed.take().await
    }

    pub(super) fn wake_waiting(&self, driver: &str) {
        let pods = self.0.waiting.lock().remove(driver);
        self.0.changed.mark_all(pods.unwrap_or_default());
    }

    pub(super) fn health_changed(&self, driver: &str, devices: &[DeviceKey]) {
        let pods = {
            let claims = self.0.claims.lock();
            let users = devices.iter();
            let users = users.flat_map(|(pool, device)| claims.users(driver, pool, device));
            users.collect::<BTreeSet<_>>()
        };
        self.0.changed.mark_all(pods);
    }

    // -- pods ----------------------------------------------------------------------------------------------------

    /// Prepares all claims of a pod, before its sandbox is created. Cancel safe and idempotent.
    ///
    /// # Errors
    /// A claim could not be prepared.
    pub async fn prepare(&self, pod: &Pod) -> Result<(), DraError> {
        let started_at = clock::instant();
        let prepared = match claims::of_pod(pod) {
            Ok(wanted) if wanted.is_empty() => return Ok(()),
            Ok(wanted) => self.prepare_all(pod, &wanted).await,
            Err(error) => Err(error),
        };
        let took = clock::since(started_at);
        let metrics = &self.0.metrics;
        metrics.operated("PrepareResources", prepared.is_err(), took);
        if let Err(DraError::NotRegistered(driver) | DraError::NotConnected(driver)) = &prepared {
            let mut waiting = self.0.waiting.lock();
            waiting.entry(driver.clone()).or_default().insert(pod.uid());
            drop(waiting);
            if self.0.drivers.lock().is_usable(driver) {
                self.wake_waiting(driver);
            }
        }
        prepared
    }

    async fn prepare_all(&self, pod: &Pod, wanted: &[PodClaim]) -> Result<(), DraError> {
        // Claims are recorded only once all are valid, so that a pod whose driver never registers can be deleted.
        let mut all = BTreeMap::new();
        for claim in wanted {
            let read = self.read_claim(pod, claim).await?;
            for driver in &read.drivers {
                if !self.is_registered(driver) {
                    return Err(DraError::NotRegistered(driver.clone()));
                }
            }
            all.insert(read.key.clone(), read);
        }
        let keys = all.keys().cloned().collect();
        let _locks = self.0.locks.lock_all(&keys).await;
        let mut batches = BTreeMap::<String, Vec<Claim>>::new();
        let mut preparing = Vec::new();
        {
            let mut claims = self.0.claims.lock();
            for read in all.values() {
                claims.check_uid(&read.key, &read.uid)?;
            }
            for read in all.values() {
                if claims.add_user(&pod.uid(), &read.key, &read.uid, &read.drivers) {
                    preparing.push(read.key.clone());
                    for driver in &read.drivers {
                        let batch = batches.entry(driver.clone()).or_default();
                        batch.push(message(&read.key, &read.uid));
                    }
                }
            }
        }
        // Needed even if nothing has to be prepared: after a restart the checkpoint has to have the pod as a user.
        self.save().await?;
        for (driver, batch) in batches {
            let response = self.driver(&driver).await?.prepare(&batch).await?;
            let mut claims = self.0.claims.lock();
            for (uid, result) in response.claims {
                let claim = batch.iter().find(|claim| claim.uid == uid);
                let devices = result.devices.into_iter().map(PreparedDevice::from).collect();
                if let Some(claim) = claim {
                    claims.set_devices(&key(&claim.namespace, &claim.name), &driver, devices);
                }
            }
        }
        if preparing.is_empty() {
            return Ok(());
        }
        self.0.claims.lock().set_prepared(&preparing);
        self.save().await
    }

    pub(super) async fn read_claim(
        &self,
        pod: &Pod,
        wanted: &PodClaim,
    ) -> Result<ReadClaim, DraError> {
        let api = self.0.api.as_ref().ok_or(DraError::Standalone)?;
        let path = ResourcePath::namespaced(pod.namespace(), &wanted.name);
        let claim: ResourceClaim = api.get(path).await.map_err(|error| DraError::Fetch {
            claim: wanted.name.clone(),
            why: error_chain(&error),
        })?;
        claims::check(pod, wanted, &claim)?;
        Ok(ReadClaim {
            key: key(pod.namespace(), &wanted.name),
            drivers: claims::drivers(&wanted.name, &claim)?,
            users: claims::users(&claim),
            uid: claim.metadata.uid.unwrap_or_default(),
        })
    }

    /// Unprepares the claims that no other pod uses, after the pod's containers have exited. Cancel safe and
    /// idempotent.
    ///
    /// # Errors
    /// A claim could not be unprepared; the pod remains its user.
    pub async fn unprepare(&self, pod: &PodUid) -> Result<(), DraError> {
        let keys: BTreeSet<_> = self.0.claims.lock().of_pod(pod).into_iter().collect();
        if keys.is_empty() {
            return Ok(());
        }
        let started_at = clock::instant();
        let unprepared = self.unprepare_all(pod, &keys).await;
        let took = clock::since(started_at);
        let metrics = &self.0.metrics;
        metrics.operated("UnprepareResources", unprepared.is_err(), took);
        unprepared
    }

    async fn unprepare_all(
        &self,
        pod: &PodUid,
        keys: &BTreeSet<ResourceClaimKey>,
    ) -> Result<(), DraError> {
        let _locks = self.0.locks.lock_all(keys).await;
        let mut batches = BTreeMap::<String, Vec<Claim>>::new();
        let mut unused_claims = Vec::new();
        {
            let mut claims = self.0.claims.lock();
            for key in keys {
                if !claims.release_user(pod, key) {
                    continue;
                }
                unused_claims.push(key.clone());
                let Some(info) = claims.0.get(key) else {
                    continue;
                };
                for driver in info.drivers.keys() {
                    let batch = batches.entry(driver.clone()).or_default();
                    batch.push(message(key, &info.uid));
                }
            }
        }
        for (driver, batch) in batches {
            self.driver(&driver).await?.unprepare(&batch).await?;
        }
        {
            let mut claims = self.0.claims.lock();
            for key in &unused_claims {
                claims.0.remove(key);
            }
        }
        self.save().await
    }

    /// Unprepares the claims of removed pods. Call it only when all pods, desired and running, are known.
    pub fn retain(&self, is_known: impl Fn(&PodUid) -> bool) {
        self.0.waiting.lock().retain(|_, pods| {
            pods.retain(&is_known);
            !pods.is_empty()
        });
        self.retain_unrecovered(&is_known);
        let pods = self.0.claims.lock().pods();
        for uid in pods.into_iter().filter(|uid| !is_known(uid)) {
            if !self.0.unpreparing.lock().insert(uid.clone()) {
                continue;
            }
            let (manager, stop) = (self.clone(), self.0.stop.clone());
            let unpreparing = async move {
                // After a panic it is tried again, too.
                let unprepared = catch_panic(PanicScope::CleanUp, manager.unprepare(&uid)).await;
                if let Ok(Err(error)) = unprepared {
                    tracing::warn!(podUID = %uid, err = %error, "Unpreparing pod resources in reconcile loop failed, will retry");
                }
                manager.0.unpreparing.lock().remove(&uid);
            };
            let unpreparing = stop.run_until_cancelled_owned(unpreparing);
            spawn(PanicScope::CleanUp, unpreparing);
        }
    }

    /// Writes the checkpoint if it changed.
    pub(super) async fn save(&self) -> Result<(), DraError> {
        let shared = self.0.clone();
        let work = move |file: &mut CheckpointWriter| {
            let claims = shared.claims.lock().clone();
            shared.metrics.claims(&claims);
            file.write(checkpoint::encode(&claims).map_err(|error| error.to_string())?)
        };
        let saved = self.0.file.update(work).await;
        saved.map_err(DraError::Checkpoint)
    }

    // -- containers ----------------------------------------------------------------------------------------------

    /// CDI device IDs for a container. Prepares claims whose devices are not known, because the checkpoint may have been
    /// lost.
    ///
    /// # Errors
    /// The devices of a claim are unknown.
    pub async fn cdi_devices(
        &self,
        pod: &Pod,
        container: &Container,
    ) -> Result<Vec<CdiDevice>, DraError> {
        let requests = claims::of_container(pod, container)?;
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let is_known = |request: &claims::ClaimRequest| {
            let claims = self.0.claims.lock();
            let info = claims.0.get(&key(pod.namespace(), &request.claim));
            info.is_some_and(ClaimInfo::has_known_devices)
        };
        if !requests.iter().all(is_known) {
            self.prepare(pod).await?;
        }
        let claims = self.0.claims.lock();
        let mut names = Vec::new();
        for request in &requests {
            let key = key(pod.namespace(), &request.claim);
            for device in claims.devices(&key, &request.request).into_iter().flatten() {
                for name in device.cdi_ids {
                    if !names.contains(&name) {
                        names.push(name);
                    }
                }
            }
        }
        Ok(names.into_iter().map(|name| CdiDevice { name }).collect())
    }

    /// The claims of a container, with their devices.
    pub fn of_container(&self, pod: &Pod, container: &Container) -> Vec<ContainerClaim> {
        // A claim that has not been generated yet has no devices.
        let requests = claims::of_container(pod, container).unwrap_or_default();
        let names: BTreeSet<_> = requests.into_iter().map(|request| request.claim).collect();
        let claims = self.0.claims.lock();
        let claim = |name: String| {
            let devices = claims.devices(&key(pod.namespace(), &name), "")?;
            let namespace = pod.namespace().to_owned();
            Some(ContainerClaim { name, namespace, devices })
        };
        names.into_iter().filter_map(claim).collect()
    }

    /// The health of the devices of a container's claims, for its status.
    pub fn health_of(&self, pod: &Pod, container: &str) -> Vec<ResourceStatus> {
        let Some(container) = pod.container(container) else {
            return Vec::new();
        };
        let requests = claims::of_container(pod, container).unwrap_or_default();
        let (claims, health) = (self.0.claims.lock(), self.0.health.lock());
        let status = |request: &claims::ClaimRequest| {
            let declared = request.declared.as_ref()?;
            let devices = claims.devices(&key(pod.namespace(), &request.claim), &request.request);
            let devices = devices.filter(|devices| !devices.is_empty())?;
            let mut seen = HashSet::new();
            let resources = devices.iter().map(|device| health.of(device));
            let resources = resources.filter(|health| seen.insert(health.resource_id.clone()));
            Some(ResourceStatus {
                name: match request.request.as_str() {
                    "" => format!("claim:{declared}"),
                    own => format!("claim:{declared}/{own}"),
                },
                resources: Some(resources.collect()),
            })
        };
        requests.iter().filter_map(status).collect()
    }
}

fn key(namespace: &str, name: &str) -> ResourceClaimKey {
    ResourceClaimKey { namespace: namespace.to_owned(), name: name.to_owned() }
}

fn message(key: &ResourceClaimKey, uid: &str) -> Claim {
    Claim { namespace: key.namespace.clone(), uid: uid.to_owned(), name: key.name.clone() }
}
