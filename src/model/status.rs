//! The runtime status of a pod, free of CRI types.

use super::{ContainerId, PodLogName, PodSource, PodUid, SandboxId};
use std::sync::Arc;

/// The number of a read in the kubelet's order of reads of the runtime. It is taken *before* the read begins, so of two
/// statuses, the one with the larger number is newer. Used in place of timestamps, because the clocks of the runtime and
/// of the kubelet must not be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

/// All sandboxes and containers of one pod in the runtime, including dead ones (upstream's `kubecontainer.PodStatus`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodStatus {
    /// UID, from the labels.
    pub uid: PodUid,
    /// Name, from the labels.
    pub name: Arc<str>,
    /// Namespace, from the labels.
    pub namespace: Arc<str>,
    /// Sandboxes, newest first (by attempt, then creation, then id).
    pub sandboxes: Vec<SandboxStatus>,
    /// Container instances of every kind, newest first (by restart count, then creation, then id). The
    /// count goes first because it only ever grows, while the clock may have been set back in between.
    pub containers: Vec<ContainerStatus>,
}

/// Which network a sandbox lives in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetworkMode {
    /// Its own network namespace.
    #[default]
    Pod,
    /// The node's.
    Node,
}

/// One sandbox.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SandboxStatus {
    /// The runtime's id.
    pub id: SandboxId,
    /// Attempt number of the metadata.
    pub attempt: u32,
    /// SANDBOX_READY.
    pub ready: bool,
    /// Nanoseconds since the epoch.
    pub created_at: i64,
    /// Network namespace.
    pub network: NetworkMode,
    /// Whether the runtime reported network details at all.
    pub has_network_status: bool,
    /// Primary address first; empty for host network or when the network was lost.
    pub ips: Vec<String>,
    /// `kubernetes.io/config.source` of the pod it was made for, if it has one.
    pub source: Option<PodSource>,
    /// Digest annotation of the manifest it was made from, if it has one.
    pub spec_digest: Option<Arc<str>>,
}

/// CRI container states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ContainerState {
    /// Created, never started.
    Created,
    /// Running.
    Running,
    /// Exited.
    Exited,
    /// The runtime does not know.
    #[default]
    Unknown,
}

/// One instance of a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerStatus {
    /// The runtime's bare id.
    pub id: ContainerId,
    /// Container name of the pod spec.
    pub name: Arc<str>,
    /// The sandbox it belongs to.
    pub sandbox: SandboxId,
    /// State.
    pub state: ContainerState,
    /// Restart count from the annotation (equal to the attempt of the metadata).
    pub restart_count: u32,
    /// Nanoseconds since the epoch, like the two below; 0 when not reached.
    pub created_at: i64,
    /// See `created_at`.
    pub started_at: i64,
    /// See `created_at`.
    pub finished_at: i64,
    /// Exit code, when exited.
    pub exit_code: i32,
    /// Image as the user wrote it where the runtime remembers, else as the runtime names it.
    pub image: Arc<str>,
    /// Image reference (digest) for `imageID` of the API status.
    pub image_ref: Arc<str>,
    /// The hash annotation, as hex; empty when absent.
    pub hash: Arc<str>,
    /// The runtime's reason for the exit.
    pub reason: Arc<str>,
    /// The runtime's message, plus the termination message once exited.
    pub message: Arc<str>,
    /// Who it runs as, if the runtime reports that.
    pub user: Option<Arc<ContainerUser>>,
    /// The signal that ends it, by its API name, if the runtime reports that.
    pub stop_signal: Option<&'static str>,
    /// Its pod's `terminationGracePeriodSeconds` when it was created, from the annotation.
    pub grace_seconds: Option<u32>,
    /// Where its pod came from, if its kubelet noted that.
    pub source: Option<PodSource>,
    /// What it may use, if the runtime reports that.
    pub resources: Option<Arc<ContainerResources>>,
}

/// What a container may use, as the runtime reports; at least one of them is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerResources {
    /// Thousandths of a CPU that its shares stand for.
    pub cpu_request: Option<i64>,
    /// Thousandths of a CPU that its quota stands for.
    pub cpu_limit: Option<i64>,
    /// Bytes.
    pub memory_limit: Option<i64>,
}

/// Who the first process of a container was started as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerUser {
    /// User.
    pub uid: i64,
    /// Primary group.
    pub gid: i64,
    /// Further groups, those of the image included.
    pub supplemental_groups: Vec<i64>,
}

impl PodStatus {
    /// `<namespace>/<name>`, for the log.
    pub fn log_name(&self) -> PodLogName<'_> {
        PodLogName {
            namespace: &self.namespace,
            name: &self.name,
        }
    }

    /// Newest instance of a container.
    pub fn newest(&self, name: &str) -> Option<&ContainerStatus> {
        self.containers.iter().find(|c| &*c.name == name)
    }

    /// Instances of a container, newest first.
    pub fn instances<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a ContainerStatus> {
        self.containers.iter().filter(move |c| &*c.name == name)
    }

    /// One instance by id.
    pub fn container(&self, id: &ContainerId) -> Option<&ContainerStatus> {
        self.containers.iter().find(|c| c.id == *id)
    }

    /// Instances that run, or may run (state unknown).
    pub fn maybe_running(&self) -> impl Iterator<Item = &ContainerStatus> {
        self.containers
            .iter()
            .filter(|c| matches!(c.state, ContainerState::Running | ContainerState::Unknown))
    }

    /// Newest sandbox.
    pub fn newest_sandbox(&self) -> Option<&SandboxStatus> {
        self.sandboxes.first()
    }

    /// Sandboxes that are READY.
    pub fn ready_sandboxes(&self) -> impl Iterator<Item = &SandboxStatus> {
        self.sandboxes.iter().filter(|s| s.ready)
    }

    /// Addresses of the newest sandbox if it is ready.
    pub fn ips(&self) -> &[String] {
        match self.newest_sandbox() {
            Some(sandbox) if sandbox.ready => &sandbox.ips,
            _ => &[],
        }
    }

    /// The source of the pod. Every kubelet writes it to an annotation of the sandbox. A pod with a sandbox
    /// without it counts as a pod of the API server, so that this kubelet neither stops nor removes it. The
    /// annotations of containers only count if there is no sandbox: a runtime may finish creating a container after the
    /// removal of its sandbox.
    pub fn source(&self) -> PodSource {
        let of_containers = self.containers.iter().map(|container| container.source);
        let mut sources: Vec<_> = self.sandboxes.iter().map(|s| s.source).collect();
        if sources.is_empty() {
            sources.extend(of_containers);
        }
        let of_api = |source: &Option<PodSource>| matches!(source, None | Some(PodSource::Api));
        match sources.first() {
            Some(Some(newest)) if !sources.iter().any(of_api) => *newest,
            _ => PodSource::Api,
        }
    }

    /// The longest grace period, in seconds, with which a running container was created.
    pub fn grace_seconds(&self) -> Option<u32> {
        self.maybe_running().filter_map(|c| c.grace_seconds).max()
    }

    /// Whether the runtime has no sandbox and no container of the pod.
    pub fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }

    /// Whether a container runs (or may run) or a sandbox is ready, so that the pod uses resources of the node.
    pub fn is_active(&self) -> bool {
        self.maybe_running().next().is_some() || self.ready_sandboxes().next().is_some()
    }

    /// Puts sandboxes and containers into the order that the fields promise.
    pub fn sort(&mut self) {
        self.sandboxes.sort_by(|a, b| {
            (b.attempt, b.created_at, &b.id).cmp(&(a.attempt, a.created_at, &a.id))
        });
        self.containers.sort_by(|a, b| {
            (b.restart_count, b.created_at, &b.id).cmp(&(a.restart_count, a.created_at, &a.id))
        });
    }
}

impl ContainerStatus {
    /// The status of an instance that is not running according to a list and whose status cannot be read (any more): the
    /// exit of an earlier read, or an unknown one.
    #[must_use]
    pub fn with_unknown_end(self, read: Option<&Self>) -> Self {
        match read {
            Some(read) if read.state == ContainerState::Exited => read.clone(),
            _ if self.state == ContainerState::Created => self,
            read => Self {
                state: ContainerState::Exited,
                exit_code: 137,
                reason: super::reasons::CONTAINER_STATUS_UNKNOWN.into(),
                message: "The container has exited and its status cannot be read".into(),
                ..read.cloned().unwrap_or(self)
            },
        }
    }

    /// Exited with code 0 and not killed for memory.
    pub fn succeeded(&self) -> bool {
        self.state == ContainerState::Exited
            && self.exit_code == 0
            && &*self.reason != super::reasons::OOM_KILLED
    }
}
