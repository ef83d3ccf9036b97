//! Finding sandboxes whose creation got no answer.

use crate::{
    cri::{
        CriError, RuntimeClient,
        v1::{ContainerFilter, PodSandboxFilter},
    },
    model::{PodUid, SandboxId, keys},
    state::pod_cache::{ItemId, Owner, PodCache},
};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};

/// Pods for which a sandbox may exist that the pod cache does not have.
pub(super) struct SandboxLookup {
    runtime: RuntimeClient,
    cache: PodCache,
    unknown: Mutex<HashSet<PodUid>>,
}

impl SandboxLookup {
    pub(super) fn new(runtime: RuntimeClient, cache: PodCache) -> Self {
        Self {
            runtime,
            cache,
            unknown: Mutex::default(),
        }
    }

    /// A creation for this pod had an unknown outcome, or its name was taken.
    pub(super) fn creation_unknown(&self, uid: PodUid) {
        self.unknown.lock().insert(uid);
    }

    pub(super) fn forget(&self, uid: &PodUid) {
        self.unknown.lock().remove(uid);
    }

    /// Adopts sandboxes that may have been created, with the containers in them, so that no others are
    /// created (P-10). Does nothing once a lookup has succeeded.
    ///
    /// # Errors
    /// The runtime cannot list them; the next call tries again.
    pub(super) async fn adopt(&self, owner: &Owner) -> Result<(), CriError> {
        if !self.unknown.lock().contains(&owner.uid) {
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
        self.forget(&owner.uid);
        Ok(())
    }
}
