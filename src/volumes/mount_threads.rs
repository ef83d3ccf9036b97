//! Threads for work on paths of the node. A file system that hangs keeps the threads that work on it, for ever, so each
//! mount has a few threads of its own, and each volume one: work on other mounts never waits for it, and one file that
//! hangs does not keep all threads of its mount.

use super::{Mounter, VolumeError};
use crate::base::{KeyedLock, spawn_blocking};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Maximum number of threads that work on paths of one mount.
const MAX_PER_MOUNT: usize = 4;
/// Maximum number of threads for all mounts: a quarter of those for blocking work.
const MAX_THREADS: usize = 128;
/// Maximum number of symbolic links in a path, as the kernel has it.
const MAX_LINKS: usize = 40;

/// The threads of each mount.
pub(super) struct MountThreads {
    mounter: Arc<dyn Mounter>,
    /// By the path of the volume.
    volumes: KeyedLock<PathBuf>,
    threads: Arc<Semaphore>,
    /// By mount point.
    of_mounts: Mutex<BTreeMap<PathBuf, Arc<Semaphore>>>,
}

impl MountThreads {
    pub(super) fn new(mounter: Arc<dyn Mounter>) -> Self {
        Self {
            mounter,
            volumes: KeyedLock::default(),
            threads: Arc::new(Semaphore::new(MAX_THREADS)),
            of_mounts: Mutex::default(),
        }
    }

    /// Runs blocking work on a volume, by its absolute path, or on these paths in it. While other work on the volume is in
    /// progress, or a mount that the paths are on has no free thread, this waits without a thread.
    ///
    /// # Errors
    /// [`VolumeError::Cancelled`] if `ended` fires while it waits.
    pub(super) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        volume: PathBuf,
        sub_paths: &[String],
        ended: &CancellationToken,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, VolumeError> {
        let lock = ended.run_until_cancelled(self.volumes.lock(&volume)).await;
        let lock = lock.ok_or(VolumeError::Cancelled)?;
        let mut paths: Vec<_> = sub_paths.iter().map(|path| volume.join(path)).collect();
        if paths.is_empty() {
            paths.push(volume);
        }
        let work = move || {
            let _lock = lock;
            work()
        };
        let mut job = (paths, work);
        loop {
            let thread = self.threads.clone().acquire_owned();
            let thread = ended.run_until_cancelled(thread).await;
            let thread = thread.ok_or(VolumeError::Cancelled)?;
            let threads = self.clone();
            let attempt = move || {
                let (paths, work) = job;
                match threads.enter(&paths) {
                    Ok(entered) => {
                        let _held = (thread, entered);
                        Ok(work())
                    }
                    Err(busy) => Err((busy, (paths, work))),
                }
            };
            let busy;
            (busy, job) = match spawn_blocking(attempt).await? {
                Ok(done) => return Ok(done),
                Err(again) => again,
            };
            let free = ended.run_until_cancelled(busy.acquire()).await;
            drop(free.ok_or(VolumeError::Cancelled)?);
        }
    }

    /// Finds the mounts that the paths are on, and reserves a thread of each. Before every step that may hang, a thread of
    /// the mount is reserved on which it would. If that has none, returns what to wait for. Blocking.
    fn enter(&self, paths: &[PathBuf]) -> Result<Vec<OwnedSemaphorePermit>, Arc<Semaphore>> {
        let mounts = self.mounter.list().unwrap_or_default();
        let points = mounts.into_iter().map(|mount| mount.mount_point).collect();
        let mut entered = BTreeMap::new();
        for path in paths {
            self.follow(path, &points, &mut entered)?;
        }
        Ok(entered.into_values().collect())
    }

    /// Follows a path as the kernel does, as far as it exists, and adds the mount on which it ends.
    fn follow(
        &self,
        path: &Path,
        points: &HashSet<PathBuf>,
        entered: &mut BTreeMap<PathBuf, OwnedSemaphorePermit>,
    ) -> Result<(), Arc<Semaphore>> {
        let mut left: VecDeque<OsString> = names(path).collect();
        let mut at = PathBuf::from("/");
        let mut passing: Option<(PathBuf, OwnedSemaphorePermit)> = None;
        let mut links = 0;
        while let Some(name) = left.pop_front() {
            if name == ".." {
                at.pop();
                continue;
            }
            let next = at.join(&name);
            let mount = mount_of(&next, points);
            let is_passing = passing.as_ref().is_some_and(|(point, _)| point == mount);
            if !is_passing && !entered.contains_key(mount) {
                passing = Some((mount.to_owned(), self.reserve(mount)?));
            }
            // The work itself finds what is missing.
            let Ok(found) = self.mounter.symlink_metadata(&next) else {
                break;
            };
            if !found.is_symlink() {
                at = next;
                continue;
            }
            let Ok(target) = fs::read_link(&next) else {
                break;
            };
            links += 1;
            if links > MAX_LINKS {
                break;
            }
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            for name in names(&target).rev() {
                left.push_front(name);
            }
        }
        entered.extend(passing);
        Ok(())
    }

    fn reserve(&self, mount: &Path) -> Result<OwnedSemaphorePermit, Arc<Semaphore>> {
        let of_mount = {
            let mut of_mounts = self.of_mounts.lock();
            // Removes those that are neither used nor waited for.
            of_mounts.retain(|_, threads| Arc::strong_count(threads) > 1);
            let threads = of_mounts.entry(mount.to_owned());
            let new = || Arc::new(Semaphore::new(MAX_PER_MOUNT));
            threads.or_insert_with(new).clone()
        };
        let reserved = of_mount.clone().try_acquire_owned();
        reserved.map_err(|_| of_mount)
    }
}

/// The names in a path, `..` included.
fn names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(_) | Component::ParentDir => Some(component.as_os_str().to_owned()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    })
}

/// The mount point that a path without links is on.
fn mount_of<'p>(path: &'p Path, points: &HashSet<PathBuf>) -> &'p Path {
    let mut above = path.ancestors();
    let point = above.find(|above| points.contains(*above));
    point.unwrap_or(Path::new("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_on_the_mount_nearest_above_it() {
        let points = ["/", "/mnt", "/mnt/nfs/deep"].map(PathBuf::from).into();
        for (path, point) in [
            ("/", "/"),
            ("/etc", "/"),
            ("/mnt", "/mnt"),
            ("/mnt/nfs", "/mnt"),
            ("/mnt/nfs/deep/er", "/mnt/nfs/deep"),
            ("/mntx", "/"),
        ] {
            assert_eq!(mount_of(Path::new(path), &points), Path::new(point), "{path}");
        }
        assert_eq!(mount_of(Path::new("/etc"), &HashSet::new()), Path::new("/"));
    }
}
