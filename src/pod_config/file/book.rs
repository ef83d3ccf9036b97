//! What is known of every manifest file. Pure: the scanner tells what it read, the book says what
//! should run and what people must hear, each thing once.

use crate::model::{Pod, PodExt, PodFullName};
use crate::pod_config::manifest::Manifest;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Digest of a file's bytes.
pub(super) type Digest = [u8; 16];

/// What makes a file "the same as last time" without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) size: u64,
    /// Modification, in nanoseconds since the epoch.
    pub(super) modified: i128,
    /// Change of content or attributes, in nanoseconds since the epoch.
    pub(super) changed: i128,
}

/// How far a reading can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    /// Until the stamp changes.
    Until(Stamp),
    /// The file was changed just now, and may be changed again without a new stamp.
    Changing,
    /// It could not be read; every scan tries again.
    Unreadable,
}

/// What the scanner found out about a file that it looked into.
#[derive(Debug)]
pub(super) enum Reading {
    /// The bytes are those of the last reading.
    SameBytes,
    /// New bytes that are a pod.
    Good(Digest, Manifest),
    /// New bytes that are none: why.
    Bad(Digest, String),
    /// No bytes: why.
    Unread(String),
    /// Not a file, e.g. a directory: what.
    NotAFile(String),
}

/// A line for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// The manifest cannot be used.
    Refused(String),
    /// The manifest is used, with a remark.
    Remark(String),
}

struct Record {
    freshness: Freshness,
    digest: Option<Digest>,
    /// The last good version.
    good: Option<Arc<Pod>>,
    fault: Option<Fault>,
    /// A directory, a pipe: nothing that a pod could be in.
    no_manifest: bool,
}

struct Fault {
    why: String,
    telling: Telling,
}

/// A file that someone is writing is bad for a moment, which is not worth a word: a fault is told
/// when the next scan still finds it.
#[derive(Clone, Copy, PartialEq)]
enum Telling {
    Fresh,
    Due,
    Done,
}

/// All files of the source, by path.
#[derive(Default)]
pub(super) struct Book {
    /// Keyed by the path as text, which compares faster than its steps do.
    files: BTreeMap<OsString, Record>,
    notices: Vec<Notice>,
    /// Files left out because an earlier file has a pod of the same name, as told to people.
    told_clashes: HashSet<(PathBuf, PathBuf)>,
}

impl Book {
    /// Whether the file must be looked into: it is new, changed, or could not be relied on.
    pub(super) fn must_read(&self, path: &Path, stamp: Stamp) -> bool {
        let record = self.files.get(path.as_os_str());
        record.is_none_or(|record| record.freshness != Freshness::Until(stamp))
    }

    /// Digest of the bytes last read.
    pub(super) fn digest(&self, path: &Path) -> Option<Digest> {
        self.files.get(path.as_os_str())?.digest
    }

    /// Notes what a look into a file showed.
    pub(super) fn note(&mut self, path: &Path, freshness: Freshness, reading: Reading) {
        let record = match self.files.get_mut(path.as_os_str()) {
            Some(record) => record,
            None => self.files.entry(path.into()).or_insert(Record {
                freshness,
                digest: None,
                good: None,
                fault: None,
                no_manifest: false,
            }),
        };
        record.freshness = freshness;
        record.no_manifest = matches!(reading, Reading::NotAFile(_));
        match reading {
            Reading::SameBytes => {}
            Reading::Good(digest, manifest) => {
                record.digest = Some(digest);
                record.fault = None;
                record.good = manifest.pods.into_iter().next();
                let shown = path.display();
                let notice = |remark| Notice::Remark(format!("{shown}: {remark}"));
                self.notices
                    .extend(manifest.remarks.into_iter().map(notice));
            }
            Reading::Bad(digest, why) => {
                let same = record.digest == Some(digest);
                record.digest = Some(digest);
                record.find_fault(why, same);
            }
            Reading::Unread(why) => {
                record.digest = None;
                record.find_fault(why, true);
            }
            Reading::NotAFile(what) => {
                record.digest = None;
                record.good = None;
                record.find_fault(what, true);
            }
        }
    }

    /// Forgets files that are no longer there.
    pub(super) fn keep_only(&mut self, present: &HashSet<OsString>) {
        self.files.retain(|path, _| present.contains(path));
    }

    /// Whether something must be looked at again soon: a file that was changing, or a fault that
    /// may have been a half-written file.
    pub(super) fn is_unsettled(&self) -> bool {
        self.files.values().any(|record| {
            let untold = |fault: &Fault| fault.telling != Telling::Done;
            record.freshness == Freshness::Changing || record.fault.as_ref().is_some_and(untold)
        })
    }

    /// Whether there may be pods here that nobody can read: a manifest that was never seen good.
    pub(super) fn is_partial(&self) -> bool {
        self.files
            .values()
            .any(|record| record.good.is_none() && !record.no_manifest)
    }

    /// The pods that should run, in order of their files' names, and what to tell people.
    pub(super) fn outcome(&mut self) -> (Vec<Arc<Pod>>, Vec<Notice>) {
        self.tell_faults();
        let pods = self.pods();
        (pods, std::mem::take(&mut self.notices))
    }

    fn tell_faults(&mut self) {
        for (path, record) in &mut self.files {
            let Some(fault) = &mut record.fault else {
                continue;
            };
            match fault.telling {
                Telling::Fresh => fault.telling = Telling::Due,
                Telling::Due => {
                    fault.telling = Telling::Done;
                    let kept = match record.good {
                        Some(_) => "; the last good version runs on",
                        None => "",
                    };
                    let path = Path::new(path).display();
                    let text = format!("{path}: {}{kept}", fault.why);
                    self.notices.push(Notice::Refused(text));
                }
                Telling::Done => {}
            }
        }
    }

    /// Of two files with a pod of one name, the one whose own name comes first counts.
    fn pods(&mut self) -> Vec<Arc<Pod>> {
        let mut owners: HashMap<PodFullName, &Path> = HashMap::new();
        let mut clashes = HashSet::new();
        let mut pods = Vec::with_capacity(self.files.len());
        for (path, record) in &self.files {
            let path = Path::new(path);
            let Some(pod) = &record.good else {
                continue;
            };
            let name = pod.full_name();
            let Some(owner) = owners.get(&name) else {
                owners.insert(name, path);
                pods.push(pod.clone());
                continue;
            };
            let clash = (path.to_path_buf(), owner.to_path_buf());
            if !self.told_clashes.contains(&clash) {
                self.notices.push(Notice::Refused(format!(
                    "{}: pod {}/{} is already in {}; this file is ignored",
                    path.display(),
                    pod.namespace(),
                    pod.name(),
                    owner.display()
                )));
            }
            clashes.insert(clash);
        }
        self.told_clashes = clashes;
        pods
    }
}

impl Record {
    /// `same_bytes`: the fault is known if it reads the same.
    fn find_fault(&mut self, why: String, same_bytes: bool) {
        let known = self.fault.as_ref().is_some_and(|fault| fault.why == why);
        if !(known && same_bytes) {
            let telling = Telling::Fresh;
            self.fault = Some(Fault { why, telling });
        }
    }
}

#[cfg(test)]
mod tests;
