mod volumes;

use super::*;
use crate::apiserver::tests::scripted::{Pushed, Received, Reply, Scripted};
use crate::base::clock;
use crate::base::metrics::Metrics;
use crate::node::node_status::resources::{PodLimits, ReservedResources};
use crate::node::registration::RegistrationConfig;
use crate::pods::pleg::RuntimeState;
use crate::state::device_capacity::{Capacity, DeviceCapacityWriter};
use crate::state::node_object::NodeObject;
use crate::state::node_pressure::NodePressureWriter;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::json;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// An API server with at most one node.
#[derive(Default)]
struct Api {
    node: Option<Value>,
    version: u64,
    /// What the next writes get.
    faults: VecDeque<Reply>,
    /// It accepts conditions and forgets them, as it does with all other members of the status.
    forgets: bool,
    watch: Option<Pushed>,
}

impl Api {
    fn reply(&mut self, request: &Received) -> Reply {
        match request.method.as_str() {
            "GET" if request.parameter("watch").is_some() => {
                let (pushed, reply) = Reply::stream();
                self.watch = Some(pushed);
                reply
            }
            "GET" if request.path.ends_with("/nodes") => {
                let items: Vec<_> = self.node.iter().collect();
                let metadata = json!({ "resourceVersion": self.version.to_string() });
                Reply::Json(200, json!({ "metadata": metadata, "items": items }))
            }
            "GET" => self.stored(200),
            _ => match self.faults.pop_front() {
                Some(fault) => fault,
                None => self.write(request),
            },
        }
    }

    fn write(&mut self, request: &Received) -> Reply {
        self.version += 1;
        let version = self.version.to_string();
        if request.method == "POST" {
            if self.node.is_some() {
                return Reply::status(409, "AlreadyExists");
            }
            let mut node = request.body.clone();
            node["metadata"]["uid"] = json!(format!("uid-{version}"));
            node["metadata"]["resourceVersion"] = json!(version);
            self.node = Some(node);
            return self.stored(201);
        }
        let Some(node) = &mut self.node else {
            return Reply::status(404, "NotFound");
        };
        let expected = &request.body["metadata"]["resourceVersion"];
        if !expected.is_null() && *expected != node["metadata"]["resourceVersion"] {
            return Reply::status(409, "Conflict");
        }
        node["metadata"]["resourceVersion"] = json!(version);
        if let Some(volumes) = request.body["status"].get("volumesInUse") {
            node["status"]["volumesInUse"] = volumes.clone();
        }
        if !self.forgets {
            let sent = request.body["status"]["conditions"].as_array();
            for sent in sent.into_iter().flatten() {
                store_condition(node, sent.clone());
            }
        }
        self.stored(200)
    }

    fn stored(&self, status: u16) -> Reply {
        match &self.node {
            Some(node) => Reply::Json(status, node.clone()),
            None => Reply::status(404, "NotFound"),
        }
    }
}

/// Stores a condition with times as exact as those of the API server.
fn store_condition(node: &mut Value, mut condition: Value) {
    for name in ["lastHeartbeatTime", "lastTransitionTime"] {
        let time: Timestamp = condition[name].as_str().unwrap().parse().unwrap();
        let second = Timestamp::from_second(time.as_second()).unwrap();
        condition[name] = json!(second.to_string());
    }
    if !node["status"]["conditions"].is_array() {
        node["status"]["conditions"] = json!([]);
    }
    let known = node["status"]["conditions"].as_array_mut().unwrap();
    known.retain(|known| known["type"] != condition["type"]);
    known.push(condition);
}

/// A manager at work.
struct World {
    api: Arc<Mutex<Api>>,
    server: Scripted,
    client: ApiServer,
    events: EventRecorder,
    node: NodeObject,
    state: watch::Sender<RuntimeState>,
    devices: DeviceCapacityWriter,
    pressure: NodePressureWriter,
    shutting_down: watch::Sender<bool>,
    csi_node: watch::Sender<Option<String>>,
    volumes: VolumesInUse,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl World {
    async fn start(api: Api, register: bool) -> Self {
        Self::start_every(api, register, Duration::from_millis(20)).await
    }

    /// Computes the status this often.
    async fn start_every(api: Api, register: bool, update_period: Duration) -> Self {
        Self::start_with(api, register, update_period, None).await
    }

    /// `csi_node` is why there is no CSINode.
    async fn start_with(
        api: Api,
        register: bool,
        update_period: Duration,
        csi_node: Option<String>,
    ) -> Self {
        let api = Arc::new(Mutex::new(api));
        let script = api.clone();
        let server = Scripted::serve(move |request| script.lock().reply(request)).await;
        let directory = tempfile::tempdir().unwrap();
        let path = server.kubeconfig(directory.path());
        let client = ApiServer::of_kubeconfig(&path).await.unwrap();
        let writer = NodeObjectWriter::default();
        let (node, events) = (writer.reader(), EventRecorder::new());
        let (state, reader) = watch::channel(RuntimeState {
            last_response: Some(clock::instant()),
            runtime_ready: true,
            network_ready: true,
            ..RuntimeState::default()
        });
        let (_, runtime) = watch::channel(RuntimeFacts::default());
        let devices = DeviceCapacityWriter::default();
        let pressure = NodePressureWriter::default();
        let shutting_down = watch::Sender::new(false);
        let (csi_node, volumes) = (watch::Sender::new(csi_node), VolumesInUse::default());
        let manager = NodeManager::new(NodeManagerDeps {
            pressure: pressure.subscribe(),
            shutting_down: shutting_down.subscribe(),
            api: client.unlimited(),
            node: writer,
            events: events.clone(),
            runtime,
            state: reader,
            devices: devices.reader(),
            default_route_ip: || None,
            startup: StartupLatency::new(&Metrics::new()),
            csi_node: csi_node.subscribe(),
            volumes_in_use: volumes.clone(),
            volumes_mounted: Arc::new(|| true),
            machine: machine(),
            status: status(),
            registration: registration(register),
            reset_devices: true,
            update_period,
            report_period: Duration::from_secs(300),
        });
        let task = tokio::spawn(manager.run());
        Self {
            api,
            server,
            client,
            events,
            node,
            state,
            devices,
            pressure,
            shutting_down,
            csi_node,
            volumes,
            task,
        }
    }

    fn writes(&self) -> Vec<String> {
        let received = self.server.received().into_iter();
        let writes = received.filter(|request| request.method != "GET");
        writes.map(|request| request.line()).collect()
    }

    fn reasons(&self) -> Vec<String> {
        self.events.recent().iter().map(|e| e.reason.to_string()).collect()
    }

    async fn until(&self, what: impl Fn(&Self) -> bool) {
        let deadline = clock::instant() + Duration::from_secs(30);
        while !what(self) {
            assert!(clock::instant() < deadline, "{:?}", self.writes());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Long enough for several computations of the status.
    async fn rest(&self) {
        tokio::time::sleep(Duration::from_millis(300)).await;
    }

    fn is_known(&self) -> bool {
        self.node.borrow().is_some()
    }
}

const ONE: Capacity = Capacity { capacity: 1, allocatable: 1, is_forgotten: false };

fn machine() -> NodeMachineInfo {
    let mut machine = NodeMachineInfo::default();
    machine.info.operating_system = "linux".into();
    machine.info.architecture = "amd64".into();
    machine
}

fn status() -> StatusSettings {
    StatusSettings {
        node_name: "node1".into(),
        given_ips: vec!["10.0.0.1".parse().unwrap()],
        external_cloud_provider: false,
        port: 10250,
        max_images: None,
        pods: PodLimits { max_pods: 110, pods_per_core: 0 },
        reservation: ReservedResources::default(),
    }
}

fn registration(register: bool) -> RegistrationSettings {
    RegistrationSettings {
        node_name: "node1".into(),
        architecture: "amd64".into(),
        config: RegistrationConfig {
            register,
            labels: BTreeMap::new(),
            taints: Vec::new(),
            provider_id: None,
            external_cloud_provider: false,
            controller_attach: true,
        },
    }
}

const CREATE: &str = "POST /api/v1/nodes";
const PATCH: &str = "PATCH /api/v1/nodes/node1/status";

#[tokio::test]
async fn a_node_that_is_not_there_is_created_with_its_status_and_then_the_kubelet_is_silent() {
    let world = World::start(Api::default(), true).await;
    world.until(World::is_known).await;
    world.rest().await;
    assert_eq!(world.writes(), [CREATE]);
    let node = world.node.borrow().clone().unwrap();
    let conditions = node.status.as_ref().unwrap().conditions.as_ref().unwrap();
    assert_eq!(conditions.last().unwrap().status, "True");
    let reasons = world.reasons();
    assert!(reasons.contains(&"NodeReady".into()), "{reasons:?}");
}

#[tokio::test]
async fn whatever_the_api_server_does_the_node_is_registered_in_the_end() {
    let mut api = Api::default();
    // The last one: the node was created, and the response was lost.
    let lost = json!({ "metadata": { "name": "node1", "uid": "u", "resourceVersion": "1" } });
    api.faults = VecDeque::from([
        Reply::status(500, "InternalError"),
        Reply::status(403, "Forbidden"),
        Reply::status(409, "Conflict"),
        Reply::Bytes(201, b"<garbage>".to_vec()),
        Reply::status(409, "AlreadyExists"),
    ]);
    let world = World::start(api, true).await;
    world.until(|world| world.writes().len() >= 4).await;
    assert!(!world.is_known());
    world.api.lock().node = Some(lost);
    world.until(World::is_known).await;
    assert_eq!(world.writes()[..5], [CREATE; 5]);
    assert_eq!(world.node.borrow().as_ref().unwrap().metadata.uid.as_deref(), Some("u"));
}

#[tokio::test]
async fn a_deleted_node_is_registered_again_at_once() {
    let world = World::start(Api::default(), true).await;
    world.until(|world| world.is_known() && world.api.lock().watch.is_some()).await;
    world.devices.set([("example.com/gpu".to_owned(), ONE)].into());
    world.until(|world| world.writes().len() == 2).await;
    let (deleted, watch) = {
        let mut api = world.api.lock();
        (api.node.take().unwrap(), api.watch.take().unwrap())
    };
    let event = json!({ "type": "DELETED", "object": deleted });
    watch.line(&event).await;
    world.until(|world| world.writes().len() == 3).await;
    world.until(World::is_known).await;
    assert_eq!(world.writes(), [CREATE, PATCH, CREATE]);
    let sent = world.server.received();
    let created = sent.iter().rfind(|request| request.method == "POST");
    let capacity = &created.unwrap().body["status"]["capacity"];
    assert_eq!(capacity["example.com/gpu"], "1");
    // The event comes once more, late: it is about another object.
    watch.line(&event).await;
    world.rest().await;
    assert!(world.is_known());
    assert_eq!(world.writes().len(), 3, "its devices are not reset");
}

#[tokio::test]
async fn a_node_that_is_gone_when_its_status_is_sent_is_registered_again() {
    let world = World::start(Api::default(), true).await;
    world.until(World::is_known).await;
    world.api.lock().node = None;
    world.state.send_modify(|state| state.runtime_ready = false);
    world.until(|world| world.writes().len() >= 3).await;
    assert_eq!(world.writes()[..3], [CREATE, PATCH, CREATE]);
}

#[tokio::test]
async fn a_response_counts_although_restored_storage_gave_it_an_older_version() {
    let api = Api { version: 100, ..Api::default() };
    let world = World::start(api, true).await;
    world.until(World::is_known).await;
    let version = |world: &World| {
        let node = world.node.borrow().clone().unwrap();
        node.metadata.resource_version.clone().unwrap()
    };
    assert_eq!(version(&world), "101");
    world.api.lock().version = 3;
    world.state.send_modify(|state| state.runtime_ready = false);
    world.until(|world| version(world) == "4").await;
    assert_eq!(world.writes(), [CREATE, PATCH]);
}

#[tokio::test]
async fn the_status_is_sent_soon_after_any_request_found_the_api_server_back() {
    let world = World::start(Api::default(), true).await;
    world.until(World::is_known).await;
    world.server.set_away(true);
    world.state.send_modify(|state| state.network_ready = false);
    // The next try is then three seconds away.
    tokio::time::sleep(Duration::from_millis(3400)).await;
    assert_eq!(world.writes(), [CREATE]);
    world.server.set_away(false);
    let node = world.client.get::<Node>(ResourcePath::cluster("node1")).await;
    assert!(node.is_ok(), "{node:?}");
    let started_at = clock::instant();
    world.until(|world| world.writes().len() == 2).await;
    let took = clock::since(started_at);
    assert!(took < Duration::from_millis(1500), "{took:?}");
    assert_eq!(world.writes(), [CREATE, PATCH]);
}

#[tokio::test]
async fn a_runtime_that_is_not_ready_makes_the_node_unready_at_once_and_back() {
    let world = World::start(Api::default(), true).await;
    world.until(World::is_known).await;
    world.state.send_modify(|state| state.network_ready = false);
    world.until(|world| world.writes().len() == 2).await;
    world.state.send_modify(|state| state.network_ready = true);
    world.until(|world| world.writes().len() == 3).await;
    world.rest().await;
    assert_eq!(world.writes(), [CREATE, PATCH, PATCH]);
    let sent = world.server.received();
    let patches = sent.iter().filter(|request| request.method == "PATCH");
    let patches: Vec<_> = patches.map(|r| (r.content_type.clone(), &r.body)).collect();
    assert_eq!(patches[0].0, "application/strategic-merge-patch+json");
    let ready = |index: usize| {
        let conditions = patches[index].1["status"]["conditions"].as_array();
        let mut all = conditions.unwrap().iter();
        let ready = all.find(|condition| condition["type"] == "Ready").unwrap();
        (ready["status"].clone(), ready["message"].clone())
    };
    assert_eq!(ready(0).0, "False");
    let message = "container runtime network not ready: NetworkReady=false ";
    assert_eq!(ready(0).1, message);
    assert_eq!(ready(1).0, "True");
    let reasons = world.reasons();
    assert!(reasons.contains(&"NodeNotReady".into()), "{reasons:?}");
    assert_eq!(reasons.last(), Some(&"NodeReady".into()));
}

#[tokio::test]
async fn what_an_api_server_of_another_version_drops_is_not_sent_for_ever() {
    let world = World::start(registered(), true).await;
    world.until(|world| !world.writes().is_empty()).await;
    world.rest().await;
    assert_eq!(world.writes(), [PATCH]);
}

#[tokio::test]
async fn a_node_of_which_a_part_cannot_be_decoded_is_reported_and_not_registered_again() {
    let mut api = registered();
    let node = api.node.as_mut().unwrap();
    node["metadata"]["labels"] = json!({"disk": "ssd"});
    node["spec"] =
        json!({"taints": [{"key": "a", "effect": "NoExecute"}, {"key": 7}], "unschedulable": "no"});
    node["status"] =
        json!({"images": "x", "conditions": [{"type": 7}], "nodeInfo": {"bootID": "before"}});
    let world = World::start(api, true).await;
    world.until(World::is_known).await;
    world.until(|world| world.writes().contains(&PATCH.to_owned())).await;
    world.rest().await;
    assert!(!world.writes().contains(&CREATE.to_owned()), "{:?}", world.writes());
    let node = world.node.borrow().clone().unwrap();
    assert_eq!(node.metadata.labels.as_ref().unwrap()["disk"], "ssd");
    let taints = node.spec.as_ref().unwrap().taints.as_ref().unwrap();
    assert_eq!((taints.len(), &*taints[0].key), (1, "a"));
    let api = world.api.lock();
    let conditions = api.node.as_ref().unwrap()["status"]["conditions"].as_array();
    let ready = conditions.unwrap().iter().find(|condition| condition["type"] == "Ready");
    assert_eq!(ready.unwrap()["status"], "True");
}

/// One with a node, of whose status it takes conditions alone.
fn registered() -> Api {
    let mut node = json!(registration::initial(&registration(true)));
    node["metadata"]["uid"] = json!("u");
    node["metadata"]["resourceVersion"] = json!("1");
    Api { node: Some(node), version: 1, ..Api::default() }
}

#[tokio::test]
async fn a_condition_that_others_made_unknown_is_reported_again_whatever_else_is_dropped() {
    let world = World::start(registered(), true).await;
    world.until(|world| world.writes().len() == 1 && world.api.lock().watch.is_some()).await;
    world.rest().await;
    assert_eq!(world.writes(), [PATCH]);
    // Again and again: the last report says the same each time.
    for count in 2..5 {
        let event = {
            let mut api = world.api.lock();
            api.version += 1;
            let version = api.version.to_string();
            let node = api.node.as_mut().unwrap();
            node["metadata"]["resourceVersion"] = json!(version);
            let mut conditions = node["status"]["conditions"].as_array().unwrap().iter();
            let mut ready = conditions.find(|one| one["type"] == "Ready").unwrap().clone();
            ready["status"] = json!("Unknown");
            ready["reason"] = json!("NodeStatusUnknown");
            store_condition(node, ready);
            json!({ "type": "MODIFIED", "object": node })
        };
        let watch = world.api.lock().watch.take().unwrap();
        watch.line(&event).await;
        world.api.lock().watch = Some(watch);
        world.until(|world| world.writes().len() >= count).await;
        world.rest().await;
        assert_eq!(world.writes().len(), count);
    }
}

#[tokio::test]
async fn a_node_that_registers_itself_not_is_waited_for() {
    let world = World::start(Api::default(), false).await;
    world.rest().await;
    assert_eq!(world.writes(), [""; 0]);
    world.until(|world| world.api.lock().watch.is_some()).await;
    let node = json!({ "metadata": { "name": "node1", "uid": "u", "resourceVersion": "5" } });
    let watch = world.api.lock().watch.take().unwrap();
    world.api.lock().forgets = true;
    world.api.lock().node = Some(node.clone());
    watch.line(&json!({ "type": "ADDED", "object": node })).await;
    world.until(|world| !world.writes().is_empty()).await;
    assert_eq!(world.writes()[0], PATCH);
    let sent = world.server.received();
    let patch = sent.iter().find(|request| request.method == "PATCH").unwrap();
    let metadata = patch.body["metadata"].as_object().unwrap();
    assert_eq!(metadata.keys().collect::<Vec<_>>(), ["labels"]);
    let labels = metadata["labels"].as_object().unwrap();
    let names = ["kubernetes.io/arch", "kubernetes.io/os"];
    assert_eq!(labels.keys().collect::<Vec<_>>(), names);
}

#[tokio::test]
async fn what_the_node_is_short_of_is_reported_at_once() {
    let world = World::start(Api::default(), true).await;
    world.until(World::is_known).await;
    world.pressure.send_modify(|pressure| pressure.memory = true);
    world.until(|world| world.writes().len() == 2).await;
    let sent = world.server.received();
    let patch = sent.iter().find(|request| request.method == "PATCH");
    let conditions = &patch.unwrap().body["status"]["conditions"];
    let mut all = conditions.as_array().unwrap().iter();
    let memory = all.find(|condition| condition["type"] == "MemoryPressure");
    assert_eq!(memory.unwrap()["reason"], "KubeletHasInsufficientMemory");
    assert_eq!(world.reasons().last(), Some(&"NodeHasInsufficientMemory".into()));
}

#[tokio::test]
async fn devices_of_plugins_are_reported_at_once() {
    let world = World::start(Api::default(), true).await;
    world.until(World::is_known).await;
    let amount = Capacity { capacity: 3, allocatable: 2, is_forgotten: false };
    world.devices.set([("example.com/gpu".to_owned(), amount)].into());
    world.until(|world| world.writes().len() == 2).await;
    let sent = world.server.received();
    let patch = sent.iter().find(|request| request.method == "PATCH");
    let status = &patch.unwrap().body["status"];
    assert_eq!(status["capacity"]["example.com/gpu"], "3");
    assert_eq!(status["allocatable"]["example.com/gpu"], "2");
}

#[tokio::test]
async fn a_node_that_goes_down_is_not_ready() {
    let world = World::start(Api::default(), true).await;
    world.until(World::is_known).await;
    world.shutting_down.send_replace(true);
    world.until(|world| world.writes().len() == 2).await;
    let sent = world.server.received();
    let patch = sent.iter().find(|request| request.method == "PATCH");
    let conditions = &patch.unwrap().body["status"]["conditions"];
    let mut all = conditions.as_array().unwrap().iter();
    let ready = all.find(|condition| condition["type"] == "Ready").unwrap();
    assert_eq!(
        (&ready["status"], &ready["message"]),
        (&json!("False"), &json!("node is shutting down"))
    );
    let reasons = world.reasons();
    assert_eq!(reasons.last().map(|reason| &**reason), Some("NodeNotReady"));
}
