//! Cgroups by name: creates, limits and removes them with one of the drivers. Blocking.

use super::{CgroupDriver, CgroupMetrics, CgroupName};
use crate::host::cgroup::{CgroupPath, Cgroups, Settings};
use std::{collections::BTreeSet, io};

/// The cgroups below the root of the node, by name.
pub(super) struct CgroupManager {
    pub(super) cgroups: Cgroups,
    pub(super) driver: CgroupDriver,
    pub(super) metrics: CgroupMetrics,
}

impl CgroupManager {
    pub(super) fn path(&self, name: &CgroupName) -> io::Result<CgroupPath> {
        let path = name.path(self.driver);
        path.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
    }

    pub(super) fn exists(&self, name: &CgroupName) -> bool {
        let path = self.path(name);
        path.is_ok_and(|path| self.cgroups.validate(&path).is_ok())
    }

    /// Creates a cgroup; one that is there stays as it is.
    pub(super) fn create(&self, name: &CgroupName) -> io::Result<()> {
        let path = self.path(name)?;
        self.metrics.timed("create", || self.cgroups.create(&path))
    }

    /// Limits a cgroup that is there.
    pub(super) fn update(&self, name: &CgroupName, settings: &Settings) -> io::Result<()> {
        let path = self.path(name)?;
        self.metrics
            .timed("update", || self.cgroups.set(&path, settings))
    }

    /// Ends what runs in a cgroup and removes it.
    pub(super) fn destroy(&self, name: &CgroupName) -> io::Result<()> {
        let path = self.path(name)?;
        let killed = self.cgroups.kill(&path)?;
        if killed > 0 {
            tracing::info!(
                cgroupName = %path,
                processes = killed,
                "Killed all unwanted processes from cgroup"
            );
        }
        self.metrics.timed("destroy", || self.cgroups.remove(&path))
    }

    /// The names right below a cgroup, in any hierarchy.
    pub(super) fn children(&self, name: &CgroupName) -> io::Result<BTreeSet<CgroupName>> {
        let path = self.path(name)?;
        let below = self.cgroups.children(&path)?.into_iter();
        let below = below.map(|child| match self.driver {
            CgroupDriver::Cgroupfs => name.child(&child),
            CgroupDriver::Systemd => CgroupName::of_systemd(&child),
        });
        Ok(below.collect())
    }
}
