//! The file source: one manifest, or a flat directory of them.
//!
//! An inotify event only triggers a scan. The first event causes one immediately; while events continue, scans are
//! spaced by a pause that grows with the duration of a scan ([`EVENT_PAUSE`]). After events about entries of the
//! directory, only those entries are checked; otherwise every file is. The periodic re-list finds changes without an
//! event (network file systems, exhausted inotify watches).

mod manifest_cache;
mod scan;
#[cfg(test)]
mod tests;
mod watch;

pub use manifest_cache::{DuplicatePod, dedup_by_name};
pub use scan::{ReadError, manifests_at, read_manifest};

use super::SourceList;
use crate::base::{clock, spawn_blocking};
use crate::model::validation::LocalConfigMapsAndSecrets;
use crate::model::{Completeness, Pod, PodSource, reasons};
use crate::state::events::{EventRecorder, ObjectRef};
use anyhow::Context as _;
use futures::{FutureExt as _, StreamExt as _};
use manifest_cache::Notice;
use parking_lot::Mutex;
use scan::{Scan, Scanner};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use watch::{Events, ManifestChange, ManifestWatcher, ScanScope};

/// Shortest and longest time between the beginnings of two scans while events go on.
const EVENT_PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// Within these bounds, the pause is this many times the duration of the last scan, so that scans use at most a
/// quarter of a core.
const PAUSE_PER_SCAN: u32 = 4;

/// When to scan again after a file was being written.
const WRITE_RETRY: Duration = Duration::from_millis(100);

/// More pending events than this cause a scan of everything.
const MAX_CHANGES: usize = 4096;

/// How often a scan is repeated because a watch was added: a file may have changed before the watch existed.
const MAX_RESCANS: usize = 3;

/// Configuration of the file source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileConfig {
    /// [`PodSource::File`] or [`PodSource::Posted`].
    pub source: PodSource,
    /// `staticPodPath`: a file or a directory; it may be missing.
    pub path: PathBuf,
    /// `fileCheckFrequency`: the re-list period.
    pub check_period: Duration,
    /// Which config maps and secrets its pods may refer to.
    pub config_maps_and_secrets: LocalConfigMapsAndSecrets,
}

/// The path of static pods while it does not exist; clones share it. The file source writes it.
#[derive(Clone, Debug, Default)]
pub struct MissingPath(Arc<Mutex<Option<PathBuf>>>);

impl MissingPath {
    fn set(&self, path: Option<&Path>) {
        *self.0.lock() = path.map(Path::to_path_buf);
    }

    /// What to tell a user while it is missing.
    pub fn warning(&self) -> Option<String> {
        let path = self.0.lock().clone()?;
        Some(format!("staticPodPath {} does not exist: no static pod runs", path.display()))
    }
}

/// The pods that a starting kubelet finds at the manifest path.
#[derive(Clone, Debug, Default)]
pub struct FoundManifests {
    /// The valid pods; `None` if the path could not be listed.
    pub pods: Option<Vec<Arc<Pod>>>,
    /// Why manifests or the path cannot be used, each with its file.
    pub problems: Vec<String>,
    /// What is wrong with manifests that are used, each with its file.
    pub warnings: Vec<String>,
    /// Which pods may be missing from `pods`, because their manifests are invalid or unreadable.
    pub completeness: Completeness,
}

/// Reads the manifests as the source does when the kubelet starts. Blocking.
pub fn find_manifests(config: &FileConfig, node_name: &str) -> FoundManifests {
    let mut scanner = Scanner::new(
        config.source,
        config.path.clone(),
        node_name.to_owned(),
        config.config_maps_and_secrets,
    );
    let none = BTreeSet::new();
    let first = scanner.scan(&none);
    // An invalid file is reported by the second scan that finds it.
    let second = scanner.scan(&none);
    let mut found = FoundManifests {
        pods: second.pods,
        completeness: second.completeness,
        ..FoundManifests::default()
    };
    for notice in first.notices.into_iter().chain(second.notices) {
        match notice {
            Notice::Unusable(text) => found.problems.push(text),
            Notice::Warning(text) => found.warnings.push(text),
            // The check of the node reports it.
            Notice::Missing(_) => {}
        }
    }
    found
}

/// The task of the source; ends only at shutdown.
pub(super) async fn run(
    config: FileConfig,
    node_name: String,
    lists: mpsc::Sender<SourceList>,
    missing: MissingPath,
    recorder: EventRecorder,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let work = async {
        let mut source = FileSource {
            scanner: Scanner::new(
                config.source,
                config.path,
                node_name.clone(),
                config.config_maps_and_secrets,
            ),
            watcher: None,
            watch_error: None,
        };
        let node = ObjectRef::node(&node_name);
        let mut events = None;
        let mut sent: Option<(Vec<Arc<Pod>>, Completeness)> = None;
        let mut scope = ScanScope::Everything;
        let mut removed = BTreeSet::new();
        let mut relist = clock::instant() + config.check_period;
        loop {
            let started = clock::instant();
            if source.open_watcher(&mut events) {
                scope = ScanScope::Everything;
            }
            if scope == ScanScope::Everything {
                relist = started + config.check_period;
            }
            let (returned, scan) = spawn_blocking(move || source.scan(&scope, &removed))
                .await
                .context("scanning the static pod path")?;
            source = returned;
            missing.set(source.scanner.missing_root());
            let event_pause = started + event_pause(clock::since(started));
            report(&scan.notices, &recorder, &node);
            for pods in scan.without_restored.into_iter().chain(scan.pods) {
                let is_known = sent.as_ref().is_some_and(|(known, completeness)| {
                    is_same_list(known, &pods) && *completeness == scan.completeness
                });
                if is_known {
                    continue;
                }
                sent = Some((pods.clone(), scan.completeness.clone()));
                let list = SourceList {
                    source: config.source,
                    pods,
                    completeness: scan.completeness.clone(),
                };
                lists.send(list).await.context("the merge of sources has ended")?;
            }
            let rescan_at =
                if scan.reread.is_empty() { relist } else { relist.min(started + WRITE_RETRY) };
            let first = tokio::select! {
                () = tokio::time::sleep_until(rescan_at.max(event_pause)) => None,
                change = next_event(&mut events, source.watcher.as_ref()) => Some(change),
            };
            if first.is_some() {
                tokio::time::sleep_until(event_pause).await;
            }
            let mut changes = drain(&mut events, source.watcher.as_ref());
            changes.extend(first);
            scope = if clock::instant() < relist {
                ScanScope::of(scan.reread, &changes)
            } else {
                ScanScope::Everything
            };
            let names = changes.into_iter().filter_map(ManifestChange::removed);
            removed = names.collect();
        }
    };
    let ended = shutdown.run_until_cancelled(work).await;
    ended.unwrap_or(Ok(()))
}

fn event_pause(scan: Duration) -> Duration {
    let (shortest, longest) = EVENT_PAUSE;
    scan.saturating_mul(PAUSE_PER_SCAN).clamp(shortest, longest)
}

struct FileSource {
    scanner: Scanner,
    watcher: Option<ManifestWatcher>,
    watch_error: Option<String>,
}

impl FileSource {
    /// Opens an inotify instance unless there is a working one. True if a new one was opened. Without one (the limit
    /// of instances is reached), the source relies on the re-list.
    fn open_watcher(&mut self, events: &mut Option<Events>) -> bool {
        if self.watcher.is_some() && events.is_some() {
            return false;
        }
        match ManifestWatcher::new() {
            Ok((watcher, stream)) => {
                self.watcher = Some(watcher);
                *events = Some(stream);
                true
            }
            Err(error) => {
                self.watcher = None;
                self.report_watch_error(error.to_string());
                false
            }
        }
    }

    /// One scan. Blocking.
    fn scan(mut self, scope: &ScanScope, removed: &BTreeSet<OsString>) -> (Self, Scan) {
        let entries = match scope {
            ScanScope::Entries(names) => self.scanner.scan_entries(names, removed),
            ScanScope::Everything => None,
        };
        match entries {
            Some(scan) => (self, scan),
            None => self.scan_everything(removed),
        }
    }

    /// Adds watches, scans, and repeats that while a watch was new. Blocking.
    fn scan_everything(mut self, removed: &BTreeSet<OsString>) -> (Self, Scan) {
        self.watch(&[]);
        let mut scan = self.scanner.scan(removed);
        for _ in 0..MAX_RESCANS {
            if !self.watch(&scan.links) {
                break;
            }
            let before = scan;
            scan = self.scanner.scan(&BTreeSet::new());
            scan.notices.splice(0..0, before.notices);
            scan.without_restored = scan.without_restored.or(before.without_restored);
        }
        (self, scan)
    }

    /// Watches every directory that the path and these links depend on; true if a watch is new.
    fn watch(&mut self, links: &[PathBuf]) -> bool {
        let Some(watcher) = &mut self.watcher else {
            return false;
        };
        let mut wanted = watch::interests_for_root(self.scanner.root());
        for link in links {
            watch::add_path_interests(link, &mut wanted);
        }
        let (has_new, failed) = watcher.watch(&wanted);
        if let Some((path, error)) = failed {
            self.report_watch_error(format!("{}: {error}", path.display()));
        }
        has_new
    }

    fn report_watch_error(&mut self, text: String) {
        if self.watch_error.as_ref() != Some(&text) {
            tracing::warn!(
                err = %text,
                "Failed to watch static pod manifests; relying on the periodic scan"
            );
            self.watch_error = Some(text);
        }
    }
}

fn is_same_list(one: &[Arc<Pod>], other: &[Arc<Pod>]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| Arc::ptr_eq(a, b))
}

fn report(notices: &[Notice], recorder: &EventRecorder, node: &ObjectRef) {
    for notice in notices {
        match notice {
            Notice::Unusable(text) => {
                recorder.warning(node, reasons::event::FAILED_VALIDATION, text.as_str());
            }
            Notice::Warning(text) => {
                tracing::warn!(warning = %text, "Static pod manifest has a warning")
            }
            Notice::Missing(path) => tracing::warn!(
                path = %path.display(),
                err = "path does not exist, ignoring",
                "Unable to read config path"
            ),
        }
    }
}

/// Waits for an event that causes a scan. A broken stream is dropped and counts as an event; without a watcher this
/// never returns.
async fn next_event(
    events: &mut Option<Events>,
    watcher: Option<&ManifestWatcher>,
) -> ManifestChange {
    let (Some(stream), Some(watcher)) = (events.as_mut(), watcher) else {
        return std::future::pending().await;
    };
    loop {
        match stream.next().await {
            Some(Ok(event)) => {
                if let Some(change) = watcher.change(&event) {
                    return change;
                }
            }
            Some(Err(error)) => {
                tracing::warn!(err = %error, "Failed to read inotify events of static pod manifests; opening a new inotify instance");
                *events = None;
                return ManifestChange::Anything;
            }
            None => {
                *events = None;
                return ManifestChange::Anything;
            }
        }
    }
}

/// Takes all pending events without waiting: one scan handles them together.
fn drain(events: &mut Option<Events>, watcher: Option<&ManifestWatcher>) -> Vec<ManifestChange> {
    let (Some(stream), Some(watcher)) = (events.as_mut(), watcher) else {
        return Vec::new();
    };
    let mut changes = Vec::new();
    while let Some(Some(Ok(event))) = stream.next().now_or_never() {
        match watcher.change(&event) {
            Some(change) if changes.len() < MAX_CHANGES => changes.push(change),
            Some(_) => changes = vec![ManifestChange::Anything],
            None => {}
        }
    }
    changes
}
