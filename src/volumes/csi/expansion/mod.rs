//! Expansion of volumes on the node, after a controller has made the PersistentVolume larger.
//!
//! The state machine has a step for it ([`Step::Expand`](super::machine::Step)), which is due after a publish and
//! whenever the capacity of the PersistentVolume exceeds the size that this node has reached ([`decision::Sizes`]). The
//! step reads the claim, decides ([`decision`]), has the driver expand the volume, records the new size on disk and
//! reports it in the claim's status ([`claim`]). A node may neither list nor watch claims and PersistentVolumes, so
//! PersistentVolumes that may become larger are read from time to time (`rereads`).
//!
//! Only an error of the driver keeps a pod from being started. A claim that cannot be read or written is tried again
//! while the pod runs.
//!
//! Upstream: `NodeExpander` and the expansion in `pkg/volume/util/operationexecutor`.

pub mod decision;
pub mod claim;
mod expand;
mod rereads;
