//! A node whose kubelet is a process, so that it can be killed, with CSI drivers that outlive it. Controllers attach and
//! detach their volumes as upstream's do, and a watch finds volumes on the node that the Node object does not have among
//! its volumes in use.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubelet::apiserver::volume_attachment::attachment_name;
use serde_json::{Value, json};

use crate::api_source::{ForeignMount, bound, path};
use crate::csi::driver::disks::{attached_below, detach_below};
use crate::csi::driver::{CsiDriver, DriverConfig, DriverVolumes, Mounts};
use crate::csi::mounts_below;
use crate::support::api_server::FakeApiServer;
use crate::support::fake_runtime::{FakeRuntime, Options, PodView};
use crate::support::kubelet_process::{KubeletProcess, Settings};

pub(crate) const NODE: &str = "/api/v1/nodes/node1";
const NODE_ID: &str = "node-1";
/// How often the controllers act.
const TICK: Duration = Duration::from_millis(10);
/// The file in each volume.
const KEPT: &str = "kept";

/// A driver and its volumes, each for the claim with its name.
pub(crate) struct NodeDriver {
    pub(crate) name: &'static str,
    /// Its volumes have to be attached.
    pub(crate) attach: bool,
    pub(crate) stage: bool,
    /// Its volumes are devices.
    pub(crate) block: bool,
    pub(crate) volumes: Vec<String>,
}

pub(crate) struct CsiNode {
    pub(crate) api: Arc<FakeApiServer>,
    pub(crate) fake: FakeRuntime,
    pub(crate) drivers: Vec<CsiDriver>,
    pub(crate) kubelet: KubeletProcess,
    controllers: Arc<Controllers>,
    has_devices: bool,
    dir: PathBuf,
}

impl CsiNode {
    /// Starts everything; `None` where the test may not mount. An attachment takes about `slowness` ticks.
    pub(crate) async fn start(dir: &Path, drivers: &[NodeDriver], slowness: u8) -> Option<CsiNode> {
        drop(ForeignMount::new(dir.join("may-mount"))?);
        let api = Arc::new(FakeApiServer::start().await);
        api.put(NODE, json!({"metadata": {"name": "node1", "uid": "uid-of-node1"}}));
        let started = drivers.iter().map(|driver| start_driver(dir, driver, &api));
        let started: Vec<_> = started.collect();
        let attached = drivers.iter().zip(&started).filter(|(is, _)| is.attach);
        let attached = attached.map(|(is, driver)| (is.name, driver.volumes.clone()));
        let controllers = Arc::new(Controllers {
            drivers: attached.collect(),
            slowness,
            problems: Mutex::default(),
        });
        let watch = controllers.clone();
        api.observe(move |resource, object| {
            if resource == "nodes" {
                watch.check(object);
            }
        });
        tokio::spawn(controllers.clone().run(api.clone()));
        let fake = FakeRuntime::start(Options::default()).await;
        let mut settings = Settings::new(dir, &fake.endpoint());
        let kubeconfig = api.kubeconfig(dir);
        settings.args = vec![format!("--kubeconfig={}", kubeconfig.display())];
        Some(CsiNode {
            api,
            drivers: started,
            kubelet: KubeletProcess::start(settings).await,
            fake,
            controllers,
            has_devices: drivers.iter().any(|driver| driver.block),
            dir: dir.to_owned(),
        })
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// Adds a pod that uses the volume of this claim.
    pub(crate) fn put(&self, name: &str, claim: &str) {
        let mut pod = pod(name, &format!("uid-of-{name}"), &[claim], None);
        if self.has_devices {
            use_devices(&mut pod);
        }
        self.api.put(&path(name), pod);
    }

    /// The UID of a pod that the API server has, also while it is being deleted.
    pub(crate) fn uid(&self, name: &str) -> Option<String> {
        let pod = self.api.object(&path(name))?;
        pod["metadata"]["uid"].as_str().map(str::to_owned)
    }

    /// The running pod with this UID.
    pub(crate) fn running(&self, uid: &str) -> Option<PodView> {
        let mut pods = self.fake.pods().into_iter();
        pods.find(|pod| pod.uid == uid && pod.containers.iter().any(|one| one.is_running()))
    }

    /// The volumes of a running pod that are not there, or are not what they were.
    pub(crate) fn lacks(&self, pod: &PodView) -> Vec<String> {
        let running = pod.containers.iter().filter(|one| one.is_running());
        let paths = running.flat_map(|one| one.config.mounts.iter().map(|mount| &mount.host_path));
        let mounted = mounts_below(&self.root());
        let devices = pod.containers.iter().filter(|one| one.is_running());
        let devices = devices.flat_map(|one| one.config.devices.iter());
        let devices = devices.map(|device| &device.host_path);
        let lacks_devices = devices.filter(|path| !is_kept_on_device(path));
        let lacks = paths.filter(|path| {
            let is_claim = path.contains("/kubernetes.io~csi/pv-");
            let is_csi = is_claim || path.contains("/kubernetes.io~csi/");
            let is_kept = !is_claim || Path::new(path).join(KEPT).exists();
            is_csi && !(mounted.contains(path) && is_kept)
        });
        lacks.chain(lacks_devices).cloned().collect()
    }

    /// What is left of pods and volumes on the node.
    pub(crate) fn left(&self) -> Vec<String> {
        let root = self.root();
        let mut left = mounts_below(&root);
        let staged = root.join("plugins/kubernetes.io/csi");
        let of_driver = |driver: &CsiDriver| staged.join(&driver.config().name);
        let directories = self.drivers.iter().map(of_driver);
        let block = staged.join("volumeDevices");
        let block_dirs = [block.join("staging"), block.join("publish")];
        let of_volumes = std::fs::read_dir(&block).into_iter().flatten().flatten();
        let of_volumes = of_volumes.map(|entry| entry.path());
        left.extend(
            of_volumes
                .filter(|path| !block_dirs.contains(path))
                .map(|path| path.display().to_string()),
        );
        let attached = attached_below(&self.dir).into_iter();
        left.extend(attached.map(|path| format!("{} is attached", path.display())));
        for directory in
            directories.chain([root.join("csi_volumes"), root.join("pods")]).chain(block_dirs)
        {
            let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.path().display().to_string()));
        }
        for (handle, volume) in self.drivers.iter().flat_map(|one| one.volumes.all()) {
            let is_on_node = volume.staged.is_some() || !volume.published.is_empty();
            if is_on_node || !volume.attached_to.is_empty() || volume.is_inline {
                left.push(format!("{handle} in the driver: {volume:?}"));
            }
        }
        let node = self.api.object(NODE).expect("the Node");
        left.extend(in_use(&node).into_iter().map(|name| format!("{name} in use")));
        left
    }

    /// Calls that CSI forbids.
    pub(crate) fn violations(&self) -> Vec<String> {
        let drivers = self.drivers.iter();
        drivers.flat_map(|one| one.journal.violations()).collect()
    }

    /// Volumes that were on the node and not in use, and when.
    pub(crate) fn not_in_use(&self) -> Vec<String> {
        let problems = self.controllers.problems.lock().expect("no panic");
        problems.iter().cloned().collect()
    }
}

impl Drop for CsiNode {
    fn drop(&mut self) {
        self.kubelet.kill();
        // A test that failed leaves mounts.
        let mut mounts = mounts_below(&self.root());
        while let Some(mount) = mounts.pop() {
            let _ = rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH);
        }
        detach_below(&self.dir);
    }
}

fn start_driver(dir: &Path, driver: &NodeDriver, api: &FakeApiServer) -> CsiDriver {
    let name = driver.name;
    let mut config = DriverConfig::new(name, &dir.join(name));
    config.registry = Some(dir.join("root/plugins_registry"));
    config.mounts = Mounts::Bind;
    config.attach = driver.attach;
    config.stage_unstage = driver.stage;
    std::fs::create_dir_all(dir.join("root")).expect("the root directory");
    let started = CsiDriver::start(config);
    api.put(
        &format!("/apis/storage.k8s.io/v1/csidrivers/{name}"),
        json!({"metadata": {"name": name}, "spec": {
            "attachRequired": driver.attach, "podInfoOnMount": true,
            "volumeLifecycleModes": ["Persistent", "Ephemeral"]}}),
    );
    for handle in &driver.volumes {
        started.add_volume(handle);
        let kept = started.volumes.data(handle).join(KEPT);
        std::fs::write(kept, handle).expect("a file");
        std::fs::write(started.volumes.disk(handle), handle).expect("a file");
        put_claim(api, handle, driver);
    }
    started
}

/// Whether a device has the data of the volume that it stands for.
fn is_kept_on_device(path: &str) -> bool {
    let handle = path.rsplit("/pv-").next().unwrap_or_default();
    let mut found = vec![0; handle.len()];
    let opened = std::fs::File::open(path);
    let read = opened.and_then(|mut device| device.read_exact(&mut found));
    read.is_ok() && found == handle.as_bytes()
}

/// A claim with the name of its volume.
fn put_claim(api: &FakeApiServer, handle: &str, driver: &NodeDriver) {
    let volume = format!("pv-{handle}");
    let mode = if driver.block { "Block" } else { "Filesystem" };
    api.put(
        &format!("/api/v1/persistentvolumes/{volume}"),
        json!({"metadata": {"name": volume}, "spec": {
            "claimRef": {"uid": format!("c-{handle}")}, "accessModes": ["ReadWriteOnce"],
            "volumeMode": mode,
            "csi": {"driver": driver.name, "volumeHandle": handle}}}),
    );
    api.put(
        &format!("/api/v1/namespaces/default/persistentvolumeclaims/{handle}"),
        json!({"metadata": {"name": handle, "namespace": "default", "uid": format!("c-{handle}")},
            "spec": {"volumeName": volume}, "status": {"phase": "Bound"}}),
    );
}

/// A pod with these claims, and a volume that it defines inline.
pub(crate) fn pod(name: &str, uid: &str, claims: &[&str], inline: Option<&str>) -> Value {
    let claims = claims.iter().enumerate().map(|(number, claim)| {
        json!({"name": format!("v{number}"), "persistentVolumeClaim": {"claimName": claim}})
    });
    let inline = inline.map(|driver| json!({"name": "inline", "csi": {"driver": driver}}));
    let volumes: Vec<_> = claims.chain(inline).collect();
    let mounts = volumes.iter().map(|volume| {
        let name = volume["name"].as_str().expect("a name");
        json!({"name": name, "mountPath": format!("/{name}")})
    });
    let mut pod = bound(name);
    pod["metadata"]["uid"] = json!(uid);
    pod["spec"]["containers"][0]["volumeMounts"] = mounts.collect();
    pod["spec"]["volumes"] = json!(volumes);
    pod
}

/// Turns the mounts of a pod's container into devices.
fn use_devices(pod: &mut Value) {
    let container = &mut pod["spec"]["containers"][0];
    let mounts = container["volumeMounts"].take();
    let devices = mounts.as_array().expect("mounts").iter();
    container["volumeDevices"] = devices
        .map(|mount| json!({"name": mount["name"], "devicePath": mount["mountPath"]}))
        .collect();
    container["volumeMounts"] = json!([]);
}

fn in_use(node: &Value) -> BTreeSet<String> {
    let names = node["status"]["volumesInUse"].as_array().into_iter().flatten();
    names.filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

fn unique_name(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

/// The attach/detach controller and the drivers' own, of the drivers whose volumes have to be attached.
struct Controllers {
    drivers: Vec<(&'static str, DriverVolumes)>,
    slowness: u8,
    problems: Mutex<BTreeSet<String>>,
}

impl Controllers {
    async fn run(self: Arc<Self>, api: Arc<FakeApiServer>) {
        loop {
            self.check(&api.object(NODE).expect("the Node"));
            for (driver, volumes) in &self.drivers {
                for (handle, volume) in volumes.all() {
                    let is_attached = !volume.attached_to.is_empty();
                    self.act(&api, (driver, volumes), &handle, is_attached);
                }
            }
            tokio::time::sleep(TICK).await;
        }
    }

    /// Finds volumes on the node that this Node does not have among its volumes in use. A volume that is on the node after
    /// the Node was read, and was not before, must have been in the Node by then all the same.
    fn check(&self, node: &Value) {
        let in_use = in_use(node);
        for (driver, volumes) in &self.drivers {
            for (handle, volume) in volumes.all() {
                let is_on_node = volume.staged.is_some() || !volume.published.is_empty();
                if is_on_node
                    && !volume.is_inline
                    && !in_use.contains(&unique_name(driver, &handle))
                {
                    self.problem(format!("{handle} is on the node and not in use: {volume:?}"));
                }
            }
        }
    }

    fn problem(&self, text: String) {
        self.problems.lock().expect("no panic").insert(text);
    }

    fn act(
        &self,
        api: &FakeApiServer,
        (driver, volumes): (&str, &DriverVolumes),
        handle: &str,
        is_attached: bool,
    ) {
        let name = unique_name(driver, handle);
        let mounts = |volume: &Value| volume["persistentVolumeClaim"]["claimName"] == handle;
        let pods = api.all("/api/v1/pods");
        let is_wanted = pods.iter().any(|pod| {
            let volumes = pod["spec"]["volumes"].as_array();
            volumes.into_iter().flatten().any(mounts)
        });
        let mut node = api.object(NODE).expect("the Node");
        let attachment = attachment_name(handle, driver, "node1");
        let attachment_path = format!("/apis/storage.k8s.io/v1/volumeattachments/{attachment}");
        let attached = node["status"]["volumesAttached"].take();
        let mut attached = attached.as_array().cloned().unwrap_or_default();
        if is_wanted && !is_attached && fastrand::u8(..self.slowness.max(1)) == 0 {
            volumes.change(handle, |volume| {
                volume.attached_to.insert(NODE_ID.to_owned());
            });
            api.put(
                &attachment_path,
                json!({"metadata": {"name": attachment},
                    "spec": {"attacher": driver, "nodeName": "node1", "source": {}},
                    "status": {"attached": true}}),
            );
            attached.push(json!({"name": name, "devicePath": ""}));
        } else if !is_wanted && is_attached && !in_use(&node).contains(&name) {
            volumes.change(handle, |volume| {
                if volume.staged.is_some() || !volume.published.is_empty() {
                    self.problem(format!("{handle} is detached while it is on the node"));
                }
                volume.attached_to.clear();
            });
            api.remove(&attachment_path);
            attached.retain(|one| one["name"] != name);
        } else {
            return;
        }
        node["status"]["volumesAttached"] = json!(attached);
        api.put(NODE, node);
    }
}
