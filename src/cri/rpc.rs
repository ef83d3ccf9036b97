//! The calls of the CRI: gRPC path, name in metrics, deadline and concurrency limit. Pure.

use std::fmt;
use std::time::Duration;

/// Deadline of Version and Status. They are cheap, and a late reply would be outdated.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);

/// The calls of the CRI, each with its name in metrics.
macro_rules! rpcs {
    ($($(#[$doc:meta])* $name:ident $operation:literal,)*) => {
        /// A call of the CRI, or of containerd's event service.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs)]
        pub enum Rpc {
            $($(#[$doc])* $name,)*
        }

        impl Rpc {
            /// Every call.
            pub const ALL: &[Rpc] = &[$(Rpc::$name),*];

            /// The name in metrics (`operation_type`), as in upstream.
            pub fn operation(self) -> &'static str {
                match self {
                    $(Rpc::$name => $operation,)*
                }
            }

            /// The gRPC method name.
            pub fn method(self) -> &'static str {
                match self {
                    $(Rpc::$name => stringify!($name),)*
                }
            }
        }
    };
}

rpcs! {
    Version "version",
    Status "status",
    RuntimeConfig "runtime_config",
    RunPodSandbox "run_podsandbox",
    StopPodSandbox "stop_podsandbox",
    RemovePodSandbox "remove_podsandbox",
    PodSandboxStatus "podsandbox_status",
    ListPodSandbox "list_podsandbox",
    StreamPodSandboxes "stream_podsandboxes",
    UpdatePodSandboxResources "update_podsandbox_resources",
    CreateContainer "create_container",
    StartContainer "start_container",
    StopContainer "stop_container",
    RemoveContainer "remove_container",
    ListContainers "list_containers",
    StreamContainers "stream_containers",
    ContainerStatus "container_status",
    UpdateContainerResources "update_container",
    CheckpointContainer "checkpoint_container",
    ReopenContainerLog "reopen_container_log",
    ExecSync "exec_sync",
    Exec "exec",
    Attach "attach",
    PortForward "port_forward",
    ContainerStats "container_stats",
    ListContainerStats "list_container_stats",
    StreamContainerStats "stream_container_stats",
    GetContainerEvents "get_container_events",
    ListImages "list_images",
    ImageStatus "image_status",
    PullImage "pull_image",
    RemoveImage "remove_image",
    ImageFsInfo "image_fs_info",
    /// Not part of the CRI: the event stream of containerd.
    Subscribe "containerd_subscribe",
}

/// The two kinds of heavy calls, each with its own concurrency limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum HeavyCallKind {
    /// Calls that start something; more at once make each of them slower.
    Start,
    /// StopPodSandbox, RemovePodSandbox and RemoveContainer; they never wait for starts. StopContainer has no limit,
    /// because it lasts as long as the grace period.
    TearDown,
}

impl Rpc {
    /// The call for an HTTP/2 path (`/package.Service/Method`).
    pub fn from_path(path: &str) -> Option<Rpc> {
        let (service, method) = path.strip_prefix('/')?.split_once('/')?;
        match service {
            "runtime.v1.RuntimeService" | "runtime.v1.ImageService" => {
                Rpc::ALL.iter().copied().find(|rpc| rpc.method() == method)
            }
            "containerd.services.events.v1.Events" if method == "Subscribe" => Some(Rpc::Subscribe),
            _ => None,
        }
    }

    /// The deadline of the call, from the configured `runtimeRequestTimeout`; `None` means no deadline. StopContainer and
    /// ExecSync add the timeouts of their requests.
    pub fn deadline(self, request: Duration) -> Option<Duration> {
        match self {
            Rpc::Version | Rpc::Status => Some(request.min(STATUS_TIMEOUT)),
            Rpc::RunPodSandbox => Some(request.saturating_mul(2)),
            Rpc::PullImage | Rpc::GetContainerEvents | Rpc::Subscribe => None,
            _ => Some(request),
        }
    }

    /// Whether the call changes something, so that its outcome is unknown if no reply arrives.
    pub fn mutates(self) -> bool {
        matches!(
            self,
            Rpc::RunPodSandbox
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
        matches!(self, Rpc::RunPodSandbox | Rpc::CreateContainer | Rpc::StartContainer)
    }

    /// Whether the call is an event stream without an end.
    pub fn is_watch(self) -> bool {
        matches!(self, Rpc::GetContainerEvents | Rpc::Subscribe)
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
        for &rpc in Rpc::ALL {
            let path = match rpc {
                Rpc::Subscribe => "/containerd.services.events.v1.Events/Subscribe".to_owned(),
                _ => format!("/runtime.v1.RuntimeService/{}", rpc.method()),
            };
            assert_eq!(Rpc::from_path(&path), Some(rpc), "{path}");
            assert!(operations.insert(rpc.operation()), "{} twice", rpc.operation());
        }
        assert_eq!(Rpc::from_path("/grpc.health.v1.Health/Check"), None);
        assert_eq!(Rpc::from_path("nonsense"), None);
    }

    #[test]
    fn deadlines_derive_from_the_request_timeout() {
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
        for &rpc in Rpc::ALL {
            assert!(
                rpc.mutates() || (!rpc.outlives_deadline() && rpc.heavy_kind().is_none()),
                "{rpc}"
            );
        }
    }
}
