//! The record of one pod, as stored in its file.

use super::Exits;
use crate::model::{
    ContainerId, ContainerState, ContainerStatus, Pod, PodExt, PodSource, ProbeKind, ProbeResult,
    SandboxId, keys,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The record of one pod. Unknown fields, of a newer kubelet, are ignored, so that the rest is still read after a
/// downgrade.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodRecord {
    pub(super) version: u32,
    /// Origin of the pod; `None` in records of kubelets that did not store it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<PodOrigin>,
    /// The pod reached a terminal phase and must never run again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalRecord>,
    /// The sandbox in which all init containers of the pod have finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initialized_in: Option<String>,
    /// Restart back-off by container name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub back_off: BTreeMap<String, SavedBackOff>,
    /// Probe results per container instance; `Unknown` is not stored.
    #[serde(
        rename = "probeResults",
        alias = "verdicts",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub probe_results: BTreeMap<String, SavedProbeResults>,
    /// The last published API status, unless `terminal` has it. Shared with the status manager.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "status")]
    pub status: Option<Arc<api::PodStatus>>,
    /// A `RestartAllContainers` action in progress; cleared when the pod may start again, before its first container is
    /// started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_all: Option<RestartAll>,
    /// Exits of containers whose instances may have been removed, by container name.
    #[serde(skip_serializing_if = "Exits::is_empty")]
    pub exits: Exits,
    /// Container instances whose postStart hook is not known to have finished.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub post_start_pending: Vec<String>,
    /// Container instances whose preStop hook has run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pre_stop_ran: Vec<String>,
    /// Container instances that the kubelet kills, or has killed, in order to start their successors, by container name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub killed_to_restart: KilledToRestart,
}

/// The origin of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodOrigin {
    /// The source, as in the annotation `kubernetes.io/config.source`.
    pub source: String,
    /// Path of the manifest file, if it was read from one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// Digest of the manifest, if it has one.
    #[serde(rename = "specDigest", skip_serializing_if = "Option::is_none")]
    pub manifest_digest: Option<String>,
}

impl PodOrigin {
    /// The origin that the pod's annotations state.
    pub fn of(pod: &Pod) -> Self {
        let text = |key: &str| pod.annotation(key).map(str::to_owned);
        Self {
            source: text(keys::CONFIG_SOURCE).unwrap_or_default(),
            manifest: text(keys::MANIFEST),
            manifest_digest: text(keys::MANIFEST_DIGEST),
        }
    }

    /// Whether this is the origin that the pod's annotations state.
    pub fn is_of(&self, pod: &Pod) -> bool {
        pod.annotation(keys::CONFIG_SOURCE).unwrap_or_default() == self.source
            && pod.annotation(keys::MANIFEST) == self.manifest.as_deref()
            && pod.annotation(keys::MANIFEST_DIGEST) == self.manifest_digest.as_deref()
    }

    /// The source; `None` if the stored text is not a known source.
    pub fn source(&self) -> Option<PodSource> {
        PodSource::parse(&self.source)
    }
}

/// The final state of a terminated pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TerminalRecord {
    /// The final API status: phase, conditions and container states with exit codes. `None` if it cannot be decoded.
    #[serde(deserialize_with = "status")]
    pub status: Option<Arc<api::PodStatus>>,
    /// Sandboxes that were stopped since then: their resources have been released.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stopped_sandboxes: Vec<String>,
}

/// One container's restart back-off.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedBackOff {
    /// [`crate::model::back_off_key`].
    pub key: u64,
    /// Current delay in seconds.
    pub delay_seconds: u64,
    /// When the last start was admitted (upstream's `lastUpdate`).
    pub since: Timestamp,
}

/// A `RestartAllContainers` action in progress.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestartAll {
    /// Name of the container whose exit triggered it.
    pub container: String,
    /// When that container exited.
    pub finished_at: Timestamp,
    /// The instances to remove.
    pub instances: Vec<String>,
}

/// The probe results of one container instance; true means success.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SavedProbeResults {
    /// Liveness.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub liveness: Option<bool>,
    /// Readiness.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readiness: Option<bool>,
    /// Startup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub startup: Option<bool>,
}

impl SavedProbeResults {
    fn slot(&mut self, kind: ProbeKind) -> &mut Option<bool> {
        match kind {
            ProbeKind::Liveness => &mut self.liveness,
            ProbeKind::Readiness => &mut self.readiness,
            ProbeKind::Startup => &mut self.startup,
        }
    }
}

/// The instances, by the names of their containers, that the kubelet has killed in order to start their successors.
pub type KilledToRestart = BTreeMap<String, String>;

/// Whether the kubelet has killed an instance in order to start its successor. The exit is not final then, whatever the
/// restart policy and the exit code.
pub fn was_killed_to_restart(kills: &KilledToRestart, container: &ContainerStatus) -> bool {
    let killed = kills.get(&*container.name);
    container.state == ContainerState::Exited
        && killed.is_some_and(|id| *id == *container.id.as_str())
}

impl PodRecord {
    /// The last published status.
    pub fn last_status(&self) -> Option<Arc<api::PodStatus>> {
        match &self.terminal {
            Some(terminal) => terminal.status.clone(),
            None => self.status.clone(),
        }
    }

    /// Stores a probe result; `Unknown` removes it.
    pub fn set_probe_result(
        &mut self,
        id: &ContainerId,
        kind: ProbeKind,
        probe_result: ProbeResult,
    ) {
        let saved = self.probe_results.entry(id.to_string()).or_default();
        *saved.slot(kind) = match probe_result {
            ProbeResult::Success => Some(true),
            ProbeResult::Failure => Some(false),
            ProbeResult::Unknown => None,
        };
        if *saved == SavedProbeResults::default() {
            self.probe_results.remove(id.as_str());
        }
    }

    /// The stored result of a probe.
    pub fn probe_result(&self, id: &ContainerId, kind: ProbeKind) -> Option<ProbeResult> {
        let mut saved = self.probe_results.get(id.as_str())?.clone();
        saved.slot(kind).map(|ok| if ok { ProbeResult::Success } else { ProbeResult::Failure })
    }

    /// [`PodRecord::initialized_in`] as a sandbox ID.
    pub fn initialized_sandbox(&self) -> Option<SandboxId> {
        self.initialized_in.as_deref().map(SandboxId::from)
    }

    /// The instances of [`PodRecord::restart_all`] as container IDs.
    pub fn restart_all_instances(&self) -> Vec<ContainerId> {
        let instances = self.restart_all.iter().flat_map(|r| &r.instances);
        instances.map(|id| ContainerId::from(id.as_str())).collect()
    }

    /// Whether the postStart hook of an instance has not ended. Until then the container is not ready for anything else:
    /// the API shows the container as it was before this instance, and it is not probed.
    pub fn is_in_post_start(&self, container: &ContainerStatus) -> bool {
        let mut pending = self.post_start_pending.iter();
        container.state != ContainerState::Exited && pending.any(|id| *id == *container.id.as_str())
    }

    /// Whether the kubelet has killed an instance in order to start its successor.
    pub fn was_killed_to_restart(&self, container: &ContainerStatus) -> bool {
        was_killed_to_restart(&self.killed_to_restart, container)
    }

    /// Removes the facts of container instances for which `keep` returns false, except `killed_to_restart`, which also
    /// decides about a recorded exit.
    pub fn retain_containers(&mut self, mut keep: impl FnMut(&str) -> bool) {
        self.probe_results.retain(|id, _| keep(id));
        self.post_start_pending.retain(|id| keep(id));
        self.pre_stop_ran.retain(|id| keep(id));
    }

    /// Whether there is nothing to store but the version.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self { version: self.version, ..Self::default() }
    }
}

/// Decodes a status. One that cannot be decoded becomes `None`, so that the rest of the record is kept.
fn status<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Arc<api::PodStatus>>, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    Ok(serde_json::from_value(value).ok())
}

/// The part of the status that earlier versions stored.
#[derive(Debug, Deserialize)]
pub(super) struct PartialStatus {
    #[serde(default)]
    conditions: BTreeMap<String, ConditionSince>,
    started: Option<Timestamp>,
    phase: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ConditionSince {
    status: bool,
    since: Timestamp,
}

impl PartialStatus {
    pub(super) fn status(self) -> Option<Arc<api::PodStatus>> {
        let condition = |(name, known): (String, ConditionSince)| api::PodCondition {
            type_: name,
            status: if known.status { "True" } else { "False" }.into(),
            last_transition_time: Some(Time(known.since)),
            ..api::PodCondition::default()
        };
        let known = !self.conditions.is_empty() || self.started.is_some();
        known.then(|| {
            Arc::new(api::PodStatus {
                phase: self.phase,
                conditions: Some(self.conditions.into_iter().map(condition).collect()),
                start_time: self.started.map(Time),
                ..api::PodStatus::default()
            })
        })
    }
}
