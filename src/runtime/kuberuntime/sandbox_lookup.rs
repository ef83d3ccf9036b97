//! Finds sandboxes whose creation had an unknown outcome.

use crate::cri::v1::{ContainerFilter, PodSandboxFilter};
use crate::cri::{CriError, RuntimeClient};
use crate::model::{PodUid, SandboxId, keys};
use crate::state::pod_cache::{ItemId, PodCache, PodRef};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};

/// The pods for which the runtime may have a sandbox that is not in the pod cache.
pub(super) struct SandboxLookup {
    runtime: RuntimeClient,
    cache: PodCache,
    unknown: Mutex<HashSet<PodUid>>,
}

impl SandboxLookup {
    pub(super) fn new(runtime: RuntimeClient, cache: PodCache) -> Self {
        Self { runtime, cache, unknown: Mutex::default() }
    }

    /// Records that a creation had an unknown outcome, or that its name was in use.
    pub(super) fn record_unknown_creation(&self, uid: PodUid) {
        self.unknown.lock().insert(uid);
    }

    pub(super) fn forget(&self, uid: &PodUid) {
        self.unknown.lock().remove(uid);
    }

    /// Looks up sandboxes that may have been created and adds them and their containers to the pod cache, so that no
    /// others are created. Does nothing if no creation has an unknown outcome.
    ///
    /// # Errors
    /// The runtime cannot list them; the next call tries again.
    pub(super) async fn adopt(&self, pod_ref: &PodRef) -> Result<(), CriError> {
        if !self.unknown.lock().contains(&pod_ref.uid) {
            return Ok(());
        }
        let label_selector: HashMap<_, _> =
            [(keys::POD_UID.to_string(), pod_ref.uid.to_string())].into();
        let sandboxes = PodSandboxFilter {
            label_selector: label_selector.clone(),
            ..PodSandboxFilter::default()
        };
        let containers = ContainerFilter { label_selector, ..ContainerFilter::default() };
        let (sandboxes, containers) = tokio::try_join!(
            self.runtime.list_pod_sandboxes(Some(sandboxes)),
            self.runtime.list_containers(Some(containers)),
        )?;
        // Containers first: a sync that sees the sandbox without them would create others.
        for container in containers {
            let sandbox = SandboxId::from(container.pod_sandbox_id);
            let item = ItemId::Container(container.id.into());
            self.cache.touch(pod_ref, item, Some(sandbox));
        }
        for sandbox in sandboxes {
            let item = ItemId::Sandbox(sandbox.id.into());
            self.cache.touch(pod_ref, item, None);
        }
        self.forget(&pod_ref.uid);
        Ok(())
    }
}
