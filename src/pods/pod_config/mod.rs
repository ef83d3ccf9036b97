//! Pods in: from files, a URL and the API server to one stream of updates.
//!
//! ```text
//!  source.file ----\
//!  source.http -----+-- complete lists --> pod_config (merge) -- PodUpdate --> sync loop
//!  source.posted --+
//!  source.api -----/
//! ```
//!
//! * Owns: the sources and what each has delivered; the identity of static pods ([`static_pod`]).
//! * Woken by: inotify and the re-list timer (`source.file`, and `source.posted`, which
//!   are the files that [`PostedPods`] keeps), a timer (`source.http`), a watch (`source.api`), their lists
//!   (`pod_config`). All channels are bounded: a slow sync loop makes the sources wait.
//! * Publishes: [`PodUpdate`]s, at most one message per kind and list; [`SourcesReady`].
//! * Must never take a source that cannot be read for an empty one, and never log a manifest's
//!   values or a URL's secrets.
//! * Answers to upstream's `pkg/kubelet/config`.
//!
//! Where we differ from upstream: a file that turns bad keeps its last good pod (upstream drops the
//! pod at the next re-list). The last good version lives in memory. What an earlier kubelet started from
//! a file that was never seen good since the kubelet started runs on until the file can be read.

mod api;
mod file;
mod http;
mod identity;
mod manifest;
mod merge;
mod posted;
mod ready;
mod static_pod;

pub use api::ApiConfig;
pub use file::{Clash, FileConfig, ReadError, dedup_by_name, manifests_at, read_manifest};
pub use http::HttpConfig;
pub use manifest::{BadManifest, InvalidItem, Manifest, Remark, read_file, read_url};
use merge::with_completeness;
pub use merge::{Merged, SourcePods};
pub use posted::{PostError, PostedPods};
pub use ready::{AllReady, SourcesReady, SourcesReadyReader};
pub use static_pod::{InvalidPod, ManifestOrigin, static_pod};

use crate::base::Tasks;
use crate::model::{Completeness, Pod, PodExt, PodSource, PodStatus, PodUid, PodUpdate, reasons};
use crate::state::events::{EventRecorder, ObjectRef};
use crate::state::pod_cache::PodCache;
use anyhow::Context as _;
use identity::{Identities, is_generated, is_own};
use jiff::Timestamp;
use std::{collections::HashMap, sync::Arc, time::Duration};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

/// Updates that may wait for the sync loop.
const UPDATES: usize = 50;
/// How long the statuses of pods that another kubelet runs may take to be read.
const READ_RUNNING: Duration = Duration::from_secs(3);
const READ_CHECK: Duration = Duration::from_millis(10);

/// Which sources there are.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of this node.
    pub node_name: String,
    /// Manifest files, if configured.
    pub file: Option<FileConfig>,
    /// A URL, if configured.
    pub http: Option<HttpConfig>,
    /// Where pods are kept that clients post, if they may.
    pub posted: Option<FileConfig>,
    /// The API server, if there is one.
    pub api: Option<ApiConfig>,
    /// What runs already.
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

/// The complete list of a source's pods.
#[derive(Clone, Debug)]
struct SourceList {
    source: PodSource,
    pods: Vec<Arc<Pod>>,
    /// Whether pods that are missing here are gone.
    completeness: Completeness,
}

/// The sources and their merger; see the module.
pub struct PodConfig {
    config: Config,
    recorder: EventRecorder,
    updates: mpsc::Sender<PodUpdate>,
}

impl PodConfig {
    /// The sources that are configured, which nothing reads yet; where their updates arrive, and which of them have
    /// delivered.
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
        let (updates, receiver) = mpsc::channel(UPDATES);
        let sources = Self {
            config,
            recorder,
            updates,
        };
        Ok((sources, receiver, ready))
    }

    /// Starts the task `pod_config` and one for each source.
    pub fn start(self, tasks: &mut Tasks) {
        let Self {
            config,
            recorder,
            updates,
        } = self;
        let (lists, to_merge) = mpsc::channel(1);
        let node = config.node_name;
        for (name, files) in [
            ("source.file", config.file),
            ("source.posted", config.posted),
        ] {
            let Some(files) = files else {
                continue;
            };
            let (node, recorder) = (node.clone(), recorder.clone());
            let source = file::run(files, node, lists.clone(), recorder, tasks.shutdown());
            tasks.spawn(name, source);
        }
        if let Some(http) = config.http {
            let recorder = recorder.clone();
            let source = http::run(
                http,
                node.clone(),
                lists.clone(),
                recorder,
                tasks.shutdown(),
            );
            tasks.spawn("source.http", source);
        }
        if let Some(api) = config.api {
            let (store, source) = api::start(api, node, lists.clone(), recorder.clone());
            tasks.spawn("source.api.store", store.run(tasks.shutdown()));
            tasks.spawn("source.api", source.run(tasks.shutdown()));
        }
        // `lists` goes along so that the merger lives on without any source.
        let merge = merge_all(
            to_merge,
            lists,
            updates,
            recorder,
            config.cache,
            tasks.shutdown(),
        );
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
        // The sync loop takes no update before that, either.
        cache.complete().await;
        let mut identities = Identities::new(static_pods(&cache).await);
        let mut sources: HashMap<PodSource, SourcePods> = HashMap::new();
        let mut sent: HashMap<PodSource, Completeness> = HashMap::new();
        while let Some(list) = lists.recv().await {
            let SourceList {
                source,
                mut pods,
                completeness,
            } = list;
            if source != PodSource::Api {
                let identify = |pod| identities.identify(source, pod);
                pods = pods.into_iter().map(identify).collect();
                if completeness == Completeness::Complete {
                    identities.delivered(source);
                }
            }
            let known = sources
                .entry(source)
                .or_insert_with(|| SourcePods::new(source));
            let merged = known.merge(pods, Timestamp::now());
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
                updates
                    .send(update)
                    .await
                    .context("the sync loop has ended")?;
            }
        }
        Ok(())
    };
    tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        result = work => result,
    }
}

/// The pods with UIDs that a kubelet made, read as far as the runtime answers soon.
async fn static_pods(cache: &PodCache) -> Vec<Arc<PodStatus>> {
    let mut pods = cache.pods();
    pods.retain(|status| is_generated(&status.uid));
    let deadline = Instant::now() + READ_RUNNING;
    for status in &mut pods {
        if let Ok(read) = timeout_at(deadline, read(cache, &status.uid)).await {
            *status = read;
        }
    }
    pods
}

/// The status of a pod once all of it was read; one of this kubelet is not waited for.
async fn read(cache: &PodCache, uid: &PodUid) -> Arc<PodStatus> {
    loop {
        if let Some(status) = cache.try_settled(uid) {
            return status;
        }
        let status = cache.latest(uid);
        if is_own(&status) {
            return status;
        }
        sleep(READ_CHECK).await;
    }
}

#[cfg(test)]
mod tests;
