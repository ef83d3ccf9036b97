//! The cgroups of system containers: kubelet, runtime, system and all pods.

use crate::host::proc;
use std::path::Path;
use tokio::sync::watch;

/// Upstream's names of system containers.
pub(super) const KUBELET: &str = "kubelet";
const RUNTIME: &str = "runtime";
const MISC: &str = "misc";
pub(super) const PODS: &str = "pods";

/// The configured cgroups of system containers. Without a configured path a cgroup is found by its process, or left
/// out.
#[derive(Clone, Debug)]
pub struct SystemCgroups {
    /// `kubeletCgroups`; default: the cgroup of this process.
    pub kubelet: Option<String>,
    /// `--runtime-cgroups`; default: the cgroup of the process that listens on the runtime's socket.
    pub runtime: Option<String>,
    /// `systemCgroups`.
    pub system: Option<String>,
    /// The cgroup of all pods, once it exists.
    pub pods: watch::Receiver<Option<String>>,
}

impl Default for SystemCgroups {
    fn default() -> Self {
        Self { kubelet: None, runtime: None, system: None, pods: watch::channel(None).1 }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CgroupLocation {
    /// A cgroup by path.
    Cgroup(String),
    /// The cgroup of the process with this PID.
    Process(u32),
}

/// A system container to sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SystemSubject {
    pub(super) name: &'static str,
    pub(super) location: CgroupLocation,
    /// Whether the root cgroup is acceptable.
    pub(super) may_be_root: bool,
}

impl SystemCgroups {
    /// The system containers, in order. A runtime found by its process is left out if it is in the root cgroup, whose
    /// usage is that of the whole machine.
    pub(super) fn subjects(&self, kubelet: u32, runtime: Option<u32>) -> Vec<SystemSubject> {
        let named = |path: &Option<String>| path.clone().map(CgroupLocation::Cgroup);
        let kubelet = named(&self.kubelet).unwrap_or(CgroupLocation::Process(kubelet));
        let is_named = self.runtime.is_some();
        let runtime = named(&self.runtime).or(runtime.map(CgroupLocation::Process));
        [
            (KUBELET, Some(kubelet), true),
            (RUNTIME, runtime, is_named),
            (MISC, named(&self.system), true),
            (PODS, self.pods.borrow().clone().map(CgroupLocation::Cgroup), true),
        ]
        .into_iter()
        .filter_map(|(name, location, may_be_root)| {
            Some(SystemSubject { name, location: location?, may_be_root })
        })
        .collect()
    }
}

/// The PID of the process that listens on the runtime's socket. Blocking.
pub(super) fn runtime_process(socket: &Path) -> Option<u32> {
    proc::peer_of(socket).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_are_those_that_are_named_or_those_of_processes() {
        let shown = |system: &SystemCgroups, runtime| {
            let subjects = system.subjects(5, runtime).into_iter();
            let shown = subjects.map(|subject| match subject.location {
                CgroupLocation::Cgroup(path) => {
                    format!("{} {path} {}", subject.name, subject.may_be_root)
                }
                CgroupLocation::Process(pid) => {
                    format!("{} {pid} {}", subject.name, subject.may_be_root)
                }
            });
            shown.collect::<Vec<_>>()
        };
        let (all_pods, pods) = watch::channel(None);
        let mut system = SystemCgroups { pods, ..SystemCgroups::default() };
        assert_eq!(shown(&system, None), ["kubelet 5 true"]);
        assert_eq!(shown(&system, Some(7)), ["kubelet 5 true", "runtime 7 false"]);
        all_pods.send_replace(Some("/kubepods".into()));
        system.kubelet = Some("/k".into());
        system.runtime = Some("/r".into());
        system.system = Some("/s".into());
        assert_eq!(
            shown(&system, Some(7)),
            ["kubelet /k true", "runtime /r true", "misc /s true", "pods /kubepods true"]
        );
    }
}
