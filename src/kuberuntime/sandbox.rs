//! Making, finding and replacing sandboxes.

use super::{
    KubeGenericRuntimeManager,
    actions::{PodActions, SandboxChange},
    report::SyncReport,
    sync_pod::SyncRequest,
    translate,
};
use crate::{
    base::{chain, with_own_files},
    cri::{
        CriError,
        v1::{PodSandboxConfig, PodSandboxFilter},
    },
    events::ObjectRef,
    model::{Pod, PodExt, SandboxId, keys, reasons::event},
    pod_cache::{ItemId, Owner, Read},
};
use anyhow::Context as _;
use std::time::Duration;
use tokio::time::Instant;

/// A sandbox that containers can be created in.
#[derive(Clone, Debug)]
pub(super) struct Sandbox {
    pub(super) id: SandboxId,
    pub(super) config: PodSandboxConfig,
    pub(super) ips: Vec<String>,
}

/// How soon to look again for something that may just be coming into being.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(1);

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
            Ok((config, _)) => Some(Sandbox {
                id,
                config,
                ips: found.map(|s| s.ips.clone()).unwrap_or_default(),
            }),
            Err(error) => {
                report.error = Some(error);
                None
            }
        }
    }

    /// How long the replacement of a sandbox still has to wait (P-18). The first replacement is
    /// immediate; one after the other in short order they wait longer and longer. A changed manifest is
    /// the user's own wish and never waits.
    pub(super) fn sandbox_back_off(&self, pod: &Pod, change: SandboxChange) -> Option<Duration> {
        if matches!(
            change,
            SandboxChange::SpecChanged | SandboxChange::NoneKnown
        ) {
            return None;
        }
        let now = Instant::now();
        let mut steps = self.sandbox_steps.lock();
        let uid = pod.uid();
        let since = steps.step(&uid).map_or(now, |step| step.since);
        if let Some(left) = steps.remaining(&uid, since, now) {
            return Some(left);
        }
        steps.advance(uid, now, now);
        None
    }

    /// Creates a sandbox and reads its addresses.
    pub(super) async fn create_sandbox(&self, pod: &Pod, attempt: u32) -> anyhow::Result<Sandbox> {
        let object = ObjectRef::pod(pod);
        let (config, warnings) = self
            .builder
            .sandbox(pod, attempt)
            .await
            .inspect_err(|error| {
                let text = format!("Failed to create pod sandbox: {}", chain(error.as_ref()));
                self.events
                    .warning(&object, event::FAILED_CREATE_POD_SANDBOX, text);
            })?;
        for warning in warnings {
            self.events
                .warning(&object, warning.reason, warning.message);
        }
        let logs = config.log_directory.clone();
        let directory = logs.clone();
        with_own_files(move || std::fs::create_dir_all(directory))
            .await?
            .with_context(|| format!("cannot create the log directory {logs}"))?;
        let id = match self.runtime.run_pod_sandbox(config.clone(), "").await {
            Ok(id) => SandboxId::from(id),
            Err(error) => {
                let text = format!("Failed to create pod sandbox: {}", error.grpc_text());
                self.events
                    .warning(&object, event::FAILED_CREATE_POD_SANDBOX, text);
                Box::pin(self.adopt_sandboxes(pod, &error)).await;
                return Err(error).context("cannot create the sandbox");
            }
        };
        let owner = Owner::of(pod);
        let item = ItemId::Sandbox(id.clone());
        let seq = self.cache.next_seq();
        match self.runtime.pod_sandbox_status(id.as_str(), false).await {
            Ok(reply) => {
                let status = translate::sandbox_status(&reply.sandbox, self.cache.strings());
                let Some(status) = status.map(|owned| owned.object) else {
                    self.cache.touch(&owner, item, None);
                    anyhow::bail!("the runtime does not know the new sandbox by the pod's labels");
                };
                let ips = status.ips.clone();
                self.cache
                    .observed(&owner, &item, seq, Read::Sandbox(status));
                Ok(Sandbox { id, config, ips })
            }
            Err(error) => {
                self.cache.touch(&owner, item, None);
                let text = format!("Unable to get pod sandbox status: {}", error.grpc_text());
                self.events
                    .warning(&object, event::FAILED_POD_SANDBOX_STATUS, text);
                Err(error).context("cannot read the new sandbox")
            }
        }
    }

    /// After a call whose outcome is unknown, or a name that is taken: the sandbox may exist. It is
    /// looked up and adopted instead of asking for a second one (P-10).
    async fn adopt_sandboxes(&self, pod: &Pod, error: &CriError) {
        if !may_exist(error) {
            return;
        }
        let filter = PodSandboxFilter {
            label_selector: [(keys::POD_UID.to_string(), pod.uid().to_string())].into(),
            ..PodSandboxFilter::default()
        };
        match self.runtime.list_pod_sandboxes(Some(filter)).await {
            Ok(found) => {
                let owner = Owner::of(pod);
                for sandbox in found {
                    self.cache
                        .touch(&owner, ItemId::Sandbox(sandbox.id.into()), None);
                }
            }
            Err(error) => tracing::warn!(
                pod = %pod.full_name(),
                err = %error,
                "Cannot look for a sandbox that may have been created"
            ),
        }
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
