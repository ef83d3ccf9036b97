//! The runtime status of a pod, without CRI types.

use super::{ContainerId, PodLogName, PodSource, PodUid, SandboxId};
use k8s_openapi::api::core::v1::ContainerPort;
use std::sync::Arc;

/// The number of a read in the kubelet's order of reads of the runtime. It is taken *before* the read begins, so of two
/// statuses, the one with the larger number is newer. Used in place of timestamps, because the clocks of the runtime and
/// of the kubelet must not be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

/// All sandboxes and containers of one pod in the runtime, including dead ones (upstream's `kubecontainer.PodStatus`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodStatus {
    /// The pod's UID, from the labels.
    pub uid: PodUid,
    /// The pod's name, from the labels.
    pub name: Arc<str>,
    /// The pod's namespace, from the labels.
    pub namespace: Arc<str>,
    /// Sandboxes, newest first (by attempt, then creation time, then ID).
    pub sandboxes: Vec<SandboxStatus>,
    /// Container instances of all kinds, newest first (by restart count, then creation time, then ID). The restart
    /// count comes first because it only increases, while the clock may have been set back.
    pub containers: Vec<ContainerStatus>,
}

/// The network namespace of a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetworkMode {
    /// Its own network namespace.
    #[default]
    Pod,
    /// The network namespace of the node.
    Node,
}

/// One sandbox.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SandboxStatus {
    /// The runtime's id.
    pub id: SandboxId,
    /// Attempt number of the metadata.
    pub attempt: u32,
    /// `SANDBOX_READY`
    pub ready: bool,
    /// Nanoseconds since the epoch.
    pub created_at: i64,
    /// The network namespace mode.
    pub network: NetworkMode,
    /// Whether the runtime reported a network status.
    pub has_network_status: bool,
    /// Primary address first; empty for the host network, or if the network was torn down.
    pub ips: Vec<String>,
    /// The pod's `kubernetes.io/config.source` annotation, if the sandbox has it.
    pub source: Option<PodSource>,
    /// The digest of the manifest that it was created from, if it has that annotation.
    pub manifest_digest: Option<Arc<str>>,
}

/// The states of a CRI container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ContainerState {
    /// Created, and never started or its start was cancelled.
    Created,
    /// Running.
    Running,
    /// Exited.
    Exited,
    /// Reported as unknown by the runtime.
    #[default]
    Unknown,
}

/// One instance of a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerStatus {
    /// The runtime's ID, without `containerd://` prefix.
    pub id: ContainerId,
    /// The container's name in the pod spec.
    pub name: Arc<str>,
    /// The sandbox it belongs to.
    pub sandbox: SandboxId,
    /// State.
    pub state: ContainerState,
    /// Whether its start was cancelled before it ran. The state is `Created` then, and lists say that it has exited.
    pub start_cancelled: bool,
    /// The restart count, from the annotation (equal to the attempt in the metadata).
    pub restart_count: u32,
    /// Creation time in nanoseconds since the epoch; 0 if not reported.
    pub created_at: i64,
    /// Start time in nanoseconds since the epoch; 0 if it has not started.
    pub started_at: i64,
    /// Time of the exit in nanoseconds since the epoch; 0 if it has not exited.
    pub finished_at: i64,
    /// The exit code, if it has exited.
    pub exit_code: i32,
    /// The image as the user wrote it, if the runtime has that; else the runtime's name.
    pub image: Arc<str>,
    /// The image reference (digest), for `imageID` in the API status.
    pub image_ref: Arc<str>,
    /// The hash annotation in hexadecimal digits; empty if absent.
    pub hash: Arc<str>,
    /// The runtime's reason for the exit.
    pub reason: Arc<str>,
    /// The runtime's message, and after the exit the termination message.
    pub message: Arc<str>,
    /// The user of its first process, if the runtime reports that.
    pub user: Option<Arc<ContainerUser>>,
    /// Its stop signal by API name, if the runtime reports that.
    pub stop_signal: Option<&'static str>,
    /// The pod's `terminationGracePeriodSeconds` at creation, from the annotation.
    pub grace_seconds: Option<u32>,
    /// The pod's source, if the kubelet that created it recorded that.
    pub source: Option<PodSource>,
    /// Its ports on the host, if the kubelet that created it recorded any.
    pub host_ports: Option<Arc<[ContainerPort]>>,
    /// Its resources, if the runtime reports them.
    pub resources: Option<Arc<ContainerResources>>,
    /// The images that are mounted as volumes, by the names with which they were requested of the runtime.
    pub mounted_images: Vec<Arc<str>>,
}

/// The resources of a container as the runtime reports them; at least one is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerResources {
    /// In millicores, converted from CPU shares.
    pub cpu_request: Option<i64>,
    /// In millicores, converted from the CPU quota.
    pub cpu_limit: Option<i64>,
    /// In bytes.
    pub memory_limit: Option<i64>,
}

/// The user and groups with which the first process of a container was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerUser {
    /// User.
    pub uid: i64,
    /// Primary group.
    pub gid: i64,
    /// Supplemental groups, including those of the image.
    pub supplemental_groups: Vec<i64>,
}

impl PodStatus {
    /// `<namespace>/<name>`, for log messages.
    pub fn log_name(&self) -> PodLogName<'_> {
        PodLogName { namespace: &self.namespace, name: &self.name }
    }

    /// The newest instance of a container.
    pub fn newest(&self, name: &str) -> Option<&ContainerStatus> {
        self.containers.iter().find(|c| &*c.name == name)
    }

    /// The instances of a container, newest first.
    pub fn instances<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a ContainerStatus> {
        self.containers.iter().filter(move |c| &*c.name == name)
    }

    /// The instance with this ID.
    pub fn container(&self, id: &ContainerId) -> Option<&ContainerStatus> {
        self.containers.iter().find(|c| c.id == *id)
    }

    /// Instances that are running, or may be (state unknown).
    pub fn maybe_running_containers(&self) -> impl Iterator<Item = &ContainerStatus> {
        self.containers
            .iter()
            .filter(|c| matches!(c.state, ContainerState::Running | ContainerState::Unknown))
    }

    /// Whether an instance of a container runs, or may.
    pub fn runs(&self, name: &str) -> bool {
        self.maybe_running_containers().any(|instance| &*instance.name == name)
    }

    /// Newest sandbox.
    pub fn newest_sandbox(&self) -> Option<&SandboxStatus> {
        self.sandboxes.first()
    }

    /// Whether the newest sandbox is on the node's network.
    pub fn is_on_host_network(&self) -> bool {
        let newest = self.newest_sandbox();
        newest.is_some_and(|sandbox| sandbox.network == NetworkMode::Node)
    }

    /// Sandboxes that are ready.
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

    /// The maximum grace period, in seconds, of the running containers at their creation.
    pub fn grace_seconds(&self) -> Option<u32> {
        self.maybe_running_containers().filter_map(|c| c.grace_seconds).max()
    }

    /// Whether the runtime has no sandbox and no container of the pod.
    pub fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }

    /// Whether a container may be running or a sandbox is ready, so that the pod uses resources of the node.
    pub fn may_be_running(&self) -> bool {
        self.maybe_running_containers().next().is_some() || self.ready_sandboxes().next().is_some()
    }

    /// Sorts sandboxes and containers as documented at the fields.
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

    /// Whether the state in a list reply equals the known state, so that no inspection is needed. A cancelled start is
    /// known as Created and listed as Exited.
    pub fn agrees_with(&self, listed: ContainerState) -> bool {
        self.state == listed || (self.start_cancelled && listed == ContainerState::Exited)
    }

    /// Whether it exited with code 0 and was not OOM-killed.
    pub fn succeeded(&self) -> bool {
        self.state == ContainerState::Exited
            && self.exit_code == 0
            && &*self.reason != super::reasons::OOM_KILLED
    }
}
