//! Where cgroups are.

use std::{
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

/// `f_type` of both versions' file systems.
const MAGIC: [u64; 2] = [0x0027_e0eb, 0x6367_7270];

/// The hierarchies of version 1 by which cAdvisor in the kubelet knows a cgroup.
const CADVISOR_HIERARCHIES: [&str; 6] = ["cpu", "cpuacct", "memory", "blkio", "pids", "devices"];

/// Where cgroups are.
#[derive(Clone, Debug)]
pub struct CgroupFs {
    root: PathBuf,
    v2: bool,
    genuine: bool,
}

impl CgroupFs {
    /// The hierarchies below `root` (`/sys/fs/cgroup`); whether they are one of version 2.
    pub fn new(root: impl Into<PathBuf>, v2: bool) -> Self {
        let root = root.into();
        let mut fs = Self {
            root,
            v2,
            genuine: false,
        };
        let kind = rustix::fs::statfs(fs.tree()).map(|found| u64::try_from(found.f_type));
        fs.genuine = matches!(kind, Ok(Ok(kind)) if MAGIC.contains(&kind));
        fs
    }

    /// Whether an open file of a cgroup that has gone cannot be read any more.
    pub(super) fn detects_removal(&self) -> bool {
        self.genuine
    }

    /// Whether this is version 2.
    pub fn is_v2(&self) -> bool {
        self.v2
    }

    /// A hierarchy that has every cgroup with memory of its own.
    pub(super) fn tree(&self) -> PathBuf {
        if self.v2 {
            self.root.clone()
        } else {
            self.root.join("memory")
        }
    }

    /// When a cgroup was made, nanoseconds since the epoch: in any hierarchy the oldest time of its directory, which
    /// changes with the cgroups below it, and of a file that hardly ever does, as cAdvisor has it. `None` for one that is
    /// not there.
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
