//! Registers the node and keeps its Node object and status up to date.
//!
//! * Owns: the store of the Node object, as its only writer; the task `node.status`.
//! * Woken by: the watch of the Node object, changes of runtime status, devices, pressure and volumes in use, and a
//!   timer.
//! * Publishes: the Node object; the volumes in use that it has; events about the node.
//! * Must never block pods, treat an unavailable API server as a deleted node, or confirm a volume that the API server
//!   may not have in `volumesInUse`.
//! * Upstream: `pkg/kubelet/kubelet_node_status.go`.

mod volumes;

use crate::apiserver::{
    ApiError, ApiServer, Recovery, ResourcePath, Selection, StrategicPatch, WatchEvent,
};
use crate::base::clock::{self, Instant};
use crate::base::{error_chain, spawn_blocking};
use crate::model::LenientNode;
use crate::node::node_status::{
    self, DroppedFields, GeneratedStatus, NodeMachineInfo, NodeStatusInputs, RuntimeFacts,
    StatusSettings,
};
use crate::node::registration::{self, RegistrationSettings};
use crate::node::startup_latency::{StartupLatency, is_ready};
use crate::pods::pleg::RuntimeStateReader;
use crate::state::device_capacity::DeviceCapacity;
use crate::state::events::{EventRecorder, ObjectRef};
use crate::state::node_object::NodeObjectWriter;
use crate::state::node_pressure::NodePressureReader;
use crate::state::node_shutdown::NodeShutdownReader;
use crate::state::volumes_in_use::VolumesInUse;
use crate::volumes::csi::identity::is_csi_volume;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use serde_json::Value;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep_until;
use volumes::VolumesInUseReport;

/// The delay before a retry, doubling from `FIRST_DELAY` to `MAX_DELAY`.
const FIRST_DELAY: Duration = Duration::from_millis(200);
const MAX_DELAY: Duration = Duration::from_secs(7);

/// Minimum interval between two syncs that are caused by changed devices.
const DEVICE_SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// Dependencies of the node manager.
pub struct NodeManagerDeps {
    /// The API server.
    pub api: ApiServer,
    /// Writing end of the Node object.
    pub node: NodeObjectWriter,
    /// Recorder of events about the node.
    pub events: EventRecorder,
    /// Runtime version, features and images for the status.
    pub runtime: watch::Receiver<RuntimeFacts>,
    /// Health of the runtime.
    pub state: RuntimeStateReader,
    /// Capacity of device plugins.
    pub devices: DeviceCapacity,
    /// Memory, disk and PID pressure.
    pub pressure: NodePressureReader,
    /// Whether the node is shutting down.
    pub shutting_down: NodeShutdownReader,
    /// Finds the address of the default route.
    pub default_route_ip: fn() -> Option<IpAddr>,
    /// Why the CSINode object is not there yet; `None` once it is. The node is not ready before.
    pub csi_node: watch::Receiver<Option<String>>,
    /// Follows a new node until it is ready.
    pub startup: StartupLatency,
    /// The attachable volumes in use.
    pub volumes_in_use: VolumesInUse,
    /// Whether volumes of an earlier kubelet may be mounted. Blocking. Read until the volumes in use are known.
    pub volumes_mounted: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Facts that do not change while the kubelet runs.
    pub machine: NodeMachineInfo,
    /// Configuration of the status.
    pub status: StatusSettings,
    /// Configuration of the Node object.
    pub registration: RegistrationSettings,
    /// Whether previously advertised devices are reset to zero at start (upstream's
    /// `ShouldResetExtendedResourceCapacity`).
    pub reset_devices: bool,
    /// How often the status is computed.
    pub update_period: Duration,
    /// How often an unchanged status is sent.
    pub report_period: Duration,
}

/// Registers the node and reports its status.
pub struct NodeManager {
    deps: NodeManagerDeps,
    /// Whether the first list has arrived: then an empty store means that the object does not exist.
    listed: bool,
    /// UID of the object that was reconciled.
    reconciled: Option<String>,
    /// The conditions of the last recorded events.
    recorded_conditions: Option<Vec<NodeCondition>>,
    /// Until then, changed devices cause no sync: a plugin may change them continuously.
    devices_paused_until: Instant,
    volumes: VolumesInUseReport,
    unschedulable: bool,
    rebooted: bool,
    report_due: Instant,
    /// The part of the last patch that was missing from the response.
    dropped: Option<DroppedFields>,
    /// The fields of the object that cannot be decoded.
    left_out: Vec<String>,
    delay: Option<Duration>,
    next_try: Instant,
    recovery: Recovery,
}

/// A failed step, with upstream's log message.
struct SyncFailure(&'static str, ApiError);

impl NodeManager {
    /// Builds the manager; it starts with [`Self::run`].
    pub fn new(deps: NodeManagerDeps) -> Self {
        Self {
            recovery: deps.api.recovery(),
            volumes: VolumesInUseReport::new(deps.volumes_in_use.clone()),
            deps,
            listed: false,
            reconciled: None,
            recorded_conditions: None,
            devices_paused_until: clock::instant(),
            unschedulable: false,
            rebooted: false,
            report_due: clock::instant(),
            dropped: None,
            left_out: Vec::new(),
            delay: None,
            next_try: clock::instant(),
        }
    }

    /// Runs without an end.
    pub async fn run(mut self) {
        let name = &self.deps.registration.node_name;
        let mut watch = self.deps.api.list_watch::<LenientNode>(Selection {
            namespace: None,
            field_selector: Some(format!("metadata.name={name}")),
        });
        loop {
            self.step().await;
            let devices_paused_until = self.devices_paused_until;
            let is_paused = clock::instant() < devices_paused_until;
            tokio::select! {
                event = watch.next() => self.take(event),
                Ok(()) = self.deps.state.changed() => {}
                Ok(()) = self.deps.runtime.changed() => {}
                Ok(()) = self.deps.devices.changed(), if !is_paused => {
                    self.devices_paused_until = clock::instant() + DEVICE_SYNC_INTERVAL;
                }
                Ok(()) = self.deps.pressure.changed() => {}
                Ok(()) = self.deps.shutting_down.changed() => {}
                Ok(()) = self.deps.csi_node.changed() => {}
                () = self.volumes.changed() => {}
                () = sleep_until(devices_paused_until), if is_paused => {}
                () = self.recovery.wait(&mut self.next_try) => {}
            }
        }
    }

    fn take(&mut self, event: WatchEvent<LenientNode>) {
        match event {
            WatchEvent::Listed(items) => {
                self.listed = true;
                match items.into_iter().next() {
                    Some(Ok(node)) => {
                        let node = self.readable(*node);
                        self.deps.node.replace(node);
                    }
                    Some(Err(unreadable)) => self.warn_unreadable(&unreadable.why),
                    None => self.deps.node.clear(),
                }
            }
            WatchEvent::Applied(Ok(node)) => {
                let node = self.readable(*node);
                self.deps.node.set(node);
            }
            WatchEvent::Applied(Err(unreadable)) => self.warn_unreadable(&unreadable.why),
            WatchEvent::Deleted(item) => {
                let uid = match item {
                    Ok(lenient) => lenient.node.metadata.uid,
                    Err(unreadable) => unreadable.metadata.uid,
                };
                let known = self.deps.node.get();
                // The event may be older than a new object of the same name.
                if known.is_some_and(|known| known.metadata.uid == uid) {
                    tracing::info!(node = self.name(), "The node was deleted");
                    self.deps.node.clear();
                }
            }
            WatchEvent::Failed(error) if self.deps.api.is_reported(&error) => {}
            WatchEvent::Failed(error) => {
                tracing::warn!(node = self.name(), err = %error_chain(error.as_ref()), "Failed to watch the node");
            }
        }
        self.record_schedulable();
    }

    /// The object; warns once of the fields that were left out.
    fn readable(&mut self, read: LenientNode) -> Node {
        let LenientNode { node, left_out } = read;
        if !left_out.is_empty() && self.left_out != left_out {
            let fields = left_out.join(", ");
            tracing::warn!(
                node = self.name(),
                fields,
                "Failed to decode fields of the Node object, which are ignored"
            );
        }
        self.left_out = left_out;
        node
    }

    fn warn_unreadable(&self, why: &str) {
        tracing::warn!(node = self.name(), err = why, "Failed to decode the Node object");
    }

    fn name(&self) -> &str {
        &self.deps.registration.node_name
    }

    /// Runs a sync, unless the back-off after a failure has not passed.
    async fn step(&mut self) {
        if self.delay.is_some() && clock::instant() < self.next_try {
            return;
        }
        let Err(SyncFailure(what, error)) = self.sync().await else {
            self.delay = None;
            self.next_try = clock::instant() + self.deps.update_period;
            return;
        };
        if !self.deps.api.is_reported(&error) {
            tracing::error!(node = self.name(), err = %error_chain(&error), "{what}");
        }
        let delay = self.delay.map_or(FIRST_DELAY, |last| (last * 2).min(MAX_DELAY));
        self.delay = Some(delay);
        self.next_try = clock::instant() + delay;
    }

    async fn sync(&mut self) -> Result<(), SyncFailure> {
        match self.deps.node.get() {
            None if !self.listed => Ok(()),
            None => {
                self.volumes.withdraw();
                if !self.deps.registration.config.register {
                    return Ok(());
                }
                self.create().await
            }
            Some(node) => {
                if self.deps.registration.config.register {
                    self.reconcile(&node).await?;
                }
                let node = self.deps.node.get().unwrap_or(node);
                self.deps.startup.reported(&node);
                self.report(&node).await
            }
        }
    }

    async fn create(&mut self) -> Result<(), SyncFailure> {
        tracing::info!(node = self.name(), "Attempting to register node");
        self.deps.startup.attempted();
        let generated = self.generate(&Node::default(), false);
        self.recorded_conditions = Some(Vec::new());
        self.record_transitions(&generated);
        let node = registration::new_node(&self.deps.registration, generated).into();
        let (created, is_own) = match self.deps.api.create(None, &node).await {
            // Another client created the object, or the response to an earlier attempt was lost.
            Err(error) if error.is_already_exists() => {
                (self.deps.api.get(self.place()).await, false)
            }
            created => (created, true),
        };
        let node: LenientNode = created
            .map_err(|error| SyncFailure("Unable to register node with API server", error))?;
        let node = self.readable(node);
        if is_own {
            self.volumes.answered(&node);
            self.deps.startup.registered();
        }
        tracing::info!(node = self.name(), "Successfully registered node");
        self.deps.node.replace(node);
        self.schedule_report(true);
        Ok(())
    }

    async fn reconcile(&mut self, node: &Node) -> Result<(), SyncFailure> {
        if self.reconciled.is_some() && self.reconciled == node.metadata.uid {
            return Ok(());
        }
        let reset = self.deps.reset_devices;
        if let Some(patch) = registration::reconcile(&self.deps.registration, node, reset) {
            tracing::info!(node = self.name(), "Node was previously registered");
            self.patch("Unable to reconcile node with API server", patch).await?;
        }
        self.reconciled.clone_from(&node.metadata.uid);
        // Plugins may have registered when the node is registered again.
        self.deps.reset_devices = false;
        Ok(())
    }

    async fn report(&mut self, node: &Node) -> Result<(), SyncFailure> {
        let must_report_volumes = self.volumes.read(node);
        let volumes_mounted = self.volumes_mounted(node).await;
        let generated = self.generate(node, volumes_mounted);
        let known = || node.status.clone().unwrap_or_default().conditions;
        self.recorded_conditions.get_or_insert_with(|| known().unwrap_or_default());
        self.record_transitions(&generated);
        if node_status::has_rebooted(node, &self.deps.machine) && !self.rebooted {
            self.rebooted = true;
            let boot_id = &self.deps.machine.info.boot_id;
            let name = self.name();
            let message = format!("Node {name} has been rebooted, boot id: {boot_id}");
            let object = ObjectRef::node(name);
            self.deps.events.warning(&object, "Rebooted", message);
        }
        let difference = node_status::difference(node, &generated, false);
        let (period, now) = (self.deps.update_period, clock::instant());
        let changed = difference.is_some_and(|difference| {
            let dropped = self.dropped.as_ref();
            dropped.is_none_or(|dropped| dropped.permits(&difference, period, now))
        });
        if !changed && !must_report_volumes && now < self.report_due {
            return Ok(());
        }
        let patch = node_status::difference(node, &generated, true);
        if let Some(patch) = self.volumes.complete(patch, node, &generated) {
            self.patch("Error updating node status, will retry", patch).await?;
        }
        let taken = self.deps.node.get();
        let dropped = taken.and_then(|node| node_status::difference(&node, &generated, false));
        self.dropped = dropped.map(|difference| DroppedFields::new(difference, clock::instant()));
        self.schedule_report(changed);
        Ok(())
    }

    async fn patch(&mut self, what: &'static str, patch: Value) -> Result<(), SyncFailure> {
        let patch = StrategicPatch(patch);
        let patched = self.deps.api.patch::<LenientNode>(self.place(), Some("status"), &patch);
        match patched.await {
            Ok(node) => {
                let node = self.readable(node);
                self.volumes.answered(&node);
                // The response is newer than the last watch event, unless etcd was restored from a backup.
                self.deps.node.replace(node);
                Ok(())
            }
            Err(error) => {
                if error.is_transient() {
                    self.volumes.failed();
                }
                if error.is_not_found() {
                    self.deps.node.clear();
                    self.listed = true;
                }
                if error.is_conflict() {
                    self.read_again().await;
                }
                Err(SyncFailure(what, error))
            }
        }
    }

    /// Reads the object after a conflict: the watch may deliver the newer version late.
    async fn read_again(&mut self) {
        if let Ok(node) = self.deps.api.get::<LenientNode>(self.place()).await {
            let node = self.readable(node);
            self.deps.node.set(node);
        }
    }

    fn place(&self) -> ResourcePath<'_> {
        ResourcePath::cluster(&self.deps.registration.node_name)
    }

    /// Schedules the next report after a status was sent. After a change the time is random, so that nodes that changed
    /// together do not report together from then on.
    fn schedule_report(&mut self, changed: bool) {
        let period = self.deps.report_period;
        let jitter = if changed { fastrand::f64() - 0.5 } else { 0.0 };
        self.report_due = clock::instant() + period.mul_f64(1.0 + jitter);
    }

    /// Whether volumes are mounted. Reads the mounts only if that decides whether a name stays in `volumesInUse`.
    async fn volumes_mounted(&self, node: &Node) -> bool {
        let are_known = self.deps.volumes_in_use.wanted().borrow().is_some();
        let named = node.status.as_ref();
        let named = named.and_then(|status| status.volumes_in_use.as_ref());
        let mut named = named.into_iter().flatten();
        if !named.any(|name| !are_known || !is_csi_volume(name)) {
            return false;
        }
        let read = self.deps.volumes_mounted.clone();
        let mounted = spawn_blocking(move || read()).await;
        mounted.unwrap_or(true)
    }

    fn generate(&mut self, known: &Node, volumes_mounted: bool) -> GeneratedStatus {
        let runtime = self.deps.runtime.borrow_and_update().clone();
        let devices = self.deps.devices.borrow_and_update().clone();
        let mut not_ready_reasons = not_ready_reasons(&mut self.deps.state);
        let csi_node = self.deps.csi_node.borrow_and_update().clone();
        // A node that was ready stays ready when the kubelet restarts: its pods must not lose requests.
        not_ready_reasons.extend(csi_node.filter(|_| !is_ready(known)));
        if *self.deps.shutting_down.borrow_and_update() {
            not_ready_reasons.push("node is shutting down".to_owned());
        }
        let volumes_in_use = self.volumes.wanted();
        node_status::generate(
            known,
            &NodeStatusInputs {
                machine: &self.deps.machine,
                settings: &self.deps.status,
                runtime: &runtime,
                devices: &devices,
                default_route_ip: (self.deps.default_route_ip)(),
                volumes_in_use: volumes_in_use.as_deref(),
                volumes_mounted,
                not_ready_reasons: &not_ready_reasons,
                pressure: *self.deps.pressure.borrow_and_update(),
                now: clock::timestamp(),
            },
        )
    }

    fn record_transitions(&mut self, generated: &GeneratedStatus) {
        let after = generated.status.conditions.clone().unwrap_or_default();
        let before = self.recorded_conditions.replace(after.clone()).unwrap_or_default();
        for reason in node_status::transition_reasons(&before, &after) {
            self.record_event(reason);
        }
    }

    fn record_schedulable(&mut self) {
        let Some(node) = self.deps.node.get() else {
            return;
        };
        let spec = node.spec.as_ref();
        let unschedulable = spec.and_then(|spec| spec.unschedulable).unwrap_or(false);
        if std::mem::replace(&mut self.unschedulable, unschedulable) != unschedulable {
            self.record_event(if unschedulable { "NodeNotSchedulable" } else { "NodeSchedulable" });
        }
    }

    fn record_event(&self, reason: &'static str) {
        let name = self.name();
        let message = format!("Node {name} status is now: {reason}");
        let object = ObjectRef::node(name);
        self.deps.events.normal(&object, reason, message);
    }
}

/// The reasons for which the node is not ready.
fn not_ready_reasons(state: &mut RuntimeStateReader) -> Vec<String> {
    let state = state.borrow_and_update();
    let network = state.network_error();
    // The prefix is upstream's in the error of a pod that waits for the network; the node's condition has its own.
    let network = network.map(|text| match text.strip_prefix("network is not ready: ") {
        Some(rest) => rest.to_owned(),
        None => text,
    });
    let runtime = state.runtime_error(clock::instant());
    runtime.into_iter().chain(network).collect()
}

#[cfg(test)]
mod tests;
