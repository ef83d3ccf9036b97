//! The cgroups of the machine that are those of no pod: which there are, and what the configuration says of them.

use crate::host::proc;
use std::path::Path;
use tokio::sync::watch;

/// Upstream's names of system containers.
pub(super) const KUBELET: &str = "kubelet";
const RUNTIME: &str = "runtime";
const MISC: &str = "misc";
pub(super) const PODS: &str = "pods";

/// The cgroups that the configuration names; each is found by other means, or left out, where it does not.
#[derive(Clone, Debug)]
pub struct SystemCgroups {
    /// `kubeletCgroups`; else where the kubelet is.
    pub kubelet: Option<String>,
    /// `--runtime-cgroups`; else where the process is that listens on the runtime's socket.
    pub runtime: Option<String>,
    /// `systemCgroups`.
    pub system: Option<String>,
    /// The cgroup of all pods, once it is there.
    pub pods: watch::Receiver<Option<String>>,
}

impl Default for SystemCgroups {
    fn default() -> Self {
        Self {
            kubelet: None,
            runtime: None,
            system: None,
            pods: watch::channel(None).1,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CgroupLocation {
    /// The cgroup of this path.
    Cgroup(String),
    /// The cgroup that the process of this id is in.
    Process(u32),
}

/// A cgroup to be sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SystemSubject {
    pub(super) name: &'static str,
    pub(super) place: CgroupLocation,
    /// It may be that of the whole machine.
    pub(super) may_be_root: bool,
}

impl SystemCgroups {
    /// What is sampled, in order. A runtime that nothing names and that is in no cgroup of its own is left out: that of
    /// the machine says nothing of it.
    pub(super) fn subjects(&self, kubelet: u32, runtime: Option<u32>) -> Vec<SystemSubject> {
        let named = |path: &Option<String>| path.clone().map(CgroupLocation::Cgroup);
        let kubelet = named(&self.kubelet).unwrap_or(CgroupLocation::Process(kubelet));
        let is_named = self.runtime.is_some();
        let runtime = named(&self.runtime).or(runtime.map(CgroupLocation::Process));
        [
            (KUBELET, Some(kubelet), true),
            (RUNTIME, runtime, is_named),
            (MISC, named(&self.system), true),
            (
                PODS,
                self.pods.borrow().clone().map(CgroupLocation::Cgroup),
                true,
            ),
        ]
        .into_iter()
        .filter_map(|(name, place, may_be_root)| {
            Some(SystemSubject {
                name,
                place: place?,
                may_be_root,
            })
        })
        .collect()
    }
}

/// The process at the other end of the runtime's socket. Blocking.
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
            let shown = subjects.map(|subject| match subject.place {
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
        let mut system = SystemCgroups {
            pods,
            ..SystemCgroups::default()
        };
        assert_eq!(shown(&system, None), ["kubelet 5 true"]);
        assert_eq!(
            shown(&system, Some(7)),
            ["kubelet 5 true", "runtime 7 false"]
        );
        all_pods.send_replace(Some("/kubepods".into()));
        system.kubelet = Some("/k".into());
        system.runtime = Some("/r".into());
        system.system = Some("/s".into());
        assert_eq!(
            shown(&system, Some(7)),
            [
                "kubelet /k true",
                "runtime /r true",
                "misc /s true",
                "pods /kubepods true"
            ]
        );
    }
}
