//! Pods that the API server binds to this node, and an API server that goes wrong: whatever it does, what runs goes
//! on.

use std::time::Duration;

use serde_json::{Value, json};

use crate::foreign_objects::Planter;
use crate::node::{Node, WAIT_LIMIT};
use crate::pods::{IMAGE, simple};
use crate::support::api_server::{FakeApiServer, Mode, Seen};
use crate::support::fake_runtime::{Behaviour, FakeRuntime, PodView, Rpc};
use crate::support::wait::{holds, wait_for};

pub(crate) fn path(name: &str) -> String {
    format!("/api/v1/namespaces/default/pods/{name}")
}

/// A pod as the API server has it.
pub(crate) fn bound(name: &str) -> Value {
    let mut pod = simple(name);
    pod["metadata"]["uid"] = json!(format!("uid-of-{name}"));
    pod["metadata"]["namespace"] = json!("default");
    pod["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    pod["spec"]["nodeName"] = json!("node1");
    pod["spec"]["restartPolicy"] = json!("Always");
    pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
    pod
}

pub(crate) async fn joined() -> (Node, FakeApiServer) {
    let api = FakeApiServer::start().await;
    api.put("/api/v1/nodes/node1", json!({"metadata": {"name": "node1", "uid": "uid-of-node1"}}));
    let mut node = Node::new().await;
    node.periods().housekeeping = Duration::from_millis(200);
    let path = api.kubeconfig(&node.path(""));
    node.argue(&format!("--kubeconfig={}", path.display()));
    (node, api)
}

fn runs(fake: &FakeRuntime, name: &str) -> Option<PodView> {
    let pod = fake.pod(name)?;
    let running = pod.containers.iter().any(|container| container.is_running());
    running.then_some(pod)
}

pub(crate) async fn wait_runs(node: &Node, name: &str) -> PodView {
    let what = format!("{name} runs");
    let fact = |fake: &FakeRuntime| runs(fake, name).is_some();
    node.fake.wait_until(&what, WAIT_LIMIT, fact).await;
    runs(&node.fake, name).expect("it runs")
}

pub(crate) fn ids(fake: &FakeRuntime, name: &str) -> Vec<String> {
    let pod = fake.pod(name).expect("the pod");
    pod.containers.iter().map(|container| container.id.clone()).collect()
}

/// Asserts that nothing is changed in the runtime for a second.
pub(crate) async fn stays_untouched(node: &Node, what: &str) {
    let touched = |fake: &FakeRuntime| fake.mutations() > 0;
    let untouched = node.never(Duration::from_millis(1000), touched).await;
    assert!(untouched, "{what}: {:?}", node.fake.calls());
}

#[tokio::test]
async fn a_bound_pod_runs_and_one_that_is_removed_ends() {
    let (mut node, api) = joined().await;
    api.put(&path("first"), bound("first"));
    node.start().await;
    wait_runs(&node, "first").await;
    api.put(&path("second"), bound("second"));
    wait_runs(&node, "second").await;
    api.remove(&path("first"));
    let gone = |fake: &FakeRuntime| fake.pod("first").is_none();
    node.fake.wait_until("first is gone", WAIT_LIMIT, gone).await;
    assert!(runs(&node.fake, "second").is_some());
}

#[tokio::test]
async fn the_api_server_has_the_status_and_a_deleted_pod_goes_when_its_containers_have() {
    let (mut node, api) = joined().await;
    api.put(&path("web"), bound("web"));
    node.start().await;
    wait_for("it is shown as running", WAIT_LIMIT, async || {
        let pod = api.object(&path("web")).unwrap_or_default();
        let status = &pod["status"];
        holds(status["phase"] == "Running", status.to_string())
    })
    .await;
    let mut pod = api.object(&path("web")).unwrap();
    pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:01:00Z");
    pod["metadata"]["deletionGracePeriodSeconds"] = json!(1);
    api.put(&path("web"), pod);
    wait_for("it is gone from the API server", WAIT_LIMIT, async || {
        holds(api.object(&path("web")).is_none(), "it is there")
    })
    .await;
    assert!(runs(&node.fake, "web").is_none(), "nothing runs any more");
    let deletions = |seen: &&Seen| seen.method == "DELETE" && seen.path.contains("/pods/");
    let seen = api.seen();
    let deletions: Vec<_> = seen.iter().filter(deletions).collect();
    assert_eq!(deletions.len(), 1, "{deletions:?}");
    assert_eq!(deletions[0].body["preconditions"]["uid"], "uid-of-web");
    let gone = |fake: &FakeRuntime| fake.pod("web").is_none();
    node.fake.wait_until("nothing is left", WAIT_LIMIT, gone).await;
}

#[tokio::test]
async fn whatever_the_api_server_answers_running_pods_are_not_touched() {
    for mode in
        [Mode::Status(500), Mode::Status(403), Mode::Silent, Mode::Garbage, Mode::Empty, Mode::Away]
    {
        let (mut node, api) = joined().await;
        api.put(&path("web"), bound("web"));
        node.start().await;
        wait_runs(&node, "web").await;
        let before = ids(&node.fake, "web");
        // While the kubelet runs, and for one that starts then.
        for restarted in [false, true] {
            if restarted {
                node.stop().await;
            }
            api.answer(mode);
            node.fake.clear_calls();
            if restarted {
                node.start().await;
                node.wait_healthy().await;
            }
            stays_untouched(&node, &format!("{mode:?}")).await;
            assert_eq!(ids(&node.fake, "web"), before, "{mode:?}");
        }
        // It is kept running all the same.
        wait_for("the pod is shown", WAIT_LIMIT, async || {
            let shown = node.pods().await.len();
            holds(shown == 1, format!("{mode:?}: {shown} pods"))
        })
        .await;
        assert!(node.fake.exit("web/main", 1));
        let replaced = |fake: &FakeRuntime| {
            runs(fake, "web").is_some_and(|pod| {
                pod.containers.iter().any(|c| c.is_running() && !before.contains(&c.id))
            })
        };
        node.fake.wait_until("the container was started again", WAIT_LIMIT, replaced).await;
        api.answer(Mode::Well);
        api.put(&path("later"), bound("later"));
        wait_runs(&node, "later").await;
    }
}

#[tokio::test]
async fn a_list_that_lacks_a_pod_is_checked_before_the_pod_ends() {
    let (mut node, api) = joined().await;
    api.put(&path("web"), bound("web"));
    api.put(&path("gone"), bound("gone"));
    node.start().await;
    wait_runs(&node, "web").await;
    wait_runs(&node, "gone").await;
    node.stop().await;
    api.remove(&path("gone"));
    let before = api.seen().len();
    node.start().await;
    let gone = |fake: &FakeRuntime| fake.pod("gone").is_none();
    node.fake.wait_until("gone is gone", WAIT_LIMIT, gone).await;
    assert!(runs(&node.fake, "web").is_some());
    let list = |seen: &&Seen| seen.path.starts_with("/api/v1/pods?");
    let is_watch = |seen: &Seen| seen.path.contains("watch=");
    let seen = api.seen().split_off(before);
    let lists = seen.iter().filter(list).filter(|seen| !is_watch(seen));
    assert!(lists.count() > 1, "{seen:#?}");
}

pub(crate) fn put_cluster(api: &FakeApiServer, uid: &str) {
    let metadata = json!({"name": "kubernetes", "namespace": "default", "uid": uid});
    api.put(CLUSTER, json!({"metadata": metadata, "spec": {}}));
}

const CLUSTER: &str = "/api/v1/namespaces/default/services/kubernetes";

/// A kubelet that runs a pod, has learned the cluster and has ended; then the API server lost the node and the pod.
pub(crate) async fn with_data_lost() -> (Node, FakeApiServer) {
    let (mut node, api) = joined().await;
    put_cluster(&api, "one");
    api.put(&path("web"), bound("web"));
    node.start().await;
    wait_runs(&node, "web").await;
    wait_for("the cluster is known", WAIT_LIMIT, async || {
        let stored = std::fs::read_to_string(node.path("root/api-pods/cluster"));
        holds(stored.is_ok_and(|uid| uid == "one"), "it is not")
    })
    .await;
    node.stop().await;
    api.remove(&path("web"));
    api.remove("/api/v1/nodes/node1");
    (node, api)
}

#[tokio::test]
async fn pods_stay_where_the_api_server_has_lost_its_data_and_the_node_registers_again() {
    let (mut node, api) = with_data_lost().await;
    put_cluster(&api, "two");
    let before = ids(&node.fake, "web");
    node.fake.clear_calls();
    node.start().await;
    wait_event(&node, "OtherCluster").await;
    assert!(api.object("/api/v1/nodes/node1").is_some(), "registered");
    stays_untouched(&node, "web").await;
    assert_eq!(ids(&node.fake, "web"), before);
    // The data is there again, but for the pod, which was deleted.
    put_cluster(&api, "one");
    let gone = |fake: &FakeRuntime| fake.pod("web").is_none();
    node.fake.wait_until("web is gone", WAIT_LIMIT, gone).await;
}

#[tokio::test]
async fn a_pod_that_was_deleted_with_its_node_object_ends_when_the_kubelet_starts() {
    let (mut node, api) = with_data_lost().await;
    node.start().await;
    let gone = |fake: &FakeRuntime| fake.pod("web").is_none();
    node.fake.wait_until("web is gone", WAIT_LIMIT, gone).await;
    assert!(api.object("/api/v1/nodes/node1").is_some(), "registered");
}

#[tokio::test]
async fn an_unreadable_pod_and_one_with_hostile_names_harm_no_other() {
    let (mut node, api) = joined().await;
    let mut unreadable = bound("unreadable");
    unreadable["spec"]["containers"] = json!("none");
    let mut hostile = bound("hostile");
    hostile["metadata"]["uid"] = json!("../../hostile");
    let mut elsewhere = bound("elsewhere");
    elsewhere["spec"]["nodeName"] = json!("node2");
    for (name, pod) in [
        ("unreadable", unreadable),
        ("hostile", hostile),
        ("elsewhere", elsewhere),
        ("web", bound("web")),
    ] {
        api.put(&path(name), pod);
    }
    node.start().await;
    wait_runs(&node, "web").await;
    let events = node.events().await;
    assert!(events.contains("metadata.uid: Invalid value"), "{events}");
    let before = ids(&node.fake, "web");
    // Known to the kubelet, and turned unreadable: the version that runs stays.
    let mut broken = bound("web");
    broken["spec"] = json!(7);
    api.put(&path("web"), broken);
    api.put(&path("next"), bound("next"));
    wait_runs(&node, "next").await;
    assert_eq!(ids(&node.fake, "web"), before);
    assert_eq!(node.fake.pods().len(), 2);
}

#[tokio::test]
async fn what_a_pod_says_of_itself_in_annotations_of_the_kubelet_is_not_believed() {
    let (mut node, api) = joined().await;
    let mut pod = bound("web");
    pod["metadata"]["annotations"] = json!({
        "kubernetes.io/config.source": "file", "kubelet.rs/spec-digest": "v1:one",
    });
    api.put(&path("web"), pod.clone());
    node.start().await;
    wait_runs(&node, "web").await;
    let before = ids(&node.fake, "web");
    pod["metadata"]["annotations"]["kubelet.rs/spec-digest"] = json!("v1:two");
    pod["metadata"]["annotations"]["mine"] = json!("new");
    api.put(&path("web"), pod);
    wait_for("the change is known", WAIT_LIMIT, async || {
        let pods = node.pods().await;
        let annotations = pods.first().and_then(|pod| pod.metadata.annotations.clone());
        let annotations = annotations.unwrap_or_default();
        let source = annotations.get("kubernetes.io/config.source");
        let known =
            annotations.contains_key("mine") && source.is_some_and(|source| source == "api");
        holds(known, format!("{annotations:?}"))
    })
    .await;
    assert_eq!(ids(&node.fake, "web"), before);
}

#[tokio::test]
async fn pods_are_heard_of_although_the_storage_was_restored_to_an_earlier_version() {
    let (mut node, api) = joined().await;
    node.configure("nodeLeaseDurationSeconds: 4");
    api.put(&path("first"), bound("first"));
    node.start().await;
    wait_runs(&node, "first").await;
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node1";
    wait_for("the lease is renewed", WAIT_LIMIT, async || {
        let is_renewal = |seen: &&Seen| seen.method == "PUT" && seen.path == lease;
        let renewals = api.seen().iter().filter(is_renewal).count();
        holds(renewals > 0, "it is not")
    })
    .await;
    api.restore(1);
    api.put(&path("second"), bound("second"));
    wait_runs(&node, "second").await;
    assert!(runs(&node.fake, "first").is_some());
}

#[tokio::test]
async fn a_pod_of_the_api_server_may_have_a_longest_restart_delay_and_a_wrong_one_is_an_event() {
    let (mut node, api) = joined().await;
    let with_period = |name: &str, period: &str| {
        let mut pod = bound(name);
        pod["metadata"]["annotations"] = json!({"kubelet.rs/max-container-restart-period": period});
        api.put(&path(name), pod);
    };
    with_period("web", "1s");
    with_period("wrong", "1h");
    node.start().await;
    wait_runs(&node, "web").await;
    wait_runs(&node, "wrong").await;
    wait_event(&node, "kubelet.rs/max-container-restart-period]: Invalid value").await;
    // The back-off of the node begins with ten seconds, the pod's with one: the last of these would wait for 80 s.
    for count in 2..=5 {
        assert!(node.fake.exit("web/main", 1));
        let again = |fake: &FakeRuntime| {
            let containers = fake.pod("web").map(|pod| pod.containers);
            let newest = containers.into_iter().flatten().max_by_key(|one| one.attempt);
            newest.is_some_and(|one| one.attempt + 1 >= count && one.is_running())
        };
        node.fake.wait_until("it runs again", WAIT_LIMIT, again).await;
    }
}

/// A pod that runs, and that this kubelet would not have started: it has a CSI volume.
async fn taken_over() -> (Node, FakeApiServer, Value) {
    let (mut node, api) = joined().await;
    let mut pod = bound("web");
    api.put(&path("web"), pod.clone());
    node.start().await;
    wait_runs(&node, "web").await;
    node.stop().await;
    pod["spec"]["volumes"] = json!([{"name": "disk", "rbd": {"monitors": ["m"], "image": "i"}}]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "disk", "mountPath": "/disk"}]);
    api.put(&path("web"), pod.clone());
    node.fake.clear_calls();
    node.start().await;
    (node, api, pod)
}

async fn delete(api: &FakeApiServer, name: &str, mut pod: Value) {
    pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:01:00Z");
    pod["metadata"]["deletionGracePeriodSeconds"] = json!(1);
    api.put(&path(name), pod);
}

#[tokio::test]
async fn a_pod_of_another_kubelet_with_a_volume_that_is_not_supported_runs_on_until_it_is_deleted()
{
    let (node, api, pod) = taken_over().await;
    wait_event(&node, "source rbd is not supported by this kubelet").await;
    stays_untouched(&node, "web").await;
    wait_for("it is shown as running", WAIT_LIMIT, async || {
        let pod = api.object(&path("web")).unwrap_or_default();
        let status = &pod["status"];
        holds(status["phase"] == "Running", status.to_string())
    })
    .await;
    // What ends is shown, and not started again.
    assert!(node.fake.exit("web/main", 1));
    wait_for("it is shown as ended", WAIT_LIMIT, async || {
        let pod = api.object(&path("web")).unwrap_or_default();
        let state = &pod["status"]["containerStatuses"][0];
        holds(state["ready"] == false, state.to_string())
    })
    .await;
    let again = |fake: &FakeRuntime| fake.count(Rpc::CreateContainer) > 0;
    assert!(node.never(Duration::from_millis(500), again).await);
    delete(&api, "web", pod).await;
    wait_for("it is gone from the API server", WAIT_LIMIT, async || {
        holds(api.object(&path("web")).is_none(), "it is there")
    })
    .await;
    let gone = |fake: &FakeRuntime| fake.pod("web").is_none();
    node.fake.wait_until("nothing is left", WAIT_LIMIT, gone).await;
}

/// A file system of another program; unmounted with the test.
pub(crate) struct ForeignMount(std::path::PathBuf);

impl ForeignMount {
    /// `None` where the test may not mount.
    pub(crate) fn new(at: std::path::PathBuf) -> Option<ForeignMount> {
        std::fs::create_dir_all(&at).expect("a directory");
        let mounted =
            std::process::Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&at).status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(ForeignMount(at));
        }
        assert!(std::env::var_os("CI").is_none(), "it may not mount");
        eprintln!("\n*** SKIPPED: this test needs to mount ***\n");
        None
    }
}

impl Drop for ForeignMount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_mount_of_another_kubelet_keeps_an_ended_pod_with_an_event_that_names_it() {
    let (node, api, pod) = taken_over().await;
    let volume = "root/pods/uid-of-web/volumes/kubernetes.io~csi/disk/mount";
    let Some(mount) = ForeignMount::new(node.path(volume)) else {
        return;
    };
    delete(&api, "web", pod).await;
    wait_event(&node, "kubernetes.io~csi/disk/mount is still mounted").await;
    let ended = |fake: &FakeRuntime| runs(fake, "web").is_none();
    node.fake.wait_until("its containers ended", WAIT_LIMIT, ended).await;
    assert!(api.object(&path("web")).is_some());
    drop(mount);
    wait_for("it is gone from the API server", WAIT_LIMIT, async || {
        holds(api.object(&path("web")).is_none(), "it is there")
    })
    .await;
}

#[tokio::test]
async fn an_ephemeral_container_starts_in_a_running_pod() {
    let (mut node, api) = joined().await;
    let mut pod = bound("web");
    api.put(&path("web"), pod.clone());
    node.start().await;
    wait_runs(&node, "web").await;
    let before = ids(&node.fake, "web");
    pod["spec"]["ephemeralContainers"] =
        json!([{"name": "debug", "image": IMAGE, "targetContainerName": "main"}]);
    api.put(&path("web"), pod);
    let runs = |fake: &FakeRuntime| {
        fake.container("web/debug").is_some_and(|container| container.is_running())
    };
    node.fake.wait_until("it runs", WAIT_LIMIT, runs).await;
    assert!(node.fake.exit("web/debug", 0));
    let again = |fake: &FakeRuntime| fake.pod("web").is_some_and(|pod| pod.containers.len() != 2);
    assert!(node.never(Duration::from_millis(500), again).await);
    assert!(before.iter().all(|id| ids(&node.fake, "web").contains(id)));
}

#[tokio::test]
async fn an_ephemeral_container_that_has_ended_does_not_run_again_when_it_is_removed() {
    let (mut node, api) = joined().await;
    let mut pod = bound("web");
    api.put(&path("web"), pod.clone());
    node.start().await;
    wait_runs(&node, "web").await;
    let mut debug = |name: &str| {
        let list = &mut pod["spec"]["ephemeralContainers"];
        let mut all = list.as_array().cloned().unwrap_or_default();
        all.push(json!({"name": name, "image": IMAGE}));
        *list = json!(all);
        api.put(&path("web"), pod.clone());
    };
    let runs = |name: &str| {
        let name = format!("web/{name}");
        move |fake: &FakeRuntime| {
            let container = fake.container(&name);
            container.is_some_and(|container| container.is_running())
        }
    };
    debug("one");
    node.fake.wait_until("it runs", WAIT_LIMIT, runs("one")).await;
    let id = node.fake.container("web/one").unwrap().id;
    assert!(node.fake.exit("web/one", 3));
    wait_for("its end is shown", WAIT_LIMIT, async || {
        let pod = api.object(&path("web")).unwrap_or_default();
        let state = &pod["status"]["ephemeralContainerStatuses"][0]["state"];
        holds(state["terminated"]["exitCode"] == 3, state.to_string())
    })
    .await;
    Planter::new(&node.fake).await.remove(&id).await;
    // The sync that starts this one has seen that the first is gone.
    debug("two");
    node.fake.wait_until("the next runs", WAIT_LIMIT, runs("two")).await;
    let created = node.fake.calls_of(Rpc::CreateContainer);
    assert_eq!(created.len(), 3, "{created:?}");
}

#[tokio::test]
async fn a_pod_that_changes_while_the_runtime_is_not_ready_starts_with_its_last_image() {
    let (mut node, api) = joined().await;
    node.periods().pleg.status_period = Duration::from_millis(200);
    api.put(&path("first"), bound("first"));
    node.start().await;
    wait_runs(&node, "first").await;
    node.fake.set_runtime_ready(Err("not today"));
    let replies = node.fake.count(Rpc::Status);
    let received = |fake: &FakeRuntime| fake.count(Rpc::Status) >= replies + 2;
    node.fake.wait_until("the kubelet knows it", WAIT_LIMIT, received).await;
    let mut pod = bound("web");
    api.put(&path("web"), pod.clone());
    node.wait_shown(2).await;
    let image = "registry.test/new:1";
    pod["spec"]["containers"][0]["image"] = json!(image);
    api.put(&path("web"), pod);
    wait_for("the new image is shown", WAIT_LIMIT, async || {
        let pods = node.pods().await;
        let mut containers = pods.iter().flat_map(|pod| &pod.spec.as_ref().unwrap().containers);
        holds(containers.any(|container| container.image.as_deref() == Some(image)), "it is not")
    })
    .await;
    node.fake.set_runtime_ready(Ok(()));
    wait_runs(&node, "web").await;
    let created = node.fake.calls_of(Rpc::CreateContainer);
    assert_eq!(created.len(), 2, "{created:?}");
}

#[tokio::test]
async fn host_ips_follow_the_node_object_and_nothing_restarts_for_them() {
    let (mut node, api) = joined().await;
    node.configure("syncFrequency: 1s");
    // A cloud provider sets the addresses, so the kubelet does not.
    node.argue("--cloud-provider=external");
    let set_address = |address: &str| {
        let mut object = api.object("/api/v1/nodes/node1").unwrap();
        object["status"]["addresses"] = json!([{"type": "InternalIP", "address": address}]);
        api.put("/api/v1/nodes/node1", object);
    };
    set_address("192.0.2.1");
    let mut web = bound("web");
    let field = json!({"fieldRef": {"fieldPath": "status.hostIP"}});
    web["spec"]["containers"][0]["env"] = json!([{"name": "HOST_IP", "valueFrom": field}]);
    api.put(&path("web"), web);
    node.start().await;
    let wait_shown = async |address: &str| {
        wait_for("the pod shows the address", WAIT_LIMIT, async || {
            let pod = api.object(&path("web")).unwrap_or_default();
            let status = &pod["status"];
            let last = status["hostIPs"].as_array().and_then(|ips| ips.last());
            let shown = status["hostIP"] == address && last == Some(&json!({"ip": address}));
            holds(shown, status.to_string())
        })
        .await;
    };
    let env = |attempt: u32| {
        let pod = node.fake.pod("web").unwrap();
        let container = pod.containers.iter().find(|c| c.attempt == attempt);
        let envs = container?.config.envs.clone();
        let found = envs.into_iter().find(|e| e.key == "HOST_IP");
        found.map(|e| String::from_utf8(e.value).unwrap())
    };
    wait_runs(&node, "web").await;
    wait_shown("192.0.2.1").await;
    assert_eq!(env(0).as_deref(), Some("192.0.2.1"));
    let before = ids(&node.fake, "web");
    set_address("192.0.2.2");
    wait_shown("192.0.2.2").await;
    assert_eq!(ids(&node.fake, "web"), before);
    assert!(node.fake.exit("web/main", 1));
    let again = |_: &FakeRuntime| env(1).is_some();
    node.fake.wait_until("the container started again", WAIT_LIMIT, again).await;
    assert_eq!(env(1).as_deref(), Some("192.0.2.2"));
}

fn with_port(name: &str) -> Value {
    let mut pod = bound(name);
    let ports = json!([{"containerPort": 80, "hostPort": 8080}]);
    pod["spec"]["containers"][0]["ports"] = ports;
    pod
}

pub(crate) async fn wait_event(node: &Node, text: &str) {
    wait_for("an event says so", WAIT_LIMIT, async || {
        let events = node.events().await;
        holds(events.contains(text), events)
    })
    .await;
}

#[tokio::test]
async fn a_pod_waits_for_the_port_of_one_that_is_ending_and_not_for_that_of_one_that_stays() {
    let (mut node, api) = joined().await;
    node.fake.behave(IMAGE, Behaviour::ignores_term());
    let mut old = with_port("old");
    old["spec"]["terminationGracePeriodSeconds"] = json!(3);
    api.put(&path("old"), old.clone());
    node.start().await;
    wait_runs(&node, "old").await;
    let failed = async |name: &str| {
        let pod = api.object(&path(name)).unwrap_or_default();
        pod["status"]["reason"] == "NodePorts"
    };
    api.put(&path("mistaken"), with_port("mistaken"));
    wait_for("the port is taken", WAIT_LIMIT, async || holds(failed("mistaken").await, "it waits"))
        .await;
    old["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:01:00Z");
    old["metadata"]["deletionGracePeriodSeconds"] = json!(3);
    api.put(&path("old"), old);
    let ending = |fake: &FakeRuntime| fake.count(Rpc::StopContainer) > 0;
    node.fake.wait_until("old is ending", WAIT_LIMIT, ending).await;
    api.put(&path("new"), with_port("new"));
    wait_event(&node, "AdmissionPending").await;
    assert!(runs(&node.fake, "old").is_some() && runs(&node.fake, "new").is_none());
    wait_runs(&node, "new").await;
    assert!(runs(&node.fake, "old").is_none() && !failed("new").await);
}

#[tokio::test]
async fn a_pod_waits_for_the_node_object_and_one_that_is_removed_meanwhile_leaves_nothing() {
    let (mut node, api) = joined().await;
    node.configure("registerNode: false");
    api.remove("/api/v1/nodes/node1");
    api.put(&path("web"), bound("web"));
    api.put(&path("gone"), bound("gone"));
    node.start().await;
    wait_event(&node, "the Node object is not known yet").await;
    wait_for("both are pending", WAIT_LIMIT, async || {
        let pending = ["web", "gone"].map(|name| {
            let pod = api.object(&path(name)).unwrap_or_default();
            pod["status"]["phase"] == "Pending"
        });
        holds(pending == [true, true], "not yet")
    })
    .await;
    api.remove(&path("gone"));
    node.wait_shown(1).await;
    assert!(node.fake.pods().is_empty());
    api.put("/api/v1/nodes/node1", json!({"metadata": {"name": "node1"}}));
    wait_runs(&node, "web").await;
    assert_eq!(node.fake.pods().len(), 1);
}

/// Which variables have their values is not kept on disk: they may be secrets. Upstream's kubelet knows of no pod at all
/// then.
#[tokio::test]
async fn a_container_with_a_variable_of_a_config_map_says_why_it_waits_and_starts_once_the_api_server_is_back()
 {
    let (mut node, api) = joined().await;
    let map = "/api/v1/namespaces/default/configmaps/settings";
    api.put(map, json!({"metadata": {"name": "settings"}, "data": {"colour": "red"}}));
    let mut pod = bound("web");
    let reference = json!({"configMapKeyRef": {"name": "settings", "key": "colour"}});
    pod["spec"]["containers"][0]["env"] = json!([{"name": "COLOUR", "valueFrom": reference}]);
    api.put(&path("web"), pod);
    node.start().await;
    wait_runs(&node, "web").await;
    let before = ids(&node.fake, "web");
    node.stop().await;
    api.answer(Mode::Away);
    node.start().await;
    node.fake.exit("web/main", 1);
    let text = "failed to sync configmap cache: the request to the API server failed: ";
    wait_for("it says what it waits for", WAIT_LIMIT, async || {
        let pods = node.pods().await;
        let web = pods.iter().find(|pod| pod.metadata.name.as_deref() == Some("web"));
        let shown = serde_json::to_string(&web.and_then(|pod| pod.status.clone())).unwrap();
        let says = shown.contains("CreateContainerConfigError") && shown.contains(text);
        holds(says, shown)
    })
    .await;
    api.answer(Mode::Well);
    let back = std::time::Instant::now();
    let web = wait_runs(&node, "web").await;
    // The longest delay between tries of a watch is 10 s, and no back-off of the container comes on top.
    let took = back.elapsed();
    assert!(took < Duration::from_secs(15), "{took:?}");
    let again = web.containers.iter().find(|one| one.is_running()).unwrap();
    assert!(!before.contains(&again.id));
    let colour = again.config.envs.iter().find(|env| env.key == "COLOUR");
    assert_eq!(colour.map(|env| env.value.as_slice()), Some(&b"red"[..]));
}
