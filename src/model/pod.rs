//! Accessors for pod objects.

use super::{PodFullName, PodLogName, PodSource, PodUid, keys, positive_grace};
use crate::base::{GoDuration, named_enum};
use k8s_openapi::api::core::v1::{Container, EphemeralContainer, PodSpec};
use std::ops::RangeInclusive;
use std::time::Duration;

/// The API's pod. Shared as `Arc<Pod>`, and immutable once a source has delivered it.
pub type Pod = k8s_openapi::api::core::v1::Pod;

/// The valid range of maximum restart delays, per pod and per node.
pub const RESTART_PERIODS: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(300);

/// Parses the value of [`keys::MAX_RESTART_PERIOD`]; `None` if it is not a duration in [`RESTART_PERIODS`].
pub fn parse_restart_period(text: &str) -> Option<Duration> {
    let period = text.parse::<GoDuration>().ok()?.to_std();
    RESTART_PERIODS.contains(&period).then_some(period)
}

/// The lowest priority of system-critical pods.
pub const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// Whether an init container is a sidecar (`restartPolicy: Always`).
pub fn is_sidecar(init_container: &Container) -> bool {
    init_container.restart_policy.as_deref() == Some("Always")
}

/// The ephemeral container as a regular one, without its target.
pub fn as_container(ephemeral: &EphemeralContainer) -> Container {
    // Without `..`, so that a new field of either type is a compile error.
    macro_rules! container_of {
        ($($field:ident)*) => {{
            let EphemeralContainer { $($field,)* target_container_name: _ } = ephemeral.clone();
            Container { $($field,)* }
        }};
    }
    container_of! {
        args command env env_from image image_pull_policy lifecycle liveness_probe name ports
        readiness_probe resize_policy resources restart_policy restart_policy_rules security_context
        startup_probe stdin stdin_once termination_message_path termination_message_policy tty
        volume_devices volume_mounts working_dir
    }
}

named_enum! {
    /// `restartPolicy` of a pod or a container.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum RestartPolicy {
        /// Restart after every exit.
        Always = "Always",
        /// Restart after a failure.
        OnFailure = "OnFailure",
        /// Never restart.
        Never = "Never",
    }
}

impl RestartPolicy {
    /// Whether a container is restarted after an exit with this code.
    pub fn restarts_after(self, exit_code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => exit_code != 0,
            Self::Never => false,
        }
    }
}

/// Accessors without the `Option`s of API types.
pub trait PodExt {
    /// `metadata.uid`.
    fn uid(&self) -> PodUid;
    /// `metadata.name`, or "".
    fn name(&self) -> &str;
    /// `metadata.namespace`, or "".
    fn namespace(&self) -> &str;
    /// `<name>_<namespace>`.
    fn full_name(&self) -> PodFullName;
    /// `<namespace>/<name>`, for log messages.
    fn log_name(&self) -> PodLogName<'_>;
    /// Value of an annotation.
    fn annotation(&self, key: &str) -> Option<&str>;
    /// The spec; `None` only for pods that were not validated.
    fn spec(&self) -> Option<&PodSpec>;
    /// Regular containers.
    fn containers(&self) -> &[Container];
    /// Init containers, sidecars included, in spec order.
    fn init_containers(&self) -> &[Container];
    /// Ephemeral containers.
    fn ephemeral_containers(&self) -> &[EphemeralContainer];
    /// The regular or init container of this name.
    fn container(&self, name: &str) -> Option<&Container>;
    /// The pod's policy; `Always` by default.
    fn restart_policy(&self) -> RestartPolicy;
    /// The pod's own maximum restart delay ([`keys::MAX_RESTART_PERIOD`]), if it has one.
    fn max_restart_period(&self) -> Option<Duration>;
    /// `hostNetwork: true`.
    fn host_network(&self) -> bool;
    /// Whether it comes from another source than the API server.
    fn is_static(&self) -> bool;
    /// Whether it is a mirror pod, the API server's copy of a static pod.
    fn is_mirror(&self) -> bool;
    /// Whether it is static or system-critical: it is not evicted, and other pods are preempted for it.
    fn is_critical(&self) -> bool;
    /// `terminationGracePeriodSeconds`, default 30 s; never negative.
    fn termination_grace_seconds(&self) -> i64;
    /// `deletionTimestamp` is set.
    fn is_being_deleted(&self) -> bool;
    /// Phase is Failed or Succeeded.
    fn is_terminal(&self) -> bool;
}

impl PodExt for Pod {
    fn uid(&self) -> PodUid {
        PodUid::from(self.metadata.uid.as_deref().unwrap_or_default())
    }

    fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }

    fn full_name(&self) -> PodFullName {
        PodFullName::of(self.name(), self.namespace())
    }

    fn log_name(&self) -> PodLogName<'_> {
        PodLogName { namespace: self.namespace(), name: self.name() }
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    fn spec(&self) -> Option<&PodSpec> {
        self.spec.as_ref()
    }

    fn containers(&self) -> &[Container] {
        self.spec.as_ref().map_or(&[], |spec| &spec.containers)
    }

    fn init_containers(&self) -> &[Container] {
        self.spec.as_ref().and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default()
    }

    fn ephemeral_containers(&self) -> &[EphemeralContainer] {
        let spec = self.spec.as_ref();
        spec.and_then(|spec| spec.ephemeral_containers.as_deref()).unwrap_or_default()
    }

    fn container(&self, name: &str) -> Option<&Container> {
        self.containers().iter().chain(self.init_containers()).find(|c| c.name == name)
    }

    fn restart_policy(&self) -> RestartPolicy {
        self.spec
            .as_ref()
            .and_then(|spec| RestartPolicy::parse(spec.restart_policy.as_deref()?))
            .unwrap_or(RestartPolicy::Always)
    }

    fn max_restart_period(&self) -> Option<Duration> {
        parse_restart_period(self.annotation(keys::MAX_RESTART_PERIOD)?)
    }

    fn host_network(&self) -> bool {
        self.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or(false)
    }

    fn is_static(&self) -> bool {
        match self.annotation(keys::CONFIG_SOURCE) {
            Some(source) => PodSource::parse(source) != Some(PodSource::Api),
            None => false,
        }
    }

    fn is_mirror(&self) -> bool {
        self.annotation(keys::CONFIG_MIRROR).is_some()
    }

    fn is_critical(&self) -> bool {
        let priority = self.spec().and_then(|spec| spec.priority);
        self.is_static() || self.is_mirror() || priority.unwrap_or(0) >= SYSTEM_CRITICAL_PRIORITY
    }

    fn termination_grace_seconds(&self) -> i64 {
        self.spec
            .as_ref()
            .and_then(|s| s.termination_grace_period_seconds)
            .map_or(30, positive_grace)
    }

    fn is_being_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    fn is_terminal(&self) -> bool {
        self.status.as_ref().is_some_and(is_terminal)
    }
}

/// Whether the phase of a status is Failed or Succeeded.
pub fn is_terminal(status: &k8s_openapi::api::core::v1::PodStatus) -> bool {
    matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"))
}
