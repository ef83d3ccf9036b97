//! The cgroup that a pod's sandbox and containers are made in.
//!
//! The cgroup parent is fixed when a sandbox is created: a sandbox that a kubelet with other settings created keeps its
//! parent, and so do its containers.

use crate::base::error_chain;
use crate::cri::v1::UpdatePodSandboxResourcesRequest;
use crate::cri::{CriError, RuntimeClient};
use crate::model::reasons::event;
use crate::model::{Pod, PodExt as _, PodUid, SandboxId};
use crate::resources::cm::{ContainerManager, LoweredMemoryLimit, SandboxResources};
use crate::state::events::{EventRecorder, ObjectRef};
use anyhow::Context as _;
use parking_lot::Mutex;
use serde::Deserialize;
use std::collections::HashMap;
use std::sync::Arc;

/// How a resize changes the limits of a pod's cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitChange {
    /// To the higher of the old and the new limits, before containers are updated.
    Raise,
    /// To the new limits, after that.
    Apply,
}

/// Finds and makes the cgroups of pods.
pub(in crate::runtime::kuberuntime) struct PodCgroups {
    cgroups: ContainerManager,
    runtime: RuntimeClient,
    events: EventRecorder,
    /// Cgroup parent of each pod's newest sandbox.
    parents: Mutex<HashMap<PodUid, (SandboxId, String)>>,
}

impl PodCgroups {
    pub(in crate::runtime::kuberuntime) fn new(
        cgroups: ContainerManager,
        runtime: RuntimeClient,
        events: EventRecorder,
    ) -> Self {
        Self { cgroups, runtime, events, parents: Mutex::default() }
    }

    /// Creates the cgroup of the pod and returns it as the parent of a new sandbox.
    pub(super) async fn parent_for_new_sandbox(&self, pod: &Arc<Pod>) -> anyhow::Result<String> {
        self.ensure_exists(pod, None).await
    }

    async fn ensure_exists(&self, pod: &Arc<Pod>, actuated: Option<Pod>) -> anyhow::Result<String> {
        let object = ObjectRef::pod(pod);
        let ensured = self.cgroups.ensure_exists(pod, actuated).await;
        let cgroup = ensured.map_err(|error| {
            let text =
                format!("unable to ensure pod container exists: {}", error_chain(error.as_ref()));
            self.events.warning(&object, event::FAILED_CREATE_POD_CONTAINER, text);
            error.context(format!(
                "failed to ensure that the pod: {} cgroups exist and are correctly applied",
                pod.uid()
            ))
        })?;
        if let Some(error) = cgroup.limit_error {
            let text = format!("unable to limit the pod's cgroup: {error}");
            tracing::error!(pod = %pod.log_name(), err = error, "cgroup manager.Set failed");
            self.events.warning(&object, event::FAILED_CREATE_POD_CONTAINER, text);
        }
        Ok(cgroup.parent)
    }

    /// The cgroup parent of the containers in a sandbox. If that is the pod's own cgroup, it is created; for
    /// `actuated`, see [`ContainerManager::ensure_exists`].
    pub(super) async fn parent_for_sandbox(
        &self,
        pod: &Arc<Pod>,
        id: &SandboxId,
        actuated: Option<Pod>,
    ) -> anyhow::Result<String> {
        if self.cgroups.is_off() {
            return Ok(String::new());
        }
        let (parent, is_pod_cgroup) = self.parent(pod, id).await?;
        if is_pod_cgroup {
            return self.ensure_exists(pod, actuated).await;
        }
        Ok(parent)
    }

    /// Sets the limits of a running pod, if its sandbox is in the pod's own cgroup; see
    /// [`ContainerManager::set_limits`].
    /// The runtime is notified of changed limits first, and may reject them.
    pub(super) async fn set_limits(
        &self,
        pod: &Arc<Pod>,
        id: &SandboxId,
        actuated: &Arc<Pod>,
        change: LimitChange,
    ) -> anyhow::Result<()> {
        if self.cgroups.is_off() || !self.parent(pod, id).await?.1 {
            return Ok(());
        }
        let wider = self.cgroups.sandbox_resources(pod, Some(actuated))?;
        let (old, new, actuated) = match change {
            LimitChange::Raise => {
                (self.cgroups.sandbox_resources(actuated, None)?, wider, Some(actuated))
            }
            LimitChange::Apply => (wider, self.cgroups.sandbox_resources(pod, None)?, None),
        };
        if new != old {
            let notified = self.notify_runtime(id, new.clone()).await;
            notified.map_err(|error| {
                anyhow::anyhow!(
                    "failed to notify runtime for UpdatePodSandboxResources; resize rejected: {}",
                    error.grpc_text()
                )
            })?;
        }
        let limited = self.cgroups.set_limits(pod, actuated).await;
        if limited.is_err()
            && new != old
            && let Err(error) = self.notify_runtime(id, old).await
        {
            tracing::error!(
                pod = %pod.log_name(),
                podUID = %pod.uid(),
                err = %error,
                "Failed to notify runtime to rollback UpdatePodSandboxResources"
            );
        }
        limited
    }

    async fn notify_runtime(
        &self,
        id: &SandboxId,
        resources: Option<SandboxResources>,
    ) -> Result<(), CriError> {
        let Some(SandboxResources { overhead, resources }) = resources else {
            return Ok(());
        };
        let request = UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: id.to_string(),
            overhead,
            resources: Some(resources),
        };
        self.runtime.update_pod_sandbox_resources(request).await
    }

    /// The memory limit that a resize lowers, if the sandbox is in the pod's own cgroup; see
    /// [`ContainerManager::lowered_memory_limit`].
    pub(super) async fn lowered_memory_limit(
        &self,
        pod: &Arc<Pod>,
        id: &SandboxId,
        actuated: &Arc<Pod>,
    ) -> anyhow::Result<Option<LoweredMemoryLimit>> {
        if self.cgroups.is_off() || !self.parent(pod, id).await?.1 {
            return Ok(None);
        }
        self.cgroups.lowered_memory_limit(pod, actuated).await
    }

    /// The cgroup parent of a sandbox, and whether that is the pod's cgroup.
    async fn parent(&self, pod: &Pod, id: &SandboxId) -> anyhow::Result<(String, bool)> {
        let pod_cgroup = self.cgroups.pod_cgroup_parent(pod)?;
        let known = self.parents.lock().get(&pod.uid()).cloned();
        let parent = match known.filter(|(known, _)| known == id) {
            Some((_, parent)) => parent,
            None => self.read(id, &pod_cgroup).await?,
        };
        self.record_parent(pod.uid(), id, &parent);
        let is_pod_cgroup = parent == pod_cgroup;
        Ok((parent, is_pod_cgroup))
    }

    /// Records the cgroup parent of a sandbox.
    pub(super) fn record_parent(&self, uid: PodUid, id: &SandboxId, parent: &str) {
        if !self.cgroups.is_off() {
            let made = (id.clone(), parent.to_owned());
            self.parents.lock().insert(uid, made);
        }
    }

    pub(in crate::runtime::kuberuntime) fn forget(&self, uid: &PodUid) {
        self.parents.lock().remove(uid);
    }

    /// Reads a sandbox's parent from the runtime; `pod_cgroup` where the runtime does not show it.
    async fn read(&self, id: &SandboxId, pod_cgroup: &str) -> anyhow::Result<String> {
        let reply = self.runtime.pod_sandbox_status(id.as_str(), true).await;
        let info = reply.context("cannot read the cgroup of the sandbox")?.info;
        let Some(parent) = info.values().find_map(|text| parent_of(text)) else {
            return Ok(pod_cgroup.to_owned());
        };
        // The runtime may report only the last component of a slice.
        let base = |path: &str| path.rsplit('/').next().map(str::to_owned);
        let same = parent.ends_with(".slice") && base(&parent) == base(pod_cgroup);
        Ok(if same { pod_cgroup.to_owned() } else { parent })
    }
}

#[derive(Deserialize)]
struct Info {
    config: Option<Config>,
    #[serde(rename = "runtimeSpec")]
    runtime_spec: Option<RuntimeSpec>,
}

#[derive(Deserialize)]
struct Config {
    linux: Option<LinuxConfig>,
}

#[derive(Deserialize)]
struct LinuxConfig {
    #[serde(default)]
    cgroup_parent: String,
}

#[derive(Deserialize)]
struct RuntimeSpec {
    linux: Option<LinuxSpec>,
}

#[derive(Deserialize)]
struct LinuxSpec {
    #[serde(rename = "cgroupsPath", default)]
    cgroups_path: String,
}

/// The cgroup parent of a sandbox from its verbose status: containerd reports the configuration, all runtimes report the
/// sandbox's cgroup path.
fn parent_of(info: &str) -> Option<String> {
    let info: Info = serde_json::from_str(info).ok()?;
    if let Some(linux) = info.config.and_then(|config| config.linux) {
        return Some(linux.cgroup_parent);
    }
    let path = info.runtime_spec?.linux?.cgroups_path;
    // `SLICE:PREFIX:NAME` for systemd.
    if let Some((slice, _)) = path.split_once(':') {
        return Some(slice.to_owned());
    }
    let (parent, _) = path.rsplit_once('/')?;
    Some(parent.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_found_in_what_runtimes_show() {
        for (info, parent) in [
            (
                r#"{"pid":7,"config":{"linux":{"cgroup_parent":"/kubepods/podu","sysctls":{}}}}"#,
                Some("/kubepods/podu"),
            ),
            (
                r#"{"config":{"linux":{}},"runtimeSpec":{"linux":{"cgroupsPath":"/k8s.io/id"}}}"#,
                Some(""),
            ),
            (
                r#"{"runtimeSpec":{"linux":{"cgroupsPath":"/kubepods/podu/crio-1"}}}"#,
                Some("/kubepods/podu"),
            ),
            (
                r#"{"runtimeSpec":{"linux":{"cgroupsPath":"kubepods-podu.slice:crio:1"}}}"#,
                Some("kubepods-podu.slice"),
            ),
            (r#"{"runtimeSpec":{"linux":{}}}"#, None),
            (r#"{"config":{}}"#, None),
            ("nonsense", None),
        ] {
            assert_eq!(parent_of(info).as_deref(), parent, "{info}");
        }
    }
}
