//! Reasons that users see in statuses and events, equal to upstream's strings.

/// Waiting, and then the last state: the container was removed so that all of its pod start over.
pub const RESTARTING_ALL_CONTAINERS: &str = "RestartingAllContainers";
/// A failed container is waiting for its back-off.
pub const CRASH_LOOP_BACK_OFF: &str = "CrashLoopBackOff";
/// Waiting: nothing has been done for this container yet.
pub const CONTAINER_CREATING: &str = "ContainerCreating";
/// Waiting: init containers have to finish first.
pub const POD_INITIALIZING: &str = "PodInitializing";
/// Terminated: the runtime no longer knows what became of it.
pub const CONTAINER_STATUS_UNKNOWN: &str = "ContainerStatusUnknown";
/// Terminated with exit code 0.
pub const COMPLETED: &str = "Completed";
/// Terminated with another exit code.
pub const ERROR: &str = "Error";
/// Terminated by the kernel's out-of-memory killer.
pub const OOM_KILLED: &str = "OOMKilled";

/// The container's configuration could not be made.
pub const CREATE_CONTAINER_CONFIG_ERROR: &str = "CreateContainerConfigError";
/// The runtime refused CreateContainer.
pub const CREATE_CONTAINER_ERROR: &str = "CreateContainerError";
/// The runtime refused StartContainer.
pub const RUN_CONTAINER_ERROR: &str = "RunContainerError";
/// The postStart hook failed.
pub const POST_START_HOOK_ERROR: &str = "PostStartHookError";
/// A container could not be stopped.
pub const KILL_CONTAINER_ERROR: &str = "KillContainerError";
/// A sandbox could not be created.
pub const CREATE_POD_SANDBOX_ERROR: &str = "CreatePodSandboxError";
/// A sandbox's configuration could not be made.
pub const CONFIG_POD_SANDBOX_ERROR: &str = "ConfigPodSandboxError";
/// A sandbox could not be stopped.
pub const KILL_POD_SANDBOX_ERROR: &str = "KillPodSandboxError";

/// The image reference cannot be parsed.
pub const INVALID_IMAGE_NAME: &str = "InvalidImageName";
/// Whether the runtime has the image could not be read.
pub const IMAGE_INSPECT_ERROR: &str = "ImageInspectError";
/// The image is absent and the policy forbids pulling.
pub const ERR_IMAGE_NEVER_PULL: &str = "ErrImageNeverPull";
/// A pull failed.
pub const ERR_IMAGE_PULL: &str = "ErrImagePull";
/// A pull waits for its back-off.
pub const IMAGE_PULL_BACK_OFF: &str = "ImagePullBackOff";
/// The registry could not be reached, by the runtime.
pub const REGISTRY_UNAVAILABLE: &str = "RegistryUnavailable";
/// The image's signature was rejected, by the runtime.
pub const SIGNATURE_VALIDATION_FAILED: &str = "SignatureValidationFailed";

/// The node rejects a pod because it is shutting down.
pub const NODE_SHUTDOWN: &str = "NodeShutdown";

/// Events, `reason` field.
pub mod event {
    /// A pod is not admitted yet (an extension of ours).
    pub const ADMISSION_PENDING: &str = "AdmissionPending";
    /// The API server is not of the cluster that the pods of the node came from (an extension of ours).
    pub const OTHER_CLUSTER: &str = "OtherCluster";
    /// An image pull secret cannot be used.
    pub const FAILED_TO_RETRIEVE_IMAGE_PULL_SECRET: &str = "FailedToRetrieveImagePullSecret";
    /// A container was created.
    pub const CREATED: &str = "Created";
    /// A container was started.
    pub const STARTED: &str = "Started";
    /// Something about a container failed.
    pub const FAILED: &str = "Failed";
    /// A container is being stopped.
    pub const KILLING: &str = "Killing";
    /// A restart or a pull waits.
    pub const BACK_OFF: &str = "BackOff";
    /// A pull begins.
    pub const PULLING: &str = "Pulling";
    /// An image is there.
    pub const PULLED: &str = "Pulled";
    /// An image could not be inspected.
    pub const INSPECT_FAILED: &str = "InspectFailed";
    /// The policy forbids a pull that is needed.
    pub const ERR_IMAGE_NEVER_PULL: &str = "ErrImageNeverPull";
    /// A sandbox is replaced.
    pub const SANDBOX_CHANGED: &str = "SandboxChanged";
    /// The cgroup of a pod could not be made or limited.
    pub const FAILED_CREATE_POD_CONTAINER: &str = "FailedCreatePodContainer";
    /// A claim of a pod could not be prepared.
    pub const FAILED_PREPARE_DYNAMIC_RESOURCES: &str = "FailedPrepareDynamicResources";
    /// RunPodSandbox failed.
    pub const FAILED_CREATE_POD_SANDBOX: &str = "FailedCreatePodSandBox";
    /// PodSandboxStatus failed right after creation.
    pub const FAILED_POD_SANDBOX_STATUS: &str = "FailedPodSandBoxStatus";
    /// A postStart hook failed.
    pub const FAILED_POST_START_HOOK: &str = "FailedPostStartHook";
    /// A preStop hook failed.
    pub const FAILED_PRE_STOP_HOOK: &str = "FailedPreStopHook";
    /// A hook was sent over https to a server that speaks http, and then again over http.
    pub const LIFECYCLE_HTTP_FALLBACK: &str = "LifecycleHTTPFallback";
    /// A probe failed or could not be run.
    pub const UNHEALTHY: &str = "Unhealthy";
    /// A probe succeeded with a remark.
    pub const PROBE_WARNING: &str = "ProbeWarning";
    /// The runtime's network is not ready.
    pub const NETWORK_NOT_READY: &str = "NetworkNotReady";
    /// A volume could not be set up.
    pub const FAILED_MOUNT: &str = "FailedMount";
    /// A volume could not be taken down.
    pub const FAILED_UNMOUNT: &str = "FailedUnMount";
    /// A pod could not be synced.
    pub const FAILED_SYNC: &str = "FailedSync";
    /// A pod could not be stopped.
    pub const FAILED_KILL_POD: &str = "FailedKillPod";
    /// A pod from a source was refused.
    pub const FAILED_VALIDATION: &str = "FailedValidation";
    /// A DNS configuration had to be shortened.
    pub const DNS_CONFIG_FORMING: &str = "DNSConfigForming";
    /// The node agent started.
    pub const STARTING: &str = "Starting";
    /// Unused images could not be removed, several times in a row.
    pub const IMAGE_GC_FAILED: &str = "ImageGCFailed";
    /// Removing unused images did not make enough space.
    pub const FREE_DISK_SPACE_FAILED: &str = "FreeDiskSpaceFailed";
    /// A file system has no size.
    pub const INVALID_DISK_CAPACITY: &str = "InvalidDiskCapacity";
    /// A pod outlived its deadline.
    pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
    /// A pod made room for a critical one; also `status.reason`.
    pub const PREEMPTING: &str = "Preempting";
    /// A resize was accepted.
    pub const RESIZE_STARTED: &str = "ResizeStarted";
    /// All containers have what the pod is allocated.
    pub const RESIZE_COMPLETED: &str = "ResizeCompleted";
    /// A container could not be given what the pod is allocated.
    pub const RESIZE_ERROR: &str = "ResizeError";
    /// A resize waits for room.
    pub const RESIZE_DEFERRED: &str = "ResizeDeferred";
    /// A resize cannot be done on this node.
    pub const RESIZE_INFEASIBLE: &str = "ResizeInfeasible";
    /// The node needed what the pod used; also `status.reason`.
    pub const EVICTED: &str = "Evicted";
    /// The machine ran out of memory, and the kernel killed a process.
    pub const SYSTEM_OOM: &str = "SystemOOM";
}
