//! Creating and adopting sandboxes.

use super::images::ContainerImages;
use super::pod_cgroups::PodCgroups;
use super::request::{PodSyncResult, ReadySandbox, SyncRequest};
use crate::base::{clock, error_chain};
use crate::cri::RuntimeClient;
use crate::model::reasons::event;
use crate::model::{Pod, PodExt, SandboxId};
use crate::resources::allocation::Allocations;
use crate::resources::dra::DraManager;
use crate::resources::managers::ResourceManagers;
use crate::runtime::kuberuntime::actions::PodActions;
use crate::runtime::kuberuntime::generate::{ConfigBuilder, NewSandbox};
use crate::runtime::kuberuntime::sandbox_back_off::SandboxBackOff;
use crate::runtime::kuberuntime::sandbox_lookup::SandboxLookup;
use crate::runtime::kuberuntime::{StartMetrics, translate};
use crate::state::events::{EventRecorder, ObjectRef};
use crate::state::pod_cache::{InspectedItem, ItemId, PodCache, PodRef};
use anyhow::Context as _;
use std::sync::Arc;

pub(in crate::runtime::kuberuntime) struct SandboxCreator {
    pub(in crate::runtime::kuberuntime) cgroups: PodCgroups,
    pub(in crate::runtime::kuberuntime) resources: ResourceManagers,
    pub(in crate::runtime::kuberuntime) dra: DraManager,
    pub(in crate::runtime::kuberuntime) allocations: Allocations,
    pub(in crate::runtime::kuberuntime) runtime: RuntimeClient,
    pub(in crate::runtime::kuberuntime) cache: PodCache,
    pub(in crate::runtime::kuberuntime) events: EventRecorder,
    pub(in crate::runtime::kuberuntime) builder: Arc<ConfigBuilder>,
    pub(in crate::runtime::kuberuntime) images: ContainerImages,
    pub(in crate::runtime::kuberuntime) metrics: StartMetrics,
    pub(in crate::runtime::kuberuntime) back_off: SandboxBackOff,
    pub(in crate::runtime::kuberuntime) lookup: Arc<SandboxLookup>,
}

impl SandboxCreator {
    /// The existing sandbox, with the configuration that CreateContainer needs.
    pub(super) async fn existing(
        &self,
        request: &SyncRequest<'_>,
        actions: &PodActions,
        result: &mut PodSyncResult,
    ) -> Option<ReadySandbox> {
        let id = actions.sandbox.clone()?;
        let found = request.status.sandboxes.iter().find(|s| s.id == id);
        let runs = |name: &str| request.status.runs(name);
        let actuated = self.allocations.actuated_pod(request.pod, runs);
        let config = async {
            let parent = self.cgroups.parent_for_sandbox(request.pod, &id, actuated);
            let parent = parent.await?;
            let config = self.builder.sandbox(request.pod, actions.attempt, &parent);
            config.await
        };
        match config.await {
            Ok(config) => Some(ReadySandbox {
                id,
                config,
                ips: found.map(|s| s.ips.clone()).unwrap_or_default(),
                fresh_logs: false,
            }),
            Err(error) => {
                result.error = Some(error);
                None
            }
        }
    }

    /// Creates a sandbox and reads its addresses.
    pub(super) async fn create(
        &self,
        request: &SyncRequest<'_>,
        actions: &PodActions,
    ) -> anyhow::Result<ReadySandbox> {
        let (pod, attempt) = (request.pod, actions.attempt);
        let object = ObjectRef::pod(pod);
        self.prepare_claims(request, &object).await?;
        let parent = self.cgroups.parent_for_new_sandbox(pod).await?;
        let new = async {
            let handler = self.builder.runtime_handler(pod).await?;
            let new = self.builder.new_sandbox(pod, attempt, &parent).await?;
            Ok((handler, new))
        };
        let new: anyhow::Result<_> = new.await;
        let (handler, NewSandbox { mut config, warnings, fresh_logs }) =
            new.inspect_err(|error| {
                let text = format!("Failed to create pod sandbox: {}", error_chain(error.as_ref()));
                self.events.warning(&object, event::FAILED_CREATE_POD_SANDBOX, text);
            })?;
        let spec = pod.spec();
        let node = spec.and_then(|spec| spec.node_name.as_deref().map(ObjectRef::node));
        for warning in warnings {
            let about = node.as_ref().filter(|_| warning.about_node);
            let about = about.unwrap_or(&object);
            self.events.warning(about, warning.reason, warning.message);
        }
        self.resources.pre_create_sandbox(pod, &mut config);
        self.images.prefetch(request, actions, &config);
        let _creating = self.cache.creation_guard(pod.uid());
        let started_at = clock::instant();
        let created = self.runtime.run_pod_sandbox(config.clone(), &handler).await;
        self.metrics.run_pod_sandbox_called(&handler, clock::since(started_at), created.is_err());
        let id = match created {
            Ok(id) => {
                // The name was free, so an earlier creation with an unknown outcome did not create a sandbox.
                self.lookup.forget(&pod.uid());
                SandboxId::from(id)
            }
            Err(error) => {
                let text = format!("Failed to create pod sandbox: {}", error.grpc_text());
                self.events.warning(&object, event::FAILED_CREATE_POD_SANDBOX, text);
                if error.may_have_created() {
                    self.lookup.record_unknown_creation(pod.uid());
                    if let Err(error) = Box::pin(self.lookup.adopt(&PodRef::of(pod))).await {
                        tracing::warn!(
                            pod = %pod.log_name(),
                            err = %error,
                            "Failed to look up a sandbox that may have been created"
                        );
                    }
                }
                return Err(error).context("failed to create pod sandbox");
            }
        };
        self.cgroups.record_parent(pod.uid(), &id, &parent);
        self.allocations.set_actuated_pod_level(pod);
        if let Some(change) = actions.sandbox_change {
            self.back_off.record_replacement(pod.uid(), change, clock::instant());
        }
        let ips = self.read_new_sandbox(pod, &id).await?;
        Ok(ReadySandbox { id, config, ips, fresh_logs })
    }

    /// Has the DRA drivers prepare the pod's resource claims.
    async fn prepare_claims(
        &self,
        request: &SyncRequest<'_>,
        object: &ObjectRef,
    ) -> anyhow::Result<()> {
        let preparing = self.dra.prepare(request.pod);
        let prepared = request.cancel.run_until_cancelled(preparing).await;
        let prepared = prepared.context("the sync was cancelled")?;
        let prepared = prepared.context("prepare dynamic resources");
        prepared.inspect_err(|error| {
            let text =
                format!("Failed to prepare dynamic resources: {}", error_chain(error.as_ref()));
            self.events.warning(object, event::FAILED_PREPARE_DYNAMIC_RESOURCES, text);
        })
    }

    /// Reads the status of a new sandbox into the pod cache and returns its addresses.
    async fn read_new_sandbox(&self, pod: &Pod, id: &SandboxId) -> anyhow::Result<Vec<String>> {
        let pod_ref = PodRef::of(pod);
        let item = ItemId::Sandbox(id.clone());
        let seq = self.cache.next_seq();
        match self.runtime.pod_sandbox_status(id.as_str(), false).await {
            Ok(reply) => {
                let status = translate::sandbox_status(
                    &reply.sandbox,
                    self.cache.strings(),
                    self.cache.address_order(),
                );
                let Some(status) = status.map(|entry| entry.status) else {
                    self.cache.touch(&pod_ref, item, None);
                    anyhow::bail!("the runtime reports the new sandbox without the pod's labels");
                };
                let ips = status.ips.clone();
                self.cache.apply_read(&pod_ref, &item, seq, InspectedItem::Sandbox(status));
                Ok(ips)
            }
            Err(error) => {
                self.cache.touch(&pod_ref, item, None);
                let text = format!("Unable to get pod sandbox status: {}", error.grpc_text());
                let object = ObjectRef::pod(pod);
                self.events.warning(&object, event::FAILED_POD_SANDBOX_STATUS, text);
                Err(error).context("cannot read the new sandbox")
            }
        }
    }
}
