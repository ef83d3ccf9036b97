//! Kills all processes in a cgroup. Blocking.

use super::path::CgroupPath;
use super::writer::{Cgroups, processes, tree};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// The file that kills all processes of a v2 cgroup; since Linux 5.14.
const KILL: &str = "cgroup.kill";
/// Maximum number of passes while new processes are found.
const PASSES: u32 = 10;

/// The file that freezes a cgroup.
struct Freezer {
    file: PathBuf,
    freeze: &'static str,
    thaw: &'static str,
}

impl Cgroups {
    /// Kills all processes in a cgroup and below it; returns their number.
    ///
    /// # Errors
    /// The processes cannot be listed, or a signal is not permitted.
    pub fn kill(&self, path: &CgroupPath) -> io::Result<usize> {
        self.own(path)?;
        let found = self.processes(path)?;
        if found.contains(&std::process::id()) {
            // The cgroup contains this process, which must be neither killed nor frozen.
            return self.kill_each(path);
        }
        if self.kill_at_once(path) {
            return Ok(found.len());
        }
        // Frozen processes cannot fork.
        let freezer = self.freezer(path);
        if let Some(freezer) = &freezer {
            let _ = write(&freezer.file, freezer.freeze);
        }
        let killed = self.kill_each(path);
        if let Some(freezer) = &freezer {
            let _ = write(&freezer.file, freezer.thaw);
        }
        killed
    }

    /// Kills with `cgroup.kill`; false if the kernel does not support it.
    fn kill_at_once(&self, path: &CgroupPath) -> bool {
        let points = self.hierarchies.points();
        let mut files = points.iter().map(|point| path.under(point).join(KILL));
        self.is_v2() && files.all(|file| write(&file, "1").is_ok())
    }

    fn freezer(&self, path: &CgroupPath) -> Option<Freezer> {
        if self.is_v2() {
            let point = self.hierarchies.points().first().copied()?;
            return Some(Freezer {
                file: path.under(point).join("cgroup.freeze"),
                freeze: "1",
                thaw: "0",
            });
        }
        let point = self.hierarchies.of("freezer")?;
        Some(Freezer {
            file: path.under(point).join("freezer.state"),
            freeze: "FROZEN",
            thaw: "THAWED",
        })
    }

    /// Kills processes one by one, until no new ones are found.
    fn kill_each(&self, path: &CgroupPath) -> io::Result<usize> {
        let mut killed = BTreeSet::new();
        for _ in 0..PASSES {
            let before = killed.len();
            for point in self.hierarchies.points() {
                for directory in tree(&path.under(point))? {
                    for process in processes(&directory)? {
                        if !killed.contains(&process) && kill_in(process, &directory)? {
                            killed.insert(process);
                        }
                    }
                }
            }
            if killed.len() == before {
                break;
            }
        }
        Ok(killed.len())
    }
}

fn write(file: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(file)?;
    file.write_all(text.as_bytes())
}

/// Kills a process that is in the cgroup, and never another one that reused its PID; false if it has ended.
fn kill_in(process: u32, directory: &Path) -> io::Result<bool> {
    let itself = process == std::process::id();
    let Some(id) = i32::try_from(process)
        .ok()
        .and_then(rustix::process::Pid::from_raw)
        .filter(|id| !id.is_init() && !itself)
    else {
        return Ok(false);
    };
    let handle = match pidfd_open(id, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Ok(false),
        handle => handle?,
    };
    if !processes(directory)?.contains(&process) {
        return Ok(false);
    }
    match pidfd_send_signal(&handle, Signal::KILL) {
        Ok(()) => Ok(true),
        Err(Errno::SRCH) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
