//! A manager at work, with a scripted API server and a table of drivers.

use super::*;
use crate::apiserver::ApiServer;
use crate::apiserver::csi_driver::CsiDriverLister;
use crate::apiserver::tests::scripted::{Received, Reply, Scripted};
use crate::apiserver::tests::stored::Stored;
use crate::base::{DirtySet, clock};
use crate::node::csi_node::{DriverTable, NodeInfoDeps, NodeInfoManager};
use crate::resources::plugin_manager::{Deregister, PluginHandler as _, RegisteredPlugin};
use crate::state::node_object::NodeObjectWriter;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

pub(super) const POST: &str = "POST /apis/storage.k8s.io/v1/csinodes";
pub(super) const PUT: &str = "PUT /apis/storage.k8s.io/v1/csinodes/n";
pub(super) const DELETE: &str = "DELETE /apis/storage.k8s.io/v1/csinodes/n";
pub(super) const PATCH: &str = "PATCH /api/v1/nodes/n/status";

/// An API server with a Node and a CSINode object.
#[derive(Default)]
pub(super) struct Api {
    pub(super) node: Value,
    pub(super) csi_node: Option<Value>,
    pub(super) version: u64,
    /// What the next writes get.
    pub(super) faults: VecDeque<Reply>,
    /// The names of the drivers after each write.
    pub(super) history: Vec<Vec<String>>,
}

impl Api {
    fn reply(&mut self, request: &Received) -> Reply {
        if request.method != "GET"
            && let Some(fault) = self.faults.pop_front()
        {
            return fault;
        }
        if request.path.contains("/nodes/") {
            return self.node_reply(request);
        }
        let reply = self.csi_node_reply(request);
        if request.method != "GET" {
            self.history.push(self.drivers());
        }
        reply
    }

    fn node_reply(&mut self, request: &Received) -> Reply {
        if self.node.is_null() {
            return Reply::status(404, "NotFound");
        }
        if request.method == "PATCH" {
            let metadata = request.body["metadata"].clone();
            if metadata["uid"] != self.node["metadata"]["uid"] {
                return Reply::status(409, "Conflict");
            }
            for part in ["annotations", "labels"] {
                for (name, value) in metadata[part].as_object().into_iter().flatten() {
                    let stored = &mut self.node["metadata"][part];
                    if value.is_null() {
                        stored.as_object_mut().unwrap().remove(name);
                    } else {
                        stored[name] = value.clone();
                    }
                }
            }
        }
        Reply::Json(200, self.node.clone())
    }

    fn csi_node_reply(&mut self, request: &Received) -> Reply {
        self.version += 1;
        match (request.method.as_str(), &mut self.csi_node) {
            ("POST", Some(_)) => return Reply::status(409, "AlreadyExists"),
            ("POST", None) => {
                let mut object = request.body.clone();
                object["metadata"]["uid"] = json!(format!("csi-{}", self.version));
                self.store(object);
            }
            (_, None) => return Reply::status(404, "NotFound"),
            ("PUT", Some(stored)) => {
                let body = &request.body;
                if body["metadata"]["resourceVersion"] != stored["metadata"]["resourceVersion"] {
                    return Reply::status(409, "Conflict");
                }
                if has_changed_entry(stored, body) {
                    return Reply::status(422, "Invalid");
                }
                self.store(body.clone());
            }
            ("DELETE", Some(stored)) => {
                let uid = &request.body["preconditions"]["uid"];
                assert_eq!(*uid, stored["metadata"]["uid"]);
                self.csi_node = None;
                return Reply::Json(200, json!({}));
            }
            _ => {}
        }
        Reply::Json(200, self.csi_node.clone().unwrap())
    }

    fn store(&mut self, mut object: Value) {
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.csi_node = Some(object);
    }

    pub(super) fn drivers(&self) -> Vec<String> {
        let drivers = self.csi_node.as_ref().map(|it| it["spec"]["drivers"].clone());
        let drivers = drivers.unwrap_or_default();
        let drivers = drivers.as_array().cloned().unwrap_or_default();
        drivers.iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect()
    }
}

/// The API server lets only the limit of an entry change.
fn has_changed_entry(before: &Value, after: &Value) -> bool {
    let entries =
        |object: &Value| object["spec"]["drivers"].as_array().cloned().unwrap_or_default();
    let after = entries(after);
    entries(before).iter().any(|old| {
        let new = after.iter().find(|new| new["name"] == old["name"]);
        new.is_some_and(|new| {
            new["nodeID"] != old["nodeID"] || new["topologyKeys"] != old["topologyKeys"]
        })
    })
}

/// A table of drivers.
#[derive(Default)]
pub(super) struct Table {
    /// The registrations so far.
    pub(super) count: Mutex<u64>,
    pub(super) registered: Mutex<Vec<(String, u64)>>,
    /// What each driver reports; a driver without that does not respond.
    pub(super) infos: Mutex<BTreeMap<String, Result<NodeInfo, String>>>,
    pub(super) calls: Mutex<usize>,
}

impl DriverTable for Table {
    fn validate(&self, plugin: &RegisteredPlugin) -> Result<(), String> {
        if plugin.versions.is_empty() { Err("no versions".into()) } else { Ok(()) }
    }

    fn register(&self, plugin: &RegisteredPlugin) -> Result<u64, String> {
        let mut count = self.count.lock();
        *count += 1;
        self.registered.lock().push((plugin.name.clone(), *count));
        Ok(*count)
    }

    fn node_info<'a>(&'a self, driver: &'a str) -> BoxFuture<'a, Result<NodeInfo, String>> {
        *self.calls.lock() += 1;
        Box::pin(async move {
            let info = self.infos.lock().get(driver).cloned();
            match info {
                Some(info) => info,
                None => std::future::pending().await,
            }
        })
    }

    fn deregister(&self, driver: &str, id: u64) {
        self.registered.lock().retain(|one| *one != (driver.to_owned(), id));
    }
}

pub(super) struct World {
    pub(super) api: Arc<Mutex<Api>>,
    pub(super) server: Scripted,
    client: ApiServer,
    /// The server of CSIDriver objects.
    pub(super) objects: Stored,
    pub(super) node: NodeObjectWriter,
    pub(super) table: Arc<Table>,
    pub(super) full: Arc<DirtySet<String>>,
    pub(super) manager: NodeInfoManager,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

pub(super) fn node_object(uid: &str) -> Value {
    json!({"metadata": {"name": "n", "uid": uid, "resourceVersion": "1",
        "labels": {"kubernetes.io/os": "linux"}, "annotations": {}}})
}

impl World {
    /// With a grace of this many milliseconds, and a Node object that the kubelet does not know yet.
    pub(super) async fn start(grace: u64, csi_node: Option<Value>) -> Self {
        let api = Api { node: node_object("uid-1"), csi_node, ..Api::default() };
        let api = Arc::new(Mutex::new(api));
        let script = api.clone();
        let server = Scripted::serve(move |request| script.lock().reply(request)).await;
        let directory = tempfile::tempdir().unwrap();
        let path = server.kubeconfig(directory.path());
        let client = ApiServer::of_kubeconfig(&path).await.unwrap();
        let objects = Stored::start().await;
        let lister = CsiDriverLister::new(Some(objects.client().await));
        let (node, table) = (NodeObjectWriter::default(), Arc::<Table>::default());
        let full = Arc::<DirtySet<String>>::default();
        let deps = NodeInfoDeps {
            api: client.clone(),
            node_name: "n".into(),
            node: node.reader(),
            csi_drivers: lister.clone(),
            table: table.clone(),
            full_drivers: full.clone(),
        };
        let manager = NodeInfoManager::with_grace(deps, Duration::from_millis(grace));
        let listing = lister.run(CancellationToken::new());
        let tasks = vec![
            tokio::spawn(manager.clone().run()),
            tokio::spawn(async move { listing.await.unwrap() }),
        ];
        Self { api, server, client, objects, node, table, full, manager, tasks }
    }

    /// One whose CSINode object is there.
    pub(super) async fn ready(grace: u64) -> Self {
        let world = Self::start(grace, None).await;
        world.know_node();
        world.until(|world| world.is_initialized()).await;
        world
    }

    pub(super) fn client(&self) -> &ApiServer {
        &self.client
    }

    /// The kubelet knows the Node object as the API server has it.
    pub(super) fn know_node(&self) {
        let node: Node = serde_json::from_value(self.api.lock().node.clone()).unwrap();
        self.node.replace(node);
    }

    pub(super) fn is_initialized(&self) -> bool {
        self.manager.not_ready().borrow().is_none()
    }

    pub(super) fn set_info(&self, driver: &str, info: NodeInfo) {
        self.table.infos.lock().insert(driver.into(), Ok(info));
    }

    pub(super) async fn register(&self, driver: &str) -> Result<Deregister, String> {
        let plugin = RegisteredPlugin {
            name: driver.into(),
            endpoint: "/nowhere/csi.sock".into(),
            versions: vec!["1.0.0".into()],
        };
        self.manager.validate(&plugin)?;
        self.manager.register(plugin).await
    }

    pub(super) fn writes(&self) -> Vec<String> {
        let received = self.server.received().into_iter();
        let writes = received.filter(|request| request.method != "GET");
        writes.map(|request| request.line()).collect()
    }

    pub(super) fn entry(&self, driver: &str) -> Value {
        let api = self.api.lock();
        let drivers = api.csi_node.as_ref().map(|it| it["spec"]["drivers"].clone());
        let drivers = drivers.unwrap_or_default();
        let drivers = drivers.as_array().cloned().unwrap_or_default();
        let mut found = drivers.into_iter().filter(|it| it["name"] == driver);
        found.next().unwrap_or_default()
    }

    pub(super) fn node_ids(&self) -> Value {
        let api = self.api.lock();
        api.node["metadata"]["annotations"]["csi.volume.kubernetes.io/nodeid"].clone()
    }

    pub(super) async fn until(&self, what: impl Fn(&Self) -> bool) {
        let deadline = clock::instant() + Duration::from_secs(30);
        while !what(self) {
            assert!(clock::instant() < deadline, "{:?}", self.writes());
            sleep(Duration::from_millis(5)).await;
        }
    }

    pub(super) async fn rest(&self) {
        sleep(Duration::from_millis(300)).await;
    }
}
