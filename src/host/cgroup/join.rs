//! Moves processes between cgroups. Blocking.

use super::writer::{PROCS, at, is, processes};
use super::{CgroupPath, Cgroups};
use rustix::io::Errno;
use std::fs::OpenOptions;
use std::io;
use std::io::Write as _;
use std::path::Path;

impl Cgroups {
    /// The controllers in whose hierarchies processes are moved, as named by [`super::ProcessCgroups`]. On cgroup v1,
    /// a v2 hierarchy mounted beside is excluded, because it has no controllers.
    pub fn joined(&self) -> Vec<&str> {
        if self.is_v2() {
            return vec![""];
        }
        let names = self.hierarchies.names();
        names.filter(|name| !name.is_empty()).collect()
    }

    /// Moves a process with all its threads into an existing cgroup, in every hierarchy with a controller, even if
    /// one fails. Returns false if the process has ended.
    ///
    /// # Errors
    /// The first error of the kernel.
    pub fn join(&self, path: &CgroupPath, process: u32) -> io::Result<bool> {
        let mut failed = None;
        for point in self.joined_points() {
            let file = path.under(point).join(PROCS);
            match self.write_process(&file, process) {
                Ok(()) => {}
                Err(error) if is(&error, Errno::SRCH) => return Ok(false),
                Err(error) => {
                    failed.get_or_insert(at(error, "cannot write", &file));
                }
            }
        }
        failed.map_or(Ok(true), Err)
    }

    /// The processes directly in a cgroup: as upstream in the `devices` hierarchy, or in another one if there is
    /// none.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn pids(&self, path: &CgroupPath) -> io::Result<Vec<u32>> {
        let devices = self.hierarchies.of("devices").filter(|_| !self.is_v2());
        let Some(point) = devices.or_else(|| self.joined_points().into_iter().next()) else {
            return Ok(Vec::new());
        };
        processes(&path.under(point))
    }

    fn joined_points(&self) -> Vec<&Path> {
        if self.is_v2() {
            return self.hierarchies.points();
        }
        let points = self.joined().into_iter();
        let mut points: Vec<&Path> = points.filter_map(|name| self.hierarchies.of(name)).collect();
        points.sort_unstable();
        points.dedup();
        points
    }

    fn write_process(&self, file: &Path, process: u32) -> io::Result<()> {
        let mut options = OpenOptions::new();
        if self.hierarchies.genuine {
            options.write(true);
        } else {
            options.append(true).create(true);
        }
        options.open(file)?.write_all(format!("{process}\n").as_bytes())
    }
}
