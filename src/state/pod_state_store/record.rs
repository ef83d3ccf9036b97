//! What is remembered of one pod, as it is in its file.

use super::Exits;
use crate::model::{ContainerId, Pod, PodExt, PodSource, ProbeKind, ProbeResult, SandboxId, keys};
use jiff::Timestamp;
use k8s_openapi::{api::core::v1 as api, apimachinery::pkg::apis::meta::v1::Time};
use serde::{Deserialize, Deserializer, Serialize};
use std::{collections::BTreeMap, sync::Arc};

/// Everything remembered of one pod. A newer kubelet may have written more than this one knows: that is
/// passed over, and the rest still counts after a step back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodRecord {
    pub(super) version: u32,
    /// Where the pod came from; `None` in records of kubelets that did not note it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<PodOrigin>,
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
    /// The status that was published last, whole, unless `terminal` has it. Shared with the store of statuses.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "status")]
    pub status: Option<Arc<api::PodStatus>>,
    /// All containers are being restarted, and none has been started since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_all: Option<RestartAll>,
    /// How containers ended that the runtime may know nothing of any more, by name.
    #[serde(skip_serializing_if = "Exits::is_empty")]
    pub exits: Exits,
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
pub struct PodOrigin {
    /// Its source, as in the annotation `kubernetes.io/config.source`.
    pub source: String,
    /// Path of the manifest file it was read from, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// Digest of its manifest, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec_digest: Option<String>,
}

impl PodOrigin {
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

/// How a pod ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Terminal {
    /// The pod's last API status, whole: phase, conditions and container states with exit codes. `None` if it
    /// cannot be read.
    #[serde(deserialize_with = "status")]
    pub status: Option<Arc<api::PodStatus>>,
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
    /// The last status that was published.
    pub fn last_status(&self) -> Option<Arc<api::PodStatus>> {
        match &self.terminal {
            Some(terminal) => terminal.status.clone(),
            None => self.status.clone(),
        }
    }

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

/// A status that cannot be read is none: the rest of the record counts all the same.
fn status<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Arc<api::PodStatus>>, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    Ok(serde_json::from_value(value).ok())
}

/// What earlier versions recorded of a status: not all of it.
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
