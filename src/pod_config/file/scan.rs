//! One look at the manifest path. Blocking.

use super::book::{Book, Digest, Freshness, Notice, Reading, Stamp};
use crate::model::{Pod, PodSource};
use crate::pod_config::manifest::read_file;
use crate::pod_config::static_pod::Origin;
use crate::validation::MAX_MANIFEST_BYTES;
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _, fs::OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file changed so recently may be changed again within the same tick of the file system's
/// clock, so its stamp proves nothing yet. In nanoseconds.
const RACY: i128 = 50_000_000;

/// Looks at the path again and again, reading only what changed.
pub(super) struct Scanner {
    root: PathBuf,
    node_name: String,
    book: Book,
    root_fault: Option<String>,
}

/// What a scan showed.
pub(super) struct Scan {
    /// All good pods, or `None` when the path could not be listed: nothing is known then.
    pub(super) pods: Option<Vec<Arc<Pod>>>,
    /// What to tell people.
    pub(super) notices: Vec<Notice>,
    /// Some manifest could not be read, now or ever: the pods are not all there are.
    pub(super) partial: bool,
    /// Look again soon, event or not.
    pub(super) unsettled: bool,
    /// Manifests that are symbolic links.
    pub(super) links: Vec<PathBuf>,
}

impl Scanner {
    pub(super) fn new(root: PathBuf, node_name: String) -> Self {
        Self {
            root,
            node_name,
            book: Book::default(),
            root_fault: None,
        }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn scan(&mut self) -> Scan {
        let mut links = Vec::new();
        match self.list(&mut links) {
            Ok(paths) => {
                self.root_fault = None;
                for path in &paths {
                    self.visit(path);
                }
                self.book
                    .keep_only(&paths.into_iter().map(PathBuf::into_os_string).collect());
                let (pods, notices) = self.book.outcome();
                Scan {
                    pods: Some(pods),
                    notices,
                    partial: self.book.is_partial(),
                    unsettled: self.book.is_unsettled(),
                    links,
                }
            }
            Err(error) => Scan {
                pods: None,
                notices: self.root_notice(&error),
                partial: true,
                unsettled: false,
                links,
            },
        }
    }

    /// The manifests there are; none when the path does not exist.
    fn list(&self, links: &mut Vec<PathBuf>) -> io::Result<Vec<PathBuf>> {
        let root = match self.root.metadata() {
            Err(error) if is_missing(&error) => return Ok(Vec::new()),
            root => root?,
        };
        if !root.is_dir() {
            return Ok(vec![self.root.clone()]);
        }
        let mut paths = Vec::new();
        for entry in self.root.read_dir()? {
            let entry = entry?;
            if entry.file_name().as_bytes().starts_with(b".") {
                continue;
            }
            if entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
                links.push(entry.path());
            }
            paths.push(entry.path());
        }
        Ok(paths)
    }

    fn root_notice(&mut self, error: &io::Error) -> Vec<Notice> {
        let text = format!("{}: {error}", self.root.display());
        if self.root_fault.as_ref() == Some(&text) {
            return Vec::new();
        }
        self.root_fault = Some(text.clone());
        vec![Notice::Refused(format!(
            "{text}; nothing is changed until it can be listed"
        ))]
    }

    fn visit(&mut self, path: &Path) {
        let known = match path.metadata() {
            Ok(meta) if meta.is_file() => Some(stamp(&meta)),
            _ => None,
        };
        if known.is_some_and(|stamp| !self.book.must_read(path, stamp)) {
            return;
        }
        let (freshness, reading) = match open(path) {
            Ok(Opened::File(file, meta)) => self.look_into(path, file, &meta),
            Ok(Opened::Other(what)) => (Freshness::Unreadable, Reading::NotAFile(what)),
            // Gone since the listing, or a link that leads nowhere.
            Err(error) if is_missing(&error) => {
                let what = "leads to no file".to_string();
                (Freshness::Unreadable, Reading::NotAFile(what))
            }
            Err(error) => (Freshness::Unreadable, Reading::Unread(error.to_string())),
        };
        self.book.note(path, freshness, reading);
    }

    fn look_into(&self, path: &Path, mut file: File, meta: &Metadata) -> (Freshness, Reading) {
        let before = stamp(meta);
        let mut bytes = Vec::new();
        let limit = MAX_MANIFEST_BYTES as u64 + 1;
        if let Err(error) = (&mut file).take(limit).read_to_end(&mut bytes) {
            return (Freshness::Unreadable, Reading::Unread(error.to_string()));
        }
        let now = Timestamp::now();
        let steady = file.metadata().is_ok_and(|after| stamp(&after) == before);
        let age = now.as_nanosecond() - before.changed;
        let freshness = match steady && !(-RACY..RACY).contains(&age) {
            true => Freshness::Until(before),
            false => Freshness::Changing,
        };
        (freshness, self.judge(path, &bytes, now))
    }

    fn judge(&self, path: &Path, bytes: &[u8], now: Timestamp) -> Reading {
        let digest = digest(bytes);
        if self.book.digest(path) == Some(digest) {
            return Reading::SameBytes;
        }
        let origin = Origin {
            node_name: &self.node_name,
            source: PodSource::File,
            location: &path.to_string_lossy(),
        };
        match read_file(bytes, origin, now) {
            Ok(manifest) => Reading::Good(digest, manifest),
            Err(why) => Reading::Bad(digest, why),
        }
    }
}

enum Opened {
    File(File, Metadata),
    Other(String),
}

/// Opens a manifest. Never waits, as opening a pipe would.
fn open(path: &Path) -> io::Result<Opened> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    let meta = file.metadata()?;
    if meta.is_file() {
        return Ok(Opened::File(file, meta));
    }
    let what = match meta.is_dir() {
        true => "is a directory; manifests are read from one level only",
        false => "is not a regular file",
    };
    Ok(Opened::Other(what.into()))
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn stamp(meta: &Metadata) -> Stamp {
    let nanos = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    Stamp {
        device: meta.dev(),
        inode: meta.ino(),
        size: meta.size(),
        modified: nanos(meta.mtime(), meta.mtime_nsec()),
        changed: nanos(meta.ctime(), meta.ctime_nsec()),
    }
}

fn digest(bytes: &[u8]) -> Digest {
    let mut digest = Digest::default();
    for (to, from) in digest.iter_mut().zip(Sha256::digest(bytes)) {
        *to = from;
    }
    digest
}
