//! Looking through the tree of cgroups. Blocking.

use super::CgroupFs;
use rustix::fs::{Dir, FileType, Mode, OFlags};
use std::path::Path;

/// Paths that wait to be visited, in bytes: with the longest names 50,000 of them would be 200 MB.
const MAX_WAITING: usize = 16 * 1024 * 1024;

/// What to do with a cgroup that was come upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descend {
    /// Visit those below it.
    Yes,
    /// Leave out what is below it.
    No,
    /// Everything was found.
    Stop,
}

impl CgroupFs {
    /// Visits every cgroup by its own name and its path (`/a/b`), those of one parent before what is below
    /// them, at most `limit` of them and fewer where paths are very long; returns how many. One that
    /// disappears meanwhile is left out.
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

/// Calls for each directory in one; false when a call returned the end.
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
