//! What to watch, so that any change of a manifest leads to an event. Blocking.
//!
//! An event only triggers a scan, so a watch too many costs one scan and a watch too few is
//! caught by the re-list.

use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path, PathBuf};

/// Most symbolic links followed for one path, as the kernel has it.
const MAX_LINKS: usize = 40;

/// Room for events between two reads; what does not fit stays in the kernel.
pub(super) type Events = EventStream<[u8; 4096]>;

/// Which events of a directory matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Interest {
    /// All of them.
    Everything,
    /// Those about entries of these names coming and going, or about the directory itself.
    Steps(HashSet<OsString>),
    /// Those about entries of these names, one of which may be a manifest, or about the directory.
    Names(HashSet<OsString>),
}

impl Interest {
    /// The events to watch for. Writes of others into a directory on the way do not matter.
    fn mask(&self) -> WatchMask {
        let steps = WatchMask::CREATE
            | WatchMask::MOVE
            | WatchMask::DELETE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR;
        match self {
            Self::Steps(_) => steps | WatchMask::ATTRIB,
            _ => steps | WatchMask::ATTRIB | WatchMask::MODIFY | WatchMask::CLOSE_WRITE,
        }
    }
}

pub(super) type DirectoryInterests = HashMap<PathBuf, Interest>;

/// What the watched path calls for: the directory itself, and every directory on the way in which
/// a link or a missing step may change.
pub(super) fn wanted_for_root(root: &Path) -> DirectoryInterests {
    let mut wanted = DirectoryInterests::new();
    want_path(root, &mut wanted);
    if root.is_dir() {
        wanted.insert(root.to_path_buf(), Interest::Everything);
    }
    wanted
}

/// Adds what a path calls for: its last step, and every link and the first missing step before.
pub(super) fn want_path(path: &Path, wanted: &mut DirectoryInterests) {
    let Ok(path) = std::path::absolute(path) else {
        return;
    };
    let mut at = PathBuf::from("/");
    let mut rest: VecDeque<OsString> = steps(&path);
    let mut links = 0;
    while let Some(step) = rest.pop_front() {
        if step == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&step);
        let meta = next.symlink_metadata();
        let is_link = meta.as_ref().is_ok_and(std::fs::Metadata::is_symlink);
        if is_link || meta.is_err() || rest.is_empty() {
            let may_be_manifest = !is_link && !meta.as_ref().is_ok_and(std::fs::Metadata::is_dir);
            add_watch(wanted, &at, &step, may_be_manifest);
        }
        if meta.is_err() {
            return;
        }
        if !is_link {
            at = next;
            continue;
        }
        links += 1;
        let Some(target) = next.read_link().ok().filter(|_| links <= MAX_LINKS) else {
            return;
        };
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        for step in steps(&target).into_iter().rev() {
            rest.push_front(step);
        }
    }
}

fn steps(path: &Path) -> VecDeque<OsString> {
    let step = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_os_string()),
        Component::ParentDir => Some(OsString::from("..")),
        _ => None,
    };
    path.components().filter_map(step).collect()
}

fn add_watch(
    wanted: &mut DirectoryInterests,
    directory: &Path,
    name: &OsStr,
    may_be_manifest: bool,
) {
    let names = HashSet::from([name.to_os_string()]);
    let more = if may_be_manifest {
        Interest::Names(names)
    } else {
        Interest::Steps(names)
    };
    let both = joined(wanted.remove(directory), &more);
    wanted.insert(directory.to_path_buf(), both);
}

/// How much of the path is scanned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScanScope {
    /// The list of the directory and every file in it.
    Everything,
    /// Entries of these names; the others are as they were.
    Entries(BTreeSet<OsString>),
}

impl ScanScope {
    /// These entries and those of the events.
    pub(super) fn of(mut names: BTreeSet<OsString>, hints: &[ScanHint]) -> Self {
        for hint in hints {
            match hint {
                ScanHint::Entry(name) | ScanHint::Removed(name) => names.insert(name.clone()),
                ScanHint::Anything => return Self::Everything,
            };
        }
        Self::Entries(names)
    }
}

/// What an event means for the next scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScanHint {
    /// At this entry of the directory of manifests.
    Entry(OsString),
    /// This entry left the directory of manifests.
    Removed(OsString),
    /// Anywhere.
    Anything,
}

impl ScanHint {
    /// The entry that left the directory.
    pub(super) fn removed(self) -> Option<OsString> {
        match self {
            Self::Removed(name) => Some(name),
            Self::Entry(_) | Self::Anything => None,
        }
    }
}

/// The watches there are.
pub(super) struct ManifestWatcher {
    watches: Watches,
    interests: HashMap<WatchDescriptor, Interest>,
}

impl ManifestWatcher {
    /// A watcher without watches, and where its events come from.
    pub(super) fn new() -> io::Result<(Self, Events)> {
        let events = Inotify::init()?.into_event_stream([0; 4096])?;
        let watches = events.watches();
        let interests = HashMap::new();
        Ok((Self { watches, interests }, events))
    }

    /// Watches exactly these directories. Returns whether a watch is new, in which case something
    /// may have happened before it. A directory that cannot be watched is left to the re-list; the
    /// error of the last such is returned, too.
    pub(super) fn watch(
        &mut self,
        wanted: &DirectoryInterests,
    ) -> (bool, Option<(PathBuf, io::Error)>) {
        let mut interests: HashMap<WatchDescriptor, Interest> = HashMap::new();
        let mut failed = None;
        for (directory, interest) in wanted {
            // Two paths may lead to one directory: the events of both are watched.
            let mask = interest.mask() | WatchMask::MASK_ADD;
            match self.watches.add(directory, mask) {
                Ok(watch) => {
                    let both = joined(interests.remove(&watch), interest);
                    interests.insert(watch, both);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => failed = Some((directory.clone(), error)),
            }
        }
        let fresh = interests
            .keys()
            .any(|watch| !self.interests.contains_key(watch));
        for old in self
            .interests
            .keys()
            .filter(|old| !interests.contains_key(old))
        {
            // It fails for directories that are gone, whose watch went with them.
            let _ = self.watches.remove(old.clone());
        }
        self.interests = interests;
        (fresh, failed)
    }

    /// What an event means for the next scan, if anything.
    pub(super) fn hint(&self, event: &EventOwned) -> Option<ScanHint> {
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            return Some(ScanHint::Anything);
        }
        match (self.interests.get(&event.wd)?, &event.name) {
            (Interest::Steps(names) | Interest::Names(names), Some(name)) => {
                names.contains(name).then_some(ScanHint::Anything)
            }
            (Interest::Everything, Some(name)) => {
                let leaves = EventMask::DELETE | EventMask::MOVED_FROM;
                let name = name.clone();
                Some(if event.mask.intersects(leaves) {
                    ScanHint::Removed(name)
                } else {
                    ScanHint::Entry(name)
                })
            }
            (_, None) => Some(ScanHint::Anything),
        }
    }
}

fn joined(one: Option<Interest>, other: &Interest) -> Interest {
    use Interest::{Names, Steps};
    let all = |a: HashSet<OsString>, b: &HashSet<OsString>| a.union(b).cloned().collect();
    match (one, other) {
        (None, other) => other.clone(),
        (Some(Steps(names)), Steps(more)) => Steps(all(names, more)),
        (Some(Steps(names) | Names(names)), Steps(more) | Names(more)) => Names(all(names, more)),
        _ => Interest::Everything,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn names(wanted: &DirectoryInterests, directory: &Path) -> Vec<String> {
        match wanted.get(directory) {
            Some(Interest::Steps(names) | Interest::Names(names)) => {
                let mut names: Vec<_> = names.iter().map(|n| n.to_string_lossy().into()).collect();
                names.sort();
                names
            }
            Some(Interest::Everything) => vec!["*".into()],
            None => vec![],
        }
    }

    #[test]
    fn a_missing_path_is_awaited_in_its_nearest_parent() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        let wanted = wanted_for_root(&real.join("a/b/c"));
        assert_eq!(names(&wanted, &real), ["a"]);
        assert_eq!(wanted.len(), 1);
        std::fs::create_dir(real.join("a")).unwrap();
        let wanted = wanted_for_root(&real.join("a/b/c"));
        assert_eq!(names(&wanted, &real.join("a")), ["b"]);
        std::fs::create_dir_all(real.join("a/b/c")).unwrap();
        let wanted = wanted_for_root(&real.join("a/b/c"));
        assert_eq!(names(&wanted, &real.join("a/b")), ["c"]);
        assert_eq!(names(&wanted, &real.join("a/b/c")), ["*"]);
    }

    #[test]
    fn every_link_on_the_way_is_watched() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(real.join("map/..v1")).unwrap();
        std::fs::write(real.join("map/..v1/pod.yaml"), "x").unwrap();
        symlink("..v1", real.join("map/..data")).unwrap();
        symlink("..data/pod.yaml", real.join("map/pod.yaml")).unwrap();
        std::fs::create_dir(real.join("manifests")).unwrap();
        let link = real.join("manifests/pod.yaml");
        symlink("../map/pod.yaml", &link).unwrap();
        let mut wanted = DirectoryInterests::new();
        want_path(&link, &mut wanted);
        assert_eq!(names(&wanted, &real.join("manifests")), ["pod.yaml"]);
        assert_eq!(names(&wanted, &real.join("map")), ["..data", "pod.yaml"]);
        assert_eq!(names(&wanted, &real.join("map/..v1")), ["pod.yaml"]);
    }

    #[test]
    fn links_in_a_circle_end() {
        let dir = tempfile::tempdir().unwrap();
        symlink("b", dir.path().join("a")).unwrap();
        symlink("a", dir.path().join("b")).unwrap();
        let mut wanted = DirectoryInterests::new();
        want_path(&dir.path().join("a"), &mut wanted);
        assert!(!wanted.is_empty());
    }
}
