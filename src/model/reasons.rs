//! Reasons in statuses and events; the strings are upstream's.

/// Waiting, then in the last state: the container was removed to restart all containers of its pod.
pub const RESTARTING_ALL_CONTAINERS: &str = "RestartingAllContainers";
/// A failed container is waiting for its back-off.
pub const CRASH_LOOP_BACK_OFF: &str = "CrashLoopBackOff";
/// Waiting: the container was not created yet.
pub const CONTAINER_CREATING: &str = "ContainerCreating";
/// Waiting: for init containers.
pub const POD_INITIALIZING: &str = "PodInitializing";
/// Terminated: the runtime no longer has the container.
pub const CONTAINER_STATUS_UNKNOWN: &str = "ContainerStatusUnknown";
/// Terminated with exit code 0.
pub const COMPLETED: &str = "Completed";
/// Terminated with another exit code.
pub const ERROR: &str = "Error";
/// Terminated before it ran; the reason is containerd's.
pub const START_ERROR: &str = "StartError";
/// Terminated by the kernel's out-of-memory killer.
pub const OOM_KILLED: &str = "OOMKilled";

/// The container's configuration could not be generated.
pub const CREATE_CONTAINER_CONFIG_ERROR: &str = "CreateContainerConfigError";
/// CreateContainer failed.
pub const CREATE_CONTAINER_ERROR: &str = "CreateContainerError";
/// StartContainer failed.
pub const RUN_CONTAINER_ERROR: &str = "RunContainerError";
/// The postStart hook failed.
pub const POST_START_HOOK_ERROR: &str = "PostStartHookError";

/// The image reference cannot be parsed.
pub const INVALID_IMAGE_NAME: &str = "InvalidImageName";
/// ImageStatus failed.
pub const IMAGE_INSPECT_ERROR: &str = "ImageInspectError";
/// The image is absent and its policy is `Never`.
pub const ERR_IMAGE_NEVER_PULL: &str = "ErrImageNeverPull";
/// A pull failed.
pub const ERR_IMAGE_PULL: &str = "ErrImagePull";
/// The pull is in its back-off.
pub const IMAGE_PULL_BACK_OFF: &str = "ImagePullBackOff";
/// Reported by the runtime: the registry is unavailable.
pub const REGISTRY_UNAVAILABLE: &str = "RegistryUnavailable";
/// Reported by the runtime: the image's signature is invalid.
pub const SIGNATURE_VALIDATION_FAILED: &str = "SignatureValidationFailed";

/// The node rejects a pod because it is shutting down.
pub const NODE_SHUTDOWN: &str = "NodeShutdown";

/// Events, `reason` field.
pub mod event {
    /// A pod is not admitted yet (an extension of this kubelet).
    pub const ADMISSION_PENDING: &str = "AdmissionPending";
    /// The API server is not that of the cluster from which the node's pods came (an extension of this kubelet).
    pub const OTHER_CLUSTER: &str = "OtherCluster";
    /// An image pull secret cannot be used.
    pub const FAILED_TO_RETRIEVE_IMAGE_PULL_SECRET: &str = "FailedToRetrieveImagePullSecret";
    /// A container was created.
    pub const CREATED: &str = "Created";
    /// A container was started.
    pub const STARTED: &str = "Started";
    /// An operation on a container failed.
    pub const FAILED: &str = "Failed";
    /// A container is being stopped.
    pub const KILLING: &str = "Killing";
    /// A restart or a pull is in its back-off.
    pub const BACK_OFF: &str = "BackOff";
    /// A pull starts.
    pub const PULLING: &str = "Pulling";
    /// An image is present, after a pull or without one.
    pub const PULLED: &str = "Pulled";
    /// ImageStatus failed.
    pub const INSPECT_FAILED: &str = "InspectFailed";
    /// An image is absent and its policy is `Never`.
    pub const ERR_IMAGE_NEVER_PULL: &str = "ErrImageNeverPull";
    /// A sandbox is being replaced.
    pub const SANDBOX_CHANGED: &str = "SandboxChanged";
    /// The cgroup of a pod could not be created or configured.
    pub const FAILED_CREATE_POD_CONTAINER: &str = "FailedCreatePodContainer";
    /// The resource claims of a pod could not be prepared.
    pub const FAILED_PREPARE_DYNAMIC_RESOURCES: &str = "FailedPrepareDynamicResources";
    /// RunPodSandbox failed.
    pub const FAILED_CREATE_POD_SANDBOX: &str = "FailedCreatePodSandBox";
    /// PodSandboxStatus failed right after creation.
    pub const FAILED_POD_SANDBOX_STATUS: &str = "FailedPodSandBoxStatus";
    /// A postStart hook failed.
    pub const FAILED_POST_START_HOOK: &str = "FailedPostStartHook";
    /// A preStop hook failed.
    pub const FAILED_PRE_STOP_HOOK: &str = "FailedPreStopHook";
    /// An https hook reached an http server, and was repeated over http.
    pub const LIFECYCLE_HTTP_FALLBACK: &str = "LifecycleHTTPFallback";
    /// A probe failed or could not be run.
    pub const UNHEALTHY: &str = "Unhealthy";
    /// A probe succeeded with a warning.
    pub const PROBE_WARNING: &str = "ProbeWarning";
    /// The runtime's network is not ready.
    pub const NETWORK_NOT_READY: &str = "NetworkNotReady";
    /// A volume could not be set up.
    pub const FAILED_MOUNT: &str = "FailedMount";
    /// The device of a block volume could not be mapped; the pod waits.
    pub const FAILED_MAP_VOLUME: &str = "FailedMapVolume";
    /// A device was mapped for a pod.
    pub const SUCCESSFUL_MOUNT_VOLUME: &str = "SuccessfulMountVolume";
    /// The files of a volume are being given to the pod's `fsGroup` for long.
    pub const VOLUME_PERMISSION_CHANGE_IN_PROGRESS: &str = "VolumePermissionChangeInProgress";
    /// A volume has been expanded on the node.
    pub const FILE_SYSTEM_RESIZE_SUCCESSFUL: &str = "FileSystemResizeSuccessful";
    /// A volume is not expanded, because it is mounted read-only.
    pub const FILE_SYSTEM_RESIZE_FAILED: &str = "FileSystemResizeFailed";
    /// The volume of a running pod could not be expanded.
    pub const VOLUME_RESIZE_FAILED: &str = "VolumeResizeFailed";
    /// A driver reports that a volume is abnormal.
    pub const VOLUME_CONDITION_ABNORMAL: &str = "VolumeConditionAbnormal";
    /// The node has too many volumes of a driver; also in `status.reason`.
    pub const VOLUME_ATTACHMENT_LIMIT_EXCEEDED: &str = "VolumeAttachmentLimitExceeded";
    /// A volume could not be torn down.
    pub const FAILED_UNMOUNT: &str = "FailedUnMount";
    /// A pod could not be synced.
    pub const FAILED_SYNC: &str = "FailedSync";
    /// A pod could not be stopped.
    pub const FAILED_KILL_POD: &str = "FailedKillPod";
    /// A pod of a source is invalid.
    pub const FAILED_VALIDATION: &str = "FailedValidation";
    /// A pod's DNS configuration was truncated to the resolver's limits.
    pub const DNS_CONFIG_FORMING: &str = "DNSConfigForming";
    /// Image garbage collection failed several times in a row.
    pub const IMAGE_GC_FAILED: &str = "ImageGCFailed";
    /// Image garbage collection freed too little space.
    pub const FREE_DISK_SPACE_FAILED: &str = "FreeDiskSpaceFailed";
    /// The image file system reports a capacity of zero.
    pub const INVALID_DISK_CAPACITY: &str = "InvalidDiskCapacity";
    /// A pod exceeded its `activeDeadlineSeconds`.
    pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
    /// A pod was preempted for a critical one; also in `status.reason`.
    pub const PREEMPTING: &str = "Preempting";
    /// A resize was allocated.
    pub const RESIZE_STARTED: &str = "ResizeStarted";
    /// All containers have the allocated resources.
    pub const RESIZE_COMPLETED: &str = "ResizeCompleted";
    /// A container could not be resized.
    pub const RESIZE_ERROR: &str = "ResizeError";
    /// A resize is deferred until the node has enough resources.
    pub const RESIZE_DEFERRED: &str = "ResizeDeferred";
    /// A resize is infeasible on this node.
    pub const RESIZE_INFEASIBLE: &str = "ResizeInfeasible";
    /// A pod was evicted because the node is low on a resource; also in `status.reason`.
    pub const EVICTED: &str = "Evicted";
    /// The node ran out of memory, and the kernel killed a process.
    pub const SYSTEM_OOM: &str = "SystemOOM";
}
