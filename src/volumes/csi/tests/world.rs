//! The CSI volumes of a node, with a driver that is a real gRPC server, and without pods.

use super::driver::disks::{attached_below, detach_below};
use super::driver::{CsiDriver, DriverConfig, Mounts};
use crate::apiserver::csi_driver::CsiDriverLister;
use crate::apiserver::tests::stored::Stored;
use crate::apiserver::token::IssuedTokens;
use crate::apiserver::volume_attachment::VolumeAttachments;
use crate::base::error_chain;
use crate::base::metrics::Metrics;
use crate::model::PodUid;
use crate::resources::plugin_manager::RegisteredPlugin;
use crate::state::events::EventRecorder;
use crate::state::volumes_in_use::VolumesInUse;
use crate::volumes::csi::inputs::CsiSources;
use crate::volumes::csi::manager::CsiVolumes;
use crate::volumes::csi::requests::MountingPod;
use crate::volumes::csi::spec::CsiVolumeSpec;
use crate::volumes::csi::volume::PublishRequest;
use crate::volumes::csi::{CsiDrivers, CsiMetrics, RegistrationId};
use crate::volumes::ownership::ChangePolicy;
use crate::volumes::{HostMounter, KubeletRoot, VolumeError, VolumeGroup, VolumeMetrics};
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub(super) const DRIVER: &str = "csi.example.com";
pub(super) const VOLUME: &str = "vol-a";
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// A node with a driver.
pub(super) struct World {
    pub(super) dir: tempfile::TempDir,
    pub(super) server: Stored,
    pub(super) driver: CsiDriver,
    pub(super) node: watch::Sender<Option<Arc<Node>>>,
    pub(super) csi: CsiVolumes,
    pub(super) registration: Option<RegistrationId>,
    pub(super) metrics: Metrics,
}

impl World {
    /// A node with a driver that is registered and whose volumes need not be attached.
    pub(super) async fn start() -> Self {
        Self::with(json!({"attachRequired": false}), Mounts::None).await
    }

    pub(super) async fn with(object: Value, mounts: Mounts) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = Stored::start().await;
        server.put("csidrivers", "", DRIVER, json!({"spec": object}));
        let mut config = DriverConfig::new(DRIVER, &dir.path().join("plugin"));
        config.mounts = mounts;
        config.volume_stats = true;
        config.volume_condition = true;
        config.expand = true;
        let driver = CsiDriver::start(config);
        driver.add_volume(VOLUME);
        let node = watch::Sender::new(None);
        let (csi, metrics) = kubelet(&dir, &server, &node).await;
        csi.pods_are_known(|_| true);
        let mut world = Self { dir, server, driver, node, csi, registration: None, metrics };
        world.register();
        world
    }

    pub(super) fn register(&mut self) {
        let plugin = RegisteredPlugin {
            name: DRIVER.into(),
            endpoint: self.driver.config().socket(),
            versions: vec!["1.0.0".into()],
        };
        let drivers = &self.csi.sources().drivers;
        self.registration = Some(drivers.register(&plugin).unwrap());
    }

    pub(super) fn deregister(&mut self) {
        let id = self.registration.take().unwrap();
        self.csi.sources().drivers.deregister(DRIVER, id);
    }

    /// Another process of the kubelet; the previous one does nothing any more.
    pub(super) async fn restart(&mut self) {
        self.deregister();
        // As the end of a process does.
        for volume in self.csi.0.volumes.lock().values() {
            volume.state.lock().devices.clear();
        }
        (self.csi, self.metrics) = kubelet(&self.dir, &self.server, &self.node).await;
        self.register();
    }

    pub(super) fn root(&self) -> PathBuf {
        fs::canonicalize(self.dir.path().join("kubelet")).unwrap()
    }

    /// The PersistentVolume.
    pub(super) fn volume(&self) -> Value {
        json!({
            "metadata": {"name": "pv1"},
            "spec": {"accessModes": ["ReadWriteOnce"], "csi": {"driver": DRIVER, "volumeHandle": VOLUME}},
        })
    }

    pub(super) fn request(&self, pod: &str, change: impl FnOnce(&mut Value)) -> PublishRequest {
        let mut volume = self.volume();
        change(&mut volume);
        let volume = serde_json::from_value(volume).unwrap();
        let spec = CsiVolumeSpec::from_persistent_volume(&volume);
        let uid = PodUid::from(pod);
        let root = KubeletRoot::create(&self.root()).unwrap();
        PublishRequest {
            volume: "data".into(),
            spec: Arc::new(spec.unwrap().unwrap()),
            directory: root.pod(&uid).unwrap(),
            pod: MountingPod {
                uid,
                namespace: "shop".into(),
                name: format!("pod-{pod}"),
                service_account: "robot".into(),
                file_labels: Default::default(),
            },
            read_only: false,
            group: VolumeGroup(None),
            change_policy: ChangePolicy::Always,
        }
    }

    pub(super) async fn publish(&self, pod: &str) -> Result<PathBuf, String> {
        self.publish_changed(pod, |_| ()).await
    }

    pub(super) async fn publish_changed(
        &self,
        pod: &str,
        change: impl FnOnce(&mut Value),
    ) -> Result<PathBuf, String> {
        let publish = self.csi.begin_publish(self.request(pod, change));
        let finished = timeout(LIMIT, publish.finish()).await;
        finished.expect("an end").map_err(|error| error_chain(&error))
    }

    pub(super) async fn unpublish(&self, pod: &str) -> Result<(), VolumeError> {
        let uid = pod.into();
        let unpublished = timeout(LIMIT, self.csi.unpublish(&uid));
        unpublished.await.expect("an end")
    }

    pub(super) fn calls(&self) -> Vec<&'static str> {
        let entries = self.driver.journal.entries().into_iter();
        let steps = entries.filter(|entry| entry.method.ends_with("Volume"));
        steps.map(|entry| entry.method).collect()
    }

    pub(super) fn in_use(&self) -> Option<Vec<String>> {
        let wanted = self.csi.sources().in_use.wanted().borrow().clone();
        wanted.map(|names| names.iter().cloned().collect())
    }

    /// Publishes a volume for a pod with this `fsGroup`.
    pub(super) async fn publish_for_group(&self, pod: &str, group: u32) -> Result<PathBuf, String> {
        let mut request = self.request(pod, |_| ());
        request.group = VolumeGroup(Some(group));
        let finished = timeout(LIMIT, self.csi.begin_publish(request).finish()).await;
        finished.expect("an end").map_err(|error| error_chain(&error))
    }

    /// A node whose driver mounts volumes; `None` where the machine does not allow that, which `CI` makes a failure.
    pub(super) async fn with_mounts(object: Value) -> Option<Self> {
        let world = Self::with(object, Mounts::Bind).await;
        let (source, target) = (world.dir.path().join("s"), world.dir.path().join("t"));
        fs::create_dir(&source).unwrap();
        fs::create_dir(&target).unwrap();
        let bound = crate::host::mount::bind(&source, &target);
        if let Err(error) = bound.and_then(|()| crate::host::mount::unmount(&target)) {
            assert!(std::env::var_os("CI").is_none(), "{error}");
            eprintln!("SKIPPED, cannot mount here: {error}");
            return None;
        }
        Some(world)
    }

    /// Waits until nothing is left of any volume.
    pub(super) async fn idle(&self) {
        // The kernel detaches a device once nothing has it open.
        let is_attached = || !attached_below(self.dir.path()).is_empty();
        let gone = async {
            while self.csi.count() > 0 || is_attached() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LIMIT, gone).await.expect("no volumes and devices");
        let volume = self.driver.volumes.get(VOLUME).unwrap();
        assert!(volume.staged.is_none() && volume.published.is_empty());
        let records = self.root().join("csi_volumes");
        let left = fs::read_dir(records).into_iter().flatten().count();
        assert_eq!(left, 0, "records");
        let staged = self.root().join("plugins/kubernetes.io/csi").join(DRIVER);
        let left = fs::read_dir(staged).into_iter().flatten().count();
        assert_eq!(left, 0, "staging directories");
        let block = self.root().join("plugins/kubernetes.io/csi/volumeDevices");
        for directory in [&block, &block.join("staging"), &block.join("publish")] {
            let entries = fs::read_dir(directory).into_iter().flatten().flatten();
            let mut names = entries.map(|entry| entry.file_name());
            let left = names.find(|name| name != "staging" && name != "publish");
            assert_eq!(left, None, "{}", directory.display());
        }
        let mounts = crate::host::mount::list().unwrap();
        let mut mounts = mounts.iter();
        assert!(!mounts.any(|mount| mount.is_beneath(&block)), "mounts");
        assert_eq!(self.driver.journal.violations(), <[&str; 0]>::default());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Of a test that failed.
        let Ok(mounts) = crate::host::mount::list() else {
            return;
        };
        let below = mounts.iter().filter(|mount| mount.is_beneath(self.dir.path()));
        for mount in below.rev() {
            let _ = rustix::mount::unmount(&mount.mount_point, rustix::mount::UnmountFlags::DETACH);
        }
        detach_below(self.dir.path());
    }
}

async fn kubelet(
    dir: &tempfile::TempDir,
    server: &Stored,
    node: &watch::Sender<Option<Arc<Node>>>,
) -> (CsiVolumes, Metrics) {
    let root = KubeletRoot::create(&dir.path().join("kubelet")).unwrap();
    let objects = CsiDriverLister::new(Some(server.client().await));
    tokio::spawn(objects.clone().run(CancellationToken::new()));
    let api = server.client().await;
    let metrics = Metrics::new();
    let sources = CsiSources {
        drivers: CsiDrivers::new(CsiMetrics::register(&metrics)),
        objects,
        attachments: VolumeAttachments::new(Some(api.clone())),
        tokens: IssuedTokens::new(Some(api.clone())),
        api: Some(api),
        node: node.subscribe(),
        node_name: "node1".into(),
        in_use: VolumesInUse::default(),
        full_drivers: Arc::default(),
        resync_interval: Duration::from_millis(50),
        reports_health: true,
        events: EventRecorder::new(),
        metrics: VolumeMetrics::register(&metrics),
    };
    let csi = CsiVolumes::new(root, Arc::new(HostMounter), sources, Arc::default());
    csi.recover();
    (csi, metrics)
}
