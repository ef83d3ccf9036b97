//! Names of cgroups, and their paths with either driver. Pure.

use crate::base::named_enum;
use crate::host::cgroup::{BadCgroupPath, CgroupPath};

const SLICE: &str = ".slice";

named_enum! {
    /// The cgroup driver, with its name in the configuration.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum CgroupDriver {
        /// The kubelet creates cgroups in the cgroup file system.
        #[default]
        Cgroupfs = "cgroupfs",
        /// systemd creates cgroups as slices.
        Systemd = "systemd",
    }
}

/// The name of a cgroup, independent of the driver: its components from the top.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CgroupName(Vec<String>);

impl CgroupName {
    /// From a path such as `/a/b`.
    pub fn of_cgroupfs(path: &str) -> Self {
        let parts = path.split('/').filter(|part| !part.is_empty());
        Self(parts.map(str::to_owned).collect())
    }

    /// From the path or name of a slice.
    pub fn of_systemd(path: &str) -> Self {
        let path = path.trim_end_matches('/');
        let name = path.rsplit('/').next().unwrap_or_default();
        let name = name.strip_suffix(SLICE).unwrap_or(name);
        let parts = name.split('-').filter(|part| !part.is_empty());
        Self(parts.map(|part| part.replace('_', "-")).collect())
    }

    /// From a path in the driver's form.
    pub fn of(driver: CgroupDriver, path: &str) -> Self {
        match driver {
            CgroupDriver::Cgroupfs => Self::of_cgroupfs(path),
            CgroupDriver::Systemd => Self::of_systemd(path),
        }
    }

    /// The name of a child of this cgroup.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        let mut parts = self.0.clone();
        parts.push(name.to_owned());
        Self(parts)
    }

    /// The components from the top; none for the root.
    pub fn parts(&self) -> &[String] {
        &self.0
    }

    /// The last component; empty for the root.
    pub fn base(&self) -> &str {
        self.0.last().map_or("", String::as_str)
    }

    /// The path in the driver's form (upstream's `Name`).
    ///
    /// # Errors
    /// A component is not valid in a path.
    pub fn path(&self, driver: CgroupDriver) -> Result<CgroupPath, BadCgroupPath> {
        match driver {
            CgroupDriver::Cgroupfs => CgroupPath::parse(&self.0.join("/")),
            CgroupDriver::Systemd => CgroupPath::parse(&self.slices().join("/")),
        }
    }

    /// The names of the slices from the top; each has that of its parent as a prefix.
    pub fn slices(&self) -> Vec<String> {
        let mut name = String::new();
        let mut slices = Vec::new();
        for part in &self.0 {
            if !name.is_empty() {
                name.push('-');
            }
            name.push_str(&part.replace('-', "_"));
            slices.push(format!("{name}{SLICE}"));
        }
        slices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_spell_the_same_name_differently() {
        for (path, cgroupfs, systemd) in [
            ("", "/", "/"),
            ("/", "/", "/"),
            ("/kubepods", "/kubepods", "/kubepods.slice"),
            (
                "/kubepods/burstable/pod123-456",
                "/kubepods/burstable/pod123-456",
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod123_456.slice",
            ),
            ("a//b/", "/a/b", "/a.slice/a-b.slice"),
        ] {
            let name = CgroupName::of_cgroupfs(path);
            let spelled = |driver| name.path(driver).unwrap().to_string();
            assert_eq!(spelled(CgroupDriver::Cgroupfs), cgroupfs);
            assert_eq!(spelled(CgroupDriver::Systemd), systemd);
            assert_eq!(CgroupName::of(CgroupDriver::Systemd, systemd), name);
            assert_eq!(CgroupName::of(CgroupDriver::Cgroupfs, cgroupfs), name);
        }
        assert_eq!(CgroupName::of_systemd("kubepods-burstable.slice").base(), "burstable");
        assert!(CgroupName::of_cgroupfs("/a/..").path(CgroupDriver::Cgroupfs).is_err());
    }
}
