//! Which directories to watch with inotify, so that any change of a manifest leads to an event. Blocking.
//!
//! An event only triggers a scan, so a superfluous watch costs one scan, and the re-list finds what a missing watch
//! does not report.

use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path, PathBuf};

/// The limit of symbolic links followed for one path; the kernel's.
const MAX_LINKS: usize = 40;

/// Events of one inotify instance. The buffer is for one read; further events stay in the kernel's queue.
pub(super) type Events = EventStream<[u8; 4096]>;

/// Which events of a directory cause a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Interest {
    /// All events.
    Everything,
    /// Events about the creation, removal or renaming of entries with these names, or about the directory itself.
    Existence(HashSet<OsString>),
    /// The same, and writes to these entries, because one of them may be a manifest.
    Content(HashSet<OsString>),
}

impl Interest {
    /// The inotify mask. Writes are not watched in directories that only lead to the manifests, such as `/etc`, where
    /// other programs write.
    fn mask(&self) -> WatchMask {
        let existence = WatchMask::CREATE
            | WatchMask::MOVE
            | WatchMask::DELETE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR;
        match self {
            Self::Existence(_) => existence | WatchMask::ATTRIB,
            _ => existence | WatchMask::ATTRIB | WatchMask::MODIFY | WatchMask::CLOSE_WRITE,
        }
    }
}

pub(super) type DirectoryInterests = HashMap<PathBuf, Interest>;

/// The directories to watch for a manifest path: the directory itself, and every parent with a symbolic link or a
/// missing component of the path.
pub(super) fn interests_for_root(root: &Path) -> DirectoryInterests {
    let mut wanted = DirectoryInterests::new();
    add_path_interests(root, &mut wanted);
    if root.is_dir() {
        wanted.insert(root.to_path_buf(), Interest::Everything);
    }
    wanted
}

/// Adds the directories to watch for `path`: its parent, the parent of each symlink on the way, and the parent of the
/// first missing component.
pub(super) fn add_path_interests(path: &Path, wanted: &mut DirectoryInterests) {
    let Ok(path) = std::path::absolute(path) else {
        return;
    };
    let mut at = PathBuf::from("/");
    let mut rest: VecDeque<OsString> = components(&path);
    let mut links = 0;
    while let Some(component) = rest.pop_front() {
        if component == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&component);
        let meta = next.symlink_metadata();
        let is_link = meta.as_ref().is_ok_and(std::fs::Metadata::is_symlink);
        if is_link || meta.is_err() || rest.is_empty() {
            let may_be_manifest = !is_link && !meta.as_ref().is_ok_and(std::fs::Metadata::is_dir);
            add_interest(wanted, &at, &component, may_be_manifest);
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
        for component in components(&target).into_iter().rev() {
            rest.push_front(component);
        }
    }
}

fn components(path: &Path) -> VecDeque<OsString> {
    let component = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_os_string()),
        Component::ParentDir => Some(OsString::from("..")),
        _ => None,
    };
    path.components().filter_map(component).collect()
}

fn add_interest(
    wanted: &mut DirectoryInterests,
    directory: &Path,
    name: &OsStr,
    may_be_manifest: bool,
) {
    let names = HashSet::from([name.to_os_string()]);
    let more = if may_be_manifest { Interest::Content(names) } else { Interest::Existence(names) };
    let both = merged(wanted.remove(directory), &more);
    wanted.insert(directory.to_path_buf(), both);
}

/// How much of the manifest path a scan reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScanScope {
    /// The list of the directory and every file in it.
    Everything,
    /// Only the entries of these names.
    Entries(BTreeSet<OsString>),
}

impl ScanScope {
    /// The scope of a scan of these entries and of those that the events name.
    pub(super) fn of(mut names: BTreeSet<OsString>, changes: &[ManifestChange]) -> Self {
        for change in changes {
            match change {
                ManifestChange::Entry(name) | ManifestChange::Removed(name) => {
                    names.insert(name.clone())
                }
                ManifestChange::Anything => return Self::Everything,
            };
        }
        Self::Entries(names)
    }
}

/// What an event means for the next scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ManifestChange {
    /// This entry of the manifest directory changed.
    Entry(OsString),
    /// This entry was removed from the manifest directory, or renamed.
    Removed(OsString),
    /// Any file may have changed.
    Anything,
}

impl ManifestChange {
    /// The removed entry, if the change is about one.
    pub(super) fn removed(self) -> Option<OsString> {
        match self {
            Self::Removed(name) => Some(name),
            Self::Entry(_) | Self::Anything => None,
        }
    }
}

/// The inotify watches of a manifest path.
pub(super) struct ManifestWatcher {
    watches: Watches,
    interests: HashMap<WatchDescriptor, Interest>,
}

impl ManifestWatcher {
    /// A watcher without watches, and the stream of its events.
    pub(super) fn new() -> io::Result<(Self, Events)> {
        let events = Inotify::init()?.into_event_stream([0; 4096])?;
        let watches = events.watches();
        let interests = HashMap::new();
        Ok((Self { watches, interests }, events))
    }

    /// Watches exactly these directories. Returns whether a watch is new: then something may have changed before it
    /// existed. Directories that cannot be watched are left to the re-list; the last error is returned, too.
    pub(super) fn watch(
        &mut self,
        wanted: &DirectoryInterests,
    ) -> (bool, Option<(PathBuf, io::Error)>) {
        let mut interests: HashMap<WatchDescriptor, Interest> = HashMap::new();
        let mut failed = None;
        for (directory, interest) in wanted {
            // Two paths may resolve to one directory: MASK_ADD keeps the events of both.
            let mask = interest.mask() | WatchMask::MASK_ADD;
            match self.watches.add(directory, mask) {
                Ok(watch) => {
                    let both = merged(interests.remove(&watch), interest);
                    interests.insert(watch, both);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => failed = Some((directory.clone(), error)),
            }
        }
        let has_new = interests.keys().any(|watch| !self.interests.contains_key(watch));
        for old in self.interests.keys().filter(|old| !interests.contains_key(old)) {
            // Fails for deleted directories, whose watch the kernel has removed.
            let _ = self.watches.remove(old.clone());
        }
        self.interests = interests;
        (has_new, failed)
    }

    /// What an event means for the next scan, if anything.
    pub(super) fn change(&self, event: &EventOwned) -> Option<ManifestChange> {
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            return Some(ManifestChange::Anything);
        }
        match (self.interests.get(&event.wd)?, &event.name) {
            (Interest::Existence(names) | Interest::Content(names), Some(name)) => {
                names.contains(name).then_some(ManifestChange::Anything)
            }
            (Interest::Everything, Some(name)) => {
                let removal = EventMask::DELETE | EventMask::MOVED_FROM;
                let name = name.clone();
                Some(if event.mask.intersects(removal) {
                    ManifestChange::Removed(name)
                } else {
                    ManifestChange::Entry(name)
                })
            }
            (_, None) => Some(ManifestChange::Anything),
        }
    }
}

fn merged(one: Option<Interest>, other: &Interest) -> Interest {
    use Interest::{Content, Existence};
    let all = |a: HashSet<OsString>, b: &HashSet<OsString>| a.union(b).cloned().collect();
    match (one, other) {
        (None, other) => other.clone(),
        (Some(Existence(names)), Existence(more)) => Existence(all(names, more)),
        (Some(Existence(names) | Content(names)), Existence(more) | Content(more)) => {
            Content(all(names, more))
        }
        _ => Interest::Everything,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn names(wanted: &DirectoryInterests, directory: &Path) -> Vec<String> {
        match wanted.get(directory) {
            Some(Interest::Existence(names) | Interest::Content(names)) => {
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
        let wanted = interests_for_root(&real.join("a/b/c"));
        assert_eq!(names(&wanted, &real), ["a"]);
        assert_eq!(wanted.len(), 1);
        std::fs::create_dir(real.join("a")).unwrap();
        let wanted = interests_for_root(&real.join("a/b/c"));
        assert_eq!(names(&wanted, &real.join("a")), ["b"]);
        std::fs::create_dir_all(real.join("a/b/c")).unwrap();
        let wanted = interests_for_root(&real.join("a/b/c"));
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
        add_path_interests(&link, &mut wanted);
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
        add_path_interests(&dir.path().join("a"), &mut wanted);
        assert!(!wanted.is_empty());
    }
}
