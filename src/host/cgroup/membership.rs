//! The cgroups of a process. Pure.

use super::CgroupPath;
use std::collections::BTreeMap;

/// The v1 hierarchy in which systemd manages its units.
const SYSTEMD: &str = "systemd";

/// The cgroups of one process by controller; for cgroup v2 the key is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessCgroups(BTreeMap<String, String>);

/// Why no single cgroup accounts for a process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAccounted {
    /// The process has no cgroup of this controller.
    #[error("cgroup of {0} not found")]
    NotFound(&'static str),
    /// CPU and memory are accounted in different cgroups.
    #[error("cpu and memory cgroup hierarchy not unified.  cpu: {cpu}, memory: {memory}")]
    NotUnified {
        /// The cgroup of the `cpu` controller.
        cpu: String,
        /// The cgroup of the `memory` controller.
        memory: String,
    },
    /// The cgroup is outside of the cgroup namespace.
    #[error("{0} cannot be seen from here")]
    Outside(String),
}

impl ProcessCgroups {
    /// Parses `/proc/<pid>/cgroup`; invalid lines are ignored.
    pub fn parse(text: &str) -> Self {
        let mut found = BTreeMap::new();
        for line in text.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
                continue;
            };
            for name in controllers.split(',') {
                let name = name.strip_prefix("name=").unwrap_or(name);
                found.insert(name.to_owned(), path.to_owned());
            }
        }
        Self(found)
    }

    /// The cgroup of a controller; for cgroup v2, pass an empty one.
    pub fn of(&self, controller: &str) -> Option<&str> {
        self.0.get(controller).map(String::as_str)
    }

    /// The cgroup that accounts for CPU and memory of the process, as upstream determines it. On cgroup v1 that of
    /// systemd is preferred, because it exists in the other hierarchies if systemd does accounting.
    ///
    /// # Errors
    /// There is no such cgroup.
    pub fn accounted(&self, v2: bool) -> Result<CgroupPath, NotAccounted> {
        let of = |name| self.of(name).ok_or(NotAccounted::NotFound(name));
        let path = if v2 {
            self.of("").ok_or(NotAccounted::NotFound("unified"))?
        } else {
            let (cpu, memory) = (of("cpu")?, of("memory")?);
            if cpu != memory {
                let (cpu, memory) = (cpu.to_owned(), memory.to_owned());
                return Err(NotAccounted::NotUnified { cpu, memory });
            }
            self.of(SYSTEMD).unwrap_or(cpu)
        };
        CgroupPath::parse(path).map_err(|_| NotAccounted::Outside(path.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroup_of_a_process_counts_both_cpu_and_memory() {
        let unified = "5:cpu,cpuacct:/a:b\n4:memory:/a:b\n0::/x\n";
        let systemd = "5:cpu:/\n4:memory:/\n3:name=systemd:/system.slice/k.service\n";
        let apart = "5:cpu:/a\n4:memory:/b\n";
        let error = "cpu and memory cgroup hierarchy not unified.  cpu: /a, memory: /b";
        for (text, v2, found) in [
            (unified, false, Ok("/a:b")),
            (unified, true, Ok("/x")),
            (systemd, false, Ok("/system.slice/k.service")),
            (systemd, true, Err("cgroup of unified not found")),
            (apart, false, Err(error)),
            ("4:memory:/b\n", false, Err("cgroup of cpu not found")),
            ("5:cpu:/b\n", false, Err("cgroup of memory not found")),
            ("0::/../x\n", true, Err("/../x cannot be seen from here")),
            ("0::/\n", true, Ok("/")),
            ("nonsense\n1:cpu\n", true, Err("cgroup of unified not found")),
        ] {
            let path = ProcessCgroups::parse(text).accounted(v2);
            let path = path.map(|path| path.to_string());
            let path = path.map_err(|error| error.to_string());
            let found = found.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(path, found, "{text}");
        }
        let found = ProcessCgroups::parse(unified);
        assert_eq!(found.of("cpuacct"), Some("/a:b"));
        assert_eq!(found.of("pids"), None);
    }
}
