//! Memory of init containers that later containers of the pod reuse. Pure.

use super::{MemoryBlock, MemoryBytes};
use crate::model::{Pod, PodExt, is_sidecar};
use crate::resources::topology::NumaMask;
use k8s_openapi::api::core::v1::Container;
use std::collections::BTreeMap;

/// The reusable memory of the last admitted pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ReusableMemory {
    pod: String,
    bytes: BTreeMap<NumaMask, MemoryBytes>,
}

impl ReusableMemory {
    /// The bytes that a pod can reuse on exactly these nodes.
    pub(super) fn bytes(&self, pod: &Pod, nodes: NumaMask, resource: &str) -> u64 {
        let bytes = self.bytes.get(&nodes).and_then(|bytes| bytes.get(resource));
        let own = bytes.filter(|_| self.pod == pod.uid().as_str());
        own.copied().unwrap_or_default()
    }

    /// Clears the memory of the pod, unless `is_assigned` returns true for its UID.
    pub(super) fn clear_unless(&mut self, is_assigned: impl Fn(&str) -> bool) {
        if !is_assigned(&self.pod) {
            *self = Self::default();
        }
    }

    /// Records the blocks of a container. Those of an init container can be reused by later containers.
    pub(super) fn update(&mut self, pod: &Pod, container: &Container, blocks: &[MemoryBlock]) {
        let uid = pod.uid();
        if self.pod != uid.as_str() {
            self.pod = uid.to_string();
            self.bytes.clear();
        }
        let ends = is_regular_init(pod, &container.name);
        for block in blocks {
            let nodes = NumaMask::of(block.nodes.iter().copied()).unwrap_or_default();
            let bytes = self.bytes.entry(nodes).or_default();
            let bytes = bytes.entry(block.resource.clone()).or_default();
            *bytes = if ends { block.size.max(*bytes) } else { bytes.saturating_sub(block.size) };
        }
    }
}

/// Whether the container is an init container that exits before the next one starts, and not a sidecar.
pub(super) fn is_regular_init(pod: &Pod, name: &str) -> bool {
    let mut init = pod.init_containers().iter();
    init.any(|container| container.name == name && !is_sidecar(container))
}

/// Init containers that have exited when the container with this name starts; all of them for a regular container.
pub(super) fn ended_before<'a>(pod: &'a Pod, name: &'a str) -> impl Iterator<Item = &'a Container> {
    let init = pod.init_containers().iter();
    init.take_while(move |container| container.name != name)
        .filter(|container| !is_sidecar(container))
}
