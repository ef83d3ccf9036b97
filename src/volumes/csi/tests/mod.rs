//! The client and the table of drivers, with drivers that are real gRPC servers.

mod block;
mod client;
#[allow(dead_code, reason = "tests of the whole kubelet use the rest")]
pub(crate) mod driver;
mod drivers;
mod expansion;
mod full_disk;
mod manager;
mod mounts;
mod ownership;
mod usage;
mod world;

use super::{CallOutcome, CsiDrivers, CsiError, CsiMetrics, NodeClient, proto};
use crate::base::connections;
use crate::base::metrics::Metrics;
use crate::resources::plugin_manager::tests::registrar;
use crate::resources::plugin_manager::{RegisteredPlugin, registration_proto};
use driver::{Behaviour, CsiDriver, DriverConfig};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

const DRIVER: &str = "csi.example.com";
const VOLUME: &str = "vol-a";

/// A driver with a client and one volume.
struct World {
    driver: CsiDriver,
    client: NodeClient,
    metrics: Metrics,
    root: tempfile::TempDir,
}

impl World {
    fn start() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut DriverConfig)) -> Self {
        let root = tempfile::tempdir().unwrap();
        let mut config = DriverConfig::new(DRIVER, &root.path().join("plugin"));
        change(&mut config);
        let driver = CsiDriver::start(config);
        driver.add_volume(VOLUME);
        let metrics = Metrics::new();
        let socket = driver.config().socket();
        let client = NodeClient::new(DRIVER, &socket, CsiMetrics::register(&metrics));
        let world = World { driver, client, metrics, root };
        std::fs::create_dir_all(world.staging_path()).unwrap();
        std::fs::create_dir_all(world.target_path("a").parent().unwrap()).unwrap();
        world
    }

    fn staging_path(&self) -> PathBuf {
        self.root.path().join("globalmount")
    }

    fn target_path(&self, pod: &str) -> PathBuf {
        self.root.path().join("pods").join(pod)
    }

    fn stage(&self) -> proto::NodeStageVolumeRequest {
        proto::NodeStageVolumeRequest {
            volume_id: VOLUME.into(),
            staging_target_path: text(self.staging_path()),
            volume_capability: Some(capability()),
            ..proto::NodeStageVolumeRequest::default()
        }
    }

    fn unstage(&self) -> proto::NodeUnstageVolumeRequest {
        proto::NodeUnstageVolumeRequest {
            volume_id: VOLUME.into(),
            staging_target_path: text(self.staging_path()),
        }
    }

    fn publish(&self, pod: &str) -> proto::NodePublishVolumeRequest {
        proto::NodePublishVolumeRequest {
            volume_id: VOLUME.into(),
            staging_target_path: text(self.staging_path()),
            target_path: text(self.target_path(pod)),
            volume_capability: Some(capability()),
            ..proto::NodePublishVolumeRequest::default()
        }
    }

    fn unpublish(&self, pod: &str) -> proto::NodeUnpublishVolumeRequest {
        proto::NodeUnpublishVolumeRequest {
            volume_id: VOLUME.into(),
            target_path: text(self.target_path(pod)),
        }
    }
}

fn text(path: PathBuf) -> String {
    path.to_str().unwrap().to_owned()
}

fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    entries.iter().map(owned).collect()
}

fn capability() -> proto::VolumeCapability {
    use proto::volume_capability::access_mode::Mode;
    use proto::volume_capability::{AccessMode, AccessType, MountVolume};
    proto::VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume {
            fs_type: "ext4".into(),
            mount_flags: vec!["password=flag-secret".into()],
            volume_mount_group: String::new(),
        })),
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
    }
}
