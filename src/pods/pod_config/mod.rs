//! The pod sources (manifest files, a URL, the API server) and their merge into one stream of updates.
//!
//! ```text
//!  source.file ----\
//!  source.http -----+------- lists ------> pod_config (merge) -- PodUpdate --> sync loop
//!  source.posted --+
//!  source.api -----/
//! ```
//!
//! * Owns: the sources and the last list of each; the UID, name and annotations of static pods ([`fn@static_pod`]).
//! * Woken by: inotify and the re-list timer (`source.file`, and `source.posted`, which
//!   are the files that [`PostedPods`] writes), a timer (`source.http`), a watch (`source.api`), the lists of the
//!   sources (`pod_config`). All channels are bounded: a slow sync loop makes the sources wait.
//! * Publishes: [`PodUpdate`]s, at most one message per kind and list; [`SourcesReady`].
//! * Must never take a source that cannot be read for an empty one, and never log a manifest's
//!   values or a URL's secrets.
//! * Upstream: `pkg/kubelet/config`.
//!
//! A deviation from upstream: a file that becomes invalid keeps its last valid pod (upstream drops the
//! pod at the next re-list), so that a half-saved edit does not stop a control plane. The last valid version is in
//! memory only. After a restart, the pod that an earlier kubelet started from such a file keeps running until the
//! file is valid again or removed.

mod api;
mod file;
mod http;
mod adopted_uids;
mod manifest;
mod merge;
mod posted;
mod ready;
mod static_pod;

pub use adopted_uids::AdoptedUids;
use adopted_uids::sandbox_decides;
pub use api::{ApiConfig, accept as accept_api_pod, pods_of};
pub use file::{
    DuplicatePod, FileConfig, FoundManifests, MissingPath, ReadError, dedup_by_name,
    find_manifests, manifests_at, read_manifest,
};
pub use http::HttpConfig;
pub use manifest::{InvalidItem, InvalidManifest, Manifest, decode_file, decode_url};
use merge::with_completeness;
pub use merge::{Merged, SourcePods};
pub use posted::{PostError, PostedPods};
pub use ready::{SourcesReady, SourcesReadyReader};
pub use static_pod::{InvalidPod, ManifestOrigin, static_pod};

use crate::base::Tasks;
use crate::base::clock::{self, Instant};
use crate::model::{Completeness, Pod, PodExt, PodSource, PodStatus, PodUid, PodUpdate, reasons};
use crate::state::events::{EventRecorder, ObjectRef};
use crate::state::pod_cache::{ItemId, PodCache, StaleItem};
use anyhow::Context as _;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout_at};
use tokio_util::sync::CancellationToken;

/// Capacity of the channel to the sync loop.
const UPDATE_BUFFER: usize = 50;
/// How long to wait, in total, for the runtime statuses of pods whose UID a manifest may have to adopt.
const STATUS_TIMEOUT: Duration = Duration::from_secs(3);
const STATUS_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The configured sources.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of this node.
    pub node_name: String,
    /// Manifest files, if configured.
    pub file: Option<FileConfig>,
    /// A URL, if configured.
    pub http: Option<HttpConfig>,
    /// The directory of posted pods, if clients may post any.
    pub posted: Option<FileConfig>,
    /// The API server, if there is one.
    pub api: Option<ApiConfig>,
    /// The runtime statuses, read once at start for the UIDs of static pods that already run.
    pub cache: PodCache,
}

impl Config {
    fn sources(&self) -> impl Iterator<Item = PodSource> {
        let file = self.file.as_ref().map(|_| PodSource::File);
        let http = self.http.as_ref().map(|_| PodSource::Http);
        let posted = self.posted.as_ref().map(|_| PodSource::Posted);
        let api = self.api.as_ref().map(|_| PodSource::Api);
        file.into_iter().chain(http).chain(posted).chain(api)
    }
}

/// The latest list of a source.
#[derive(Clone, Debug)]
struct SourceList {
    source: PodSource,
    pods: Vec<Arc<Pod>>,
    /// How complete `pods` is, and so which missing pods were removed from the source.
    completeness: Completeness,
}

/// The sources and their merge, not started yet.
pub struct PodConfig {
    config: Config,
    recorder: EventRecorder,
    updates: mpsc::Sender<PodUpdate>,
    missing_path: MissingPath,
}

impl PodConfig {
    /// Builds the configured sources; nothing is read before [`Self::start`]. Also returns the receiving end of their
    /// updates, and the record of which sources have delivered.
    ///
    /// # Errors
    /// The URL or one of its headers is invalid.
    pub fn build(
        config: Config,
        recorder: EventRecorder,
    ) -> anyhow::Result<(Self, mpsc::Receiver<PodUpdate>, SourcesReady)> {
        if let Some(http) = &config.http {
            http.validate()?;
        }
        let ready = SourcesReady::new(config.sources().collect());
        let (updates, receiver) = mpsc::channel(UPDATE_BUFFER);
        let sources = Self { config, recorder, updates, missing_path: MissingPath::default() };
        Ok((sources, receiver, ready))
    }

    /// `staticPodPath` while it does not exist.
    pub fn missing_path(&self) -> MissingPath {
        self.missing_path.clone()
    }

    /// Starts the task `pod_config` and one for each source.
    pub fn start(self, tasks: &mut Tasks) {
        let Self { config, recorder, updates, missing_path } = self;
        let (lists, to_merge) = mpsc::channel(1);
        let node = config.node_name;
        for (name, files, missing) in [
            ("source.file", config.file, missing_path),
            ("source.posted", config.posted, MissingPath::default()),
        ] {
            let Some(files) = files else {
                continue;
            };
            let (node, recorder) = (node.clone(), recorder.clone());
            let source = file::run(files, node, lists.clone(), missing, recorder, tasks.shutdown());
            tasks.spawn(name, source);
        }
        if let Some(http) = config.http {
            let recorder = recorder.clone();
            let source = http::run(http, node.clone(), lists.clone(), recorder, tasks.shutdown());
            tasks.spawn("source.http", source);
        }
        if let Some(api) = config.api {
            let (store, source) = api::start(api, node, lists.clone(), recorder.clone());
            tasks.spawn("source.api.store", store.run(tasks.shutdown()));
            tasks.spawn("source.api", source.run(tasks.shutdown()));
        }
        // A kubelet without any source must keep running, so the merge holds a sender of its own.
        let merge = merge_all(to_merge, lists, updates, recorder, config.cache, tasks.shutdown());
        tasks.spawn("pod_config", merge);
    }
}

async fn merge_all(
    mut lists: mpsc::Receiver<SourceList>,
    _keep_open: mpsc::Sender<SourceList>,
    updates: mpsc::Sender<PodUpdate>,
    recorder: EventRecorder,
    cache: PodCache,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let work = async {
        // Which UIDs to adopt is only known from a complete list of the runtime. This delays nothing: the sync loop
        // handles no update before that list, either.
        cache.wait_runtime_listed().await;
        let mut adopted_uids = AdoptedUids::new(cache.pods());
        let deadline = clock::instant() + STATUS_TIMEOUT;
        let mut sources: HashMap<PodSource, SourcePods> = HashMap::new();
        let mut sent: HashMap<PodSource, Completeness> = HashMap::new();
        while let Some(list) = lists.recv().await {
            let SourceList { source, mut pods, completeness } = list;
            if source != PodSource::Api {
                for pod in &mut pods {
                    let candidates = adopted_uids.candidates(source, pod);
                    let statuses = read_statuses(&cache, candidates, pod, deadline).await;
                    *pod = adopted_uids.adopt(source, pod.clone(), &statuses);
                }
                if completeness == Completeness::Complete {
                    adopted_uids.on_source_complete(source);
                }
            }
            let known = sources.entry(source).or_insert_with(|| SourcePods::new(source));
            let merged = known.merge(pods, clock::timestamp());
            for pod in &merged.duplicates {
                let text = format!(
                    "Error validating pod {}_{} from {source} due to duplicate pod name or UID, ignoring",
                    pod.name(),
                    pod.namespace()
                );
                let reason = reasons::event::FAILED_VALIDATION;
                recorder.warning(&ObjectRef::pod(pod), reason, text);
            }
            let before = sent.insert(source, completeness.clone());
            for update in with_completeness(source, merged.updates, completeness, before) {
                updates.send(update).await.context("the sync loop has ended")?;
            }
        }
        Ok(())
    };
    let ended = shutdown.run_until_cancelled(work).await;
    ended.unwrap_or(Ok(()))
}

/// The runtime statuses of pods whose UID the pod of a manifest may adopt. Those that are not known until the deadline
/// are used as far as they have been read.
async fn read_statuses(
    cache: &PodCache,
    candidates: &[PodUid],
    pod: &Pod,
    deadline: Instant,
) -> Vec<Arc<PodStatus>> {
    let mut statuses = Vec::with_capacity(candidates.len());
    for uid in candidates {
        let read = timeout_at(deadline, read_status(cache, uid, pod)).await;
        statuses.push(read.unwrap_or_else(|_| cache.latest(uid)));
    }
    statuses
}

/// The runtime status of a pod once it tells whether the pod was started from the manifest of `pod`: all of its sandboxes
/// have been read and decide, or all of its items have been read. A source must not wait for a container that cannot be
/// read if its sandbox is enough.
async fn read_status(cache: &PodCache, uid: &PodUid, pod: &Pod) -> Arc<PodStatus> {
    loop {
        if let Some(status) = cache.try_settled(uid) {
            return status;
        }
        // An older sandbox may be read before the newest one.
        let is_sandbox = |stale: &StaleItem| matches!(stale.item, ItemId::Sandbox(_));
        let sandboxes_read = !cache.stale(uid).iter().any(is_sandbox);
        let status = cache.latest(uid);
        if sandboxes_read && sandbox_decides(&status, pod) {
            return status;
        }
        sleep(STATUS_POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests;
