//! Labels and annotations on sandboxes, containers and pods, equal to upstream's to the letter:
//! they are how kubelets of either kind recognise each other's containers and how `crictl` shows
//! them.

/// Label: name of the pod.
pub const POD_NAME: &str = "io.kubernetes.pod.name";
/// Label: namespace of the pod.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Label: UID of the pod.
pub const POD_UID: &str = "io.kubernetes.pod.uid";
/// Label: name of the container.
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// Container annotation: hash of name and image, lower-case hex without padding.
pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
/// Container annotation: how often the container was restarted, decimal.
pub const CONTAINER_RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
/// Container annotation: path of the termination message inside the container.
pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
/// Container annotation: `File` or `FallbackToLogsOnError`.
pub const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
/// Container annotation: the preStop handler as JSON.
pub const PRE_STOP_HANDLER: &str = "io.kubernetes.container.preStopHandler";
/// Container annotation: the container's ports as JSON.
pub const CONTAINER_PORTS: &str = "io.kubernetes.container.ports";
/// Container annotation: `deletionGracePeriodSeconds`, decimal seconds.
pub const POD_DELETION_GRACE_PERIOD: &str = "io.kubernetes.pod.deletionGracePeriod";
/// Container annotation: `terminationGracePeriodSeconds`, decimal seconds.
pub const POD_TERMINATION_GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";

/// Pod annotation: which source the pod came from: `file`, `http` or `api`.
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// Pod annotation: when this kubelet first saw the pod, RFC 3339 with nanoseconds.
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
/// Pod annotation: UID of a static pod, which a mirror pod repeats.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
/// Pod annotation: marks an API pod as the mirror of a static one.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
/// Pod annotation of ours: version-tagged digest of the manifest as the user wrote it. A static pod
/// with a UID of its own is another pod when only this differs.
pub const SPEC_DIGEST: &str = "kubelet.rs/spec-digest";
/// Pod annotation of ours: path of the manifest file that a static pod was read from.
pub const MANIFEST: &str = "kubelet.rs/manifest";

/// Pod annotation of ours: the longest delay between restarts of the pod's containers, in place of the
/// node's (`crashLoopBackOff.maxContainerRestartPeriod`).
pub const MAX_RESTART_PERIOD: &str = "kubelet.rs/max-container-restart-period";

/// Annotation prefix by which old manifests name the AppArmor profile of the container that follows.
pub const APP_ARMOR_PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";
