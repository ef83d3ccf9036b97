//! Image garbage collection.
//!
//! * **Owns** when images were detected and last used, stored in `<root>/images.json`; the removal of images, and its
//!   events.
//! * **Woken by** the reclaim task, every five minutes.
//! * **Publishes** the events `FreeDiskSpaceFailed` and `InvalidDiskCapacity` of the node, and a metric of removals.
//! * **Must never** remove an image of a container (running or exited) or of a desired pod, nor a pinned one; nor
//!   remove anything if a list failed.
//! * Upstream: `image_gc_manager.go`.

mod history;
mod plan;
mod usage;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::sleep;

use self::history::History;
use self::plan::{ImageFacts, Space};
use self::usage::ImageNames;
use super::records::PullRecords;
use crate::base::metrics::{Metrics, metric_set};
use crate::base::{GoDuration, atomic_file, clock, run_file_io, spawn_blocking};
use crate::cri::v1::{FilesystemUsage, Image, ImageSpec};
use crate::cri::{ImageClient, RuntimeClient};
use crate::host::files::read_head_or_empty;
use crate::host::filesystem_usage;
use crate::model::reasons::event;
use crate::state::events::{EventRecorder, ObjectRef};
use crate::state::pod_cache::PodCache;
use crate::state::pod_manager::PodManager;

pub use plan::ImageGcPolicy;
pub(crate) use usage::sandbox_image;

/// Maximum size of the history file, in bytes.
const MAX_HISTORY: usize = 16 << 20;

/// How long an inventory waits for containers that are being read, and how often it checks.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
const READ_INTERVAL: Duration = Duration::from_millis(100);

/// The dependencies of the image collector.
pub struct CollectorDeps {
    /// The image service.
    pub images: ImageClient,
    /// The runtime.
    pub runtime: RuntimeClient,
    /// The desired pods.
    pub pod_manager: PodManager,
    /// The containers, with the images that they mount.
    pub cache: PodCache,
    /// Records of pulls, which are pruned along with the images.
    pub records: PullRecords,
    /// Events of the node.
    pub events: EventRecorder,
    /// The node's name.
    pub node_name: String,
    /// The thresholds and ages for removal.
    pub policy: ImageGcPolicy,
    /// The kubelet's root directory.
    pub root: PathBuf,
}

/// Removes unused images (upstream's `ImageGCManager`).
pub struct ImageCollector {
    deps: CollectorDeps,
    node: ObjectRef,
    file: PathBuf,
    history: Mutex<History>,
    /// The sandbox image as the runtime last named it.
    sandbox_image: Mutex<Option<String>>,
    metrics: CollectorMetrics,
}

metric_set! {
    struct CollectorMetrics {
        removed: Counter["reason"] = "kubelet_image_garbage_collected_total",
            "Total number of images garbage collected by the kubelet, whether through disk usage or image age";
    }
}

/// The image file systems of the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFilesystems {
    /// The image file system.
    pub images: PathBuf,
    /// The file system of containers' writable layers, if the runtime reports one.
    pub layers: Option<PathBuf>,
}

/// The images of the node, and the capacity of their file system.
pub struct Inventory {
    listed: Vec<Image>,
    images: Vec<ImageFacts>,
    at: Timestamp,
    space: Space,
    mount: PathBuf,
}

impl ImageCollector {
    /// Builds the collector and reads the stored history. Blocking.
    pub fn new(deps: CollectorDeps, metrics: &Metrics) -> ImageCollector {
        let file = deps.root.join("images.json");
        let history = read_history(&file).unwrap_or_else(|problem| {
            tracing::warn!(path = %file.display(), "Failed to read the last uses of images, counting them as new: {problem}");
            History::default()
        });
        ImageCollector {
            node: ObjectRef::node(&deps.node_name),
            file,
            history: Mutex::new(history),
            sandbox_image: Mutex::default(),
            metrics: CollectorMetrics::register(metrics),
            deps,
        }
    }

    /// Lists images and containers, and measures the image file system.
    pub async fn take_inventory(&self) -> anyhow::Result<Inventory> {
        let at = clock::timestamp();
        let images = self.deps.images.list_images(None).await.context("cannot list images")?;
        // Containers are listed after images, so that the image of a container created meanwhile counts as used.
        let containers = self.deps.runtime.list_containers(None);
        let containers = containers.await.context("cannot list containers")?;
        self.wait_for_reads().await;
        let names = ImageNames::of(&images);
        let pods = self.deps.pod_manager.pods();
        let in_use = names.in_use(&containers, &self.mounted_images(), &pods);
        let sandbox_image = self.sandbox_image().await?;
        let pinned = sandbox_image.iter().filter_map(|image| names.id(image)).collect();
        let (facts, changed) = {
            let mut history = self.history.lock();
            let before = history.clone();
            let facts = history.observe(&images, &in_use, &pinned, clock::timestamp());
            (facts, *history != before)
        };
        if changed {
            self.write_history().await;
        }
        let present: HashSet<&str> = images.iter().map(|image| image.id.as_str()).collect();
        self.deps.records.recover(&images, at).await;
        self.deps.records.prune(&present, at).await;
        let mount = self.image_filesystems().await?.images;
        let space = measure(mount.clone()).await?;
        Ok(Inventory { listed: images, space, images: facts, at: clock::timestamp(), mount })
    }

    /// Whether the usage is at or above the high threshold.
    pub fn is_over_high_threshold(&self, inventory: &Inventory) -> bool {
        inventory.space.shortage(&self.deps.policy).is_some()
    }

    /// Removes images that exceed the maximum age, and then others until the usage is below the low threshold.
    ///
    /// # Errors
    /// Which images could not be removed, or that too little space was freed; the texts are upstream's.
    pub async fn collect(&self, inventory: Inventory) -> anyhow::Result<()> {
        let before = self.history.lock().clone();
        let collected = self.remove_all(&inventory).await;
        let changed = *self.history.lock() != before;
        if changed {
            self.write_history().await;
        }
        collected
    }

    /// Removes unused images that exceed the minimum age, the least recently used first, until `is_done` returns true
    /// after a removal.
    ///
    /// # Errors
    /// Which images could not be removed.
    pub async fn remove_unused<Done>(
        &self,
        inventory: Inventory,
        is_done: impl Fn() -> Done,
    ) -> anyhow::Result<()>
    where
        Done: Future<Output = bool>,
    {
        let mut errors = Vec::new();
        for image in plan::for_space(&inventory.images, &self.deps.policy, inventory.at) {
            if let Err(error) = self.remove(&inventory, &image, "space").await {
                errors.push(error);
            }
            if is_done().await {
                break;
            }
        }
        self.write_history().await;
        anyhow::ensure!(errors.is_empty(), "errors in image deletion: {}", joined(&errors));
        Ok(())
    }

    async fn remove_all(&self, inventory: &Inventory) -> anyhow::Result<()> {
        let policy = &self.deps.policy;
        let old = plan::too_old(&inventory.images, policy, inventory.at);
        let mut errors = Vec::new();
        for image in &old {
            if let Err(error) = self.remove(inventory, image, "age").await {
                errors.push(error);
            }
        }
        if !errors.is_empty() {
            let oldest = GoDuration::from(policy.max_age);
            anyhow::bail!(
                "wanted to free images older than {oldest}, encountered errors in image deletion: {}",
                joined(&errors)
            );
        }
        let space =
            if old.is_empty() { inventory.space } else { measure(inventory.mount.clone()).await? };
        let Some(used) = space.used_percent() else {
            let text = "invalid capacity 0 on image filesystem";
            let recorder = &self.deps.events;
            recorder.warning(&self.node, event::INVALID_DISK_CAPACITY, text);
            anyhow::bail!(text);
        };
        match space.shortage(policy) {
            Some(wanted) => self.make_space(inventory, space, used, wanted).await,
            None => Ok(()),
        }
    }

    /// Removes images one by one and measures the file system after each, because the size of an image includes
    /// layers shared with other images.
    async fn make_space(
        &self,
        inventory: &Inventory,
        before: Space,
        used: u8,
        wanted: u64,
    ) -> anyhow::Result<()> {
        let policy = &self.deps.policy;
        tracing::info!(
            usage = used,
            highThreshold = policy.high_percent,
            lowThreshold = policy.low_percent,
            amountToFree = wanted,
            "Disk usage on image filesystem is over the high threshold, removing unused images"
        );
        let (mut space, mut errors) = (before, Vec::new());
        for image in plan::for_space(&inventory.images, policy, inventory.at) {
            if space.missing(policy) == 0 {
                break;
            }
            match self.remove(inventory, &image, "space").await {
                Ok(()) => space = measure(inventory.mount.clone()).await?,
                Err(error) => errors.push(error),
            }
        }
        let freed = space.available.saturating_sub(before.available);
        if !errors.is_empty() {
            anyhow::bail!(
                "wanted to free {wanted} bytes, but freed {freed} bytes space with errors in image deletion: {}",
                joined(&errors)
            );
        }
        if space.missing(policy) == 0 {
            return Ok(());
        }
        let message = format!(
            "Insufficient free disk space on the node's image filesystem ({used}% of {} used). \
             Failed to free sufficient space by deleting unused images (freed {freed} bytes). \
             Investigate disk usage, as it could be used by active images, logs, volumes, or other data.",
            plan::format_size(before.capacity)
        );
        let recorder = &self.deps.events;
        recorder.warning(&self.node, event::FREE_DISK_SPACE_FAILED, message.as_str());
        anyhow::bail!(message);
    }

    /// Removes an image, unless a pod has come to need it since the check.
    async fn remove(
        &self,
        inventory: &Inventory,
        image: &ImageFacts,
        reason: &'static str,
    ) -> Result<(), String> {
        let id = image.id.as_str();
        if ImageNames::of(&inventory.listed)
            .in_use(&[], &self.mounted_images(), &self.deps.pod_manager.pods())
            .contains(id)
        {
            return Ok(());
        }
        tracing::info!(imageID = id, size = image.size, reason, "Removing image to free bytes");
        let spec = ImageSpec { image: id.to_owned(), ..ImageSpec::default() };
        let removed = self.deps.images.remove_image(spec).await;
        removed.map_err(|error| format!("{id}: {}", error.grpc_text()))?;
        self.metrics.removed.with([reason]).inc();
        self.history.lock().forget(id);
        Ok(())
    }

    /// Waits until all containers were read or could not be: which images they mount is not in the list.
    async fn wait_for_reads(&self) {
        let until = clock::instant() + READ_TIMEOUT;
        while self.deps.cache.has_unread_containers() && clock::instant() < until {
            sleep(READ_INTERVAL).await;
        }
    }

    /// The images that are mounted as volumes, also those of pods that are no longer desired.
    fn mounted_images(&self) -> Vec<Arc<str>> {
        let pods = self.deps.cache.pods();
        let containers = pods.iter().flat_map(|pod| &pod.containers);
        let mounted = containers.flat_map(|container| &container.mounted_images);
        mounted.cloned().collect()
    }

    /// The sandbox (pause) image, if the runtime's configuration names it; older runtimes do not report it as pinned.
    ///
    /// # Errors
    /// The runtime does not respond, and has not before.
    async fn sandbox_image(&self) -> anyhow::Result<Option<String>> {
        let status = self.deps.runtime.status(true).await;
        let mut known = self.sandbox_image.lock();
        match status {
            Ok(status) => *known = usage::sandbox_image(&status.info),
            Err(error) if known.is_some() => {
                tracing::debug!(err = %error, "Failed to get the sandbox image");
            }
            Err(error) => return Err(error).context("cannot get the sandbox image"),
        }
        Ok(known.clone())
    }

    /// The file systems that the runtime reports (`ImageFsInfo`).
    ///
    /// # Errors
    /// The runtime reports no image file system.
    pub async fn image_filesystems(&self) -> anyhow::Result<ImageFilesystems> {
        let info = self.deps.images.image_fs_info().await;
        let info = info.context("cannot get the image filesystem")?;
        let first = |filesystems: Vec<FilesystemUsage>| {
            let mount = filesystems.into_iter().next()?.fs_id?.mountpoint;
            (!mount.is_empty()).then(|| PathBuf::from(mount))
        };
        let images = first(info.image_filesystems);
        Ok(ImageFilesystems {
            images: images.context("imageFs information is unavailable")?,
            layers: first(info.container_filesystems),
        })
    }

    async fn write_history(&self) {
        let bytes = serde_json::to_vec(&*self.history.lock());
        let path = self.file.clone();
        let write = move || atomic_file::write(&path, &bytes?);
        let written = run_file_io(write).await.map_err(std::io::Error::other);
        if let Err(error) = written.and_then(|written| written) {
            // The next change writes the file again; until then, images seem newer after a restart.
            tracing::warn!(path = %self.file.display(), err = %error, "Failed to record the last uses of images");
        }
    }
}

fn read_history(file: &Path) -> Result<History, String> {
    let bytes = read_head_or_empty(file, MAX_HISTORY + 1).map_err(|error| error.to_string())?;
    match bytes.len() {
        0 => Ok(History::default()),
        length if length > MAX_HISTORY => Err("the file is too long".to_owned()),
        _ => History::decode(&bytes).map_err(|error| error.to_string()),
    }
}

/// Measures a file system. It may hang, so this does not use the threads of short blocking work.
async fn measure(mount: PathBuf) -> anyhow::Result<Space> {
    let shown = mount.display().to_string();
    let measured = spawn_blocking(move || filesystem_usage(&mount)).await?;
    let usage = measured.with_context(|| format!("cannot measure {shown}"))?;
    Ok(Space { capacity: usage.capacity, available: usage.available })
}

/// Joins errors as upstream's aggregate errors print them.
fn joined(errors: &[String]) -> String {
    match errors {
        [only] => only.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}
