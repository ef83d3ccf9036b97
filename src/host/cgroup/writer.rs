//! Creates, limits and removes cgroups. Blocking.

use super::hierarchies::Hierarchies;
use super::path::CgroupPath;
use super::settings::{CgroupSettings, OnRefusal};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) const PROCS: &str = "cgroup.procs";
const CONTROLLERS: &str = "cgroup.controllers";
const SUBTREE_CONTROL: &str = "cgroup.subtree_control";
/// How many times removal waits for killed processes; the delay doubles each time.
const TRIES: u32 = 10;
const FIRST_WAIT: Duration = Duration::from_millis(1);

/// The cgroups below a root cgroup, in every hierarchy. Nothing outside of it is created, removed or killed.
#[derive(Clone, Debug)]
pub struct Cgroups {
    pub(super) hierarchies: Hierarchies,
    root: CgroupPath,
}

impl Cgroups {
    /// The cgroups of this machine below `root`.
    ///
    /// # Errors
    /// A required controller is not mounted.
    pub fn below(root: CgroupPath, v2: bool) -> io::Result<Self> {
        Ok(Self { hierarchies: Hierarchies::read(v2)?, root })
    }

    /// Uses plain directories instead of cgroup hierarchies, for tests.
    pub fn in_directory(directory: &Path, root: CgroupPath, v2: bool) -> Self {
        Self { hierarchies: Hierarchies::plain(directory, v2), root }
    }

    /// Whether this is cgroup v2.
    pub fn is_v2(&self) -> bool {
        self.hierarchies.v2
    }

    /// Whether the controller exists.
    pub fn has(&self, controller: &str) -> bool {
        self.hierarchies.has(controller)
    }

    /// Whether the cgroup exists in any hierarchy.
    pub fn exists(&self, path: &CgroupPath) -> bool {
        let mut points = self.hierarchies.points().into_iter();
        points.any(|point| path.under(point).is_dir())
    }

    /// Checks that a cgroup exists in all required hierarchies.
    ///
    /// # Errors
    /// It is missing; the text says where.
    pub fn validate(&self, path: &CgroupPath) -> io::Result<()> {
        let needed = self.hierarchies.needed();
        if self.is_v2() && self.hierarchies.genuine {
            let Some(point) = self.hierarchies.points().first().copied() else {
                return Err(io::Error::other("there are no controllers"));
            };
            let file = path.under(point).join(CONTROLLERS);
            let text = fs::read_to_string(&file)
                .map_err(|error| at(error, "could not read controllers", &file))?;
            let there: Vec<&str> = text.split_whitespace().collect();
            let missing: Vec<_> =
                needed.map(|(name, _)| name).filter(|name| !there.contains(name)).collect();
            return missing_if(path, "controllers", &missing);
        }
        let paths = needed.map(|(_, point)| path.under(point));
        let missing = paths.filter(|path| !path.is_dir());
        let missing: BTreeSet<String> = missing.map(|path| path.display().to_string()).collect();
        let missing: Vec<&str> = missing.iter().map(String::as_str).collect();
        missing_if(path, "paths", &missing)
    }

    /// Creates a cgroup and its missing ancestors in every hierarchy; existing ones are not changed.
    ///
    /// # Errors
    /// It cannot be created in a required hierarchy.
    pub fn create(&self, path: &CgroupPath) -> io::Result<()> {
        self.own(path)?;
        let needed: Vec<&Path> = self.hierarchies.needed().map(|(_, point)| point).collect();
        for point in self.hierarchies.points() {
            match self.create_in(point, path) {
                Err(error) if needed.contains(&point) => return Err(error),
                // An error in an optional hierarchy is ignored.
                Err(_) | Ok(()) => {}
            }
        }
        Ok(())
    }

    fn create_in(&self, point: &Path, path: &CgroupPath) -> io::Result<()> {
        let is_cpuset = self.hierarchies.of("cpuset") == Some(point);
        let steps = path.steps_from(&self.root);
        // If it can be created, its ancestors exist and were set up; only its parent may not enable controllers yet.
        let set_up = match fs::create_dir(path.under(point)) {
            Ok(()) => steps.len().saturating_sub(2),
            Err(_) => 0,
        };
        for step in steps.into_iter().skip(set_up) {
            let directory = step.under(point);
            if step != self.root {
                make(&directory)?;
            }
            if !self.hierarchies.genuine {
                continue;
            }
            if self.is_v2() {
                // Its own controllers were enabled by its parent in the previous step.
                if step != *path {
                    hand_on(&directory);
                }
            } else if is_cpuset && step != CgroupPath::default() {
                inherit_cpuset(&directory)?;
            }
        }
        Ok(())
    }

    /// Sets the limits of an existing cgroup. All values are tried, even if one fails.
    ///
    /// # Errors
    /// The first error: the kernel rejects a value, or a controller is missing.
    pub fn set(&self, path: &CgroupPath, settings: &CgroupSettings) -> io::Result<()> {
        let mut failed = None;
        let mut again = Vec::new();
        for write in settings.writes(self.is_v2()) {
            let Some(point) = self.hierarchies.of(write.controller) else {
                let text = format!("cannot set {}: no such controller", write.file);
                failed.get_or_insert(io::Error::other(text));
                continue;
            };
            let file = path.under(point).join(&write.file);
            match self.write(&file, &write.value) {
                Ok(()) => {}
                Err(error) if write.refused == OnRefusal::Again && is(&error, Errno::INVAL) => {
                    again.push((file, write.value));
                }
                Err(error)
                    if write.refused == OnRefusal::UnlessMissing
                        && error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    failed.get_or_insert(refusal(error, &file, &write.value));
                }
            }
        }
        for (file, value) in again {
            if let Err(error) = self.write(&file, &value) {
                failed.get_or_insert(refusal(error, &file, &value));
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn write(&self, file: &Path, value: &str) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true);
        if !self.hierarchies.genuine {
            options.create(true).truncate(true);
        }
        options.open(file)?.write_all(value.as_bytes())
    }

    /// The memory usage of a cgroup in bytes.
    ///
    /// # Errors
    /// The cgroup does not exist, or has no memory controller.
    pub fn memory_usage(&self, path: &CgroupPath) -> io::Result<u64> {
        let point = self.hierarchies.of("memory");
        let point = point.ok_or_else(|| io::Error::other("there is no memory controller"))?;
        let file = path.under(point).join(if self.is_v2() {
            "memory.current"
        } else {
            "memory.usage_in_bytes"
        });
        let text = fs::read_to_string(&file).map_err(|error| at(error, "cannot read", &file))?;
        text.trim().parse().map_err(io::Error::other)
    }

    /// The names of a cgroup's children in all hierarchies.
    ///
    /// # Errors
    /// An existing directory cannot be read.
    pub fn children(&self, path: &CgroupPath) -> io::Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for point in self.hierarchies.points() {
            for directory in directories(&path.under(point))? {
                let name = directory.file_name().and_then(|name| name.to_str());
                names.extend(name.map(str::to_owned));
            }
        }
        Ok(names)
    }

    /// The PIDs in a cgroup and below it that are visible in this PID namespace.
    ///
    /// # Errors
    /// An existing file cannot be read.
    pub fn processes(&self, path: &CgroupPath) -> io::Result<BTreeSet<u32>> {
        let mut found = BTreeSet::new();
        for point in self.hierarchies.points() {
            for directory in tree(&path.under(point))? {
                found.extend(processes(&directory)?);
            }
        }
        Ok(found)
    }

    /// Removes a cgroup and its descendants from every hierarchy; a missing one is no error.
    ///
    /// # Errors
    /// Processes are left in it; the caller has to retry.
    pub fn remove(&self, path: &CgroupPath) -> io::Result<()> {
        self.own(path)?;
        let mut failed = None;
        for point in self.hierarchies.points() {
            if let Err(error) = self.remove_in(&path.under(point)) {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn remove_in(&self, directory: &Path) -> io::Result<()> {
        for directory in tree(directory)?.into_iter().rev() {
            if !self.hierarchies.genuine {
                for entry in fs::read_dir(&directory)? {
                    fs::remove_file(entry?.path())?;
                }
            }
            let removed = remove_waiting(&directory);
            removed.map_err(|error| at(error, "cannot remove", &directory))?;
        }
        Ok(())
    }

    pub(super) fn own(&self, path: &CgroupPath) -> io::Result<()> {
        if *path != self.root && path.is_within(&self.root) {
            return Ok(());
        }
        let text = format!("{path} is not below the cgroup root {}", self.root);
        Err(io::Error::new(io::ErrorKind::InvalidInput, text))
    }
}

fn missing_if(path: &CgroupPath, what: &str, missing: &[&str]) -> io::Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let text = format!("cgroup {path} has some missing {what}: {}", missing.join(", "));
    Err(io::Error::new(io::ErrorKind::NotFound, text))
}

pub(super) fn at(error: io::Error, what: &str, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
}

pub(super) fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

/// The error of a value that the kernel rejected.
fn refusal(error: io::Error, file: &Path, value: &str) -> io::Error {
    let busy = is(&error, Errno::BUSY);
    let usage = busy.then(|| fs::read_to_string(file.with_file_name("memory.usage_in_bytes")));
    match usage {
        Some(Ok(usage)) => {
            let text =
                format!("unable to set memory limit to {value} (current usage: {})", usage.trim());
            at(io::Error::new(error.kind(), text), "cannot write", file)
        }
        _ => at(error, &format!("cannot write {value:?} to"), file),
    }
}

fn make(directory: &Path) -> io::Result<()> {
    let made = if directory.is_dir() { Ok(()) } else { fs::create_dir(directory) };
    match made {
        Err(_) if directory.is_dir() => Ok(()),
        made => made.map_err(|error| at(error, "cannot create", directory)),
    }
}

/// Enables all controllers for the children of a v2 cgroup. A controller that the kernel rejects is later reported by
/// [`Cgroups::validate`] or [`Cgroups::set`].
fn hand_on(directory: &Path) {
    let read = |name| fs::read_to_string(directory.join(name)).unwrap_or_default();
    let (available, given) = (read(CONTROLLERS), read(SUBTREE_CONTROL));
    let given: Vec<&str> = given.split_whitespace().collect();
    for controller in available.split_whitespace() {
        if !given.contains(&controller) {
            let _ = fs::write(directory.join(SUBTREE_CONTROL), format!("+{controller}"));
        }
    }
}

/// Copies the parent's CPUs and memory nodes to a cgroup without any, because no process can run in it otherwise.
fn inherit_cpuset(directory: &Path) -> io::Result<()> {
    let Some(parent) = directory.parent() else {
        return Ok(());
    };
    for name in ["cpuset.cpus", "cpuset.mems"] {
        let own = directory.join(name);
        let text = fs::read_to_string(&own).map_err(|error| at(error, "cannot read", &own))?;
        if text.trim().is_empty() {
            let above = fs::read_to_string(parent.join(name))?;
            fs::write(&own, above).map_err(|error| at(error, "cannot write", &own))?;
        }
    }
    Ok(())
}

/// The subdirectories; none if the directory does not exist.
fn directories(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        entries => entries.map_err(|error| at(error, "cannot read", directory))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = match entry {
            Err(error) if is_gone(&error) => break,
            entry => entry?,
        };
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// A directory and all its descendants, top-down; empty if it does not exist.
pub(super) fn tree(directory: &Path) -> io::Result<Vec<PathBuf>> {
    if !directory.is_dir() {
        return Ok(Vec::new());
    }
    let mut found = vec![directory.to_path_buf()];
    let mut next = 0;
    while let Some(directory) = found.get(next) {
        let below = directories(directory)?;
        found.extend(below);
        next += 1;
    }
    Ok(found)
}

/// The PIDs in one directory. Processes of other PID namespaces appear as 0 and are skipped.
pub(super) fn processes(directory: &Path) -> io::Result<Vec<u32>> {
    match fs::read_to_string(directory.join(PROCS)) {
        Ok(text) => {
            let ids = text.lines().filter_map(|line| line.trim().parse().ok());
            Ok(ids.filter(|id| *id != 0).collect())
        }
        // A threaded v2 cgroup does not list processes; its parent does.
        Err(error) if is_gone(&error) || is(&error, Errno::OPNOTSUPP) => Ok(Vec::new()),
        Err(error) => Err(at(error, "cannot read the processes of", directory)),
    }
}

pub(super) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || is(error, Errno::NODEV)
}

/// Removes one directory; waits for killed processes to exit, on a thread for blocking work.
#[allow(clippy::disallowed_methods)]
fn remove_waiting(directory: &Path) -> io::Result<()> {
    let mut wait = FIRST_WAIT;
    for _ in 0..TRIES {
        match fs::remove_dir(directory) {
            Err(error) if is(&error, Errno::BUSY) => std::thread::sleep(wait),
            Err(error) if is_gone(&error) => return Ok(()),
            done => return done,
        }
        wait *= 2;
    }
    fs::remove_dir(directory)
}
