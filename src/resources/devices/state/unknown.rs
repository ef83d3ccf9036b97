//! Tracks which running containers may have unknown devices after the checkpoint was damaged. Pure.

use super::DeviceManagerCache;
use crate::model::PodUid;
use crate::resources::devices::error::DeviceAllocationError;
use crate::resources::devices::request::PodRequest;
use std::collections::HashSet;

/// Containers that may have unknown devices.
#[derive(Clone, Debug, Default)]
pub(super) struct UnknownDevices {
    /// Whether all running pods have been marked.
    inventory_complete: bool,
    /// UID of the pod, container and resource.
    containers: HashSet<(PodUid, String, String)>,
}

impl UnknownDevices {
    /// Removes a pod; returns whether it had unknown devices.
    pub(super) fn release(&mut self, uid: &PodUid) -> bool {
        let before = self.containers.len();
        self.containers.retain(|(pod, _, _)| pod != uid);
        self.containers.len() < before
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
            unknown.containers.extend(
                missing.map(|name| (request.uid.clone(), container.name.clone(), name.clone())),
            );
        }
    }

    /// Records that a container is about to be created, and so has no unknown devices.
    pub fn mark_starting(&mut self, uid: &PodUid, container: &str) {
        if let Some(unknown) = &mut self.unknown {
            unknown.containers.retain(|(pod, name, _)| !(pod == uid && name == container));
        }
    }

    /// Reports that all running pods have been marked. True if no device is unknown any more.
    pub fn inventory_complete(&mut self) -> bool {
        let Some(unknown) = &mut self.unknown else {
            return false;
        };
        unknown.inventory_complete = true;
        let over = unknown.containers.is_empty();
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
        let is_affected = || unknown.containers.iter().any(|(_, _, name)| name == resource);
        if !unknown.inventory_complete || is_affected() {
            return Err(DeviceAllocationError::UnknownDevices(resource.into()));
        }
        Ok(())
    }
}
