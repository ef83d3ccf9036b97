//! Walks the cgroup tree. Blocking.

use super::CgroupFs;
use rustix::fs::{Dir, FileType, Mode, OFlags};
use std::path::Path;

/// Maximum size of paths that wait to be visited, in bytes: with names of maximum length, 50,000 paths would be 200
/// MB.
const MAX_WAITING: usize = 16 * 1024 * 1024;

/// How to continue after a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descend {
    /// Visit its descendants.
    Yes,
    /// Skip its descendants.
    No,
    /// Stop the walk.
    Stop,
}

impl CgroupFs {
    /// Visits every cgroup with its name and path (`/a/b`), breadth-first, at most `limit` of them, fewer if paths
    /// are very long; returns their number. Cgroups removed during the walk are skipped.
    pub fn walk(&self, limit: usize, mut visit: impl FnMut(&str, &str) -> Descend) -> usize {
        let top = self.tree();
        let mut waiting = vec![String::new()];
        let (mut seen, mut bytes) = (0, 0);
        while let Some(parent) = waiting.pop() {
            bytes -= parent.len();
            let mut again = children(&top, &parent, |name| {
                seen += 1;
                let path = format!("{parent}/{name}");
                match visit(name, &path) {
                    _ if seen >= limit => false,
                    Descend::Stop => false,
                    Descend::No => true,
                    Descend::Yes => {
                        bytes += path.len();
                        waiting.push(path);
                        bytes <= MAX_WAITING
                    }
                }
            });
            again &= seen < limit;
            if !again {
                break;
            }
        }
        seen
    }
}

/// Calls `found` for each subdirectory; false if a call returned [`Descend::Stop`].
fn children(top: &Path, path: &str, mut found: impl FnMut(&str) -> bool) -> bool {
    let directory = top.join(path.trim_start_matches('/'));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(open) = rustix::fs::open(directory, flags, Mode::empty()) else {
        return true;
    };
    let Ok(entries) = Dir::new(open) else {
        return true;
    };
    for entry in entries {
        let Ok(entry) = entry else { break };
        if entry.file_type() != FileType::Directory {
            continue;
        }
        let Ok(name) = entry.file_name().to_str() else {
            continue;
        };
        if name != "." && name != ".." && !found(name) {
            return false;
        }
    }
    true
}
