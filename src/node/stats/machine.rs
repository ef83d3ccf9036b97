//! Facts of the machine for its cAdvisor metrics.

use super::cadvisor::MachineFacts;
use crate::host::{HostMachine, MachineIdentity, proc};
use std::collections::HashSet;
use std::fs;

/// Reads facts that do not change while the machine runs. Blocking.
pub(super) fn facts(machine: &HostMachine) -> MachineFacts {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let booted = proc::parse_boot_time(&stat).unwrap_or_default();
    let (physical_cores, sockets) = topology();
    MachineFacts {
        host: machine.clone(),
        identity: MachineIdentity::read(),
        physical_cores,
        sockets,
        booted: i64::try_from(booted.saturating_mul(1_000_000_000)).unwrap_or_default(),
    }
}

/// Numbers of physical cores and sockets, if the kernel reports them.
fn topology() -> (Option<u64>, Option<u64>) {
    let entries = fs::read_dir("/sys/devices/system/cpu").into_iter().flatten();
    let (mut cores, mut sockets) = (HashSet::new(), HashSet::new());
    for entry in entries.flatten() {
        let read = |name: &str| {
            let path = entry.path().join("topology").join(name);
            fs::read_to_string(path).ok()?.trim().parse::<i64>().ok()
        };
        if let (Some(socket), Some(core)) = (read("physical_package_id"), read("core_id")) {
            cores.insert((socket, core));
            sockets.insert(socket);
        }
    }
    let known = |count: usize| u64::try_from(count).ok().filter(|count| *count > 0);
    (known(cores.len()), known(sockets.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory_and_has_started() {
        let facts = facts(&HostMachine::read().unwrap());
        assert!(
            facts.host.memory_bytes > 0 && facts.host.cpus > 0 && facts.booted > 0,
            "{facts:?}"
        );
        assert!(facts.physical_cores <= Some(facts.host.cpus.into()));
    }
}
