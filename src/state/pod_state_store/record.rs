//! What is remembered of one pod, as it is in its file.

use super::Exit;
use crate::model::{ContainerId, Pod, PodExt, PodSource, ProbeKind, ProbeResult, SandboxId, keys};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Everything remembered of one pod. A newer kubelet may have written more than this one knows: that is
/// passed over, and the rest still counts after a step back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodRecord {
    pub(super) version: u32,
    /// Where the pod came from; `None` in records of kubelets that did not note it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// The pod reached a terminal phase and must never run again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminal: Option<Terminal>,
    /// The sandbox in which the pod's init containers are known to have finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initialized_in: Option<String>,
    /// Restart back-off per container name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub back_off: BTreeMap<String, BackOffStep>,
    /// Settled probe results per container instance.
    #[serde(
        rename = "probeResults",
        alias = "verdicts",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub probe_results: BTreeMap<String, SavedProbeResults>,
    /// Since when the pod has been active.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    /// Since when the pod's conditions are as they are, by type.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub conditions: BTreeMap<String, ConditionSince>,
    /// The last published phase of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// All containers are being restarted, and none has been started since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_all: Option<RestartAll>,
    /// How containers ended that the runtime may know nothing of any more, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub exits: BTreeMap<String, Exit>,
    /// Container instances whose postStart hook has not been seen to finish.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub post_start_pending: Vec<String>,
    /// Container instances whose preStop hook has had its run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pre_stop_ran: Vec<String>,
}

/// Where a pod came from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Origin {
    /// Its source, as in the annotation `kubernetes.io/config.source`.
    pub source: String,
    /// Path of the manifest file it was read from, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// Digest of its manifest, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec_digest: Option<String>,
}

impl Origin {
    /// What a pod says of itself.
    pub fn of(pod: &Pod) -> Self {
        let text = |key: &str| pod.annotation(key).map(str::to_owned);
        Self {
            source: text(keys::CONFIG_SOURCE).unwrap_or_default(),
            manifest: text(keys::MANIFEST),
            spec_digest: text(keys::SPEC_DIGEST),
        }
    }

    /// Whether a pod says this of itself.
    pub fn is_of(&self, pod: &Pod) -> bool {
        pod.annotation(keys::CONFIG_SOURCE).unwrap_or_default() == self.source
            && pod.annotation(keys::MANIFEST) == self.manifest.as_deref()
            && pod.annotation(keys::SPEC_DIGEST) == self.spec_digest.as_deref()
    }

    /// The source, if it is one that this kubelet knows.
    pub fn source(&self) -> Option<PodSource> {
        PodSource::parse(&self.source)
    }
}

/// A condition of a pod's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConditionSince {
    /// True or False.
    pub status: bool,
    /// When it became so.
    pub since: Timestamp,
}

/// How a pod ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Terminal {
    /// The pod's last API status, whole: phase, conditions and container states with exit codes.
    pub status: serde_json::Value,
    /// Sandboxes that have been stopped since, so that nothing of theirs is left to be given back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stopped_sandboxes: Vec<String>,
}

/// One container's restart back-off.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackOffStep {
    /// [`crate::model::back_off_key`].
    pub key: u64,
    /// Current delay in seconds.
    pub delay_seconds: u64,
    /// When the step was taken.
    pub since: Timestamp,
}

/// `RestartAllContainers` under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestartAll {
    /// Name of the container whose exit caused it.
    pub container: String,
    /// When that was.
    pub finished_at: Timestamp,
    /// The instances that go.
    pub instances: Vec<String>,
}

/// The probe results of one container instance; true is success.
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

impl PodRecord {
    /// Remembers a result; `Unknown` forgets it.
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

    /// The remembered result of one probe.
    pub fn probe_result(&self, id: &ContainerId, kind: ProbeKind) -> Option<ProbeResult> {
        let mut saved = self.probe_results.get(id.as_str())?.clone();
        saved.slot(kind).map(|ok| {
            if ok {
                ProbeResult::Success
            } else {
                ProbeResult::Failure
            }
        })
    }

    /// The sandbox of [`PodRecord::initialized_in`], typed.
    pub fn initialized_sandbox(&self) -> Option<SandboxId> {
        self.initialized_in.as_deref().map(SandboxId::from)
    }

    /// The instances of [`PodRecord::restart_all`], typed.
    pub fn resetting(&self) -> Vec<ContainerId> {
        let instances = self.restart_all.iter().flat_map(|r| &r.instances);
        instances.map(|id| ContainerId::from(id.as_str())).collect()
    }

    /// Forgets container instances that the predicate does not keep.
    pub fn retain_containers(&mut self, mut keep: impl FnMut(&str) -> bool) {
        self.probe_results.retain(|id, _| keep(id));
        self.post_start_pending.retain(|id| keep(id));
        self.pre_stop_ran.retain(|id| keep(id));
    }

    pub(super) fn is_worth_a_file(&self) -> bool {
        *self
            != Self {
                version: self.version,
                ..Self::default()
            }
    }
}
