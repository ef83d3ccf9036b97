//! The probes in a pod's spec. Pure.

use super::state::ProbeRules;
use super::{ProbeSlot, ProbeSnapshot, ProbeTaskState};
use crate::model::{Pod, PodExt, ProbeKind, RestartPolicy, is_sidecar};
use crate::runtime::handlers::Handler;
use crate::runtime::kuberuntime::generate::env::expansion::expand;
use k8s_openapi::api::core::v1::{Container, EnvVar, Probe};
use std::time::Duration;

const KINDS: [ProbeKind; 3] = [ProbeKind::Startup, ProbeKind::Readiness, ProbeKind::Liveness];

/// The probes of regular containers and sidecars.
pub(super) fn probes_of(pod: &Pod) -> Vec<ProbeSlot> {
    let sidecars = pod.init_containers().iter().filter(|c| is_sidecar(c));
    let mut slots = Vec::new();
    for container in pod.containers().iter().chain(sidecars) {
        let probed = KINDS.into_iter().filter(|kind| probe(container, *kind).is_some());
        slots.extend(probed.map(|kind| ProbeSlot {
            container: container.name.as_str().into(),
            kind,
            task: ProbeTaskState::Running { started: None },
            seen: ProbeSnapshot::default(),
        }));
    }
    slots
}

pub(super) fn probe(container: &Container, kind: ProbeKind) -> Option<&Probe> {
    match kind {
        ProbeKind::Liveness => container.liveness_probe.as_ref(),
        ProbeKind::Readiness => container.readiness_probe.as_ref(),
        ProbeKind::Startup => container.startup_probe.as_ref(),
    }
}

/// Parameters with the API's defaults for absent or invalid values.
pub(super) fn rules(probe: &Probe, kind: ProbeKind) -> ProbeRules {
    let positive = |value: Option<i32>, default| match value.map(u32::try_from) {
        Some(Ok(value)) if value > 0 => value,
        _ => default,
    };
    let delay = probe.initial_delay_seconds.unwrap_or(0);
    ProbeRules {
        kind,
        period: seconds(positive(probe.period_seconds, 10)),
        initial_delay: seconds(u32::try_from(delay).unwrap_or(0)),
        success_threshold: positive(probe.success_threshold, 1),
        failure_threshold: positive(probe.failure_threshold, 3),
        runs_command: probe.exec.is_some(),
    }
}

/// How long one run may take.
pub(super) fn timeout(probe: &Probe) -> Duration {
    match probe.timeout_seconds.map(u32::try_from) {
        Some(Ok(value)) if value > 0 => seconds(value),
        _ => seconds(1),
    }
}

fn seconds(value: u32) -> Duration {
    Duration::from_secs(value.into())
}

/// Whether another instance may follow one of this container that exited.
pub(super) fn restarts(pod: &Pod, container: &Container) -> bool {
    RestartPolicy::of(pod, container) != RestartPolicy::Never
        || container.restart_policy_rules.is_some()
}

/// The handler of a probe, `$(VAR)` in commands expanded from values that stand in the spec itself: a
/// probe sees neither the environment of the container nor what `valueFrom` refers to, which counts as
/// empty.
pub(super) fn handler<'a>(container: &Container, probe: &'a Probe) -> Option<Handler<'a>> {
    let handler = Handler::of_probe(probe)?;
    let Handler::Exec(command) = &handler else {
        return Some(handler);
    };
    if !command.iter().any(|arg| arg.contains('$')) {
        return Some(handler);
    }
    let env = container.env.as_deref().unwrap_or_default();
    let expanded: Vec<String> =
        command.iter().map(|arg| expand(arg, |name| static_value(env, name))).collect();
    Some(Handler::Exec(expanded.into()))
}

fn static_value<'a>(env: &'a [EnvVar], name: &str) -> Option<&'a str> {
    let variable = env.iter().rfind(|variable| variable.name == name)?;
    Some(variable.value.as_deref().unwrap_or_default())
}
