//! Memory of init containers that later containers of the pod reuse. Pure.

use super::{Block, MemoryBytes};
use crate::{
    model::{Pod, PodExt, is_sidecar},
    resources::topology::NumaMask,
};
use k8s_openapi::api::core::v1::Container;
use std::collections::BTreeMap;

/// The reusable memory of the pod that was admitted last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reusable {
    pod: String,
    bytes: BTreeMap<NumaMask, MemoryBytes>,
}

impl Reusable {
    /// The bytes that a pod can reuse on exactly these nodes.
    pub(super) fn bytes(&self, pod: &Pod, nodes: NumaMask, resource: &str) -> u64 {
        let bytes = self.bytes.get(&nodes).and_then(|bytes| bytes.get(resource));
        let own = bytes.filter(|_| self.pod == pod.uid().as_str());
        own.copied().unwrap_or_default()
    }

    /// Removes the pod unless it is still there.
    pub(super) fn forget_unless(&mut self, is_there: impl Fn(&str) -> bool) {
        if !is_there(&self.pod) {
            *self = Self::default();
        }
    }

    /// Records that a container has these blocks: later containers may reuse those of an init container only.
    pub(super) fn used(&mut self, pod: &Pod, container: &Container, blocks: &[Block]) {
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
            *bytes = if ends {
                block.size.max(*bytes)
            } else {
                bytes.saturating_sub(block.size)
            };
        }
    }
}

/// Whether it is an init container that ends before the next one starts, not a sidecar.
pub(super) fn is_regular_init(pod: &Pod, name: &str) -> bool {
    let mut init = pod.init_containers().iter();
    init.any(|container| container.name == name && !is_sidecar(container))
}

/// Init containers before the one of this name that have ended when it starts; all of them for a main container.
pub(super) fn ended_before<'a>(pod: &'a Pod, name: &'a str) -> impl Iterator<Item = &'a Container> {
    let init = pod.init_containers().iter();
    init.take_while(move |container| container.name != name)
        .filter(|container| !is_sidecar(container))
}
