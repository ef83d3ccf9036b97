//! The locations of cgroups.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// `f_type` of the cgroup v1 and v2 file systems.
const MAGIC: [u64; 2] = [0x0027_e0eb, 0x6367_7270];

/// The v1 hierarchies that the kubelet's cAdvisor uses.
const CADVISOR_HIERARCHIES: [&str; 6] = ["cpu", "cpuacct", "memory", "blkio", "pids", "devices"];

/// The mounted cgroup hierarchies.
#[derive(Clone, Debug)]
pub struct CgroupFs {
    root: PathBuf,
    v2: bool,
    genuine: bool,
}

impl CgroupFs {
    /// The hierarchies below `root` (`/sys/fs/cgroup`), of cgroup v2 or v1.
    pub fn new(root: impl Into<PathBuf>, v2: bool) -> Self {
        let root = root.into();
        let mut fs = Self { root, v2, genuine: false };
        let kind = rustix::fs::statfs(fs.tree()).map(|found| u64::try_from(found.f_type));
        fs.genuine = matches!(kind, Ok(Ok(kind)) if MAGIC.contains(&kind));
        fs
    }

    /// Whether reading an open file fails after its cgroup was removed.
    pub(super) fn detects_removal(&self) -> bool {
        self.genuine
    }

    /// Whether this is version 2.
    pub fn is_v2(&self) -> bool {
        self.v2
    }

    /// A hierarchy that contains every cgroup with memory accounting.
    pub(super) fn tree(&self) -> PathBuf {
        if self.v2 { self.root.clone() } else { self.root.join("memory") }
    }

    /// The creation time of a cgroup in nanoseconds since the epoch, as cAdvisor determines it: the earliest, over
    /// all hierarchies, of the modification times of its directory, which changes with its children, and of a file
    /// that rarely changes. `None` if it does not exist.
    pub fn created_at(&self, path: &str) -> Option<i64> {
        let (hierarchies, file): (&[&str], &str) = if self.v2 {
            (&[""], "cgroup.events")
        } else {
            (&CADVISOR_HIERARCHIES, "cgroup.clone_children")
        };
        let at = |path: &Path| {
            let modified = std::fs::metadata(path).ok()?.modified().ok()?;
            let since = modified.duration_since(UNIX_EPOCH).ok()?;
            i64::try_from(since.as_nanos()).ok()
        };
        let times = hierarchies.iter().flat_map(|controller| {
            let directory = self.directory(controller, path);
            [at(&directory.join(file)), at(&directory)]
        });
        times.flatten().min()
    }

    /// The directory of a cgroup in the hierarchy of a controller.
    pub(super) fn directory(&self, controller: &str, path: &str) -> PathBuf {
        let mut full = self.root.clone();
        if !self.v2 {
            full.push(controller);
        }
        full.push(path.trim_start_matches('/'));
        full
    }
}
