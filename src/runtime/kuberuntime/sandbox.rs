//! Making, finding and replacing sandboxes.

use super::{
    KubeGenericRuntimeManager, actions::PodActions, generate::NewSandbox, report::SyncReport,
    sync_pod::SyncRequest, translate,
};
use crate::{
    base::chain,
    cri::{
        CriError,
        v1::{ContainerFilter, PodSandboxConfig, PodSandboxFilter},
    },
    model::{Pod, PodExt, SandboxId, keys, reasons::event},
    state::events::ObjectRef,
    state::pod_cache::{ItemId, Owner, Read},
};
use anyhow::Context as _;
use std::{collections::HashMap, time::Duration};
use tokio::time::Instant;

/// A sandbox that containers can be created in.
#[derive(Clone, Debug)]
pub(super) struct Sandbox {
    pub(super) id: SandboxId,
    pub(super) config: PodSandboxConfig,
    pub(super) ips: Vec<String>,
    /// No container of the pod has ever left a log.
    pub(super) fresh_logs: bool,
}

/// How soon to look again for something that may just be coming into being.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Whether what was to be created may exist, or be on its way, although the call failed: its outcome
/// is unknown, or its name is taken (containerd and CRI-O word that as a failed reservation).
pub(super) fn may_exist(error: &CriError) -> bool {
    error.is_outcome_unknown()
        || matches!(error, CriError::AlreadyExists { .. })
        || (error.message().contains("reserve") && error.message().contains("name"))
}

impl KubeGenericRuntimeManager {
    /// The sandbox that the plan keeps.
    pub(super) async fn existing_sandbox(
        &self,
        request: &SyncRequest<'_>,
        actions: &PodActions,
        report: &mut SyncReport,
    ) -> Option<Sandbox> {
        let id = actions.sandbox.clone()?;
        let found = request.status.sandboxes.iter().find(|s| s.id == id);
        match self.builder.sandbox(request.pod, actions.attempt).await {
            Ok(config) => Some(Sandbox {
                id,
                config,
                ips: found.map(|s| s.ips.clone()).unwrap_or_default(),
                fresh_logs: false,
            }),
            Err(error) => {
                report.error = Some(error);
                None
            }
        }
    }

    /// Creates the sandbox that the plan wants and reads its addresses.
    pub(super) async fn create_sandbox(
        &self,
        request: &SyncRequest<'_>,
        actions: &PodActions,
    ) -> anyhow::Result<Sandbox> {
        let (pod, attempt) = (request.pod, actions.attempt);
        let object = ObjectRef::pod(pod);
        let new = self.builder.new_sandbox(pod, attempt).await;
        let NewSandbox {
            config,
            warnings,
            fresh_logs,
        } = new.inspect_err(|error| {
            let text = format!("Failed to create pod sandbox: {}", chain(error.as_ref()));
            self.events
                .warning(&object, event::FAILED_CREATE_POD_SANDBOX, text);
        })?;
        for warning in warnings {
            self.events
                .warning(&object, warning.reason, warning.message);
        }
        self.prefetch(request, actions, &config);
        let _making = self.cache.creating(pod.uid());
        let begun = Instant::now();
        let made = self.runtime.run_pod_sandbox(config.clone(), "").await;
        self.metrics.ran_sandbox("", begun.elapsed(), made.is_err());
        let id = match made {
            Ok(id) => {
                // An earlier creation without an answer would have the name.
                self.unknown_creations.lock().remove(&pod.uid());
                SandboxId::from(id)
            }
            Err(error) => {
                let text = format!("Failed to create pod sandbox: {}", error.grpc_text());
                self.events
                    .warning(&object, event::FAILED_CREATE_POD_SANDBOX, text);
                if may_exist(&error) {
                    self.unknown_creations.lock().insert(pod.uid());
                    if let Err(error) = Box::pin(self.adopt_sandboxes(&Owner::of(pod))).await {
                        tracing::warn!(
                            pod = %pod.full_name(),
                            err = %chain(error.as_ref()),
                            "Cannot look up a sandbox that may have been created"
                        );
                    }
                }
                return Err(error).context("cannot create the sandbox");
            }
        };
        if let Some(change) = actions.sandbox_change {
            self.sandbox_back_off
                .replaced(pod.uid(), change, Instant::now());
        }
        let ips = self.read_new_sandbox(pod, &id).await?;
        Ok(Sandbox {
            id,
            config,
            ips,
            fresh_logs,
        })
    }

    /// The addresses of a sandbox that has just been made.
    async fn read_new_sandbox(&self, pod: &Pod, id: &SandboxId) -> anyhow::Result<Vec<String>> {
        let owner = Owner::of(pod);
        let item = ItemId::Sandbox(id.clone());
        let seq = self.cache.next_seq();
        match self.runtime.pod_sandbox_status(id.as_str(), false).await {
            Ok(reply) => {
                let status = translate::sandbox_status(
                    &reply.sandbox,
                    self.cache.strings(),
                    self.cache.address_order(),
                );
                let Some(status) = status.map(|owned| owned.object) else {
                    self.cache.touch(&owner, item, None);
                    anyhow::bail!("the runtime does not know the new sandbox by the pod's labels");
                };
                let ips = status.ips.clone();
                self.cache
                    .observed(&owner, &item, seq, Read::Sandbox(status));
                Ok(ips)
            }
            Err(error) => {
                self.cache.touch(&owner, item, None);
                let text = format!("Unable to get pod sandbox status: {}", error.grpc_text());
                let object = ObjectRef::pod(pod);
                self.events
                    .warning(&object, event::FAILED_POD_SANDBOX_STATUS, text);
                Err(error).context("cannot read the new sandbox")
            }
        }
    }

    /// After a creation whose outcome is unknown, or a name that is taken: the sandbox may exist, with
    /// containers in it. They are looked up and adopted instead of creating others (P-10). Does nothing
    /// once a lookup has succeeded.
    pub(super) async fn adopt_sandboxes(&self, owner: &Owner) -> anyhow::Result<()> {
        if !self.unknown_creations.lock().contains(&owner.uid) {
            return Ok(());
        }
        let label_selector: HashMap<_, _> =
            [(keys::POD_UID.to_string(), owner.uid.to_string())].into();
        let sandboxes = PodSandboxFilter {
            label_selector: label_selector.clone(),
            ..PodSandboxFilter::default()
        };
        let containers = ContainerFilter {
            label_selector,
            ..ContainerFilter::default()
        };
        let (sandboxes, containers) = tokio::try_join!(
            self.runtime.list_pod_sandboxes(Some(sandboxes)),
            self.runtime.list_containers(Some(containers)),
        )?;
        // Containers first: a sandbox without them would get others.
        for container in containers {
            let sandbox = SandboxId::from(container.pod_sandbox_id);
            let item = ItemId::Container(container.id.into());
            self.cache.touch(owner, item, Some(sandbox));
        }
        for sandbox in sandboxes {
            let item = ItemId::Sandbox(sandbox.id.into());
            self.cache.touch(owner, item, None);
        }
        self.unknown_creations.lock().remove(&owner.uid);
        Ok(())
    }

    /// Stops one sandbox; one that is gone counts as stopped.
    pub(super) async fn stop_sandbox(&self, owner: &Owner, id: &SandboxId) -> anyhow::Result<()> {
        let stopped = self.runtime.stop_pod_sandbox(id.as_str()).await;
        self.cache.touch(owner, ItemId::Sandbox(id.clone()), None);
        match stopped {
            Err(error) if !error.is_not_found() => Err(error).context("cannot stop the sandbox"),
            _ => Ok(()),
        }
    }
}
