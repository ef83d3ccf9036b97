//! A node with volumes of a CSI driver that changes from the Go kubelet to this one and back.

use std::time::Duration;

use super::csi_objects::{
    block_claim, block_pod, check_programs, claim, create_daemon_set, create_objects, inline,
    journal, mount_points, no_volume_is_left, of_claim, pod, volume_name, wait_registered,
};
use super::preflight::is_safe_and_changes_nothing;
use super::swap::{running, version};
use crate::cluster::{Cluster, DEADLINE};
use crate::csi_driver::NAME;
use crate::inventory::{instances, nothing_is_leaked};
use crate::kubelet::Flavour;
use crate::support::runner::Flavour as _;
use crate::support::wait::{holds, wait_for};

/// The kinds of volumes, each with the pods of one turn. A kind of volume that kubelets mount in another way gets a line
/// here and in [`object`].
const KINDS: [&str; 3] = ["claim", "inline", BLOCK];
const BLOCK: &str = "block";

/// A pod with data in its volume; creates its claim.
fn object(cluster: &Cluster, kind: &str, name: &str) -> String {
    let script = format!("echo {name} >/data/file; echo part >/part/file");
    match kind {
        "inline" => pod(name, inline(), &script),
        BLOCK => {
            cluster.create(&block_claim(name, "waiting"));
            let script = format!("echo {name} | dd of=/dev/disk conv=notrunc,fsync");
            block_pod(name, of_claim(name), &script)
        }
        _ => {
            cluster.create(&claim(name, "waiting"));
            pod(name, of_claim(name), &script)
        }
    }
}

/// A pod of each kind. Returns their names.
fn create_pods(cluster: &Cluster, turn: &str) -> Vec<String> {
    let names = KINDS.map(|kind| {
        let name = format!("{kind}-{turn}");
        cluster.create(&object(cluster, kind, &name));
        name
    });
    for name in &names {
        cluster.wait("condition=Ready", &format!("pod/{name}"));
    }
    names.into()
}

/// What may not change while the kubelet does: the containers, their mounts, and what pods read.
#[derive(Debug, PartialEq)]
struct Seen {
    containers: Vec<String>,
    instances: Vec<[String; 4]>,
    mount_points: Vec<String>,
    data: Vec<String>,
}

fn seen(cluster: &Cluster, pods: &[String]) -> Seen {
    let read = |pod: &String| {
        let script = if pod.starts_with(BLOCK) { "head -n 1 /dev/disk" } else { "cat /data/file" };
        let read = cluster.kubectl(&["exec", pod, "--", "sh", "-c", script]);
        assert_eq!(read.trim(), pod, "{script}");
        read
    };
    let mut mount_points = mount_points(cluster);
    mount_points.sort();
    Seen {
        containers: running(cluster),
        instances: instances(cluster, "app=user"),
        mount_points,
        data: pods.iter().map(read).collect(),
    }
}

/// Replaces the kubelet, which registers the driver again and leaves all pods as they are.
async fn change_to(cluster: &mut Cluster, flavour: Flavour, pods: &[String]) {
    // A Go kubelet probes a pod anew, as not ready, whose container started in the ten seconds before the kubelet did.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let before = seen(cluster, pods);
    let points: Vec<_> = before.mount_points.windows(2).collect();
    assert!(points.iter().all(|pair| pair[0] != pair[1]), "mounted twice: {before:#?}");
    if flavour == Flavour::Rust {
        is_safe_and_changes_nothing(cluster);
    }
    let reported = version(cluster);
    flavour.make_current();
    cluster.restart_kubelet();
    wait_for("the other kubelet reports the node", DEADLINE, || async {
        holds(version(cluster) != reported, "the last one's report")
    })
    .await;
    wait_registered(cluster);
    // Long enough for its first sync of every pod.
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(seen(cluster, pods), before, "{flavour:?}");
}

/// Deletes pods with their claims, and waits until their volumes are off the node.
async fn delete(cluster: &Cluster, pods: &[String]) {
    let claims = ["get", "pvc", "-o", "jsonpath={.items[*].metadata.name}"];
    let claims = cluster.kubectl(&claims);
    let claims: Vec<_> =
        claims.split(' ').filter(|claim| pods.iter().any(|pod| pod == claim)).collect();
    let prefix = format!("kubernetes.io/csi/{NAME}^");
    let handle = |claim: &&str| volume_name(cluster, claim).replace(&prefix, "");
    let handles: Vec<_> = claims.iter().map(handle).collect();
    let uid = |pod: &String| cluster.get(&["pod", pod])["metadata"]["uid"].to_string();
    let uids: Vec<_> = pods.iter().map(uid).collect();
    let names: Vec<_> = pods.iter().map(String::as_str).collect();
    cluster.kubectl(&[&["delete", "pod"], &names[..]].concat());
    cluster.kubectl(&[&["delete", "pvc"], &claims[..]].concat());
    wait_for("the volumes are unpublished, then unstaged", DEADLINE, || async {
        let lines = journal(cluster);
        let is_undone = handles.iter().all(|handle| is_undone(&lines, handle));
        let points = mount_points(cluster);
        let is_mounted =
            |uid: &String| points.iter().any(|one| one.contains(uid.trim_matches('"')));
        let loops = loop_devices();
        let is_attached = |uid: &String| {
            let uid = uid.trim_matches('"');
            loops.iter().any(|backing| backing.contains(uid))
        };
        let is_left = |uid: &String| is_mounted(uid) || is_attached(uid);
        holds(is_undone && !uids.iter().any(is_left), format!("{lines:#?} {points:#?} {loops:#?}"))
    })
    .await;
}

/// What the loop devices of the machine are attached to. A Go kubelet attaches one to each device that it maps.
fn loop_devices() -> Vec<String> {
    let entries = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let backing = entries.map(|entry| entry.path().join("loop/backing_file"));
    backing.filter_map(|path| std::fs::read_to_string(path).ok()).collect()
}

/// Whether the last calls of the node for a volume were unpublish and then unstage.
fn is_undone(journal: &[String], handle: &str) -> bool {
    let of_node =
        |line: &&String| line.starts_with("Node") && line.split(' ').nth(1) == Some(handle);
    let calls = journal.iter().filter(of_node);
    let done = calls.filter(|line| line.ends_with(" Ok"));
    let methods: Vec<_> = done.filter_map(|line| line.split(' ').next()).collect();
    // A call may be repeated.
    let last = |method: &str| methods.iter().rposition(|one| *one == method);
    let orders = ["NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"];
    let [Some(published), Some(unpublished), Some(unstaged)] = orders.map(last) else {
        return false;
    };
    published < unpublished && unpublished < unstaged
}

pub async fn volumes_stay_mounted_once_and_are_undone_by_whichever_kubelet_is_there() {
    check_programs().unwrap();
    Flavour::Go.make_current();
    let mut cluster = Cluster::start();
    create_objects(&cluster);
    create_daemon_set(&cluster);
    wait_registered(&cluster);
    let of_go = create_pods(&cluster, "go");
    let mut pods = create_pods(&cluster, "go-too");
    pods.extend(of_go.clone());

    change_to(&mut cluster, Flavour::Rust, &pods).await;
    delete(&cluster, &of_go).await;
    pods.retain(|pod| !of_go.contains(pod));
    pods.extend(create_pods(&cluster, "rust"));

    change_to(&mut cluster, Flavour::Go, &pods).await;
    delete(&cluster, &pods).await;
    no_volume_is_left(&cluster).await;
    // This kubelet finds its records of volumes that are undone and deleted.
    change_to(&mut cluster, Flavour::Rust, &[]).await;
    no_volume_is_left(&cluster).await;
    nothing_is_leaked(&cluster).await;
}
