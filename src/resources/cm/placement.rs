//! Selects the processes to move into configured cgroups. Pure.

use crate::host::cgroup::{CgroupPath, ProcessCgroups};

/// The PID of init.
const INIT_PID: u32 = 1;

/// A process of the root cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostProcess {
    pub(super) id: u32,
    /// Whether it is a kernel thread.
    pub(super) is_kernel: bool,
    pub(super) cgroups: ProcessCgroups,
}

/// Whether a process is in this cgroup in all hierarchies.
pub(super) fn is_in(cgroups: &ProcessCgroups, path: &CgroupPath, controllers: &[&str]) -> bool {
    let path = path.to_string();
    let mut all = controllers.iter();
    all.all(|controller| cgroups.of(controller) == Some(path.as_str()))
}

/// The processes to move from the root cgroup into `system`. A process that is in another cgroup in any hierarchy is
/// not moved; one that was moved in some hierarchies only is moved again.
pub(super) fn processes_to_move(
    processes: &[HostProcess],
    system: &CgroupPath,
    controllers: &[&str],
) -> Vec<u32> {
    let system = system.to_string();
    let is_free = |process: &&HostProcess| {
        let paths = controllers.iter().map(|name| process.cgroups.of(name));
        let (mut free, mut at_root) = (true, false);
        for path in paths {
            at_root |= path == Some("/");
            free &= path == Some("/") || path == Some(system.as_str());
        }
        free && at_root
    };
    let mut moved: Vec<&HostProcess> = processes.iter().filter(is_free).collect();
    moved.retain(|process| process.id > INIT_PID && !process.is_kernel);
    moved.iter().map(|process| process.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> CgroupPath {
        CgroupPath::parse(text).unwrap()
    }

    #[test]
    fn a_process_is_in_a_cgroup_if_it_is_there_in_every_hierarchy() {
        let v1 = ProcessCgroups::parse("2:cpu,cpuacct:/k\n1:memory:/k\n0::/\n");
        let apart = ProcessCgroups::parse("2:cpu,cpuacct:/k\n1:memory:/\n");
        let v2 = ProcessCgroups::parse("0::/k\n");
        let controllers = ["cpu", "cpuacct", "memory"];
        for (cgroups, to, controllers, inside) in [
            (&v1, "/k", &controllers[..], true),
            (&v1, "/", &controllers, false),
            (&v1, "/k/below", &controllers, false),
            (&apart, "/k", &controllers, false),
            (&v2, "/k", &[""], true),
            (&v2, "/", &[""], false),
            (&v2, "/k", &controllers, false),
        ] {
            assert_eq!(is_in(cgroups, &path(to), controllers), inside, "{to}");
        }
    }

    #[test]
    fn only_processes_of_the_root_are_moved_and_neither_the_first_nor_the_kernels() {
        let v1 = |cpu: &str, memory: &str| {
            ProcessCgroups::parse(&format!("2:cpu:{cpu}\n1:memory:{memory}\n0::/\n"))
        };
        for (id, is_kernel, cgroups, moved) in [
            (7, false, v1("/", "/"), true),
            (1, false, v1("/", "/"), false),
            (0, false, v1("/", "/"), false),
            (7, true, v1("/", "/"), false),
            // One that was moved in part.
            (7, false, v1("/", "/system"), true),
            (7, false, v1("/system", "/system"), false),
            (7, false, v1("/", "/user.slice"), false),
            (7, false, v1("/kubepods/podu", "/kubepods/podu"), false),
            (7, false, v1("/../a", "/"), false),
            (7, false, ProcessCgroups::parse("0::/\n"), false),
        ] {
            let shown = format!("{id} {is_kernel} {cgroups:?}");
            let process = HostProcess { id, is_kernel, cgroups };
            let ids = processes_to_move(&[process], &path("/system"), &["cpu", "memory"]);
            assert_eq!(!ids.is_empty(), moved, "{shown}");
        }
        let process = |id, path: &str| HostProcess {
            id,
            is_kernel: false,
            cgroups: ProcessCgroups::parse(&format!("0::{path}\n")),
        };
        let processes = [process(5, "/"), process(6, "/a"), process(7, "/")];
        assert_eq!(processes_to_move(&processes, &path("/system"), &[""]), [5, 7]);
    }
}
