//! The cache of parsed manifest files: the pods that should run, and the errors and warnings to report, each once.
//! Pure.

use super::watch::ScanScope;
use crate::model::{Pod, PodExt, PodFullName};
use crate::pods::pod_config::manifest::Manifest;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Digest of a file's bytes.
pub(super) type ManifestDigest = [u8; 16];

/// Metadata by which a file counts as unchanged without being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ManifestStamp {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) size: u64,
    /// Modification, in nanoseconds since the epoch.
    pub(super) modified: i128,
    /// Change of content or attributes, in nanoseconds since the epoch.
    pub(super) changed: i128,
}

/// How long the result of a read is used without another read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    /// Until the stamp changes.
    UntilStampChanges(ManifestStamp),
    /// The file was changed just now, and may be changed again without a new stamp.
    Changing,
    /// It could not be read, or is no regular file; every scan tries again.
    UntilNextScan,
}

/// The result of reading one file.
#[derive(Debug)]
pub(super) enum ManifestReading {
    /// The content is that of the last read.
    SameBytes,
    /// New content, which is a valid pod.
    Valid(ManifestDigest, Manifest),
    /// New content, which is not a valid pod; the reason.
    Invalid(ManifestDigest, String),
    /// Reading failed; the error.
    ReadFailed(String),
    /// No regular file is there; the value says why.
    NotAFile(String),
}

/// A message for the node's events or the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// A manifest or the whole path cannot be used.
    Unusable(String),
    /// The manifest is used, with a warning.
    Warning(String),
    /// Nothing is at the manifest path.
    Missing(PathBuf),
}

struct CachedManifest {
    freshness: Freshness,
    digest: Option<ManifestDigest>,
    /// The last valid version.
    last_valid: Option<Arc<Pod>>,
    error: Option<ManifestError>,
    /// No regular file was there at the last read, so there is no pod.
    not_a_file: bool,
}

struct ManifestError {
    why: String,
    report: ReportState,
}

/// A file that is being written is invalid for a moment. To report only lasting errors, an error is reported by the
/// first scan that finds it again.
#[derive(Clone, Copy, PartialEq)]
enum ReportState {
    New,
    Pending,
    Reported,
}

/// All files of the source, by path.
#[derive(Default)]
pub(super) struct ManifestCache {
    /// Keyed by path, as `OsString` because comparing a `PathBuf` compares component by component.
    files: BTreeMap<OsString, CachedManifest>,
    /// How many files have a pod of each full name.
    names: HashMap<PodFullName, usize>,
    /// The list returned by the last [`Self::outcome`]; `None` after the pod of a file changed.
    pods: Option<Vec<Arc<Pod>>>,
    notices: Vec<Notice>,
    /// Reported duplicates: the ignored file, and the file that has the pod of the same name.
    reported_duplicates: HashSet<(PathBuf, PathBuf)>,
}

impl ManifestCache {
    /// Whether the file must be read: it is new, changed, or may have changed.
    pub(super) fn must_read(&self, path: &Path, stamp: ManifestStamp) -> bool {
        let cached = self.files.get(path.as_os_str());
        cached.is_none_or(|cached| cached.freshness != Freshness::UntilStampChanges(stamp))
    }

    /// Digest of the bytes last read.
    pub(super) fn digest(&self, path: &Path) -> Option<ManifestDigest> {
        self.files.get(path.as_os_str())?.digest
    }

    /// The last valid version of a file's pod.
    pub(super) fn last_valid(&self, path: &Path) -> Option<&Arc<Pod>> {
        self.files.get(path.as_os_str())?.last_valid.as_ref()
    }

    /// Whether the file cannot be used now: its content is invalid, it cannot be read, or it is no regular file.
    pub(super) fn has_error(&self, path: &Path) -> bool {
        let cached = self.files.get(path.as_os_str());
        cached.is_some_and(|cached| cached.error.is_some())
    }

    /// Records what was read from a file.
    pub(super) fn record(&mut self, path: &Path, freshness: Freshness, reading: ManifestReading) {
        let cached = match self.files.get_mut(path.as_os_str()) {
            Some(cached) => cached,
            None => self.files.entry(path.into()).or_insert(CachedManifest {
                freshness,
                digest: None,
                last_valid: None,
                error: None,
                not_a_file: false,
            }),
        };
        cached.freshness = freshness;
        cached.not_a_file = matches!(reading, ManifestReading::NotAFile(_));
        match reading {
            ManifestReading::SameBytes => {}
            ManifestReading::Valid(digest, manifest) => {
                cached.digest = Some(digest);
                cached.error = None;
                let good = manifest.pods.into_iter().next();
                let before = std::mem::replace(&mut cached.last_valid, good.clone());
                replace_pod(&mut self.names, &mut self.pods, before, good);
                let path = path.display();
                let notice = |warning| Notice::Warning(format!("{path}: {warning}"));
                self.notices.extend(manifest.warnings.into_iter().map(notice));
            }
            ManifestReading::Invalid(digest, why) => {
                let same = cached.digest == Some(digest);
                cached.digest = Some(digest);
                cached.set_error(why, same);
            }
            ManifestReading::ReadFailed(why) => {
                cached.digest = None;
                cached.set_error(why, true);
            }
            ManifestReading::NotAFile(what) => {
                cached.digest = None;
                let before = cached.last_valid.take();
                cached.set_error(what, true);
                replace_pod(&mut self.names, &mut self.pods, before, None);
            }
        }
    }

    /// Forgets files that are no longer there.
    pub(super) fn keep_only(&mut self, present: &HashSet<OsString>) {
        let gone = self.files.extract_if(.., |path, _| !present.contains(path));
        for (_, cached) in gone {
            replace_pod(&mut self.names, &mut self.pods, cached.last_valid, None);
        }
    }

    pub(super) fn forget(&mut self, path: &Path) {
        if let Some(cached) = self.files.remove(path.as_os_str()) {
            replace_pod(&mut self.names, &mut self.pods, cached.last_valid, None);
        }
    }

    /// Names of files that must be read again soon: those that were changing, and those whose error has not been
    /// reported yet, because the file may have been half written.
    pub(super) fn to_reread(&self) -> BTreeSet<OsString> {
        let unreported = |error: &ManifestError| error.report != ReportState::Reported;
        let reread = self.files.iter().filter(|(_, cached)| {
            cached.freshness == Freshness::Changing || cached.error.as_ref().is_some_and(unreported)
        });
        let names = reread.filter_map(|(path, _)| name(path).map(OsStr::to_os_string));
        names.collect()
    }

    /// Files that were never valid since the kubelet started: a running pod may come from one of them.
    pub(super) fn never_valid(&self) -> BTreeSet<String> {
        let files = self.files.iter();
        let never_valid =
            files.filter(|(_, cached)| cached.last_valid.is_none() && !cached.not_a_file);
        never_valid.map(|(path, _)| path.to_string_lossy().into_owned()).collect()
    }

    /// The pods that should run, in order of their files' names, and what to report.
    pub(super) fn outcome(&mut self, scanned: &ScanScope) -> (Vec<Arc<Pod>>, Vec<Notice>) {
        self.report_errors(scanned);
        let pods = match self.pods.take() {
            Some(pods) => pods,
            None if self.names.values().all(|count| *count == 1) => {
                self.reported_duplicates.clear();
                let good = self.files.values().filter_map(|cached| cached.last_valid.clone());
                good.collect()
            }
            None => self.first_of_each_name(),
        };
        self.pods = Some(pods.clone());
        (pods, std::mem::take(&mut self.notices))
    }

    fn report_errors(&mut self, scanned: &ScanScope) {
        for (path, cached) in &mut self.files {
            let Some(error) = &mut cached.error else {
                continue;
            };
            if let ScanScope::Entries(names) = scanned
                && !name(path).is_some_and(|name| names.contains(name))
            {
                continue;
            }
            match error.report {
                ReportState::New => error.report = ReportState::Pending,
                ReportState::Pending => {
                    error.report = ReportState::Reported;
                    let kept = match cached.last_valid {
                        Some(_) => "; the last valid version is kept",
                        None => "",
                    };
                    let path = Path::new(path).display();
                    let text = format!("{path}: {}{kept}", error.why);
                    self.notices.push(Notice::Unusable(text));
                }
                ReportState::Reported => {}
            }
        }
    }

    /// The pods without duplicates: of two files with a pod of one name, the file that sorts first wins.
    fn first_of_each_name(&mut self) -> Vec<Arc<Pod>> {
        let files = self.files.iter();
        let good =
            files.filter_map(|(path, cached)| Some((Path::new(path), cached.last_valid.as_ref()?)));
        let (pods, duplicates) = dedup_by_name(good);
        let reported = std::mem::take(&mut self.reported_duplicates);
        for duplicate in duplicates {
            let file = duplicate.file.display();
            let files = (duplicate.file.clone(), duplicate.owner.clone());
            if !reported.contains(&files) {
                self.notices.push(Notice::Unusable(format!("{file}: {duplicate}")));
            }
            self.reported_duplicates.insert(files);
        }
        pods
    }
}

/// Updates the number of files per pod name after the pod of a file changed, and discards the cached list of pods.
fn replace_pod(
    names: &mut HashMap<PodFullName, usize>,
    cached_list: &mut Option<Vec<Arc<Pod>>>,
    before: Option<Arc<Pod>>,
    now: Option<Arc<Pod>>,
) {
    *cached_list = None;
    if let Some(name) = before.map(|pod| pod.full_name())
        && let Some(count) = names.get_mut(&name)
    {
        *count -= 1;
        if *count == 0 {
            names.remove(&name);
        }
    }
    if let Some(now) = now {
        *names.entry(now.full_name()).or_default() += 1;
    }
}

/// The name of a file in the directory.
fn name(path: &OsStr) -> Option<&OsStr> {
    Path::new(path).file_name()
}

/// A file that is ignored because another file has a pod of the same name. Displays why.
#[derive(Clone, Debug, PartialEq)]
pub struct DuplicatePod {
    /// The ignored file.
    pub file: PathBuf,
    /// The file whose pod runs.
    pub owner: PathBuf,
    /// The pod of the ignored file.
    pub pod: Arc<Pod>,
}

impl fmt::Display for DuplicatePod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "pod {}/{} is already in {}; this file is ignored",
            self.pod.namespace(),
            self.pod.name(),
            self.owner.display()
        )
    }
}

/// Removes pods of a name that an earlier file of the source has. The files must be sorted by path.
pub fn dedup_by_name<'a>(
    files: impl IntoIterator<Item = (&'a Path, &'a Arc<Pod>)>,
) -> (Vec<Arc<Pod>>, Vec<DuplicatePod>) {
    let files = files.into_iter();
    let (_, max) = files.size_hint();
    let max = max.unwrap_or(0);
    let mut owners: HashMap<(&str, &str), &Path> = HashMap::with_capacity(max);
    let (mut pods, mut duplicates) = (Vec::with_capacity(max), Vec::new());
    for (file, pod) in files {
        match owners.entry((pod.namespace(), pod.name())) {
            Entry::Vacant(free) => {
                free.insert(file);
                pods.push(pod.clone());
            }
            Entry::Occupied(taken) => duplicates.push(DuplicatePod {
                file: file.to_path_buf(),
                owner: taken.get().to_path_buf(),
                pod: pod.clone(),
            }),
        }
    }
    (pods, duplicates)
}

impl CachedManifest {
    /// Sets the error. With `may_be_known`, an error equal to the recorded one is not reported again.
    fn set_error(&mut self, why: String, may_be_known: bool) {
        let known = self.error.as_ref().is_some_and(|error| error.why == why);
        if !(known && may_be_known) {
            let report = ReportState::New;
            self.error = Some(ManifestError { why, report });
        }
    }
}

#[cfg(test)]
mod tests;
