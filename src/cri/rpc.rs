//! The calls of the CRI: gRPC path, name in metrics, deadline and concurrency limit. Pure.

use std::fmt;
use std::time::Duration;

/// Deadline of Version and Status. They are cheap, and a late reply would be outdated.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);

/// A call of the CRI, or of containerd's event service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Rpc {
    Version,
    Status,
    RuntimeConfig,
    UpdateRuntimeConfig,
    RunPodSandbox,
    StopPodSandbox,
    RemovePodSandbox,
    PodSandboxStatus,
    ListPodSandbox,
    StreamPodSandboxes,
    UpdatePodSandboxResources,
    CreateContainer,
    StartContainer,
    StopContainer,
    RemoveContainer,
    ListContainers,
    StreamContainers,
    ContainerStatus,
    UpdateContainerResources,
    CheckpointContainer,
    ReopenContainerLog,
    ExecSync,
    Exec,
    Attach,
    PortForward,
    ContainerStats,
    ListContainerStats,
    StreamContainerStats,
    PodSandboxStats,
    ListPodSandboxStats,
    StreamPodSandboxStats,
    ListMetricDescriptors,
    ListPodSandboxMetrics,
    StreamPodSandboxMetrics,
    GetContainerEvents,
    ListImages,
    StreamImages,
    ImageStatus,
    PullImage,
    RemoveImage,
    ImageFsInfo,
    /// Not part of the CRI: the event stream of containerd.
    ContainerdSubscribe,
}

/// The two kinds of heavy calls, each with its own concurrency limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum HeavyCallKind {
    /// Calls that start something; more at once make each of them slower.
    Start,
    /// Calls that stop or remove something; they never wait for starts.
    TearDown,
}

impl Rpc {
    /// Every call.
    pub const ALL: [Rpc; 42] = [
        Rpc::Version,
        Rpc::Status,
        Rpc::RuntimeConfig,
        Rpc::UpdateRuntimeConfig,
        Rpc::RunPodSandbox,
        Rpc::StopPodSandbox,
        Rpc::RemovePodSandbox,
        Rpc::PodSandboxStatus,
        Rpc::ListPodSandbox,
        Rpc::StreamPodSandboxes,
        Rpc::UpdatePodSandboxResources,
        Rpc::CreateContainer,
        Rpc::StartContainer,
        Rpc::StopContainer,
        Rpc::RemoveContainer,
        Rpc::ListContainers,
        Rpc::StreamContainers,
        Rpc::ContainerStatus,
        Rpc::UpdateContainerResources,
        Rpc::CheckpointContainer,
        Rpc::ReopenContainerLog,
        Rpc::ExecSync,
        Rpc::Exec,
        Rpc::Attach,
        Rpc::PortForward,
        Rpc::ContainerStats,
        Rpc::ListContainerStats,
        Rpc::StreamContainerStats,
        Rpc::PodSandboxStats,
        Rpc::ListPodSandboxStats,
        Rpc::StreamPodSandboxStats,
        Rpc::ListMetricDescriptors,
        Rpc::ListPodSandboxMetrics,
        Rpc::StreamPodSandboxMetrics,
        Rpc::GetContainerEvents,
        Rpc::ListImages,
        Rpc::StreamImages,
        Rpc::ImageStatus,
        Rpc::PullImage,
        Rpc::RemoveImage,
        Rpc::ImageFsInfo,
        Rpc::ContainerdSubscribe,
    ];

    /// The call for an HTTP/2 path (`/package.Service/Method`).
    pub fn from_path(path: &str) -> Option<Rpc> {
        let (service, method) = path.strip_prefix('/')?.split_once('/')?;
        match service {
            "runtime.v1.RuntimeService" | "runtime.v1.ImageService" => {
                Rpc::ALL.into_iter().find(|rpc| rpc.names().0 == method)
            }
            "containerd.services.events.v1.Events" if method == "Subscribe" => {
                Some(Rpc::ContainerdSubscribe)
            }
            _ => None,
        }
    }

    /// The name in metrics (`operation_type`), as in upstream.
    pub fn operation(self) -> &'static str {
        self.names().1
    }

    /// The gRPC method name.
    pub fn method(self) -> &'static str {
        self.names().0
    }

    fn names(self) -> (&'static str, &'static str) {
        match self {
            Rpc::Version => ("Version", "version"),
            Rpc::Status => ("Status", "status"),
            Rpc::RuntimeConfig => ("RuntimeConfig", "runtime_config"),
            Rpc::UpdateRuntimeConfig => ("UpdateRuntimeConfig", "update_runtime_config"),
            Rpc::RunPodSandbox => ("RunPodSandbox", "run_podsandbox"),
            Rpc::StopPodSandbox => ("StopPodSandbox", "stop_podsandbox"),
            Rpc::RemovePodSandbox => ("RemovePodSandbox", "remove_podsandbox"),
            Rpc::PodSandboxStatus => ("PodSandboxStatus", "podsandbox_status"),
            Rpc::ListPodSandbox => ("ListPodSandbox", "list_podsandbox"),
            Rpc::StreamPodSandboxes => ("StreamPodSandboxes", "stream_podsandboxes"),
            Rpc::UpdatePodSandboxResources => {
                ("UpdatePodSandboxResources", "update_podsandbox_resources")
            }
            Rpc::CreateContainer => ("CreateContainer", "create_container"),
            Rpc::StartContainer => ("StartContainer", "start_container"),
            Rpc::StopContainer => ("StopContainer", "stop_container"),
            Rpc::RemoveContainer => ("RemoveContainer", "remove_container"),
            Rpc::ListContainers => ("ListContainers", "list_containers"),
            Rpc::StreamContainers => ("StreamContainers", "stream_containers"),
            Rpc::ContainerStatus => ("ContainerStatus", "container_status"),
            Rpc::UpdateContainerResources => ("UpdateContainerResources", "update_container"),
            Rpc::CheckpointContainer => ("CheckpointContainer", "checkpoint_container"),
            Rpc::ReopenContainerLog => ("ReopenContainerLog", "reopen_container_log"),
            Rpc::ExecSync => ("ExecSync", "exec_sync"),
            Rpc::Exec => ("Exec", "exec"),
            Rpc::Attach => ("Attach", "attach"),
            Rpc::PortForward => ("PortForward", "port_forward"),
            Rpc::ContainerStats => ("ContainerStats", "container_stats"),
            Rpc::ListContainerStats => ("ListContainerStats", "list_container_stats"),
            Rpc::StreamContainerStats => ("StreamContainerStats", "stream_container_stats"),
            Rpc::PodSandboxStats => ("PodSandboxStats", "podsandbox_stats"),
            Rpc::ListPodSandboxStats => ("ListPodSandboxStats", "list_podsandbox_stats"),
            Rpc::StreamPodSandboxStats => ("StreamPodSandboxStats", "stream_podsandbox_stats"),
            Rpc::ListMetricDescriptors => ("ListMetricDescriptors", "list_metric_descriptors"),
            Rpc::ListPodSandboxMetrics => ("ListPodSandboxMetrics", "list_podsandbox_metrics"),
            Rpc::StreamPodSandboxMetrics => {
                ("StreamPodSandboxMetrics", "stream_podsandbox_metrics")
            }
            Rpc::GetContainerEvents => ("GetContainerEvents", "get_container_events"),
            Rpc::ListImages => ("ListImages", "list_images"),
            Rpc::StreamImages => ("StreamImages", "stream_images"),
            Rpc::ImageStatus => ("ImageStatus", "image_status"),
            Rpc::PullImage => ("PullImage", "pull_image"),
            Rpc::RemoveImage => ("RemoveImage", "remove_image"),
            Rpc::ImageFsInfo => ("ImageFsInfo", "image_fs_info"),
            Rpc::ContainerdSubscribe => ("Subscribe", "containerd_subscribe"),
        }
    }

    /// The deadline of the call, from the configured `runtimeRequestTimeout`; `None` means no deadline. StopContainer and
    /// ExecSync add the timeouts of their requests.
    pub fn deadline(self, request: Duration) -> Option<Duration> {
        match self {
            Rpc::Version | Rpc::Status => Some(request.min(STATUS_TIMEOUT)),
            Rpc::RunPodSandbox => Some(request.saturating_mul(2)),
            Rpc::PullImage | Rpc::GetContainerEvents | Rpc::ContainerdSubscribe => None,
            _ => Some(request),
        }
    }

    /// Whether the call changes something, so that its outcome is unknown if no reply arrives.
    pub fn mutates(self) -> bool {
        matches!(
            self,
            Rpc::UpdateRuntimeConfig
                | Rpc::RunPodSandbox
                | Rpc::StopPodSandbox
                | Rpc::RemovePodSandbox
                | Rpc::UpdatePodSandboxResources
                | Rpc::CreateContainer
                | Rpc::StartContainer
                | Rpc::StopContainer
                | Rpc::RemoveContainer
                | Rpc::UpdateContainerResources
                | Rpc::CheckpointContainer
                | Rpc::ReopenContainerLog
                | Rpc::ExecSync
                | Rpc::PullImage
                | Rpc::RemoveImage
        )
    }

    /// Whether the call is not cancelled at its deadline, so that the runtime can finish it. On a slow disk, a create that
    /// is cancelled each time would never succeed; one that finishes late is found and adopted.
    pub fn outlives_deadline(self) -> bool {
        matches!(
            self,
            Rpc::RunPodSandbox | Rpc::CreateContainer | Rpc::StartContainer
        )
    }

    /// Whether the call is an event stream without an end.
    pub fn is_watch(self) -> bool {
        matches!(self, Rpc::GetContainerEvents | Rpc::ContainerdSubscribe)
    }

    /// The kind of a heavy call; `None` for calls without a concurrency limit.
    pub(super) fn heavy_kind(self) -> Option<HeavyCallKind> {
        match self {
            Rpc::RunPodSandbox | Rpc::CreateContainer | Rpc::StartContainer => {
                Some(HeavyCallKind::Start)
            }
            Rpc::StopPodSandbox | Rpc::RemovePodSandbox | Rpc::RemoveContainer => {
                Some(HeavyCallKind::TearDown)
            }
            _ => None,
        }
    }
}

impl fmt::Display for Rpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.method())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(120);

    #[test]
    fn every_call_is_found_by_its_path_and_has_its_own_operation_name() {
        let mut operations = std::collections::HashSet::new();
        for rpc in Rpc::ALL {
            let path = match rpc {
                Rpc::ContainerdSubscribe => {
                    "/containerd.services.events.v1.Events/Subscribe".to_owned()
                }
                _ => format!("/runtime.v1.RuntimeService/{}", rpc.method()),
            };
            assert_eq!(Rpc::from_path(&path), Some(rpc), "{path}");
            assert!(
                operations.insert(rpc.operation()),
                "{} twice",
                rpc.operation()
            );
        }
        assert_eq!(Rpc::from_path("/grpc.health.v1.Health/Check"), None);
        assert_eq!(Rpc::from_path("nonsense"), None);
    }

    #[test]
    fn deadlines_follow_the_constants_table() {
        let table = [
            (Rpc::Version, Some(Duration::from_secs(10))),
            (Rpc::Status, Some(Duration::from_secs(10))),
            (Rpc::RunPodSandbox, Some(2 * T)),
            (Rpc::PullImage, None),
            (Rpc::GetContainerEvents, None),
            (Rpc::CreateContainer, Some(T)),
            (Rpc::ListContainers, Some(T)),
            (Rpc::StreamContainers, Some(T)),
        ];
        for (rpc, expected) in table {
            assert_eq!(rpc.deadline(T), expected, "{rpc}");
        }
        let short = Duration::from_secs(1);
        assert_eq!(Rpc::Version.deadline(short), Some(short));
    }

    #[test]
    fn what_outlives_its_deadline_also_changes_things() {
        for rpc in Rpc::ALL {
            assert!(
                rpc.mutates() || (!rpc.outlives_deadline() && rpc.heavy_kind().is_none()),
                "{rpc}"
            );
        }
    }
}
