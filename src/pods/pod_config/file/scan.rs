//! One scan of the manifest path. Blocking.

use super::manifest_cache::{
    Freshness, ManifestCache, ManifestDigest, ManifestReading, ManifestStamp, Notice,
};
use super::watch::ScanScope;
use crate::base::clock;
use crate::host::files::{PATH_ONLY, reopen};
use crate::model::validation::{LocalConfigMapsAndSecrets, MAX_MANIFEST_BYTES};
use crate::model::{Completeness, Pod, PodSource};
use crate::pods::pod_config::manifest::{ManifestDecoder, decode_catching_panic, decode_file};
use crate::pods::pod_config::static_pod::ManifestOrigin;
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file that changed less than this ago may change again within the same tick of the file system's clock, without
/// a new stamp, so it is read again. In nanoseconds; longer than a jiffy of any kernel configuration.
const CLOCK_TICK_NANOS: i128 = 50_000_000;

/// The error of a path that does not exist, or of a symbolic link to such a path.
const NO_FILE: &str = "does not exist or is a dangling symbolic link";

/// Scans the manifest path and reads only files that changed since the last scan.
pub(super) struct Scanner {
    root: PathBuf,
    node_name: String,
    source: PodSource,
    config_maps_and_secrets: LocalConfigMapsAndSecrets,
    pub(super) decoder: ManifestDecoder,
    cache: ManifestCache,
    root_error: Option<String>,
    /// Whether the path was a directory when it was listed last.
    is_directory: bool,
    /// Whether the path did not exist when it was listed last.
    is_missing: bool,
    /// Manifests that are symbolic links. Their targets may change without an event in the directory.
    links: Vec<PathBuf>,
}

/// The result of a scan.
pub(super) struct Scan {
    /// All valid pods, or `None` if the path could not be listed.
    pub(super) pods: Option<Vec<Arc<Pod>>>,
    /// The pods without those whose file was removed and restored with the same content, if there are any. This list
    /// is delivered before `pods`, so that such a pod is removed and created again, as upstream does.
    pub(super) without_restored: Option<Vec<Arc<Pod>>>,
    /// What to report.
    pub(super) notices: Vec<Notice>,
    /// Which manifests are missing from `pods` because they are invalid or unreadable.
    pub(super) completeness: Completeness,
    /// Names of files to read again soon, with or without an event.
    pub(super) reread: BTreeSet<OsString>,
    /// Manifests that are symbolic links.
    pub(super) links: Vec<PathBuf>,
}

impl Scanner {
    pub(super) fn new(
        source: PodSource,
        root: PathBuf,
        node_name: String,
        config_maps_and_secrets: LocalConfigMapsAndSecrets,
    ) -> Self {
        Self {
            root,
            node_name,
            source,
            config_maps_and_secrets,
            decoder: decode_file,
            cache: ManifestCache::default(),
            root_error: None,
            is_directory: false,
            is_missing: false,
            links: Vec::new(),
        }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The path, if it did not exist at the last complete scan.
    pub(super) fn missing_root(&self) -> Option<&Path> {
        self.is_missing.then_some(&*self.root)
    }

    /// Scans everything. `removed` are entries that left the directory since the last scan and may have been restored.
    pub(super) fn scan(&mut self, removed: &BTreeSet<OsString>) -> Scan {
        let removed_pods = self.last_valid_pods(removed);
        let was_missing = self.is_missing;
        match self.list() {
            Ok(paths) => {
                self.root_error = None;
                for path in &paths {
                    self.visit(path);
                }
                self.cache.keep_only(&paths.into_iter().map(PathBuf::into_os_string).collect());
                let mut scan = self.outcome(&ScanScope::Everything, &removed_pods);
                if self.is_missing && !was_missing {
                    scan.notices.push(Notice::Missing(self.root.clone()));
                }
                scan
            }
            Err(error) => Scan {
                pods: None,
                without_restored: None,
                notices: self.root_notice(&error),
                completeness: Completeness::Partial,
                reread: BTreeSet::new(),
                links: self.links.clone(),
            },
        }
    }

    /// Scans only the entries of these names. `None` if everything has to be scanned: the path is not a directory, or
    /// it has symbolic links, whose targets may be any of the changed files.
    pub(super) fn scan_entries(
        &mut self,
        names: &BTreeSet<OsString>,
        removed: &BTreeSet<OsString>,
    ) -> Option<Scan> {
        if !self.is_directory || !self.links.is_empty() {
            return None;
        }
        let removed_pods = self.last_valid_pods(removed);
        for name in names.iter().filter(|name| !is_hidden(name)) {
            let path = self.root.join(name);
            match path.symlink_metadata() {
                Ok(meta) if meta.is_symlink() => return None,
                Ok(_) => self.visit(&path),
                Err(error) if is_missing(&error) => self.cache.forget(&path),
                Err(_) => return None,
            }
        }
        Some(self.outcome(&ScanScope::Entries(names.clone()), &removed_pods))
    }

    /// The last valid pods of these entries.
    fn last_valid_pods(&self, names: &BTreeSet<OsString>) -> Vec<(PathBuf, Arc<Pod>)> {
        let known = names.iter().filter_map(|name| {
            let path = self.root.join(name);
            let pod = self.cache.last_valid(&path)?.clone();
            Some((path, pod))
        });
        known.collect()
    }

    /// Builds the result. `removed_pods` are the last valid pods of files that were removed since the last scan.
    fn outcome(&mut self, scanned: &ScanScope, removed_pods: &[(PathBuf, Arc<Pod>)]) -> Scan {
        let (pods, notices) = self.cache.outcome(scanned);
        let is_restored = |path: &Path, pod: &Arc<Pod>| {
            let now = self.cache.last_valid(path).filter(|_| !self.cache.has_error(path));
            now.is_some_and(|now| Arc::ptr_eq(now, pod))
        };
        let restored = removed_pods.iter().filter(|(path, pod)| is_restored(path, pod));
        let restored: Vec<_> = restored.map(|(_, pod)| pod).collect();
        let is_not_restored = |pod: &&Arc<Pod>| !restored.iter().any(|it| Arc::ptr_eq(it, pod));
        let without_restored = || pods.iter().filter(is_not_restored).cloned().collect();
        Scan {
            without_restored: (!restored.is_empty()).then(without_restored),
            pods: Some(pods),
            notices,
            completeness: self.cache.never_valid().into(),
            reread: self.cache.to_reread(),
            links: self.links.clone(),
        }
    }

    fn list(&mut self) -> io::Result<Vec<PathBuf>> {
        // If listing fails, the next scan must be a complete one.
        (self.links, self.is_directory) = (Vec::new(), false);
        let listing = list(&self.root)?;
        (self.links, self.is_directory) = (listing.links, listing.is_directory);
        self.is_missing = listing.is_missing;
        Ok(listing.paths)
    }

    fn root_notice(&mut self, error: &io::Error) -> Vec<Notice> {
        let text = format!("{}: {error}", self.root.display());
        if self.root_error.as_ref() == Some(&text) {
            return Vec::new();
        }
        self.root_error = Some(text.clone());
        vec![Notice::Unusable(format!("{text}; keeping the current static pods"))]
    }

    fn visit(&mut self, path: &Path) {
        let known = match path.metadata() {
            Ok(meta) if meta.is_file() => Some(stamp(&meta)),
            _ => None,
        };
        if known.is_some_and(|stamp| !self.cache.must_read(path, stamp)) {
            return;
        }
        let (freshness, reading) = match open(path) {
            Ok(Opened::File(file, meta)) => self.read_manifest_file(path, file, &meta),
            Ok(Opened::Other(what)) => (Freshness::UntilNextScan, ManifestReading::NotAFile(what)),
            // Removed since the listing, or a dangling link.
            Err(error) if is_missing(&error) => {
                (Freshness::UntilNextScan, ManifestReading::NotAFile(NO_FILE.into()))
            }
            Err(error) => {
                (Freshness::UntilNextScan, ManifestReading::ReadFailed(error.to_string()))
            }
        };
        self.cache.record(path, freshness, reading);
    }

    fn read_manifest_file(
        &self,
        path: &Path,
        file: File,
        meta: &Metadata,
    ) -> (Freshness, ManifestReading) {
        let before = stamp(meta);
        let bytes = match read(&file) {
            Ok(bytes) => bytes,
            Err(error) => {
                return (Freshness::UntilNextScan, ManifestReading::ReadFailed(error.to_string()));
            }
        };
        let now = clock::timestamp();
        let steady = file.metadata().is_ok_and(|after| stamp(&after) == before);
        let age = now.as_nanosecond() - before.changed;
        let freshness = if steady && !(-CLOCK_TICK_NANOS..CLOCK_TICK_NANOS).contains(&age) {
            Freshness::UntilStampChanges(before)
        } else {
            Freshness::Changing
        };
        (freshness, self.parse(path, &bytes, now))
    }

    fn parse(&self, path: &Path, bytes: &[u8], now: Timestamp) -> ManifestReading {
        let digest = digest(bytes);
        if self.cache.digest(path) == Some(digest) {
            return ManifestReading::SameBytes;
        }
        let origin = ManifestOrigin {
            node_name: &self.node_name,
            source: self.source,
            location: &path.to_string_lossy(),
            config_maps_and_secrets: self.config_maps_and_secrets,
        };
        match decode_catching_panic(self.decoder, bytes, origin, now) {
            Ok(manifest) => ManifestReading::Valid(digest, manifest),
            Err(why) => ManifestReading::Invalid(digest, why.to_string()),
        }
    }
}

/// The manifests that a source with this path reads; none if the path does not exist. A directory is read one level
/// deep, without names that begin with a dot. Blocking.
///
/// # Errors
/// The path cannot be listed.
pub fn manifests_at(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = list(root)?.paths;
    paths.sort();
    Ok(paths)
}

/// Why there are no bytes to parse.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// There is no regular file, so it is skipped; the value says why.
    #[error("{0}")]
    NotAFile(String),
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Io(io::Error),
}

/// Reads a manifest, at most one byte more than the largest size that is accepted. Blocking, but not indefinitely:
/// pipes and devices are not opened.
pub fn read_manifest(path: &Path) -> Result<Vec<u8>, ReadError> {
    match open(path) {
        Ok(Opened::File(file, _)) => read(&file).map_err(ReadError::Io),
        Ok(Opened::Other(what)) => Err(ReadError::NotAFile(what)),
        Err(error) if is_missing(&error) => Err(ReadError::NotAFile(NO_FILE.into())),
        Err(error) => Err(ReadError::Io(error)),
    }
}

/// What is at the manifest path.
#[derive(Default)]
struct Listing {
    paths: Vec<PathBuf>,
    links: Vec<PathBuf>,
    is_directory: bool,
    is_missing: bool,
}

/// Lists the manifests; none if the path does not exist.
fn list(root: &Path) -> io::Result<Listing> {
    let mut listing = Listing::default();
    let meta = match root.metadata() {
        Err(error) if is_missing(&error) => {
            listing.is_missing = true;
            return Ok(listing);
        }
        meta => meta?,
    };
    if !meta.is_dir() {
        listing.paths.push(root.to_path_buf());
        return Ok(listing);
    }
    for entry in root.read_dir()? {
        let entry = entry?;
        if is_hidden(&entry.file_name()) {
            continue;
        }
        if entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
            listing.links.push(entry.path());
        }
        listing.paths.push(entry.path());
    }
    listing.is_directory = true;
    Ok(listing)
}

fn read(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = MAX_MANIFEST_BYTES as u64 + 1;
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

enum Opened {
    File(File, Metadata),
    Other(String),
}

/// Opens a regular file. Other kinds are not opened, because opening a pipe blocks and opening a device may have effects.
fn open(path: &Path) -> io::Result<Opened> {
    let found = rustix::fs::open(path, PATH_ONLY, rustix::fs::Mode::empty())?;
    let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode);
    if kind.is_file() {
        let (file, meta) = reopen(found)?;
        return Ok(Opened::File(file, meta));
    }
    let what = if kind.is_dir() {
        "is a directory; manifests are read from one level only"
    } else {
        "is not a regular file"
    };
    Ok(Opened::Other(what.into()))
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".")
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn stamp(meta: &Metadata) -> ManifestStamp {
    let nanos = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    ManifestStamp {
        device: meta.dev(),
        inode: meta.ino(),
        size: meta.size(),
        modified: nanos(meta.mtime(), meta.mtime_nsec()),
        changed: nanos(meta.ctime(), meta.ctime_nsec()),
    }
}

fn digest(bytes: &[u8]) -> ManifestDigest {
    let mut digest = ManifestDigest::default();
    for (to, from) in digest.iter_mut().zip(Sha256::digest(bytes)) {
        *to = from;
    }
    digest
}
