//! What is known of every manifest file. Pure: the scanner tells what it read, the book says what
//! should run and what people must hear, each thing once.

use crate::model::{Pod, PodExt, PodFullName};
use crate::pod_config::manifest::Manifest;
use std::collections::{BTreeMap, HashMap, HashSet};
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
    files: BTreeMap<PathBuf, Record>,
    notices: Vec<Notice>,
    /// Files left out because an earlier file has a pod of the same name, as told to people.
    told_clashes: HashSet<(PathBuf, PathBuf)>,
}

impl Book {
    /// Whether the file must be looked into: it is new, changed, or could not be relied on.
    pub(super) fn must_read(&self, path: &Path, stamp: Stamp) -> bool {
        let record = self.files.get(path);
        record.is_none_or(|record| record.freshness != Freshness::Until(stamp))
    }

    /// Digest of the bytes last read.
    pub(super) fn digest(&self, path: &Path) -> Option<Digest> {
        self.files.get(path)?.digest
    }

    /// Notes what a look into a file showed.
    pub(super) fn note(&mut self, path: &Path, freshness: Freshness, reading: Reading) {
        let record = match self.files.get_mut(path) {
            Some(record) => record,
            None => self.files.entry(path.into()).or_insert(Record {
                freshness,
                digest: None,
                good: None,
                fault: None,
            }),
        };
        record.freshness = freshness;
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
    pub(super) fn keep_only(&mut self, present: &HashSet<PathBuf>) {
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
                    let text = format!("{}: {}{kept}", path.display(), fault.why);
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
            let Some(pod) = &record.good else {
                continue;
            };
            let Some(owner) = owners.get(&pod.full_name()) else {
                owners.insert(pod.full_name(), path);
                pods.push(pod.clone());
                continue;
            };
            let clash = (path.clone(), owner.to_path_buf());
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
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp {
        device: 1,
        inode: 2,
        size: 3,
        modified: 4,
        changed: 5,
    };

    fn good(name: &str) -> Reading {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.into());
        let manifest = Manifest {
            pods: vec![Arc::new(pod)],
            remarks: vec![],
        };
        Reading::Good([1; 16], manifest)
    }

    fn note(book: &mut Book, path: &str, reading: Reading) {
        book.note(Path::new(path), Freshness::Until(STAMP), reading);
    }

    fn names(book: &mut Book) -> Vec<String> {
        book.outcome()
            .0
            .iter()
            .map(|pod| pod.name().to_string())
            .collect()
    }

    fn told(book: &mut Book) -> Vec<String> {
        let text = |notice| match notice {
            Notice::Refused(text) | Notice::Remark(text) => text,
        };
        book.outcome().1.into_iter().map(text).collect()
    }

    #[test]
    fn a_file_is_read_again_only_when_its_stamp_changes() {
        let mut book = Book::default();
        let path = Path::new("a");
        assert!(book.must_read(path, STAMP));
        book.note(path, Freshness::Until(STAMP), good("a"));
        assert!(!book.must_read(path, STAMP));
        for change in [
            Stamp { inode: 9, ..STAMP },
            Stamp { size: 9, ..STAMP },
            Stamp {
                modified: 9,
                ..STAMP
            },
            Stamp {
                changed: 9,
                ..STAMP
            },
            Stamp { device: 9, ..STAMP },
        ] {
            assert!(book.must_read(path, change));
        }
        book.note(path, Freshness::Changing, Reading::SameBytes);
        assert!(book.must_read(path, STAMP) && book.is_unsettled());
        book.note(path, Freshness::Unreadable, Reading::Unread("no".into()));
        assert!(book.must_read(path, STAMP));
    }

    #[test]
    fn a_file_turned_bad_keeps_its_last_good_pod_and_says_so_once() {
        let mut book = Book::default();
        note(&mut book, "a", good("a"));
        assert_eq!(names(&mut book), ["a"]);
        note(&mut book, "a", Reading::Bad([2; 16], "line 1: bad".into()));
        assert!(book.is_unsettled());
        assert_eq!(told(&mut book), [""; 0], "perhaps it is being written");
        assert!(book.is_unsettled());
        assert_eq!(
            told(&mut book),
            ["a: line 1: bad; the last good version runs on"]
        );
        assert!(!book.is_unsettled());
        assert_eq!(told(&mut book), [""; 0]);
        assert_eq!(names(&mut book), ["a"]);
        note(&mut book, "a", Reading::Bad([3; 16], "line 1: bad".into()));
        told(&mut book);
        assert_eq!(told(&mut book).len(), 1, "other bytes, said again");
    }

    #[test]
    fn a_half_written_file_is_not_worth_a_word() {
        let mut book = Book::default();
        note(&mut book, "a", Reading::Bad([2; 16], "no object".into()));
        assert_eq!(told(&mut book), [""; 0]);
        note(&mut book, "a", good("a"));
        assert_eq!(told(&mut book), [""; 0]);
        assert_eq!(names(&mut book), ["a"]);
    }

    #[test]
    fn a_file_bad_from_the_start_is_told_and_skipped() {
        let mut book = Book::default();
        note(&mut book, "a", Reading::Bad([2; 16], "bad".into()));
        note(&mut book, "b", good("b"));
        assert_eq!(names(&mut book), ["b"]);
        assert_eq!(told(&mut book), ["a: bad"]);
    }

    #[test]
    fn what_is_gone_or_no_file_any_more_runs_no_more() {
        let mut book = Book::default();
        note(&mut book, "a", good("a"));
        note(&mut book, "b", good("b"));
        book.keep_only(&HashSet::from(["a".into()]));
        assert_eq!(names(&mut book), ["a"]);
        note(&mut book, "a", Reading::NotAFile("is a directory".into()));
        assert_eq!(names(&mut book), [""; 0]);
        assert_eq!(told(&mut book), ["a: is a directory"]);
        note(&mut book, "a", Reading::NotAFile("is a directory".into()));
        told(&mut book);
        assert_eq!(told(&mut book), [""; 0]);
    }

    #[test]
    fn of_two_files_with_one_pod_the_first_by_name_counts() {
        let mut book = Book::default();
        note(&mut book, "b", good("same"));
        note(&mut book, "a", good("same"));
        assert_eq!(names(&mut book), ["same"]);
        note(&mut book, "c", good("same"));
        assert_eq!(
            told(&mut book),
            ["c: pod /same is already in a; this file is ignored"]
        );
        assert_eq!(told(&mut book), [""; 0]);
        book.keep_only(&HashSet::from(["b".into(), "c".into()]));
        assert_eq!(
            told(&mut book),
            ["c: pod /same is already in b; this file is ignored"]
        );
    }

    #[test]
    fn an_unreadable_file_keeps_its_pod_until_it_can_be_read() {
        let mut book = Book::default();
        note(&mut book, "a", good("a"));
        book.note(
            Path::new("a"),
            Freshness::Unreadable,
            Reading::Unread("permission denied".into()),
        );
        assert_eq!(names(&mut book), ["a"]);
        assert_eq!(told(&mut book).len(), 1);
        assert_eq!(
            book.digest(Path::new("a")),
            None,
            "judged anew when it can be read"
        );
        assert!(
            !book.is_unsettled(),
            "tried again by the next scan, not by a tight loop"
        );
    }
}
