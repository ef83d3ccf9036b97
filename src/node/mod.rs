//! The node as a whole: usage of the node and its pods.

pub mod stats;
