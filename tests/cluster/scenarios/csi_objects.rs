//! A CSI driver as a pod beside the real provisioner, attacher and resizer, and the objects of its volumes.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cluster::{Cluster, DEADLINE, NODE};
use crate::csi_driver::{self, Mounts, NAME, VIOLATION};
use crate::inventory::items;
use crate::kubelet::Flavour;
use crate::support::scripts;
use crate::support::wait::{holds, wait_for};

/// How the driver calls the node.
const NODE_ID: &str = "node-1";
const ROOT: &str = "/var/lib/kubelet";
/// The driver and what the volumes are made of.
const DRIVER_POD: &str = "csi-driver";

/// Whether what serves and judges a driver is built. It is the same for each version of the control plane.
pub fn check_programs() -> Result<(), String> {
    let mut check = scripts::script("build-kubernetes.sh");
    let check = check.env_remove("KUBERNETES_VERSION");
    scripts::printed(check.args(["--check", "--storage"])).map(drop)
}

fn base() -> PathBuf {
    Path::new(ROOT).join("plugins").join(NAME)
}

/// The driver's object and classes of volumes.
pub fn create_objects(cluster: &Cluster) {
    let driver = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": NAME},
        "spec": {
            "attachRequired": true, "podInfoOnMount": true, "fsGroupPolicy": "File",
            "volumeLifecycleModes": ["Persistent", "Ephemeral"],
        },
    });
    cluster.create(&driver.to_string());
    for (name, mode) in [("waiting", "WaitForFirstConsumer"), ("immediate", "Immediate")] {
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
            "provisioner": NAME, "volumeBindingMode": mode, "allowVolumeExpansion": true,
        });
        cluster.create(&class.to_string());
    }
}

/// A pod with the driver and what serves it. The programs are the machine's, so each container changes its root to that of
/// the node, in which the driver mounts.
fn driver_pod(cluster: &Cluster) -> Value {
    let tools = scripts::target().join("tools/kubernetes");
    let kubeconfig = cluster.dir().join("admin.conf");
    let socket = csi_driver::socket(&base());
    let sidecar = |program: &str, flags: &[&str]| {
        let mut command = vec![
            tools.join(program).display().to_string(),
            format!("--csi-address={}", socket.display()),
            format!("--kubeconfig={}", kubeconfig.display()),
        ];
        command.extend(flags.iter().map(|flag| (*flag).to_owned()));
        container(program, command)
    };
    let registry = Path::new(ROOT).join("plugins_registry");
    let driver = csi_driver::command(NODE_ID, &base(), Some(&registry), Mounts::Tmpfs);
    json!({
        "metadata": {"name": DRIVER_POD, "namespace": "kube-system", "labels": {"app": DRIVER_POD}},
        "spec": {
            "hostNetwork": true,
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 5,
            "containers": [
                container("driver", driver),
                sidecar("csi-provisioner", &["--feature-gates=Topology=true", "--strict-topology"]),
                sidecar("csi-attacher", &["--retry-interval-max=2s"]),
                sidecar("csi-resizer", &["--retry-interval-max=2s"]),
            ],
            "volumes": [
                {"name": "host", "hostPath": {"path": "/"}},
                {"name": "kubelet", "hostPath": {"path": ROOT, "type": "Directory"}},
            ],
        },
    })
}

fn container(name: &str, command: Vec<String>) -> Value {
    let command = ["chroot", "/host"].map(str::to_owned).into_iter().chain(command);
    json!({
        "name": name,
        "image": "localhost/busybox:dev",
        "command": command.collect::<Vec<_>>(),
        "securityContext": {"privileged": true},
        "volumeMounts": [
            {"name": "host", "mountPath": "/host", "mountPropagation": "HostToContainer"},
            {"name": "kubelet", "mountPath": format!("/host{ROOT}"), "mountPropagation": "Bidirectional"},
        ],
    })
}

/// Runs the driver on each node.
pub fn create_daemon_set(cluster: &Cluster) {
    let template = driver_pod(cluster);
    let set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": template["metadata"],
        "spec": {"selector": {"matchLabels": template["metadata"]["labels"]}, "template": template},
    });
    cluster.create(&set.to_string());
}

/// The driver as a static pod, which comes and goes without the API server.
pub fn static_pod(cluster: &Cluster) -> String {
    let mut pod = driver_pod(cluster);
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod.to_string()
}

/// Waits until the driver is registered.
pub fn wait_registered(cluster: &Cluster) {
    let csi_node = format!("csinode/{NODE}");
    cluster.wait("create", &csi_node);
    let registered = format!("jsonpath={{.spec.drivers[0].name}}={NAME}");
    cluster.wait(&registered, &csi_node);
}

pub fn claim(name: &str, class: &str) -> String {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": claim_spec(class),
    });
    claim.to_string()
}

fn claim_spec(class: &str) -> Value {
    json!({
        "storageClassName": class, "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "16Mi"}},
    })
}

pub fn of_claim(name: &str) -> Value {
    json!({"persistentVolumeClaim": {"claimName": name}})
}

pub fn of_own_claim(class: &str) -> Value {
    json!({"ephemeral": {"volumeClaimTemplate": {"spec": claim_spec(class)}}})
}

pub fn inline() -> Value {
    json!({"csi": {"driver": NAME, "volumeAttributes": {"size": "1Mi"}}})
}

/// A pod with a volume at /data, and with a directory of it at /part. It runs a script first.
pub fn pod(name: &str, mut volume: Value, script: &str) -> String {
    volume["name"] = json!("v");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "user"}},
        "spec": {
            // It waits for nothing but its volume.
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 3000},
            "containers": [{
                "name": "main",
                "image": "localhost/busybox:dev",
                "command": ["sh", "-ec", format!("{script}; touch /tmp/ready; exec sleep 1000")],
                "readinessProbe": {"exec": {"command": ["test", "-e", "/tmp/ready"]}, "periodSeconds": 1},
                "volumeMounts": [
                    {"name": "v", "mountPath": "/data"},
                    {"name": "v", "mountPath": "/part", "subPath": "part"},
                ],
            }],
            "volumes": [volume],
        },
    });
    pod.to_string()
}

/// The same claim for a device.
pub fn block_claim(name: &str, class: &str) -> String {
    let mut claim: Value = serde_json::from_str(&claim(name, class)).unwrap();
    claim["spec"]["volumeMode"] = json!("Block");
    claim.to_string()
}

/// A pod with a device at /dev/disk.
pub fn block_pod(name: &str, volume: Value, script: &str) -> String {
    let mut pod: Value = serde_json::from_str(&pod(name, volume, script)).unwrap();
    let spec = &mut pod["spec"];
    // The device is root's.
    spec["securityContext"] = json!({});
    let container = &mut spec["containers"][0];
    container["volumeMounts"] = json!([]);
    container["volumeDevices"] = json!([{"name": "v", "devicePath": "/dev/disk"}]);
    pod.to_string()
}

/// The unique name of the volume that a claim is bound to, as in a Node's status.
pub fn volume_name(cluster: &Cluster, claim: &str) -> String {
    let claim = cluster.get(&["persistentvolumeclaim", claim]);
    let volume = cluster.get(&["persistentvolume", claim["spec"]["volumeName"].as_str().unwrap()]);
    let handle = volume["spec"]["csi"]["volumeHandle"].as_str().unwrap();
    format!("kubernetes.io/csi/{NAME}^{handle}")
}

/// The lines of the driver's journal.
pub fn journal(cluster: &Cluster) -> Vec<String> {
    let path = csi_driver::journal(&outside(cluster, &base()));
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// How often the driver has carried out a call.
pub fn done(cluster: &Cluster, method: &str) -> usize {
    let lines = journal(cluster).into_iter();
    let done =
        lines.filter(|line| line.starts_with(&format!("{method} ")) && line.ends_with(" Ok"));
    done.count()
}

/// A path of the node below the kubelet's directory, from outside.
fn outside(cluster: &Cluster, path: &Path) -> PathBuf {
    let below = path.strip_prefix(ROOT).unwrap();
    cluster.dir().join("private/node/lib/kubelet").join(below)
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().path().display().to_string());
    names.collect()
}

/// The records of volumes that the kubelet has.
pub fn records(cluster: &Cluster) -> Vec<String> {
    names(&outside(cluster, &Path::new(ROOT).join("csi_volumes")))
}

/// Waits until nothing is left of volumes: in the API server, on the node and in the driver, which never had a reason to
/// complain. The pods may not use any more.
pub async fn no_volume_is_left(cluster: &Cluster) {
    wait_for("nothing is left of the volumes", DEADLINE, || async {
        let left = left(cluster);
        holds(left.is_empty(), format!("{left:#?}"))
    })
    .await;
    let journal = journal(cluster);
    let complaints = journal.iter().filter(|line| line.starts_with(VIOLATION));
    let complaints: Vec<_> = complaints.collect();
    assert!(complaints.is_empty(), "{complaints:#?} in {journal:#?}");
}

/// The mounts of the node below the kubelet's directory, once for each time that something is mounted there.
pub fn mount_points(cluster: &Cluster) -> Vec<String> {
    let mounts = cluster.inside(&["cat", "/proc/self/mountinfo"]);
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let below = points.filter(|point| point.starts_with(&format!("{ROOT}/")));
    below.map(str::to_owned).collect()
}

fn left(cluster: &Cluster) -> Vec<String> {
    let mut left = Vec::new();
    let objects = cluster.get(&["persistentvolumeclaims,persistentvolumes,volumeattachments"]);
    left.extend(items(&objects).map(|one| format!("{} {}", one["kind"], one["metadata"]["name"])));
    let status = cluster.get(&["node", NODE])["status"].take();
    for field in ["volumesInUse", "volumesAttached"] {
        let volumes = status[field].as_array().into_iter().flatten();
        left.extend(volumes.map(|volume| format!("{field} {volume}")));
    }
    let points = mount_points(cluster).into_iter();
    left.extend(points.map(|point| format!("mount {point}")));
    // The Go kubelet does not know them.
    if Flavour::current() == Flavour::Rust {
        left.extend(records(cluster));
    }
    left.extend(names(&outside(cluster, &base().join("volumes"))));
    let staged = Path::new(ROOT).join("plugins/kubernetes.io/csi").join(NAME);
    left.extend(names(&outside(cluster, &staged)));
    left
}
