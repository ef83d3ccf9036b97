//! The drivers of this node in the API server.

use super::driver_table::DriverTable;
use super::facts::{DriverFacts, max_volumes};
use super::registrations::{RegistrationId, Registrations};
use super::writer::{CsiNodeWriter, WriteError};
use crate::apiserver::ApiServer;
use crate::apiserver::csi_driver::CsiDriverLister;
use crate::base::panics::PanicScope;
use crate::base::{DirtySet, ScopedTask, clock, spawn_scoped, wait_until};
use crate::state::node_object::NodeObject;
use crate::volumes::csi::NodeInfo;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

/// Deadline of `NodeGetInfo`.
const NODE_GET_INFO_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a driver may be without a registration before it is removed from the API server.
const REMOVAL_GRACE: Duration = Duration::from_secs(60);
/// The delay before a failed removal is tried again, and before a registration checks whether the API server responds.
const RETRY_INTERVAL: Duration = Duration::from_secs(15);
/// The delay before the CSINode object is tried again at the start, doubling to the maximum.
const FIRST_DELAY: Duration = Duration::from_millis(200);
const MAX_DELAY: Duration = RETRY_INTERVAL;
/// Minimum interval between two updates of a limit because the driver is full.
const LIMIT_INTERVAL: Duration = Duration::from_secs(1);
/// Upstream's reason for a node that is not ready.
const NOT_INITIALIZED: &str = "CSINode is not yet initialized";

/// Dependencies of the registration of CSI drivers.
pub struct NodeInfoDeps {
    /// The API server.
    pub api: ApiServer,
    /// The node's name.
    pub node_name: String,
    /// The Node object.
    pub node: NodeObject,
    /// CSIDriver objects, for the period of updates.
    pub csi_drivers: CsiDriverLister,
    /// The table of registered drivers.
    pub table: Arc<dyn DriverTable>,
    /// Drivers whose volumes cannot be attached because the node has too many: their limit is read again.
    pub full_drivers: Arc<DirtySet<String>>,
}

/// Registers CSI drivers. Cheap to clone; works while [`Self::run`] does.
#[derive(Clone)]
pub struct NodeInfoManager(pub(super) Arc<NodeInfoShared>);

pub(super) struct NodeInfoShared {
    pub(super) table: Arc<dyn DriverTable>,
    writer: CsiNodeWriter,
    node: NodeObject,
    csi_drivers: CsiDriverLister,
    full_drivers: Arc<DirtySet<String>>,
    registrations: Mutex<Registrations>,
    /// Updates the limit of each registered driver.
    limits: Mutex<HashMap<String, LimitUpdates>>,
    /// Notifies of new registrations and of removals to schedule.
    changed: watch::Sender<()>,
    /// Held while the objects are read and written.
    writing: tokio::sync::Mutex<()>,
    /// Why the CSINode object is not there yet.
    not_ready: watch::Sender<Option<String>>,
    removal_grace: Duration,
}

struct LimitUpdates {
    is_full: Arc<Notify>,
    _task: ScopedTask,
}

impl NodeInfoManager {
    /// Without drivers.
    pub fn new(deps: NodeInfoDeps) -> Self {
        Self::with_grace(deps, REMOVAL_GRACE)
    }

    pub(super) fn with_grace(deps: NodeInfoDeps, removal_grace: Duration) -> Self {
        Self(Arc::new(NodeInfoShared {
            table: deps.table,
            writer: CsiNodeWriter { api: deps.api, node_name: deps.node_name },
            node: deps.node,
            csi_drivers: deps.csi_drivers,
            full_drivers: deps.full_drivers,
            registrations: Mutex::default(),
            limits: Mutex::default(),
            changed: watch::Sender::new(()),
            writing: tokio::sync::Mutex::default(),
            not_ready: watch::Sender::new(Some(NOT_INITIALIZED.to_owned())),
            removal_grace,
        }))
    }

    /// Why the CSINode object is not there yet; `None` once it has been created.
    pub fn not_ready(&self) -> watch::Receiver<Option<String>> {
        self.0.not_ready.subscribe()
    }

    /// Creates the CSINode object, and again for another Node object; removes drivers whose grace has passed. Runs
    /// without an end.
    pub async fn run(self) {
        let mut node = self.0.node.clone();
        let mut changed = self.0.changed.subscribe();
        let mut recovery = self.0.writer.api.recovery();
        let mut initialized: Option<String> = None;
        let (mut delay, mut next_try) = (FIRST_DELAY, clock::instant());
        loop {
            let known = node.borrow_and_update().clone();
            let uid = known.and_then(|node| node.metadata.uid.clone());
            let mut pending = uid.filter(|uid| initialized.as_ref() != Some(uid));
            if let Some(uid) = pending.take_if(|_| clock::instant() >= next_try) {
                if self.initialize(&uid).await {
                    initialized = Some(uid);
                    delay = FIRST_DELAY;
                } else {
                    next_try = clock::instant() + delay;
                    delay = (delay * 2).min(MAX_DELAY);
                    pending = Some(uid);
                }
            }
            self.remove_due().await;
            let next_removal = self.0.registrations.lock().next_removal();
            tokio::select! {
                Ok(()) = node.changed() => {}
                Ok(()) = changed.changed() => {}
                full = self.0.full_drivers.take() => self.update_limits(full),
                () = recovery.wait(&mut next_try), if pending.is_some() => {}
                () = wait_until(next_removal) => {}
            }
        }
    }

    /// Creates the CSINode object and writes the registered drivers to it and to a new Node object.
    async fn initialize(&self, node_uid: &str) -> bool {
        let node_name = &self.0.writer.node_name;
        let _writing = self.0.writing.lock().await;
        let wanted = self.0.registrations.lock().wanted();
        let written = self.0.writer.write_csi_node(node_uid, &wanted, None).await;
        if let Err(error) = written {
            tracing::warn!(node = node_name, err = %error, "Failed to initialize CSINode, will retry");
            let why = format!("failed to initialize CSINode: {error}");
            self.0.not_ready.send_if_modified(|not_ready| {
                // A node that was ready stays ready: its drivers work, and only the scheduler does not know them.
                let changed = not_ready.as_ref().is_some_and(|last| *last != why);
                if changed {
                    *not_ready = Some(why);
                }
                changed
            });
            return false;
        }
        self.0.not_ready.send_if_modified(|not_ready| not_ready.take().is_some());
        tracing::info!(node = node_name, "Initialized CSINode");
        for (driver, facts) in &wanted {
            match self.0.writer.add_to_node(driver, facts).await {
                Ok(_) => {}
                Err(error @ WriteError::Refused(_)) => {
                    tracing::error!(driverName = driver, err = %error, "Failed to add the CSI driver to the new Node object");
                }
                Err(error) => {
                    tracing::warn!(driverName = driver, err = %error, "Failed to add the CSI driver to the new Node object, will retry");
                    return false;
                }
            }
        }
        true
    }

    /// Begins a registration of a driver that the table has.
    pub(super) fn begin(&self, driver: &str) -> RegistrationId {
        self.0.csi_drivers.start();
        let id = self.0.registrations.lock().begin(driver);
        self.0.changed.send_replace(());
        id
    }

    /// Ends a registration: without another one the driver is removed after the grace.
    pub(super) fn end(&self, driver: &str, id: RegistrationId) {
        let (grace, now) = (self.0.removal_grace, clock::instant());
        if self.0.registrations.lock().end(driver, id, grace, now) {
            self.0.limits.lock().remove(driver);
            self.0.changed.send_replace(());
        }
    }

    /// Asks a driver for its facts and writes them; returns early when another registration of the driver begins.
    pub(super) async fn complete(&self, driver: &str, id: RegistrationId) -> Result<(), String> {
        let completed = async {
            let info = self.node_info(driver).await?;
            let facts = DriverFacts::checked(driver, info)?;
            self.install(driver, &facts).await
        };
        tokio::select! {
            completed = completed => completed?,
            () = self.superseded(driver, id) => {
                return Err(format!("another plugin of CSI driver {driver} has registered meanwhile"));
            }
        }
        self.start_limit_updates(driver);
        Ok(())
    }

    async fn superseded(&self, driver: &str, id: RegistrationId) {
        let mut changed = self.0.changed.subscribe();
        loop {
            if self.0.registrations.lock().is_superseded(driver, id) {
                return;
            }
            if changed.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    async fn node_info(&self, driver: &str) -> Result<NodeInfo, String> {
        let info = timeout(NODE_GET_INFO_TIMEOUT, self.0.table.node_info(driver)).await;
        let late = |_| Err("context deadline exceeded".to_owned());
        let info = info.unwrap_or_else(late);
        let info =
            info.map_err(|error| format!("NodeGetInfo of CSI driver {driver} failed: {error}"))?;
        if info.max_volumes_per_node < 0 {
            let limit = info.max_volumes_per_node;
            tracing::error!(
                driverName = driver,
                limit,
                "The CSI driver returned a negative max_volumes_per_node, which is ignored"
            );
        }
        Ok(info)
    }

    /// Writes the facts of a driver to the Node object and the CSINode object. Waits while no API server responds: a
    /// driver that is in the table can unmount volumes meanwhile. If nothing has changed since an earlier registration,
    /// an API server is not needed.
    async fn install(&self, driver: &str, facts: &DriverFacts) -> Result<(), String> {
        let mut recovery = self.0.writer.api.recovery();
        let mut node = self.0.node.clone();
        loop {
            if node.wait_for(Option::is_some).await.is_err() {
                return Err("the kubelet is stopping".to_owned());
            }
            let (what, error) = match self.write(driver, facts).await {
                Ok(()) => return Ok(()),
                Err(failed) => failed,
            };
            if !error.is_absence() {
                return Err(format!(
                    "error updating {what} object with CSI driver node info: {error}"
                ));
            }
            if self.0.registrations.lock().written(driver) == Some(facts) {
                return Ok(());
            }
            tracing::debug!(driverName = driver, err = %error, "The registration of the CSI driver waits for the API server");
            recovery.wait(&mut (clock::instant() + RETRY_INTERVAL)).await;
        }
    }

    /// On an error, with the kind of the object.
    async fn write(
        &self,
        driver: &str,
        facts: &DriverFacts,
    ) -> Result<(), (&'static str, WriteError)> {
        let _writing = self.0.writing.lock().await;
        let node = self.0.writer.add_to_node(driver, facts).await;
        let node_uid = node.map_err(|error| ("Node", error))?;
        self.write_csi_node(&node_uid, driver, facts).await.map_err(|error| ("CSINode", error))
    }

    async fn write_csi_node(
        &self,
        node_uid: &str,
        driver: &str,
        facts: &DriverFacts,
    ) -> Result<(), WriteError> {
        let mut wanted = self.0.registrations.lock().wanted();
        wanted.insert(driver.to_owned(), facts.clone());
        self.0.writer.write_csi_node(node_uid, &wanted, None).await?;
        let mut registrations = self.0.registrations.lock();
        registrations.set_written(driver, facts.clone());
        Ok(())
    }

    /// Removes the drivers whose grace has passed.
    async fn remove_due(&self) {
        let due = self.0.registrations.lock().due_removals(clock::instant());
        for driver in due {
            let _writing = self.0.writing.lock().await;
            if !self.0.registrations.lock().begin_removal(&driver) {
                continue;
            }
            let removed = self.remove(&driver).await;
            let retry_at = removed.as_ref().err().map(|_| clock::instant() + RETRY_INTERVAL);
            self.0.registrations.lock().end_removal(&driver, retry_at);
            match removed {
                Ok(()) => {
                    tracing::info!(driverName = driver, "Removed the CSI driver from CSINode")
                }
                Err(error) => {
                    tracing::warn!(driverName = driver, err = %error, "Failed to remove the CSI driver from CSINode, will retry");
                }
            }
        }
    }

    async fn remove(&self, driver: &str) -> Result<(), WriteError> {
        // With the Node object its CSINode object goes.
        let known = self.0.node.borrow().clone();
        if let Some(uid) = known.and_then(|node| node.metadata.uid.clone()) {
            let wanted = self.0.registrations.lock().wanted();
            self.0.writer.write_csi_node(&uid, &wanted, Some(driver)).await?;
            self.0.writer.remove_from_node(driver).await?;
        }
        Ok(())
    }

    fn start_limit_updates(&self, driver: &str) {
        let mut limits = self.0.limits.lock();
        if !self.0.registrations.lock().is_registered(driver) || limits.contains_key(driver) {
            return;
        }
        let is_full = Arc::<Notify>::default();
        let updating = self.clone().update_limit(driver.to_owned(), is_full.clone());
        let updates =
            LimitUpdates { is_full, _task: spawn_scoped(PanicScope::Connection, updating) };
        limits.insert(driver.to_owned(), updates);
    }

    /// Updates the limits of drivers that are full.
    fn update_limits(&self, full: impl IntoIterator<Item = String>) {
        let limits = self.0.limits.lock();
        for driver in full {
            if let Some(updates) = limits.get(&driver) {
                updates.is_full.notify_one();
            }
        }
    }

    /// Updates the limit of a driver whose CSIDriver object has a period for that, until the task is aborted.
    async fn update_limit(self, driver: String, is_full: Arc<Notify>) {
        let mut objects = self.0.csi_drivers.changes();
        let mut updated_at = clock::instant();
        loop {
            objects.mark_unchanged();
            let object = self.0.csi_drivers.get_now(&driver).ok().flatten();
            let period = object.and_then(|object| object.node_allocatable_update_period);
            let due = period.map(|period| updated_at + period);
            tokio::select! {
                Ok(()) = objects.changed() => continue,
                () = is_full.notified() => {
                    if period.is_none() {
                        continue;
                    }
                }
                () = wait_until(due) => {}
            }
            if let Err(error) = self.read_limit(&driver).await {
                tracing::warn!(
                    driverName = driver,
                    err = error,
                    "Failed to update the volume limit of the CSI driver"
                );
            }
            updated_at = clock::instant();
            sleep(LIMIT_INTERVAL).await;
        }
    }

    /// Reads the limit of a driver again, and writes it if it has changed. A node ID or topology that has changed takes
    /// effect when the driver registers again.
    async fn read_limit(&self, driver: &str) -> Result<(), String> {
        let info = self.node_info(driver).await?;
        let limit = max_volumes(info.max_volumes_per_node);
        let _writing = self.0.writing.lock().await;
        let written = self.0.registrations.lock().written(driver).cloned();
        let Some(mut facts) = written.filter(|facts| facts.max_volumes != limit) else {
            return Ok(());
        };
        let known = self.0.node.borrow().clone();
        let Some(uid) = known.and_then(|node| node.metadata.uid.clone()) else {
            return Ok(());
        };
        facts.max_volumes = limit;
        let written = self.write_csi_node(&uid, driver, &facts).await;
        written.map_err(|error| {
            format!("error updating CSINode object with CSI driver node info: {error}")
        })?;
        tracing::info!(driverName = driver, limit, "Updated the volume limit of the CSI driver");
        Ok(())
    }
}
