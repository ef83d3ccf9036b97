//! What has happened and cannot be seen any more.

use kubelet::cri::v1::{ContainerConfig, ContainerState, PodSandboxState};

use super::calls::Subject;
use super::world::World;

/// A container that was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    pub subject: Subject,
    pub args: Vec<String>,
}

/// A container that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    pub subject: Subject,
    pub code: i32,
    /// The runtime was asked to stop or remove it, or its sandbox.
    pub was_asked: bool,
}

#[derive(Debug, Default)]
pub struct History {
    /// All containers that were started, in order.
    pub starts: Vec<Start>,
    /// All containers that ended, in order.
    pub ends: Vec<End>,
    /// Pods that began to run while another one of their name did.
    pub overlaps: Vec<String>,
}

impl World {
    /// Receives everything that begins to run, before it does.
    pub fn note_twins(&mut self, subject: &Subject) {
        let other = |sandbox: &&super::world::Sandbox| {
            let metadata = sandbox.config.metadata.clone().unwrap_or_default();
            let same_name = metadata.name == subject.pod && metadata.namespace == subject.namespace;
            same_name && sandbox.id != subject.id && self.is_live(&sandbox.id)
        };
        if let Some(other) = self.sandboxes.values().find(other) {
            let overlaps = format!("{subject:?} beside {}", other.id);
            self.history.overlaps.push(overlaps);
        }
    }

    pub fn note_start(&mut self, subject: Subject, config: &ContainerConfig) {
        let args = config.args.clone();
        self.history.starts.push(Start { subject, args });
    }

    fn is_live(&self, sandbox: &str) -> bool {
        let ready = |id: &str| {
            let sandbox = self.sandboxes.get(id);
            sandbox.is_some_and(|sandbox| sandbox.state == PodSandboxState::SandboxReady)
        };
        let runs = |id: &String| {
            let container = self.containers.get(id);
            container.is_some_and(|c| c.state == ContainerState::ContainerRunning)
        };
        ready(sandbox) || self.containers_of(sandbox).iter().any(runs)
    }
}
