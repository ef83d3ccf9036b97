//! Keeps the Node object: registers it, brings it in line, reports its status.
//!
//! * Owns: the store of the Node object, of which it is the one writer; the task `node.status`.
//! * Woken by: the watch of the one object, changes of the runtime's state, a timer.
//! * Publishes: the Node object, events of the node.
//! * Must never block pods, and never take an API server that is away for a node that is gone.
//! * Answers to upstream's `pkg/kubelet/kubelet_node_status.go`.

use crate::{
    apiserver::{
        ApiError, ApiServer, Recovery, ResourcePath, Selection, StrategicPatch, WatchEvent,
    },
    base::chain,
    node::node_status::{
        self, Generated, NodeMachineInfo, NodeStatusInputs, RefusedPatch, RuntimeFacts,
        StatusSettings,
    },
    node::registration::{self, RegistrationSettings},
    pods::pleg::RuntimeStateReader,
    state::device_capacity::DeviceCapacity,
    state::events::{EventRecorder, ObjectRef},
    state::node_object::NodeObjectWriter,
    state::node_pressure::NodePressureReader,
    state::node_shutdown::NodeShutdownReader,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use serde_json::Value;
use std::{net::IpAddr, sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

/// The delay before the next try doubles from the first to the second.
const FIRST_DELAY: Duration = Duration::from_millis(200);
const MAX_DELAY: Duration = Duration::from_secs(7);

/// The least time between two syncs for changes of devices.
const DEVICES_REST: Duration = Duration::from_secs(1);

/// What the manager works with.
pub struct NodeManagerDeps {
    /// Where the object is.
    pub api: ApiServer,
    /// Where it is kept.
    pub node: NodeObjectWriter,
    /// Takes the events of the node.
    pub events: EventRecorder,
    /// What the runtime says of itself.
    pub runtime: watch::Receiver<RuntimeFacts>,
    /// Whether it can be relied on.
    pub state: RuntimeStateReader,
    /// Devices of plugins.
    pub devices: DeviceCapacity,
    /// What the node is short of.
    pub pressure: NodePressureReader,
    /// Whether the machine is going down.
    pub shutting_down: NodeShutdownReader,
    /// The address of the default route.
    pub own_ip: fn() -> Option<IpAddr>,
    /// Whether a volume of an earlier kubelet's plugins may be mounted. Blocking.
    pub volumes_mounted: Arc<dyn Fn() -> bool + Send + Sync>,
    /// What does not change.
    pub machine: NodeMachineInfo,
    /// The configuration of the status.
    pub status: StatusSettings,
    /// The configuration of the object.
    pub registration: RegistrationSettings,
    /// Whether devices that were advertised before are zero for now.
    pub reset_devices: bool,
    /// How often the status is computed.
    pub update_period: Duration,
    /// How often it is sent although nothing changed.
    pub report_period: Duration,
}

/// Keeps the Node object.
pub struct NodeManager {
    deps: NodeManagerDeps,
    /// Whether it is known that there is no object where none is kept.
    listed: bool,
    /// The object that was brought in line, by its UID.
    reconciled: Option<String>,
    /// The conditions that events were sent for.
    announced: Option<Vec<NodeCondition>>,
    /// Until then, changes of devices wait: a plugin may change them all the time.
    devices_rest: Instant,
    unschedulable: bool,
    rebooted: bool,
    report_due: Instant,
    /// What the response to the last patch lacked.
    refused: Option<RefusedPatch>,
    delay: Option<Duration>,
    next_try: Instant,
    recovery: Recovery,
}

/// A step that failed, by upstream's log message.
struct SyncFailure(&'static str, ApiError);

impl NodeManager {
    /// A manager that has done nothing yet.
    pub fn new(deps: NodeManagerDeps) -> Self {
        Self {
            recovery: deps.api.recovery(),
            deps,
            listed: false,
            reconciled: None,
            announced: None,
            devices_rest: Instant::now(),
            unschedulable: false,
            rebooted: false,
            report_due: Instant::now(),
            refused: None,
            delay: None,
            next_try: Instant::now(),
        }
    }

    /// Works until shutdown.
    pub async fn run(mut self, shutdown: CancellationToken) -> anyhow::Result<()> {
        shutdown.run_until_cancelled(self.work()).await;
        Ok(())
    }

    async fn work(&mut self) {
        let name = &self.deps.registration.node_name;
        let mut watch = self.deps.api.list_watch::<Node>(Selection {
            namespace: None,
            field_selector: Some(format!("metadata.name={name}")),
        });
        loop {
            self.step().await;
            let devices_rest = self.devices_rest;
            let rests = Instant::now() < devices_rest;
            tokio::select! {
                event = watch.next() => self.take(event),
                Ok(()) = self.deps.state.changed() => {}
                Ok(()) = self.deps.runtime.changed() => {}
                Ok(()) = self.deps.devices.changed(), if !rests => {
                    self.devices_rest = Instant::now() + DEVICES_REST;
                }
                Ok(()) = self.deps.pressure.changed() => {}
                Ok(()) = self.deps.shutting_down.changed() => {}
                () = sleep_until(devices_rest), if rests => {}
                () = self.recovery.wait(&mut self.next_try) => {}
            }
        }
    }

    fn take(&mut self, event: WatchEvent<Node>) {
        match event {
            WatchEvent::Listed(items) => {
                self.listed = true;
                match items.into_iter().next() {
                    Some(Ok(node)) => self.deps.node.replace(*node),
                    Some(Err(unreadable)) => self.warn_unreadable(&unreadable.why),
                    None => self.deps.node.clear(),
                }
            }
            WatchEvent::Applied(Ok(node)) => self.deps.node.set(*node),
            WatchEvent::Applied(Err(unreadable)) => self.warn_unreadable(&unreadable.why),
            WatchEvent::Deleted(item) => {
                let uid = match item {
                    Ok(node) => node.metadata.uid,
                    Err(unreadable) => unreadable.metadata.uid,
                };
                let known = self.deps.node.get();
                // The event may be older than the object that was created since.
                if known.is_some_and(|known| known.metadata.uid == uid) {
                    tracing::info!(node = self.name(), "The node was deleted");
                    self.deps.node.clear();
                }
            }
            WatchEvent::Failed(error) => {
                tracing::warn!(node = self.name(), err = %chain(error.as_ref()), "Failed to watch the node");
            }
        }
        self.record_schedulable();
    }

    fn warn_unreadable(&self, why: &str) {
        tracing::warn!(
            node = self.name(),
            err = why,
            "Failed to decode the Node object"
        );
    }

    fn name(&self) -> &str {
        &self.deps.registration.node_name
    }

    /// Does what is to be done; after a failure not before its delay is over.
    async fn step(&mut self) {
        if self.delay.is_some() && Instant::now() < self.next_try {
            return;
        }
        let Err(SyncFailure(what, error)) = self.sync().await else {
            self.delay = None;
            self.next_try = Instant::now() + self.deps.update_period;
            return;
        };
        tracing::error!(node = self.name(), err = %chain(&error), "{what}");
        let delay = self
            .delay
            .map_or(FIRST_DELAY, |last| (last * 2).min(MAX_DELAY));
        self.delay = Some(delay);
        self.next_try = Instant::now() + delay;
    }

    async fn sync(&mut self) -> Result<(), SyncFailure> {
        match self.deps.node.get() {
            None if !self.listed || !self.deps.registration.config.register => Ok(()),
            None => self.create().await,
            Some(node) => {
                if self.deps.registration.config.register {
                    self.reconcile(&node).await?;
                }
                let node = self.deps.node.get().unwrap_or(node);
                self.report(&node).await
            }
        }
    }

    async fn create(&mut self) -> Result<(), SyncFailure> {
        tracing::info!(node = self.name(), "Attempting to register node");
        let generated = self.generate(&Node::default(), false);
        self.announced = Some(Vec::new());
        self.announce(&generated);
        let node = registration::new_node(&self.deps.registration, generated);
        let created = match self.deps.api.create(None, &node).await {
            // Another client created it first, or the response to an earlier request was lost.
            Err(error) if error.is_already_exists() => self.deps.api.get(self.place()).await,
            created => created,
        };
        let node: Node = created
            .map_err(|error| SyncFailure("Unable to register node with API server", error))?;
        tracing::info!(node = self.name(), "Successfully registered node");
        self.deps.node.replace(node);
        self.sent(true);
        Ok(())
    }

    async fn reconcile(&mut self, node: &Node) -> Result<(), SyncFailure> {
        if self.reconciled.is_some() && self.reconciled == node.metadata.uid {
            return Ok(());
        }
        let reset = self.deps.reset_devices;
        if let Some(patch) = registration::reconcile(&self.deps.registration, node, reset) {
            tracing::info!(node = self.name(), "Node was previously registered");
            self.patch("Unable to reconcile node with API server", patch)
                .await?;
        }
        self.reconciled.clone_from(&node.metadata.uid);
        Ok(())
    }

    async fn report(&mut self, node: &Node) -> Result<(), SyncFailure> {
        let volumes_mounted = self.volumes_mounted(node).await;
        let generated = self.generate(node, volumes_mounted);
        let known = || node.status.clone().unwrap_or_default().conditions;
        self.announced
            .get_or_insert_with(|| known().unwrap_or_default());
        self.announce(&generated);
        if node_status::has_rebooted(node, &self.deps.machine) && !self.rebooted {
            self.rebooted = true;
            let boot_id = &self.deps.machine.info.boot_id;
            let name = self.name();
            let message = format!("Node {name} has been rebooted, boot id: {boot_id}");
            let object = ObjectRef::node(name);
            self.deps.events.warning(&object, "Rebooted", message);
        }
        let difference = node_status::difference(node, &generated, false);
        let (period, now) = (self.deps.update_period, Instant::now());
        let changed = difference.is_some_and(|difference| {
            let refused = self.refused.as_ref();
            refused.is_none_or(|refused| refused.permits(&difference, period, now))
        });
        if !changed && now < self.report_due {
            return Ok(());
        }
        if let Some(patch) = node_status::difference(node, &generated, true) {
            self.patch("Error updating node status, will retry", patch)
                .await?;
        }
        let taken = self.deps.node.get();
        let refused = taken.and_then(|node| node_status::difference(&node, &generated, false));
        self.refused = refused.map(|difference| RefusedPatch::new(difference, Instant::now()));
        self.sent(changed);
        Ok(())
    }

    async fn patch(&mut self, what: &'static str, patch: Value) -> Result<(), SyncFailure> {
        let patch = StrategicPatch(patch);
        let patched = self
            .deps
            .api
            .patch::<Node>(self.place(), Some("status"), &patch);
        match patched.await {
            Ok(node) => {
                // Newer than what this task has taken from the watch, unless storage was restored.
                self.deps.node.replace(node);
                Ok(())
            }
            Err(error) => {
                if error.is_not_found() {
                    self.deps.node.clear();
                    self.listed = true;
                }
                Err(SyncFailure(what, error))
            }
        }
    }

    fn place(&self) -> ResourcePath<'_> {
        ResourcePath::cluster(&self.deps.registration.node_name)
    }

    /// A status was sent. After a change the next report has another time of its own, so that nodes that changed
    /// together do not report together for ever.
    fn sent(&mut self, changed: bool) {
        let period = self.deps.report_period;
        let jitter = if changed { fastrand::f64() - 0.5 } else { 0.0 };
        self.report_due = Instant::now() + period.mul_f64(1.0 + jitter);
    }

    /// Mounts are read only where the object names volumes.
    async fn volumes_mounted(&self, node: &Node) -> bool {
        let named = node.status.as_ref();
        let named = named.and_then(|status| status.volumes_in_use.as_ref());
        if named.is_none_or(Vec::is_empty) {
            return false;
        }
        let read = self.deps.volumes_mounted.clone();
        let mounted = tokio::task::spawn_blocking(move || read()).await;
        mounted.unwrap_or(true)
    }

    fn generate(&mut self, known: &Node, volumes_mounted: bool) -> Generated {
        let runtime = self.deps.runtime.borrow_and_update().clone();
        let devices = self.deps.devices.borrow_and_update().clone();
        let mut problems = problems(&mut self.deps.state);
        if *self.deps.shutting_down.borrow_and_update() {
            problems.push("node is shutting down".to_owned());
        }
        node_status::generate(
            known,
            &NodeStatusInputs {
                machine: &self.deps.machine,
                settings: &self.deps.status,
                runtime: &runtime,
                devices: &devices,
                own_ip: (self.deps.own_ip)(),
                volumes_mounted,
                problems: &problems,
                pressure: *self.deps.pressure.borrow_and_update(),
                now: Timestamp::now(),
            },
        )
    }

    fn announce(&mut self, generated: &Generated) {
        let after = generated.status.conditions.clone().unwrap_or_default();
        let before = self.announced.replace(after.clone()).unwrap_or_default();
        for change in node_status::transitions(&before, &after) {
            self.record_event(change.reason);
        }
    }

    fn record_schedulable(&mut self) {
        let Some(node) = self.deps.node.get() else {
            return;
        };
        let spec = node.spec.as_ref();
        let unschedulable = spec.and_then(|spec| spec.unschedulable).unwrap_or(false);
        if std::mem::replace(&mut self.unschedulable, unschedulable) != unschedulable {
            self.record_event(if unschedulable {
                "NodeNotSchedulable"
            } else {
                "NodeSchedulable"
            });
        }
    }

    fn record_event(&self, reason: &'static str) {
        let name = self.name();
        let message = format!("Node {name} status is now: {reason}");
        let object = ObjectRef::node(name);
        self.deps.events.normal(&object, reason, message);
    }
}

/// Why the node is not ready.
fn problems(state: &mut RuntimeStateReader) -> Vec<String> {
    let state = state.borrow_and_update();
    let network = state.network_error();
    // The rest of the text is upstream's for a pod that waits for the network.
    let network = network.map(|text| match text.strip_prefix("network is not ready: ") {
        Some(rest) => rest.to_owned(),
        None => text,
    });
    let runtime = state.runtime_error(Instant::now());
    runtime.into_iter().chain(network).collect()
}

#[cfg(test)]
mod tests;
