//! Devices that are not known to be free, after the checkpoint was damaged. Pure.

use super::DeviceState;
use crate::{
    model::PodUid,
    resources::devices::{error::AllocationError, request::PodRequest},
};
use std::collections::HashSet;

/// Which containers have devices that are not known, because the checkpoint was damaged.
#[derive(Clone, Debug, Default)]
pub(super) struct Lost {
    /// What runs on the node is known.
    surveyed: bool,
    /// Pod, container and resource.
    holders: HashSet<(PodUid, String, String)>,
}

impl Lost {
    /// Nothing of a pod runs any more; whether it had unknown devices.
    pub(super) fn release(&mut self, uid: &PodUid) -> bool {
        let before = self.holders.len();
        self.holders.retain(|(pod, _, _)| pod != uid);
        self.holders.len() < before
    }
}

impl DeviceState {
    /// A pod that runs may have devices that are not known.
    pub fn found_running(&mut self, request: &PodRequest) {
        let known = self.pods.get(&request.uid);
        let Some(lost) = &mut self.lost else {
            return;
        };
        for container in &request.containers {
            let own = known.and_then(|known| known.get(&container.name));
            let unknown = container.amounts.keys();
            let unknown = unknown.filter(|name| own.is_none_or(|own| !own.contains_key(*name)));
            lost.holders.extend(
                unknown.map(|name| (request.uid.clone(), container.name.clone(), name.clone())),
            );
        }
    }

    /// A container is about to be created: it has no unknown devices.
    pub fn starting(&mut self, uid: &PodUid, container: &str) {
        if let Some(lost) = &mut self.lost {
            lost.holders
                .retain(|(pod, name, _)| !(pod == uid && name == container));
        }
    }

    /// Everything that runs on the node has been found. True when no device is unknown any more.
    pub fn surveyed(&mut self) -> bool {
        let Some(lost) = &mut self.lost else {
            return false;
        };
        lost.surveyed = true;
        let over = lost.holders.is_empty();
        if over {
            self.lost = None;
        }
        over
    }

    /// Whether a damaged checkpoint still keeps devices from being allocated.
    pub fn is_damaged(&self) -> bool {
        self.lost.is_some()
    }

    pub(super) fn check_lost(&self, resource: &str) -> Result<(), AllocationError> {
        let Some(lost) = &self.lost else {
            return Ok(());
        };
        let held = || lost.holders.iter().any(|(_, _, name)| name == resource);
        if !lost.surveyed || held() {
            return Err(AllocationError::Lost(resource.into()));
        }
        Ok(())
    }
}
