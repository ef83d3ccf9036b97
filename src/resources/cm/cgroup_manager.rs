//! Creates, updates and removes cgroups with either driver. Blocking.

use super::{CgroupDriver, CgroupMetrics, CgroupName};
use crate::host::Slices;
use crate::host::cgroup::{CgroupPath, CgroupSettings, Cgroups};
use std::collections::BTreeSet;
use std::io;

/// systemd's root slice.
const ROOT_SLICE: &str = "-.slice";

/// The cgroups of the node.
pub(super) struct CgroupManager {
    pub(super) cgroups: Cgroups,
    /// Set with the driver `systemd`. systemd has to know every cgroup and its limits, because it resets limits that it
    /// does not know.
    pub(super) slices: Option<Slices>,
    pub(super) metrics: CgroupMetrics,
}

impl CgroupManager {
    pub(super) fn driver(&self) -> CgroupDriver {
        if self.slices.is_some() { CgroupDriver::Systemd } else { CgroupDriver::Cgroupfs }
    }

    pub(super) fn path(&self, name: &CgroupName) -> io::Result<CgroupPath> {
        let path = name.path(self.driver());
        path.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
    }

    fn slice_of(&self, name: &CgroupName) -> Option<(&Slices, String)> {
        Some((self.slices.as_ref()?, name.slices().pop()?))
    }

    pub(super) fn exists(&self, name: &CgroupName) -> bool {
        let path = self.path(name);
        path.is_ok_and(|path| self.cgroups.validate(&path).is_ok())
    }

    /// Creates a cgroup; an existing one is left unchanged.
    pub(super) fn create(&self, name: &CgroupName) -> io::Result<()> {
        let path = self.path(name)?;
        self.metrics.timed("create", || {
            if let Some((slices, slice)) = self.slice_of(name) {
                let above = name.slices().into_iter().rev().nth(1);
                let parent = above.as_deref().unwrap_or(ROOT_SLICE);
                slices.create(&slice, parent, self.cgroups.is_v2())?;
            }
            self.cgroups.create(&path)
        })
    }

    /// Sets the limits of an existing cgroup.
    pub(super) fn update(&self, name: &CgroupName, settings: &CgroupSettings) -> io::Result<()> {
        let path = self.path(name)?;
        self.metrics.timed("update", || {
            let mut settings = settings.clone();
            if let Some((slices, slice)) = self.slice_of(name) {
                let version = slices.version()?;
                let properties = settings.slice_properties(self.cgroups.is_v2(), version);
                slices.set(&slice, properties)?;
            }
            self.cgroups.set(&path, &settings)
        })
    }

    /// The memory that is charged to a cgroup, bytes.
    pub(super) fn memory_usage(&self, name: &CgroupName) -> io::Result<u64> {
        self.cgroups.memory_usage(&self.path(name)?)
    }

    /// Kills the processes in a cgroup and removes it.
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
        self.metrics.timed("destroy", || {
            if let Some((slices, slice)) =
                self.slice_of(name).filter(|_| self.cgroups.exists(&path))
            {
                slices.stop(&slice)?;
            }
            self.cgroups.remove(&path)
        })
    }

    /// The names of the direct children of a cgroup, in any hierarchy.
    pub(super) fn children(&self, name: &CgroupName) -> io::Result<BTreeSet<CgroupName>> {
        let path = self.path(name)?;
        let below = self.cgroups.children(&path)?.into_iter();
        let below = below.map(|child| match self.driver() {
            CgroupDriver::Cgroupfs => name.child(&child),
            CgroupDriver::Systemd => CgroupName::of_systemd(&child),
        });
        Ok(below.collect())
    }
}
