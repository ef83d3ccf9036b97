//! Devices that are not known to be free, after the checkpoint was damaged. Pure.

use super::DeviceManagerCache;
use crate::{
    model::PodUid,
    resources::devices::{error::DeviceAllocationError, request::PodRequest},
};
use std::collections::HashSet;

/// Containers whose devices are not known, because the checkpoint was damaged.
#[derive(Clone, Debug, Default)]
pub(super) struct UnknownDevices {
    /// All pods that run on the node are known.
    inventory_complete: bool,
    /// Pod, container and resource.
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
    /// A pod that runs may have devices that are not known.
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

    /// A container is about to be created: it has no unknown devices.
    pub fn starting(&mut self, uid: &PodUid, container: &str) {
        if let Some(unknown) = &mut self.unknown {
            unknown
                .holders
                .retain(|(pod, name, _)| !(pod == uid && name == container));
        }
    }

    /// All pods that run on the node have been marked. True when no device is unknown any more.
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

    /// Whether a damaged checkpoint still keeps devices from being allocated.
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
