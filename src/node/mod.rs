//! The node as a whole: usage of the node and its pods, certificates.

pub mod stats;
pub mod certificates;
