//! Volumes of a CSI driver that is a pod of the node, provisioned and attached by the real controllers.

use jiff::Timestamp;
use serde_json::json;

use super::csi_objects::{
    check_programs, claim, create_daemon_set, create_objects, done, inline, no_volume_is_left,
    of_claim, of_own_claim, pod, records, static_pod, volume_name, wait_registered,
};
use crate::cluster::{Cluster, DEADLINE, NODE};
use crate::inventory::{Instance, instances, nothing_is_leaked};
use crate::support::wait::{holds, wait_for};

const FORCE: [&str; 2] = ["--grace-period=0", "--force"];

/// The volumes that the node says to use and those that the controllers say to be attached to it.
fn of_node(cluster: &Cluster) -> (String, String) {
    let status = cluster.get(&["node", NODE])["status"].take();
    (status["volumesInUse"].to_string(), status["volumesAttached"].to_string())
}

/// What a command in a pod prints.
fn said(cluster: &Cluster, pod: &str, script: &str) -> String {
    cluster.kubectl(&["exec", pod, "--", "sh", "-c", script])
}

fn delete(cluster: &Cluster, objects: &[&str], how: &[&str]) {
    cluster.kubectl(&[&["delete"], objects, how].concat());
}

async fn is_gone(cluster: &Cluster, object: &str) {
    wait_for(&format!("{object} is gone"), DEADLINE, || async {
        let found = cluster.kubectl(&["get", object, "--ignore-not-found", "-o", "name"]);
        holds(found.is_empty(), found)
    })
    .await;
}

pub async fn claims_get_volumes_that_are_gone_after_every_order_of_deletions() {
    check_programs().unwrap();
    let cluster = Cluster::start();
    create_objects(&cluster);
    create_daemon_set(&cluster);
    wait_registered(&cluster);

    // The volume is made for the first pod, and attached by a controller.
    cluster.create(&claim("data", "waiting"));
    let script = "echo first >/data/file; echo part >/part/file";
    cluster.create(&pod("first", of_claim("data"), script));
    cluster.wait("condition=Ready", "pod/first");
    let volume = volume_name(&cluster, "data");
    let (in_use, attached) = of_node(&cluster);
    assert!(in_use.contains(&volume), "{in_use}");
    assert!(attached.contains(&volume), "{attached}");
    let attachments = cluster.get(&["volumeattachments"]);
    let attachment = &attachments["items"][0];
    assert_eq!(attachment["spec"]["nodeName"], NODE);
    assert_eq!(attachment["status"]["attached"], true);

    // Two pods have it at a time, and it stays while one of them does.
    let script =
        "grep -x first /data/file; grep -x part /data/part/file; echo second >/data/shared";
    cluster.create(&pod("second", of_claim("data"), script));
    cluster.wait("condition=Ready", "pod/second");
    assert_eq!(said(&cluster, "first", "cat /data/shared"), "second\n");
    assert_eq!(size(&cluster, "first"), "16384\n", "the size of the claim");
    delete(&cluster, &["pod/first"], &[]);
    assert_eq!(said(&cluster, "second", "cat /data/file"), "first\n");
    delete(&cluster, &["pod/second"], &FORCE);
    wait_for("it is detached", DEADLINE, || async {
        let left = cluster.kubectl(&["get", "volumeattachments", "-o", "name"]);
        holds(left.is_empty(), left)
    })
    .await;

    // The next pod finds the data.
    let script = "grep -x first /data/file; grep -x second /data/shared";
    cluster.create(&pod("next", of_claim("data"), script));
    cluster.wait("condition=Ready", "pod/next");

    // Beside the order that is usual: the claim first, both at once, and a pod that is gone before its containers are.
    for name in ["claim-first", "both", "forced"] {
        cluster.create(&claim(name, "immediate"));
        cluster.create(&pod(name, of_claim(name), "echo x >/data/file"));
    }
    for name in ["claim-first", "both", "forced"] {
        cluster.wait("condition=Ready", &format!("pod/{name}"));
    }
    // The driver's pod is replaced meanwhile.
    let driver = ["pod", "--namespace=kube-system", "--selector=app=csi-driver"];
    delete(&cluster, &driver, &["--wait=false"]);
    delete(&cluster, &["pod/next"], &["--wait=false"]);
    delete(&cluster, &["pvc/data"], &["--wait=false"]);
    delete(&cluster, &["pvc/claim-first"], &["--wait=false"]);
    delete(&cluster, &["pod/claim-first"], &["--wait=false"]);
    delete(&cluster, &["pod/both", "pvc/both"], &["--wait=false"]);
    delete(&cluster, &["pod/forced"], &FORCE);
    delete(&cluster, &["pvc/forced"], &["--wait=false"]);
    no_volume_is_left(&cluster).await;
    nothing_is_leaked(&cluster).await;
}

/// The size of a pod's volume in KiB, as the pod sees it.
fn size(cluster: &Cluster, pod: &str) -> String {
    said(cluster, pod, "df -k /data | awk 'END { print $2 }'")
}

/// Requests this size for a claim.
fn grow(cluster: &Cluster, claim: &str, size: &str) {
    let patch = json!({"spec": {"resources": {"requests": {"storage": size}}}});
    cluster.kubectl(&["patch", "pvc", claim, "--patch", &patch.to_string()]);
}

/// Waits until a claim has this size, and nothing of the expansion is left in its status.
async fn has_grown(cluster: &Cluster, claim: &str, size: &str) {
    wait_for(&format!("{claim} has {size}"), DEADLINE, || async {
        let status = cluster.get(&["pvc", claim])["status"].take();
        let conditions = status["conditions"].as_array();
        let is_over = conditions.is_none_or(Vec::is_empty);
        let is_idle = status["allocatedResourceStatuses"]["storage"].is_null();
        let has_size = status["capacity"]["storage"] == size;
        holds(has_size && is_over && is_idle, status.to_string())
    })
    .await;
}

pub async fn a_claim_grows_while_its_pod_runs_and_before_the_next_one() {
    check_programs().unwrap();
    let mut cluster = Cluster::start();
    create_objects(&cluster);
    create_daemon_set(&cluster);
    wait_registered(&cluster);
    cluster.create(&claim("data", "waiting"));
    cluster.create(&pod("first", of_claim("data"), "echo kept >/data/file"));
    cluster.wait("condition=Ready", "pod/first");
    assert_eq!(size(&cluster, "first"), "16384\n");
    let before = instances(&cluster, "app=user");

    // The running pod sees it.
    grow(&cluster, "data", "32Mi");
    has_grown(&cluster, "data", "32Mi").await;
    assert_eq!(size(&cluster, "first"), "32768\n");
    assert_eq!(done(&cluster, "NodeExpandVolume"), 1);
    assert_eq!(instances(&cluster, "app=user"), before);
    for object in ["first", "data"] {
        let field = format!("involvedObject.name={object},reason=FileSystemResizeSuccessful");
        let events = ["get", "events", "--field-selector", &field, "-o", "name"];
        wait_for("the event", DEADLINE, || async {
            let found = cluster.kubectl(&events);
            holds(!found.is_empty(), object)
        })
        .await;
    }

    // Without a pod the controller does its part, and the node does its own before the next pod starts.
    delete(&cluster, &["pod/first"], &[]);
    grow(&cluster, "data", "48Mi");
    wait_for("the controller has done its part", DEADLINE, || async {
        let status = cluster.get(&["pvc", "data"])["status"].take();
        let state = &status["allocatedResourceStatuses"]["storage"];
        holds(*state == "NodeResizePending", status.to_string())
    })
    .await;
    let script = "grep -x kept /data/file; test $(df -k /data | awk 'END { print $2 }') = 49152";
    cluster.create(&pod("next", of_claim("data"), script));
    cluster.wait("condition=Ready", "pod/next");
    has_grown(&cluster, "data", "48Mi").await;
    assert_eq!(done(&cluster, "NodeExpandVolume"), 2);

    // The next kubelet knows what this one has done.
    cluster.restart_kubelet();
    grow(&cluster, "data", "64Mi");
    has_grown(&cluster, "data", "64Mi").await;
    assert_eq!(size(&cluster, "next"), "65536\n");
    assert_eq!(done(&cluster, "NodeExpandVolume"), 3);
    delete(&cluster, &["pod", "--all"], &[]);
    delete(&cluster, &["pvc", "--all"], &["--wait=false"]);
    no_volume_is_left(&cluster).await;
    nothing_is_leaked(&cluster).await;
}

pub async fn volumes_wait_for_a_driver_that_comes_goes_and_returns_while_the_api_server_is_away() {
    check_programs().unwrap();
    let mut cluster = Cluster::start();
    create_objects(&cluster);
    let driver = static_pod(&cluster);
    let manifests = cluster.manifests();

    // A pod comes before its driver.
    let script = "echo x >/data/file; grep -x x /data/file; echo y >/part/file";
    cluster.create(&pod("inline", inline(), script));
    wait_for("the inline volume waits for its driver", DEADLINE, || async {
        says_that_the_driver_is_missing(&cluster, "inline")
    })
    .await;
    manifests.put("driver.json", &driver);
    cluster.wait("condition=Ready", "pod/inline");
    wait_registered(&cluster);

    // A volume of its own claim, and one that outlives its pods.
    cluster.create(&pod("own", of_own_claim("waiting"), script));
    cluster.create(&claim("data", "waiting"));
    cluster.create(&pod("stays", of_claim("data"), script));
    for name in ["own", "stays"] {
        cluster.wait("condition=Ready", &format!("pod/{name}"));
    }
    let before = instances(&cluster, "app=user");

    // While the driver is away, pods run on, others end, and one comes.
    manifests.remove("driver.json");
    is_gone(&cluster, "pod/csi-driver-node1").await;
    assert_eq!(instances(&cluster, "app=user"), before);
    delete(&cluster, &["pod/inline"], &["--wait=false"]);
    delete(&cluster, &["pod/own"], &FORCE);
    cluster.create(&pod("late", inline(), script));
    wait_for("the late one waits for the driver", DEADLINE, || async {
        says_that_the_driver_is_missing(&cluster, "late")
    })
    .await;
    // The next kubelet knows what is to be done only from records, and of one pod nothing else.
    let killed = Timestamp::now();
    cluster.restart_kubelet();
    wait_for("the next kubelet waits for it, too", DEADLINE, || async {
        let requests = cluster.requests(killed);
        let is_event = |name: &str| name.starts_with("late.");
        let mut events = requests.iter().filter(|one| one.resource == "events");
        holds(events.any(|event| is_event(&event.name)), "no event")
    })
    .await;
    // Nothing has begun for the late one.
    assert_eq!(records(&cluster).len(), 3, "of inline, own and stays");

    // The driver returns while the API server is away: nothing waits for that one.
    let (published, unstaged) =
        (done(&cluster, "NodePublishVolume"), done(&cluster, "NodeUnstageVolume"));
    cluster.signal("-STOP", "kube-apiserver");
    manifests.put("driver.json", &driver);
    wait_for("what was due is done", DEADLINE, || async {
        let is_done = done(&cluster, "NodePublishVolume") > published
            && done(&cluster, "NodeUnstageVolume") > unstaged
            && records(&cluster).len() == 2;
        let running = cluster.crictl(&["ps", "--label", "io.kubernetes.pod.name=late"]);
        let runs = running["containers"] != json!([]);
        holds(is_done && runs, format!("{:#?} {running}", records(&cluster)))
    })
    .await;
    cluster.signal("-CONT", "kube-apiserver");
    cluster.wait("condition=Ready", "pod/late");
    is_gone(&cluster, "pod/inline").await;
    let after = instances(&cluster, "app=user");
    let stays = |one: &&Instance| one[0].contains("stays");
    assert_eq!(after.iter().find(stays), before.iter().find(stays));

    delete(&cluster, &["pod", "--all"], &[]);
    delete(&cluster, &["pvc", "--all"], &["--wait=false"]);
    no_volume_is_left(&cluster).await;
    // The uid of a static pod is not that of its mirror.
    manifests.remove("driver.json");
    nothing_is_leaked(&cluster).await;
}

fn says_that_the_driver_is_missing(cluster: &Cluster, pod: &str) -> Result<(), String> {
    let field = format!("involvedObject.name={pod},reason=FailedMount");
    let events = cluster.kubectl(&[
        "get",
        "events",
        "--field-selector",
        &field,
        "-o",
        "jsonpath={.items[*].message}",
    ]);
    holds(events.contains(crate::csi_driver::NAME) && events.contains("regist"), events)
}
