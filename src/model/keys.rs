//! Labels and annotations of sandboxes, containers and pods. Except those under `kubelet.rs/`, they are identical to
//! upstream's, so that this kubelet and the Go one recognise each other's containers, and `crictl` shows them.

/// Label: name of the pod.
pub const POD_NAME: &str = "io.kubernetes.pod.name";
/// Label: namespace of the pod.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Label: UID of the pod.
pub const POD_UID: &str = "io.kubernetes.pod.uid";
/// Label: name of the container.
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// Container annotation: hash of name and image, in lower-case hexadecimal digits without padding.
pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
/// Container annotation: restart count, decimal.
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

/// Pod annotation: the pod's source: `file`, `http`, `posted` or `api`.
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// Pod annotation: when this kubelet first saw the pod, RFC 3339 with nanoseconds.
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
/// Pod annotation: UID of a static pod; its mirror pod has the same value.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
/// Pod annotation: marks an API pod as mirror pod.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
/// Pod annotation of this kubelet: version-tagged digest of the manifest as the user wrote it. For a static pod with
/// a `metadata.uid` in its manifest, a different digest means a different pod.
pub const MANIFEST_DIGEST: &str = "kubelet.rs/spec-digest";
/// Pod annotation of this kubelet: path of the manifest file of a static pod.
pub const MANIFEST: &str = "kubelet.rs/manifest";

/// Pod annotation of this kubelet: maximum delay between restarts of the pod's containers, instead of the node's
/// (`crashLoopBackOff.maxContainerRestartPeriod`).
pub const MAX_RESTART_PERIOD: &str = "kubelet.rs/max-container-restart-period";

/// Prefix of the deprecated annotation with a container's AppArmor profile; the container's name follows.
pub const APP_ARMOR_PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";
