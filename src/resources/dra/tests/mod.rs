//! The manager of claims with drivers that are real gRPC servers, and a scripted API server.

mod driver;
mod pure;

use super::{DraError, DraManager, health_proto, proto};
use crate::apiserver::ApiServer;
use crate::apiserver::tests::scripted::{Reply, Scripted};
use crate::base::metrics::Metrics;
use crate::cri::v1::CdiDevice;
use crate::model::{Pod, PodExt as _, PodUid};
use crate::resources::plugin_manager::tests::registrar;
use crate::resources::plugin_manager::{self, PluginHandlers, registration_proto};
use driver::{FakeDriver, V1, device};
use health_proto::HealthStatus;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

const DRIVER: &str = "dra.example.com";
const LONG: Duration = Duration::from_secs(30);

/// A node with an API server that has claims.
struct World {
    manager: DraManager,
    metrics: Metrics,
    api: Scripted,
    claims: Arc<Mutex<HashMap<String, Value>>>,
    root: tempfile::TempDir,
    _stop: DropGuard,
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LONG, waiting).await.expect(what);
}

impl World {
    async fn start() -> World {
        let claims = Arc::<Mutex<HashMap<String, Value>>>::default();
        let known = claims.clone();
        let api = Scripted::serve(move |request| {
            let name = request.path.rsplit('/').next().unwrap_or_default();
            match (request.method.as_str(), known.lock().get(name)) {
                ("DELETE", _) => Reply::Json(200, json!({"kind": "Status"})),
                (_, Some(claim)) => Reply::Json(200, claim.clone()),
                (_, None) => Reply::status(404, "NotFound"),
            }
        })
        .await;
        let root = tempfile::tempdir().unwrap();
        let metrics = Metrics::new();
        let (manager, stop) = open(&api, root.path(), &metrics).await;
        World { manager, metrics, api, claims, root, _stop: stop }
    }

    /// The next kubelet on the same node.
    async fn restarted(&mut self) {
        self.metrics = Metrics::new();
        let (manager, stop) = open(&self.api, self.root.path(), &self.metrics).await;
        self.manager = manager;
        self._stop = stop;
    }

    /// An allocated claim that is reserved for these pods.
    fn claim(&self, name: &str, drivers: &[&str], pods: &[&str]) {
        let results = drivers.iter().map(
            |driver| json!({"driver": driver, "pool": "pool", "device": name, "request": "r"}),
        );
        let users = pods.iter().map(|uid| json!({"resource": "pods", "name": uid, "uid": uid}));
        let claim = json!({
            "metadata": {"namespace": "ns", "name": name, "uid": format!("uid-{name}")},
            "spec": {},
            "status": {
                "allocation": {"devices": {"results": results.collect::<Vec<_>>()}},
                "reservedFor": users.collect::<Vec<_>>(),
            },
        });
        self.claims.lock().insert(name.to_owned(), claim);
    }

    async fn driver(&self, name: &str) -> FakeDriver {
        self.driver_with(name, &[V1]).await
    }

    async fn driver_with(&self, name: &str, versions: &[&str]) -> FakeDriver {
        let driver = FakeDriver::listen(&self.registry(), name, versions);
        let status = driver.registered().await;
        assert!(status.plugin_registered, "{status:?}");
        driver
    }

    fn registry(&self) -> std::path::PathBuf {
        self.root.path().join("plugins_registry")
    }

    async fn devices(&self, pod: &Pod) -> Result<Vec<String>, DraError> {
        let container = &pod.containers()[0];
        let devices = self.manager.cdi_devices(pod, container).await?;
        Ok(devices.into_iter().map(|CdiDevice { name }| name).collect())
    }

    fn text(&self) -> String {
        self.metrics.text()
    }
}

async fn open(api: &Scripted, root: &Path, metrics: &Metrics) -> (DraManager, DropGuard) {
    let api = ApiServer::of_kubeconfig(&api.kubeconfig(root)).await.unwrap();
    let manager = DraManager::open(root, "node1", Some(api), metrics);
    let stop = CancellationToken::new();
    let mut handlers = PluginHandlers::new();
    handlers.insert("DRAPlugin", Arc::new(manager.clone()));
    let registry = root.join("plugins_registry");
    tokio::spawn(plugin_manager::run(handlers, registry, stop.clone()));
    tokio::spawn(manager.clone().run(stop.clone()));
    (manager, stop.drop_guard())
}

/// A pod with one container that uses all of these claims.
fn pod(uid: &str, claims: &[&str]) -> Pod {
    let declared = claims.iter().map(|name| json!({"name": name, "resourceClaimName": name}));
    let used = claims.iter().map(|name| json!({"name": name}));
    serde_json::from_value(json!({
        "metadata": {"namespace": "ns", "name": uid, "uid": uid},
        "spec": {
            "resourceClaims": declared.collect::<Vec<_>>(),
            "containers": [{"name": "c", "resources": {"claims": used.collect::<Vec<_>>()}}],
        },
    }))
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_prepared_once_for_pods_that_share_it_and_given_back_after_the_last() {
    let world = World::start().await;
    let driver = world.driver(DRIVER).await;
    world.claim("shared", &[DRIVER], &["a", "b"]);
    world.claim("own", &[DRIVER], &["a"]);
    let (a, b) = (pod("a", &["shared", "own"]), pod("b", &["shared"]));
    world.manager.prepare(&a).await.unwrap();
    world.manager.prepare(&b).await.unwrap();
    // As often as it is tried.
    world.manager.prepare(&a).await.unwrap();
    let mut calls = driver.calls();
    calls.sort();
    assert_eq!(calls, ["prepare own", "prepare shared"]);
    let mut devices = world.devices(&a).await.unwrap();
    devices.sort();
    assert_eq!(devices, ["example.com/dra=own", "example.com/dra=shared"]);
    assert_eq!(world.devices(&b).await.unwrap(), ["example.com/dra=shared"]);
    let text = world.text();
    for line in [
        "dra_resource_claims_in_use{driver_name=\"<any>\"} 2",
        "dra_resource_claims_in_use{driver_name=\"dra.example.com\"} 2",
        "dra_operations_duration_seconds_count{operation_name=\"PrepareResources\",is_error=\"false\"} 3",
        "dra_grpc_operations_duration_seconds_count{driver_name=\"dra.example.com\",\
         method_name=\"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources\",\
         grpc_status_code=\"OK\"} 1",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let shown = world.manager.of_container(&b, &b.containers()[0]);
    assert_eq!(
        (shown.len(), shown[0].name.as_str(), shown[0].devices[0].device.as_str()),
        (1, "shared", "shared")
    );

    world.manager.unprepare(&PodUid::from("a")).await.unwrap();
    assert_eq!(driver.calls()[2..], ["unprepare own"]);
    // A driver that cannot give a claim back is called again.
    driver.unprepares(Err("busy".into()));
    let error = world.manager.unprepare(&PodUid::from("b")).await.unwrap_err();
    assert_eq!(error.to_string(), "NodeUnprepareResources failed for ResourceClaim shared: busy");
    driver.unprepares(Ok(()));
    world.manager.unprepare(&PodUid::from("b")).await.unwrap();
    world.manager.unprepare(&PodUid::from("b")).await.unwrap();
    assert_eq!(driver.calls()[3..], ["unprepare shared", "unprepare shared"]);
    let text = world.text();
    assert!(text.contains("dra_resource_claims_in_use{driver_name=\"<any>\"} 0"), "{text}");
    assert!(!text.contains("dra_resource_claims_in_use{driver_name=\"dra."), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_claim_is_said_and_nothing_is_noted() {
    let world = World::start().await;
    world.claim("foreign", &[DRIVER], &["other"]);
    world.claim("early", &[DRIVER], &["a"]);
    world.claims.lock().get_mut("early").unwrap()["status"]["allocation"] = Value::Null;
    world.claim("away", &["away.example.com"], &["a"]);
    for (claim, expected) in [
        (
            "missing",
            "fetch ResourceClaim missing: the API server returned 404 Not Found: scripted NotFound",
        ),
        ("foreign", "pod a (a) is not allowed to use ResourceClaim foreign (uid-foreign)"),
        ("early", "ResourceClaim early: not allocated"),
        ("away", "DRA driver away.example.com is not registered"),
    ] {
        let error = world.manager.prepare(&pod("a", &[claim])).await.unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    world.manager.unprepare(&PodUid::from("a")).await.unwrap();
    assert!(!world.root.path().join("dra_manager_state").exists());
    // Pods that wait for a driver are woken when it registers.
    let _driver = world.driver("away.example.com").await;
    let woken = timeout(LONG, world.manager.changed()).await.unwrap();
    assert_eq!(woken, [PodUid::from("a")].into());
    world.manager.prepare(&pod("a", &["away"])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_fails_or_lies_keeps_the_pod_from_starting_until_it_does_not() {
    let world = World::start().await;
    let driver = world.driver(DRIVER).await;
    world.claim("c", &[DRIVER], &["a"]);
    let pod = pod("a", &["c"]);
    driver.prepares(Arc::new(|_| Err("no power".into())));
    let error = world.manager.prepare(&pod).await.unwrap_err();
    assert_eq!(error.to_string(), "NodePrepareResources failed for ResourceClaim c: no power");
    driver.prepares(Arc::new(|_| Ok(vec![device("x"), device("x"), device("y")])));
    world.manager.prepare(&pod).await.unwrap();
    let devices = world.devices(&pod).await.unwrap();
    assert_eq!(devices, ["example.com/dra=x", "example.com/dra=y"]);
    // Another claim of the same name is not this one.
    world.claims.lock().get_mut("c").unwrap()["metadata"]["uid"] = json!("new");
    let error = world.manager.prepare(&pod).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "old ResourceClaim with same name c and different UID uid-c still exists (previous pod force-deleted?!)"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_kubelet_knows_the_devices_and_gives_them_back() {
    let mut world = World::start().await;
    let driver = world.driver(DRIVER).await;
    world.claim("c", &[DRIVER], &["a"]);
    let pod = pod("a", &["c"]);
    world.manager.prepare(&pod).await.unwrap();
    world.restarted().await;
    assert_eq!(world.devices(&pod).await.unwrap(), ["example.com/dra=c"]);
    until("it has registered again", || world.manager.is_registered(DRIVER)).await;
    // Of a pod that is gone.
    world.manager.retain(|_| false);
    until("it was given back", || driver.calls().len() == 2).await;
    assert_eq!(driver.calls(), ["prepare c", "unprepare c"]);

    // With a damaged file, what a container needs is prepared again.
    world.manager.prepare(&pod).await.unwrap();
    let path = world.root.path().join("dra_manager_state");
    std::fs::write(&path, "{\"Data\":\"{}\",\"Checksum\":1}").unwrap();
    world.restarted().await;
    assert!(world.root.path().join("dra_manager_state.damaged").exists());
    until("it has registered again", || world.manager.is_registered(DRIVER)).await;
    assert_eq!(world.devices(&pod).await.unwrap(), ["example.com/dra=c"]);
    assert!(path.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_are_given_back_by_what_the_api_server_says_after_the_checkpoint_was_damaged() {
    let mut world = World::start().await;
    let driver = world.driver(DRIVER).await;
    world.claim("own", &[DRIVER], &["a"]);
    world.claim("shared", &[DRIVER], &["a", "b"]);
    let (pod, other) = (pod("a", &["own", "shared"]), pod("b", &["shared"]));
    world.manager.prepare(&pod).await.unwrap();
    let path = world.root.path().join("dra_manager_state");
    std::fs::write(&path, "{}").unwrap();
    world.restarted().await;
    until("it has registered again", || world.manager.is_registered(DRIVER)).await;
    // Pods of the time before, and one that has no claim.
    let all = [pod.clone(), other.clone(), self::pod("idle", &[])];
    world.manager.inventory_complete(&all.map(Arc::new));
    // A pod that came later has nothing to recover, and its end waits for no request.
    world.claim("later", &[DRIVER], &["later"]);
    let later = self::pod("later", &["later"]);
    world.manager.recover(&later).await;
    world.manager.unprepare(&later.uid()).await.unwrap();
    world.manager.recover(&pod).await;
    world.manager.unprepare(&pod.uid()).await.unwrap();
    let given_back = || {
        let calls = driver.calls().into_iter();
        let calls = calls.filter(|call| call.starts_with("unprepare"));
        calls.collect::<Vec<_>>()
    };
    assert_eq!(given_back(), ["unprepare own"], "the other pod may run");
    let devices = world.devices(&other).await.unwrap();
    assert_eq!(devices, ["example.com/dra=shared"], "prepared again");
    world.manager.retain(|_| false);
    until("the other pod is gone", || given_back() == ["unprepare own", "unprepare shared"]).await;
    let damaged = world.root.path().join("dra_manager_state.damaged");
    until("the damaged file is not needed any more", || !damaged.exists()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_health_of_devices_is_shown_and_pods_are_marked_when_it_changes() {
    let world = World::start().await;
    let driver = world.driver(DRIVER).await;
    world.claim("c", &[DRIVER], &["a"]);
    let pod = pod("a", &["c"]);
    world.manager.prepare(&pod).await.unwrap();
    let shown = || {
        let statuses = world.manager.health_of(&pod, "c");
        let [status] = statuses.as_slice() else {
            panic!("{statuses:?}");
        };
        assert_eq!(status.name, "claim:c");
        let health = &status.resources.as_ref().unwrap()[0];
        assert_eq!(health.resource_id, "example.com/dra=c");
        (health.health.clone().unwrap(), health.message.clone())
    };
    assert_eq!(shown(), ("Unknown".into(), None));
    for (health, text, expected) in [
        (HealthStatus::Healthy, "", ("Healthy", None)),
        (HealthStatus::Unhealthy, "too hot", ("Unhealthy", Some("too hot"))),
    ] {
        driver.reports(&[("c", health), ("unused", health)], text);
        let woken = timeout(LONG, world.manager.changed()).await.unwrap();
        assert_eq!(woken, [PodUid::from("a")].into());
        let expected = (expected.0.to_owned(), expected.1.map(str::to_owned));
        assert_eq!(shown(), expected);
    }
    // Nothing is known of devices whose driver is gone.
    drop(driver);
    timeout(LONG, world.manager.changed()).await.unwrap();
    assert_eq!(shown(), ("Unknown".into(), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn health_stays_when_the_old_plugin_of_an_updated_driver_goes() {
    let world = World::start().await;
    let old = world.driver(DRIVER).await;
    world.claim("c", &[DRIVER], &["a"]);
    let pod = pod("a", &["c"]);
    world.manager.prepare(&pod).await.unwrap();
    let new = FakeDriver::listen(&world.registry().join("new"), DRIVER, &[V1]);
    assert!(new.registered().await.plugin_registered);
    let shows = |health: &str| {
        let shown = world.manager.health_of(&pod, "c");
        let resources = shown[0].resources.as_ref().unwrap();
        resources[0].health.as_deref() == Some(health)
    };
    new.reports(&[("c", HealthStatus::Unhealthy)], "too hot");
    until("the new one has reported", || shows("Unhealthy")).await;
    drop(old);
    let plugins = || world.manager.0.drivers.lock().plugins[DRIVER].len();
    until("the old one is gone", || plugins() == 1).await;
    assert!(shows("Unhealthy"));
    drop(new);
    until("nobody reports", || shows("Unknown")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_are_gone_wait_for_no_driver() {
    let world = World::start().await;
    world.claim("c", &["away.example.com"], &["a", "b"]);
    for uid in ["a", "b"] {
        world.manager.prepare(&pod(uid, &["c"])).await.unwrap_err();
    }
    let waiting = || world.manager.0.waiting.lock().clone();
    world.manager.retain(|uid| uid.as_str() == "b");
    assert_eq!(waiting()["away.example.com"], [PodUid::from("b")].into());
    world.manager.retain(|_| false);
    assert!(waiting().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_slices_of_drivers_that_are_away_are_deleted() {
    let world = World::start().await;
    let deleted = |world: &World| {
        let all = world.api.received();
        let all = all.iter().filter(|one| one.method == "DELETE");
        let all = all.map(|one| {
            assert_eq!(one.path, "/apis/resource.k8s.io/v1/resourceslices");
            one.parameter("fieldSelector").unwrap()
        });
        all.collect::<Vec<_>>()
    };
    until("those of all drivers at the start", || deleted(&world).len() == 1).await;
    assert_eq!(deleted(&world), ["spec.nodeName=node1"]);
    world.manager.set_wiping_delay(Duration::from_millis(200));
    let driver = world.driver(DRIVER).await;
    sleep(Duration::from_millis(600)).await;
    assert_eq!(deleted(&world).len(), 1, "it is there");
    drop(driver);
    until("those of the driver", || deleted(&world).len() == 2).await;
    assert_eq!(deleted(&world)[1], "spec.nodeName=node1,spec.driver=dra.example.com");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_without_a_known_service_is_refused() {
    let world = World::start().await;
    let driver = FakeDriver::listen(&world.registry(), DRIVER, &["v1alpha4"]);
    let status = driver.registered().await;
    assert!(!status.plugin_registered);
    assert!(
        status.error.contains("none of services supported by the plugin ([\"v1alpha4\"])"),
        "{status:?}"
    );
    assert!(!world.manager.is_registered(DRIVER));
    let hostile = "x,spec.driver!=y";
    let driver = FakeDriver::listen(&world.registry(), hostile, &[V1]);
    let status = driver.registered().await;
    assert!(status.error.contains("is invalid"), "{status:?}");
}
