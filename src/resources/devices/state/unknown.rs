//! Tracks which running containers may have unknown devices after the checkpoint was damaged. Pure.

use super::DeviceManagerCache;
use crate::{
    model::PodUid,
    resources::devices::{error::DeviceAllocationError, request::PodRequest},
};
use std::collections::HashSet;

/// Containers that may have unknown devices.
#[derive(Clone, Debug, Default)]
pub(super) struct UnknownDevices {
    /// Whether all running pods have been marked.
    inventory_complete: bool,
    /// UID of the pod, container and resource.
    holders: HashSet<(PodUid, String, String)>,
}

impl UnknownDevices {
    /// Removes a pod; returns whether it had unknown devices.
    pub(super) fn release(&mut self, uid: &PodUid) -> bool {
        let before = self.holders.len();
        self.holders.retain(|(pod, _, _)| pod != uid);
        self.holders.len() < before
    }
}

impl DeviceManagerCache {
    /// Records that a running pod may have unknown devices.
    pub fn mark_running(&mut self, request: &PodRequest) {
        let known = self.pods.get(&request.uid);
        let Some(unknown) = &mut self.unknown else {
            return;
        };
        for container in &request.containers {
            let own = known.and_then(|known| known.get(&container.name));
            let missing = container.amounts.keys();
            let missing = missing.filter(|name| own.is_none_or(|own| !own.contains_key(*name)));
            unknown.holders.extend(
                missing.map(|name| (request.uid.clone(), container.name.clone(), name.clone())),
            );
        }
    }

    /// Records that a container is about to be created, and so has no unknown devices.
    pub fn starting(&mut self, uid: &PodUid, container: &str) {
        if let Some(unknown) = &mut self.unknown {
            unknown
                .holders
                .retain(|(pod, name, _)| !(pod == uid && name == container));
        }
    }

    /// Reports that all running pods have been marked. True if no device is unknown any more.
    pub fn inventory_complete(&mut self) -> bool {
        let Some(unknown) = &mut self.unknown else {
            return false;
        };
        unknown.inventory_complete = true;
        let over = unknown.holders.is_empty();
        if over {
            self.unknown = None;
        }
        over
    }

    /// Whether unknown devices still prevent allocations.
    pub fn is_damaged(&self) -> bool {
        self.unknown.is_some()
    }

    pub(super) fn check_unknown(&self, resource: &str) -> Result<(), DeviceAllocationError> {
        let Some(unknown) = &self.unknown else {
            return Ok(());
        };
        let held = || unknown.holders.iter().any(|(_, _, name)| name == resource);
        if !unknown.inventory_complete || held() {
            return Err(DeviceAllocationError::UnknownDevices(resource.into()));
        }
        Ok(())
    }
}
