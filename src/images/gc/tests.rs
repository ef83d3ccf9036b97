//! The collector against a runtime on a socket. How full the disk is cannot be chosen here: with a high
//! threshold of 0 there is always too little space, with one of 101 never.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prost::Message;
use tonic::Code;

use super::*;
use crate::cri::test_server::{Reply, TestRuntime};
use crate::cri::v1::{
    Container, FilesystemIdentifier, FilesystemUsage, ImageFsInfoResponse, ListContainersResponse,
    ListImagesResponse, RemoveImageRequest, RemoveImageResponse, RuntimeStatus, StatusResponse,
};
use crate::images::records::VerificationPolicy;
use crate::model::ContainerStatus;
use crate::state::pod_cache::{InspectedItem, ItemId, PodRef};
use crate::state::pod_manager::PodManagerWriter;

const NOW: Duration = Duration::ZERO;
const HOUR: Duration = Duration::from_secs(3600);

struct World {
    runtime: TestRuntime,
    events: EventRecorder,
    pod_manager: PodManagerWriter,
    cache: PodCache,
    records: PullRecords,
    images: Arc<Mutex<Vec<Image>>>,
    removed: Arc<Mutex<Vec<String>>>,
    root: tempfile::TempDir,
}

fn image(id: &str) -> Image {
    Image { id: id.into(), repo_tags: vec![format!("r.io/{id}:1")], size: 1000, ..Image::default() }
}

fn policy(high: u8, min_age: Duration, max_age: Duration) -> ImageGcPolicy {
    ImageGcPolicy { high_percent: high, low_percent: 0, min_age, max_age }
}

impl World {
    fn new(images: &[&str], used: &[&str]) -> World {
        let root = tempfile::tempdir().unwrap();
        let world = World {
            runtime: TestRuntime::started(),
            events: EventRecorder::new(),
            pod_manager: PodManagerWriter::default(),
            cache: PodCache::default(),
            records: PullRecords::open(root.path(), VerificationPolicy::default()).unwrap(),
            images: Arc::new(Mutex::new(images.iter().map(|id| image(id)).collect())),
            removed: Arc::default(),
            root,
        };
        world.serve_images();
        world.uses(used);
        world.mounted_at(world.root.path());
        world.runtime.script.on("Status", |_| {
            Reply::message(&StatusResponse {
                status: Some(RuntimeStatus::default()),
                info: [("config".into(), r#"{"sandboxImage": "r.io/pause:1"}"#.into())].into(),
                ..StatusResponse::default()
            })
        });
        world
    }

    fn serve_images(&self) {
        let images = self.images.clone();
        self.runtime.script.on("ListImages", move |_| {
            Reply::message(&ListImagesResponse { images: images.lock().clone() })
        });
        let (images, removed) = (self.images.clone(), self.removed.clone());
        self.runtime.script.on("RemoveImage", move |request| {
            let spec = RemoveImageRequest::decode(request).unwrap().image.unwrap();
            images.lock().retain(|image| image.id != spec.image);
            removed.lock().push(spec.image);
            Reply::message(&RemoveImageResponse {})
        });
    }

    fn uses(&self, used: &[&str]) {
        let container =
            |id: &&str| Container { image_ref: (*id).to_owned(), ..Container::default() };
        let containers: Vec<_> = used.iter().map(container).collect();
        self.runtime.script.on("ListContainers", move |_| {
            Reply::message(&ListContainersResponse { containers: containers.clone() })
        });
    }

    fn mounted_at(&self, path: &Path) {
        let mountpoint = path.to_str().unwrap().to_owned();
        self.runtime.script.on("ImageFsInfo", move |_| {
            let usage = FilesystemUsage {
                fs_id: Some(FilesystemIdentifier { mountpoint: mountpoint.clone() }),
                ..FilesystemUsage::default()
            };
            Reply::message(&ImageFsInfoResponse {
                image_filesystems: vec![usage],
                ..ImageFsInfoResponse::default()
            })
        });
    }

    fn collector(&self, policy: ImageGcPolicy) -> ImageCollector {
        let deps = CollectorDeps {
            images: self.runtime.images(),
            runtime: self.runtime.client(Duration::from_secs(10)),
            pod_manager: self.pod_manager.reader(),
            cache: self.cache.clone(),
            records: self.records.clone(),
            events: self.events.clone(),
            node_name: "node1".into(),
            policy,
            root: self.root.path().to_owned(),
        };
        ImageCollector::new(deps, &Metrics::new())
    }

    async fn collect(&self, policy: ImageGcPolicy) -> Result<(), String> {
        let collector = self.collector(policy);
        let inventory = collector.take_inventory().await.map_err(|e| format!("{e:#}"))?;
        collector.collect(inventory).await.map_err(|e| format!("{e:#}"))
    }

    fn removed(&self) -> Vec<String> {
        std::mem::take(&mut *self.removed.lock())
    }

    fn want(&self, image: &str) {
        let text = format!(
            r#"{{"metadata": {{"uid": "u"}}, "spec": {{"containers": [{{"name": "c", "image": "{image}"}}]}}}}"#
        );
        self.pod_manager.set(Arc::new(serde_json::from_str(&text).unwrap()));
    }
}

#[tokio::test]
async fn unused_images_go_when_space_is_short_and_not_before() {
    let world = World::new(&["a", "used", "b", "pause", "wanted", "pinned"], &["used"]);
    world.images.lock()[5].pinned = true;
    world.want("r.io/wanted:1");
    world.collect(policy(101, NOW, NOW)).await.unwrap();
    assert!(world.removed().is_empty());
    let error = world.collect(policy(0, HOUR, NOW)).await.unwrap_err();
    assert!(world.removed().is_empty(), "they are too new");
    assert!(
        error.starts_with("Insufficient free disk space on the node's image filesystem ("),
        "{error}"
    );
    assert!(error.contains("(freed 0 bytes)"), "{error}");
    world.collect(policy(0, NOW, NOW)).await.unwrap_err();
    assert_eq!(world.removed(), ["a", "b"]);
    let event = &world.events.recent()[0];
    assert_eq!(event.reason, "FreeDiskSpaceFailed");
    assert_eq!((event.object.kind, &*event.object.name), ("Node", "node1"));
}

#[tokio::test]
async fn an_image_that_a_container_mounts_stays_though_no_pod_names_it() {
    let world = World::new(&["a", "mounted", "pause"], &[]);
    let pod_ref = PodRef { uid: "gone".into(), name: "p".into(), namespace: "ns".into() };
    let container = ContainerStatus {
        id: "c1".into(),
        mounted_images: vec!["mounted".into()],
        ..ContainerStatus::default()
    };
    let id = ItemId::Container("c1".into());
    // It is not read yet, and until then nothing is removed.
    world.cache.touch(&pod_ref, id.clone(), None);
    let collecting = world.collect(policy(0, NOW, NOW));
    tokio::pin!(collecting);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut collecting);
    assert!(early.await.is_err());
    assert!(world.removed().is_empty());
    let seq = world.cache.next_seq();
    let read = InspectedItem::Container(container);
    world.cache.apply_read(&pod_ref, &id, seq, read);
    collecting.await.unwrap_err();
    assert_eq!(world.removed(), ["a"]);
}

#[tokio::test]
async fn the_sandbox_image_stays_while_the_runtime_cannot_name_it() {
    let world = World::new(&["a", "pause"], &[]);
    let fail = |_: &[u8]| Reply::Fail(Code::Unavailable, "busy");
    let collector = world.collector(policy(0, NOW, NOW));
    collector.take_inventory().await.unwrap();
    world.runtime.script.on("Status", fail);
    let inventory = collector.take_inventory().await.unwrap();
    collector.collect(inventory).await.unwrap_err();
    assert_eq!(world.removed(), ["a"]);
    // Another kubelet has never known it.
    let error = world.collect(policy(0, NOW, NOW)).await.unwrap_err();
    assert!(error.starts_with("cannot get the sandbox image"), "{error}");
    assert!(world.removed().is_empty());
}

#[tokio::test]
async fn removals_are_counted_by_their_reason() {
    let world = World::new(&["a", "b"], &[]);
    let collector = world.collector(policy(0, NOW, NOW));
    let inventory = collector.take_inventory().await.unwrap();
    collector.collect(inventory).await.unwrap_err();
    let counter = |reason| collector.metrics.removed.with([reason]).get();
    assert_eq!((counter("space"), counter("age")), (2, 0));
}

#[tokio::test]
async fn a_disk_is_freed_image_by_image_and_no_further_than_needed() {
    let world = World::new(&["a", "b", "c"], &[]);
    let collector = world.collector(policy(101, NOW, NOW));
    let inventory = collector.take_inventory().await.unwrap();
    let is_done = || std::future::ready(world.removed.lock().len() == 2);
    collector.remove_unused(inventory, is_done).await.unwrap();
    assert_eq!(world.removed(), ["a", "b"]);
}

/// Longer than a few calls take on a busy machine.
const AGE: Duration = Duration::from_millis(1500);

#[tokio::test]
async fn images_that_are_too_old_go_though_there_is_space() {
    let world = World::new(&["a", "used"], &["used"]);
    let aged = policy(101, HOUR, AGE);
    world.collect(aged).await.unwrap();
    assert!(world.removed().is_empty());
    tokio::time::sleep(AGE + Duration::from_millis(100)).await;
    // Another kubelet, which remembers since when the image is here.
    world.collect(aged).await.unwrap();
    assert_eq!(world.removed(), ["a"]);
    world.uses(&[]);
    world.collect(aged).await.unwrap();
    assert!(world.removed().is_empty(), "it was used until now");
    tokio::time::sleep(AGE + Duration::from_millis(100)).await;
    world.collect(aged).await.unwrap();
    assert_eq!(world.removed(), ["used"]);
}

#[tokio::test]
async fn a_pod_that_comes_between_the_look_and_the_removal_keeps_its_image() {
    let world = World::new(&["a", "b"], &[]);
    let collector = world.collector(policy(0, NOW, NOW));
    let inventory = collector.take_inventory().await.unwrap();
    world.want("r.io/a:1");
    collector.collect(inventory).await.unwrap_err();
    assert_eq!(world.removed(), ["b"]);
}

#[tokio::test]
async fn nothing_is_removed_on_a_list_that_could_not_be_had() {
    for method in ["ListImages", "ListContainers", "ImageFsInfo"] {
        let world = World::new(&["a"], &[]);
        world.runtime.script.on(method, |_| Reply::Fail(Code::Internal, "no"));
        let error = world.collect(policy(0, NOW, NOW)).await.unwrap_err();
        assert!(error.starts_with("cannot "), "{error}");
        assert!(world.removed().is_empty(), "{method}");
    }
    let world = World::new(&["a"], &[]);
    world.runtime.script.on("ImageFsInfo", |_| Reply::message(&ImageFsInfoResponse::default()));
    let error = world.collect(policy(0, NOW, NOW)).await.unwrap_err();
    assert_eq!(error, "imageFs information is unavailable");
    world.mounted_at(Path::new("/does/not/exist"));
    let error = world.collect(policy(0, NOW, NOW)).await.unwrap_err();
    assert!(error.starts_with("cannot measure /does/not/exist"), "{error}");
}

#[tokio::test]
async fn an_image_that_cannot_be_removed_does_not_keep_the_others() {
    let world = World::new(&["a", "b", "c"], &[]);
    let (images, removed) = (world.images.clone(), world.removed.clone());
    world.runtime.script.on("RemoveImage", move |request| {
        let spec = RemoveImageRequest::decode(request).unwrap().image.unwrap();
        if spec.image == "b" {
            return Reply::Fail(Code::Internal, "busy");
        }
        images.lock().retain(|image| image.id != spec.image);
        removed.lock().push(spec.image);
        Reply::message(&RemoveImageResponse {})
    });
    let error = world.collect(policy(0, NOW, NOW)).await.unwrap_err();
    assert_eq!(world.removed(), ["a", "c"]);
    assert!(error.starts_with("wanted to free "), "{error}");
    let tail = "with errors in image deletion: b: rpc error: code = Internal desc = busy";
    assert!(error.ends_with(tail), "{error}");
}

#[tokio::test]
async fn records_of_pulls_go_with_their_images() {
    let world = World::new(&["a"], &["a"]);
    for (name, id) in [("r.io/a:1", "a"), ("r.io/gone:1", "gone")] {
        let intent = world.records.record_pull_intent(name).await.unwrap();
        intent.record_image_pulled(id, None).await;
    }
    let records =
        || std::fs::read_dir(world.root.path().join("image_manager/pulled")).unwrap().count();
    assert_eq!(records(), 2);
    // Records know seconds only; one of this very second may be newer than the list.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    world.collect(policy(101, NOW, NOW)).await.unwrap();
    assert_eq!(records(), 1);
}

#[tokio::test]
async fn the_file_is_written_only_when_something_changed() {
    let world = World::new(&["a", "b"], &["a"]);
    let file = world.root.path().join("images.json");
    let collector = world.collector(policy(101, NOW, NOW));
    collector.take_inventory().await.unwrap();
    assert!(file.exists());
    std::fs::remove_file(&file).unwrap();
    collector.take_inventory().await.unwrap();
    assert!(!file.exists());
    world.uses(&[]);
    collector.take_inventory().await.unwrap();
    assert!(file.exists());
    std::fs::write(&file, "{").unwrap();
    let again = world.collector(policy(101, NOW, NOW));
    again.take_inventory().await.unwrap();
    assert!(std::fs::read_to_string(&file).unwrap().contains("\"version\":1"));
}
